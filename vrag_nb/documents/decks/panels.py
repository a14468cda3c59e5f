"""Panels: a frame with a caption, and in it a chart, a table of numbers or a table of words, in small print.

A cell's fact has the whole panel, caption included, as its region: that is what an agent has to crop, since a number
means nothing without its row and its column.
"""

from __future__ import annotations

import random

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.canvas import Box, mix
from vrag_nb.documents.decks.charts import Chart, Mark, hbar, pie, vbar
from vrag_nb.documents.decks.colophon import Register
from vrag_nb.documents.decks.elements import Fact, Sheet, panel_size
from vrag_nb.documents.decks.line_charts import line
from vrag_nb.documents.decks.typeset import LEADING, Lines, draw_line, draw_lines, inset, shorten, wrap

VARIANT = "a variant"  # a ring, lollipops, a shaded line: what kind they are is a matter of words
KINDS: dict[str, Chart] = {"horizontal bar chart": hbar, "bar chart": vbar, "line chart": line, "pie chart": pie}


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


def chart_panel(sheet: Sheet, box: Box, block: Block, alone: bool = True) -> tuple[str, Lines, Box]:
    """A chart of `block` with its caption in `box`, or a table where no chart fits; returns kind, caption, box used.

    `alone`: the page's title names the block's rows, the caption need not.
    """
    size = panel_size(sheet.rng, box)
    before = len(sheet.canvas.operators), len(sheet.canvas.ink)
    inner, caption = panel(sheet, box, block.caption(alone), size)
    framed = len(sheet.canvas.operators), len(sheet.canvas.ink)
    for kind in _chart_order(sheet.rng, block):
        drawn = KINDS[kind](sheet.rng, sheet.canvas, sheet.style, inner, block, size)
        if drawn is not None:
            _add_cells(sheet, "chart", drawn.marks, block, box, size, alone)
            return kind if drawn.plain else VARIANT, caption, box
        del sheet.canvas.operators[framed[0] :], sheet.canvas.ink[framed[1] :]
    del sheet.canvas.operators[before[0] :], sheet.canvas.ink[before[1] :]
    return table_panel(sheet, box, block, alone)


def table_panel(sheet: Sheet, box: Box, block: Block, alone: bool = True) -> tuple[str, Lines, Box]:
    """A table of `block` in small print, its panel no higher than the table needs; returns as `chart_panel`."""
    size, text = panel_size(sheet.rng, box), block.caption(alone)
    captions = min(2, len(wrap(text, sheet.style.bold, size + 1, box[2] - box[0] - size * 1.8)))
    deep = max(len(_header_lines(sheet, block, c, size)) for c in block.columns)
    needed = captions * (size + 1) * LEADING + size * (2.6 + deep * LEADING) + len(block.rows) * size * 2.55
    box = (box[0], box[1], box[2], min(box[3], box[1] + needed))
    inner, caption = panel(sheet, box, text, size)
    table(sheet, inner, block, size, box, alone=alone)
    return "table", caption, box


def _chart_order(rng: random.Random, block: Block) -> list[str]:
    """Chart kinds to try, the likeliest first."""
    if len(block.columns) == 1 and block.table.rows_are == "time":
        return [*rng.sample(["line chart", "bar chart"], 2), "horizontal bar chart"]
    if len(block.columns) == 1:
        kinds = ["horizontal bar chart", "bar chart"]
        rng.shuffle(kinds)
        return ["pie chart", *kinds] if rng.random() < 0.55 else kinds
    lead = ["line chart"] if rng.random() < 0.7 else []
    if len(block.columns) > 3 or not (
        block.table.measure or (len({block.table.columns[c].unit for c in block.columns}) == 1 and _alike(block))
    ):
        return lead if block.table.measure else []
    return [*lead, *rng.choice([["bar chart", "horizontal bar chart"], ["horizontal bar chart", "bar chart"]])]


def _alike(block: Block) -> bool:
    """Whether the columns are printed alike and within a factor of eight: they can share an axis."""
    shown = {(c.prefix, c.suffix, c.decimals) for c in (block.table.columns[i] for i in block.columns)}
    tops = [max(abs(block.table.values[r][c]) for r in block.rows) for c in block.columns]
    return len(shown) == 1 and max(tops) <= 8 * max(min(tops), 1e-9)


def _add_cells(
    sheet: Sheet, source: str, marks: list[Mark], block: Block, region: Box, size: float, alone: bool = True
) -> None:
    for mark in marks:
        hint = block.hint(mark.row, mark.column)
        sheet.add(
            Fact(source, mark.text, mark.box, inset(region, -2), size, hint, (), mark, block, block.caption(alone))
        )


def table(
    sheet: Sheet, box: Box, block: Block, size: float, region: Box, tallest: float = 2.6, alone: bool = True
) -> None:
    """A table at print size `size`, spread over `box`, rows at most `tallest` sizes high; columns that do not fit are
    left out."""
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
    step = min((box[3] - box[1] - head) / len(rows), size * tallest)
    edges = [box[0], box[0] + first + extra]
    for c in columns:
        edges.append(edges[-1] + widths[c] + extra)
    _table_lines(sheet, box, edges, head, step, len(rows))
    marks = _table_text(sheet, edges, (box[1], head, step), block, columns, heads, size)
    _add_cells(sheet, "table", marks, block, region, size, alone)


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
) -> list[Mark]:
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
    return marks


def register_panel(sheet: Sheet, box: Box, register: Register, size: float) -> Box:
    """A table of words, as wide as `box` and as high as it needs; returns the box used."""
    style, canvas = sheet.style, sheet.canvas
    step = min(size * 2.5, (box[3] - box[1] - size * 4) / (len(register.rows) + 1))
    height = size * 3.9 + step * (len(register.rows) + 1)
    box = (box[0], box[1], box[2], min(box[3], box[1] + height))
    inner, _ = panel(sheet, box, register.title, size)
    keys = max(style.body.width(key, size) for key, _ in [*register.rows, register.headers]) + size * 2
    entries = max(style.body.width(entry, size) for _, entry in [*register.rows, register.headers]) + size * 2
    spare = max(0.0, inner[2] - inner[0] - keys - entries)
    edges = [inner[0], inner[0] + keys + spare * 0.4, inner[2]]
    _table_lines(sheet, inner, edges, step, step, len(register.rows))
    filled = style.family.table in ("zebra", "boxed")
    for number, (key, entry) in enumerate([register.headers, *register.rows]):
        y = inner[1] + (number + 0.5) * step + size * 0.35
        font = style.body if number else style.bold
        ink = style.palette.on_accent if filled and not number else style.palette.ink
        draw_line(canvas, edges[0] + size * 0.5, y, key, font, size, ink)
        spot = draw_line(canvas, edges[1] + size * 0.5, y, entry, font, size, ink)
        if number:
            item = register.statement(key, entry)
            sheet.add(Fact("table", entry, spot, inset(box, -2), size, item.hint, item.asks, panel=register.title))
    return box
