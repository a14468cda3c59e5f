"""Dense glyph supervision: every 28 x 28 square of an image is asked which characters lie in it.

Whoever draws a page knows where each character stands, so a vision tower can be told directly what it should see,
thousands of labels an image, long before a language model could tell it anything through an answer. A small head on
the merged vision tokens predicts, slot by slot in reading order, the characters whose centre lies in the square; the
head is thrown away afterwards.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

CHARACTERS = string.digits + string.ascii_letters + string.punctuation + "°€£–—•·’“”éöüñ×−±"
CLASS_OF = {character: index + 2 for index, character in enumerate(CHARACTERS)}
EMPTY, UNKNOWN = 0, 1  # classes: no character in this slot; a character outside the alphabet
CLASSES = len(CHARACTERS) + 2
SLOTS = 6  # characters a square can hold and still be read: five or six digits of 9 px type
IGNORE = -100


class Glyph(NamedTuple):
    """A drawn character: its centre in shown pixels and the index of its text line (for reading order)."""

    character: str
    x: float
    y: float
    line: int


def slot_targets(
    glyphs: Sequence[Glyph], columns: int, rows: int, factor: int = 28, slots: int = SLOTS
) -> torch.Tensor:
    """Targets (rows * columns, slots) of class ids: the characters of each square in reading order, then EMPTY.

    A square with more characters than slots is too small to read and is IGNOREd whole.
    """
    squares: dict[int, list[tuple[int, float, int]]] = {}
    for character, x, y, line in glyphs:
        column, row = int(x // factor), int(y // factor)
        if 0 <= column < columns and 0 <= row < rows and not character.isspace():
            squares.setdefault(row * columns + column, []).append((line, x, CLASS_OF.get(character, UNKNOWN)))
    targets = torch.full((rows * columns, slots), EMPTY)
    for square, found in squares.items():
        if len(found) > slots:
            targets[square] = IGNORE
        else:
            found.sort()
            targets[square, : len(found)] = torch.tensor([kind for _, _, kind in found])
    return targets


class GlyphHead(nn.Module):
    """Merged vision tokens (n, width) -> logits (n, slots, CLASSES).

    It begins at zero: a head that knows nothing yet asks nothing of a tower that has learned already.
    """

    def __init__(self, width: int, slots: int = SLOTS) -> None:
        super().__init__()
        self.slots = slots
        self.norm = nn.LayerNorm(width)
        self.to_slots = nn.Linear(width, slots * CLASSES)
        nn.init.zeros_(self.to_slots.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.to_slots(self.norm(tokens)).unflatten(-1, (self.slots, CLASSES))


def letter_targets(
    glyphs: Sequence[Glyph], columns: int, rows: int, factor: int = 28, most: int = 12
) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 2) class id and square of every character, and (n, 2) where in its square its centre lies, 0..1.

    Characters of squares with more than `most` are left out: too small to read.
    """
    kinds, places = [], []
    for character, x, y, _ in glyphs:
        column, row = int(x // factor), int(y // factor)
        if 0 <= column < columns and 0 <= row < rows and not character.isspace():
            kinds.append((CLASS_OF.get(character, UNKNOWN), row * columns + column))
            places.append((x % factor / factor, y % factor / factor))
    kind = torch.tensor(kinds, dtype=torch.long).reshape(-1, 2)
    place = torch.tensor(places, dtype=torch.float32).reshape(-1, 2)
    crowd = torch.bincount(kind[:, 1], minlength=columns * rows)[kind[:, 1]]
    return kind[crowd <= most], place[crowd <= most]


class LetterHead(nn.Module):
    """Which character is centred at a place of a square: tokens (n, width), places (n, 2) -> logits (n, CLASSES).

    In `GlyphHead` a character on the border of two squares shifts the slots of all that follow; here nothing does.
    """

    WAVES = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.see = nn.LayerNorm(width), nn.Linear(width, width)
        self.place = nn.Linear(4 * self.WAVES, width)
        self.name = nn.Linear(width, CLASSES)
        nn.init.zeros_(self.name.weight)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        turns = places[:, :, None] * torch.pi * torch.arange(1, self.WAVES + 1, device=places.device)
        waves = torch.cat([turns.sin(), turns.cos()], -1).flatten(1).to(tokens.dtype)
        return self.name(nn.functional.gelu(self.see(self.norm(tokens)) * (1 + self.place(waves))))


def glyph_loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Cross entropy over slots, empty slots down-weighted, and the accuracy over non-empty slots.

    Most slots of a page are empty; at full weight they would teach the tower to say "nothing here" first.
    """
    weight = torch.ones(CLASSES, device=logits.device)
    weight[EMPTY] = 0.15
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), weight=weight, ignore_index=IGNORE
    )
    written = targets > EMPTY
    hits = (logits.argmax(-1) == targets)[written]
    return loss, hits.float().mean().item() if hits.numel() else 0.0
