"""Pretraining stage 1: the vision tower learns to see characters, from dense glyph supervision alone.

The language model takes no part. Scribbles grow harder as the measured accuracy allows (never by step count), first
alone, then mixed with windows of train-split deck pages, the way the agent will see pages and crops.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from ctypes import c_double
from multiprocessing import Value
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

from vrag_nb.learning.curves import RunLog
from vrag_nb.nano.attention import linear_patch_embedding, use_window_attention
from vrag_nb.nano.glyphs import Glyph, GlyphHead, glyph_loss, slot_targets
from vrag_nb.nano.optimisation import Optimisers, load_state, progress, save_state, to_training_dtype
from vrag_nb.nano.scribbles import scribble

Drawing = tuple[Image.Image, list[Glyph]]
Level = Synchronized  # a difficulty in 0..1, set by the trainer and read by the drawing processes


class GlyphBatches(IterableDataset):
    """Endless batches {pixel_values, image_grid_thw, targets}; `draw(rng, difficulty)` makes one drawing."""

    def __init__(
        self,
        image_processor: Qwen2VLImageProcessor,
        draw: Callable[[random.Random, float], Drawing],
        difficulty: Level,
        batch_size: int,
        seed: int,
    ) -> None:
        self.image_processor, self.draw, self.difficulty = image_processor, draw, difficulty
        self.batch_size, self.seed = batch_size, seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        torch.set_num_threads(1)
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        while True:
            drawings = [self.draw(rng, self.difficulty.value) for _ in range(self.batch_size)]
            batch = self.image_processor(images=[image for image, _ in drawings], do_resize=False, return_tensors="pt")
            targets = [slot_targets(glyphs, image.width // 28, image.height // 28) for image, glyphs in drawings]
            yield {**batch, "targets": torch.cat(targets)}


def draw_scribble(rng: random.Random, difficulty: float) -> Drawing:
    """48 squares of scribbles; one in five from an easier setting, so that nothing is forgotten."""
    columns, rows = rng.choice([(8, 6), (12, 4), (6, 8)])
    return scribble(rng, columns, rows, difficulty * (rng.random() if rng.random() < 0.2 else 1.0))


def train_reading(
    model: Qwen2_5_VLForConditionalGeneration,
    image_processor: Qwen2VLImageProcessor,
    folder: Path,
    seconds: float,
    *,
    steps: int | None = None,
    draw: Callable[[random.Random, float], Drawing] = draw_scribble,
    batch_size: int = 32,
    seed: int = 0,
    muon_lr: float = 2e-3,
    adamw_lr: float = 1e-3,
    workers: int = 1,
    head_from: Path | None = None,
    promote_at: float = 0.8,
    difficulty_step: float = 0.01,
) -> None:
    """Train `model.model.visual` in place for a wall-clock budget; state and log under `folder`, resumable.

    The difficulty rises by `difficulty_step` whenever the running accuracy over written slots is above `promote_at`; a
    character on the border of two squares shifts the slots after it, so perfect accuracy is out of reach.
    """
    torch.manual_seed(seed)
    linear_patch_embedding(model.model.visual)
    visual = model.model.visual
    use_window_attention(visual)
    text_config: Any = model.config.text_config
    head = GlyphHead(text_config.hidden_size)
    if head_from and (earlier := load_state(head_from / "state.pt")):
        head.load_state_dict(earlier["head"])
    to_training_dtype(visual)
    to_training_dtype(head)
    named = [*visual.named_parameters(), *head.named_parameters()]
    optimisers = Optimisers(named, muon_lr, adamw_lr)
    step, spent, accuracy, level = 0, 0.0, 0.0, 0.0
    if state := load_state(folder / "state.pt"):
        visual.load_state_dict(state["visual"])
        head.load_state_dict(state["head"])
        optimisers.load_state_dict(state["optimisers"])
        step, spent, accuracy, level = state["step"], state["spent"], state["accuracy"], state["difficulty"]
    difficulty = Value(c_double, level)
    batches = GlyphBatches(image_processor, draw, difficulty, batch_size, seed + step)
    log = RunLog(folder / "log.jsonl", step)
    started, waited = time.perf_counter() - spent, 0.0
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None))
    done = progress(spent, seconds, step, steps)
    while done < 1:
        before = time.perf_counter()
        batch = next(loader)
        waited += time.perf_counter() - before
        tokens = visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        loss, correct = glyph_loss(head(tokens), batch["targets"])
        loss.backward()
        optimisers.step(done)
        step, spent = step + 1, time.perf_counter() - started
        done = progress(spent, seconds, step, steps)
        accuracy = 0.9 * accuracy + 0.1 * correct
        if accuracy > promote_at and difficulty.value < 1:
            difficulty.value = min(1.0, difficulty.value + difficulty_step)
            accuracy -= 0.004
        if step % 10 == 0 or step == 1:
            log.write(
                step=step,
                seconds=spent,
                loss=loss.item(),
                accuracy=accuracy,
                difficulty=difficulty.value,
                waiting=waited / max(spent, 1e-9),
            )
        if step % 200 == 0 or done >= 1:
            save_state(
                folder / "state.pt",
                {
                    "visual": visual.state_dict(),
                    "head": head.state_dict(),
                    "optimisers": optimisers.state_dict(),
                    "step": step,
                    "spent": spent,
                    "accuracy": accuracy,
                    "difficulty": difficulty.value,
                },
            )
