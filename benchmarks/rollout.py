"""Trajectories a second: our rollout driver against TRL's own tool loop; same model, environment, questions, machine.

    python benchmarks/rollout.py                               # a GRPO step: 8 questions, 5 trajectories each
    python benchmarks/rollout.py --questions 40 --group-size 1

TRL (`GRPOTrainer(environment_factory=...)`, trl_peer.py) drives the model turn by turn: all conversations in lock-step,
tools called one after another, every turn's prompt computed anew with all its images; ours keeps keys, values and image
features between turns (`agent.decoding`). What a search or a crop shows
comes from our environment in both. Two things stay different, and TRL has no setting for them: a reply that is no valid
action ends TRL's conversation, and its turns end at the end-of-turn token where ours end at the closing tag. So tokens
and turns are printed beside the speed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tables import tell
from trl_peer import prompts, stock_trainer, turn_environment

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.profiles import load_profile, sample
from vrag_nb.records import Question


def trl_rollouts(
    checkpoint: Path, environment: Environment, questions: list[Question], max_length: int
) -> tuple[float, int, float]:
    """Seconds, generated tokens and turns a question of TRL's tool loop."""
    trainer = stock_trainer(checkpoint, environment, questions, max_length=max_length)
    assert trainer.model is not None
    trainer.model.train()
    started = time.perf_counter()
    batch = trainer._generate_and_score_completions(prompts(environment, questions))
    seconds = time.perf_counter() - started
    turns = trainer._metrics["train"]["tools/call_frequency"][-1] + 1
    return seconds, int((batch["completion_mask"] * batch["tool_mask"]).sum()), turns


def our_rollouts(
    checkpoint: Path, environment: Environment, questions: list[Question], new_tokens: int
) -> tuple[float, int, float]:
    """The same figures of our driver."""
    policy = TransformersPolicy(
        checkpoint, dtype="float32", temperature=1.0, max_new_tokens=new_tokens, batch_size=len(questions)
    )
    started = time.perf_counter()
    found = rollout(policy, environment, questions, concurrency=len(questions), progress=False)
    seconds = time.perf_counter() - started
    return seconds, sum(one.generated_tokens for one in found), sum(len(one.turns) for one in found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=5, help="trajectories of a question")
    parser.add_argument("--max-length", type=int, default=3072, help="tokens of a whole conversation, for TRL")
    parser.add_argument("--new-tokens", type=int, default=128, help="tokens of a turn, for ours")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="a folder for the table")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    profile = load_profile(arguments.profile)
    environment = turn_environment(profile)
    asked = sample(profile.questions(), arguments.questions, 1)
    questions = [
        one.model_copy(update={"uid": f"{one.uid}#{number}"}) for one in asked for number in range(arguments.group_size)
    ]
    checkpoint = profile.checkpoint_folders["policy"]
    ours = our_rollouts(checkpoint, environment, questions, arguments.new_tokens)
    theirs = trl_rollouts(checkpoint, environment, questions, arguments.max_length)
    count = len(questions)
    rows = [
        [
            name,
            f"{count / seconds:.2f}",
            f"{seconds:.1f}",
            f"{tokens / count:.0f}",
            f"{turns:.2f}",
            f"{tokens / seconds:.0f}",
        ]
        for name, (seconds, tokens, turns) in (("our driver", ours), ("TRL's tool loop", theirs))
    ]
    head = ["driver", "trajectories/s", "seconds", "tokens/trajectory", "turns", "tokens/s"]
    title = (
        f"Rollouts of {arguments.questions} questions x {arguments.group_size}, {checkpoint.name}, "
        f"threads: {torch.get_num_threads()}"
    )
    notes = f"Ours is {theirs[0] / ours[0]:.2f} times as fast per trajectory."
    tell(title, head, rows, notes, arguments.out, name=f"rollout-{arguments.questions}x{arguments.group_size}")


if __name__ == "__main__":
    main()
