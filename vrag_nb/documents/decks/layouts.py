"""The content slides of a deck: arrangements of elements inside a frame.

`PAGES` maps a layout's name to how many blocks it takes and the function that draws it. Each function gets a `Sheet`,
the blocks, and a `say` function that yields statements nobody has used yet in this deck.
"""

from __future__ import annotations

from collections.abc import Callable

from vrag_nb.documents.decks.blocks import Block, joint_title
from vrag_nb.documents.decks.canvas import Box
from vrag_nb.documents.decks.colophon import Register, small_print
from vrag_nb.documents.decks.elements import Fact, Sheet, bullets, card, footnote, panel_size, state
from vrag_nb.documents.decks.frames import frame
from vrag_nb.documents.decks.panels import VARIANT, chart_panel, register_panel, table, table_panel
from vrag_nb.documents.decks.statements import Statement
from vrag_nb.documents.decks.typeset import draw_lines, fitting_size, inset

Say = Callable[[Block], list[Statement]]
Draw = Callable[[Sheet, list[Block], Say], None]


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
    share = 0.56 if sheet.style.family.title == "sidebar" else sheet.rng.uniform(*sheet.style.family.panel_share)
    place, rest = _beside(sheet, content, share)
    draw = table_panel if sheet.rng.random() < 0.42 else chart_panel
    kind, _, place = draw(sheet, place, block)
    bullets(sheet, rest, say(block)[:4], "top" if kind == "table" else "middle")
    _kind_facts(sheet, kind, place, block)


def _kind_facts(sheet: Sheet, kind: str, place: Box, block: Block) -> None:
    """Questions about the picture, not its text: what kind of chart, which colour stands for which group."""
    if kind in ("table", VARIANT):
        return
    region, hint, title = inset(place, -2), f"{sheet.title} chart", f'"{sheet.title}"'
    asks = (
        f"In the {{deck}} deck, what kind of chart is on the slide {title}?",
        f"Which type of chart does the slide {title} of the {{deck}} deck use?",
    )
    sheet.add(Fact("layout", kind, place, region, 12, hint, asks, printed=False))
    if kind == "pie chart" or len(block.columns) < 2 or (kind == "line chart" and block.table.rows_are != "time"):
        return
    for number, column in enumerate(block.columns):
        name = block.table.columns[column].name
        asks = (
            f"In the {{deck}} deck, which colour stands for {name} in the chart on the slide {title}?",
            f"Which colour marks {name} in the chart on the slide {title} of the {{deck}} deck?",
        )
        colour = sheet.style.palette.series_names[number]
        sheet.add(Fact("layout", colour, place, region, 8, hint, asks, printed=False))


def wide_panel(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """A wide chart over two bullets."""
    block = blocks[0]
    content = _notes(sheet, frame(sheet, block.title()), 0.35)
    height = min(0.34 * 720 * 405 / (content[2] - content[0]), (content[3] - content[1]) * 0.6)
    if sheet.style.family.flipped:
        bullets(sheet, (content[0], content[1], content[2], content[3] - height - 12), say(block)[:3])
        kind, _, place = chart_panel(sheet, (content[0], content[3] - height, content[2], content[3]), block)
    else:
        kind, _, place = chart_panel(sheet, (content[0], content[1], content[2], content[1] + height), block)
        bullets(sheet, (content[0], place[3] + 12, content[2], content[3]), say(block)[:3])
    _kind_facts(sheet, kind, place, block)


def two_panels(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Two panels side by side."""
    content = _notes(sheet, frame(sheet, joint_title(blocks)), 0.7)
    first = (content[2] - content[0] - 18) * sheet.style.family.cut
    places = [
        (content[0], content[1], content[0] + first, content[3]),
        (content[0] + first + 18, content[1], content[2], content[3]),
    ]
    bottom = _panels(sheet, places, blocks, ["on the left", "on the right"])
    if content[3] - bottom > 60:
        bullets(sheet, (content[0], bottom + 12, content[2], content[3]), [s for b in blocks for s in say(b)[:1]])


def dashboard(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Four panels in a square, or three in a row."""
    content = frame(sheet, joint_title(blocks))
    if len(blocks) == 3:
        width = (content[2] - content[0] - 28) / 3
        places = [
            (content[0] + i * (width + 14), content[1], content[0] + i * (width + 14) + width, content[3] - 8)
            for i in range(3)
        ]
        _panels(sheet, places, blocks, ["on the left", "in the middle", "on the right"])
        return
    first, height = (content[2] - content[0] - 14) * sheet.style.family.cut, (content[3] - content[1] - 12) / 2
    places = [
        (x0, y, x1, y + height)
        for y in (content[1], content[3] - height)
        for x0, x1 in ((content[0], content[0] + first), (content[0] + first + 14, content[2]))
    ]
    _panels(sheet, places, blocks, ["at the top left", "at the top right", "at the bottom left", "at the bottom right"])


def _panels(sheet: Sheet, places: list[Box], blocks: list[Block], where: list[str]) -> float:
    """A panel in each place, with its title as a layout fact; returns the lowest edge of the panels."""
    lowest = 0.0
    for place, block, spot in zip(places, blocks, where, strict=False):
        draw = table_panel if sheet.rng.random() < 0.3 else chart_panel
        kind, caption, place = draw(sheet, place, block, alone=len({b.row_span() for b in blocks}) == 1)
        lowest = max(lowest, place[3])
        name = "table" if kind == "table" else "chart"
        text = " ".join(caption.lines)
        if text.endswith("...") or len(caption.lines) > 1:
            continue
        asks = (
            "In the {deck} deck, " + f'what is the title of the {name} {spot} of the slide "{sheet.title}"?',
            f'What is the {name} {spot} on the slide "{sheet.title}"' + " of the {deck} deck called?",
        )
        sheet.add(Fact("layout", text, caption.box, inset(place, -2), caption.size, sheet.title, asks))
    return lowest


def full_table(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """A table over the whole width in print that can be read without cropping."""
    block = blocks[0]
    content = frame(sheet, block.title())
    room = content[3] - content[1]
    size = next((s for s in (16.0, 15.0) if (len(block.rows) + 1.6) * s * 1.4 < room), 14.5)
    table(sheet, (content[0], content[1] + 4, content[2], content[3] - 2), block, size, inset(content, -4, 0), 2.9)


def cards(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Three or four key figures over bullets."""
    block, rng = blocks[0], sheet.rng
    content = _notes(sheet, frame(sheet, f"Key figures: {block.title()}"), 0.4)
    count = 3 if sheet.style.family.title in ("sidebar", "aside") else rng.choice([3, 4])
    cells = [(r, c) for r in block.rows for c in block.columns]
    width = (content[2] - content[0] - 14 * (count - 1)) / count
    drawn = 0
    for row, column in rng.sample(cells, min(len(cells), 12)):
        x = content[0] + drawn * (width + 14)
        drawn += drawn < count and card(sheet, (x, content[1], x + width, content[1] + 112), block, row, column)
    bullets(sheet, (content[0], content[1] + (124 if drawn else 0), content[2], content[3]), say(block)[:3])


def text_page(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """Bullets only, with a footnote."""
    content = _notes(sheet, frame(sheet, f"Main points: {blocks[0].title()}"), 0.85)
    bullets(sheet, content, say(blocks[0])[:5])


def statement_page(sheet: Sheet, blocks: list[Block], say: Say) -> None:
    """One sentence, large."""
    items = say(blocks[0])
    content = _notes(sheet, frame(sheet, f"In brief: {blocks[0].title()}"), 0.9)
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


def registers_page(sheet: Sheet, items: list[Register], notes: list[Statement]) -> None:
    """The team, the milestones, the budget: one table of words beside bullets, or two over bullets."""
    content = _notes(sheet, frame(sheet, joint([item.title for item in items])), 0.4)
    if len(items) == 1:
        place, rest = _beside(sheet, content, 0.5)
        register_panel(sheet, place, items[0], panel_size(sheet.rng, place))
        bullets(sheet, rest, notes[:3], "top")
        return
    width, size = (content[2] - content[0] - 20) / 2, panel_size(sheet.rng, (0, 0, 310, 190))
    bottom = content[1]
    for number, item in enumerate(items[:2]):
        x = content[0] + number * (width + 20)
        bottom = max(bottom, register_panel(sheet, (x, content[1], x + width, content[3]), item, size)[3])
    bullets(sheet, (content[0], bottom + 14, content[2], content[3]), notes[:2])


def joint(names: list[str]) -> str:
    """Titles in one."""
    return " and ".join([names[0], *(name.lower() for name in names[1:])])


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
