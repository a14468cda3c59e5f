"""Blocks: the parts a deck's tables are cut into, each shown on one page only.

No cell is dealt twice within a deck, so a cell's value stands on exactly one page and a question about it has one gold
region.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from vrag_nb.documents.decks.tables import Series, Table, lower


@dataclass(frozen=True)
class Block:
    """Some rows and columns of a table."""

    table: Table
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    split_rows: bool = False  # the table's other rows stand in another block

    def take(self, rows: int) -> Block:
        """The first `rows` rows."""
        return Block(self.table, self.rows[:rows], self.columns, self.split_rows or rows < len(self.rows))

    @property
    def measures(self) -> list[str]:
        """What is measured, each once."""
        return list(dict.fromkeys(self.table.measure_of(c) for c in self.columns))

    @property
    def unit(self) -> str:
        """The unit all columns share, or nothing."""
        units = {self.table.columns[c].unit for c in self.columns}
        return units.pop() if len(units) == 1 else ""

    @property
    def row_range(self) -> str:
        """ "Albania to Greece", or "1948–1955"."""
        first, last = self.table.labels[self.rows[0]], self.table.labels[self.rows[-1]]
        return f"{first}–{last}" if self.by_year else f"{first} to {last}"

    @property
    def by_year(self) -> bool:
        return self.table.rows_are == "time" and self.table.labels[self.rows[0]].isdigit()

    def column_span(self) -> str:
        """ ", 1990–2010" for times, " (Male and female)" for groups, nothing for measures."""
        names = [self.table.columns[c].name for c in self.columns]
        if self.table.columns_are == "time":
            return f", {names[0]}" if len(names) == 1 else f", {names[0]}–{names[-1]}"
        return f" ({join(names)})" if self.table.measure else ""

    def row_span(self) -> str:
        """The rows where they are times or only a part of the table's."""
        if self.by_year:
            return f", {self.row_range}"
        return f": {self.row_range}" if self.split_rows or self.table.rows_are == "time" else ""

    def title(self) -> str:
        """The full title: measure, scope, span."""
        return f"{join(self.measures)} {self.table.scope}{self.column_span()}{self.row_span()}"

    def caption(self, alone: bool = True) -> str:
        """A panel's title: measure, span and unit; without its rows where the page's title names them already."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{join(self.measures)}{self.column_span()}{'' if alone else self.row_span()}{unit}"

    def when(self, column: int) -> str:
        """The column inside a sentence: " in 2007", " (Female)" or nothing."""
        name = self.table.columns[column].name
        if self.table.columns_are == "time":
            return f" in {name}"
        return f" ({name})" if self.table.measure else ""

    def hint(self, row: int, column: int) -> str:
        """Words to search for when this cell is wanted: measure, column, row."""
        table = self.table
        name = table.columns[column].name if table.measure else ""
        return " ".join(word for word in (table.measure_of(column), name, table.labels[row]) if word)

    def who(self, brief: bool = False) -> str:
        """The rows as a group: "the 8 countries from Albania to Greece", or briefly "the 8 countries"."""
        if self.by_year:
            return self.row_range
        group = f"the {len(self.rows)} {self.table.rows_plural}"
        return group if brief else f"{group} from {self.row_range}"


def join(names: list[str]) -> str:
    """ "A, B and C", all but the first with small initials where they are ordinary words."""
    words = [names[0], *(lower(name) for name in names[1:])]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def joint_title(blocks: list[Block]) -> str:
    """A title over several blocks: all measures, then the spans they share."""
    title = f"{join(list(dict.fromkeys(m for b in blocks for m in b.measures))[:4])} {blocks[0].table.scope}"
    tables = {b.table.table_id for b in blocks}
    if len(tables) == 1 and blocks[0].table.columns_are == "time":
        names = sorted({b.table.columns[c].name for b in blocks for c in b.columns})
        title += f", {names[0]}" if len(names) == 1 else f", {names[0]}–{names[-1]}"
    elif len({b.column_span() for b in blocks}) == 1:
        title += blocks[0].column_span()
    return title + (blocks[0].row_span() if len({b.row_span() for b in blocks}) == 1 else "")


def deal(rng: random.Random, series: Series, wanted: int) -> list[Block]:
    """Cut the series' tables into blocks that share no cell, in random order: about `wanted`, as far as they reach."""
    best: list[Block] = []
    for widest in (3, 3, 2, 1):
        blocks = [block for table in series.tables for block in _cut_table(rng, table, widest)]
        if len(blocks) > len(best):
            best = blocks
        if len(best) >= wanted:
            break
    rng.shuffle(best)
    return best


def _cut_table(rng: random.Random, table: Table, widest: int) -> list[Block]:
    rows, columns = _choose_rows(rng, table), list(range(len(table.columns)))
    if len(columns) > 6:
        start = rng.randrange(len(columns) - 5)
        columns = columns[start : start + 6] if table.columns_are == "time" else rng.sample(columns, 6)
    if table.columns_are != "time":
        rng.shuffle(columns)
    split = len(rows) >= 9 and (widest < 3 or rng.random() < 0.75)
    groups = _cut(rng, rows, 4, 9 if widest > 1 else 7) if split else [rows[:12]]
    return [
        Block(table, tuple(group), tuple(part), len(groups) > 1)
        for group in groups
        for part in _cut(rng, columns, 1, rng.randint(1, widest))
    ]


def _choose_rows(rng: random.Random, table: Table) -> list[int]:
    """Up to 22 rows; neighbours when they are times, otherwise any, in the table's order."""
    count = min(len(table.labels), rng.randint(10, 22))
    if len(table.labels) - count in (1, 2) and rng.random() < 0.5:
        count = max(4, count - 2)  # leaves a row to ask for that no page shows
    if table.rows_are == "time":
        start = rng.randint(0, len(table.labels) - count)
        return list(range(start, start + count))
    return sorted(rng.sample(range(len(table.labels)), count))


def _cut(rng: random.Random, items: list[int], smallest: int, largest: int) -> list[list[int]]:
    """Consecutive pieces of `smallest`..`largest` items; a rest that is too short is dropped."""
    pieces, at = [], 0
    while len(items) - at >= smallest:
        size = min(rng.randint(smallest, largest), len(items) - at)
        pieces.append(items[at : at + size])
        at += size
    return pieces
