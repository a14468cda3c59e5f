"""A vision tower that has learned on, made to speak as the one before it did.

What a language model has learned hangs on the directions in which its tower says what it sees, and they drift when the
tower is trained alone. The last layer of the tower's merger is linear, so the drift is taken back without training: of
all last layers W, b the one is put in whose tokens are nearest to the earlier tower's on the same images,

    min over W, b of  sum over squares of |W h + b - t|^2 + ridge * |W|^2,

with h the new merger's hidden features of a square and t the earlier tower's token. Where the earlier tower took one
letter for another, the fit goes through the mean of what it said.

That alone throws most of the better sight away: what the earlier tower had no words for is not in the fit. But its
tokens vary in few directions (64 of 256 have 95% of the variance of the shipped agent's). In the others, to which the
language model has not listened, the new tower says what it says itself: its own tokens' first principal components,
each at the deviation of the last direction kept. What the language model understood it understands as before, and what
the new tower sees is there to be learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def graft(
    tower: Any,
    earlier: Any,
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    ridge: float = 1e-4,
    kept: int | None = None,
) -> float:
    """Refit the last layer of `tower`'s merger to `earlier`'s tokens, in place. Returns the share of variance met.

    batches: pixel_values (patches, 1176) and image_grid_thw (images, 3) of the images to fit on; tens of squares for
    each of the merger's features. ridge: in units of the features' mean variance. kept: so many principal directions
    of the fitted tokens are left to them, and the others given to the tower's own; by default all are left.
    """
    features, tokens = [], []
    for pixels, grid in batches:
        features.append(_of_layer(tower, -2, pixels, grid))
        tokens.append(_of_layer(earlier, -1, pixels, grid))
    x, y = torch.cat(features).double(), torch.cat(tokens).double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    weight = torch.linalg.solve(gram, x.T @ y)
    met = 1 - ((x @ weight - y).square().sum() / y.square().sum()).item()
    last: nn.Linear = tower.merger.mlp[-1]
    if kept is not None:
        own = last.weight.double().T
        weight = weight + own @ _beside(x @ weight, x @ own, kept)
    last.weight.copy_(weight.T)
    last.bias.copy_(y_mean - x_mean @ weight)
    return met


def _beside(fitted: torch.Tensor, own: torch.Tensor, kept: int) -> torch.Tensor:
    """(width, width) that puts own tokens where fitted ones, both (squares, width) of mean zero, vary least."""
    free = fitted.shape[1] - kept
    spread, directions = torch.linalg.eigh(fitted.T @ fitted / len(fitted))  # smallest first
    shares, components = torch.linalg.eigh(own.T @ own / len(own))
    loudness = (spread[free - 1] / shares[-free:].clamp(min=1e-12)).sqrt()
    return components[:, -free:] @ torch.diag(loudness) @ directions[:, :free].T


def _of_layer(tower: Any, layer: int, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """What a layer of the merger's perceptron gives for images, (squares, width), in the tower's own order."""
    kept: list[torch.Tensor] = []
    handle = tower.merger.mlp[layer].register_forward_hook(lambda module, inputs, output: kept.append(output))
    try:
        tower(pixels, grid_thw=grid)
    finally:
        handle.remove()
    return kept[0]
