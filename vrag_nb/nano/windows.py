"""Windows: what the vision tower is shown when it learns to read, all of one size, drawn once and kept on disk.

A window is SQUARES x SQUARES squares of a page or a crop of one as the agent is shown it, around a letter, or of lines
of print in any font and size. Windows of one size let the tower run compiled and unpadded (`seeing`), and what is on
disk costs nothing to draw again: training never waits for it.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pymupdf
from PIL import Image, ImageDraw

from vrag_nb.agent.geometry import Box, jittered
from vrag_nb.nano.cells import CELLS, Letter, cell_targets
from vrag_nb.nano.deck_tasks import BUDGET, DPI, MakeDeck, repainted
from vrag_nb.nano.glyphs import CLASS_OF, UNKNOWN
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.scribbles import font_sources, random_colours, random_line, sized_font
from vrag_nb.records import Question

SQUARES = 8  # a side
SIDE = SQUARES * FACTOR  # pixels
FROM_DECK, PRINTED = 60, 35  # windows of a file: of one deck, and of lines of print
PRINT = (9.5, 34.0)  # pixels: the sizes of such print, smaller ones more often
Window = tuple[Image.Image, list[Letter]]


@dataclass(frozen=True)
class LetteredPage:
    """A page image at DPI and the letters on it, in page pixels."""

    image: Image.Image
    letters: list[Letter]

    @classmethod
    def render(cls, page: pymupdf.Page) -> LetteredPage:
        scale = DPI / 72
        pixmap = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), alpha=False)
        image = Image.frombytes("RGB", (pixmap.width, pixmap.height), pixmap.samples)
        lines = (line for block in page.get_text("rawdict", flags=0)["blocks"] for line in block.get("lines", ()))
        characters = (char for line in lines for span in line["spans"] for char in span["chars"])
        letters = [
            Letter(CLASS_OF.get(char["c"], UNKNOWN), *(scale * value for value in char["bbox"]))
            for char in characters
            if not char["c"].isspace()
        ]
        return cls(image, letters)

    def window(self, rng: random.Random, box: Box) -> Window | None:
        """A window on the crop `box` (page pixels) as it is shown, around one of its letters.

        None where the crop has no letter, or the page ends before the window does.
        """
        x0, y0, x1, y1 = (round(value) for value in box)
        inside = [one for one in self.letters if x0 <= one.x0 and one.x1 <= x1 and y0 <= one.y0 and one.y1 <= y1]
        shown = BUDGET.size(x1 - x0, y1 - y0)
        across, down = shown[0] / (x1 - x0), shown[1] / (y1 - y0)
        width, height = SIDE / across, SIDE / down
        if not inside or width > self.image.width or height > self.image.height:
            return None
        around = rng.choice(inside)
        left = (around.x0 + around.x1) / 2 - rng.uniform(0.1, 0.9) * width
        top = (around.y0 + around.y1) / 2 - rng.uniform(0.1, 0.9) * height
        left = min(max(0.0, left), self.image.width - width)
        top = min(max(0.0, top), self.image.height - height)
        image = self.image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        letters = [
            Letter(kind, (a - left) * across, (b - top) * down, (c - left) * across, (d - top) * down)
            for kind, a, b, c, d in self.letters
        ]
        return image, [one for one in letters if one.x1 > 0 and one.y1 > 0 and one.x0 < SIDE and one.y0 < SIDE]


def deck_windows(rng: random.Random, pdf: bytes, questions: Sequence[Question], count: int) -> Iterator[Window]:
    """Up to `count` windows of a deck: mostly regions of questions, jittered; else pages and any parts of them."""
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        pages = [LetteredPage.render(page) for page in document]
    for _ in range(3 * count):
        page, box = _looked_at(rng, pages, questions)
        found = page.window(rng, box)
        if found:
            yield found
            count -= 1
        if not count:
            return


def _looked_at(
    rng: random.Random, pages: Sequence[LetteredPage], questions: Sequence[Question]
) -> tuple[LetteredPage, Box]:
    kind, facts = rng.random(), rng.choice(questions).needed_facts
    if facts and kind < 0.7:
        page = pages[facts[0]["page"] - 1]
        width, height = page.image.size
        x0, y0, x1, y1 = facts[0]["box"]
        region = (x0 * width, y0 * height, x1 * width, y1 * height)
        return page, jittered(rng, region, page.image.size, rng.uniform(0, 0.4))
    page = rng.choice(pages)
    width, height = page.image.size
    if kind < 0.85:
        return page, (0, 0, width, height)
    across, down = rng.uniform(0.25, 0.8), rng.uniform(0.12, 0.8)
    x, y = rng.uniform(0, 1 - across) * width, rng.uniform(0, 1 - down) * height
    return page, (x, y, x + across * width, y + down * height)


def printed_window(rng: random.Random) -> Window:
    """Lines of words and numbers, their font and size changing now and then, drawn larger and scaled down."""
    paper, ink = random_colours(rng, 0.7)
    scale = rng.choice([1.0, 1.5, 2.0])
    image = Image.new("RGB", (round(SIDE * scale), round(SIDE * scale)), paper)
    draw = ImageDraw.Draw(image)
    letters: list[Letter] = []
    face, size, y = _face(rng), _print(rng), rng.uniform(-8, 4)
    while y < SIDE:
        face = _face(rng) if rng.random() < 0.15 else face
        size = _print(rng) if rng.random() < 0.15 else size
        font = sized_font(face, max(8, round(size * scale)))
        line, x = sum(font.getmetrics()) / scale, rng.uniform(-10, 30)
        for word in random_line(rng, 1.0, 30).split():
            if x > SIDE:
                break
            edges = [x + font.getlength(word[:count]) / scale for count in range(len(word) + 1)]
            draw.text((x * scale, y * scale), word, font=font, fill=ink)
            letters += [
                Letter(CLASS_OF.get(letter, UNKNOWN), left, y, right, y + line)
                for letter, left, right in zip(word, edges, edges[1:], strict=False)
            ]
            x = edges[-1] + size * (0.28 if rng.random() < 0.85 else rng.uniform(0.5, 4))
        y += line * rng.uniform(0.95, 1.6)
    return image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), letters


def _face(rng: random.Random) -> int:
    return rng.randrange(len(font_sources()))


def _print(rng: random.Random) -> float:
    return math.exp(rng.uniform(*map(math.log, PRINT)))


# ------------------------------------------------------------------------------------------------------------- on disk


@dataclass(frozen=True)
class WindowFiles:
    """Windows on disk, file by file: images (n, SIDE, SIDE, 3) and targets (n, SQUARES ** 2, CELLS), uint8.

    boxes: per window its letters, (letters, 5) float32, as in `cells.Letter`.
    """

    images: list[np.ndarray]
    targets: list[np.ndarray]
    boxes: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def letters(self) -> np.ndarray:
        """How many letters each window shows."""
        return np.array([len(one) for one in self.boxes])

    def pick(self, numbers: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and targets of these windows."""
        ends = np.cumsum([len(images) for images in self.images])
        files = np.searchsorted(ends, numbers, side="right")
        places = [(file, number - ends[file]) for file, number in zip(files, numbers, strict=True)]
        found = [(self.images[file][place], self.targets[file][place]) for file, place in places]
        images, targets = zip(*found, strict=True)
        return np.stack(images), np.stack(targets)


def draw_windows(
    folder: Path, make_deck: MakeDeck, files: int, *, printed: int = PRINTED, seed: int = 0, processes: int = 1
) -> WindowFiles:
    """Draw `files` files of windows into a folder, those that are not there yet, and open them.

    make_deck: makes a deck from a seed, as for `deck_tasks.DeckPool`. printed: windows of lines of print in each file.
    A file is whole or not there, so a killed run goes on where it was.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    draw = partial(_draw_file, folder, make_deck, printed, seed)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            list(pool.map(draw, range(files)))
    else:
        for number in range(files):
            draw(number)
    names = [folder / f"{number:05}" for number in range(files)]
    images = [np.load(f"{name}.images.npy", mmap_mode="r") for name in names]
    targets = [np.load(f"{name}.targets.npy", mmap_mode="r") for name in names]
    boxes = [one for name in names for one in _split(np.load(f"{name}.letters.npy"))]
    return WindowFiles(images, targets, boxes)


def _split(letters: np.ndarray) -> list[np.ndarray]:
    """Rows of (window, kind, box) as the letters of each window; every window has one."""
    return np.split(letters[:, 1:], np.flatnonzero(np.diff(letters[:, 0])) + 1)


def _draw_file(folder: Path, make_deck: MakeDeck, printed: int, seed: int, number: int) -> None:
    name = folder / f"{number:05}"
    if Path(f"{name}.targets.npy").is_file():  # written last
        return
    rng = random.Random(f"{seed}/{number}")
    windows: list[Window] = []
    while len(windows) < FROM_DECK:
        windows += deck_windows(rng, *make_deck(rng.randrange(2**31)), FROM_DECK - len(windows))
    windows += [printed_window(rng) for _ in range(printed)]
    windows = [window for window in windows if window[1]]
    images = [repainted(rng, image) if rng.random() < 0.2 else image for image, _ in windows]
    _save(Path(f"{name}.images.npy"), np.stack([np.asarray(image.convert("RGB")) for image in images]))
    rows = [(number, *one) for number, (_, letters) in enumerate(windows) for one in letters]
    _save(Path(f"{name}.letters.npy"), np.array(rows, dtype=np.float32))
    targets = np.stack([cell_targets(letters, SQUARES, SQUARES) for _, letters in windows])
    assert targets.shape[1:] == (SQUARES**2, CELLS)
    _save(Path(f"{name}.targets.npy"), targets)


def _save(path: Path, values: np.ndarray) -> None:
    partial_path = path.with_suffix(".partial.npy")
    np.save(partial_path, values)
    os.replace(partial_path, path)
