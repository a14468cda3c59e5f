"""How `nano-vimrag` is made: the nano agent, fine-tuned on VimRAG trajectories of an expert that is told the gold.

    python -m vrag_nb.nano.vimrag_recipe --out data/runs/nano-vimrag [--questions 800] [--steps 480]

Every kind of memory is sampled, each with training questions of its own, so that the rows of the memory ablation are
asked of a model that has met them: half `multimodal` (the paper trains with equal shares of the pixels and answers with
shares by energy), a quarter `graph`, a quarter `summary`. Questions come from the sampling half of the training
documents; those of the other half stay for reinforcement learning. Every stage goes on where it was cut short.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import concatenate_datasets
from transformers import AutoModelForImageTextToText, AutoProcessor

from vrag_nb.agent.searching import Engine
from vrag_nb.learning.sampled_data import read_rows
from vrag_nb.learning.stages import finetune, sample_experts
from vrag_nb.nano.model import save_checkpoint
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question

SHARES = {"multimodal": 0.5, "graph": 0.25, "summary": 0.25}


def with_memory(profile: Profile, memory: str) -> Profile:
    """The same profile with another kind of memory."""
    return profile.model_copy(update={"agent": profile.agent.model_copy(update={"memory": memory})})


def shared_out(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """The questions, in their order, cut into SHARES: a kind of memory gets its own."""
    found, start = {}, 0.0
    for memory, share in SHARES.items():
        end = start + share * len(questions)
        found[memory] = list(questions[round(start) : round(end)])
        start = end
    return found


def sample_memories(profile: Profile, questions: Sequence[Question], out: Path, engine: Engine) -> Path:
    """Sample every kind of memory below `out`; the one data set of all their chosen trajectories."""
    for memory, asked in shared_out(questions).items():
        variant = with_memory(profile, memory)
        sampled = sample_experts(variant, asked, variant.load_environment(engine), out / memory)
        print(f"{memory}: {len(sampled.chosen.trajectories)} of {len(asked)} trajectories are learned from")
    data = out / "train.parquet"
    parts = [read_rows(out / memory / "train.parquet") for memory in SHARES]
    concatenate_datasets(parts).to_parquet(str(data))
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag")
    parser.add_argument("--out", default="data/runs/nano-vimrag", help="folder of samples, training and weights")
    parser.add_argument("--questions", type=int, default=800)
    parser.add_argument("--steps", type=int, default=480)
    options = parser.parse_args()
    profile, out = load_profile(options.profile), project_path(options.out)
    asked = sample(profile.training_questions()[0], options.questions, profile.taught.seed)
    data = sample_memories(profile, asked, out / "sampled", profile.search_engine())
    tuned = finetune(profile, data, out / "sft", max_steps=options.steps)
    model = AutoModelForImageTextToText.from_pretrained(tuned, dtype=torch.float32)
    save_checkpoint(model, AutoProcessor.from_pretrained(tuned), out / "weights")
    print(f"{out / 'weights'}: copy it to data/models/nano-vimrag to ship it")


if __name__ == "__main__":
    main()
