"""Pretraining stage 2: the language model learns to use what the vision tower sees - read, look up, point, search.

The vision blocks stay as stage 1 left them (only the merger goes on learning), which makes a step about twice as
cheap. Besides the loss on the answer's tokens, heads on its way are asked where to look (`looking`). Every task is a
stream of samples with its own difficulty, raised when its measured exact match allows; a step sums the gradients of
one batch of each stream.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import c_double
from dataclasses import dataclass
from multiprocessing import Value
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from vrag_nb.nano import replicas
from vrag_nb.nano.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.nano.looking import Looking, Targets
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Optimisers, to_training_dtype
from vrag_nb.nano.reading import Level
from vrag_nb.nano.samples import Sample, collate, decisions, exact_match, looking_targets
from vrag_nb.nano.seeing import WindowLessons
from vrag_nb.nano.training import Training


@dataclass(frozen=True)
class Stream:
    """An endless source of samples: `draw(rng, difficulty)` gives the next one (or several)."""

    name: str
    draw: Callable[[random.Random, float], Sample | list[Sample]]
    batch_size: int
    promote_at: float = 0.6  # the share, over the last batches, at which the difficulty rises
    promote_on: Literal["match", "found"] = "match"  # of `RunningShares`
    difficulty_step: float = 0.01
    difficulty: float = 0.0  # to begin with
    buckets: int = 1  # so many batches are drawn at once and sorted by length, which saves padding


class Drawn(NamedTuple):
    """A batch of a stream: the kinds of its samples, model inputs, and targets of `looking`."""

    stream: str
    kinds: list[str]
    inputs: dict[str, torch.Tensor]
    targets: Targets


class StreamBatches(IterableDataset):
    """Yields batches in rotation over the streams."""

    def __init__(
        self, streams: list[Stream], processor: Qwen2_5_VLProcessor, difficulties: Mapping[str, Level], seed: str
    ) -> None:
        self.streams, self.processor, self.difficulties, self.seed = streams, processor, difficulties, seed

    def __iter__(self) -> Iterator[Drawn]:
        if worker := torch.utils.data.get_worker_info():
            torch.set_num_threads(1)
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        drawn: dict[str, list[Sample]] = {stream.name: [] for stream in self.streams}
        ready: dict[str, list[list[Sample]]] = {stream.name: [] for stream in self.streams}
        while True:
            for stream in self.streams:
                if not ready[stream.name]:
                    self._refill(stream, rng, drawn[stream.name], ready[stream.name])
                samples = ready[stream.name].pop()
                batch = collate(samples, self.processor)
                targets = looking_targets(samples, batch["input_ids"], self.processor.tokenizer)
                yield Drawn(stream.name, [sample.kind for sample in samples], batch, targets)

    def _refill(self, stream: Stream, rng: random.Random, drawn: list[Sample], ready: list[list[Sample]]) -> None:
        size = stream.batch_size
        while len(drawn) < size * stream.buckets:
            new = stream.draw(rng, self.difficulties[stream.name].value)
            drawn.extend(new if isinstance(new, list) else [new])
        taken = drawn[: size * stream.buckets]
        del drawn[: size * stream.buckets]
        if stream.buckets > 1:
            taken.sort(key=_length)
        ready.extend(taken[start : start + size] for start in range(0, len(taken), size))
        rng.shuffle(ready)


def _length(sample: Sample) -> float:
    """Roughly how many tokens a sample has: its squares, and its letters by two."""
    squares = sum(image.width * image.height / FACTOR**2 for image in sample.images)
    return squares + sum(len(part) for _, parts in sample.turns for part in parts if isinstance(part, str)) / 2


class RunningShares:
    """Exponential means per kind of sample, kept up to date in `kept`, under the names that the log has.

    match: answers that are exact. found: best squares that lie in the answer. decided: first words of thoughts.
    """

    NAMES = ("match", "found", "decided")

    def __init__(self, kept: dict[str, dict[str, float]]) -> None:
        self.means = {name: kept.setdefault(name, {}) for name in self.NAMES}

    def update(self, name: str, kinds: Sequence[str], right: torch.Tensor) -> None:
        means = self.means[name]
        for kind, one in zip(kinds, right.tolist(), strict=True):
            means[kind] = 0.98 * means.get(kind, 0.0) + 0.02 * one

    def figures(self) -> dict[str, float]:
        return {f"{name}/{kind}": mean for name, means in self.means.items() for kind, mean in sorted(means.items())}


Learns = Literal["all", "merger", "nothing"]


def let_vision_learn(model: Qwen2_5_VLForConditionalGeneration, what: Learns = "merger") -> None:
    """Which part of the vision tower gradients change: all of it, its merger alone, or nothing."""
    for name, parameter in model.model.visual.named_parameters():
        parameter.requires_grad_(what == "all" or (what == "merger" and name.startswith("merger")))


def train_streams(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    streams: list[Stream],
    folder: Path,
    seconds: float,
    *,
    steps: int | None = None,
    seed: int = 0,
    muon_lr: float = 4e-3,
    adamw_lr: float = 1.5e-3,
    decay: float = 0.4,
    vision: Learns = "merger",
    looking_weights: Mapping[str, float] | None = None,
    windows: WindowLessons | None = None,
    decision_weight: float = 0.0,
    workers: int = 1,
    compile_text: bool = True,
) -> None:
    """Train in place for a wall-clock budget; state and log under `folder`, resumable after a kill.

    Of several processes (`replicas`) each draws samples of its own; the first one's log and state are kept.

    vision: what of the tower learns.
    windows: the tower is asked for their cells in every step, so that what of it learns goes on reading.
    decision_weight: of a loss on the first words of thoughts (`samples.decisions`), one token of dozens in the loss on
    all of them.
    compile_text: compile the language model first (a minute, then 1.6 times as fast); needs a C++ compiler, so it is
    left out where there is none.
    """
    torch.manual_seed(seed)
    looking = _prepared(model, vision, looking_weights, compile_text)
    parts: dict[str, nn.Module] = {"model": model, "looking": looking}
    if windows is not None:
        to_training_dtype(windows)
        parts["windows"] = windows
    named = [named for part in parts.values() for named in part.named_parameters()]
    optimisers = Optimisers(named, muon_lr, adamw_lr, decay=decay)
    training = Training(folder, parts, optimisers, seconds, steps=steps, save_every=50)
    if windows is not None:
        windows.start(training.step)
    earlier = training.kept.setdefault("difficulties", {})
    difficulties = {stream.name: Value(c_double, earlier.get(stream.name, stream.difficulty)) for stream in streams}
    shares = RunningShares(training.kept.setdefault("shares", {}))
    batches = StreamBatches(streams, processor, difficulties, f"{seed * 7919 + training.step}/{replicas.rank()}")
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=6 if workers else None))
    by_name = {stream.name: stream for stream in streams}
    model.train()
    for _ in training:
        for _ in streams:
            name, kinds, batch, targets = training.next(loader)
            output = model(**batch, use_cache=False)
            look_loss, pointed = looking.loss(targets)
            decision_loss, thoughts, chosen = decisions(output.logits, batch["labels"], processor.tokenizer)
            ((output.loss + look_loss + decision_weight * decision_loss) / len(streams)).backward()
            training.tell(**{f"loss/{name}": output.loss.item()})
            rows, matches = exact_match(output.logits.detach(), batch["labels"])
            shares.update("match", [kinds[row] for row in rows], matches)
            shares.update("decided", [kinds[row] for row in thoughts], chosen)
            if "answer" in pointed:
                shares.update("found", [kinds[row] for row in targets.pointers["answer"].rows], pointed["answer"])
            if "glyph" in pointed:
                training.blend(glyphs=pointed["glyph"].item())
            _promote(by_name[name], difficulties[name], shares, kinds)
        if windows is not None:
            loss, figures = windows.ask()
            loss.backward()
            training.blend(**figures)
        training.kept["difficulties"] = {name: level.value for name, level in difficulties.items()}
        levels = {f"difficulty/{name}": level for name, level in training.kept["difficulties"].items()}
        training.tell(**shares.figures(), **levels)


def _prepared(
    model: Qwen2_5_VLForConditionalGeneration,
    vision: Learns,
    looking_weights: Mapping[str, float] | None,
    compile_text: bool,
) -> Looking:
    """Make a model quick on a CPU, in the training format; returns its looking heads."""
    linear_patch_embedding(model.model.visual)
    to_training_dtype(model)
    let_vision_learn(model, vision)
    use_block_attention(model.model.language_model)
    use_window_attention(model.model.visual)
    looking = Looking(model, looking_weights)
    to_training_dtype(looking)
    if compile_text and shutil.which("g++"):
        for layer in model.model.language_model.layers:
            layer.compile(dynamic=True)
    return looking


def _promote(stream: Stream, difficulty: Level, shares: RunningShares, kinds: list[str]) -> None:
    means = shares.means[stream.promote_on]
    level = sum(means.get(kind, 0.0) for kind in kinds) / len(kinds)
    if level > stream.promote_at and difficulty.value < 1:
        difficulty.value = min(1.0, difficulty.value + stream.difficulty_step)
