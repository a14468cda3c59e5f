"""Pretraining stage 2: the language model learns to use what the vision tower sees - read, look up, point, search.

The vision blocks stay as stage 1 left them (only the merger goes on learning), which makes a step about twice as
cheap. Besides the loss on the answer's tokens, heads on its way are asked where to look (`looking`). Every task is a
stream of samples with its own difficulty, raised when its measured exact match allows; a step sums the gradients of
one batch of each stream, or of each group of streams.

On a GPU batches are larger, streams of short samples share one, and many worker processes draw them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.nano import replicas
from vrag_nb.nano.difficulty import Level, learned_from
from vrag_nb.nano.looking import Looking, Targets
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Schedule, compile_layers, to_training_form, training_device
from vrag_nb.nano.patches import recoloured, seen, tower_inputs
from vrag_nb.nano.replay import Replay
from vrag_nb.nano.samples import Sample, collate_texts, decisions, exact_match, looking_targets, thought_loss
from vrag_nb.nano.seeing import WindowLessons
from vrag_nb.nano.training import Training

AHEAD = 6  # batches that each process draws before they are asked for


@dataclass(frozen=True)
class Stream:
    """An endless source of samples: `draw(rng, difficulty)` gives the next one (or several)."""

    name: str
    draw: Callable[[random.Random, float], Sample | list[Sample]]
    batch_size: int
    promote_at: float = 0.6  # the share of exact answers, over the last batches, at which the difficulty rises
    difficulty_step: float = 0.01
    difficulty: float = 0.0  # to begin with
    buckets: int = 1  # so many batches are drawn at once and sorted by length, which saves padding
    group: str = ""  # streams of one group share a batch; by default each is a group of its own


def grouped(streams: Sequence[Stream]) -> dict[str, list[Stream]]:
    """The streams of each group, in order."""
    groups: dict[str, list[Stream]] = {}
    for stream in streams:
        groups.setdefault(stream.group or stream.name, []).append(stream)
    return groups


class Drawn(NamedTuple):
    """A batch of a group of streams: of each sample its stream and kind, model inputs, and targets of `looking`.

    texts: as `samples.collate_texts`, with the positions of tokens where there are images. images: as
    `patches.tower_inputs`, empty where there are none.
    """

    group: str
    streams: list[str]
    kinds: list[str]
    texts: dict[str, torch.Tensor]
    images: dict[str, torch.Tensor]
    targets: Targets

    def to(self, device: torch.device) -> Drawn:
        texts, images = (
            {name: tensor.to(device) for name, tensor in part.items()} for part in (self.texts, self.images)
        )
        return self._replace(texts=texts, images=images, targets=self.targets.to(device))

    def recoloured(self) -> Drawn:
        """The same batch, its images in other colours."""
        if not self.images:
            return self
        patches = recoloured(self.images["patches"], self.images["grid_thw"])
        return self._replace(images={**self.images, "patches": patches})


class StreamBatches(IterableDataset):
    """Yields batches in rotation over the groups of streams."""

    def __init__(
        self,
        streams: list[Stream],
        model: Qwen2_5_VLForConditionalGeneration,
        processor: Qwen2_5_VLProcessor,
        difficulties: Mapping[str, Level],
        seed: str,
        ahead: int | None = None,
    ) -> None:
        """model: whose configuration tells where tokens stand; workers touch none of its weights. ahead: as
        `difficulty.learned_from`."""
        self.streams, self.processor, self.difficulties, self.seed = streams, processor, difficulties, seed
        self.config, self.positions, self.ahead = model.config, model.model.get_rope_index, ahead

    def __iter__(self) -> Iterator[Drawn]:
        if worker := torch.utils.data.get_worker_info():
            torch.set_num_threads(1)
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        drawn: dict[str, list[Sample]] = {stream.name: [] for stream in self.streams}
        ready: dict[str, list[list[Sample]]] = {stream.name: [] for stream in self.streams}
        for (group, streams), learned in zip(cycle(grouped(self.streams).items()), learned_from(self.ahead)):
            samples: list[Sample] = []
            names: list[str] = []
            for stream in streams:
                if not ready[stream.name]:
                    difficulty = self.difficulties[stream.name].after(learned)
                    self._refill(stream, rng, difficulty, drawn[stream.name], ready[stream.name])
                taken = ready[stream.name].pop()
                samples, names = samples + taken, names + [stream.name] * len(taken)
            yield self._batch(group, names, samples)

    def _batch(self, group: str, names: list[str], samples: list[Sample]) -> Drawn:
        texts, images = collate_texts(samples, self.processor.tokenizer), {}
        if shown := [image for sample in samples for image in sample.images]:
            images = tower_inputs(shown, self.config.vision_config)
            texts["position_ids"], _ = self.positions(
                texts["input_ids"],
                mm_token_type_ids=texts["mm_token_type_ids"],
                image_grid_thw=images["grid_thw"],
                attention_mask=texts["attention_mask"],
            )
        targets = looking_targets(samples, texts["input_ids"], self.processor.tokenizer)
        return Drawn(group, names, [sample.kind for sample in samples], texts, images, targets)

    def _refill(
        self,
        stream: Stream,
        rng: random.Random,
        difficulty: float,
        drawn: list[Sample],
        ready: list[list[Sample]],
    ) -> None:
        size = stream.batch_size
        while len(drawn) < size * stream.buckets:
            new = stream.draw(rng, difficulty)
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


@dataclass(frozen=True)
class Teaching:
    """How a model is taught by streams, besides by the loss on its answers.

    vision: what of the tower learns.
    windows: the tower is asked for their cells in every step, so that what of it learns goes on reading.
    before: the state in which an earlier stage ended. Its looking heads are taken up, and its lessons are as hard as
    they had become; else heads know nothing yet and lessons begin with their own difficulty.
    looking_weights: of the losses of looking heads, where they differ from `looking.WEIGHTS`.
    decision_weight: of a loss on the first words of thoughts (`samples.decisions`), one token of dozens in the loss on
    all of them.
    thought_weight: of a loss on all words of thoughts, where what is read is said: a call around them is long and the
    same every time.
    compile_text: compile the language model first (a minute, then 1.6 times as fast); needs a C++ compiler, so it is
    left out where there is none, and on a GPU.
    """

    vision: Learns = "merger"
    windows: WindowLessons | None = None
    before: Mapping[str, Any] | None = None
    looking_weights: Mapping[str, float] | None = None
    decision_weight: float = 0.0
    thought_weight: float = 0.0
    compile_text: bool = True


def train_streams(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    streams: list[Stream],
    folder: Path,
    schedule: Schedule,
    teaching: Teaching,
    *,
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Train in place; state and log under `folder`, resumable after a kill.

    Of several processes (`replicas`) each draws samples of its own; the first one's log and state are kept.

    workers: processes that draw samples; with none this one does.
    """
    torch.manual_seed(seed)
    device = training_device()
    looking = _prepared(model, device, teaching)
    parts: dict[str, nn.Module] = {"model": model, "looking": looking}
    windows = teaching.windows
    if windows is not None:
        to_training_form(windows, device)
        parts["windows"] = windows
    training = Training(folder, parts, schedule)
    if windows is not None:
        windows.start(training.step)
    marks = _Marks(streams, training, (teaching.before or {}).get("kept", {}).get("difficulties", {}))
    seeded = f"{seed * 7919 + training.step}/{replicas.rank()}"
    ahead = None if device.type == "cuda" else AHEAD * workers  # batches that come again are learned from more often
    batches = StreamBatches(streams, model, processor, marks.difficulties, seeded, ahead)
    groups = list(grouped(streams))
    supply = _supply(batches, groups, workers, device)
    model.train()
    for _ in training:
        for _ in groups:
            drawn: Drawn = training.next(supply)
            output, rest = _answered(model, drawn.to(device), looking, teaching, processor.tokenizer)
            ((output.loss + rest.loss) / len(groups)).backward()
            training.tell(**{f"loss/{drawn.group}": output.loss.item()})
            marks.take(drawn, rest)
        if windows is not None:
            loss, figures = windows.ask()
            loss.backward()
            training.blend(**figures)
        marks.write()


def _supply(batches: StreamBatches, groups: list[str], workers: int, device: torch.device) -> Iterator[Drawn]:
    """Batches of one group after another, drawn ahead by so many processes."""
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=AHEAD if workers else None))
    if device.type == "cuda":
        return _replayed(loader, groups, device)
    return _in_turn(loader, groups) if workers > 1 else loader


def _in_turn(loader: Iterator[Drawn], groups: list[str]) -> Iterator[Drawn]:
    """Batches of one group after another, as a step wants them: of several workers each goes through the groups."""
    waiting: dict[str, deque[Drawn]] = {group: deque() for group in groups}
    for group in cycle(groups):
        while not waiting[group]:
            drawn = next(loader)
            waiting[drawn.group].append(drawn)
        yield waiting[group].popleft()


def _replayed(loader: Iterator[Drawn], groups: list[str], device: torch.device) -> Replay[Drawn]:
    """Batches that lie on the device, and come again in other colours while new ones are drawn."""
    return Replay(
        loader,
        groups,
        lambda drawn: drawn.group,
        prepare=lambda drawn: drawn.to(device),
        vary=Drawn.recoloured,
    )


class _Rest(NamedTuple):
    """Of a batch, besides the loss on its answers: the other losses' sum, and what was right.

    rows, matches: of each answer its row and whether it is exact. thoughts, chosen: of each thought its row and whether
    its first word is right. pointed: as `Looking.loss`.
    """

    loss: torch.Tensor
    rows: list[int]
    matches: torch.Tensor
    thoughts: list[int]
    chosen: torch.Tensor
    pointed: dict[str, torch.Tensor]


class _Marks:
    """What is kept of a training's answers: running shares, how hard each stream has become, tokens so far.

    difficulties: of each stream, for the processes that draw; `earlier` ones, or those of a run that goes on, come
    before the stream's own. Those of streams that are not among these are handed on.
    """

    def __init__(self, streams: Sequence[Stream], training: Training, earlier: Mapping[str, float]) -> None:
        self.streams, self.training = {stream.name: stream for stream in streams}, training
        self.levels = {**earlier, **training.kept.get("difficulties", {})}
        self.difficulties = {
            stream.name: Level(self.levels.get(stream.name, stream.difficulty), stream.difficulty_step)
            for stream in streams
        }
        self.taken = 0  # batches
        self.shares = RunningShares(training.kept.setdefault("shares", {}))

    def take(self, drawn: Drawn, rest: _Rest) -> None:
        """Take down what was right in a batch, and make streams harder that are answered well enough."""
        pointed, kinds = rest.pointed, drawn.kinds
        self.taken += 1
        self.shares.update("match", [kinds[row] for row in rest.rows], rest.matches)
        self.shares.update("decided", [kinds[row] for row in rest.thoughts], rest.chosen)
        if "answer" in pointed:
            rows = drawn.targets.pointers["answer"].rows
            self.shares.update("found", [kinds[row] for row in rows], pointed["answer"])
        if "glyph" in pointed:
            self.training.blend(glyphs=pointed["glyph"].item())
        for name in {"corner", "corner met", "letter met"} & set(pointed):
            self.training.blend(**{name.replace(" ", "_"): pointed[name].float().mean().item()})
        for name in dict.fromkeys(drawn.streams):
            own = [kind for kind, stream in zip(kinds, drawn.streams, strict=True) if stream == name]
            self._promote(self.streams[name], own)
        self.training.kept["tokens"] = self.training.kept.get("tokens", 0) + int(drawn.texts["attention_mask"].sum())

    def _promote(self, stream: Stream, kinds: Sequence[str]) -> None:
        means = self.shares.means["match"]
        if sum(means.get(kind, 0.0) for kind in kinds) / len(kinds) > stream.promote_at:
            self.difficulties[stream.name].rise(self.taken)

    def write(self) -> None:
        """Into the training's state, and its log."""
        levels = {name: level.value for name, level in self.difficulties.items()}
        self.training.kept["difficulties"] = {**self.levels, **levels}
        told = {f"difficulty/{name}": level for name, level in levels.items()}
        self.training.tell(tokens=self.training.kept["tokens"], **self.shares.figures(), **told)


def _answered(
    model: Qwen2_5_VLForConditionalGeneration,
    drawn: Drawn,
    looking: Looking,
    teaching: Teaching,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Any, _Rest]:
    """The model's output on a batch that lies where the model does, and the rest."""
    encoded = None
    if drawn.images:
        tokens = seen(model.model.visual, drawn.images)
        encoded = {"image": BaseModelOutputWithPooling(pooler_output=(tokens,))}  # type: ignore[arg-type]
    output = model(**drawn.texts, mm_encoder_outputs=encoded, use_cache=False)
    look_loss, pointed = looking.loss(drawn.targets)
    labels = drawn.texts["labels"]
    decision_loss, thoughts, chosen = decisions(output.logits, labels, tokenizer)
    rows, matches = exact_match(output.logits.detach(), labels)
    loss = look_loss + teaching.decision_weight * decision_loss
    if teaching.thought_weight:
        loss = loss + teaching.thought_weight * thought_loss(output.logits, labels, tokenizer)
    return output, _Rest(loss, rows.tolist(), matches, thoughts.tolist(), chosen, pointed)


def _prepared(model: Qwen2_5_VLForConditionalGeneration, device: torch.device, teaching: Teaching) -> Looking:
    """Make a model quick where it is trained, in the training form; returns its looking heads."""
    linear_patch_embedding(model.model.visual)
    to_training_form(model, device)
    let_vision_learn(model, teaching.vision)
    use_block_attention(model.model.language_model)
    use_window_attention(model.model.visual)
    looking = Looking(model, teaching.looking_weights)
    to_training_form(looking, device)
    if teaching.compile_text:
        compile_layers(model.model.language_model)
    if teaching.before is not None:
        looking.load_state_dict(teaching.before["looking"])
    return looking
