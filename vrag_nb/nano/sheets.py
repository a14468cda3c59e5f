"""Sheets of scribbles: large images of print in every size, font and colour, of which windows are shown to a tower.

Where a letter falls on the grid of squares, and how large, is most of what a vision tower must not care about. A sheet
is drawn once and gives many windows, each at another place and scale, so that drawing does not starve training.
"""

from __future__ import annotations

import io
import math
import random

from PIL import Image, ImageDraw

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.deck_tasks import DrawnPage, repainted
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.reading import Drawing
from vrag_nb.nano.scribbles import font_sources, random_colours, random_line, sized_font

SIDE = (1500, 900)  # pixels of a sheet
PRINT = (15.0, 90.0)  # pixels: the sizes of print on a sheet
SHOWN = (9.0, 80.0)  # pixels: the sizes in which print is shown
SHAPES = ((8, 6), (12, 4), (6, 8), (10, 5), (14, 4))  # columns and rows of a window


class SheetPool:
    """A rotating pool of sheets; `draw` gives a window on one of them."""

    def __init__(self, size: int = 24, draws_per_sheet: int = 100) -> None:
        self.size, self.draws_per_sheet = size, draws_per_sheet
        self.sheets: list[DrawnPage] = []
        self.draws = 0

    def draw(self, rng: random.Random, difficulty: float) -> Drawing:
        """A window on a sheet, around a letter that is shown in a size of SHOWN; one in three in other colours."""
        self.draws += 1
        if len(self.sheets) < self.size:
            self.sheets.append(drawn_sheet(rng, difficulty))
        elif self.draws % self.draws_per_sheet == 0:
            self.sheets[rng.randrange(self.size)] = drawn_sheet(rng, difficulty)
        image, glyphs = window(rng, rng.choice(self.sheets))
        return (repainted(rng, image) if rng.random() < difficulty / 3 else image), glyphs


def drawn_sheet(rng: random.Random, difficulty: float) -> DrawnPage:
    """A sheet of panels, each with paper, ink, font and size of its own. A word's box is as high as its print."""
    image = Image.new("RGB", SIDE, (255, 255, 255))
    glyphs: list[Glyph] = []
    words: list[tuple[str, Box]] = []
    for panel in panels(rng, (0, 0, *SIDE), depth=3):
        _fill(rng, difficulty, image, panel, glyphs, words)
    return DrawnPage(image, glyphs, words)


def panels(rng: random.Random, box: tuple[int, int, int, int], depth: int) -> list[tuple[int, int, int, int]]:
    """A rectangle cut at random, `depth` times, into up to 2 ** depth of them."""
    x0, y0, x1, y1 = box
    if depth == 0 or rng.random() < 0.15 or min(x1 - x0, y1 - y0) < 200:
        return [box]
    share = rng.uniform(0.3, 0.7)
    if x1 - x0 > y1 - y0:
        cut = round(x0 + share * (x1 - x0))
        parts = ((x0, y0, cut, y1), (cut, y0, x1, y1))
    else:
        cut = round(y0 + share * (y1 - y0))
        parts = ((x0, y0, x1, cut), (x0, cut, x1, y1))
    return [panel for part in parts for panel in panels(rng, part, depth - 1)]


def _fill(
    rng: random.Random,
    difficulty: float,
    image: Image.Image,
    panel: tuple[int, int, int, int],
    glyphs: list[Glyph],
    words: list[tuple[str, Box]],
) -> None:
    """Print lines on one panel, with wide gaps here and there as between the columns of a table."""
    paper, ink = random_colours(rng, 0.7 * difficulty)
    x0, y0, x1, y1 = panel
    draw = ImageDraw.Draw(image)
    draw.rectangle(panel, fill=paper)
    size = round(math.exp(rng.uniform(*map(math.log, PRINT))))
    font = sized_font(rng.randrange(max(1, round(len(font_sources()) * difficulty))), size)
    y, gap = y0 + rng.uniform(0, size), rng.choice([0.0, 0.0, 0.3])
    while y + size * 1.25 < y1:
        x = x0 + rng.uniform(2, size)
        for word in random_line(rng, difficulty, 40).split():
            end = x + font.getlength(word)
            if end > x1:
                break
            draw.text((x, y), word, font=font, fill=ink)
            edges = [x + font.getlength(word[:count]) for count in range(len(word) + 1)]
            line = round(y) * SIDE[0] + x0  # panels side by side are lines of their own
            glyphs += [
                Glyph(letter, (left + right) / 2, y + 0.62 * size, line)
                for letter, left, right in zip(word, edges, edges[1:], strict=False)
            ]
            words.append((word, (x, y, end, y + size)))
            x = end + size * (rng.uniform(1, 4) if rng.random() < gap else 0.3)
        y += size * rng.uniform(1.15, 1.9)


def window(rng: random.Random, sheet: DrawnPage) -> Drawing:
    """A window around a random word, scaled so that its print is shown in a size of SHOWN, small sizes more often."""
    columns, rows = rng.choice(SHAPES)
    _, (left, top, right, bottom) = rng.choice(sheet.words)
    size = bottom - top
    low, high = max(SHOWN[0], 0.3 * size), min(SHOWN[1], 1.6 * size)
    scale = math.exp(rng.uniform(math.log(low), math.log(max(low, high)))) / size
    width, height = (min(limit, side * FACTOR / scale) for limit, side in zip(SIDE, (columns, rows), strict=True))
    columns, rows = (max(1, round(side * scale / FACTOR)) for side in (width, height))
    x = min(max(0.0, rng.uniform(left, right) - rng.uniform(0.1, 0.9) * width), SIDE[0] - width)
    y = min(max(0.0, rng.uniform(top, bottom) - rng.uniform(0.1, 0.9) * height), SIDE[1] - height)
    shown = (columns * FACTOR, rows * FACTOR)
    image = sheet.image.resize(shown, Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))
    across, down = shown[0] / width, shown[1] / height
    glyphs = [
        Glyph(g.character, (g.x - x) * across, (g.y - y) * down, g.line)
        for g in sheet.glyphs
        if x <= g.x < x + width and y <= g.y < y + height
    ]
    return image, glyphs


def as_jpeg(image: Image.Image, quality: int) -> Image.Image:
    """The image after it was a JPEG file of this quality."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")
