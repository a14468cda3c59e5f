"""GGPO against GSPO (and GRPO) on VimRAG trajectories, from one start, in one budget (arXiv 2602.12735, eq. 11, 12).

    python benchmarks/algorithms.py --out results/algorithms --run data/runs/algorithms --seeds 0 1 2 [--steps 6]

Every algorithm and seed is a training run of its own from `--start`, with the profile's reward, settings and training
questions; development questions are rolled out, greedily, every `--every` steps. Printed and written: reward and share
of right answers (`outcome`) on development questions by step, mean over seeds with the lowest and the highest; the last
of them by algorithm; the share of segments that GGPO left without a gradient, and how many a step were computed (those
of groups with one reward have no gradient either); and at which step each algorithm first reached what GSPO ended with,
as a share of all steps. Interrupted, it goes on.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tables import tell

from vrag_nb.files import write_json
from vrag_nb.learning.curves import over_seeds, read_log
from vrag_nb.learning.stages import reinforcement
from vrag_nb.learning.trainers import train
from vrag_nb.paths import project_path
from vrag_nb.plotting import figures, plots
from vrag_nb.profiles import Profile, load_profile

REWARD, OUTCOME, MASKED, LEARNED = "eval_reward", "eval_reward/outcome", "masked_share", "learned_rows"
Runs = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # algorithm -> the log of every seed


def trained(profile: Profile, engine: Any, start: Path, run: Path, dev_limit: int, **changes: Any) -> list[dict]:
    """The log of one run, which is made where it is not there."""
    _, questions = profile.training_questions()
    dev = profile.dev_questions(dev_limit)
    trainer = reinforcement(
        profile, start, run, questions, dev, profile.load_environment(engine, training=True), **changes
    )
    train(trainer)
    return read_log(run / "log.jsonl")


def reached(points: Sequence[tuple[int, Sequence[float]]], goal: float) -> int | None:
    """The first step after the start at which the seeds' mean is at the goal or above; None for never."""
    return next((step for step, values in points if step and statistics.mean(values) >= goal), None)


def rows(runs: Runs, steps: int) -> list[list[str]]:
    """A row an algorithm: development figures before and after, what was masked, when GSPO's end was reached."""
    against = over_seeds(runs["gspo"], REWARD)[-1][1] if "gspo" in runs else []
    found = []
    for name, logs in runs.items():
        points = over_seeds(logs, REWARD)
        masked, learned = _everything(logs, MASKED), _everything(logs, LEARNED)
        step = reached(points, statistics.mean(against)) if against else None
        found.append(
            [
                name,
                str(len(logs)),
                *(_spread(values) for field in (REWARD, OUTCOME) for _, values in _ends(over_seeds(logs, field))),
                f"{statistics.mean(masked):.2f}" if masked else "–",
                f"{statistics.mean(learned):.0f}" if learned else "–",
                "–" if not against else "never" if step is None else f"{step} of {steps}",
            ]
        )
    return found


def _everything(logs: Sequence[Sequence[Mapping[str, Any]]], field: str) -> list[float]:
    return [value for _, values in over_seeds(logs, field) for value in values]


def _ends(points: list[tuple[int, list[float]]]) -> list[tuple[int, list[float]]]:
    return [points[0], points[-1]]


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def draw(runs: Runs) -> Figure:
    """Development reward and right answers by step."""
    fields = {"Development reward": REWARD, "Right development answers": OUTCOME}
    return plots.seed_bands(
        {title: {name: over_seeds(logs, field) for name, logs in runs.items()} for title, field in fields.items()},
        shares=["Right development answers"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag")
    parser.add_argument("--start", default="data/models/nano-vimrag", help="the fine-tuned checkpoint")
    parser.add_argument("--run", default="data/runs/algorithms")
    parser.add_argument("--out", default="results/algorithms")
    parser.add_argument("--algorithms", nargs="+", default=["gspo", "ggpo"], choices=["grpo", "gspo", "ggpo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=2, help="steps between rollouts of development questions")
    parser.add_argument("--questions-per-step", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, help="in place of the profile's")
    parser.add_argument("--dev-limit", type=int, default=48)
    options = parser.parse_args()
    profile, out = load_profile(options.profile), project_path(options.out)
    engine, start, run = profile.search_engine(), project_path(options.start), project_path(options.run)
    budget: dict[str, Any] = {"steps": options.steps, "validate_every": options.every}
    budget |= {"questions_per_step": options.questions_per_step}
    if options.learning_rate:
        budget["learning_rate"] = options.learning_rate
    runs = {
        name: [
            trained(
                profile, engine, start, run / f"{name}-{seed}-dev{options.dev_limit}", options.dev_limit,
                algorithm=name, seed=seed, **budget,
            )
            for seed in options.seeds
        ]
        for name in options.algorithms
    }  # fmt: skip
    header = [
        "algorithm",
        "seeds",
        "dev reward, start",
        "end",
        "dev right, start",
        "end",
        "masked",
        "segments computed a step",
        "GSPO's end at step",
    ]
    about = f"Means over seeds, lowest to highest; {options.dev_limit} development questions, {options.steps} steps."
    tell("GGPO and GSPO", header, rows(runs, options.steps), about, out)
    write_json(out / "algorithms.json", runs)
    figures.save(draw(runs), out / "algorithms.png")


if __name__ == "__main__":
    main()
