"""The slides of a foreign deck as one HTML document, and the facts on them still to be measured."""

from __future__ import annotations

import random
from html import escape
from pathlib import Path

from vrag_nb.documents.decks.blocks import Block, deal, joint_title
from vrag_nb.documents.decks.colophon import front_matter, method, next_steps, small_print
from vrag_nb.documents.decks.elements import Fact
from vrag_nb.documents.decks.statements import Statement, statements
from vrag_nb.documents.decks.tables import Series
from vrag_nb.documents.decks.typeset import loosen
from vrag_nb.documents.foreign.markup import NOWHERE, Hue, Slide
from vrag_nb.documents.foreign.svg_charts import CHARTS, chart_kinds

CSS = Path(__file__).with_name("themes.css")
HUES = tuple(Hue(*pair.split()) for pair in (
    "blue #3b7dd8", "orange #ef8a17", "green #4ca64c", "purple #8e5bb5", "red #d64541", "teal #17a2a2",
))  # fmt: skip
LOOKS = {  # theme: (head and body faces, paper, ink, accent, panel)
    "ledger": (
        ("'EB Garamond', serif", "Lato, sans-serif", "#fffdf7", "#2a2622", "#7a3b2e", "#f4eee2"),
        ("'Gentium Basic', serif", "'Open Sans', sans-serif", "#ffffff", "#1f2933", "#205072", "#eef2f5"),
    ),
    "tiles": (
        ("Lato, sans-serif", "Lato, sans-serif", "#eef1f8", "#222a3a", "#4457a8", "#ffffff"),
        ("Cantarell, sans-serif", "Carlito, sans-serif", "#f1f6ef", "#1f2b1f", "#2f7d4f", "#ffffff"),
    ),
    "night": (
        ("Roboto, sans-serif", "Roboto, sans-serif", "#14181f", "#eceff4", "#7fc8f8", "#1e2530"),
        ("Inter, sans-serif", "'Liberation Serif', serif", "#211a26", "#f2ecf5", "#f2b5d4", "#2d2433"),
    ),
}


class Writer:
    """Writes slides one after another; no statement and no title is used twice."""

    def __init__(self, rng: random.Random, series: Series, name: str) -> None:
        self.rng, self.series, self.name = rng, series, name
        self.theme = rng.choice(list(LOOKS))
        head, body, paper, ink, accent, panel = rng.choice(LOOKS[self.theme])
        self.colours = (
            f"--head:{head};--body:{body};--paper:{paper};--ink:{ink};--accent:{accent};--panel:{panel};"
            f"--muted:color-mix(in srgb, {ink} 65%, {paper});--edge:color-mix(in srgb, {ink} 25%, {paper})"
        )
        self.hues = rng.sample(HUES, len(HUES))
        self.facts: dict[int, Fact] = {}
        self.slides: list[Slide] = []
        self.used: set[str] = set()

    def slide(self, title: str) -> Slide:
        """A new slide; a title that is taken gets a number."""
        number = 1 + sum(slide.title.split(" · ")[0] == title for slide in self.slides)
        full = title if number == 1 else f"{title} · {number}"
        self.slides.append(Slide(len(self.slides) + 1, full, self.theme, self.hues, self.facts))
        return self.slides[-1]

    def fresh(self, items: list[Statement], count: int) -> list[Statement]:
        """The first `count` that say and ask something new."""
        kept = [item for item in items if not self.used & {item.text, *item.asks}][:count]
        for item in kept:
            self.used |= {item.text, *item.asks}
        return kept

    def document(self) -> str:
        """The whole deck."""
        sections = []
        for slide in self.slides:
            folio = f'<div class="folio">{escape(self.name)} — {slide.number}</div>'
            kind = "cover" if slide.number == 1 else ""
            sections.append(
                f'<section class="slide {self.theme} {kind}" data-page="{slide.number}">'
                f"{''.join(slide.html)}{folio}</section>"
            )
        style = f":root{{{self.colours}}}{CSS.read_text(encoding='utf-8')}"
        return f'<!doctype html><meta charset="utf-8"><style>{style}</style><body>{"".join(sections)}</body>'


def write_deck(rng: random.Random, series: Series, name: str) -> Writer:
    """A deck of 8 to 13 slides about `series`, called `name` in its questions."""
    writer = Writer(rng, series, name)
    _cover(writer)
    queue = [block for block in deal(rng, series, 20) if len(block.rows) > 2]
    while queue and len(writer.slides) < 11:
        layout, needs = rng.choices([(_beside, 1), (_two, 2), (_cards, 1), (_wide, 1), (_points, 1)], (8, 5, 2, 3, 2))[
            0
        ]
        layout(writer, [queue.pop(0) for _ in range(min(needs, len(queue)))])
    _list(writer, "How the figures were made", writer.fresh(method(rng), 4))
    _list(writer, "What happens next", writer.fresh(next_steps(rng), 4))
    return writer


def _cover(writer: Writer) -> None:
    slide = writer.slide(writer.name)
    lines = "".join(f"<p data-region>{slide.sentence(item)}</p>" for item in writer.fresh(front_matter(writer.rng), 3))
    source = escape(loosen(writer.series.source_line))
    slide.html.append(f"<h1>{escape(writer.name)}</h1><p>{source}</p>{lines}")


def _head(slide: Slide) -> None:
    slide.html.append(f"<h2>{escape(slide.title)}</h2>")


def _note(writer: Writer, slide: Slide, chance: float = 0.6) -> None:
    if writer.rng.random() < chance:
        items = writer.fresh([small_print(writer.rng, slide.title)], 1)
        slide.html += [f'<div class="note" data-region>{slide.sentence(item)}</div>' for item in items]


def _bullets(slide: Slide, items: list[Statement]) -> str:
    return f"<ul>{''.join(f'<li data-region>{slide.sentence(item)}</li>' for item in items)}</ul>"


def _list(writer: Writer, title: str, items: list[Statement]) -> None:
    slide = writer.slide(title)
    _head(slide)
    slide.html.append(f'<div class="body">{_bullets(slide, items)}</div>')
    _note(writer, slide)


def _points(writer: Writer, blocks: list[Block]) -> None:
    found = writer.fresh(statements(writer.rng, blocks[0]), 5)
    _list(writer, f"Findings: {blocks[0].title()}", found)


def _beside(writer: Writer, blocks: list[Block]) -> None:
    block = blocks[0].take(9)
    slide = writer.slide(block.title())
    _head(slide)
    panel = _panel(writer, slide, block, 560, 400, writer.rng.choice([13, 14, 15]))
    found = writer.fresh(statements(writer.rng, block), 4)
    slide.html.append(f'<div class="body beside">{panel}{_bullets(slide, found)}</div>')
    _note(writer, slide)


def _wide(writer: Writer, blocks: list[Block]) -> None:
    block = blocks[0].take(8)
    slide = writer.slide(block.title())
    _head(slide)
    slide.html.append(f'<div class="body">{_table(slide, block, writer.rng.choice([18, 22, 25]))}</div>')
    _note(writer, slide, 0.4)


def _two(writer: Writer, blocks: list[Block]) -> None:
    blocks = [block.take(7) for block in blocks]
    slide = writer.slide(joint_title(blocks))
    _head(slide)
    size = writer.rng.choice([12, 13, 14])
    sides = ("left", "right") if len(blocks) > 1 else ("",)
    panels = [_panel(writer, slide, b, 500, 360, size, side) for b, side in zip(blocks, sides, strict=True)]
    slide.html.append(f'<div class="body">{"".join(panels)}</div>')
    _note(writer, slide, 0.8)


def _cards(writer: Writer, blocks: list[Block]) -> None:
    block, rng = blocks[0], writer.rng
    slide = writer.slide(f"At a glance: {block.title()}")
    _head(slide)
    cells = rng.sample(
        [(row, column) for row in block.rows for column in block.columns], 4 if len(block.rows) > 3 else 2
    )
    cards = []
    for row, column in cells:
        words = block.table.say(row, column)
        what = f'<span class="what">{escape(words[0].upper() + words[1:])}</span>'
        cards.append(f'<div class="card" data-region>{slide.cell("text", block, row, column, "b")}{what}</div>')
    slide.html.append(f'<div class="cards">{"".join(cards)}</div>')
    _note(writer, slide, 0.4)


def _panel(writer: Writer, slide: Slide, block: Block, width: int, height: int, size: float, side: str = "") -> str:
    """A chart, or where none fits (and now and then instead) a table, under its caption."""
    kinds = chart_kinds(writer.rng, block)
    caption = block.caption(alone=not side)
    title = escape(caption)
    if side:
        asks = (
            f'In the {{deck}} deck, what is the title of the panel on the {side} of the slide "{slide.title}"?',
            f'What is the panel on the {side} on the slide "{slide.title}" of the {{deck}} deck called?',
        )
        title = slide.spot(caption, Fact("layout", caption, NOWHERE, NOWHERE, 0, slide.title, asks))
    if kinds and writer.rng.random() < 0.7:
        inside = CHARTS[kinds[0]](slide, block, width, height, size)
    else:
        inside = _table(slide, block, size, bare=True)
    return (
        f'<div class="panel" data-region><div class="caption" style="font-size:{size + 2}px">{title}</div>'
        f"{inside}</div>"
    )


def _table(slide: Slide, block: Block, size: float, bare: bool = False) -> str:
    """A table of the block; several columns of one measure stand under a header that spans them."""
    table = block.table
    units = [
        f"{table.columns[c].name}{f' ({table.columns[c].unit})' if table.columns[c].unit else ''}"
        for c in block.columns
    ]
    group = ""
    if table.measure and len(block.columns) > 1:
        group = f'<tr class="group"><th></th><th colspan="{len(block.columns)}">{escape(table.measure)}</th></tr>'
    head = "".join(f"<th>{escape(name)}</th>" for name in units)
    rows = "".join(
        f"<tr><td>{escape(table.labels[row])}</td>"
        + "".join(f"<td>{slide.cell('table', block, row, column)}</td>" for column in block.columns)
        + "</tr>"
        for row in block.rows
    )
    region = "" if bare else " data-region"
    top = f"{group}<tr><th>{escape(table.row_header)}</th>{head}</tr>"
    return f'<table{region} style="font-size:{size}px">{top}{rows}</table>'
