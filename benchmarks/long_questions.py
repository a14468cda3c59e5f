"""VimRAG's memory against VRAG's history on long questions: accuracy, and image tokens in context, by step.

    python benchmarks/long_questions.py --out results/long [--pages 4] [--across] [--legible] [--limit 40]
        [--seeds 0 1 2]

A long question joins one-page questions of a test document, one a page (`vrag_nb/evaluation/long_questions.py`; with
`--across` of as many documents; with `--legible` of those that need no crop, for VimRAG has none), so it takes
`--pages` searches or more. Two agents answer the same ones, with `--steps` generations at most: VRAG (`--vrag`, a
profile), whose context is all it has seen, and VimRAG (`--vimrag`), whose context is rebuilt from its memory. Each is
played twice:

planner   told the gold, over the real search engine: what the protocol itself costs, whatever the model
weights   the profile's policy, sampled at `--temperature`, once for each seed

Printed and written: the share of questions right, of values right in their place and of gold pages seen; generations a
question; image tokens in context, the mean over generations and the most of a question; VimRAG's shares less VRAG's,
question by question. The figure has tokens in context by generation, and the share of questions answered right by then.
Interrupted, it asks no question twice.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import tell

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.long_questions import long_questions, values_right
from vrag_nb.evaluation.metrics import Interval, bootstrap, paired_bootstrap, share_interval
from vrag_nb.evaluation.of_profile import evaluation_of
from vrag_nb.evaluation.per_question import pages_seen
from vrag_nb.evaluation.visual_context import mean_by_step, visual_tokens
from vrag_nb.files import write_json
from vrag_nb.learning.experts import PrivilegedPlanner
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.paths import project_path
from vrag_nb.plotting import figures
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question

HEADER = ["agent", "questions", "right", "values right", "gold pages seen", "generations", "tokens in context", "most"]


@dataclass
class Row:
    """One agent: a list a measure, a number a question and seed; `tokens` and `right_at` by generation."""

    name: str
    right: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    right_at: list[int | None] = field(default_factory=list)

    def add(self, one: Trajectory, question: Question, pages: PageStore) -> None:
        in_place = values_right(one.answer, question)  # rules alone let a list have another order
        right = one.status == "answered" and in_place == 1 and is_correct(one.answer, question.reference_answer)
        tokens = visual_tokens(one, pages)
        self.right.append(float(right))
        self.values.append(in_place)
        self.seen.append(pages_seen(question.gold_page_ids, one.retrieved_page_ids)["gold_pages_seen"])
        self.tokens.append(tokens)
        self.right_at.append(len(tokens) if right else None)

    def cells(self, questions: int) -> list[str]:
        """As HEADER. Intervals are over questions, of which each seed's answer is one value of the mean."""
        shares = [_shown(share_interval(_by_question(one, questions))) for one in (self.right, self.values, self.seen)]
        asked = [float(len(tokens)) for tokens in self.tokens]
        mean = [sum(tokens) / max(1, len(tokens)) for tokens in self.tokens]
        most = [float(max(tokens, default=0)) for tokens in self.tokens]
        counts = [_shown(bootstrap(_by_question(one, questions)), 1) for one in (asked, mean, most)]
        return [self.name, str(questions), *shares, *counts]


def difference(vrag: Row, vimrag: Row, played: str, questions: int) -> str:
    """VimRAG less VRAG, question by question, each the mean over its seeds."""
    told = []
    for name, measure in (("right", "right"), ("values right", "values"), ("gold pages seen", "seen")):
        one, other = (_by_question(getattr(row, measure), questions) for row in (vimrag, vrag))
        told.append(f"{name} {_shown(paired_bootstrap(one, other))}")
    return f"VimRAG less VRAG, {played}: {', '.join(told)}."


def _by_question(values: Sequence[float], questions: int) -> list[float]:
    """Means over the seeds, which follow one another."""
    return [sum(values[number::questions]) * questions / len(values) for number in range(questions)]


def _shown(found: Interval, digits: int = 2) -> str:
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def play(
    profile: Profile, policy: Policy, questions: Sequence[Question], steps: int, seed: int, out: Path, top_k: int | None
) -> list[Trajectory]:
    """The trajectories of one agent and seed, in the order of the questions."""
    task = profile.task()
    name, bound = ("vimrag", "max_steps") if isinstance(task, MemorySettings) else ("agent", "max_turns")
    changes = {bound: steps} | ({"top_k": top_k} if top_k and isinstance(task, MemorySettings) else {})
    settings: Settings | MemorySettings = task.model_copy(update=changes)
    evaluate(
        questions=questions,
        engine=profile.search_engine(),
        policy=policy,
        systems=[name],
        out=out,
        **(evaluation_of(profile, seed, steps=steps) | {"settings": settings}),
    )
    found = {one.uid: one for one in read_trajectories(out / "trajectories" / f"{name}.jsonl")}
    return [found[question.uid] for question in questions]


def planner(profile: Profile, questions: Sequence[Question]) -> Policy:
    """The policy that is told the gold, of the profile's kind of agent."""
    return (PrivilegedPlanner if profile.agent.kind == "vrag" else MemoryPlanner)(questions)


def measure(profile: Profile, played: str, questions: Sequence[Question], options: argparse.Namespace) -> Row:
    """One agent, played by the planner or by the weights: all its seeds."""
    row, pages = Row(f"{profile.agent.kind}, {played}"), PageStore(profile.corpus_folder)
    for seed in options.seeds if played == "weights" else [0]:
        sampling = profile.with_policy_options(temperature=options.temperature)
        policy = sampling.load_policy() if played == "weights" else planner(profile, questions)
        out = project_path(options.out) / f"{profile.agent.kind}-{played}-{seed}"
        for one, question in zip(
            play(profile, policy, questions, options.steps, seed, out, options.top_k), questions, strict=True
        ):
            row.add(one, question, pages)
        policy.close()
    return row


def draw(rows: Sequence[Row]) -> figures.Picture:
    """Image tokens in context, and the share of questions answered right, by generation."""
    figure = figures.new_figure(10.5, 3.6)
    left, right = (figures.axes_at(figure, 0.7 + 5.2 * place, 0.5, 4.3, 2.4) for place in (0, 1))
    figures.chart(left, "Image tokens in context", x="generation", y="tokens, mean over questions")
    figures.chart(right, "Questions answered right by then", x="generation", y="share of questions")
    steps = range(1, max(len(tokens) for row in rows for tokens in row.tokens) + 1)
    for number, row in enumerate(rows):
        line = "-" if number < 2 else "--"  # planners, then weights
        style: dict[str, Any] = {"color": figures.SERIES[number % 2], "linestyle": line, "label": row.name}
        means = [mean for mean, _ in mean_by_step(row.tokens)]
        left.plot(range(1, len(means) + 1), means, marker=".", **style)
        done = [sum(at is not None and at <= step for at in row.right_at) / len(row.right_at) for step in steps]
        right.plot(steps, done, marker=".", **style)
    right.set_ylim(-0.03, 1.03)
    figures.share_ticks(right.yaxis)
    left.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vrag", default="nano")
    parser.add_argument("--vimrag", default="nano-vimrag")
    parser.add_argument("--pages", type=int, default=4, help="pages, and so searches, that a question needs at least")
    parser.add_argument("--across", action="store_true", help="each page of another document")
    parser.add_argument("--legible", action="store_true", help="only of what can be read on a page shown whole")
    parser.add_argument("--top-k", type=int, help="pages a search shows VimRAG (default: its profile's)")
    parser.add_argument("--limit", type=int, default=40, help="long questions at most")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of the weights; none: planners alone")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.3)
    parser.add_argument("--out", type=Path, default=Path("results/long"))
    options = parser.parse_args()
    out, profiles = project_path(options.out), [load_profile(options.vrag), load_profile(options.vimrag)]
    asked = [one for one in profiles[0].questions() if not (options.legible and one.needs_crop)]
    joined = long_questions(asked, options.pages, across=options.across)
    questions = sample(joined, options.limit, 0)
    played = ("planner", *(["weights"] if options.seeds else []))
    rows = [measure(profile, one, questions, options) for one in played for profile in profiles]
    about = (
        f"{len(questions)} test questions of {options.pages} {'documents' if options.across else 'pages'} each"
        f"{', all legible on pages shown whole' if options.legible else ''}, "
        f"{options.steps} generations at most; planners are told the gold, weights sampled at {options.temperature} "
        f"with seeds {options.seeds}. Brackets: 95% bootstrap over questions. "
    )
    about += " ".join(
        difference(vrag, vimrag, one, len(questions))
        for vrag, vimrag, one in zip(rows[::2], rows[1::2], played, strict=True)
    )
    tell("A memory against a history", HEADER, [row.cells(len(questions)) for row in rows], about, out)
    write_json(out / "long.json", {row.name: vars(row) for row in rows})
    figures.save(draw(rows), out / "long.png")


if __name__ == "__main__":
    main()
