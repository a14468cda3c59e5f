"""Which letters the vision towers of nano models tell, by the height of the print, on decks that no stage sees.

    python benchmarks/letters.py [--models data/models/nano-agent ...] [--split dev] [--out results/letters]

A linear layer is fitted to each tower's tokens on windows of train decks (`vrag_nb.nano.cells`: which letter covers
this cell), the tower left as it is: what it finds is what a language model could read off a token at a glance. Then the
cells at the middles of the letters of another split's pages and crops are asked. Printed: the share told right by the
height of the line in pixels as shown, with a 95% bootstrap interval over windows.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from made_with import digest
from tables import tell
from torch import nn
from tqdm import trange
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.learning.stages import claim
from vrag_nb.nano.cells import ACROSS, COLUMNS, DOWN, READABLE, ROWS, CellHead, as_grid, cell_loss
from vrag_nb.nano.plan import Recipe, corpus_deck, mixed_deck
from vrag_nb.nano.seeing import StillTower, scaled
from vrag_nb.nano.windows import SIDE, SQUARES, WindowFiles, draw_windows

HEIGHTS = ((9, 11), (11, 13), (13, 16), (16, 20), (20, 30), (30, 80))
AT_ONCE = 20


@torch.inference_mode()
def seen(tower: StillTower, windows: WindowFiles) -> torch.Tensor:
    """(windows, squares, width): the tower's tokens of all windows."""
    numbers = np.array_split(np.arange(len(windows)), -(-len(windows) // AT_ONCE))
    return torch.cat([tower(scaled(windows.pick(some)[0])) for some in numbers])


def fitted(tokens: torch.Tensor, targets: torch.Tensor, steps: int, seed: int) -> nn.Module:
    """A cell head on these tokens (n, width) and targets (n, CELLS)."""
    torch.manual_seed(seed)
    spread = nn.BatchNorm1d(tokens.shape[1], affine=False, momentum=None)
    head = CellHead(tokens.shape[1])
    head.norm = nn.Identity()  # type: ignore[assignment]
    spread(tokens)
    spread.eval()
    optimiser = torch.optim.Adam(head.parameters(), 2e-3)
    for step in trange(steps, desc="fitting", unit="step"):
        optimiser.param_groups[0]["lr"] = 2e-3 * min(1.0, 2 * (1 - step / steps))
        rows = torch.randint(0, len(tokens), (512,))
        loss, _ = cell_loss(head(spread(tokens[rows])), targets[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return nn.Sequential(spread, head)


@torch.inference_mode()
def told(head: nn.Module, tokens: torch.Tensor) -> np.ndarray:
    """(windows, rows, columns) of cells: the class told at each."""
    named = [head(window).argmax(-1) for window in tokens]
    return as_grid(torch.stack(named).numpy(), SQUARES, SQUARES)


def shares(grids: np.ndarray, windows: WindowFiles, low: float, high: float) -> tuple[str, int]:
    """The share of letters of a height that are told right, and how many there are."""
    right, counts = [], []
    for grid, letters in zip(grids, windows.boxes, strict=True):
        inside = [
            one for one in letters if low <= one[4] - one[2] < high and min(one[1:3]) >= 0 and max(one[3:]) <= SIDE
        ]
        if inside:
            places = [((one[2] + one[4]) / 2 / DOWN, (one[1] + one[3]) / 2 / ACROSS) for one in inside]
            named = [grid[min(int(y), SQUARES * ROWS - 1), min(int(x), SQUARES * COLUMNS - 1)] for y, x in places]
            right.append(sum(name == one[0] for name, one in zip(named, inside, strict=True)))
            counts.append(len(inside))
    drawn = np.random.default_rng(0).integers(0, len(counts), (2000, len(counts)))
    least, most = np.percentile(np.array(right)[drawn].sum(1) / np.array(counts)[drawn].sum(1), (2.5, 97.5))
    return f"{sum(right) / sum(counts):.3f} [{least:.2f}, {most:.2f}]", sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, nargs="+", default=[Path("data/models/nano-agent")])
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--work", type=Path, default=Path("data/runs/letters"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for letters.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    recipe = Recipe()
    claim(options.work, {"decks": digest(recipe.corpus / "decks.json")})
    lessons = draw_windows(options.work / "train", partial(mixed_deck, recipe), 6, processes=2)
    asked = draw_windows(options.work / options.split, partial(corpus_deck, recipe, split=options.split), 6, printed=0)
    targets = torch.from_numpy(lessons.pick(range(len(lessons)))[1]).flatten(0, 1)
    heights = {"all": (READABLE, 200.0), **{f"{low} to {high} px": (low, high) for low, high in HEIGHTS}}
    rows, counts = [], dict.fromkeys(heights, 0)
    for folder in options.models:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        tower = StillTower(model.model.visual)
        reader = fitted(seen(tower, lessons).flatten(0, 1), targets, options.steps, recipe.seed)
        grids = told(reader, seen(tower, asked))
        row = [folder.name]
        for name, (low, high) in heights.items():
            share, counts[name] = shares(grids, asked, low, high)
            row.append(share)
        rows.append(row)
    head = ["model", *(f"{name} ({count})" for name, count in counts.items())]
    tell(f"Letters told right by a linear layer on the tower, {options.split} decks", head, rows, out=options.out)


if __name__ == "__main__":
    main()
