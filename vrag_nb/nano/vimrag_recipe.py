"""How `nano-vimrag` is made: the nano agent, taught VimRAG's protocol by an expert that is told the gold.

    python -m vrag_nb.nano.vimrag_recipe --out data/runs/nano-vimrag [--questions 800] [--steps 480] [--seconds 2000]

1. Every kind of memory is sampled, each with training questions of its own, so that the rows of the memory ablation are
   asked of a model that has met them: half `multimodal` (the paper trains with equal shares of the pixels and answers
   with shares by energy), a quarter `graph`, a quarter `summary`. Questions come from the sampling half of the training
   documents; those of the other half stay for reinforcement learning.
2. SFT on all of it (`learning.sft`).
3. The same rows again under the nano models' own optimiser, beside first calls whose words are exchanged for random
   ones: a call quotes its question letter by letter, and the words of a few dozen decks teach the words, not to quote.

Every stage goes on where it was cut short.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from datasets import concatenate_datasets
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.policy import Conversation, Text
from vrag_nb.agent.searching import Engine
from vrag_nb.learning.sampled_data import read_conversation, read_rows
from vrag_nb.learning.stages import finetune, sample_experts
from vrag_nb.nano.aligning import Stream, train_streams
from vrag_nb.nano.model import save_checkpoint
from vrag_nb.nano.samples import WORD, Sample
from vrag_nb.nano.scribbles import random_word
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


def memory_rows(data: Path) -> Callable[[random.Random, float], Sample]:
    """Conversations of the data set, drawn at random."""
    rows = read_rows(data)

    def draw(rng: random.Random, difficulty: float) -> Sample:
        return as_sample("memory", read_conversation(rows[rng.randrange(len(rows))]))

    return draw


def reworded_calls(data: Path) -> Callable[[random.Random, float], Sample]:
    """First calls that quote the question, in other words; without the pages that the search then brought."""
    calls = []
    for row in read_rows(data).select_columns(["messages"]):  # without decoding the images
        messages = row["messages"]
        asked, said = ("".join(part["text"] or "" for part in message["content"]) for message in messages[:2])
        query = re.search(r'"query": "([^"\\]+)"', said)
        if query and query[1] in asked and not any(part["type"] == "image" for part in messages[0]["content"]):
            calls.append((asked, said, query[1]))

    def draw(rng: random.Random, difficulty: float) -> Sample:
        asked, said, query = rng.choice(calls)
        other = reworded(rng, query)
        turns: list[tuple[str, list[str | Image.Image]]] = [("user", [asked.replace(query, other)])]
        return Sample("quote", [*turns, ("assistant", [said.replace(query, other)])])

    return draw


def reworded(rng: random.Random, text: str) -> str:
    """Most words of three letters on, and numbers, exchanged for others."""

    def other(found: re.Match[str]) -> str:
        word = found.group()
        if len(word) < 3 or rng.random() < 0.4:
            return word
        return str(rng.randint(0, 9999)) if word.isdigit() else random_word(rng)

    return WORD.sub(other, text)


def as_sample(kind: str, conversation: Conversation) -> Sample:
    """A conversation as the nano trainer takes it."""
    turns: list[tuple[str, list[str | Image.Image]]] = []
    for message in conversation:
        parts = [part.text if isinstance(part, Text) else part.resolved().convert("RGB") for part in message.parts]
        turns.append((message.role, parts))
    return Sample(kind, turns)


def practise(tuned: Path, data: Path, out: Path, seconds: float, seed: int) -> None:
    """Stage 3, in place of `tuned`'s weights: those in `out / "weights"`."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tuned, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(tuned)
    streams = [Stream("memory", memory_rows(data), 3, buckets=8), Stream("quote", reworded_calls(data), 8, buckets=4)]
    without = dict.fromkeys(("cue", "place"), 0.0)  # no square is asked for anything here
    train_streams(
        model, processor, streams, out / "practice", seconds,
        seed=seed, muon_lr=1.5e-3, adamw_lr=5e-4, decay=0.5, looking_weights=without, compile_text=False,
    )  # fmt: skip
    save_checkpoint(model, processor, out / "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag")
    parser.add_argument("--out", default="data/runs/nano-vimrag", help="folder of samples, training and weights")
    parser.add_argument("--questions", type=int, default=800)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seconds", type=float, default=2000, help="of stage 3")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    profile, out = load_profile(options.profile), project_path(options.out)
    asked = sample(profile.training_questions()[0], options.questions, profile.taught.seed)
    data = sample_memories(profile, asked, out / "sampled", profile.search_engine())
    tuned = finetune(profile, data, out / "sft", max_steps=options.steps)
    practise(tuned, data, out, options.seconds, profile.taught.seed)
    print(f"{out / 'weights'}: copy it to data/models/nano-vimrag to ship it")


if __name__ == "__main__":
    main()
