"""Dense supervision of the language side: where the question's words stand, where the answer, where its next letter.

A loss on the answer's letters alone tells a model of this size very little about *where* it should have looked. We
drew the image, so we know, and three heads ask the language model on its way:

- after a third of the layers, of every square: does it hold a word of the question (a cue)?
- after half of them, of every square: does the answer stand in it?
- after two thirds, of every token about to be written: in which square does it stand, and in which part of that?

The heads are used in training only and thrown away. They are for the language model what dense glyph supervision is
for the vision tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.model import FACTOR

UNCOUNTED = -1
PARTS = 8


@dataclass(frozen=True)
class Marks:
    """What is known about one image, in its own pixels; what is left empty is not supervised.

    answer: boxes to be looked at. cues: boxes of the question's words. printed: the answer as it is printed, and
    letters: the centres of its letters, spaces left out.
    """

    answer: Sequence[Box] = ()
    cues: Sequence[Box] = ()
    printed: str = ""
    letters: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Targets:
    """What the heads should say, each (batch, length).

    answers, cues: at image tokens 1 yes, 0 no; UNCOUNTED at text and at images that are not marked. pointers: at each
    token before one that is read off an image, the position of the square to read; parts: which of PARTS parts of it;
    UNCOUNTED elsewhere.
    """

    answers: torch.Tensor
    cues: torch.Tensor
    pointers: torch.Tensor
    parts: torch.Tensor


def square_part(x: float, y: float) -> int:
    """In which of a square's PARTS parts, four across and two down, a point of an image lies."""
    return int(x % FACTOR * 4 / FACTOR) + 4 * int(y % FACTOR * 2 / FACTOR)


def covered_squares(boxes: Sequence[Box], columns: int, rows: int, share: float = 0.2) -> torch.Tensor:
    """(rows * columns,) int: 1 where a box and a square overlap by `share` of the smaller of the two, else 0."""
    covered = torch.zeros(rows, columns, dtype=torch.long)
    for x0, y0, x1, y1 in boxes:
        smaller = min(FACTOR**2, max(1.0, (x1 - x0) * (y1 - y0)))
        for row in range(max(0, int(y0 // FACTOR)), min(rows, int(y1 // FACTOR) + 1)):
            for column in range(max(0, int(x0 // FACTOR)), min(columns, int(x1 // FACTOR) + 1)):
                across = min(x1, (column + 1) * FACTOR) - max(x0, column * FACTOR)
                down = min(y1, (row + 1) * FACTOR) - max(y0, row * FACTOR)
                if across * down >= share * smaller:
                    covered[row, column] = 1
    return covered.flatten()


class Looking(nn.Module):
    """The heads, tapping a model's layers while it runs; `loss` is asked right after the model's forward pass."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration) -> None:
        super().__init__()
        config: Any = model.config.text_config
        width, layers = config.hidden_size, model.model.language_model.layers
        self.cue, self.answer = nn.Linear(width, 1), nn.Linear(width, 1)
        self.norm, self.part = nn.LayerNorm(width), nn.Linear(width, PARTS)
        self.query, self.key = nn.Linear(width, 64), nn.Linear(width, 64)
        self._seen: dict[str, torch.Tensor] = {}
        for name, share in (("cue", 1 / 3), ("answer", 1 / 2), ("letter", 2 / 3)):
            layers[max(0, int(len(layers) * share) - 1)].register_forward_hook(self._tap(name))

    def _tap(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def loss(self, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
        """The heads' losses, summed, and which samples' best square lies in the answer ((batch,) bool)."""
        answer_loss, found = self._answer_loss(targets.answers)
        return 0.25 * answer_loss + self._cue_loss(targets.cues) + 0.3 * self._letter_loss(targets), found

    def _answer_loss(self, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy over all counted squares of a sample against the uniform distribution over the right ones."""
        scores = self.answer(self._seen["answer"]).squeeze(-1).float()
        right = (answers == 1).float()
        log_shares = scores.masked_fill(answers == UNCOUNTED, -1e4).log_softmax(-1)
        asked = right.sum(-1) > 0
        found = right.gather(1, log_shares.argmax(-1, keepdim=True)).squeeze(1) > 0
        if not asked.any():
            return scores.sum() * 0, found
        return (-(log_shares * right).sum(-1) / right.sum(-1).clamp(min=1))[asked].mean(), found

    def _cue_loss(self, cues: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy per counted square."""
        scores, counted = self.cue(self._seen["cue"]).squeeze(-1).float(), cues != UNCOUNTED
        if not counted.any():
            return scores.sum() * 0
        return nn.functional.binary_cross_entropy_with_logits(scores[counted], cues[counted].float())

    def _letter_loss(self, targets: Targets) -> torch.Tensor:
        """Cross-entropy over the counted squares of the sample, and over the parts of a square."""
        hidden = self.norm(self._seen["letter"])
        rows, places = (targets.pointers != UNCOUNTED).nonzero(as_tuple=True)
        if not len(rows):
            return hidden.sum() * 0
        asking = hidden[rows, places]
        scores = torch.einsum("nd,nsd->ns", self.query(asking), self.key(hidden)[rows]).float() / 8
        scores = scores.masked_fill(targets.answers[rows] == UNCOUNTED, -1e4)
        where = nn.functional.cross_entropy(scores, targets.pointers[rows, places])
        return where + nn.functional.cross_entropy(self.part(asking).float(), targets.parts[rows, places])
