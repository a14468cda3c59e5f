"""Dense supervision of the language side: which squares of an image answer the question, and which hold its words.

A loss on the answer's letters alone tells a model of this size very little about *where* it should have looked. We
drew the image, so we know: after a third of the layers a linear head says of every square whether it holds a word of
the question (a cue), after two thirds another says in which squares the answer stands. Both are used in training only
and thrown away. It is for the language model what dense glyph supervision is for the vision tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.model import FACTOR

UNCOUNTED = -1


@dataclass(frozen=True)
class Marks:
    """What is known about one image: boxes in its own pixels. Without an answer box only the cues are supervised."""

    answer: Sequence[Box] = field(default=())
    cues: Sequence[Box] = field(default=())


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
    """The two heads, tapping a model's layers while it runs; `loss` is asked right after the model's forward pass."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration) -> None:
        super().__init__()
        config: Any = model.config.text_config
        layers = model.model.language_model.layers
        self.cue, self.answer = (nn.Linear(config.hidden_size, 1) for _ in range(2))
        self._seen: dict[str, torch.Tensor] = {}
        for name, depth in (("cue", len(layers) // 3), ("answer", 2 * len(layers) // 3)):
            layers[max(0, depth - 1)].register_forward_hook(self._tap(name))

    def _tap(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def loss(self, answer_squares: torch.Tensor, cue_squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two losses' sum, and which samples' best square lies in the answer ((batch,) bool).

        answer_squares, cue_squares: (batch, length): 1 yes, 0 no, UNCOUNTED for text and for images not marked. The
        answer's loss is a cross-entropy over all counted squares of a sample against the uniform distribution over
        the right ones; the cues' a binary cross-entropy per square.
        """
        scores = self.answer(self._seen["answer"]).squeeze(-1).float()
        right = (answer_squares == 1).float()
        log_shares = scores.masked_fill(answer_squares == UNCOUNTED, -1e4).log_softmax(-1)
        asked = right.sum(-1) > 0
        per_sample = -(log_shares * right).sum(-1) / right.sum(-1).clamp(min=1)
        answer_loss = per_sample[asked].mean() if asked.any() else scores.sum() * 0
        found = right.gather(1, log_shares.argmax(-1, keepdim=True)).squeeze(1) > 0
        counted = cue_squares != UNCOUNTED
        cue_scores = self.cue(self._seen["cue"]).squeeze(-1).float()
        if counted.any():
            cue_loss = nn.functional.binary_cross_entropy_with_logits(cue_scores[counted], cue_squares[counted].float())
        else:
            cue_loss = cue_scores.sum() * 0
        return 0.25 * answer_loss + cue_loss, found
