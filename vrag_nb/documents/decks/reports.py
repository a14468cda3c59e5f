"""The pages of an A4 report: a cover, and two-column pages of running text, charts and tables, all in small print."""

from __future__ import annotations

from vrag_nb.documents.decks.blocks import Block, Statement, small_print
from vrag_nb.documents.decks.canvas import Box
from vrag_nb.documents.decks.elements import Sheet, chart_panel, footnote, paragraph, state, table_panel
from vrag_nb.documents.decks.layouts import Say
from vrag_nb.documents.decks.typeset import draw_line, draw_lines, fitting_size, inset, wrap

MARGIN, GUTTER = 46.0, 20.0


def report_frame(sheet: Sheet, title: str) -> Box:
    """Paper, running header, section title; returns the box left for the columns."""
    sheet.title = title
    canvas, style = sheet.canvas, sheet.style
    palette, kind = style.palette, style.family.title
    canvas.rect((0, 0, canvas.width, canvas.height), fill=palette.paper)
    left, right = MARGIN, canvas.width - MARGIN
    size = 21.0
    while len(lines := wrap(title, style.heading_bold, size, right - left)) > 3 and size > 15:
        size -= 1
    top, ink, align = 58.0, palette.ink, "center" if kind == "centre" else "left"
    height = len(lines) * size * 1.18
    if kind == "band":
        canvas.rect((0, 44, canvas.width, top + height + 12), fill=palette.accent)
        ink = palette.on_accent
    x = canvas.width / 2 if align == "center" else left
    draw_line(canvas, x, 34, sheet.deck, style.bold, 14, palette.accent, align)
    for number, line in enumerate(lines):
        draw_line(canvas, x, top + size * (0.95 + 1.18 * number), line, style.heading_bold, size, ink, align)
    bottom = top + height + 10
    if kind != "band":
        canvas.polyline([(left, bottom), (right, bottom)], palette.accent, 1.2)
    draw_line(canvas, canvas.width / 2, canvas.height - 24, str(sheet.number), style.body, 9, palette.muted, "center")
    return left, bottom + 16, right, canvas.height - 48


def report_page(sheet: Sheet, blocks: list[Block], say: Say, extra: list[Statement]) -> None:
    """Two columns filled from the top with paragraphs and panels of `blocks`; `extra` statements fill the rest."""
    rng = sheet.rng
    box = report_frame(sheet, blocks[0].title() if blocks else "Data and method")
    notes = [small_print(rng, sheet.title)]
    footnote(sheet, (box[0], box[3] - 22, box[2], box[3]), notes)
    bottom = box[3] - 34
    width = (box[2] - box[0] - GUTTER) / 2
    size = rng.choice([9.0, 9.5, 10.0])
    queue, filler = list(blocks), list(extra)
    for left in (box[0], box[2] - width):
        y = box[1]
        while bottom - y > 60:
            block = queue.pop(0) if queue else None
            items = say(block)[:3] if block else []
            while filler and len(items) < 4:
                items.append(filler.pop(0))
            if items:
                y = paragraph(sheet, (left, y, left + width, bottom), items, size) + size * 1.1
            if block is not None:
                height = min(max(120.0, 13.0 * len(block.rows) * len(block.columns) ** 0.6 + 60), 215.0)
                if y + height > bottom:
                    break
                draw = table_panel if rng.random() < 0.45 else chart_panel
                draw(sheet, (left, y, left + width, y + height), block)
                y += height + size * 1.3
            if block is None and not filler:
                break


def cover(sheet: Sheet, headline: str, items: list[Statement], contents: list[str]) -> None:
    """The first page of a report."""
    canvas, style, palette = sheet.canvas, sheet.style, sheet.style.palette
    sheet.title = headline
    canvas.rect((0, 0, canvas.width, canvas.height), fill=palette.paper)
    canvas.rect((0, 0, canvas.width, 190), fill=palette.accent)
    right = canvas.width - MARGIN
    size = fitting_size(sheet.deck, style.heading_bold, right - MARGIN, 110, 38, 24) or 24
    draw_lines(canvas, (MARGIN, 60, right, 170), sheet.deck, style.heading_bold, size, palette.on_accent, "left", "bottom")
    draw_lines(canvas, (MARGIN, 215, right, 265), headline, style.heading, 20, palette.ink)
    y = 290.0
    for item in items:
        drawn = draw_lines(canvas, (MARGIN, y, right, y + 24), item.text, style.body, 16, palette.ink)
        state(sheet, item, drawn, inset(drawn.box, -10, -4))
        y += 28
    y += 30
    draw_line(canvas, MARGIN, y, "Contents", style.heading_bold, 18, palette.accent)
    for number, text in enumerate(contents):
        y += 30
        draw_line(canvas, MARGIN, y, f"{number + 1}   {text}", style.body, 15, palette.ink)
