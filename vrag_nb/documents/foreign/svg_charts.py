"""Charts as SVG with a value at every mark: columns, bars, lines, dots and a donut."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from html import escape

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.charts import value_range
from vrag_nb.documents.foreign.markup import Slide

Chart = Callable[[Slide, Block, int, int, float], str]


def chart_kinds(rng: random.Random, block: Block) -> list[str]:
    """The kinds that can show a block, the one to draw first."""
    values = [block.table.values[row][column] for row in block.rows for column in block.columns]
    if min(values) < 0 or (len(block.columns) > 1 and not block.table.measure):
        return []
    if len(block.columns) > 1:
        return ["columns"] if len(block.rows) * len(block.columns) <= 12 else []
    kinds = ["bars", "dots", "columns" if len(block.rows) <= 8 else "bars"]
    if block.table.rows_are == "time":
        kinds = ["line", "columns"] if len(block.rows) <= 9 else ["line"]
    elif block.table.columns[block.columns[0]].additive and len(block.rows) <= 6:
        kinds.append("donut")
    rng.shuffle(kinds)
    return kinds


def columns(slide: Slide, block: Block, width: int, height: int, size: float) -> str:
    """Upright columns, grouped where there are several, the value above each."""
    _, top = value_range(block)
    legend = _legend(slide, block, width, size) if len(block.columns) > 1 else ""
    up, down = size * (3.2 if legend else 1.6), height - size * 1.8
    pitch = width / len(block.rows)
    each = pitch * 0.8 / len(block.columns)
    parts = [legend, _rule(0, down, width, down)]
    for place, row in enumerate(block.rows):
        for number, column in enumerate(block.columns):
            tall = (down - up) * block.table.values[row][column] / top
            x = pitch * (place + 0.1) + each * number
            parts.append(
                f'<rect x="{x + each * 0.1:.1f}" y="{down - tall:.1f}" width="{each * 0.8:.1f}" height="{tall:.1f}" '
                f'fill="{slide.hues[number].code}"/>'
            )
            parts.append(_value(slide, block, row, column, x + each / 2, down - tall - size * 0.35, size))
        parts.append(_label(block.table.labels[row], pitch * (place + 0.5), down + size * 1.2, size, "middle", pitch))
    return _svg(parts, width, height)


def bars(slide: Slide, block: Block, width: int, height: int, size: float) -> str:
    """Lying bars, the value behind each."""
    return _lying(slide, block, width, height, size, dots=False)


def dots(slide: Slide, block: Block, width: int, height: int, size: float) -> str:
    """A dot on a thin line for each row, the value behind it."""
    return _lying(slide, block, width, height, size, dots=True)


def _lying(slide: Slide, block: Block, width: int, height: int, size: float, dots: bool) -> str:
    column, (_, top) = block.columns[0], value_range(block)
    left, right = width * 0.34, width * 0.84
    pitch = height / len(block.rows)
    hue, parts = slide.hues[0].code, []
    for place, row in enumerate(block.rows):
        y = pitch * (place + 0.5)
        x = left + (right - left) * block.table.values[row][column] / top
        parts.append(_label(block.table.labels[row], left - size * 0.6, y + size * 0.35, size, "end", left))
        if dots:
            parts.append(_rule(left, y, x, y))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size * 0.45:.1f}" fill="{hue}"/>')
        else:
            thick = min(pitch * 0.62, size * 1.8)
            parts.append(
                f'<rect x="{left:.1f}" y="{y - thick / 2:.1f}" width="{x - left:.1f}" height="{thick:.1f}" '
                f'fill="{hue}" rx="2"/>'
            )
        parts.append(_value(slide, block, row, column, x + size * 0.8, y + size * 0.35, size, "start"))
    return _svg(parts, width, height)


def line(slide: Slide, block: Block, width: int, height: int, size: float) -> str:
    """A line through the rows' values, in order."""
    column, (low, top) = block.columns[0], value_range(block, zero=False)
    up, down = size * 2.2, height - size * 2.2
    pitch = width / len(block.rows)
    points = [
        (pitch * (place + 0.5), down - (down - up) * (block.table.values[row][column] - low) / max(top - low, 1e-9))
        for place, row in enumerate(block.rows)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    hue = slide.hues[0].code
    parts = [_rule(0, down, width, down), f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="3"/>']
    for (x, y), row in zip(points, block.rows, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{hue}"/>')
        parts.append(_value(slide, block, row, column, x, y - size * 0.75, size))
        parts.append(_label(block.table.labels[row], x, down + size * 1.4, size, "middle", pitch))
    return _svg(parts, width, height)


def donut(slide: Slide, block: Block, width: int, height: int, size: float) -> str:
    """A ring cut into the rows' parts, with a list of rows and values beside it."""
    column = block.columns[0]
    values = [block.table.values[row][column] for row in block.rows]
    radius = min(width * 0.2, height * 0.4)
    around, at, parts = 2 * math.pi * radius, 0.0, []
    for number, (row, value) in enumerate(zip(block.rows, values, strict=True)):
        length = around * value / max(sum(values), 1e-9)
        hue = slide.hues[number % len(slide.hues)].code
        parts.append(
            f'<circle cx="{width * 0.22:.1f}" cy="{height / 2:.1f}" r="{radius:.1f}" fill="none" stroke="{hue}" '
            f'stroke-width="{radius * 0.5:.1f}" stroke-dasharray="{length:.2f} {around:.2f}" '
            f'stroke-dashoffset="{-at:.2f}"/>'
        )
        at += length
        y = height / 2 + (number - (len(values) - 1) / 2) * size * 2
        parts.append(
            f'<rect x="{width * 0.5:.1f}" y="{y - size * 0.8:.1f}" width="{size}" height="{size}" fill="{hue}"/>'
        )
        parts.append(_label(block.table.labels[row], width * 0.5 + size * 1.5, y, size, "start", width * 0.33))
        parts.append(_value(slide, block, row, column, width * 0.98, y, size, "end"))
    return _svg(parts, width, height)


CHARTS: dict[str, Chart] = {"columns": columns, "bars": bars, "dots": dots, "line": line, "donut": donut}


def _svg(parts: list[str], width: int, height: int) -> str:
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'


def _rule(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="rule"/>'


def _value(
    slide: Slide, block: Block, row: int, column: int, x: float, y: float, size: float, anchor: str = "middle"
) -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="value"'
    return slide.cell("chart", block, row, column, "text", attributes)


def _label(text: str, x: float, y: float, size: float, anchor: str, room: float) -> str:
    """A row's name, pressed together where it is wider than its room."""
    squeeze = (
        f' textLength="{room * 0.94:.1f}" lengthAdjust="spacingAndGlyphs"' if len(text) * size * 0.55 > room else ""
    )
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" class="label"{squeeze}>'
        f"{escape(text)}</text>"
    )


def _legend(slide: Slide, block: Block, width: int, size: float) -> str:
    parts = []
    for number, column in enumerate(block.columns):
        x = width * (number + 0.05) / len(block.columns)
        parts.append(f'<rect x="{x:.1f}" y="0" width="{size}" height="{size}" fill="{slide.hues[number].code}"/>')
        name = block.table.columns[column].name
        parts.append(_label(name, x + size * 1.4, size * 0.9, size, "start", width / len(block.columns) - size * 2))
    return "".join(parts)
