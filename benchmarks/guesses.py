"""What guessing ahead saves: whole trajectories with and without `agent.drafting`, the same model, questions, machine.

    python benchmarks/guesses.py [--profiles nano nano-vimrag] [--questions 24] [--guesses 0 4 8] [--out DIR]

Development questions are answered in batches, as the profile says, with one view; every number of guesses has a policy
of its own. Printed: seconds, how often the model was run for a next token, tokens that a row got out of such a pass on
average, and for how many questions each turn is the same, letter by letter, as with the first number. Needs the
prepared corpus and index (`make run`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from tables import tell

from vrag_nb.agent.rollout import World, rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.provenance import hardware
from vrag_nb.records import Question

HEAD = ["profile", "guesses", "seconds", "passes", "tokens", "tokens a row and pass", "same turns"]


def answered(
    profile: Profile, world: World[Any], questions: list[Question], guesses: int
) -> tuple[float, list[int], list[Trajectory]]:
    """Seconds, the rows of every pass, and the trajectories."""
    policy: Any = profile.with_policy_options(guesses=guesses, views=1).load_policy()
    rows: list[int] = []
    tower = policy.model.model.language_model
    reading = tower.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        batch, tokens = kwargs["inputs_embeds"].shape[:2]
        if tokens <= guesses + 1:  # longer ones read what is shown
            rows.append(batch)
        return reading(*args, **kwargs)

    tower.forward = counted
    started = time.perf_counter()
    found = rollout(policy, world, questions, concurrency=profile.evaluation.concurrency, progress=False)
    seconds = time.perf_counter() - started
    policy.close()
    return seconds, rows, found


def said(trajectory: Trajectory) -> list[str]:
    """All that the model wrote."""
    replies = [[reply.text for reply in turn.memory.replies] if turn.memory else [] for turn in trajectory.turns]
    return [text for turn, more in zip(trajectory.turns, replies, strict=True) for text in (turn.text, *more)]


def table(profile: Profile, count: int, guesses: list[int]) -> list[list[str]]:
    """A row a number of guesses."""
    world: World[Any] = profile.load_environment()
    questions, lines, first = sample(profile.dev_questions(10**6), count), [], list[list[str]]()
    for number in guesses:
        seconds, rows, found = answered(profile, world, questions, number)
        written = [said(one) for one in found]
        first = first or written
        tokens, same = sum(one.generated_tokens for one in found), sum(map(list.__eq__, written, first))
        each = f"{tokens / sum(rows):.2f}"
        lines.append(
            [profile.name, f"{number}", f"{seconds:.1f}", f"{len(rows)}", f"{tokens}", each, f"{same} of {count}"]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["nano", "nano-vimrag"])
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--guesses", type=int, nargs="+", default=[0, 4, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for the table as guesses.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for name in options.profiles for row in table(load_profile(name), options.questions, options.guesses)]
    about = f"{options.questions} development questions, {hardware()['cpu']}, {options.threads} threads."
    tell("Guessing ahead", HEAD, rows, about, options.out, name="guesses")


if __name__ == "__main__":
    main()
