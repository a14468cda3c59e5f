"""The pages of a slide deck: a frame with its title, and the arrangements of elements inside it.

`PAGES` maps a layout's name to how many blocks it takes and the function that draws it. Each function gets a `Sheet`,
the blocks, and a `say` function that yields statements nobody has used yet in this deck.
"""

from __future__ import annotations

from collections.abc import Callable

from vrag_nb.documents.decks.blocks import Block, Statement, join, small_print
from vrag_nb.documents.decks.canvas import Box
from vrag_nb.documents.decks.elements import (
    Fact,
    Sheet,
    bullets,
    card,
    chart_panel,
    footnote,
    state,
    table,
    table_panel,
)
from vrag_nb.documents.decks.typeset import LEADING, Lines, draw_line, draw_lines, fitting_size, inset, wrap

Say = Callable[[Block], list[Statement]]
Draw = Callable[[Sheet, list[Block], Say], None]


def frame(sheet: Sheet, title: str) -> Box:
    """Paper, title, footer; returns the box left for content."""
    sheet.title = title
    canvas, style = sheet.canvas, sheet.style
    canvas.rect((0, 0, canvas.width, canvas.height), fill=style.palette.paper)
    kind = style.family.title
    if kind == "sidebar":
        return _sidebar(sheet, title)
    left, right, top, ink, align = 40.0, canvas.width - 40, 40.0, style.palette.ink, "left"
    named = kind in ("plain", "centre", "rail", "lower")
    if kind == "rail":
        canvas.rect((0, 0, 12, canvas.height), fill=style.palette.accent)
    if kind == "centre":
        align = "center"
    size, lines = _title_lines(sheet, title, right - left, 2)
    height = len(lines) * size * 1.15
    if kind == "band":
        top = 14.0
        canvas.rect((0, 0, canvas.width, top + height + 14), fill=style.palette.accent)
        ink = style.palette.on_accent
    elif kind == "underline":
        top = 24.0
    elif kind == "lower":
        canvas.rect((0, 0, canvas.width, 26), fill=style.palette.panel)
    if named:
        x = {"left": left, "center": canvas.width / 2}[align]
        y = 18.0 if kind == "lower" else 32.0
        draw_line(canvas, x, y, sheet.deck, style.bold, 12.5, style.palette.accent, align)
    for number, line in enumerate(lines):
        x = {"left": left, "center": canvas.width / 2}[align]
        draw_line(canvas, x, top + size * (0.95 + 1.15 * number), line, style.heading_bold, size, ink, align)
    bottom = top + height + (22 if kind == "band" else 10)
    if kind == "underline":
        canvas.polyline([(left, bottom - 2), (right, bottom - 2)], style.palette.accent, 1.6)
        bottom += 8
    _footer(sheet, left, right, not named)
    return left, bottom, right, canvas.height - 34


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
        draw_line(canvas, 18, 34 + size * 1.18 * (number + 0.6), line, style.heading_bold, size, style.palette.on_accent)
    deck = wrap(sheet.deck, style.body, 12.5, 164)
    for number, line in enumerate(reversed(deck)):
        draw_line(canvas, 18, canvas.height - 26 - number * 15.5, line, style.body, 12.5, style.palette.on_accent)
    draw_line(canvas, canvas.width - 26, canvas.height - 14, str(sheet.number), style.body, 9, style.palette.muted, "right")
    return 220, 26, canvas.width - 26, canvas.height - 30


def _footer(sheet: Sheet, left: float, right: float, with_deck: bool) -> None:
    canvas, style = sheet.canvas, sheet.style
    y, kind = canvas.height - 13, style.family.footer
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
    draw_line(canvas, spots[far if text or kind == "split" else near], y, number, style.body, 9, style.palette.muted, far if text or kind == "split" else near)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- layouts


def _notes(sheet: Sheet, box: Box, chance: float = 0.6) -> Box:
    """Perhaps a footnote at the bottom of `box`; returns the rest."""
    if sheet.rng.random() > chance:
        return box
    items = [small_print(sheet.rng, sheet.title) for _ in range(sheet.rng.randint(1, 2))]
    if len({i.text.split(" ")[0] for i in items}) < len(items):
        items = items[:1]
    footnote(sheet, (box[0], box[3] - 24, box[2], box[3]), items)
    return box[0], box[1], box[2], box[3] - 30


def _beside(sheet: Sheet, box: Box, share: float) -> tuple[Box, Box]:
    """Cut `box` into the panel's part (`share` of the width) and the rest, on the family's sides."""
    width = (box[2] - box[0]) * share
    if sheet.style.family.side == "left":
        return (box[0], box[1], box[0] + width, box[3]), (box[0] + width + 22, box[1], box[2], box[3])
    return (box[2] - width, box[1], box[2], box[3]), (box[0], box[1], box[2] - width - 22, box[3])


def one_panel(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """A chart or a table beside bullets."""
    block = blocks[0]
    content = _notes(sheet, frame(sheet, block.title()))
    share = 0.56 if sheet.style.family.title == "sidebar" else sheet.rng.uniform(0.47, 0.54)
    place, rest = _beside(sheet, content, share)
    draw = table_panel if sheet.rng.random() < 0.42 else chart_panel
    kind, _ = draw(sheet, place, block)
    bullets(sheet, rest, say(block)[:4])
    _kind_fact(sheet, kind, place, block)


def _kind_fact(sheet: Sheet, kind: str, place: Box, block: Block) -> None:
    """What colour a group has: a question about the picture, not its text."""
    table_ = block.table
    if kind not in ("bar chart", "horizontal bar chart") or len(block.columns) < 2:
        return
    for number, column in enumerate(block.columns):
        colour = sheet.style.palette.series_names[number]
        name = table_.columns[column].name
        asks = (
            "In the {deck} deck, " + f'which colour stands for {name} in the chart "{block.title()}"?',
            f'Which colour marks {name} in the chart "{block.title()}"' + " of the {deck} deck?",
        )
        sheet.add(Fact("layout", colour, place, inset(place, -2), 8, f"{block.title()} chart", asks))


def wide_panel(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """A wide chart over two bullets."""
    block = blocks[0]
    content = _notes(sheet, frame(sheet, block.title()), 0.35)
    height = min(0.34 * 720 * 405 / (content[2] - content[0]), (content[3] - content[1]) * 0.6)
    chart_panel(sheet, (content[0], content[1], content[2], content[1] + height), block)
    bullets(sheet, (content[0], content[1] + height + 12, content[2], content[3]), say(block)[:3])


def two_panels(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Two panels side by side."""
    title = blocks[0].title() if blocks[0].title() == blocks[1].title() else _joint_title(blocks)
    content = _notes(sheet, frame(sheet, title), 0.7)
    half = (content[2] - content[0] - 18) / 2
    places = [(content[0], content[1], content[0] + half, content[3]), (content[2] - half, content[1], content[2], content[3])]
    _panels(sheet, places, blocks, ["on the left", "on the right"])


def dashboard(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Four panels in a square, or three in a row."""
    content = frame(sheet, _joint_title(blocks))
    if len(blocks) == 3:
        width = (content[2] - content[0] - 28) / 3
        places = [(content[0] + i * (width + 14), content[1], content[0] + i * (width + 14) + width, content[3] - 8) for i in range(3)]  # fmt: skip
        _panels(sheet, places, blocks, ["on the left", "in the middle", "on the right"])
        return
    width, height = (content[2] - content[0] - 14) / 2, (content[3] - content[1] - 12) / 2
    places = [
        (x, y, x + width, y + height) for y in (content[1], content[3] - height) for x in (content[0], content[2] - width)
    ]
    _panels(sheet, places, blocks, ["at the top left", "at the top right", "at the bottom left", "at the bottom right"])


def _joint_title(blocks: list[Block]) -> str:
    measures = list(dict.fromkeys(m for block in blocks for m in block.measures))
    spans = list(dict.fromkeys(block.span() for block in blocks))
    title = f"{join(measures[:4])} {blocks[0].table.scope}"
    return title + spans[0] if len(spans) == 1 else title


def _panels(sheet: Sheet, places: list[Box], blocks: list[Block], where: list[str]) -> None:
    for place, block, spot in zip(places, blocks, where, strict=False):
        draw = table_panel if sheet.rng.random() < 0.3 else chart_panel
        kind, caption = draw(sheet, place, block)
        name = "table" if kind == "table" else "chart"
        text = " ".join(caption.lines)
        if text.endswith("...") or len(caption.lines) > 1:
            continue
        asks = (
            "In the {deck} deck, " + f'what is the title of the {name} {spot} of the slide "{sheet.title}"?',
            f'What is the {name} {spot} on the slide "{sheet.title}"' + " of the {deck} deck called?",
        )
        sheet.add(Fact("layout", text, caption.box, inset(place, -2), caption.size, sheet.title, asks))


def full_table(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """A table over the whole width in print that can be read without cropping."""
    block = blocks[0]
    content = frame(sheet, block.title())
    size = next((s for s in (14.0, 13.0, 12.5, 12.0) if (len(block.rows) + 1.6) * s * 1.4 < content[3] - content[1]), 12.0)
    table(sheet, (content[0], content[1] + 4, content[2], content[3] - 2), block, size, inset(content, -4, 0))


def cards(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Three or four key figures over bullets."""
    block, rng = blocks[0], sheet.rng
    content = _notes(sheet, frame(sheet, f"{block.title()}: key figures"), 0.4)
    count = 3 if sheet.style.family.title == "sidebar" else rng.choice([3, 4])
    cells = [(r, c) for r in block.rows for c in block.columns]
    width = (content[2] - content[0] - 14 * (count - 1)) / count
    drawn = 0
    for row, column in rng.sample(cells, min(len(cells), 12)):
        x = content[0] + drawn * (width + 14)
        drawn += drawn < count and card(sheet, (x, content[1], x + width, content[1] + 112), block, row, column)
    bullets(sheet, (content[0], content[1] + (124 if drawn else 0), content[2], content[3]), say(block)[:3])


def text_page(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Bullets only, with a footnote."""
    content = _notes(sheet, frame(sheet, f"{blocks[0].title()}: main points"), 0.85)
    bullets(sheet, content, say(blocks[0])[:5])


def statement_page(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """One sentence, large."""
    items = say(blocks[0])
    content = _notes(sheet, frame(sheet, f"{blocks[0].title()}: the message"), 0.9)
    place = inset(content, 20, 16)
    style = sheet.style
    for item in items[:2]:
        size = fitting_size(item.text, style.heading_bold, place[2] - place[0] - 16, place[3] - place[1], 32, 20)
        if size is None:
            continue
        box = (place[0] + 16, place[1], place[2], place[3])
        lines = draw_lines(sheet.canvas, box, item.text, style.heading_bold, size, style.palette.ink, "left", "middle")
        bar = lines.box
        sheet.canvas.rect((place[0], bar[1], place[0] + 5, bar[3]), fill=style.palette.accent)
        state(sheet, item, lines, inset(lines.box, -12, -8))
        return


PAGES: dict[str, tuple[int, Draw]] = {
    "one panel": (1, one_panel),
    "wide panel": (1, wide_panel),
    "two panels": (2, two_panels),
    "dashboard": (4, dashboard),
    "three panels": (3, dashboard),
    "full table": (1, full_table),
    "cards": (1, cards),
    "text": (1, text_page),
    "statement": (1, statement_page),
}


# ----------------------------------------------------------------------------------------------- opening and closing


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
    lines = draw_lines(canvas, (left, 90, right, 200), sheet.deck, style.heading_bold, size, ink, align, "bottom")
    canvas.polyline([(left, 212), (right if align == "center" else left + 150, 212)], ink if bold else palette.accent, 2)
    draw_lines(canvas, (left, 222, right, 270), headline, style.heading, 19, ink, align)
    y = 292.0
    for item in items:
        box = (left, y, right, y + 24)
        drawn = draw_lines(canvas, box, item.text, style.body, 15, ink, align)
        state(sheet, item, drawn, inset(drawn.box, -10, -4))
        y += 24
    del lines


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
    """Next steps and whom to ask."""
    content = frame(sheet, sheet.rng.choice(["Next steps", "Summary and next steps", "Outlook"]))
    footnote(sheet, (content[0], content[3] - 24, content[2], content[3]), notes)
    bullets(sheet, (content[0], content[1], content[2], content[3] - 32), items)


def caption_height(lines: Lines) -> float:
    """Height of drawn lines with their leading."""
    return len(lines.lines) * lines.size * LEADING
