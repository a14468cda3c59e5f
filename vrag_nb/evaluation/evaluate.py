"""One evaluation: a corpus, its questions, an engine and a policy in; metrics.json and everything behind it out.

    metrics = evaluate(corpus=corpus, questions=questions, engine=engine, policy=policy,
                       systems=["no_retrieval", "vanilla_top1", "agent"], out=Path("results/nano"),
                       settings=Settings(max_turns=6), prompt="nano")

writes below `out`

    metrics.json                  retrieval.{recall@1, recall@3, recall@5, ndcg@5};
                                  answers.<system>.{accuracy, by_type.<type>, behaviour.<name>, errors};
                                  comparisons.agent_minus_<system>, of VimRAG's task vimrag_minus_<system>;
                                  run.{seed, commit, versions, hardware, seconds.<stage>, ...};
                                  every figure is {value, low, high, n}
    metrics.md, figures/*.png     the same for readers
    predictions.jsonl             a row per question and system: answer, reference, correct, gold and retrieved pages
    retrieval.jsonl               a row per question: the pages found with the question as the query
    trajectories/<system>.jsonl   the whole records, appended as they finish

**Retrieval** is over the whole corpus, with the question's text as the query; questions without gold pages are left
out of it, and `n` says so. **Accuracy** is over all questions: no answer, and a trajectory that ended in an error, are
wrong. **Types** are the source type for single-hop questions (text, table, chart, layout, ...) and the query type for
others (multi_hop, comparison, arithmetic, unanswerable). **Behaviour** is a mean over questions: turns, searches and
crops taken; the share of a question's turns that were invalid; whether the forced last turn was reached; whether it
ended with an answer; the share of its gold pages that were shown.

**Resuming.** Trajectories survive `kill -9`; the rerun goes on where it was, and does errors again. They are kept only
for what they were made with: policy, engine, settings, prompt, seed and pages are written down beside them, and when
one of these differs the old file is put aside as `<system>.stale.jsonl` and the system starts anew. A question that was
edited is answered anew. `run.seconds.<system>` is the time of the runs that did the work; what a killed run spent is
not in it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tqdm.auto import tqdm

from vrag_nb.agent.action_kinds import load_kinds
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.prompting import load_prompt
from vrag_nb.agent.searching import Engine, in_words, search_each
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory, TrajectoryLog, write_trajectories
from vrag_nb.evaluation.answers import answered_right
from vrag_nb.evaluation.baselines import Context, System, agent_system, find_system
from vrag_nb.evaluation.metrics import Interval, bootstrap, ndcg_at_k, paired_bootstrap, recall_at_k, share_interval
from vrag_nb.evaluation.per_question import SHARES, conduct, pages_seen
from vrag_nb.evaluation.report import BEHAVIOUR, write_report
from vrag_nb.files import write_json, write_jsonl
from vrag_nb.folder_lock import alone_in
from vrag_nb.paths import free_path
from vrag_nb.provenance import own_code, provenance
from vrag_nb.records import Hit, Question, pages_digest

DEPTH = 5  # pages looked at for the retrieval metrics
QUERY_CHUNK = 64
Queries = Literal["question"] | Callable[[Question], str]


def evaluate(
    *,
    corpus: Path,
    questions: Sequence[Question],
    engine: Engine,
    policy: Policy | None,
    systems: Sequence[str],
    out: Path,
    settings: Settings | MemorySettings,
    prompt: str | Path,
    seed: int = 0,
    concurrency: int = 16,
    retrieval_queries: Queries = "question",
    progress: bool = True,
    run_info: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate `systems` on `questions` and return what metrics.json holds; see the module's docstring.

    policy: None where there are no systems, and retrieval alone is measured. settings, prompt: the task, VRAG's or
    VimRAG's, of which a system changes what it is about (`context_of`). seed: of sampling and bootstrap. concurrency:
    sessions in flight. retrieval_queries: "question", or what makes the query of a question. run_info: further entries
    of `run`, such as the profile. Raises ValueError for no questions, an unknown system, two systems with one name,
    systems without a policy, two questions with one uid, an engine that answers no search at all or a system that gives
    other trajectories than one for each question in order; FileNotFoundError for an unprepared corpus or a missing
    prompt.
    """
    chosen = _chosen(systems)
    _check(questions)
    out, seconds = Path(out), dict[str, float]()
    if chosen and policy is None:
        raise ValueError(f"{', '.join(one.name for one in chosen)}: a system needs a policy")
    started = time.perf_counter()
    rankings = rank_pages(engine, questions, retrieval_queries, progress=progress)
    unsearched = _failed_searches(rankings)
    retrieval = retrieval_metrics(questions, rankings, seed)
    write_jsonl(out / "retrieval.jsonl", [_retrieval_row(question, rankings) for question in questions])
    seconds["retrieval"] = round(time.perf_counter() - started, 3)
    found: dict[str, list[Trajectory]] = {}
    if policy is not None:
        shown = {"seed": seed, "concurrency": concurrency, "progress": progress}
        context = context_of(policy, engine, PageStore(corpus), settings, prompt, **shown)
        shared = _identity(context, settings)
        for system in chosen:
            identity = {**shared, "prompt": _digest(load_prompt(system.template(context))), **_own_code(system)}
            found[system.name], seconds[system.name] = _run(system, context, questions, out / "trajectories", identity)
    rows = [_prediction(name, one, question) for name in found for one, question in _pairs(found[name], questions)]
    write_jsonl(out / "predictions.jsonl", rows)
    answers = {one.name: answer_metrics(found[one.name], questions, seed, one.ready_made_turns) for one in chosen}
    about = {"seed": seed, **provenance(), "seconds": seconds, "questions": len(questions), "systems": list(found)}
    about |= {
        "policy": policy.name if policy else None,
        "prompt": Path(prompt).name,
        "agent": agent_system(settings),
        "settings": settings.model_dump(mode="json"),
        "ready_made_turns": {one.name: one.ready_made_turns for one in chosen},
    }
    about |= {"failed_searches": len(unsearched), "failed_search": unsearched[0]} if unsearched else {}
    metrics = {
        "retrieval": retrieval,
        "answers": answers,
        "comparisons": _comparisons(found, questions, seed, about["agent"]),
        "run": {**about, **(run_info or {})},
    }
    write_report(out, metrics, found)
    return metrics


def context_of(
    policy: Policy,
    engine: Engine,
    pages: PageStore,
    settings: Settings | MemorySettings,
    prompt: str | Path,
    **shown: Any,
) -> Context:
    """What the systems share. Beside VimRAG's task, VRAG's systems have as many turns as it has steps, its budget for
    an image, and the general prompt. `shown`: seed, concurrency and progress."""
    if isinstance(settings, Settings):
        return Context(policy, engine, pages, settings, prompt, **shown)
    same = {name: getattr(settings, name) for name in ("min_pixels", "max_pixels", "factor")}
    beside = Settings(max_turns=settings.max_steps, **same)
    return Context(policy, engine, pages, beside, **shown, memory=settings, memory_prompt=prompt)


def question_type(question: Question) -> str:
    """The label a question is counted under: its source type when single-hop (or unknown), else its query type."""
    meta = question.meta_info
    return meta.source_type if meta.query_type in ("single_hop", "unknown") else meta.query_type


def rank_pages(
    engine: Engine,
    questions: Sequence[Question],
    queries: Queries = "question",
    depth: int = DEPTH,
    progress: bool = True,
) -> dict[str, list[Hit] | Exception]:
    """The best `depth` pages of the whole corpus by uid, or why there are none; one bad query fails alone."""
    words = [question.query if queries == "question" else queries(question) for question in questions]
    found: list[list[Hit] | Exception] = []
    with tqdm(total=len(words), desc="searching", unit="query", disable=not progress, leave=False) as bar:
        for start in range(0, len(words), QUERY_CHUNK):
            found += search_each(engine, words[start : start + QUERY_CHUNK], depth)
            bar.update(len(found) - bar.n)
    return {question.uid: hits for question, hits in zip(questions, found, strict=True)}


def _failed_searches(rankings: Mapping[str, list[Hit] | Exception]) -> list[str]:
    """Which searches failed and why, in words. Raises ValueError where all did."""
    failed = [f"question {uid}: {in_words(why)}" for uid, why in rankings.items() if isinstance(why, Exception)]
    if failed and len(failed) == len(rankings):
        raise ValueError(f"none of {len(failed)} searches was answered; {failed[0]}")
    return failed


def retrieval_metrics(
    questions: Sequence[Question], rankings: Mapping[str, list[Hit] | Exception], seed: int = 0
) -> dict[str, dict[str, Any]]:
    """recall@1, recall@3, recall@5 and ndcg@5 as `{value, low, high, n}`; a failed search found nothing."""
    gold = {question.uid: question.gold_page_ids for question in questions}
    ranked = {uid: _page_ids(hits) for uid, hits in rankings.items()}
    scores = {f"recall@{k}": recall_at_k(ranked, gold, k) for k in (1, 3, 5)}
    scores["ndcg@5"] = ndcg_at_k(ranked, gold, 5)
    return {name: _dump(share_interval(list(values.values()), seed)) for name, values in scores.items()}


def answer_metrics(
    trajectories: Sequence[Trajectory], questions: Sequence[Question], seed: int = 0, ready_made_turns: int = 0
) -> dict[str, Any]:
    """`{accuracy, by_type, behaviour, errors}` of one system, and the first `error` where there are any; `trajectories`
    in the order of `questions`.

    ready_made_turns: how many turns at the beginning were written by the environment (`System.ready_made_turns`).
    """
    scores = _scores(trajectories, questions)
    by_type: dict[str, list[float]] = {}
    for question in questions:
        by_type.setdefault(question_type(question), []).append(scores[question.uid])
    measured = [
        conduct(one, ready_made_turns) | pages_seen(question.gold_page_ids, one.retrieved_page_ids)
        for one, question in _pairs(trajectories, questions)
    ]
    failed = [f"question {one.uid}: {one.error}" for one in trajectories if one.status == "error"]
    # Those that a rerun repeats; seconds and tokens are in the report (`evaluation.measured`).
    behaviour = {name: values for name in BEHAVIOUR if (values := [row[name] for row in measured if name in row])}
    return {
        "accuracy": _dump(share_interval(list(scores.values()), seed)),
        "by_type": {kind: _dump(share_interval(by_type[kind], seed)) for kind in sorted(by_type)},
        "behaviour": {
            name: _dump((share_interval if name in SHARES else bootstrap)(values, seed))
            for name, values in behaviour.items()
        },
        "errors": len(failed),
        **({"error": failed[0]} if failed else {}),
    }


def _chosen(names: Sequence[str]) -> list[System]:
    """The systems. Raises ValueError where two of different places have one name, and would write to one file."""
    places: dict[str, str] = {}
    systems = []
    for place in dict.fromkeys(names):
        system = find_system(place)
        if system.name in places:
            other = places[system.name]
            raise ValueError(f"the systems {other!r} and {place!r} are both called {system.name!r}: rename one of them")
        places[system.name] = place
        systems.append(system)
    return systems


def _check(questions: Sequence[Question]) -> None:
    if not questions:
        raise ValueError("there are no questions to evaluate")
    seen: set[str] = set()
    for question in questions:
        if question.uid in seen:
            raise ValueError(f"uid {question.uid!r} appears twice; uids must be unique")
        seen.add(question.uid)


def _run(
    system: System, context: Context, questions: Sequence[Question], folder: Path, identity: Mapping[str, Any]
) -> tuple[list[Trajectory], float]:
    """One system's trajectories, and the seconds spent on them by this run and earlier ones: the share of these
    questions in the time of all that the file answers."""
    path, stamp = folder / f"{system.name}.jsonl", folder / f"{system.name}.stamp.json"
    with alone_in(stamp):  # before anything of another process is put aside
        before = _put_aside_stale(path, stamp, identity)
        _forget_edited(path, questions, system.told_gold)
        write_json(stamp, {"identity": identity, "seconds": before})
        finished = {uid for uid, one in TrajectoryLog(path).done.items() if one.status != "error"}
        started = time.perf_counter()
        trajectories = system.run(context, questions, path)
        if [one.uid for one in trajectories] != [question.uid for question in questions]:
            given = f"{len(trajectories)} trajectories for {len(questions)} questions"
            raise ValueError(f"system {system.name!r} gave {given}: there should be one for each, in their order")
        if any(question.uid not in finished for question in questions):
            before = round(before + time.perf_counter() - started, 3)
            write_json(stamp, {"identity": identity, "seconds": before})
        answered = max(len(questions), len(TrajectoryLog(path).done))
    return trajectories, round(before * len(questions) / answered, 3)


def _put_aside_stale(path: Path, stamp: Path, identity: Mapping[str, Any]) -> float:
    """Seconds that went into the trajectories at `path`; 0 when there are none, or they were made with other things."""
    try:
        written = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        written = {}
    if not path.is_file():
        return 0.0
    if written.get("identity") != json.loads(json.dumps(identity)):
        path.replace(free_path(path.with_name(f"{path.stem}.stale.jsonl")))
        return 0.0
    return float(written.get("seconds", 0.0))


def _forget_edited(path: Path, questions: Sequence[Question], told_gold: bool = False) -> None:
    """Drop trajectories of questions that now read differently, or by a system that is told the gold have other gold.

    Otherwise gold pages and answers are taken over as they are.
    """
    if not path.is_file():
        return
    log, now = TrajectoryLog(path), {question.uid: question for question in questions}
    kept = []
    for one in log.done.values():
        question = now.get(one.uid)
        if question is None or one.reference == question:
            kept.append(one)
        elif one.question == question.query and not told_gold:
            kept.append(one.model_copy(update={"reference": question}))
    if kept != list(log.done.values()):
        write_trajectories(path, kept)


def _identity(context: Context, settings: Settings | MemorySettings) -> dict[str, Any]:
    """What trajectories depend on, whatever the system: all but its prompt and the question."""
    actions = [own_code(kind) for kind in load_kinds(context.settings.actions)]
    return {
        "policy": {**context.policy.identity, **context.policy.declared, **_own_code(context.policy)},
        "engine": context.engine.fingerprint,
        "settings": settings.model_dump(mode="json"),
        "seed": context.seed,
        "pages": pages_digest(context.pages.corpus),
        **({"actions": actions} if actions else {}),
    }


def _own_code(part: object) -> dict[str, str]:
    return {"code": digest} if (digest := own_code(part)) else {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _pairs(trajectories: Sequence[Trajectory], questions: Sequence[Question]) -> list[tuple[Trajectory, Question]]:
    return list(zip(trajectories, questions, strict=True))


def _scores(trajectories: Sequence[Trajectory], questions: Sequence[Question]) -> dict[str, float]:
    """1 or 0 by uid."""
    pairs = _pairs(trajectories, questions)
    return {question.uid: float(bool(answered_right(one, question))) for one, question in pairs}


def _comparisons(
    found: Mapping[str, Sequence[Trajectory]], questions: Sequence[Question], seed: int, agent: str
) -> dict[str, dict[str, Any]]:
    """The agent's accuracy less every other system's, paired by question."""
    if agent not in found:
        return {}
    scores = {name: _scores(trajectories, questions) for name, trajectories in found.items()}
    others = [name for name in found if name != agent]
    return {f"{agent}_minus_{name}": _dump(paired_bootstrap(scores[agent], scores[name], seed)) for name in others}


def _prediction(system: str, trajectory: Trajectory, question: Question) -> dict[str, Any]:
    return {
        "uid": question.uid,
        "system": system,
        "type": question_type(question),
        "query": question.query,
        "reference": question.reference_answer,
        "answer": trajectory.answer,
        "correct": answered_right(trajectory, question),
        "gold_pages": question.gold_page_ids,
        "retrieved_pages": trajectory.retrieved_page_ids,
        "status": trajectory.status,
        "error": trajectory.error,
    }


def _retrieval_row(question: Question, rankings: Mapping[str, list[Hit] | Exception]) -> dict[str, Any]:
    hits = rankings[question.uid]
    row: dict[str, Any] = {"uid": question.uid, "gold_pages": question.gold_page_ids, "found_pages": _page_ids(hits)}
    return row | ({"error": f"{type(hits).__name__}: {hits}"} if isinstance(hits, Exception) else {})


def _page_ids(hits: list[Hit] | Exception) -> list[str]:
    """The pages in the order of their ranks, each once, as an engine of one's own may list it twice."""
    ranked = [] if isinstance(hits, Exception) else sorted(hits, key=lambda hit: hit.rank)
    return list(dict.fromkeys(hit.page_id for hit in ranked))


def _dump(interval: Interval) -> dict[str, Any]:
    return interval.model_dump(mode="json")
