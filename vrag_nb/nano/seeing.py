"""The vision tower learns to read from windows of one size, compiled, and nothing else runs beside it.

What a language model says can be no better than what its tower sees, and a step of the tower alone costs a twentieth
of one that also answers questions. Every window has the same size, so that the tower's forward pass can be written
without the gathering and padding of transformers' own (`StillTower`, same weights, same numbers) and compiled.
"""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vrag_nb.nano import replicas
from vrag_nb.nano.cells import CellHead, cell_loss
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Schedule, to_training_form
from vrag_nb.nano.training import Training
from vrag_nb.nano.windows import SIDE, SQUARES, WindowFiles
from vrag_nb.retrieval.image_patches import scaled_patches

MOST_LETTERS = 90  # a window is drawn the more often the more letters it has, up to so many


class StillTower(nn.Module):
    """The forward pass of a Qwen2.5-VL vision tower on images of SIDE x SIDE pixels, on the tower's own weights."""

    order: torch.Tensor
    places: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, visual: Any) -> None:
        super().__init__()
        self.visual = visual
        config = visual.config
        self.patch, self.heads = config.patch_size, config.num_heads
        self.head_dim, self.full = config.hidden_size // config.num_heads, set(config.fullatt_block_indexes)
        merge, window = config.spatial_merge_size, config.window_size // FACTOR
        across, self.side = SQUARES // window, SIDE // self.patch
        self.windows = across**2
        # Patches in the order window, square, patch, so that windows are runs of tokens and squares runs of patches.
        grid = torch.arange(self.side**2).view(across, window, merge, across, window, merge)
        order = grid.permute(0, 3, 1, 4, 2, 5).flatten()
        squares = torch.arange(SQUARES**2).view(across, window, across, window).permute(0, 2, 1, 3).flatten()
        rates = 10_000 ** -(torch.arange(0, self.head_dim // 2, 2) / (self.head_dim // 2))
        turns = torch.cat([(order // self.side)[:, None] * rates, (order % self.side)[:, None] * rates], -1).repeat(
            1, 2
        )
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("places", squares.argsort(), persistent=False)
        self.register_buffer("cos", turns.cos()[:, None], persistent=False)
        self.register_buffer("sin", turns.sin()[:, None], persistent=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(batch, SIDE, SIDE, 3) as the image processor scales them -> (batch, SQUARES ** 2, width), row by row."""
        visual, batch = self.visual, len(pixels)
        patches = pixels.view(batch, self.side, self.patch, self.side, self.patch, 3).permute(0, 1, 3, 5, 2, 4)
        patches = patches.reshape(batch, self.side**2, -1)[:, self.order]
        kernel = visual.patch_embed.proj.weight.sum(2).flatten(1)  # an image is a video of the same two frames
        hidden = nn.functional.linear(patches.to(kernel.dtype), kernel)
        for number, block in enumerate(visual.blocks):
            windows = 1 if number in self.full else self.windows
            hidden = hidden + self._attend(block.attn, block.norm1(hidden), windows)
            hidden = hidden + block.mlp(block.norm2(hidden))
        merged = visual.merger.ln_q(hidden).reshape(batch, SQUARES**2, -1)
        return visual.merger.mlp(merged)[:, self.places]

    def _attend(self, attention: Any, hidden: torch.Tensor, windows: int) -> torch.Tensor:
        batch, length, width = hidden.shape
        query, key, value = attention.qkv(hidden).view(batch, length, 3, self.heads, self.head_dim).unbind(2)
        query, key = self._turned(query), self._turned(key)
        query, key, value = (
            part.reshape(batch * windows, -1, self.heads, self.head_dim).transpose(1, 2) for part in (query, key, value)
        )
        met = (query @ key.transpose(2, 3) * self.head_dim**-0.5).softmax(-1) @ value
        return attention.proj(met.transpose(1, 2).reshape(batch, length, width))

    def _turned(self, part: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        cos, sin = self.cos.to(part.dtype), self.sin.to(part.dtype)
        return part * cos + torch.cat([-part[..., half:], part[..., :half]], -1) * sin


def scaled(images: np.ndarray | torch.Tensor, rng: np.random.Generator | None = None) -> torch.Tensor:
    """uint8 images as a nano processor scales them (white is 0, black -3); with `rng`, fainter or inverted at times."""
    pixels = scaled_patches(torch.as_tensor(images))
    if rng is None:
        return pixels
    if rng.random() < 0.5:
        faint = torch.from_numpy(rng.uniform(0.55, 1, (len(images), 1, 1, 1)).astype(np.float32))
        pixels = pixels * faint.to(pixels.device)
    return -3 - pixels if rng.random() < 0.15 else pixels


class WindowLessons(nn.Module):
    """A tower asked for the cells of windows, a batch at a time: alone (`train_seeing`) or beside a language model.

    held_to: the tower before the lessons. What this one says of a window is then to stay near what that one said, so
    that a language model that has learned to read the one can read the other:

        loss = cells + hold * |t - t'|^2 / |t' - mean t'|^2,    t, t' the tokens of the two.

    resident: all windows are kept where the tower is, 2.4 gigabytes of them: a GPU would wait for a disk.
    """

    def __init__(
        self,
        visual: Any,
        windows: WindowFiles,
        batch_size: int = 16,
        *,
        held_to: Any = None,
        hold: float = 1.0,
        seed: int = 0,
        compiled: bool = True,
        resident: bool = False,
    ) -> None:
        super().__init__()
        self.head = CellHead(visual.config.out_hidden_size)
        self.windows, self.batch_size, self.hold, self.seed = windows, batch_size, hold, seed
        self._run: dict[str, Any] = {"tower": StillTower(visual), "head": self.head}  # in a dict: no parts of this one
        if held_to is not None:
            self._run["earlier"] = StillTower(held_to)
        if compiled and shutil.which("g++"):
            self._run = {name: torch.compile(part, dynamic=False) for name, part in self._run.items()}
        self._rng = np.random.default_rng(seed)
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None
        self.resident = resident
        shares = np.minimum(windows.letters, MOST_LETTERS) + 12.0
        self._shares = shares / shares.sum()

    def _apply(self, fn: Any, recurse: bool = True) -> WindowLessons:
        for part in self._run.values():
            part._apply(fn, recurse)  # what a tower's turns and orders are kept in moves with the head
        return super()._apply(fn, recurse)

    def start(self, step: int) -> None:
        """Draw from here on what a run that has taken so many steps would draw, in this process."""
        self._rng = np.random.default_rng([self.seed, step, replicas.rank()])

    def ask(self) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of the next batch; and the share of its cells told right, and of the tokens' variance kept."""
        pixels, targets = self._drawn()
        tokens = self._run["tower"](pixels)
        loss, right = cell_loss(self._run["head"](tokens), targets)
        figures = {"cells": right}
        if "earlier" in self._run:
            with torch.no_grad():
                before = self._run["earlier"](pixels)
            moved = (tokens - before).float().square().mean() / before.float().flatten(0, 1).var(0).mean()
            figures["kept"] = 1 - moved.item()
            loss = loss + self.hold * moved
        return loss, figures

    def acquaint(self, steps: int = 150, rate: float = 5e-3) -> None:
        """Teach the head alone, alike in all processes: a tower that knows letters is not to learn from its noise."""
        optimiser = torch.optim.Adam(self.head.parameters(), rate)
        for _ in range(steps):
            pixels, targets = self._drawn()
            with torch.no_grad():
                tokens = self._run["tower"](pixels)
            optimiser.zero_grad()
            cell_loss(self.head(tokens), targets)[0].backward()
            optimiser.step()
        replicas.average([parameter.data for parameter in self.head.parameters()])

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch of windows as a tower takes them, and what their cells show."""
        numbers = self._rng.choice(len(self.windows), self.batch_size, p=self._shares)
        images, targets = (
            self._resident(numbers) if self.resident else map(torch.from_numpy, self.windows.pick(numbers))
        )
        device = self.head.name.weight.device
        return scaled(images.to(device), self._rng), targets.to(device)

    def _resident(self, numbers: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets of these windows, of all of them where the tower is."""
        device = self.head.name.weight.device
        if self._kept is None or self._kept[0].device != device:
            parts = (self.windows.images, self.windows.targets)
            images, targets = (torch.from_numpy(np.concatenate(part)).to(device) for part in parts)
            self._kept = images, targets
        picked = torch.from_numpy(numbers).to(device)
        return self._kept[0][picked], self._kept[1][picked]


def train_seeing(
    visual: Any,
    lessons: WindowLessons,
    folder: Path,
    schedule: Schedule,
) -> None:
    """Train a tower in place, in its number format; state and log under `folder`, resumable.

    Of several processes (`replicas`) each has windows of its own; the first one's log and state are kept.
    """
    training = Training(folder, {"visual": visual, "head": lessons.head}, schedule)
    lessons.start(training.step)
    for _ in training:
        loss, figures = lessons.ask()
        loss.backward()
        training.tell(loss=loss.item())
        training.blend(**figures)


def train_from_nothing(visual: Any, windows: WindowFiles, folder: Path, schedule: Schedule, seed: int = 0) -> None:
    """`train_seeing` of a tower that knows nothing yet."""
    torch.manual_seed(seed)
    lessons = WindowLessons(visual, windows, seed=seed)
    for part in (visual, lessons):
        to_training_form(part)
    train_seeing(visual, lessons, folder, schedule)


def train_held(
    visual: Any,
    windows: WindowFiles,
    folder: Path,
    schedule: Schedule,
    seed: int = 0,
    *,
    reader: Any = None,
    head: dict[str, torch.Tensor] | None = None,
) -> None:
    """`train_seeing` of a tower that is held to what it says before.

    reader: a tower that reads better, with whose weights it begins; it then has to learn to say what this one said.
    head: weights of a `CellHead` to begin with.
    """
    torch.manual_seed(seed)
    earlier = deepcopy(visual).requires_grad_(False)
    lessons = WindowLessons(visual, windows, held_to=earlier, seed=seed)
    if reader is not None:
        visual.load_state_dict(reader.state_dict())
    if head is not None:
        lessons.head.load_state_dict(head)
    for part in (visual, earlier, lessons):
        to_training_form(part)
    train_seeing(visual, lessons, folder, schedule)
