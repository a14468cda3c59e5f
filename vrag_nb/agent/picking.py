"""Which token comes next, the likeliest or one drawn with noise of the row's own, and its log-probability."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper, TopPLogitsWarper

from vrag_nb.agent.views import mixture


class Picker:
    """Picks tokens for the rows of a batch, some of them at a time, each row's in order.

    seeds: of the rows. forbidden: ids that are never picked. temperature 0 is greedy. views: rows that are views of one
    conversation, side by side, which go by their mixture. Sampling adds Gumbel noise from one generator per row and
    takes the maximum: that draws from the distribution, and does not depend on what else is in the batch. The
    log-probabilities are those of the model itself (temperature 1, nothing forbidden).
    """

    def __init__(
        self,
        seeds: Sequence[int],
        forbidden: Collection[int],
        device: torch.device,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        views: int = 1,
    ) -> None:
        self.views = views
        self._forbidden = torch.tensor(sorted(forbidden), dtype=torch.long, device=device)
        self._warpers: list[Any] = []
        self._noise: list[torch.Generator] = []
        if temperature > 0:
            self._warpers.append(TemperatureLogitsWarper(float(temperature)))
            self._warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
            self._noise = [torch.Generator(device).manual_seed(seed % 2**63) for seed in seeds]

    def __call__(self, rows: Sequence[int], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        """The next token of each of these rows, and its log-probability. logits: (rows, vocabulary)."""
        logs = mixture(logits, self.views) if self.views > 1 else torch.log_softmax(logits.float(), -1)
        scores: Any = logs.index_fill(1, self._forbidden, float("-inf"))
        for warper in self._warpers:
            scores = warper(None, scores)
        if self._noise:
            noise = torch.empty_like(scores)
            for place, row in enumerate(rows):
                noise[place].exponential_(generator=self._noise[row])
            scores = scores - noise.log()
        chosen = scores.argmax(-1)
        return chosen.tolist(), logs.gather(1, chosen[:, None])[:, 0].tolist()


class PickedTokens(LogitsProcessor):
    """A picker for transformers' own loop, which takes the token whose score is the greatest."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self.logprobs: list[list[float]] = []  # (steps, rows); those after a row's end mean nothing

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        chosen, logprobs = self.picker(range(len(scores)), scores)
        self.logprobs.append(logprobs)
        picked = torch.full_like(scores, float("-inf"))
        picked[range(len(chosen)), chosen] = 0
        return picked  # type: ignore[return-value]
