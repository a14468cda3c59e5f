"""One GRPO step, ours and TRL's stock trainer: seconds by phase, and tokens a second.

    python benchmarks/grpo_step.py --questions 4 --group 5

Both take the same questions, model, environment, group size, micro-batch and reward (the length), sample at
temperature 1 and make real optimiser steps; the first step of each is left out as warm-up. `sample` is everything until
the batch is ready (rollouts, rewards, encoding), `learn` is forward, backward and optimiser. Trajectories are sampled,
so the two do not have the same lengths; tokens a second (all that go through the forward pass, images included) are
what compares.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tables import tell
from trl_peer import stock_trainer, turn_environment

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.learning.grpo import grpo_trainer
from vrag_nb.learning.grpo_settings import GRPOSettings
from vrag_nb.learning.rewards import Reward
from vrag_nb.profiles import load_profile, sample


def timed(trainer: Any, steps: int) -> tuple[float, float, float]:
    """Seconds of sampling and of learning, and tokens that went through the forward pass, all per step."""
    sampling: list[float] = []
    tokens: list[int] = []
    ends: list[float] = []
    plain = trainer._generate_and_score_completions

    def generate(inputs: Any) -> Any:
        started = time.perf_counter()
        ends.append(started)
        batch = plain(inputs)
        sampling.append(time.perf_counter() - started)
        tokens.append(int(batch["prompt_mask"].sum() + batch["completion_mask"].sum()))
        return batch

    trainer._generate_and_score_completions = generate
    trainer.train()
    ends.append(time.perf_counter())
    whole = (ends[-1] - ends[1]) / (steps - 1)
    sampled = sum(sampling[1:]) / (steps - 1)
    return sampled, whole - sampled, sum(tokens[1:]) / (steps - 1)


def written(trajectory: Trajectory) -> float:
    """A reward like the peer's, and one that differs within a group: rows without a gradient are not computed."""
    return float(trajectory.generated_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--group", type=int, default=5)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="a folder for the table")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    profile = load_profile(arguments.profile)
    environment = turn_environment(profile)
    _, questions = profile.training_questions()
    chosen = sample(questions, arguments.questions * arguments.steps, 1)
    checkpoint, rows = profile.checkpoint_folders["policy"], arguments.questions * arguments.group
    with tempfile.TemporaryDirectory() as folder:
        ours = grpo_trainer(
            GRPOSettings(
                checkpoint=str(checkpoint),
                out=str(Path(folder) / "ours"),
                steps=arguments.steps,
                group_size=arguments.group,
                questions_per_step=arguments.questions,
                micro_batch=arguments.micro_batch,
                beta=0.0,
                max_new_tokens=128,
                max_length=3072,
                rollout_batch=rows,
                save_steps=10**6,
            ),
            chosen,
            environment,
            Reward({"length": (written, 1.0)}),
        )
        stock = stock_trainer(
            checkpoint,
            environment,
            chosen,
            group_size=arguments.group,
            rows=rows,
            micro_batch=arguments.micro_batch,
            max_steps=arguments.steps,
            output_dir=str(Path(folder) / "stock"),
        )
        found = {"ours": timed(ours, arguments.steps), "TRL's trainer": timed(stock, arguments.steps)}
    lines = [
        [
            name,
            f"{sampled:.1f}",
            f"{learned:.1f}",
            f"{tokens:.0f}",
            f"{tokens / learned:.0f}",
            f"{tokens / (sampled + learned):.0f}",
        ]
        for name, (sampled, learned, tokens) in found.items()
    ]
    head = ["trainer", "sample s", "learn s", "tokens a step", "tokens/s learning", "tokens/s in all"]
    tell(f"A GRPO step, {rows} trajectories, threads: {torch.get_num_threads()}", head, lines, out=arguments.out)


if __name__ == "__main__":
    main()
