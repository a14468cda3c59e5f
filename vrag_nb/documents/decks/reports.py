"""The pages of an A4 report: a cover, and two-column pages of running text, charts and tables, all in small print."""

from __future__ import annotations

from vrag_nb.documents.decks.blocks import Block, joint_title
from vrag_nb.documents.decks.canvas import Box
from vrag_nb.documents.decks.colophon import PROSE, Register, small_print
from vrag_nb.documents.decks.elements import Sheet, footnote, paragraph, state
from vrag_nb.documents.decks.frames import fill_margins
from vrag_nb.documents.decks.layouts import Say
from vrag_nb.documents.decks.panels import chart_panel, register_panel, table_panel
from vrag_nb.documents.decks.statements import Statement
from vrag_nb.documents.decks.typeset import draw_line, draw_lines, fitting_size, inset, wrap

MARGIN, GUTTER = 46.0, 20.0


def report_frame(sheet: Sheet, title: str) -> Box:
    """Paper, running header, section title; returns the box left for the columns."""
    title = sheet.name(title)
    canvas, style = sheet.canvas, sheet.style
    palette, kind = style.palette, style.family.title
    canvas.rect((0, 0, canvas.width, canvas.height), fill=palette.paper)
    fill_margins(sheet)
    margins = style.family.margins
    left, right = MARGIN + margins[0], canvas.width - MARGIN - margins[2]
    size = 21.0
    while len(lines := wrap(title, style.heading_bold, size, right - left)) > 3 and size > 15:
        size -= 1
    top, ink, align = 58.0 + margins[1], palette.ink, "center" if kind == "centre" else "left"
    height = len(lines) * size * 1.18
    if kind == "band":
        canvas.rect((0, 44 + margins[1], canvas.width, top + height + 12), fill=palette.accent)
        ink = palette.on_accent
    x = (left + right) / 2 if align == "center" else left
    draw_line(canvas, x, 34 + margins[1], sheet.deck, style.bold, 14, palette.accent, align)
    for number, line in enumerate(lines):
        draw_line(canvas, x, top + size * (0.95 + 1.18 * number), line, style.heading_bold, size, ink, align)
    bottom = top + height + 10
    if kind != "band":
        canvas.polyline([(left, bottom), (right, bottom)], palette.accent, 1.2)
    draw_line(canvas, canvas.width / 2, canvas.height - 24, str(sheet.number), style.body, 9, palette.muted, "center")
    return left, bottom + 16, right, canvas.height - 48 - margins[3]


def report_page(sheet: Sheet, blocks: list[Block], say: Say, extra: list[Statement], tables: list[Register]) -> None:
    """Two columns: paragraphs and panels of `blocks`, then `tables`, then prose that holds the `extra` statements."""
    rng = sheet.rng
    title = joint_title(blocks) if blocks else tables[0].title
    box = report_frame(sheet, title)
    footnote(sheet, (box[0], box[3] - 22, box[2], box[3]), [small_print(rng, sheet.title)])
    first, size = (box[2] - box[0] - GUTTER) * sheet.style.family.cut, rng.choice([9.0, 9.5, 10.0])
    columns = (box[0], box[0] + first), (box[0] + first + GUTTER, box[2])
    prose = rng.sample(PROSE, len(PROSE))
    half = (len(blocks) + 1) // 2 if rng.random() < 0.5 else len(blocks) // 2
    shares = (blocks[:half], blocks[half:])
    notes, registers = list(extra), list(tables)
    texts = (prose[::2], prose[1::2])
    for (left, right), share, prose in zip(columns, shares, texts, strict=True):
        column = (left, box[1], right, box[3] - 34)
        y = _panels_of_column(sheet, column, share, say, prose, size, alone=len(blocks) < 2)
        if registers and column[3] - y > 130:
            y = (
                register_panel(sheet, (left, y, column[2], column[3]), registers.pop(0), rng.choice([8.0, 8.5, 9.0]))[3]
                + 16
            )
        _fill(sheet, (left, y, column[2], column[3]), notes, prose, size)


def _panels_of_column(
    sheet: Sheet, column: Box, blocks: list[Block], say: Say, prose: list[str], size: float, alone: bool
) -> float:
    """A paragraph and a panel for each block, from the top of `column`; returns where they end."""
    rng, y = sheet.rng, column[1]
    for index, block in enumerate(blocks):
        left_over = len(blocks) - index
        room = (column[3] - y) / left_over
        items: list[Statement | str] = [*say(block)[:3], *(prose.pop() for _ in range(min(len(prose), 1)))]
        rng.shuffle(items)
        y = paragraph(sheet, (column[0], y, column[2], y + room * 0.5), items, size) + size * 1.1
        height = min(max(130.0, 16.0 * len(block.rows) * len(block.columns) ** 0.5 + 60), 250.0, column[3] - y)
        if height < 110:
            return y
        draw = table_panel if rng.random() < 0.45 else chart_panel
        y = draw(sheet, (column[0], y, column[2], y + height), block, alone)[2][3] + size * 1.4
    return y


def _fill(sheet: Sheet, box: Box, notes: list[Statement], prose: list[str], size: float) -> None:
    """Paragraphs of prose down to the bottom, each with one of `notes` while they last."""
    y = box[1]
    while box[3] - y > size * 6 and (prose or notes):
        items: list[Statement | str] = [prose.pop() for _ in range(min(len(prose), sheet.rng.randint(2, 3)))]
        if notes:
            items.insert(sheet.rng.randrange(len(items) + 1), notes.pop())
        y = paragraph(sheet, (box[0], y, box[2], box[3]), items, size) + size * 1.1


def cover(sheet: Sheet, headline: str, items: list[Statement], contents: list[str]) -> None:
    """The first page of a report."""
    canvas, style, palette = sheet.canvas, sheet.style, sheet.style.palette
    sheet.title = headline
    canvas.rect((0, 0, canvas.width, canvas.height), fill=palette.paper)
    canvas.rect((0, 0, canvas.width, 190), fill=palette.accent)
    right = canvas.width - MARGIN
    size = fitting_size(sheet.deck, style.heading_bold, right - MARGIN, 110, 38, 24) or 24
    draw_lines(
        canvas, (MARGIN, 60, right, 170), sheet.deck, style.heading_bold, size, palette.on_accent, "left", "bottom"
    )
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
