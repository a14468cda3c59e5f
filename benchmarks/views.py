"""What the nano agent gains by reading its answers off several views of an image (`vrag_nb.agent.views`).

    python benchmarks/views.py [--profile nano] [--split dev] [--views 1 5 9] [--limit 400] [--out results/views]

The agent of the profile answers the same questions with each number of views. Printed: the share of right answers with
a 95% bootstrap interval over questions, the difference to the first number question by question, and the share right
where the agent saw all gold pages. The shipped number was chosen on the development split. Trajectories are kept under
--run, and a second start goes on from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from made_with import keep_rollouts
from tables import bracketed, tell

from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.metrics import paired_bootstrap, share_interval
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.records import Question

HEAD = ["views", "right", "difference", "right where the gold pages were seen"]


def attempts(profile: Profile, questions: list[Question], views: int, run: Path) -> list[Trajectory]:
    """The agent's trajectories on the questions, with so many views."""
    policy = profile.with_policy_options(views=views).load_policy()
    environment: Any = profile.load_agent(policy).environment
    keep_rollouts(run, profile, environment.engine)
    out, concurrency = run / f"views-{views}.jsonl", profile.evaluation.concurrency
    return rollout(policy, environment, questions, out, concurrency=concurrency)


def seen(trajectory: Trajectory, question: Question) -> bool:
    """Whether every gold page was shown."""
    shown = {one.page_id for turn in trajectory.turns for one in (turn.observation, *turn.also_shown) if one}
    return set(question.gold_page_ids) <= shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--views", type=int, nargs="+", default=[1, 5, 9])
    parser.add_argument("--limit", type=int, default=400, help="questions, the same ones every time")
    parser.add_argument("--run", type=Path, default=Path("data/runs/views"))
    parser.add_argument("--out", type=Path, help="folder for the table as SPLIT.md")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    profile.build_index()
    asked = profile.questions(options.limit) if options.split == "test" else profile.dev_questions(options.limit)
    rows: list[list[str]] = []
    first: dict[str, float] = {}
    for views in options.views:
        found = attempts(profile, asked, views, options.run / profile.name / options.split)
        pairs = list(zip(asked, found, strict=True))
        right = {q.uid: float(bool(t.answer and is_correct(t.answer, q.reference_answer))) for q, t in pairs}
        first = first or right
        before = [right[q.uid] for q, t in pairs if q.gold_page_ids and seen(t, q)]
        difference = bracketed(paired_bootstrap(right, first)) if rows else ""
        share = f"{bracketed(share_interval(before))} of {len(before)}"
        rows.append([str(views), bracketed(share_interval(list(right.values()))), difference, share])
    title = f"Answers read off several views, {len(asked)} {options.split} questions, profile {profile.name}"
    tell(title, HEAD, rows, out=options.out, name=options.split)


if __name__ == "__main__":
    main()
