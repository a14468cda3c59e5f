"""How `nano-vimrag` is made: the nano agent, taught VimRAG's protocol by an expert that is told the gold.

    python -m vrag_nb.nano.vimrag_recipe --out data/runs/nano-vimrag [--questions 800] [--steps 480] [--seconds 2000]
        [--lesson-seconds 2300 2000]

1. Every kind of memory is sampled, each with training questions of its own, so that the rows of the memory ablation are
   asked of a model that has met them: half `multimodal` (the paper trains with equal shares of the pixels and answers
   with shares by energy), a quarter `graph`, a quarter `summary`. Questions come from the sampling half of the training
   documents; those of the other half stay for reinforcement learning.
2. SFT on all of it (`learning.sft`).
3. The same rows again under the nano models' own optimiser, beside first calls whose words are exchanged for random
   ones: a call quotes its question letter by letter, and the words of a few dozen decks teach the words, not to quote.
4. Lessons on pages drawn for them, from the mean of stage 3's weights, which know the protocol and have unlearned to
   read, and the nano agent's: single steps of the same expert (`nano.memory_tasks`) beside the agent's own turns
   (`nano.expert`), then without these, whose protocol is another.
5. Only with `--widen CHECKPOINT`, a checkpoint of stage 4, in place of the stages before: lessons under the nano
   agent's tower, which has learned to read better since, in place of the checkpoint's own; beside single questions some
   that are several asked as one, and films of the decks. What it made is not better yet and not shipped (model card).

`--lessons-from CHECKPOINT` begins with stage 4, on other weights than stage 3's (the shipped ones were made so, from
earlier ones of stage 3). Stage 5 may run in several processes (`torchrun --nproc-per-node 2 -m
vrag_nb.nano.vimrag_recipe --widen ...`). Every stage goes on where it was cut short.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from datasets import concatenate_datasets
from PIL import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.policy import Conversation, Text
from vrag_nb.agent.searching import Engine
from vrag_nb.denormals import flushed_denormals
from vrag_nb.learning.sampled_data import read_conversation, read_rows
from vrag_nb.learning.stages import finetune, sample_experts
from vrag_nb.nano import replicas
from vrag_nb.nano.aligning import Stream, train_streams
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.expert import ExpertTurns
from vrag_nb.nano.looking import WEIGHTS
from vrag_nb.nano.memory_tasks import FilmSteps, MemorySteps
from vrag_nb.nano.model import save_checkpoint
from vrag_nb.nano.plan import Recipe, mixed_deck
from vrag_nb.nano.samples import WORD, Sample
from vrag_nb.nano.scribbles import random_word
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question

SHARES = {"multimodal": 0.5, "graph": 0.25, "summary": 0.25}


def with_memory(profile: Profile, memory: str) -> Profile:
    """The same profile with another kind of memory."""
    return profile.model_copy(update={"agent": profile.agent.model_copy(update={"memory": memory})})


def _all_asked(profile: Profile) -> Profile:
    return profile.model_copy(update={"legible_only": False})


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
    save_checkpoint(model, processor, out / "practised")


def teach(practised: Path, agent: Path, out: Path, seconds: Sequence[float], seed: int) -> None:
    """Stage 4: the final weights in `out / "alone" / "weights"`. `seconds`: beside the agent's turns, then alone."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(practised, dtype=torch.float32)
    reader = Qwen2_5_VLForConditionalGeneration.from_pretrained(agent, dtype=torch.float32).state_dict()
    model.load_state_dict({name: (value + reader[name]) / 2 for name, value in model.state_dict().items()})
    save_checkpoint(model, AutoProcessor.from_pretrained(practised), out / "blended")
    pool = DeckPool(partial(mixed_deck, Recipe(seed=seed)), size=14, draws_per_deck=100)
    turns = Stream("turn", ExpertTurns(pool), 12, buckets=4)
    _lessons(out / "blended", [_steps(pool, 8), turns], out / "lessons", seconds[0], seed, 0.3)
    _lessons(out / "lessons" / "weights", [_steps(pool, 16)], out / "alone", seconds[1], seed + 1, 0.5)


def under_tower(taught: Path, agent: Path) -> Qwen2_5_VLForConditionalGeneration:
    """The language model of `taught` under the vision tower of `agent`."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(taught, dtype=torch.float32)
    seeing = Qwen2_5_VLForConditionalGeneration.from_pretrained(agent, dtype=torch.float32)
    model.model.visual.load_state_dict(seeing.model.visual.state_dict())
    return model


def widen(taught: Path, agent: Path, out: Path, seconds: float, seed: int) -> None:
    """Stage 5: the final weights in `out / "widened" / "weights"`."""
    model = under_tower(taught, agent)
    if replicas.rank() == 0:
        save_checkpoint(model, AutoProcessor.from_pretrained(taught), out / "moved")
    replicas.wait()
    pool, processes = DeckPool(partial(mixed_deck, Recipe(seed=seed)), size=14, draws_per_deck=60), replicas.count()
    steps = Stream("memory", MemorySteps(pool, long=0.2), max(1, 12 // processes), buckets=6)
    films = Stream("film", FilmSteps(pool), max(1, 4 // processes), buckets=4)
    _lessons(out / "moved", [steps, films], out / "widened", seconds, seed + 2, 0.5)


def _steps(pool: DeckPool, batch_size: int) -> Stream:
    return Stream("memory", MemorySteps(pool), batch_size, buckets=6)


def _lessons(start: Path, streams: list[Stream], out: Path, seconds: float, seed: int, looking: float) -> None:
    """One half. `looking`: what the looking heads weigh, which begin anew and say noise at first."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(start)
    train_streams(
        model, processor, streams, out, seconds, seed=seed, muon_lr=2e-3, adamw_lr=6e-4, decay=0.5,
        looking_weights={name: looking * weight for name, weight in WEIGHTS.items()},
    )  # fmt: skip
    if replicas.rank() == 0:
        save_checkpoint(model, processor, out / "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag")
    parser.add_argument("--out", default="data/runs/nano-vimrag", help="folder of samples, training and weights")
    parser.add_argument("--questions", type=int, default=800)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seconds", type=float, default=2000, help="of stage 3")
    parser.add_argument("--lesson-seconds", type=float, nargs=2, default=[2300, 2000], help="of stage 4's two halves")
    parser.add_argument("--lessons-from", help="a checkpoint that knows the protocol, in place of stages 1 to 3")
    parser.add_argument("--widen", help="a checkpoint of stage 4, in place of stages 1 to 4")
    parser.add_argument("--widen-seconds", type=float, default=3600, help="of stage 5")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    replicas.join()
    profile, out = load_profile(options.profile), project_path(options.out)
    agent = project_path(profile.base_checkpoint)
    if options.widen:
        with flushed_denormals():
            widen(project_path(options.widen), agent, out, options.widen_seconds, profile.taught.seed)
    else:
        _taught(profile, options, out, agent)
    made = out / ("widened" if options.widen else "alone") / "weights"
    print(f"{made}: copy it to data/models/nano-vimrag to ship it")


def _taught(profile: Profile, options: argparse.Namespace, out: Path, agent: Path) -> None:
    """Stages 1 to 4."""
    seed, practised = profile.taught.seed, options.lessons_from
    if not practised:
        # Every question is asked here: what is learned in stages 1 to 3 is the protocol.
        asked = sample(_all_asked(profile).training_questions()[0], options.questions, seed)
        data = sample_memories(profile, asked, out / "sampled", profile.search_engine())
        tuned = finetune(profile, data, out / "sft", max_steps=options.steps)
        with flushed_denormals():
            practise(tuned, data, out, options.seconds, seed)
    with flushed_denormals():
        teach(project_path(practised or str(out / "practised")), agent, out, options.lesson_seconds, seed)


if __name__ == "__main__":
    main()
