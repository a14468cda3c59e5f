"""Charts as vector drawings with a value label on every mark.

Each function draws `block` into `box` (page points) at label size `size` and returns what it has `Drawn`, or None when
the labels would not fit or would touch each other: the caller then rolls the canvas back and tries another kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.canvas import Box, Canvas, Colour, mix
from vrag_nb.documents.decks.themes import Style
from vrag_nb.documents.decks.typeset import draw_line, wrap


@dataclass(frozen=True)
class Mark:
    """A value as printed: its cell, its text, where it stands. `share`: a percentage of the column's sum."""

    row: int
    column: int
    text: str
    box: Box
    share: bool = False


class Drawn(NamedTuple):
    """A chart's marks, and whether a reader would call it by its kind's name (lollipops are no bars)."""

    marks: list[Mark]
    plain: bool = True


Chart = Callable[[random.Random, Canvas, Style, Box, Block, float], "Drawn | None"]


def _nice_top(value: float) -> float:
    """A round number at or above `value`."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


def value_range(block: Block, zero: bool = True) -> tuple[float, float]:
    values = [block.table.values[r][c] for r in block.rows for c in block.columns]
    low, high = min(values), max(values)
    if zero or low < 0 or low < 0.35 * high:
        return min(0.0, -_nice_top(-low) if low < 0 else 0.0), max(0.0, _nice_top(high))
    pad = (high - low) * 0.15 or abs(high) * 0.1 or 1
    return low - pad, high + pad


def overlaps(box: Box, others: list[Box], gap: float = 0.6) -> bool:
    return any(box[0] < o[2] + gap and o[0] < box[2] + gap and box[1] < o[3] and o[1] < box[3] for o in others)


def legend(canvas: Canvas, style: Style, box: Box, names: list[str], size: float) -> Box | None:
    """A row of swatches at the top of `box`; returns the rest of the box, or None when it is too wide."""
    gap, swatch = size * 1.1, size * 0.8
    widths = [swatch + size * 0.4 + style.body.width(name, size) for name in names]
    total = sum(widths) + gap * (len(names) - 1)
    if total > box[2] - box[0]:
        return None
    x, y = (box[0] + box[2] - total) / 2, box[1] + size
    for number, (name, width) in enumerate(zip(names, widths, strict=True)):
        canvas.rect((x, y - swatch, x + swatch, y), fill=style.palette.series[number], radius=style.radius / 4)
        draw_line(canvas, x + swatch + size * 0.4, y, name, style.body, size, style.palette.ink)
        x += width + gap
    return box[0], y + size * 0.9, box[2], box[3]


def _under_legend(canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> Box | None:
    """What a legend, needed from two columns on, leaves of `box`; None where it does not fit."""
    names = [block.table.columns[c].name for c in block.columns]
    return legend(canvas, style, box, names, size) if len(names) > 1 else box


def hbar(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> Drawn | None:
    """Horizontal bars, one to three a row, or lollipops."""
    rest = _under_legend(canvas, style, box, block, size)
    if rest is None:
        return None
    left, top, right, bottom = rest
    table, (low, high) = block.table, value_range(block)
    label_width = max(style.body.width(table.labels[r], size) for r in block.rows)
    value_width = max(style.body.width(table.show(r, c), size) for r in block.rows for c in block.columns)
    height = (bottom - top) / len(block.rows)
    thick = min(height * rng.uniform(0.55, 0.8) / len(block.columns), size * 2.4)
    thick = max(thick, size * 1.12)  # each bar carries a label of its own
    room = right - left - label_width - value_width - size * 1.4
    if label_width > 0.5 * (right - left) or room < 30 or thick * len(block.columns) > height * 0.96:
        return None
    before = value_width if low < 0 else 0  # room for the labels of bars that go left
    scale = (room - before) / (high - low)
    zero = left + label_width + size * 0.7 + before - low * scale
    lollipop = len(block.columns) == 1 and rng.random() < 0.2
    canvas.polyline([(zero, top), (zero, bottom)], style.palette.edge, 0.8)
    marks, ink = [], style.palette.ink
    for index, row in enumerate(block.rows):
        middle = top + (index + 0.5) * height
        y = middle + size * 0.35
        draw_line(canvas, left + label_width, y, table.labels[row], style.body, size, ink, "right")
        for place, column in enumerate(block.columns):
            y = middle + (place - (len(block.columns) - 1) / 2) * thick
            value, colour = table.values[row][column], style.palette.series[place]
            end = _hmark(canvas, zero, zero + value * scale, y, 0.0 if lollipop else thick, size, colour)
            x, align = (end + size * 0.35, "left") if value >= 0 else (end - size * 0.35, "right")
            text = table.show(row, column)
            spot = draw_line(canvas, x, y + size * 0.35, text, style.body, size, ink, align)
            marks.append(Mark(row, column, text, spot))
    return Drawn(marks, not lollipop)


def _hmark(canvas: Canvas, zero: float, end: float, y: float, thick: float, size: float, colour: Colour) -> float:
    """A bar from `zero` to `end`, or (`thick` 0) a lollipop; returns where its label may begin."""
    if thick:
        canvas.rect((min(zero, end), y - thick * 0.46, max(zero, end), y + thick * 0.46), fill=colour)
        return end
    canvas.polyline([(zero, y), (end, y)], colour, 1.4)
    canvas.circle((end, y), size * 0.33, colour)
    return end + size * 0.33 * (1 if end >= zero else -1)


def vbar(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> Drawn | None:
    """Vertical bars, one to three a row, values on top."""
    rest = _under_legend(canvas, style, box, block, size)
    if rest is None:
        return None
    table, count = block.table, len(block.columns)
    slot = (rest[2] - rest[0]) / len(block.rows)
    wrapped = [wrap(table.labels[r], style.body, size, slot * 0.94) for r in block.rows]
    if any(len(lines) > 2 or style.body.width(line, size) > slot * 0.94 for lines in wrapped for line in lines):
        return None
    bar = slot * rng.uniform(0.6, 0.84) / count
    widest = max(style.body.width(table.show(r, c), size) for r in block.rows for c in block.columns)
    if widest > (slot if count == 1 else bar) * 0.97:
        return None
    low, high = value_range(block)
    foot = rest[3] - max(len(lines) for lines in wrapped) * size * 1.2 - size * 0.5
    top, below = rest[1] + size * 1.4, size * 1.4 if low < 0 else 0
    scale = (foot - below - top) / (high - low)
    zero = foot - below + low * scale
    if foot - top < 25:
        return None
    grid(rng, canvas, style, rest, top, zero)
    marks, ink = [], style.palette.ink
    for index, row in enumerate(block.rows):
        middle = rest[0] + (index + 0.5) * slot
        for number, line in enumerate(wrapped[index]):
            draw_line(canvas, middle, foot + size * (1.15 + 1.2 * number), line, style.body, size, ink, "center")
        for place, column in enumerate(block.columns):
            value, text = table.values[row][column], table.show(row, column)
            x, end = middle + (place - (count - 1) / 2) * bar, zero - value * scale
            shape = (x - bar * 0.46, min(zero, end), x + bar * 0.46, max(zero, end))
            canvas.rect(shape, fill=style.palette.series[place])
            y = end - size * 0.35 if value >= 0 else end + size * 1.05
            spot = draw_line(canvas, x, y, text, style.body, size, ink, "center")
            marks.append(Mark(row, column, text, spot))
    canvas.polyline([(rest[0], zero), (rest[2], zero)], style.palette.muted, 0.8)
    return Drawn(marks)


def grid(rng: random.Random, canvas: Canvas, style: Style, box: Box, top: float, bottom: float) -> None:
    if rng.random() < 0.6:
        for step in range(4):
            y = top + (bottom - top) * step / 4
            canvas.polyline([(box[0], y), (box[2], y)], mix(style.palette.edge, style.palette.paper, 0.5), 0.5)


def pie(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> Drawn | None:
    """Shares of a column's sum, as a pie or a ring, the percentages in a legend beside it."""
    table, column = block.table, block.columns[0]
    values = [table.values[r][column] for r in block.rows]
    if not table.columns[column].additive or min(values) <= 0 or not 3 <= len(values) <= 6 or table.rows_are == "time":
        return None
    shares = [f"{100 * value / sum(values):.1f}%" for value in values]
    names = [table.labels[r] for r in block.rows]
    texts = max(style.body.width(name, size) for name in names) + max(style.bold.width(s, size) for s in shares)
    legend = texts + size * 3.2
    radius = min((box[2] - box[0] - legend - size) / 2, (box[3] - box[1]) / 2 * 0.94)
    if radius < 24:
        return None
    slack = box[2] - box[0] - legend - 2 * radius
    centre = (box[0] + radius + slack * 0.25, (box[1] + box[3]) / 2)
    angle = 0.0
    for number, value in enumerate(values):
        turn = 2 * math.pi * value / sum(values)
        canvas.wedge(centre, radius, angle, angle + turn, style.palette.series[number], style.palette.paper)
        angle += turn
    if ring := rng.random() < 0.4:
        canvas.circle(
            centre, radius * 0.52, style.palette.panel if style.family.panel == "filled" else style.palette.paper
        )
    step = min((box[3] - box[1]) / len(values), size * 2.3)
    x = centre[0] + radius + slack * 0.4 + size
    marks = []
    for number, row in enumerate(block.rows):
        y = centre[1] + (number - (len(values) - 1) / 2) * step + size * 0.35
        canvas.rect((x, y - size * 0.75, x + size * 0.8, y + size * 0.05), fill=style.palette.series[number])
        draw_line(canvas, x + size * 1.3, y, names[number], style.body, size, style.palette.ink)
        right = x + size * 2.2 + texts
        spot = draw_line(canvas, right, y, shares[number], style.bold, size, style.palette.ink, "right")
        marks.append(Mark(row, column, shares[number], spot, share=True))
    return Drawn(marks, not ring)
