"""One deck from one series: which pages, about which blocks, drawn in which order.

`make_deck` is the only way in. Everything in a deck follows from its random generator, its series and its family.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from vrag_nb.documents.decks.blocks import Block, Statement, deal, small_print, statements
from vrag_nb.documents.decks.canvas import Book
from vrag_nb.documents.decks.colophon import front_matter, method, next_steps
from vrag_nb.documents.decks.elements import Fact, Sheet
from vrag_nb.documents.decks.layouts import PAGES, agenda, closing, dashboard, frame, text_page, title_page
from vrag_nb.documents.decks.elements import bullets
from vrag_nb.documents.decks.reports import cover, report_page
from vrag_nb.documents.decks.tables import Series
from vrag_nb.documents.decks.themes import A4, SLIDE, Family, Style, choose_style

_ROWS = {"one panel": 9, "wide panel": 9, "two panels": 8, "dashboard": 5, "three panels": 7, "full table": 8, "cards": 8}
_WEIGHTS = {
    "one panel": 30, "wide panel": 8, "two panels": 20, "dashboard": 12, "three panels": 6, "full table": 8,
    "cards": 7, "text": 7, "statement": 5,
}  # fmt: skip
_HEADLINES = (
    "A data briefing", "Facts and figures", "Key indicators at a glance", "Review of the numbers", "Statistical summary",
    "What the data show", "Briefing for the board", "Results and comparisons", "The figures in detail",
)  # fmt: skip


@dataclass
class Deck:
    """A finished deck: its PDF and every fact on its pages (boxes in page points)."""

    deck_id: str
    name: str
    series: Series
    style: Style
    pdf: bytes
    facts: list[Fact]
    sizes: list[tuple[float, float]]  # width and height of each page, in points
    absent: list[tuple[Block, int]] = field(default_factory=list)  # rows of the tables that no page shows


class _Writer:
    """Hands out sheets and unused statements while the pages are drawn."""

    def __init__(self, rng: random.Random, series: Series, style: Style, name: str) -> None:
        self.rng, self.series, self.style, self.name = rng, series, style, name
        self.book = Book(name, series.source_line)
        self.sheets: list[Sheet] = []
        self.said: set[str] = set()

    def sheet(self) -> Sheet:
        width, height = A4 if self.style.report else SLIDE
        number = len(self.sheets) + 1
        self.sheets.append(Sheet(self.book.page(width, height), self.style, self.rng, self.name, number))
        return self.sheets[-1]

    def say(self, block: Block) -> list[Statement]:
        """Statements about `block` that the deck has not made yet, with questions not asked yet."""
        return self.fresh(statements(self.rng, block))

    def fresh(self, items: list[Statement]) -> list[Statement]:
        kept = [item for item in items if not self.said & {item.text, *item.asks}]
        for item in kept:
            self.said |= {item.text, *item.asks}
        return kept


def make_deck(rng: random.Random, series: Series, family: Family, deck_id: str, name: str = "") -> Deck:
    """Draw a deck about `series` in `family`; `name` (default: the series') is what questions call it."""
    name = name or series.name
    words = name + "".join(label for table in series.tables for label in table.labels) + "–—•▪€£$%°0123456789"
    style = choose_style(rng, family, "".join(dict.fromkeys(words + _alphabet(series))))
    writer = _Writer(rng, series, style, name)
    (_report if style.report else _slides)(writer)
    facts = [fact for sheet in writer.sheets for fact in sheet.facts]
    sizes = [(sheet.canvas.width, sheet.canvas.height) for sheet in writer.sheets]
    return Deck(deck_id, name, series, style, writer.book.pdf(), facts, sizes)


def _alphabet(series: Series) -> str:
    parts = [series.source_line, series.name]
    for table in series.tables:
        parts += [table.scope, table.measure, table.row_header, table.rows_plural]
        parts += [f"{c.name}{c.unit}{c.prefix}{c.suffix}" for c in table.columns]
    return "".join(parts)


def _deal(rng: random.Random, series: Series, wanted: int) -> list[Block]:
    """The richest of a few deals: enough blocks for `wanted` where the tables allow it."""
    best: list[Block] = []
    for _ in range(5):
        blocks = deal(rng, series)
        if len(blocks) > len(best):
            best = blocks
        if len(best) >= wanted:
            break
    return best


def _slides(writer: _Writer) -> None:
    rng = writer.rng
    pages = _plan(rng, _deal(rng, writer.series, 18), rng.randint(6, 11))
    title_page(writer.sheet(), rng.choice(_HEADLINES), front_matter(rng))
    topics = list(dict.fromkeys(m for _, blocks in pages for b in blocks for m in b.measures))[:5]
    topics = [t for t in topics if len(t) < 44]
    agenda(writer.sheet(), [*topics, "Next steps"])
    for layout, blocks in pages:
        sheet = writer.sheet()
        if layout == "method":
            content = frame(sheet, f"Data and method: {writer.series.tables[0].scope}")
            bullets(sheet, content, writer.fresh(method(rng))[:4])
        else:
            PAGES[layout][1](sheet, blocks, writer.say)
    closing(writer.sheet(), writer.fresh(next_steps(rng)), [small_print(rng, "Next steps")])


def _plan(rng: random.Random, blocks: list[Block], count: int) -> list[tuple[str, list[Block]]]:
    """Layouts with their blocks, until `count` pages are planned or the blocks run out."""
    pages: list[tuple[str, list[Block]]] = []
    queue = list(blocks)
    while queue and len(pages) < count:
        able = [layout for layout, (needs, _) in PAGES.items() if needs <= len(queue)]
        if len(queue) < count - len(pages) + 2:
            able = [layout for layout in able if PAGES[layout][0] == 1]
        layout = rng.choices(able, [_WEIGHTS[layout] for layout in able])[0]
        taken = [queue.pop(0) for _ in range(PAGES[layout][0])]
        if PAGES[layout][0] > 1:
            taken.sort(key=lambda block: (block.table.table_id, block.columns, block.rows))
        pages.append((layout, [block.take(_ROWS.get(layout, 12)) for block in taken]))
    if rng.random() < 0.5 or len(pages) < 5:
        pages.insert(rng.randrange(len(pages) + 1), ("method", []))
    return pages


def _report(writer: _Writer) -> None:
    rng = writer.rng
    blocks = _deal(rng, writer.series, 30)
    per_page = 2 if len(blocks) < 18 else 3
    groups = [blocks[i : i + per_page] for i in range(0, len(blocks), per_page)][: rng.randint(7, 12)]
    contents = list(dict.fromkeys(m for group in groups for b in group for m in b.measures))[:8]
    cover(writer.sheet(), rng.choice(_HEADLINES), front_matter(rng), contents)
    extra = writer.fresh(method(rng))
    for number, group in enumerate(groups):
        share = extra[number * 2 : number * 2 + 2]
        report_page(writer.sheet(), [block.take(9) for block in group], writer.say, share)


__all__ = ["Deck", "dashboard", "make_deck", "text_page"]
