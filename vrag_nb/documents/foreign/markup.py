"""Facts inside HTML: a piece of text that answers a question becomes a numbered span, to be measured once laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.charts import Mark
from vrag_nb.documents.decks.elements import Fact
from vrag_nb.documents.decks.statements import Statement
from vrag_nb.documents.decks.typeset import loosen

NOWHERE = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Hue:
    """A chart colour and what a reader would call it."""

    name: str
    code: str


@dataclass
class Slide:
    """One slide being written: its HTML so far and the facts on it, numbered over the whole deck."""

    number: int
    title: str
    theme: str
    hues: Sequence[Hue]
    facts: dict[int, Fact]
    html: list[str] = field(default_factory=list)

    def spot(self, text: str, fact: Fact, tag: str = "span", attributes: str = "") -> str:
        """`text` as an element whose place will be measured for `fact`."""
        key = len(self.facts)
        self.facts[key] = replace(fact, page=self.number, page_title=self.title)
        return f'<{tag} data-fact="{key}" {attributes}>{escape(text)}</{tag}>'

    def cell(self, source: str, block: Block, row: int, column: int, tag: str = "span", attributes: str = "") -> str:
        """The value of a cell, as printed."""
        text = block.table.show(row, column)
        mark = Mark(row, column, text, NOWHERE)
        fact = Fact(source, text, NOWHERE, NOWHERE, 0, block.hint(row, column), (), mark, block, block.caption())
        return self.spot(text, fact, tag, attributes)

    def sentence(self, item: Statement) -> str:
        """A statement, its answer marked where it has questions."""
        text, answer = loosen(item.text), loosen(item.answer)
        if not item.asks:
            return escape(text)
        before, after = text[: item.place], text[item.place + len(answer) :]
        fact = Fact("text", answer, NOWHERE, NOWHERE, 0, item.hint, item.asks)
        return f"{escape(before)}{self.spot(answer, fact)}{escape(after)}"
