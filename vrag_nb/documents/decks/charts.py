"""Charts as vector drawings with a value label on every mark.

Each function draws `block` into `box` (page points) at label size `size` and returns its `Mark`s, or None when the
labels would not fit or would touch each other: the caller then rolls the canvas back and tries another kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

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


Chart = Callable[[random.Random, Canvas, Style, Box, Block, float], "list[Mark] | None"]


def _nice_top(value: float) -> float:
    """A round number at or above `value`."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


def _range(block: Block, zero: bool = True) -> tuple[float, float]:
    values = [block.table.values[r][c] for r in block.rows for c in block.columns]
    low, high = min(values), max(values)
    if zero or low < 0 or low < 0.35 * high:
        return min(0.0, -_nice_top(-low) if low < 0 else 0.0), max(0.0, _nice_top(high))
    pad = (high - low) * 0.15 or abs(high) * 0.1 or 1
    return low - pad, high + pad


def _overlaps(box: Box, others: list[Box], gap: float = 0.6) -> bool:
    return any(
        box[0] < o[2] + gap and o[0] < box[2] + gap and box[1] < o[3] and o[1] < box[3] for o in others
    )


def _legend(canvas: Canvas, style: Style, box: Box, names: list[str], size: float) -> Box | None:
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


def _series_names(block: Block) -> list[str]:
    return [block.table.columns[c].name for c in block.columns]


def hbar(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> list[Mark] | None:
    """Horizontal bars, one to three a row, or lollipops."""
    if len(block.columns) > 1:
        rest = _legend(canvas, style, box, _series_names(block), size)
        if rest is None:
            return None
        box = rest
    table, low_high = block.table, _range(block)
    labels = [table.labels[r] for r in block.rows]
    label_width = max(style.body.width(label, size) for label in labels)
    value_width = max(style.body.width(table.show(r, c), size) for r in block.rows for c in block.columns)
    height = (box[3] - box[1]) / len(labels)
    thickness = min(height * rng.uniform(0.55, 0.8) / len(block.columns), size * 2.4)
    room = box[2] - box[0] - label_width - value_width - size * 1.4
    if label_width > 0.5 * (box[2] - box[0]) or room < 30 or height / len(block.columns) < size * 1.12:
        return None
    x0 = box[0] + label_width + size * 0.7 + (value_width if low_high[0] < 0 else 0)
    scale = (room - (value_width if low_high[0] < 0 else 0)) / (low_high[1] - low_high[0])
    zero = x0 - low_high[0] * scale
    lollipop = len(block.columns) == 1 and rng.random() < 0.2
    canvas.polyline([(zero, box[1]), (zero, box[3])], style.palette.edge, 0.8)
    marks = []
    for index, row in enumerate(block.rows):
        middle = box[1] + (index + 0.5) * height
        draw_line(canvas, box[0] + label_width, middle + size * 0.35, labels[index], style.body, size, style.palette.ink, "right")  # fmt: skip
        for place, column in enumerate(block.columns):
            value = table.values[row][column]
            y = middle + (place - (len(block.columns) - 1) / 2) * thickness
            end = zero + value * scale
            colour = style.palette.series[place]
            if lollipop:
                canvas.polyline([(zero, y), (end, y)], colour, 1.4)
                canvas.circle((end, y), size * 0.33, colour)
                end += size * 0.33 * (1 if value >= 0 else -1)
            else:
                canvas.rect((min(zero, end), y - thickness * 0.46, max(zero, end), y + thickness * 0.46), fill=colour)
            align = "left" if value >= 0 else "right"
            x = end + (size * 0.35 if value >= 0 else -size * 0.35)
            spot = draw_line(canvas, x, y + size * 0.35, table.show(row, column), style.body, size, style.palette.ink, align)  # fmt: skip
            marks.append(Mark(row, column, table.show(row, column), spot))
    return marks


def vbar(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> list[Mark] | None:
    """Vertical bars, one to three a row, values on top."""
    if len(block.columns) > 1:
        rest = _legend(canvas, style, box, _series_names(block), size)
        if rest is None:
            return None
        box = rest
    table = block.table
    slot = (box[2] - box[0]) / len(block.rows)
    wrapped = [wrap(table.labels[r], style.body, size, slot * 0.94) for r in block.rows]
    if any(len(lines) > 2 or style.body.width(line, size) > slot * 0.94 for lines in wrapped for line in lines):
        return None
    bar = slot * rng.uniform(0.6, 0.84) / len(block.columns)
    texts = [table.show(r, c) for r in block.rows for c in block.columns]
    widest = max(style.body.width(text, size) for text in texts)
    if widest > (slot if len(block.columns) == 1 else bar) * 0.97:
        return None
    low, high = _range(block)
    foot = box[3] - max(len(lines) for lines in wrapped) * size * 1.2 - size * 0.5
    top = box[1] + size * 1.4
    below = size * 1.4 if low < 0 else 0
    scale = (foot - below - top) / (high - low)
    zero = foot - below + low * scale
    if foot - top < 25:
        return None
    _grid(rng, canvas, style, box, top, zero)
    marks = []
    for index, row in enumerate(block.rows):
        middle = box[0] + (index + 0.5) * slot
        for number, line in enumerate(wrapped[index]):
            y = foot + size * (1.15 + 1.2 * number)
            draw_line(canvas, middle, y, line, style.body, size, style.palette.ink, "center")
        for place, column in enumerate(block.columns):
            value = table.values[row][column]
            x = middle + (place - (len(block.columns) - 1) / 2) * bar
            end = zero - value * scale
            canvas.rect((x - bar * 0.46, min(zero, end), x + bar * 0.46, max(zero, end)), fill=style.palette.series[place])  # fmt: skip
            y = end - size * 0.35 if value >= 0 else end + size * 1.05
            text = table.show(row, column)
            marks.append(Mark(row, column, text, draw_line(canvas, x, y, text, style.body, size, style.palette.ink, "center")))  # fmt: skip
    canvas.polyline([(box[0], zero), (box[2], zero)], style.palette.muted, 0.8)
    return marks


def _grid(rng: random.Random, canvas: Canvas, style: Style, box: Box, top: float, bottom: float) -> None:
    if rng.random() < 0.6:
        for step in range(4):
            y = top + (bottom - top) * step / 4
            canvas.polyline([(box[0], y), (box[2], y)], mix(style.palette.edge, style.palette.paper, 0.5), 0.5)


def line(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> list[Mark] | None:
    """One to three lines over time; time runs along the rows, or along the columns."""
    table = block.table
    along_rows = table.rows_are == "time"
    steps = list(block.rows if along_rows else block.columns)
    runs = list(block.columns if along_rows else block.rows)
    if not 3 <= len(steps) <= 12 or not 1 <= len(runs) <= 3 or (not along_rows and table.columns_are != "time"):
        return None
    names = [table.columns[s].name if along_rows else table.labels[s] for s in runs]
    if len(runs) > 1:
        rest = _legend(canvas, style, box, names, size)
        if rest is None:
            return None
        box = rest
    ticks = [table.labels[s] if along_rows else table.columns[s].name for s in steps]
    margin = max(style.body.width(text, size) for text in ticks) / 2 + size * 0.6
    gap = (box[2] - box[0] - 2 * margin) / (len(steps) - 1)
    if max(style.body.width(text, size) for text in ticks) > gap * 0.95:
        return None
    low, high = _range(block, zero=rng.random() < 0.3)
    top, foot = box[1] + size * 1.8, box[3] - size * 2.2
    if foot - top < 30:
        return None
    _grid(rng, canvas, style, box, top, foot)
    canvas.polyline([(box[0], foot + size * 0.5), (box[2], foot + size * 0.5)], style.palette.muted, 0.8)
    xs = [box[0] + margin + gap * i for i in range(len(steps))]
    for x, text in zip(xs, ticks, strict=True):
        draw_line(canvas, x, foot + size * 1.7, text, style.body, size, style.palette.ink, "center")
    scale = (foot - top) / ((high - low) or 1)
    cells = [[(s, run) if along_rows else (run, s) for s in steps] for run in runs]
    paths = [[(x, foot - (table.values[r][c] - low) * scale) for x, (r, c) in zip(xs, run, strict=True)] for run in cells]
    if len(runs) == 1 and rng.random() < 0.25:
        shade = mix(style.palette.series[0], style.palette.paper, 0.75)
        canvas.polygon([(xs[0], foot + size * 0.5), *paths[0], (xs[-1], foot + size * 0.5)], shade)
    for number, points in enumerate(paths):
        canvas.polyline(points, style.palette.series[number], 1.8, "4 2" if number == 1 and rng.random() < 0.3 else "")
        for point in points:
            canvas.circle(point, 2.2, style.palette.series[number])
    return _point_labels(canvas, style, cells, paths, block, size)


def _point_labels(
    canvas: Canvas, style: Style, cells: list, paths: list, block: Block, size: float
) -> list[Mark] | None:
    """A value above (or below) each point, touching neither another label nor a point; None if that cannot be done."""
    taken: list[Box] = [(x - 2, y - 2, x + 2, y + 2) for points in paths for x, y in points]
    marks = []
    colours: list[Colour] = [style.palette.ink] if len(paths) == 1 else list(style.palette.series)
    for number, (run, points) in enumerate(zip(cells, paths, strict=True)):
        for (row, column), (x, y) in zip(run, points, strict=True):
            text = block.table.show(row, column)
            width = style.body.width(text, size)
            for baseline in (y - size * 0.55, y + size * 1.25):
                spot = (x - width / 2, baseline - size * 0.8, x + width / 2, baseline + size * 0.2)
                if not _overlaps(spot, taken):
                    break
            else:
                return None
            taken.append(spot)
            colour = colours[number] if len(paths) == 1 else mix(colours[number], style.palette.ink, 0.35)
            marks.append(Mark(row, column, text, draw_line(canvas, x, baseline, text, style.body, size, colour, "center")))  # fmt: skip
    return marks


def pie(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> list[Mark] | None:
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
    if rng.random() < 0.4:
        canvas.circle(centre, radius * 0.52, style.palette.panel if style.family.panel == "filled" else style.palette.paper)  # fmt: skip
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
    return marks


KINDS: dict[str, Chart] = {"horizontal bar chart": hbar, "bar chart": vbar, "line chart": line, "pie chart": pie}
