"""Pages of prose: what reports, papers and handouts look like to a retriever that is to read real documents.

Decks have few words and many figures; real pages have many words, in one to three columns of small print. The words are
those of the manual that comes with Python, so that every machine draws the same pages, with numbers and words that mean
nothing strewn in, so that no page can be recognised by its subject alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from pydoc_data.topics import topics

from PIL import Image, ImageDraw, ImageFont

from vrag_nb.agent.geometry import Budget
from vrag_nb.nano.deck_tasks import DrawnPage, words_of
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.scribbles import font_sources, random_colours, random_number, random_word, sized_font

DRAWN_AT = 2  # pages are drawn so many times larger and scaled down, as rendered pages are
SHAPES = [(595, 842), (612, 792), (842, 595), (960, 540), (960, 720)]  # A4, letter, and sheets that lie


@dataclass(frozen=True)
class Style:
    """How a document is set: shown pixels of its body type, and what is the same on all its pages."""

    shape: tuple[int, int]
    body: float
    columns: int
    fonts: tuple[int, int]  # of the body and of headings
    colours: tuple[tuple[int, ...], tuple[int, ...]]


@cache
def manual() -> list[str]:
    """The manual, word by word, without its markup."""
    return [bare for word in " ".join(topics.values()).split() if (bare := word.strip("*`|=-~^#\\")) and len(bare) < 24]


def running_words(rng: random.Random) -> Iterator[str]:
    """The manual from some place on, one word in eight replaced by a number or another word."""
    at = rng.randrange(len(manual()))
    while True:
        kind = rng.random()
        yield random_number(rng) if kind < 0.05 else random_word(rng) if kind < 0.12 else manual()[at % len(manual())]
        at += 1


def random_style(rng: random.Random, budget: Budget) -> Style:
    shape = rng.choice(SHAPES)
    standing = shape[0] < shape[1]
    body = rng.uniform(8.5, 13) if standing or rng.random() < 0.4 else rng.uniform(13, 24)
    columns = rng.choice([1, 1, 2, 2, 3] if body < 11 else [1, 2])
    fonts = (rng.randrange(len(font_sources())), rng.randrange(len(font_sources())))
    return Style(budget.size(*shape), body, columns, fonts, random_colours(rng, rng.random()))


def drawn_document(rng: random.Random, pages: int, budget: Budget) -> list[DrawnPage]:
    """Pages of one document: one style, one text that runs on."""
    style, words = random_style(rng, budget), running_words(rng)
    return [draw_page(rng, style, words) for _ in range(pages)]


def draw_page(rng: random.Random, style: Style, words: Iterator[str]) -> DrawnPage:
    """A page at the size it is shown, its characters and its words."""
    width, height = style.shape
    paper, ink = style.colours
    image = Image.new("RGB", (width * DRAWN_AT, height * DRAWN_AT), paper)
    canvas = _Canvas(ImageDraw.Draw(image), ink, [])
    margin = rng.uniform(0.05, 0.12) * width
    top = rng.uniform(0.04, 0.1) * height
    if rng.random() < 0.7:
        top = canvas.heading(rng, style, words, (margin, top, width - margin), rng.uniform(1.5, 2.6)) + style.body
    gap = rng.uniform(1, 2.5) * style.body
    column = (width - 2 * margin - gap * (style.columns - 1)) / style.columns
    for number in range(style.columns):
        left = margin + number * (column + gap)
        bottom = height * rng.uniform(0.6, 0.96)
        canvas.column(rng, style, words, (left, top, left + column, bottom))
    shown = image.resize(style.shape, Image.Resampling.BICUBIC)
    return DrawnPage(shown, canvas.glyphs, words_of(canvas.glyphs))


@dataclass
class _Canvas:
    draw: ImageDraw.ImageDraw
    ink: tuple[int, ...]
    glyphs: list[Glyph]
    line: int = 0

    def heading(
        self, rng: random.Random, style: Style, words: Iterator[str], place: tuple[float, float, float], scale: float
    ) -> float:
        """A line of larger print at (left, top) up to right. Returns its foot."""
        left, top, right = place
        size = min(36.0, style.body * scale)
        text = " ".join(next(words) for _ in range(rng.randint(2, 7)))
        self._set(text.title() if rng.random() < 0.3 else text, style.fonts[1], size, left, top, right)
        return top + size * 1.3

    def column(
        self, rng: random.Random, style: Style, words: Iterator[str], box: tuple[float, float, float, float]
    ) -> None:
        """Paragraphs, subheadings and lists from the top of a box to its foot."""
        left, top, right, bottom = box
        leading = style.body * rng.uniform(1.15, 1.5)
        while top + 2 * leading < bottom:
            if rng.random() < 0.25:
                top = self.heading(rng, style, words, (left, top, right), rng.uniform(1.1, 1.5))
            indent, bullet = (style.body, "• ") if rng.random() < 0.3 else (0.0, "")
            for number in range(rng.randint(1, 9)):
                if top + leading > bottom:
                    break
                font = sized_font(style.fonts[0], round(style.body * DRAWN_AT))
                text = _filled(words, font, (right - left - indent) * DRAWN_AT, bullet if number == 0 else "")
                self._set(text, style.fonts[0], style.body, left + indent, top, right)
                top += leading
            top += leading * rng.uniform(0.2, 0.9)

    def _set(self, text: str, font_index: int, size: float, left: float, top: float, right: float) -> None:
        font = sized_font(font_index, round(size * DRAWN_AT))
        while text and font.getlength(text) > (right - left) * DRAWN_AT:
            text = text[:-1]
        self.draw.text((left * DRAWN_AT, top * DRAWN_AT), text, font=font, fill=self.ink)
        edges = list(accumulate((advance(font, letter) / DRAWN_AT for letter in text), initial=left))
        middle = top + size * 0.62
        self.glyphs += [
            Glyph(c, (a + b) / 2, middle, self.line) for c, a, b in zip(text, edges, edges[1:], strict=False)
        ]
        self.line += 1


def _filled(words: Iterator[str], font: ImageFont.FreeTypeFont, width: float, start: str) -> str:
    """A line of words about as long as the column is wide; the last may be cut off at its edge."""
    text, length = start, font.getlength(start)
    while length < width:
        word = next(words) + " "
        text, length = text + word, length + sum(advance(font, letter) for letter in word)
    return text.rsplit(" ", 2)[0]


@lru_cache(maxsize=50_000)
def advance(font: ImageFont.FreeTypeFont, letter: str) -> float:
    """How far a letter moves the next one, in pixels; kerning, a fraction of a pixel, is left out."""
    return font.getlength(letter)
