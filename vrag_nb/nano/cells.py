"""Cells: which character covers each spot of an image, asked of the vision tower like a segmentation.

A square of 28 x 28 pixels is asked in ROWS x COLUMNS cells of 7 x 3.5 pixels; a cell's class is the character whose box
covers its middle. No answer hangs on another, as slots in reading order do (`glyphs.GlyphHead`: one letter missed
shifts all after it), and large print, of which a square holds a part of one letter, is asked for like small print. The
head is one linear layer, thrown away afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vrag_nb.nano.glyphs import CLASSES, IGNORE
from vrag_nb.nano.model import FACTOR

COLUMNS, ROWS = 8, 4
CELLS = COLUMNS * ROWS
ACROSS, DOWN = FACTOR / COLUMNS, FACTOR / ROWS  # pixels of a cell
READABLE = 9.0  # pixels: letters in lower lines are not asked for
LEAD = 0.18  # of a line's height, above and below, is not the letter's
UNASKED = 255  # in stored targets
BLANK_WEIGHT = 0.2


class Letter(NamedTuple):
    """A drawn character: its class (`glyphs.CLASS_OF`) and its box in pixels, as high as its line."""

    kind: int
    x0: float
    y0: float
    x1: float
    y1: float


def cell_targets(letters: Sequence[Letter], columns: int, rows: int) -> np.ndarray:
    """(rows * columns, CELLS) uint8 of an image of so many squares: class ids, EMPTY or UNASKED.

    A letter narrower or lower than a cell has the one its middle lies in.
    """
    grid = np.zeros((rows * ROWS, columns * COLUMNS), np.uint8)
    for kind, x0, y0, x1, y1 in letters:
        height = y1 - y0
        down = _covered(y0 + LEAD * height, y1 - LEAD * height, DOWN, grid.shape[0])
        across = _covered(x0, x1, ACROSS, grid.shape[1])
        grid[down, across] = kind if height >= READABLE else UNASKED
    return grid.reshape(rows, ROWS, columns, COLUMNS).transpose(0, 2, 1, 3).reshape(rows * columns, CELLS)


def _covered(low: float, high: float, side: float, count: int) -> slice:
    """The cells of a row whose middles lie in low..high, at least the one that holds the middle of both."""
    first, last = math.ceil(low / side - 0.5), math.floor(high / side - 0.5)
    if last < first:
        first = last = math.floor((low + high) / 2 / side)
    return slice(min(max(first, 0), count), max(min(last + 1, count), 0))


def as_grid(told: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """(..., rows * columns, CELLS) of squares as (..., rows * ROWS, columns * COLUMNS) of the image."""
    parts = told.reshape(*told.shape[:-2], rows, columns, ROWS, COLUMNS)
    return np.moveaxis(parts, -2, -3).reshape(*told.shape[:-2], rows * ROWS, columns * COLUMNS)


class CellHead(nn.Module):
    """Merged vision tokens (..., width) -> logits (..., CELLS, CLASSES)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.name = nn.LayerNorm(width), nn.Linear(width, CELLS * CLASSES)
        nn.init.zeros_(self.name.weight)  # a head that knows nothing yet asks nothing of a tower that has learned

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.name(self.norm(tokens)).unflatten(-1, (CELLS, CLASSES))


def cell_loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Cross entropy of (..., CELLS, CLASSES) against uint8 targets, blank cells weighing less; accuracy elsewhere."""
    wanted = targets.long().flatten()
    wanted[wanted == UNASKED] = IGNORE
    weight = torch.ones(CLASSES, device=logits.device)
    weight[0] = BLANK_WEIGHT
    flat = logits.reshape(-1, CLASSES).float()
    loss = nn.functional.cross_entropy(flat, wanted, weight=weight, ignore_index=IGNORE)
    written = wanted > 0
    right = (flat.detach().argmax(-1) == wanted)[written]
    return loss, right.float().mean().item() if len(right) else 0.0
