"""What the nano agent could read if it looked at the right place, and whether it can tell.

    python benchmarks/looks.py [--profile nano] [--limit 60] [--views 3] [--out results/looks]

Every development question is worked through ten times: once by the agent alone, and nine times with its first turn
after a page was found replaced by a crop of half the page's width and height, from the upper left corner to the lower
right one in steps of a quarter. Printed: the share right of the agent, of the answer that most of the ten agree on, of
the one the model finds likeliest (the sum of its log-probabilities), and where any of the ten is right, which no way
of choosing among them can exceed. Brackets: 95% bootstrap over questions. Trajectories are kept under --run, and a
second start goes on from them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_with import keep_rollouts
from tables import bracketed, tell

from vrag_nb.agent.actions import Action
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import Session
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.metrics import paired_bootstrap, share_interval
from vrag_nb.learning.experts import SMALL_PRINT
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.records import Question

CORNERS = [(across, down) for down in (0, 0.25, 0.5) for across in (0, 0.25, 0.5)]  # of the crops, page fractions
Choice = Callable[[list[Trajectory]], Trajectory | None]


class Elsewhere(Environment):
    """Sample 0 of a question is the agent's own; sample n looks at crop n after the first page."""

    def accept(self, session: Session, generation: Generation) -> Action | None:
        sample = int(session.uid.rpartition("#")[2])
        page = session.turns[0].observation if len(session.turns) == 1 else None
        if sample and page is not None and page.shown_size is not None and generation.error is None:
            (width, height), (across, down) = page.shown_size, CORNERS[sample - 1]
            left, top = round(across * width), round(down * height)
            box = f"[{left}, {top}, {left + width // 2}, {top + height // 2}]"
            generation = Generation(f"<think>{SMALL_PRINT}</think>\n<bbox>{box}</bbox>")
        return super().accept(session, generation)


def looks(profile: Profile, questions: list[Question], views: int, run: Path) -> list[list[Trajectory]]:
    """The ten trajectories of each question, the agent's own first."""
    policy = profile.with_policy_options(views=views).load_policy()
    own: Any = profile.load_agent(policy).environment
    keep_rollouts(run, profile, own.engine)
    environment = Elsewhere(own.engine, own.pages, own.settings, profile.agent.prompt)
    samples, concurrency = len(CORNERS) + 1, profile.evaluation.concurrency
    found = rollout(
        policy, environment, questions, run / f"views-{views}.jsonl", samples=samples, concurrency=concurrency
    )
    return [found[start : start + samples] for start in range(0, len(found), samples)]


def agreed(found: list[Trajectory]) -> Trajectory | None:
    """The first that gives the answer given most often; the agent's own where several are."""
    answers = [one.answer.strip().lower() for one in found if one.answer]
    most = Counter(answers).most_common(1)
    return next((one for one in found if one.answer and one.answer.strip().lower() == most[0][0]), None)


def likeliest(found: list[Trajectory]) -> Trajectory | None:
    """The one whose answering turn the model finds likeliest."""
    return max((one for one in found if one.answer), key=lambda one: sum(one.turns[-1].logprobs), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--limit", type=int, default=60, help="questions, the same ones every time")
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--run", type=Path, default=Path("data/runs/looks"))
    parser.add_argument("--out", type=Path, help="folder for the table as dev.md")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    profile.build_index()
    asked = profile.dev_questions(options.limit)
    found = looks(profile, asked, options.views, options.run / profile.name)

    def right(one: Trajectory | None, question: Question) -> float:
        return float(bool(one and one.answer and is_correct(one.answer, question.reference_answer)))

    choices: dict[str, Choice] = {
        "the agent": lambda ten: ten[0],
        "what most of ten looks say": agreed,
        "the likeliest of ten": likeliest,
    }
    pairs = list(zip(asked, found, strict=True))
    scores = {name: {q.uid: right(choose(ten), q) for q, ten in pairs} for name, choose in choices.items()}
    scores["any of ten is right"] = {q.uid: max(right(one, q) for one in ten) for q, ten in pairs}
    first = scores["the agent"]
    rows = [
        [
            name,
            bracketed(share_interval(list(of.values()))),
            "" if of is first else bracketed(paired_bootstrap(of, first)),
        ]
        for name, of in scores.items()
    ]
    title = f"Ten looks at the page found first, {len(asked)} dev questions, {options.views} views, {profile.name}"
    tell(title, ["answer", "right", "difference"], rows, out=options.out, name="dev")


if __name__ == "__main__":
    main()
