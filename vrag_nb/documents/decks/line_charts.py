"""Line charts: one to three lines over time, a value at every point.

The labels are what takes care: each stands above or below its point, pushed aside where a neighbour or a line is in
the way, and where nothing but a line is left to cross it gets a patch of paper under it.
"""

from __future__ import annotations

import random
from itertools import pairwise

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.canvas import Box, Canvas, Colour, mix
from vrag_nb.documents.decks.charts import Drawn, Mark, grid, legend, overlaps, value_range
from vrag_nb.documents.decks.themes import Style
from vrag_nb.documents.decks.typeset import draw_line

Point = tuple[float, float]


def _outside(box: Box, frame: Box) -> bool:
    return box[0] < frame[0] or box[1] < frame[1] or box[2] > frame[2] or box[3] > frame[3]


def _crosses(box: Box, a: Point, b: Point) -> bool:
    """Whether the segment from `a` to `b` runs through `box` (Liang and Barsky's clipping)."""
    start, end = 0.0, 1.0
    for axis in (0, 1):
        delta = b[axis] - a[axis]
        low, high = box[axis] - a[axis], box[axis + 2] - a[axis]
        if abs(delta) < 1e-9:
            if low > 0 or high < 0:
                return False
            continue
        near, far = sorted((low / delta, high / delta))
        start, end = max(start, near), min(end, far)
        if start > end:
            return False
    return True


def _place(
    spot: Point, width: float, size: float, taken: list[Box], segments: list[tuple[Point, Point]], frame: Box
) -> tuple[Box, bool] | None:
    """Where a label of `width` can stand near `spot`, and whether a line runs through it; None if nowhere."""
    x, y = spot
    fallback = None
    for dy in (-0.55, 1.25):
        for dx in (0.0, -0.45, 0.45):
            left, baseline = x - width / 2 + dx * width, y + dy * size
            box = (left, baseline - size * 0.8, left + width, baseline + size * 0.2)
            if _outside(box, frame) or overlaps(box, taken, size * 0.25):  # about a space, or two values read as one
                continue
            if not any(_crosses(box, a, b) for a, b in segments):
                return box, False
            fallback = fallback or (box, True)
    return fallback


def _point_labels(
    canvas: Canvas, style: Style, cells: list, paths: list[list[Point]], block: Block, size: float, frame: Box
) -> list[Mark] | None:
    """A value near each point, touching neither another label nor a point; None if that cannot be done."""
    taken: list[Box] = [(x - 2, y - 2, x + 2, y + 2) for points in paths for x, y in points]
    segments = [pair for points in paths for pair in pairwise(points)]
    paper = style.palette.panel if style.family.panel == "filled" else style.palette.paper
    marks = []
    colours: list[Colour] = [style.palette.ink] if len(paths) == 1 else list(style.palette.series)
    for number, (run, points) in enumerate(zip(cells, paths, strict=True)):
        for (row, column), (x, y) in zip(run, points, strict=True):
            text = block.table.show(row, column)
            found = _place((x, y), style.body.width(text, size), size, taken, segments, frame)
            if found is None:
                return None
            spot, crossed = found
            taken.append(spot)
            if crossed:  # a line behind the digits would make them hard to read
                canvas.rect(spot, fill=paper)
            colour = colours[number] if len(paths) == 1 else mix(colours[number], style.palette.ink, 0.35)
            marks.append(
                Mark(
                    row, column, text, draw_line(canvas, spot[0], spot[3] - size * 0.2, text, style.body, size, colour)
                )
            )
    return marks


def line(rng: random.Random, canvas: Canvas, style: Style, box: Box, block: Block, size: float) -> Drawn | None:
    """One to three lines over time; time runs along the rows, or along the columns."""
    table = block.table
    along_rows = table.rows_are == "time"
    steps = list(block.rows if along_rows else block.columns)
    runs = list(block.columns if along_rows else block.rows)
    if not 3 <= len(steps) <= 12 or not 1 <= len(runs) <= 3 or (not along_rows and table.columns_are != "time"):
        return None
    names = [table.columns[s].name if along_rows else table.labels[s] for s in runs]
    if len(runs) > 1:
        rest = legend(canvas, style, box, names, size)
        if rest is None:
            return None
        box = rest
    ticks = [table.labels[s] if along_rows else table.columns[s].name for s in steps]
    margin = max(style.body.width(text, size) for text in ticks) / 2 + size * 0.6
    gap = (box[2] - box[0] - 2 * margin) / (len(steps) - 1)
    if max(style.body.width(text, size) for text in ticks) > gap * 0.95:
        return None
    low, high = value_range(block, zero=rng.random() < 0.3)
    top, foot = box[1] + size * 1.8, box[3] - size * 2.2
    if foot - top < 30:
        return None
    grid(rng, canvas, style, box, top, foot)
    canvas.polyline([(box[0], foot + size * 0.5), (box[2], foot + size * 0.5)], style.palette.muted, 0.8)
    xs = [box[0] + margin + gap * i for i in range(len(steps))]
    for x, text in zip(xs, ticks, strict=True):
        draw_line(canvas, x, foot + size * 1.7, text, style.body, size, style.palette.ink, "center")
    scale = (foot - top) / ((high - low) or 1)
    cells = [[(s, run) if along_rows else (run, s) for s in steps] for run in runs]
    paths = [
        [(x, foot - (table.values[r][c] - low) * scale) for x, (r, c) in zip(xs, run, strict=True)] for run in cells
    ]
    if shaded := len(runs) == 1 and rng.random() < 0.25:
        shade = mix(style.palette.series[0], style.palette.paper, 0.75)
        canvas.polygon([(xs[0], foot + size * 0.5), *paths[0], (xs[-1], foot + size * 0.5)], shade)
    for number, points in enumerate(paths):
        canvas.polyline(points, style.palette.series[number], 1.8, "4 2" if number == 1 and rng.random() < 0.3 else "")
        for point in points:
            canvas.circle(point, 2.2, style.palette.series[number])
    marks = _point_labels(canvas, style, cells, paths, block, size, (box[0], box[1], box[2], foot + size * 0.8))
    return None if marks is None else Drawn(marks, not shaded)
