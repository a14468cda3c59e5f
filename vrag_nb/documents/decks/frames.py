"""What every slide of a deck has around its content, and the slides that open and close it."""

from __future__ import annotations

from vrag_nb.documents.decks.canvas import Box, Colour, mix
from vrag_nb.documents.decks.colophon import about_page
from vrag_nb.documents.decks.elements import Fact, Sheet, bullets, footnote, state
from vrag_nb.documents.decks.statements import Statement
from vrag_nb.documents.decks.typeset import draw_line, draw_lines, fitting_size, inset, wrap


def frame(sheet: Sheet, title: str) -> Box:
    """Paper, title, footer; returns the box left for content. A title the deck has already gets a part number."""
    title = sheet.name(title)
    canvas, style = sheet.canvas, sheet.style
    canvas.rect((0, 0, canvas.width, canvas.height), fill=style.palette.paper)
    kind = style.family.title
    if kind == "sidebar":
        return _sidebar(sheet, title)
    fill_margins(sheet)
    if kind == "aside":
        return _aside(sheet, title)
    if kind == "foot":
        return _foot(sheet, title)
    margins = style.family.margins
    left, right = 40 + margins[0], canvas.width - 40 - margins[2]
    top = {"band": 14.0, "underline": 24.0}.get(kind, 40.0) + margins[1]
    named = kind in ("plain", "centre", "rail", "lower")
    align = "center" if kind == "centre" else "left"
    x = (left + right) / 2 if kind == "centre" else left
    size, lines = _title_lines(sheet, title, right - left, 2)
    height = len(lines) * size * 1.15
    if kind == "rail":
        canvas.rect((0, 0, 12, canvas.height), fill=style.palette.accent)
    elif kind == "band":
        canvas.rect((0, 0, canvas.width, top + height + 14), fill=style.palette.accent)
    elif kind == "lower":
        canvas.rect((0, 0, canvas.width, 26), fill=style.palette.panel)
    if named:
        y = margins[1] + (18.0 if kind == "lower" else 32.0)
        draw_line(canvas, x, y, sheet.deck, style.bold, 12.5, style.palette.accent, align)
    ink = style.palette.on_accent if kind == "band" else style.palette.ink
    for number, line in enumerate(lines):
        draw_line(canvas, x, top + size * (0.95 + 1.15 * number), line, style.heading_bold, size, ink, align)
    bottom = top + height + (22 if kind == "band" else 10)
    if kind == "underline":
        canvas.polyline([(left, bottom - 2), (right, bottom - 2)], style.palette.accent, 1.6)
        bottom += 8
    _footer(sheet, left, right, not named)
    return left, bottom, right, canvas.height - 34 - margins[3]


def _title_lines(sheet: Sheet, title: str, width: float, most: int) -> tuple[float, list[str]]:
    size = sheet.style.title_size
    while len(lines := wrap(title, sheet.style.heading_bold, size, width)) > most and size > 15:
        size -= 1
    return size, lines


def _sidebar(sheet: Sheet, title: str) -> Box:
    canvas, style = sheet.canvas, sheet.style
    canvas.rect((0, 0, 196, canvas.height), fill=style.palette.accent)
    size, lines = _title_lines(sheet, title, 164, 7)
    while size > 14 and max(style.heading_bold.width(line, size) for line in lines) > 164:
        size -= 1
        lines = wrap(title, style.heading_bold, size, 164)
    for number, line in enumerate(lines):
        draw_line(
            canvas, 18, 34 + size * 1.18 * (number + 0.6), line, style.heading_bold, size, style.palette.on_accent
        )
    deck = wrap(sheet.deck, style.body, 12.5, 164)
    for number, line in enumerate(reversed(deck)):
        draw_line(canvas, 18, canvas.height - 26 - number * 15.5, line, style.body, 12.5, style.palette.on_accent)
    draw_line(
        canvas, canvas.width - 26, canvas.height - 14, str(sheet.number), style.body, 9, style.palette.muted, "right"
    )
    return 220, 26, canvas.width - 26, canvas.height - 30


def fill_margins(sheet: Sheet) -> None:
    """Colour what the family leaves at the edges of its paper, if it does that."""
    canvas, family = sheet.canvas, sheet.style.family
    if not family.filled:
        return
    left, top, right, bottom = family.margins
    width, height = canvas.width, canvas.height
    for box in (
        (0.0, 0.0, left, height), (width - right, 0.0, width, height),
        (0.0, 0.0, width, top), (0.0, height - bottom, width, height),
    ):  # fmt: skip
        if min(box[2] - box[0], box[3] - box[1]) > 4:
            canvas.rect(box, fill=sheet.style.palette.accent)


def _aside(sheet: Sheet, title: str) -> Box:
    """The title in a column on the right, the deck's name at the column's other end."""
    canvas, style = sheet.canvas, sheet.style
    family, palette = style.family, style.palette
    left, top, right, bottom = family.margins
    edge = canvas.width - right - family.column * canvas.width
    ink, muted = (palette.on_accent, palette.on_accent) if family.filled else (palette.ink, palette.muted)
    if family.filled:
        canvas.rect((edge, 0, canvas.width, canvas.height), fill=palette.accent)
    width = canvas.width - right - 16 - (edge + 14)
    size, lines = _title_lines(sheet, title, width, 7)
    while size > 11 and max(style.heading_bold.width(line, size) for line in lines) > width:
        size -= 1
        lines = wrap(title, style.heading_bold, size, width)
    low = family.flipped  # then the title stands at the foot of the column
    deck = wrap(sheet.deck, style.body, 12.0, width)
    heights = len(lines) * size * 1.18, len(deck) * 15.0
    y = canvas.height - 24 - bottom - heights[0] if low else 26 + top
    for number, line in enumerate(lines):
        draw_line(canvas, edge + 14, y + size * 1.18 * (number + 0.8), line, style.heading_bold, size, ink)
    y = 24 + top if low else canvas.height - 22 - bottom - heights[1]
    for number, line in enumerate(deck):
        draw_line(canvas, edge + 14, y + 15.0 * (number + 0.8), line, style.body, 12.0, muted)
    draw_line(canvas, 26 + left, canvas.height - 12 - bottom, str(sheet.number), style.body, 9, palette.muted)
    return 30 + left, 26 + top, edge - 20, canvas.height - 30 - bottom


def _foot(sheet: Sheet, title: str) -> Box:
    """The title under the content, the deck's name at the top."""
    canvas, style = sheet.canvas, sheet.style
    left, top, right, bottom = style.family.margins
    x0, x1 = 40 + left, canvas.width - 40 - right
    size, lines = _title_lines(sheet, title, x1 - x0, 2)
    y = canvas.height - 20 - bottom - len(lines) * size * 1.15
    canvas.polyline([(x0, y - 6), (x1, y - 6)], style.palette.accent, 1.4)
    for number, line in enumerate(lines):
        draw_line(canvas, x0, y + size * (0.9 + 1.15 * number), line, style.heading_bold, size, style.palette.ink)
    draw_line(canvas, x0, 28 + top, sheet.deck, style.bold, 12.5, style.palette.accent)
    draw_line(canvas, x1, 28 + top, str(sheet.number), style.body, 9, style.palette.muted, "right")
    return x0, 42 + top, x1, y - 16


def _footer(sheet: Sheet, left: float, right: float, with_deck: bool) -> None:
    canvas, style = sheet.canvas, sheet.style
    y, kind = canvas.height - 13 - (style.family.margins[3] if style.family.filled else 0), style.family.footer
    size = 12.0 if with_deck else 8.5
    number = str(sheet.number)
    if kind == "centre":
        draw_line(canvas, canvas.width / 2, y, number, style.body, 9, style.palette.muted, "center")
        return
    text = sheet.deck if with_deck else ""
    near, far = ("left", "right") if kind in ("left", "split") else ("right", "left")
    spots = {"left": left, "right": right}
    if text:
        draw_line(canvas, spots[near], y, text, style.body, size, style.palette.muted, near)
    draw_line(
        canvas,
        spots[far if text or kind == "split" else near],
        y,
        number,
        style.body,
        9,
        style.palette.muted,
        far if text or kind == "split" else near,
    )


def title_page(sheet: Sheet, headline: str, items: list[Statement]) -> None:
    """The first slide: the deck's name, a headline, who, when and where."""
    canvas, style, palette = sheet.canvas, sheet.style, sheet.style.palette
    sheet.title = headline
    bold = style.family.title in ("band", "sidebar", "rail")
    canvas.rect((0, 0, canvas.width, canvas.height), fill=palette.accent if bold else palette.paper)
    ink = palette.on_accent if bold else palette.ink
    align = "center" if style.family.title == "centre" else "left"
    left, right = (60.0, canvas.width - 60)
    size = fitting_size(sheet.deck, style.heading_bold, right - left, 110, 42, 26) or 26
    draw_lines(canvas, (left, 90, right, 200), sheet.deck, style.heading_bold, size, ink, align, "bottom")
    canvas.polyline(
        [(left, 212), (right if align == "center" else left + 150, 212)], ink if bold else palette.accent, 2
    )
    draw_lines(canvas, (left, 222, right, 270), headline, style.heading, 19, ink, align)
    _ornament(sheet, ink)
    y = 292.0
    for item in items:
        box = (left, y, right, y + 24)
        drawn = draw_lines(canvas, box, item.text, style.body, 15, ink, align)
        state(sheet, item, drawn, inset(drawn.box, -10, -4))
        y += 24


def _ornament(sheet: Sheet, ink: Colour) -> None:
    """What the first slide has beside its words, by family."""
    canvas, palette, kind = sheet.canvas, sheet.style.palette, sheet.style.family.title
    width, height = canvas.width, canvas.height
    if kind == "centre":
        canvas.rect((18, 18, width - 18, height - 18), stroke=palette.accent, width=1.5)
    elif kind == "plain":
        canvas.rect((0, height - 16, width, height), fill=palette.accent)
    elif kind == "underline":
        canvas.polyline([(60, 58), (width - 60, 58)], palette.accent, 1.0)
        canvas.polyline([(60, 62), (width - 60, 62)], palette.accent, 3.0)
    elif kind == "lower":
        canvas.rect((0, 0, width, 44), fill=palette.panel)
    else:
        for number in range(3):
            shade = mix(palette.accent, ink, 0.08 * (number + 1))
            canvas.rect((width - 30 * (3 - number), 0, width - 30 * (2 - number), height), fill=shade)


def agenda(sheet: Sheet, items: list[str]) -> None:
    """A numbered list of the deck's topics; the answers are layout facts."""
    content = frame(sheet, sheet.rng.choice(["Agenda", "Contents", "Outline", "Topics"]))
    style, size = sheet.style, 18.0
    step = min(44.0, (content[3] - content[1]) / len(items))
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
    for number, item in enumerate(items):
        y = content[1] + step * (number + 0.62)
        draw_line(sheet.canvas, content[0] + 6, y, f"{number + 1}", style.heading_bold, size, style.palette.accent)
        spot = draw_line(sheet.canvas, content[0] + 38, y, item, style.body, size, style.palette.ink)
        asks = (
            f"Which topic comes {words[number]} on the {sheet.title.lower()} slide" + " of the {deck} deck?",
            "In the {deck} deck, " + f"what is listed {words[number]} in the {sheet.title.lower()}?",
        )
        region = (content[0], content[1], content[2], content[1] + step * len(items))
        sheet.add(Fact("layout", item, spot, region, size, f"{sheet.title}", asks))


def closing(sheet: Sheet, items: list[Statement], notes: list[Statement]) -> None:
    """Next steps and whom to ask; the notes are about a page called "Next steps"."""
    content = frame(sheet, sheet.rng.choice(["Next steps", "Summary and next steps", "Outlook"]))
    notes = [about_page(note, "Next steps", sheet.title) for note in notes]
    footnote(sheet, (content[0], content[3] - 24, content[2], content[3]), notes)
    bullets(sheet, (content[0], content[1], content[2], content[3] - 32), items)
