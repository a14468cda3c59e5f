"""One deck from one series: which pages, about which blocks, drawn in which order.

`make_deck` is the way in, and `make_panels` for lessons on charts and tables alone. Everything in a deck follows from
its random generator, its series and its family.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from vrag_nb.documents.decks.blocks import Block, deal
from vrag_nb.documents.decks.canvas import Book
from vrag_nb.documents.decks.colophon import (
    PROSE,
    Register,
    front_matter,
    method,
    next_steps,
    plain,
    registers,
    small_print,
)
from vrag_nb.documents.decks.elements import Fact, Sheet, bullets
from vrag_nb.documents.decks.frames import agenda, closing, frame, title_page
from vrag_nb.documents.decks.layouts import PAGES, registers_page
from vrag_nb.documents.decks.panels import chart_panel, table_panel
from vrag_nb.documents.decks.reports import cover, report_page
from vrag_nb.documents.decks.statements import Statement, statements
from vrag_nb.documents.decks.tables import Series
from vrag_nb.documents.decks.themes import Family, Style, choose_style

_ROWS = {
    "one panel": 9,
    "wide panel": 9,
    "two panels": 8,
    "dashboard": 5,
    "three panels": 7,
    "full table": 8,
    "cards": 8,
}
_WEIGHTS = {
    "one panel": 30, "wide panel": 8, "two panels": 20, "dashboard": 12, "three panels": 6, "full table": 8,
    "cards": 7, "text": 7, "statement": 5,
}  # fmt: skip
HEADLINES = (
    "A data briefing", "Facts and figures", "Key indicators at a glance", "Review of the numbers",
    "Statistical summary", "What the data show", "Briefing for the board", "Results and comparisons",
    "The figures in detail",
)  # fmt: skip


FURTHER_TOPICS = ("Data and method", "Organisation", "Background", "Open questions", "Earlier editions")


@dataclass
class Deck:
    """A finished deck: its PDF and every fact on its pages (boxes in page points)."""

    deck_id: str
    name: str
    series: Series
    family: str
    pdf: bytes
    facts: list[Fact]
    sizes: list[tuple[float, float]]  # width and height of each page, in points


class _Writer:
    """Hands out sheets and unused statements while the pages are drawn."""

    def __init__(self, rng: random.Random, series: Series, style: Style, name: str) -> None:
        self.rng, self.series, self.style, self.name = rng, series, style, name
        self.book = Book(name, series.source_line)
        self.sheets: list[Sheet] = []
        self.said: set[str] = set()
        self.titles: dict[str, int] = {}

    def sheet(self, size: tuple[float, float] | None = None) -> Sheet:
        """A new page; size: width and height in points, the family's by default."""
        number = len(self.sheets) + 1
        page = self.book.page(*(size or self.style.family.page_size))
        self.sheets.append(Sheet(page, self.style, self.rng, self.name, number, titles=self.titles))
        return self.sheets[-1]

    def say(self, block: Block) -> list[Statement]:
        """Statements about `block` that the deck has not made yet, with questions not asked yet."""
        return self.fresh(statements(self.rng, block, brief=not self.style.report))

    def fresh(self, items: list[Statement], count: int | None = None) -> list[Statement]:
        """The first `count` that say and ask something new; the others may still be said."""
        kept = [item for item in items if not self.said & {item.text, *item.asks}][:count]
        for item in kept:
            self.said |= {item.text, *item.asks}
        return kept


def make_deck(rng: random.Random, series: Series, family: Family, deck_id: str, name: str = "") -> Deck:
    """Draw a deck about `series` in `family`; `name` (default: the series') is what questions call it."""
    name = name or series.name
    style = choose_style(rng, family, _alphabet(series, name))
    writer = _Writer(rng, series, style, name)
    (_report if style.report else _slides)(writer)
    return _finished(writer, deck_id)


def make_panels(rng: random.Random, series: Series, family: Family, deck_id: str, count: int) -> Deck:
    """Up to `count` charts and tables about `series`, each with a few rows and alone on a small page."""
    writer = _Writer(rng, series, choose_style(rng, family, _alphabet(series, series.name)), series.name)
    for block in deal(rng, series, 2 * count)[:count]:
        width, height = rng.uniform(110, 200), rng.uniform(75, 150)
        sheet = writer.sheet((width, height))
        sheet.canvas.rect((0, 0, width, height), fill=writer.style.palette.paper)
        left, top = rng.uniform(1, 6), rng.uniform(1, 6)
        draw = chart_panel if rng.random() < 0.75 else table_panel
        rows = rng.randint(2, max(2, min(6, int(height / 14) - 3)))  # as many as a table has room for
        draw(sheet, (left, top, width - 3, height - 3), block.take(rows), rng.random() < 0.5)
    return _finished(writer, deck_id)


def _finished(writer: _Writer, deck_id: str) -> Deck:
    facts = [fact for sheet in writer.sheets for fact in sheet.facts]
    writer.book.outline = [sheet.title for sheet in writer.sheets]
    sizes = [(sheet.canvas.width, sheet.canvas.height) for sheet in writer.sheets]
    return Deck(deck_id, writer.name, writer.series, writer.style.family.name, writer.book.pdf(), facts, sizes)


def _alphabet(series: Series, name: str) -> str:
    """Every character the series may need drawn."""
    parts = [name, "–"]
    for table in series.tables:
        parts += [table.scope, table.measure, table.row_header, table.rows_plural, *table.labels]
        parts += [f"{c.name}{c.unit}{c.prefix}{c.suffix}" for c in table.columns]
    return "".join(dict.fromkeys("".join(parts)))


def _slides(writer: _Writer) -> None:
    rng = writer.rng
    count = rng.randint(6, 11)
    pages = _plan(rng, deal(rng, writer.series, 2 * count), count)
    tables = registers(rng)
    while len(pages) < 5:  # small tables: the deck says more about itself
        pages.append(("registers", []))
    for extra in ("method", "registers"):
        if rng.random() < 0.5:
            pages.insert(rng.randrange(len(pages) + 1), (extra, []))
    title_page(writer.sheet(), rng.choice(HEADLINES), front_matter(rng))
    topics = [t for t in dict.fromkeys(m for _, blocks in pages for b in blocks for m in b.measures) if len(t) < 44]
    topics = topics[: rng.randint(3, 5)]
    topics += rng.sample(FURTHER_TOPICS, max(rng.randint(0, 1), 4 - len(topics)))
    agenda(writer.sheet(), [*topics, "Next steps"])
    for layout, blocks in pages[:11]:
        _page(writer, layout, blocks, tables)
    closing(writer.sheet(), writer.fresh(next_steps(rng)), [small_print(rng, "Next steps")])


def _page(writer: _Writer, layout: str, blocks: list[Block], tables: list[Register]) -> None:
    """One slide; a page of registers takes one or two of `tables`."""
    if layout == "registers" and not tables:
        layout = "method"
    sheet = writer.sheet()
    if layout == "registers":
        items = [tables.pop() for _ in range(min(len(tables), writer.rng.choice([1, 1, 2])))]
        notes = [*writer.fresh(method(writer.rng), 2), *plain(writer.rng.sample(PROSE, 3))]
        registers_page(sheet, items, notes[:3])
    elif layout == "method":
        content = frame(sheet, writer.rng.choice(["Data and method", "How the numbers came about", "Method"]))
        # a third such page has nothing new to say of the method
        bullets(sheet, content, writer.fresh(method(writer.rng), 4) or plain(writer.rng.sample(PROSE, 3)))
    else:
        PAGES[layout][1](sheet, blocks, writer.say)


def _plan(rng: random.Random, blocks: list[Block], count: int) -> list[tuple[str, list[Block]]]:
    """Layouts with their blocks, until `count` pages are planned or the blocks run out."""
    pages: list[tuple[str, list[Block]]] = []
    queue = list(blocks)
    while queue and len(pages) < count:
        spare = len(queue) - (count - len(pages)) + 1  # how many blocks this page may use if the others use one each
        able = [layout for layout, (needs, _) in PAGES.items() if needs <= max(1, spare)]
        layout = rng.choices(able, [_WEIGHTS[layout] for layout in able])[0]
        if layout == "full table":
            queue.sort(key=lambda block: -len(block.columns))
        taken = [queue.pop(0) for _ in range(PAGES[layout][0])]
        if len(taken) > 1:
            taken.sort(key=lambda block: (block.table.table_id, block.columns, block.rows))
        pages.append((layout, [block.take(_ROWS.get(layout, 12)) for block in taken]))
    return pages


def _report(writer: _Writer) -> None:
    rng = writer.rng
    blocks = [block.take(9) for block in deal(rng, writer.series, 24)]
    blocks.sort(key=lambda block: (block.table.table_id, block.rows, block.columns))
    per_page = max(1, min(4, len(blocks) // 8))
    groups = [blocks[i : i + per_page] for i in range(0, len(blocks), per_page)]
    rng.shuffle(groups)
    groups = groups[: rng.randint(8, 12)]
    contents = list(dict.fromkeys(m for group in groups for b in group for m in b.measures))[:8]
    cover(writer.sheet(), rng.choice(HEADLINES), front_matter(rng), contents)
    extra, tables = writer.fresh(method(rng)), registers(rng)
    pages: list[list[Block]] = [*groups, *[[] for _ in range(max(1, 7 - len(groups)))]]
    for group in pages:
        notes = [extra.pop() for _ in range(min(2, len(extra)))]
        some = [
            tables.pop()
            for _ in range(min(len(tables), 2 if not group else int(rng.random() < 0.3 and len(tables) > 2)))
        ]
        if group or some:
            report_page(writer.sheet(), group, writer.say, notes, some)
