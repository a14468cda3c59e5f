"""The pieces a page is made of. Each draws itself into a box and leaves the facts it shows on its `Sheet`.

A `Fact` is one thing a question can be about: the answer exactly as printed, where it stands, and the region a good
agent would crop to read it (the panel, the footnote's strip, the bullet).

Print sizes follow from how the agent sees a page. The whole page is shown with at most `SHOWN_PIXELS`, so a slide has
0.78 pixels a point and print below 14 pt is lost on a nano model (it reads letters of `READABLE` pixels and more); a
crop is shown with as many pixels, so print in a panel of a third of the slide comes out 1.7 times as large.
`panel_size` picks sizes that are lost on the page and clear in the crop.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.canvas import Box, Canvas
from vrag_nb.documents.decks.charts import Mark
from vrag_nb.documents.decks.statements import Statement
from vrag_nb.documents.decks.themes import Style
from vrag_nb.documents.decks.typeset import LEADING, Lines, draw_line, draw_lines, fitting_size, inset, wrap

SHOWN_PIXELS = 224 * 784  # nano's pixel budget for one image
READABLE = 11.0  # height of the font in shown pixels from which nano can read it


@dataclass(frozen=True)
class Fact:
    """One answer on a page. `mark` and `block` are set for the value of a cell, `asks` for everything else."""

    source_type: str  # text | table | chart | layout
    answer: str
    box: Box
    region: Box
    size: float
    hint: str = ""
    asks: tuple[str, ...] = ()
    mark: Mark | None = None
    block: Block | None = None
    panel: str = ""
    page: int = 0
    page_title: str = ""
    printed: bool = True  # the answer can be read at `box`; False for a colour or a kind of chart

    @property
    def cell(self) -> tuple[Block, Mark]:
        """The block and the mark of a cell. Raises ValueError for a fact that is no cell."""
        if self.block is None or self.mark is None:
            raise ValueError(f"{self.answer!r} on page {self.page} is not the value of a cell")
        return self.block, self.mark


@dataclass
class Sheet:
    """A page being made."""

    canvas: Canvas
    style: Style
    rng: random.Random
    deck: str
    number: int
    title: str = ""
    facts: list[Fact] = field(default_factory=list)
    titles: dict[str, int] = field(default_factory=dict)  # shared by all sheets of a deck: how often a title was used

    def name(self, title: str) -> str:
        """Give the sheet its title, with a part number where the deck has it already."""
        self.titles[title] = self.titles.get(title, 0) + 1
        self.title = title if self.titles[title] == 1 else f"{title}, part {self.titles[title]}"
        return self.title

    def add(self, fact: Fact) -> None:
        self.facts.append(replace(fact, page=self.number, page_title=self.title, region=self.clip(fact.region)))

    def clip(self, box: Box) -> Box:
        """`box` cut to the page."""
        c = self.canvas
        return max(0.0, box[0]), max(0.0, box[1]), min(c.width, box[2]), min(c.height, box[3])


def panel_size(rng: random.Random, box: Box) -> float:
    """A small print size that can be read when `box` is cropped."""
    scale = min(3.0, math.sqrt(SHOWN_PIXELS / ((box[2] - box[0]) * (box[3] - box[1]))))
    lowest = max(7.0, min(10.5, 13.5 / scale))
    return math.ceil(rng.uniform(lowest, min(10.5, lowest + 1.2)) * 2) / 2


def bullets(sheet: Sheet, box: Box, items: list[Statement], valign: str = "middle") -> list[Statement]:
    """As many of `items` as fit, as bullet points; returns those drawn."""
    style, size = sheet.style, sheet.style.bullet_size
    indent, gap = size * 1.15, size * 0.75
    width = box[2] - box[0] - indent
    shown: list[Statement] = []
    heights: list[float] = []
    for item in items:
        lines = wrap(item.text, style.body, size, width)
        height = len(lines) * size * LEADING
        if sum(heights) + height + gap * len(heights) > box[3] - box[1]:
            continue
        if max(style.body.width(line, size) for line in lines) <= width:
            shown.append(item)
            heights.append(height)
    slack = box[3] - box[1] - sum(heights) - gap * max(0, len(heights) - 1)
    gap += min(size, slack / max(1, len(heights) + 1)) if len(heights) > 1 else 0
    used = sum(heights) + gap * max(0, len(heights) - 1)
    y = box[1] + (max(0.0, box[3] - box[1] - used) / 2 if valign == "middle" else 0)
    for item, height in zip(shown, heights, strict=True):
        draw_line(sheet.canvas, box[0], y + size * 0.98, style.family.bullet, style.body, size, style.palette.accent)
        drawn = draw_lines(
            sheet.canvas, (box[0] + indent, y, box[2], y + height), item.text, style.body, size, style.palette.ink
        )
        state(sheet, item, drawn, inset(drawn.box, -indent, -4))
        y += height + gap
    return shown


def state(sheet: Sheet, item: Statement, lines: Lines, region: Box, begin: int = 0, source: str = "text") -> None:
    """Record the fact a drawn statement holds; `begin`: where in the drawn text it begins."""
    spot = lines.part(begin + item.place, len(item.answer)) if item.asks else None
    if spot is not None:
        sheet.add(Fact(source, item.answer, spot, region, lines.size, item.hint, item.asks))


def footnote(sheet: Sheet, box: Box, items: list[Statement]) -> None:
    """A strip of small print across `box`, a rule above it."""
    style = sheet.style
    size = math.floor(sheet.rng.uniform(6.5, 8.5) * 2) / 2
    text, kept = "", []
    for item in items:
        longer = f"{text} {item.text}".strip()
        if len(wrap(longer, style.body, size, box[2] - box[0])) * size * LEADING <= box[3] - box[1] - 4:
            text = longer
            kept.append((item, len(text) - len(item.text)))
    if not kept:
        return
    sheet.canvas.polyline([(box[0], box[1]), (box[0] + 60, box[1])], style.palette.edge, 0.8)
    lines = draw_lines(sheet.canvas, (box[0], box[1] + 4, box[2], box[3]), text, style.body, size, style.palette.muted)
    for item, begin in kept:
        state(sheet, item, lines, inset(lines.box, -6, -4), begin)


def paragraph(sheet: Sheet, box: Box, items: Sequence[Statement | str], size: float) -> float:
    """Running text made of `items`, as many as fit into `box`; returns the y where it ends."""
    style, text, kept = sheet.style, "", []
    for item in items:
        words = item if isinstance(item, str) else item.text
        longer = f"{text} {words}".strip()
        if len(wrap(longer, style.body, size, box[2] - box[0])) * size * LEADING <= box[3] - box[1]:
            text = longer
            kept.append((item, len(text) - len(words)))
    if not kept:
        return box[3]
    drawn = draw_lines(sheet.canvas, box, text, style.body, size, style.palette.ink)
    for item, begin in kept:
        if not isinstance(item, str):
            state(sheet, item, drawn, inset(drawn.box, -5), begin)
    return drawn.box[3]


def card(sheet: Sheet, box: Box, block: Block, row: int, column: int) -> bool:
    """A key figure: the value large, what it is below. False (and nothing drawn) when the words do not fit."""
    style, canvas = sheet.style, sheet.canvas
    value, words = block.table.show(row, column), block.table.say(row, column)
    words = words[0].upper() + words[1:]
    inner = inset(box, 10, 8)
    size = min(34.0, 34.0 * (inner[2] - inner[0]) / max(style.heading_bold.width(value, 34.0), 1))
    label = fitting_size(words, style.body, inner[2] - inner[0], inner[3] - inner[1] - size * 1.35, 14, 12)
    if label is None or size < 16:
        return False
    canvas.rect(box, fill=style.palette.panel, radius=max(style.radius, 3))
    canvas.rect((box[0], box[1], box[0] + 4, box[3]), fill=style.palette.accent)
    spot = draw_line(canvas, inner[0] + 2, inner[1] + size, value, style.heading_bold, size, style.palette.accent)
    draw_lines(
        canvas, (inner[0] + 2, inner[1] + size * 1.35, inner[2], inner[3]), words, style.body, label, style.palette.ink
    )
    hint = block.hint(row, column)
    sheet.add(
        Fact("text", value, spot, inset(box, -2), min(size, label), hint, (), Mark(row, column, value, spot), block)
    )
    return True
