"""How `nano-vimrag` is made: the nano agent, taught VimRAG's protocol by an expert that is told the gold.

    torchrun --nproc-per-node 2 -m vrag_nb.nano.vimrag_recipe [--out data/runs/nano-vimrag] [--seconds 720 3500 3600]
    torchrun --nproc-per-node 2 -m vrag_nb.nano.vimrag_recipe --checkpoint data/models/nano-vimrag --stages repeat

1. `begin`: the calls themselves, under the tower as it is, in small batches: single steps of the expert on pages and
   films drawn for them (`nano.memory_tasks`), beside turns of the agent's own protocol (`nano.expert`), which keep what
   it can read. Some of the questions are several asked as one; how those are searched for and answered is learned in
   words alone.
2. `settle`: the same lessons in larger batches, all of the model learning, its tower asked for letters in every step
   (`nano.seeing`), for left to what answers ask of it, it forgets them.
3. `repeat`: many more lessons in words, beside all others, under the tower as it is: a search has to say what is asked
   word for word, and an answer what was written down. The shipped weights have not been through it: it taught them
   to search and cost some of the reading (`data/models/README.md`).

With `--sampled` the protocol is begun on whole trajectories of the corpus instead (`tune`): every kind of memory is
sampled, each with training questions of its own, so that the rows of the memory ablation are asked of a model that has
met them: half `multimodal` (the paper trains with equal shares of the pixels and answers with shares by energy), a
quarter `graph`, a quarter `summary`. Questions come from the sampling half of the training documents; those of the
other half stay for reinforcement learning. What is read is then a few hundred pages, which a model comes to know by
heart: the shipped weights were not made so.

Each of several processes draws lessons of its own. Every stage goes on where it was cut short.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from datasets import concatenate_datasets
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.searching import Engine
from vrag_nb.denormals import flushed_denormals
from vrag_nb.learning.sampled_data import read_rows
from vrag_nb.learning.stages import finetune, sample_experts
from vrag_nb.nano import replicas
from vrag_nb.nano.aligning import Stream, Teaching, train_streams
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.expert import ExpertTurns
from vrag_nb.nano.looking import QUIETLY
from vrag_nb.nano.memory_lessons import memory_streams
from vrag_nb.nano.model import save_checkpoint
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.plan import Recipe, mixed_deck, processor_of, window_lessons
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question

STAGES = ("begin", "settle", "repeat")
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


def lessons(recipe: Recipe, batches: Sequence[int]) -> list[Stream]:
    """`memory_streams` in batches of these sizes, and the agent's own turns."""
    pool = DeckPool(partial(mixed_deck, recipe, drawn=0.8), size=14, draws_per_deck=60)
    return [*memory_streams(pool, batches[:-1]), Stream("turn", ExpertTurns(pool), batches[-1], buckets=4)]


def begin(start: Path, out: Path, seconds: float, seed: int) -> Path:
    """The calls themselves, in small batches under the tower as it is: the folder of the weights."""
    schedule = Schedule(seconds, muon_lr=2e-3, adamw_lr=6e-4, decay=0.3)
    teaching = Teaching(looking_weights=QUIETLY, decision_weight=0.5)
    return _teach(_loaded(start), out / "begun", lessons(Recipe(seed=seed), (2, 3, 1, 2)), schedule, teaching, seed)


def settle(start: Path, out: Path, seconds: float, seed: int) -> Path:
    """All of the model learns, its tower asked for letters: the folder of the weights."""
    torch.manual_seed(seed)
    model, recipe, folder = _loaded(start), Recipe(seed=seed), out / "settled"
    windows = window_lessons(recipe, model.model.visual, folder, handed_on=False)
    schedule = Schedule(seconds, muon_lr=1e-3, adamw_lr=3e-4, decay=0.8)
    teaching = Teaching(vision="all", windows=windows, looking_weights=QUIETLY, decision_weight=0.5, thought_weight=1.0)
    return _teach(model, folder, lessons(recipe, (8, 4, 1, 4)), schedule, teaching, seed)


def repeat(start: Path, out: Path, seconds: float, seed: int) -> Path:
    """What is asked and what is remembered is said again exactly: the folder of the weights."""
    schedule = Schedule(seconds, muon_lr=1e-3, adamw_lr=3e-4, decay=0.8)
    teaching = Teaching(vision="nothing", looking_weights=QUIETLY, decision_weight=0.5, thought_weight=1.0)
    return _teach(_loaded(start), out / "repeated", lessons(Recipe(seed=seed), (6, 8, 1, 4)), schedule, teaching, seed)


def _loaded(start: Path) -> Qwen2_5_VLForConditionalGeneration:
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(start, dtype=torch.float32)


def _teach(
    model: Qwen2_5_VLForConditionalGeneration,
    folder: Path,
    streams: list[Stream],
    schedule: Schedule,
    teaching: Teaching,
    seed: int,
) -> Path:
    """Teach a loaded model: the folder of the weights."""
    processor = processor_of(model)
    train_streams(model, processor, streams, folder, schedule, teaching, seed=seed)
    if replicas.rank() == 0:
        save_checkpoint(model, processor, folder / "weights")
    replicas.wait()  # the next stage begins with what the first process saves
    return folder / "weights"


def tune(profile: Profile, questions: int, steps: int, out: Path) -> Path:
    """What `begin` does, on sampled trajectories: the folder of the weights."""
    # Every question is asked here: what is learned is the protocol.
    asked = sample(_all_asked(profile).training_questions()[0], questions, profile.taught.seed)
    data = sample_memories(profile, asked, out / "sampled", profile.search_engine())
    return finetune(profile, data, out / "sft", max_steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag")
    parser.add_argument("--checkpoint", help="that is taught (default: the profile's base)")
    parser.add_argument("--out", default="data/runs/nano-vimrag", help="folder of training and weights")
    parser.add_argument("--seconds", type=float, nargs=3, default=[720, 3500, 3600], help="of each stage")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES[:2], help="the first from --checkpoint")
    parser.add_argument("--sampled", action="store_true", help="begin on sampled trajectories, in one process")
    parser.add_argument("--questions", type=int, default=800, help="that are sampled")
    parser.add_argument("--steps", type=int, default=480, help="of SFT on what was sampled")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    replicas.join()
    profile, out = load_profile(options.profile), project_path(options.out)
    seed, start = profile.taught.seed, project_path(options.checkpoint or profile.base_checkpoint)
    if "begin" in options.stages and options.sampled:
        start = tune(profile, options.questions, options.steps, out)
    with flushed_denormals():
        if "begin" in options.stages and not options.sampled:
            start = begin(start, out, options.seconds[0], seed + 2)
        if "settle" in options.stages:
            start = settle(start, out, options.seconds[1], seed + 3)
        if "repeat" in options.stages:
            start = repeat(start, out, options.seconds[2], seed + 4)
    print(f"{start}: copy it to data/models/nano-vimrag to ship it")


if __name__ == "__main__":
    main()
