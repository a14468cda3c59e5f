"""The pieces a page is made of. Each draws itself into a box and leaves the facts it shows on its `Sheet`.

A `Fact` is one thing a question can be about: the answer exactly as printed, where it stands, and the region a good
agent would crop to read it (the panel, the footnote's strip, the bullet).

Print sizes follow from how the agent sees a page. The whole page is shown with about 131,000 pixels, so a slide has
0.67 pixels a point and print below 11 pt cannot be read; a crop is shown with as many pixels, so print in a panel of a
third of the slide comes out 1.7 times as large. `panel_size` picks sizes that are lost on the page and clear in the
crop.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from vrag_nb.documents.decks import charts
from vrag_nb.documents.decks.blocks import Block, Statement
from vrag_nb.documents.decks.canvas import Box, Canvas, mix
from vrag_nb.documents.decks.charts import Mark
from vrag_nb.documents.decks.themes import Style
from vrag_nb.documents.decks.typeset import (
    LEADING,
    Lines,
    draw_line,
    draw_lines,
    fitting_size,
    inset,
    shorten,
    wrap,
)

SHOWN_PIXELS = 168 * 784  # nano's pixel budget for one image
READABLE = 7.4  # height of the font in shown pixels from which nano can read it


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

    def add(self, fact: Fact) -> None:
        self.facts.append(replace(fact, page=self.number, page_title=self.title, region=self.clip(fact.region)))

    def clip(self, box: Box) -> Box:
        """`box` cut to the page."""
        c = self.canvas
        return max(0.0, box[0]), max(0.0, box[1]), min(c.width, box[2]), min(c.height, box[3])

    def unreadable(self, size: float) -> bool:
        """Whether print of this size is lost when the whole page is shown."""
        return size * math.sqrt(SHOWN_PIXELS / (self.canvas.width * self.canvas.height)) < READABLE


def panel_size(rng: random.Random, box: Box) -> float:
    """A small print size that can be read when `box` is cropped."""
    scale = min(3.0, math.sqrt(SHOWN_PIXELS / ((box[2] - box[0]) * (box[3] - box[1]))))
    lowest = max(6.5, min(9.5, 9.2 / scale))
    return math.ceil(rng.uniform(lowest, min(9.5, lowest + 1.6)) * 2) / 2


def panel(sheet: Sheet, box: Box, caption: str, size: float) -> tuple[Box, Lines]:
    """The frame and caption of a chart or table; returns what is left inside and the caption as drawn."""
    style, canvas = sheet.style, sheet.canvas
    kind, palette = style.family.panel, style.palette
    if kind == "box":
        canvas.rect(box, fill=None, stroke=palette.edge, width=0.8, radius=style.radius)
    elif kind == "filled":
        canvas.rect(box, fill=palette.panel, radius=style.radius)
    inner = inset(box, size * 0.9, size * 0.6)
    width = inner[2] - inner[0]
    lines = wrap(caption, style.bold, size + 1, width)
    if len(lines) > 2:
        caption = " ".join(lines[:2])
        caption = shorten(caption + "...", style.bold, size + 1, width * 1.8)
    drawn = draw_lines(canvas, inner, caption, style.bold, size + 1, palette.ink)
    top = inner[1] + len(drawn.lines) * (size + 1) * LEADING + size * 0.5
    if kind == "rule":
        canvas.polyline([(inner[0], top - size * 0.3), (inner[2], top - size * 0.3)], palette.accent, 1.0)
        top += size * 0.3
    return (inner[0], top, inner[2], inner[3]), drawn


def chart_panel(sheet: Sheet, box: Box, block: Block) -> tuple[str, Lines]:
    """A chart of `block` with its caption in `box`, or a table where no chart fits; returns its kind and caption."""
    size = panel_size(sheet.rng, box)
    inner, caption = panel(sheet, box, block.caption(), size)
    for kind in _chart_order(sheet.rng, block):
        before = len(sheet.canvas.operators), len(sheet.canvas.ink)
        marks = charts.KINDS[kind](sheet.rng, sheet.canvas, sheet.style, inner, block, size)
        if marks is not None:
            _add_cells(sheet, "chart", marks, block, box, size)
            return kind, caption
        del sheet.canvas.operators[before[0] :], sheet.canvas.ink[before[1] :]
    table(sheet, inner, block, size, box)
    return "table", caption


def table_panel(sheet: Sheet, box: Box, block: Block) -> tuple[str, Lines]:
    """A table of `block` in small print."""
    size = panel_size(sheet.rng, box)
    inner, caption = panel(sheet, box, block.caption(), size)
    table(sheet, inner, block, size, box)
    return "table", caption


def _chart_order(rng: random.Random, block: Block) -> list[str]:
    """Chart kinds to try, the likeliest first."""
    if len(block.columns) == 1 and block.table.rows_are == "time":
        return rng.choice([["line chart", "bar chart"], ["bar chart", "line chart"]]) + ["horizontal bar chart"]
    if len(block.columns) == 1:
        kinds = ["horizontal bar chart", "bar chart"]
        rng.shuffle(kinds)
        return (["pie chart"] if rng.random() < 0.55 else []) + kinds
    lead = ["line chart"] if rng.random() < 0.7 else []
    if len(block.columns) > 3 or not (block.table.measure or len({block.table.columns[c].unit for c in block.columns}) == 1 and _alike(block)):  # fmt: skip
        return lead if block.table.measure else []
    return [*lead, *rng.choice([["bar chart", "horizontal bar chart"], ["horizontal bar chart", "bar chart"]])]


def _alike(block: Block) -> bool:
    """Whether the columns are printed alike and within a factor of eight: they can share an axis."""
    shown = {(c.prefix, c.suffix, c.decimals) for c in (block.table.columns[i] for i in block.columns)}
    tops = [max(abs(block.table.values[r][c]) for r in block.rows) for c in block.columns]
    return len(shown) == 1 and max(tops) <= 8 * max(min(tops), 1e-9)


def _add_cells(sheet: Sheet, source: str, marks: list[Mark], block: Block, region: Box, size: float) -> None:
    for mark in marks:
        hint = f"{block.table.measure_of(mark.column)} {block.table.scope} {block.table.labels[mark.row]}"
        sheet.add(
            Fact(source, mark.text, mark.box, inset(region, -2), size, hint, (), mark, block, block.caption())
        )


def table(sheet: Sheet, box: Box, block: Block, size: float, region: Box) -> None:
    """A table at print size `size`, spread over `box`; columns that do not fit are left out."""
    style, rows, source = sheet.style, block.rows, block.table
    width = box[2] - box[0]
    heads = {c: _header_lines(sheet, block, c, size) for c in block.columns}
    widths = {
        c: max(
            *(style.bold.width(line, size) for line in heads[c]),
            *(style.body.width(source.show(r, c), size) for r in rows),
        )
        + size * 1.4
        for c in block.columns
    }
    columns = list(block.columns)
    first = max(style.body.width(t, size) for t in [source.row_header, *(source.labels[r] for r in rows)]) + size
    while len(columns) > 1 and first + sum(widths[c] for c in columns) > width:
        columns.pop()
    first = min(first, width - sum(widths[c] for c in columns))
    extra = (width - first - sum(widths[c] for c in columns)) / (len(columns) + 1)
    deep = max(len(heads[c]) for c in columns)
    head = size * (LEADING * deep + 0.5)
    step = min((box[3] - box[1] - head) / len(rows), size * 2.1)
    edges = [box[0], box[0] + first + extra]
    for c in columns:
        edges.append(edges[-1] + widths[c] + extra)
    _table_lines(sheet, box, edges, head, step, len(rows))
    _table_text(sheet, edges, (box[1], head, step), block, columns, heads, size, region)


def _header_lines(sheet: Sheet, block: Block, column: int, size: float) -> list[str]:
    shown = block.table.columns[column]
    name = f"{shown.name} ({shown.unit})" if shown.unit and not block.unit else shown.name
    single = sheet.style.bold.width(name, size)
    return [name] if single < size * 7 else wrap(name, sheet.style.bold, size, max(single * 0.6, size * 5))


def _table_lines(sheet: Sheet, box: Box, edges: list[float], head: float, step: float, rows: int) -> None:
    """The table's stripes and rules, as its family draws them."""
    canvas, palette, kind = sheet.canvas, sheet.style.palette, sheet.style.family.table
    x0, x1, top, bottom = edges[0], edges[-1], box[1] + head, box[1] + head + rows * step
    if kind in ("zebra", "boxed"):
        canvas.rect((x0, box[1], x1, top), fill=palette.accent)
    for row in range(rows):
        y = top + row * step
        if kind == "zebra" and row % 2:
            canvas.rect((x0, y, x1, y + step), fill=mix(palette.paper, palette.accent, 0.1))
        if kind in ("plain", "boxed") and row:
            canvas.polyline([(x0, y), (x1, y)], palette.edge, 0.4)
    if kind == "rules":
        for y, thick in ((box[1], 1.2), (top, 0.7), (bottom, 1.2)):
            canvas.polyline([(x0, y), (x1, y)], palette.ink, thick)
    elif kind == "plain":
        canvas.polyline([(x0, top), (x1, top)], palette.accent, 1.3)
    elif kind == "boxed":
        canvas.rect((x0, box[1], x1, bottom), stroke=palette.edge, width=0.7)
        for x in edges[1:-1]:
            canvas.polyline([(x, box[1]), (x, bottom)], palette.edge, 0.4)


def _table_text(
    sheet: Sheet,
    edges: list[float],
    rhythm: tuple[float, float, float],  # top, height of the header, height of a row
    block: Block,
    columns: list[int],
    heads: dict[int, list[str]],
    size: float,
    region: Box,
) -> None:
    canvas, style, source = sheet.canvas, sheet.style, block.table
    top, head, step = rhythm
    filled = style.family.table in ("zebra", "boxed")
    ink = style.palette.on_accent if filled else style.palette.ink
    pad = size * 0.5
    draw_line(canvas, edges[0] + pad, top + head - size * 0.5, source.row_header, style.bold, size, ink)
    for c, right in zip(columns, edges[2:], strict=True):
        for number, text in enumerate(reversed(heads[c])):
            y = top + head - size * 0.5 - number * size * LEADING
            draw_line(canvas, right - pad, y, text, style.bold, size, ink, "right")
    marks = []
    for index, row in enumerate(block.rows):
        y = top + head + (index + 0.5) * step + size * 0.35
        label = shorten(source.labels[row], style.body, size, edges[1] - edges[0] - pad)
        draw_line(canvas, edges[0] + pad, y, label, style.body, size, style.palette.ink)
        for c, right in zip(columns, edges[2:], strict=True):
            text = source.show(row, c)
            spot = draw_line(canvas, right - pad, y, text, style.body, size, style.palette.ink, "right")
            if label == source.labels[row]:
                marks.append(Mark(row, c, text, spot))
    _add_cells(sheet, "table", marks, block, region, size)


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
        lines = draw_lines(
            sheet.canvas, (box[0] + indent, y, box[2], y + height), item.text, style.body, size, style.palette.ink
        )
        state(sheet, item, lines, inset(lines.box, -indent, -4))
        y += height + gap
    return shown


def state(sheet: Sheet, item: Statement, lines: Lines, region: Box, source: str = "text") -> None:
    """Record the fact a drawn statement holds."""
    spot = lines.find(item.answer)
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
            kept.append(item)
    if not kept:
        return
    sheet.canvas.polyline([(box[0], box[1]), (box[0] + 60, box[1])], style.palette.edge, 0.8)
    lines = draw_lines(
        sheet.canvas, (box[0], box[1] + 4, box[2], box[3]), text, style.body, size, style.palette.muted
    )
    for item in kept:
        state(sheet, item, lines, inset(lines.box, -6, -4))


def paragraph(sheet: Sheet, box: Box, items: list[Statement], size: float) -> float:
    """Running text made of `items`, as many as fit into `box`; returns the y where it ends."""
    style, text, kept = sheet.style, "", []
    for item in items:
        longer = f"{text} {item.text}".strip()
        if len(wrap(longer, style.body, size, box[2] - box[0])) * size * LEADING <= box[3] - box[1]:
            text = longer
            kept.append(item)
    if not kept:
        return box[1]
    lines = draw_lines(sheet.canvas, box, text, style.body, size, style.palette.ink)
    for item in kept:
        state(sheet, item, lines, inset(lines.box, -5))
    return lines.box[3]


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
    draw_lines(canvas, (inner[0] + 2, inner[1] + size * 1.35, inner[2], inner[3]), words, style.body, label, style.palette.ink)  # fmt: skip
    hint = f"{block.table.measure_of(column)} {block.table.scope} {block.table.labels[row]}"
    sheet.add(Fact("text", value, spot, inset(box, -2), min(size, label), hint, (), Mark(row, column, value, spot), block))  # fmt: skip
    return True
