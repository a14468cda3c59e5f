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
5. Only with `--settle CHECKPOINT`, in place of the stages before: lessons as in stage 4, and among them questions that
   are several asked as one, whose searches and answers are learned in words alone, and films of the decks; first the
   calls under the tower as it is, then all of the model, its tower asked for letters in every step (`nano.seeing`).

`--lessons-from CHECKPOINT` begins with stage 4, on other weights than stage 3's (the shipped ones were made so, from
earlier ones of stage 3). Stage 5 may run in several processes (`torchrun --nproc-per-node 2 -m
vrag_nb.nano.vimrag_recipe --settle ...`). Every stage goes on where it was cut short.
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
from vrag_nb.nano.optimisation import training_device
from vrag_nb.nano.plan import Recipe, mixed_deck, tower_windows
from vrag_nb.nano.samples import WORD, Sample
from vrag_nb.nano.scribbles import random_word
from vrag_nb.nano.seeing import WindowLessons
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


def begin(start: Path, out: Path, seconds: float, seed: int) -> None:
    """Stage 5's first part: the calls themselves, in small batches under the tower as it is; in `out / "begun"`."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    processor = AutoProcessor.from_pretrained(start)
    train_streams(
        model, processor, settling(Recipe(seed=seed), (2, 3, 1, 2)), out / "begun", seconds, seed=seed,
        muon_lr=2e-3, adamw_lr=6e-4, decay=0.3, decision_weight=0.5,
        looking_weights={name: 0.3 * weight for name, weight in WEIGHTS.items()},
    )  # fmt: skip
    if replicas.rank() == 0:
        save_checkpoint(model, processor, out / "begun" / "weights")
    replicas.wait()


def settle(start: Path, out: Path, seconds: float, seed: int) -> None:
    """The second part of stage 5: the final weights in `out / "settled" / "weights"`."""
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
    recipe, on_cpu = Recipe(seed=seed), training_device().type == "cpu"
    windows = WindowLessons(model.model.visual, tower_windows(recipe), 16, seed=seed, compiled=on_cpu)
    if not (out / "settled" / "state.pt").is_file():
        windows.acquaint()
    processor = AutoProcessor.from_pretrained(start)
    train_streams(
        model, processor, settling(recipe, (6, 4, 2, 4)), out / "settled", seconds, seed=seed,
        muon_lr=1e-3, adamw_lr=3e-4, decay=0.8, vision="all", windows=windows, decision_weight=0.5,
        looking_weights={name: 0.3 * weight for name, weight in WEIGHTS.items()},
    )  # fmt: skip
    if replicas.rank() == 0:
        save_checkpoint(model, processor, out / "settled" / "weights")


def settling(recipe: Recipe, batches: Sequence[int]) -> list[Stream]:
    """Steps over pages, steps in words alone, most of them of long questions, steps over films, the agent's turns."""
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=14, draws_per_deck=60)
    draws: dict[str, Callable[[random.Random, float], Sample | list[Sample]]] = {
        "memory": MemorySteps(pool, long=0.3),
        "words": MemorySteps(pool, long=0.8, in_words=True),
        "film": FilmSteps(pool),
        "turn": ExpertTurns(pool),
    }
    return [Stream(name, draw, size, buckets=4) for (name, draw), size in zip(draws.items(), batches, strict=True)]


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
    parser.add_argument("--settle", help="a checkpoint, of the agent's too, in place of stages 1 to 4")
    parser.add_argument("--settle-seconds", type=float, nargs=2, default=[600, 3600], help="of stage 5's two parts")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    replicas.join()
    profile, out = load_profile(options.profile), project_path(options.out)
    agent = project_path(profile.base_checkpoint)
    if options.settle:
        with flushed_denormals():
            first, then = options.settle_seconds
            begin(project_path(options.settle), out, first, profile.taught.seed + 2)
            settle(out / "begun" / "weights", out, then, profile.taught.seed + 3)
    else:
        _taught(profile, options, out, agent)
    made = out / ("settled" if options.settle else "alone") / "weights"
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
