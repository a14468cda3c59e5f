"""The systems and the evaluation: what each system shows, what is counted, and that a killed run goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pymupdf
import pytest
from conftest import PAGE_IDS, RankedEngine, ScriptedPolicy, serving
from fastapi import FastAPI
from test_index import Toy

from vrag_nb import __main__ as cli
from vrag_nb.agent.environment import replay
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import TrajectoryLog, read_trajectories
from vrag_nb.evaluation import report
from vrag_nb.evaluation.baselines import SYSTEMS, Context, System, find_system
from vrag_nb.evaluation.evaluate import evaluate, question_type
from vrag_nb.evaluation.realdocs import evaluate_realdocs
from vrag_nb.evaluation.result_folders import read_results
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.profiles import load_profile
from vrag_nb.records import MetaInfo, Question, read_pages, read_questions, write_pages, write_questions

SETTINGS = Settings(max_turns=3, top_k=5, min_pixels=4 * 784, max_pixels=40 * 784)
FOREIGN = Path(__file__).parents[1] / "data" / "foreign"
REALDOCS = Path(os.environ.get("VRAG_NB_REALDOCS", Path(__file__).parents[2] / "shared" / "realdocs"))


def ask(uid: str, reference: str = "42", pages: list[int] | None = None, **meta: Any) -> Question:
    info = MetaInfo(file_name="alpha.pdf", reference_page=[2] if pages is None else pages, **meta)
    return Question(uid=uid, query=f"What is shown in {uid}?", reference_answer=reference, meta_info=info)


QUESTIONS = [
    ask("q1", query_type="single_hop", source_type="chart"),
    ask("q2", query_type="multi_hop", source_type="table", pages=[1, 3]),
    ask("q3", "not answerable", query_type="unanswerable", source_type="text", pages=[]),
]


def sees_then_answers(conversation: Conversation) -> str:
    """Searches, crops, and answers 42 if it was shown any image; told to answer at once, it does."""
    images = sum(len(message.images) for message in conversation)
    if images == 0 and "Answer now" not in conversation[-1].text:
        return "<think>Look it up.</think>\n<search>what is shown</search>"
    if images == 1 and "Answer now" not in conversation[-1].text and "Invalid" not in conversation[-1].text:
        return "<think>Too small.</think>\n<bbox>[10, 10, 100, 100]</bbox>"
    return f"<think>Done.</think>\n<answer>{42 if images else 'not answerable'}</answer>"


def context(corpus: Path, engine: RankedEngine, policy: ScriptedPolicy) -> Context:
    return Context(policy, engine, PageStore(corpus), SETTINGS, "nano", progress=False)


@pytest.fixture
def run(tiny_corpus: Path, engine: RankedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`evaluate` on the tiny corpus; without figures, which take the longest, unless asked for."""
    draw = report.write_figures
    monkeypatch.setattr(report, "write_figures", lambda *given: draw(*given) if go.figures else None)

    def go(policy: ScriptedPolicy | None = None, **changed):
        arguments = {
            "corpus": tiny_corpus,
            "questions": QUESTIONS,
            "engine": engine,
            "policy": policy or ScriptedPolicy(sees_then_answers),
            "systems": list(SYSTEMS),
            "out": tmp_path / "out",
            "settings": SETTINGS,
            "prompt": "nano",
            "progress": False,
        }
        return evaluate(**{**arguments, **changed})

    go.figures = False
    return go


@pytest.mark.parametrize(
    ("system", "images", "kinds"),
    [
        ("no_retrieval", [], ["answer"]),
        ("vanilla_top1", ["alpha_1"], ["search", "answer"]),
        ("vanilla_top3", ["alpha_1", "alpha_2", "alpha_3"], ["search", "answer"]),
        ("agent_no_crop", ["alpha_1"], ["search", "invalid", "answer"]),
        ("agent", ["alpha_1"], ["search", "bbox", "answer"]),
    ],
)
def test_what_each_system_shows(tiny_corpus, engine, tmp_path, system, images, kinds):
    policy = ScriptedPolicy(sees_then_answers)
    [one] = find_system(system).run(context(tiny_corpus, engine, policy), QUESTIONS[:1], tmp_path / "t.jsonl")
    assert one.retrieved_page_ids == images
    assert [turn.action.kind for turn in one.turns] == kinds
    assert one.status == "answered"
    assert one.turns[-1].forced == system.startswith(("no_", "vanilla"))
    assert [seen.kind for seen in one.observations].count("crop") == (system == "agent")
    [stored] = read_trajectories(tmp_path / "t.jsonl")
    assert stored == one


@pytest.mark.parametrize("system", ["no_retrieval", "vanilla_top1", "vanilla_top3"])
def test_the_record_holds_the_conversation_the_model_had(tiny_corpus, engine, tmp_path, system):
    had: list[Conversation] = []

    def listen(conversation: Conversation) -> str:
        had.append(list(conversation))
        return "<answer>42</answer>"

    shared = context(tiny_corpus, engine, ScriptedPolicy(listen))
    [one] = find_system(system).run(shared, QUESTIONS[:1], tmp_path / "t.jsonl")
    assert had == [one.messages()[:-1]]
    assert had[0][-1].text.endswith(SETTINGS.forced_text)
    assert replay(one, shared.pages) == []


class Namesake(SYSTEMS["agent"]):
    """One of somebody's own that kept the name of the one it extends."""


class Shuffled(SYSTEMS["agent"]):
    """One whose trajectories come in another order, or not all of them."""

    name = "shuffled"
    kept: slice = slice(None, None, -1)

    def run(self, context, questions, out):
        return super().run(context, questions, out)[self.kept]


class Unfinished(System):
    name = "unfinished"


def test_systems_of_ones_own_that_would_spoil_the_figures_are_refused(run, monkeypatch):
    """Two of one name once left one row, and answers in another order were judged by each other's references."""
    policy = ScriptedPolicy(sees_then_answers)
    with pytest.raises(ValueError, match=r"'agent' and '.*:Namesake' are both called 'agent'"):
        run(policy, systems=["agent", f"{__name__}:Namesake"])
    with pytest.raises(ValueError, match=r":Unfinished' has no method environment: define it"):
        run(policy, systems=[f"{__name__}:Unfinished"])
    assert policy.calls == [], "nothing is asked before"
    assert run(systems=["agent", "agent"])["run"]["systems"] == ["agent"]
    for kept, count in ((slice(None, None, -1), 3), (slice(1), 1)):
        monkeypatch.setattr(Shuffled, "kept", kept)
        with pytest.raises(
            ValueError, match=rf"'shuffled' gave {count} trajectories for 3 questions: .* in their order"
        ):
            run(systems=[f"{__name__}:Shuffled"])


def test_vanilla_searches_with_the_question_itself(tiny_corpus, engine, tmp_path):
    policy = ScriptedPolicy(["<answer>42</answer>"])
    find_system("vanilla_top3").run(context(tiny_corpus, engine, policy), QUESTIONS[:1], tmp_path / "t.jsonl")
    assert engine.calls == [["What is shown in q1?"]]


@pytest.mark.parametrize("system", ["no_retrieval", "vanilla_top1"])
@pytest.mark.parametrize("said", ["<search>more</search>", "<bbox>[1, 1, 50, 50]</bbox>", "I do not know"])
def test_anything_but_an_answer_in_the_only_turn_is_no_answer(tiny_corpus, engine, tmp_path, system, said):
    policy = ScriptedPolicy([said])
    shared = context(tiny_corpus, engine, policy)
    [one] = find_system(system).run(shared, QUESTIONS[:1], tmp_path / "t.jsonl")
    assert (one.status, one.answer, policy.calls) == ("no_answer", None, [1])


@pytest.mark.parametrize("batched", [True, False])
def test_a_failing_search_ends_only_its_own_session(tiny_corpus, engine, tmp_path, batched):
    bad = QUESTIONS[0].model_copy(update={"uid": "bad", "query": "fail"})
    shared = context(tiny_corpus, engine, ScriptedPolicy(["<answer>42</answer>"], batched))
    found = find_system("vanilla_top1").run(shared, [bad, QUESTIONS[1]], tmp_path / "t.jsonl")
    assert [one.status for one in found] == ["error", "answered"]
    assert "the index is gone" in (found[0].error or "")


def test_an_unknown_system_is_named():
    with pytest.raises(ValueError, match=r"unknown system 'vanilla'; known: no_retrieval"):
        find_system("vanilla")


def test_metrics_of_a_run_worked_by_hand(run, tmp_path):
    metrics = run(run_info={"profile": "test"})
    assert metrics == json.loads((tmp_path / "out/metrics.json").read_text())
    # the ranking is alpha_1, alpha_2, alpha_3, ...; q1 wants alpha_2, q2 alpha_1 and alpha_3, q3 nothing
    means = {name: (one["value"], one["n"]) for name, one in metrics["retrieval"].items()}
    assert means["recall@1"] == (0.25, 2)
    assert means["recall@3"] == means["recall@5"] == (1.0, 2)
    assert set(metrics["answers"]) == set(SYSTEMS)
    accuracy = {name: one["accuracy"]["value"] for name, one in metrics["answers"].items()}
    assert accuracy == {
        "no_retrieval": pytest.approx(1 / 3, abs=1e-6),
        **dict.fromkeys(["vanilla_top1", "vanilla_top3", "agent_no_crop", "agent"], pytest.approx(2 / 3, abs=1e-6)),
    }
    by_type = metrics["answers"]["agent"]["by_type"]
    assert {kind: (one["value"], one["n"]) for kind, one in by_type.items()} == {
        "chart": (1.0, 1),
        "multi_hop": (1.0, 1),
        "unanswerable": (0.0, 1),
    }
    behaviour = metrics["answers"]["agent_no_crop"]["behaviour"]
    assert behaviour["turns"]["value"] == 3
    assert behaviour["invalid_action_rate"]["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert behaviour["finish_rate"]["value"] == 1
    assert metrics["answers"]["vanilla_top1"]["behaviour"]["turns"]["value"] == 1
    assert metrics["comparisons"]["agent_minus_no_retrieval"]["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert metrics["run"]["profile"] == "test"
    assert {"seed", "commit", "versions", "hardware", "seconds"} <= set(metrics["run"])
    assert set(metrics["run"]["seconds"]) == {"retrieval", *SYSTEMS}


def test_every_estimate_has_its_four_fields(run):
    metrics = run()
    estimates = list(metrics["retrieval"].values())
    for result in metrics["answers"].values():
        estimates += [result["accuracy"], *result["by_type"].values(), *result["behaviour"].values()]
    assert all(set(one) == {"value", "low", "high", "n"} for one in estimates)
    assert all(one["low"] <= one["value"] <= one["high"] for one in estimates)


def test_the_files_of_a_run(run, tmp_path):
    run.figures = True
    run()
    out = tmp_path / "out"
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [(row["system"], row["uid"]) for row in rows] == [(name, one.uid) for name in SYSTEMS for one in QUESTIONS]
    assert rows[-3] == {
        "uid": "q1",
        "system": "agent",
        "type": "chart",
        "query": "What is shown in q1?",
        "reference": "42",
        "answer": "42",
        "correct": True,
        "gold_pages": ["alpha_2"],
        "retrieved_pages": ["alpha_1"],
        "status": "answered",
        "error": None,
    }
    assert {path.name for path in (out / "trajectories").glob("*.jsonl")} == {f"{name}.jsonl" for name in SYSTEMS}
    figures = {path.name for path in (out / "figures").iterdir()}
    assert {"accuracy_by_system.png", "accuracy_by_type.png", "retrieval.png", "turns_agent.png"} <= figures
    text = (out / "metrics.md").read_text()
    assert "| vanilla_top3 | .67" in text
    assert "recall@5" in text
    assert not list(out.rglob(".*"))


def test_a_figure_that_cannot_be_drawn_costs_no_measurement(run, tmp_path, monkeypatch):
    def fails(*given):
        raise ValueError("no font")

    monkeypatch.setattr(report, "write_figures", fails)
    with pytest.raises(ValueError, match="no font"):
        run()
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["answers"].keys() == SYSTEMS.keys()
    assert "| vanilla_top3 | .67" in (tmp_path / "out" / "metrics.md").read_text()


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a|b", r"a\|b"),
        ("two\nlines", "two lines"),
        ("<img src=x onerror=alert(1)> & more", "&lt;img src=x onerror=alert(1)&gt; &amp; more"),
        ("`a|b < c` < [d](e.md)", r"`a\|b < c` &lt; [d](e.md)"),
        (r"\`<b>`", r"\`&lt;b&gt;`"),  # an escaped backtick begins no code
        ("`a``b <b> `c`", "`a``b &lt;b&gt; `c`"),
    ],
)
def test_cells_neither_break_their_table_nor_hold_html(text, cell):
    assert report.markdown_table(["x", text], [[text, "1"]]) == f"| x | {cell} |\n| --- | ---: |\n| {cell} | 1 |"


def test_a_second_run_asks_the_model_nothing_and_says_the_same(run):
    first = run()
    again = ScriptedPolicy(sees_then_answers)
    second = run(policy=again)
    assert again.calls == []
    for metrics in (first, second):
        metrics["run"]["seconds"].pop("retrieval")
    assert second == first


def test_seconds_are_the_share_of_the_questions_asked_for(run, tmp_path):
    run(systems=["agent"])
    stamp = tmp_path / "out/trajectories/agent.stamp.json"
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "seconds": 30.0}))
    metrics = run(systems=["agent"], questions=QUESTIONS[:1])
    assert metrics["run"]["seconds"]["agent"] == 10


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 1},
        {"prompt": "vrag"},
        {"settings": SETTINGS.model_copy(update={"max_turns": 2})},
        {"engine": type("Other", (RankedEngine,), {})()},
    ],
)
def test_answers_made_with_something_else_are_put_aside(run, tmp_path, changed):
    run(systems=["agent"])
    policy = ScriptedPolicy(sees_then_answers)
    run(policy=policy, systems=["agent"], **changed)
    assert sum(policy.calls) > 0
    assert len(read_trajectories(tmp_path / "out/trajectories/agent.stale.jsonl")) == 3


class Fixed(Policy):
    """A policy as the guides show one: a class with one method."""

    def __init__(self, checkpoint: str = "", word: str = "", ask: Any = None) -> None:
        self.checkpoint, self.word, self.ask, self.calls = checkpoint, word, ask, 0

    def generate(self, conversations, seeds=None):
        return [Generation(f"<answer>{self.word}</answer>") for _ in conversations]


def test_the_answers_of_one_policy_are_not_taken_for_anothers(run):
    given = [Fixed("a/model-1", "41"), Fixed("b/model-2", "42"), Fixed("b/model-2", "42"), Fixed("b/model-3", "42")]
    right = [run(policy=policy, systems=["agent"])["answers"]["agent"]["accuracy"]["value"] for policy in given]
    assert right == [0, *[pytest.approx(2 / 3, abs=1e-6)] * 3]
    identities = [policy.identity for policy in given]
    assert identities[1] == identities[2]
    assert len({str(one) for one in identities}) == 3
    model = Fixed(ask=print)  # no plain value: of another object nothing is known
    assert model.identity == model.identity != Fixed(ask=print).identity


def test_ones_declared_policy_is_known_by_what_its_profile_says_of_it(tmp_path, monkeypatch):
    code = """from vrag_nb.agent.policy import Policy


class Own(Policy):
    def __init__(self, checkpoint, **options):
        self.model = print

    def generate(self, conversations, seeds=None): ...
"""
    (tmp_path / "declared_policy.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    runs = tmp_path / "runs.yaml"

    def loaded(checkpoint: str, word: str) -> Policy:
        policy = f"{{kind: 'declared_policy:Own', checkpoint: {checkpoint}, options: {{word: {word}}}}}"
        runs.write_text(f"profiles: {{own: {{corpus: {{folder: c}}, retriever: {{kind: bm25}}, policy: {policy}}}}}")
        return load_profile("own", runs).load_policy()

    one, same, other, further = loaded("a/b", "x"), loaded("a/b", "x"), loaded("a/b", "y"), loaded("a/c", "x")
    assert one.declared == {"kind": "declared_policy:Own", "checkpoint": "a/b", "options": {"word": "x"}}
    assert (one.declared, one.identity) == (same.declared, same.identity)
    assert len({str(policy.declared) for policy in (one, other, further)}) == 3


def test_answers_of_ones_own_system_are_put_aside_when_its_code_changed(run, tmp_path, monkeypatch):
    code = """from vrag_nb.evaluation.baselines import VanillaTop1


class Own(VanillaTop1):
    name = "own"
    ready_made_turns = 1
"""
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, calls in enumerate((3, 0, 3)):
        (tmp_path / "own_system.py").write_text(code + "\n" * (number // 2))
        monkeypatch.delitem(sys.modules, "own_system", raising=False)
        policy = ScriptedPolicy(sees_then_answers)
        metrics = run(policy=policy, systems=["own_system:Own"])
        assert sum(policy.calls) == calls
    assert metrics["run"]["ready_made_turns"] == {"own": 1}
    assert read_results([tmp_path / "out"]).systems[0].runs[0].ready_made == 1


def test_what_else_the_data_set_takes_for_right_is_right(run):
    asked = [ask("a", "forty-two", answers=["forty-two", "42"]), ask("b", "forty-two")]
    assert run(systems=["agent"], questions=asked)["answers"]["agent"]["accuracy"]["value"] == 0.5


def test_what_another_process_writes_is_not_put_aside(run, tmp_path):
    run(systems=["agent"])
    with alone_in(tmp_path / "out/trajectories/agent.stamp.json"), pytest.raises(FolderInUseError, match="at work in"):
        run(systems=["agent"], seed=1)
    assert len(read_trajectories(tmp_path / "out/trajectories/agent.jsonl")) == 3


def test_only_an_edited_question_is_answered_anew(run):
    run(systems=["no_retrieval"])
    edited = [QUESTIONS[0].model_copy(update={"query": "Something else?"}), *QUESTIONS[1:]]
    policy = ScriptedPolicy(sees_then_answers)
    run(policy=policy, systems=["no_retrieval"], questions=edited)
    assert policy.calls == [1]
    corrected = [edited[0], QUESTIONS[1].model_copy(update={"reference_answer": "not answerable"}), QUESTIONS[2]]
    metrics = run(policy=policy, systems=["no_retrieval"], questions=corrected)
    assert policy.calls == [1]
    assert metrics["answers"]["no_retrieval"]["accuracy"]["value"] == pytest.approx(2 / 3, abs=1e-6)


def test_an_upper_bound_is_answered_anew_under_corrected_gold(run, monkeypatch):
    for told, calls in ((False, 0), (True, 1)):
        monkeypatch.setattr(find_system("no_retrieval").__class__, "told_gold", told)
        run(systems=["no_retrieval"])
        policy, first = ScriptedPolicy(sees_then_answers), QUESTIONS[0]
        corrected = first.model_copy(update={"meta_info": first.meta_info.model_copy(update={"reference_page": [3]})})
        run(policy=policy, systems=["no_retrieval"], questions=[corrected, *QUESTIONS[1:]])
        assert sum(policy.calls) == calls


def test_another_text_layer_is_another_corpus(run, tmp_path, tiny_corpus):
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_corpus, corpus)
    run(systems=["agent"], corpus=corpus)
    pages = read_pages(corpus)
    write_pages(corpus, [pages[0].model_copy(update={"text": "read by OCR"}), *pages[1:]])
    policy = ScriptedPolicy(sees_then_answers)
    run(policy=policy, systems=["agent"], corpus=corpus)
    assert sum(policy.calls) > 0


def test_a_page_that_an_engine_lists_twice_counts_once(run):
    class Twice(RankedEngine):
        def search(self, queries, top_k=3):
            return [[hits[0], *hits] for hits in super().search(queries, top_k)]

    assert run(systems=[], policy=None, engine=Twice())["retrieval"]["recall@3"]["n"] == 2


def test_a_subset_first_then_the_whole(run):
    run(systems=["agent"], questions=QUESTIONS[:1])
    policy = ScriptedPolicy(sees_then_answers)
    metrics = run(policy=policy, systems=["agent"])
    assert max(policy.calls) == 2
    assert metrics["answers"]["agent"]["accuracy"]["n"] == 3


def test_errors_are_rows_and_count_as_wrong(run, tmp_path):
    bad = QUESTIONS[0].model_copy(update={"query": "fail", "uid": "bad"})
    metrics = run(systems=["vanilla_top1", "agent"], questions=[bad, *QUESTIONS])
    assert metrics["answers"]["vanilla_top1"]["errors"] == 1
    assert metrics["answers"]["vanilla_top1"]["accuracy"]["value"] == 0.5
    assert metrics["answers"]["agent"]["errors"] == 0
    assert metrics["retrieval"]["recall@3"]["n"] == 3
    rows = [json.loads(line) for line in (tmp_path / "out/retrieval.jsonl").read_text().splitlines()]
    assert "the index is gone" in rows[0]["error"]
    assert rows[1]["found_pages"] == PAGE_IDS


def test_a_server_that_is_away_is_no_accuracy_of_zero(run, capsys):
    class Away(RankedEngine):
        def search(self, queries, top_k=3):
            raise ConnectionError("nobody there")

    with pytest.raises(ValueError, match=r"none of 3 searches was answered; question q1: ConnectionError: nobody"):
        run(engine=Away())
    bad = QUESTIONS[0].model_copy(update={"query": "fail", "uid": "bad"})
    metrics = run(systems=["vanilla_top1"], questions=[bad, *QUESTIONS])
    capsys.readouterr()
    report.print_metrics(metrics)
    said = capsys.readouterr().err
    assert "1 of 4 searches failed and count as finding nothing; question bad: RuntimeError: the index is gone" in said
    assert "vanilla_top1: 1 of 4 ended in an error and count as wrong; question bad: search: RuntimeError" in said


def test_questions_without_any_gold_page_leave_retrieval_empty(run):
    metrics = run(systems=["no_retrieval"], questions=QUESTIONS[2:])
    assert metrics["retrieval"]["recall@1"] == {"value": None, "low": None, "high": None, "n": 0}


def test_bad_questions_are_refused(run):
    with pytest.raises(ValueError, match="no questions"):
        run(questions=[])
    with pytest.raises(ValueError, match=r"'q1' appears twice"):
        run(questions=[QUESTIONS[0], QUESTIONS[0]])


def test_question_types():
    kinds = [("single_hop", "table"), ("comparison", "table"), ("unknown", "figure"), ("unanswerable", "text")]
    labels = [question_type(ask("q", query_type=query, source_type=source)) for query, source in kinds]
    assert labels == ["table", "comparison", "figure", "unanswerable"]


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_evaluate as t
whole = t.ScriptedPolicy.generate
def generate(self, conversations, seeds=None):
    if len(self.calls) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, conversations, seeds)
t.ScriptedPolicy.generate = generate  # the same class: another one's answers would be put aside
policy, systems = t.ScriptedPolicy(t.sees_then_answers), ["vanilla_top1", "agent"]
t.evaluate(corpus=Path(sys.argv[2]), questions=t.QUESTIONS, engine=t.RankedEngine(), policy=policy, systems=systems,
           out=Path(sys.argv[3]), settings=t.SETTINGS, prompt="nano", concurrency=1, progress=False)
"""


def test_kill_dash_nine_and_again(run, tiny_corpus, tmp_path):
    whole = run(systems=["vanilla_top1", "agent"], out=tmp_path / "whole")
    out = tmp_path / "killed"
    arguments = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tiny_corpus), str(out)]
    assert subprocess.run([*arguments, "7"], check=False).returncode == -signal.SIGKILL
    assert not (out / "metrics.json").exists()
    made = read_trajectories(out / "trajectories/agent.jsonl")
    assert len(made) == 1
    with (out / "trajectories/agent.jsonl").open("a") as file:
        file.write('{"uid": "q2", "ques')  # killed in the middle of a line
    policy = ScriptedPolicy(sees_then_answers)
    metrics = run(policy=policy, systems=["vanilla_top1", "agent"], out=out)
    assert max(policy.calls) == 2
    for part in ("retrieval", "answers", "comparisons"):
        assert metrics[part] == whole[part]


class CountedEndpoint:
    """An OpenAI-compatible model that searches, then answers; keeps (system, uid, turn) of what it is asked.

    At request `last` it ends `victim` with SIGKILL and says nothing.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.last, self.victim = 0, 0
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self.complete)

    async def complete(self, body: dict[str, Any]) -> Any:
        messages = body["messages"]
        text = json.dumps(messages)
        turn = sum(message["role"] == "assistant" for message in messages)
        system = "vanilla_top1" if turn and "I wonder" not in text else "agent"
        uid = re.findall(r"shown in (q\d+)", text)[0]
        self.asked.append((system, uid, turn))
        if len(self.asked) == self.last:
            os.kill(self.victim, signal.SIGKILL)
        await asyncio.sleep(0.02)  # so that questions are in flight when the kill comes
        search = turn == 0 and system == "agent"
        content = "<think>I wonder.</think><search>alpha</search>" if search else f"<answer>{uid}</answer>"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "counted", "choices": [choice]}


def test_a_killed_command_asks_no_question_twice(run, tiny_corpus, tmp_path):
    """`python -m vrag_nb evaluate`, killed in its second system and run again, against one that is left alone."""
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    questions = [ask(f"q{n}", f"q{n if n % 3 else 99}", query_type="single_hop") for n in range(10, 22)]
    write_questions(tmp_path / "questions.json", questions)
    endpoint = CountedEndpoint()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with serving(endpoint.app) as url:
        (tmp_path / "runs.yaml").write_text(
            f"profiles:\n  counted:\n    corpus: {{kind: documents, folder: {tmp_path / 'corpus'}}}\n"
            "    retriever: {kind: bm25}\n"
            f"    policy: {{kind: openai, checkpoint: counted, options: {{base_url: {url}/v1, api_key_env: null}}}}\n"
            "    agent: {prompt: nano, max_turns: 3, min_pixels: 3136, max_pixels: 31360}\n"
            "    evaluation: {concurrency: 3}\n"
        )
        command = ["evaluate", "--profile", "counted", "--file", str(tmp_path / "runs.yaml")]
        command += ["--corpus", str(tmp_path / "corpus"), "--questions", str(tmp_path / "questions.json")]
        command += ["--systems", "vanilla_top1", "agent", "--out"]
        assert cli.main([*command, str(whole)]) == 0
        undisturbed, endpoint.asked, endpoint.last = endpoint.asked, [], 24
        arguments = [sys.executable, "-m", "vrag_nb", *command, str(killed)]
        with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            endpoint.victim = process.pid
            assert process.wait() == -signal.SIGKILL
        assert not (killed / "metrics.json").exists()
        before = answered(killed)
        assert {system for system, _ in before} == {"vanilla_top1", "agent"}
        asked, endpoint.asked, endpoint.last = endpoint.asked, [], 0
        assert cli.main([*command, str(killed)]) == 0
    rest = endpoint.asked
    assert not before.intersection((system, uid) for system, uid, _ in rest), "no answered question is asked again"
    assert len(undisturbed) == len(set(undisturbed)) == 3 * len(questions)
    assert len(rest) == len(set(rest))
    assert {*asked, *rest} == set(undisturbed)
    twice = Counter((system, uid) for system, uid, _ in {*asked} & {*rest})
    assert len(twice) <= 3, "only what was in flight had to begin again"
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (whole, killed))
    for part in ("retrieval", "answers", "comparisons"):
        assert first[part] == second[part]
    assert (whole / "predictions.jsonl").read_text() == (killed / "predictions.jsonl").read_text()


def answered(out: Path) -> set[tuple[str, str]]:
    """(system, uid) of the trajectories on disk."""
    files = list((out / "trajectories").glob("*.jsonl"))
    return {(file.stem, one.uid) for file in files for one in TrajectoryLog(file).done.values()}


def test_with_a_real_model(run, tiny_vlm_folder):
    from vrag_nb.agent.transformers_policy import TransformersPolicy

    policy = TransformersPolicy(tiny_vlm_folder, max_new_tokens=4, threads=1)
    metrics = run(policy=policy, systems=["no_retrieval", "vanilla_top3", "agent"])
    assert {name: one["errors"] for name, one in metrics["answers"].items()} == dict.fromkeys(metrics["answers"], 0)
    assert metrics["answers"]["agent"]["behaviour"]["finish_rate"]["n"] == 3


def rows_of_slides() -> list[dict[str, str]]:
    """Questions about the committed slides, as MMLongBench-Doc writes them."""
    asked = [one for one in read_questions(FOREIGN / "questions.dev.json") if one.gold_page_ids]
    return [
        {
            "doc_id": one.meta_info.file_name,
            "doc_type": "Slides",
            "question": one.query,
            "answer": one.reference_answer,
            "evidence_pages": str(one.meta_info.reference_page),
            "evidence_sources": "['Table']",
            "answer_format": "Str",
        }
        for one in asked
    ]


@pytest.mark.parametrize("source", ["slides", "realdocs"])
def test_documents_of_others_with_bm25(tmp_path, source):
    if source == "realdocs" and not REALDOCS.is_dir():
        pytest.skip(f"no MMLongBench-Doc slice at {REALDOCS}")
    folder, whole = tmp_path / "slice", FOREIGN if source == "slides" else REALDOCS
    (folder / "documents").mkdir(parents=True)
    rows = rows_of_slides() if source == "slides" else json.loads((REALDOCS / "samples.json").read_text())
    sizes = {name: (whole / "documents" / name).stat().st_size for name in {row["doc_id"] for row in rows}}
    chosen = sorted(sizes, key=lambda name: (sizes[name], name))[:2]
    for name in chosen:
        (folder / "documents" / name).symlink_to(whole / "documents" / name)
    (folder / "samples.json").write_text(json.dumps([row for row in rows if row["doc_id"] in chosen]))
    arguments = (folder, tmp_path / "work", tmp_path / "out")
    metrics = evaluate_realdocs(*arguments, [("bm25", {})], dpi=40, progress=False)
    found = metrics["retrieval"]["bm25"]
    assert set(found) == {"in_document", "whole_corpus"}
    recalls = [found["in_document"][f"recall@{k}"]["value"] for k in (1, 3, 5)]
    assert recalls == sorted(recalls)
    assert recalls[0] > 0
    written = (tmp_path / "out/metrics.json").read_text() + (tmp_path / "out/metrics.md").read_text()
    assert not any(row["question"] in written for row in rows)


def test_scans_without_text_are_measured_without_bm25(tmp_path):
    folder = tmp_path / "slice"
    (folder / "documents").mkdir(parents=True)
    with pymupdf.open() as scan:
        scan.new_page(width=60, height=40)
        scan.save(folder / "documents" / "scan.pdf")
    row = {
        "doc_id": "scan.pdf",
        "question": "What?",
        "answer": "That",
        "evidence_pages": "[1]",
        "evidence_sources": "[]",
    }
    (folder / "samples.json").write_text(json.dumps([row]))
    arguments = (folder, tmp_path / "work", tmp_path / "out")
    with pytest.raises(ValueError, match="has a text layer"):
        evaluate_realdocs(*arguments, [("bm25", {})], dpi=40, progress=False)
    metrics = evaluate_realdocs(*arguments, [(Toy.name, {}), ("bm25", {})], dpi=40, progress=False)
    assert list(metrics["retrieval"]) == ["toy"]
    assert "Left out: bm25, as no page has a text layer" in (tmp_path / "out/metrics.md").read_text()
