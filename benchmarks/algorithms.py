"""GGPO against GSPO (and GRPO) on VimRAG trajectories, from one start, in one budget (arXiv 2602.12735, eq. 11, 12).

    python benchmarks/algorithms.py --out results/algorithms --run data/runs/algorithms --seeds 0 1 2 [--steps 6]
    python benchmarks/algorithms.py --profile nano-vague --start data/runs/nano-vague/sft/final --readable \
        --max-steps 5 --run data/runs/vague --out results/algorithms-vague

With `--readable` only such questions are asked as the profile's own policy, which is not the start, answers right with
a gold page before it: what is then learned is to find pages. `python -m vrag_nb.learning.stages sample` and `sft`, with
`--profile nano-vague --out data/runs/nano-vague`, make the start of the second line, which searches badly.

Every algorithm and seed is a training run of its own from `--start`, with the profile's reward, settings and training
questions; development questions are rolled out, greedily, every `--every` steps. Printed and written: reward, share of
right answers (`outcome`) and of questions whose gold page the first search shows, on development questions by step,
mean over seeds with the lowest and the highest; the last of them by algorithm; the share of segments that GGPO left
without a gradient, and how many a step were computed (those of groups with one reward have no gradient either); and at
which step each algorithm first reached the reward that GSPO ended with, as a share of all steps. Interrupted, it goes
on.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from tables import tell

from vrag_nb.agent.rollout import World, rollout
from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.evaluation.answers import answered_right
from vrag_nb.files import write_json
from vrag_nb.learning.curves import over_seeds, read_log
from vrag_nb.learning.stages import reinforcement
from vrag_nb.learning.trainers import train
from vrag_nb.paths import project_path
from vrag_nb.plotting import figures, plots
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question

REWARD, OUTCOME, MASKED, LEARNED = "eval_reward", "eval_reward/outcome", "masked_share", "learned_rows"
AT_ONCE = "eval_found_at_once"  # the share of questions whose gold page the first search shows, from trajectories
TOLD = (REWARD, OUTCOME, AT_ONCE)
Log = list[dict[str, Any]]
Runs = Mapping[str, Sequence[Log]]  # algorithm -> the log of every seed


def found(trajectory: Trajectory, turns: int | None = None) -> bool:
    """Whether a gold page was shown, in the first so many turns or at all."""
    gold = set(trajectory.reference.gold_page_ids) if trajectory.reference else set()
    return any(seen.page_id in gold for turn in trajectory.turns[:turns] for seen in turn.observations)


def readable(profile: Profile, engine: Any, questions: Sequence[Question], out: Path) -> list[Question]:
    """The questions that the profile's own policy answers right off a gold page, greedily; it is asked once."""
    out.parent.mkdir(parents=True, exist_ok=True)
    world: World[Any] = profile.load_environment(engine, training=True)
    played = rollout(profile.load_policy(), world, questions, out, concurrency=profile.evaluation.concurrency)
    read = [answered_right(one) and found(one) for one in played]  # not by luck, and not for want of an answer
    return [question for question, right in zip(questions, read, strict=True) if right]


def questions_of(profile: Profile, engine: Any, run: Path, dev_limit: int, only_readable: bool) -> list[list[Question]]:
    """Those that are trained on, and those of the development split."""
    _, training = profile.training_questions()
    if not only_readable:
        return [training, profile.dev_questions(dev_limit)]
    everything = {"training": training, "dev": profile.dev_questions(10**6)}
    found = {name: readable(profile, engine, some, run / f"{name}.jsonl") for name, some in everything.items()}
    for name, some in everything.items():
        print(f"{name}: {len(found[name])} of {len(some)} questions are answered right off a gold page")
    return [found["training"], sample(found["dev"], dev_limit, profile.taught.seed)]


def trained(profile: Profile, world: Any, start: Path, run: Path, asked: list[list[Question]], **changes: Any) -> Log:
    """The log of one run, which is made where it is not there."""
    trainer = reinforcement(profile, start, run, asked[0], asked[1], world, **changes)
    train(trainer)
    log = read_log(run / "log.jsonl")
    for row in (row for row in log if REWARD in row):
        played = read_trajectories(run / "trajectories" / f"dev-{row['step']:06}.jsonl")
        row[AT_ONCE] = statistics.mean(found(one, turns=1) for one in played)
    return log


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
                *(
                    _spread(values)
                    for field in (REWARD, OUTCOME, AT_ONCE)
                    for _, values in _ends(over_seeds(logs, field))
                ),
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
    """By step, on development questions: reward, right answers, gold pages that the first search shows."""
    fields = {"Development reward": REWARD, "Right development answers": OUTCOME, "Pages found at once": AT_ONCE}
    return plots.seed_bands(
        {title: {name: over_seeds(logs, field) for name, logs in runs.items()} for title, field in fields.items()},
        shares=["Right development answers", "Pages found at once"],
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
    parser.add_argument("--max-steps", type=int, help="generations at most, in place of the profile's")
    parser.add_argument("--readable", action="store_true", help="ask only what is read off a page that is found")
    options = parser.parse_args()
    profile, out = load_profile(options.profile), project_path(options.out)
    engine, start, run = profile.search_engine(), project_path(options.start), project_path(options.run)
    asked = questions_of(profile, engine, run, options.dev_limit, options.readable)
    if options.max_steps:
        agent = profile.agent.model_copy(update={"max_steps": options.max_steps})
        profile = profile.model_copy(update={"agent": agent})
    world = profile.load_environment(engine, training=True)
    budget: dict[str, Any] = {"steps": options.steps, "validate_every": options.every}
    budget |= {"questions_per_step": options.questions_per_step}
    if options.learning_rate:
        budget["learning_rate"] = options.learning_rate
    runs = {
        name: [
            trained(
                profile, world, start, run / f"{name}-{seed}-dev{options.dev_limit}", asked,
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
        "found at once, start",
        "end",
        "masked",
        "segments computed a step",
        "GSPO's end at step",
    ]
    about = f"Means over seeds, lowest to highest; {len(asked[1])} development questions, {options.steps} steps."
    tell("GGPO and GSPO", header, rows(runs, options.steps), about, out)
    write_json(out / "algorithms.json", runs)
    figures.save(draw(runs), out / "algorithms.png")


if __name__ == "__main__":
    main()
