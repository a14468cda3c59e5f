"""A vision tower of any size and patches learns to see characters, from dense glyph supervision alone.

The language model takes no part. Scribbles are drawn as they are needed, and grow harder as the measured accuracy
allows, never by step count. So the shipped towers began; the recipe now begins with windows (`seeing`), which costs a
fraction, and `benchmarks/sizes.py` compares sizes by this.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

from vrag_nb.attention import linear_patch_embedding, use_window_attention
from vrag_nb.nano import replicas
from vrag_nb.nano.difficulty import Level, learned_from
from vrag_nb.nano.glyphs import Glyph, GlyphHead, LetterHead, glyph_loss, letter_targets, slot_targets
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Schedule, to_training_form
from vrag_nb.nano.scribbles import scribble
from vrag_nb.nano.training import Training

Drawing = tuple[Image.Image, list[Glyph]]
# The running accuracy over written slots above which drawings grow harder, and by how much. It does not come near 1: a
# character on the border of two squares shifts the slots after it.
PROMOTE_AT, HARDER = 0.8, 0.01
AHEAD = 4  # batches that each process draws before they are asked for


class GlyphBatches(IterableDataset):
    """Endless batches; `draw(rng, difficulty)` makes one drawing.

    Of each batch: pixel_values and image_grid_thw; targets, as `slot_targets`; letters and places, as
    `letter_targets`, squares counted over the batch.
    """

    def __init__(
        self,
        image_processor: Qwen2VLImageProcessor,
        draw: Callable[[random.Random, float], Drawing],
        difficulty: Level,
        batch_size: int,
        seed: str,
        ahead: int | None = None,
    ) -> None:
        self.image_processor, self.draw, self.difficulty = image_processor, draw, difficulty
        self.batch_size, self.seed, self.ahead = batch_size, seed, ahead

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if worker := torch.utils.data.get_worker_info():
            torch.set_num_threads(1)
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        for learned in learned_from(self.ahead):
            difficulty = self.difficulty.after(learned)
            drawings = [self.draw(rng, difficulty) for _ in range(self.batch_size)]
            batch = self.image_processor(images=[image for image, _ in drawings], do_resize=False, return_tensors="pt")
            sizes = [(image.width // FACTOR, image.height // FACTOR) for image, _ in drawings]
            told = [(glyphs, *size) for (_, glyphs), size in zip(drawings, sizes, strict=True)]
            letters, places = zip(*(letter_targets(*one) for one in told), strict=True)
            before = [0, *accumulate(columns * rows for columns, rows in sizes)]
            yield {
                **batch,
                "targets": torch.cat([slot_targets(*one) for one in told]),
                "letters": torch.cat([one + torch.tensor([0, n]) for one, n in zip(letters, before, strict=False)]),
                "places": torch.cat(places),
            }


def draw_scribble(rng: random.Random, difficulty: float) -> Drawing:
    """48 squares of scribbles; one in five from an easier setting, so that nothing is forgotten."""
    columns, rows = rng.choice([(8, 6), (12, 4), (6, 8)])
    return scribble(rng, columns, rows, difficulty * (rng.random() if rng.random() < 0.2 else 1.0))


class Reader(nn.Module):
    """A vision tower and the heads that ask each of its squares for characters; the heads are thrown away."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration) -> None:
        super().__init__()
        text_config: Any = model.config.text_config
        self.visual: Any = model.model.visual
        linear_patch_embedding(self.visual)
        use_window_attention(self.visual)
        self.glyphs, self.letters = GlyphHead(text_config.hidden_size), LetterHead(text_config.hidden_size)

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
        """The summed loss on a batch of `GlyphBatches`, and accuracies: of written slots, of letters by their place."""
        tokens = self.visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        loss, right = glyph_loss(self.glyphs(tokens), batch["targets"])
        kinds, squares = batch["letters"].unbind(-1)
        logits = self.letters(tokens[squares], batch["places"]).float()
        loss = loss + (nn.functional.cross_entropy(logits, kinds) if len(kinds) else logits.sum())
        letters = (logits.argmax(-1) == kinds).float().mean().item() if len(kinds) else 0.0
        return loss, {"accuracy": right, "letters": letters}


def train_reading(
    model: Qwen2_5_VLForConditionalGeneration,
    image_processor: Qwen2VLImageProcessor,
    folder: Path,
    schedule: Schedule,
    *,
    draw: Callable[[random.Random, float], Drawing] = draw_scribble,
    batch_size: int = 32,
    seed: int = 0,
    workers: int = 1,
) -> None:
    """Train `model.model.visual` in place; state and log under `folder`, resumable.

    The difficulty, at first 0, rises with what is read. Of several processes (`replicas`) each draws its own; the first
    one's log and state are kept.
    """
    torch.manual_seed(seed)
    reader = Reader(model)
    to_training_form(reader)
    parts = {"visual": reader.visual, "head": reader.glyphs, "letters": reader.letters}
    training = Training(folder, parts, schedule)
    level = Level(training.kept.get("difficulty", 0.0), HARDER)
    seeded, prefetch = f"{seed + training.step}/{replicas.rank()}", AHEAD if workers else None
    batches = GlyphBatches(image_processor, draw, level, batch_size, seeded, AHEAD * workers)
    loader = iter(DataLoader(batches, batch_size=None, num_workers=workers, prefetch_factor=prefetch))
    for taken, _ in enumerate(training, start=1):
        loss, shares = reader(training.next(loader))
        loss.backward()
        training.blend(0.1, **shares)
        if training.means["accuracy"] > PROMOTE_AT and level.value < 1:
            level.rise(taken)
            training.means["accuracy"] -= 0.004
        training.kept["difficulty"] = level.value
        training.tell(loss=loss.item(), difficulty=level.value)
