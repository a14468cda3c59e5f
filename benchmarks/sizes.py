"""What size and which patches a nano vision-language model should have: what it reads for what it costs, on this CPU.

    python benchmarks/sizes.py [--minutes 8] [--work data/runs/sizes] [--out results/sizes]

Every candidate is trained from nothing (dense glyph supervision on scribbles, as the shipped towers began) for the same
wall-clock minutes, seed and learning rates, one after the other; its language model takes no part in that. Then the
letters of windows on development pages, which no stage sees, are asked of its vision tower: the share that is right, a
letter's place being told. Seconds are of the whole model in bfloat16 or float32, whichever this CPU multiplies: seeing
a page of 224 squares, and a turn, which is that page, 300 tokens of text and 32 written ones. A killed run goes on.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tables import bracketed, tell
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.attention import use_block_attention
from vrag_nb.evaluation.metrics import Interval
from vrag_nb.nano.deck_tasks import DeckPool, DeckTasks
from vrag_nb.nano.glyphs import letter_targets
from vrag_nb.nano.model import FACTOR, NanoSize, build_nano_vlm, build_processor
from vrag_nb.nano.optimisation import Schedule, to_training_form
from vrag_nb.nano.plan import Recipe, corpus_deck, earlier_state, split_questions, tokenizer
from vrag_nb.nano.reading import Drawing, Reader, train_reading
from vrag_nb.plotting import figures

CANDIDATES = {
    "small": NanoSize(192, 6, 3, 128, 4, 4),
    "shipped": NanoSize(),
    "medium": NanoSize(320, 6, 5, 256, 4, 8),
    "large": NanoSize(448, 8, 7, 384, 6, 12),
    "patches of 28": NanoSize(vision_width=384, vision_heads=12, patch=28),
    "patches of 7": NanoSize(vision_width=96, vision_heads=3, patch=7),
}
HEAD = [
    "size", "parameters, M", "of these vision", "steps", "letters right [95%]",
    "seeing a page, s", "a turn, s", "letters right a second of a turn",
]  # fmt: skip
WINDOWS, SQUARES, TEXT, WRITTEN = 96, (14, 16), 300, 32


@dataclass(frozen=True)
class Cost:
    """Seconds, medians."""

    page: float
    turn: float


def development_windows(corpus: Path, seed: int) -> list[Drawing]:
    """What an agent might look at on development decks, and the letters there; the same for every candidate."""
    recipe = Recipe(corpus=corpus)
    decks = len(split_questions(recipe, "dev"))
    tasks = DeckTasks(DeckPool(partial(corpus_deck, recipe, split="dev"), size=decks))
    rng = random.Random(seed)
    return [tasks.glyphs(rng, 1.0) for _ in range(WINDOWS)]


@torch.inference_mode()
def letters_right(
    model: Qwen2_5_VLForConditionalGeneration, size: NanoSize, state: dict, windows: list[Drawing]
) -> str:
    """The share of letters told right, with a bootstrap interval over windows."""
    reader, images = Reader(model), build_processor(tokenizer(), patch=size.patch).image_processor
    reader.visual.load_state_dict(state["visual"])
    reader.letters.load_state_dict(state["letters"])
    to_training_form(reader)
    right, counts = [], []
    for image, glyphs in windows:
        batch = images(images=[image], do_resize=False, return_tensors="pt")
        tokens = reader.visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        kinds, places = letter_targets(glyphs, image.width // FACTOR, image.height // FACTOR)
        if len(kinds):
            told = reader.letters(tokens[kinds[:, 1]], places).argmax(-1)
            right.append(int((told == kinds[:, 0]).sum()))
            counts.append(len(kinds))
    drawn = np.random.default_rng(0).integers(0, len(counts), (2000, len(counts)))
    low, high = np.quantile(np.array(right)[drawn].sum(1) / np.array(counts)[drawn].sum(1), (0.025, 0.975))
    return bracketed(Interval(value=sum(right) / sum(counts), low=low, high=high, n=len(counts)))


def median_seconds(work: Callable[[], object], repeat: int = 7) -> float:
    work()
    found = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return float(np.median(found))


@torch.inference_mode()
def cost(model: Any, size: NanoSize) -> Cost:
    """Of seeing a page and of a turn about it; what is read and written does not matter to them."""
    to_training_form(model)
    use_block_attention(model.model.language_model)
    rows, columns = SQUARES
    grid = torch.tensor([[1, rows * FACTOR // size.patch, columns * FACTOR // size.patch]])
    dtype = next(model.parameters()).dtype
    patches = torch.zeros(int(grid.prod()), 3 * 2 * size.patch**2, dtype=dtype)
    image, start = model.config.image_token_id, model.config.vision_start_token_id
    ids = torch.tensor([[start, *[image] * (rows * columns), *range(20, 20 + TEXT)]])

    def turn() -> object:
        return model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == image).int(),
            pixel_values=patches,
            image_grid_thw=grid,
            min_new_tokens=WRITTEN,
            max_new_tokens=WRITTEN,
            do_sample=False,
        )

    return Cost(median_seconds(lambda: model.model.visual(patches, grid_thw=grid)), median_seconds(turn))


def measure(name: str, size: NanoSize, minutes: float, work: Path, windows: list[Drawing]) -> list[str]:
    """Train a candidate, unless it has been, and measure it: a row of the table."""
    model = build_nano_vlm(tokenizer(), size)
    sizes = [sum(weights.numel() for weights in part.parameters()) / 1e6 for part in (model, model.model.visual)]
    images = build_processor(tokenizer(), patch=size.patch).image_processor
    schedule = Schedule(60 * minutes, muon_lr=6e-3, adamw_lr=2e-3, save_every=200)
    train_reading(model, images, _folder(work, name), schedule)
    state = earlier_state(_folder(work, name))
    read = letters_right(model, size, state, windows)
    spent = cost(model.eval(), size)
    told = [f"{sizes[0]:.1f}", f"{sizes[1]:.1f}", str(state["step"]), read, f"{spent.page:.3f}", f"{spent.turn:.2f}"]
    return [name, *told, f"{float(read.split()[0]) / spent.turn:.2f}"]


def draw(work: Path, names: list[str]) -> figures.Picture:
    """The running share of letters right in training, by steps and by minutes; it falls where drawings grow harder."""
    figure = figures.new_figure(9.6, 3.4)
    logs = {name: [json.loads(line) for line in _log(work, name).read_text().splitlines()] for name in names}
    for place, (x, unit) in enumerate([("step", 1), ("seconds", 60)]):
        axes = figures.axes_at(figure, 0.6 + 4.2 * place, 0.5, 3.4, 2.2)
        title, label = ("By steps", "step") if x == "step" else ("By minutes", "minutes")
        figures.chart(axes, title, x=label, y="share of letters right, running")
        figures.share_ticks(axes.yaxis)
        for colour, (name, rows) in zip(figures.SERIES, logs.items(), strict=False):
            axes.plot([row[x] / unit for row in rows], [row["letters"] for row in rows], color=colour, label=name)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    return figure


def _log(work: Path, name: str) -> Path:
    return _folder(work, name) / "log.jsonl"


def _folder(work: Path, name: str) -> Path:
    return work / name.replace(" ", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="of training each")
    parser.add_argument("--sizes", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--work", type=Path, default=Path("data/runs/sizes"), help="checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for sizes.md and sizes.png")
    options = parser.parse_args()
    options.work = options.work / f"{options.minutes:g}-minutes"  # a candidate trained for longer is another one
    torch.set_num_threads(options.threads)
    windows = development_windows(Recipe().corpus, seed=0)
    rows = [measure(name, CANDIDATES[name], options.minutes, options.work, windows) for name in options.sizes]
    letters = sum(len(letter_targets(g, i.width // FACTOR, i.height // FACTOR)[0]) for i, g in windows)
    title = f"{options.minutes:g} minutes of reading each; {letters} letters in {len(windows)} development windows"
    tell(title, HEAD, rows, out=options.out)
    if options.out:
        figures.save(draw(options.work, options.sizes), options.out / "sizes.png")


if __name__ == "__main__":
    main()
