"""What a page can be about: blocks of cells dealt from a deck's tables, and statements derived from them.

No cell is dealt twice within a deck, so a cell's value stands on exactly one page and a question about it has one gold
region. Statements carry numbers that no cell shows (means, gaps, counts), or small print made up for the deck (who
checked the figures, when), and know their own questions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from vrag_nb.documents.decks.tables import Series, Table, lower
from vrag_nb.documents.decks.typeset import hold
from vrag_nb.documents.decks.words import day, person


@dataclass(frozen=True)
class Block:
    """Some rows and columns of a table."""

    table: Table
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    split_rows: bool = False  # the table's other rows stand in another block

    def take(self, rows: int, columns: int | None = None) -> Block:
        """The first `rows` rows and `columns` columns."""
        split = self.split_rows or rows < len(self.rows)
        return Block(self.table, self.rows[:rows], self.columns[: columns or len(self.columns)], split)

    @property
    def measures(self) -> list[str]:
        """What is measured, each once."""
        return list(dict.fromkeys(self.table.measure_of(c) for c in self.columns))

    @property
    def unit(self) -> str:
        """The unit all columns share, or nothing."""
        units = {self.table.columns[c].unit for c in self.columns}
        return units.pop() if len(units) == 1 else ""

    def span(self) -> str:
        """The part of a title that tells this block from others of its table: columns, then rows."""
        table = self.table
        names = [table.columns[c].name for c in self.columns]
        parts = ""
        if table.columns_are == "time":
            parts = f", {names[0]}" if len(names) == 1 else f", {names[0]}–{names[-1]}"
        elif table.measure:
            parts = f": {join(names)}"
        if table.rows_are == "time":
            parts += f", {table.labels[self.rows[0]]}–{table.labels[self.rows[-1]]}"
        elif self.split_rows:
            parts += f" ({table.labels[self.rows[0]]} to {table.labels[self.rows[-1]]})"
        return parts

    def title(self) -> str:
        """The full title: measure, scope, span."""
        return f"{join(self.measures)} {self.table.scope}{self.span()}"

    def caption(self) -> str:
        """The panel's title: measure and span, with the unit."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{join(self.measures)}{self.span()}{unit}"

    def when(self, column: int) -> str:
        """The column inside a sentence: " in 2007", " (Female)" or nothing."""
        name = self.table.columns[column].name
        if self.table.columns_are == "time":
            return f" in {name}"
        return f" ({name})" if self.table.measure else ""

    def who(self) -> str:
        """The rows as a group: "the 8 countries"."""
        table = self.table
        if table.rows_are == "time":
            return f"{table.labels[self.rows[0]]}–{table.labels[self.rows[-1]]}"
        return f"the {len(self.rows)} {table.rows_plural} from {table.labels[self.rows[0]]} to {table.labels[self.rows[-1]]}"


def join(names: list[str]) -> str:
    """"A, B and C", all but the first with small initials where they are ordinary words."""
    words = [names[0], *(lower(name) for name in names[1:])]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def deal(rng: random.Random, series: Series) -> list[Block]:
    """Cut the series' tables into blocks that share no cell, in random order."""
    blocks: list[Block] = []
    for table in series.tables:
        rows = _choose_rows(rng, table)
        columns = list(range(len(table.columns)))
        if len(columns) > 6:
            start = rng.randrange(len(columns) - 5)
            columns = columns[start : start + 6] if table.columns_are == "time" else rng.sample(columns, 6)
        if table.columns_are != "time":
            rng.shuffle(columns)
        groups = _cut(rng, rows, 4, 9) if len(rows) >= 9 and rng.random() < 0.75 else [rows[:12]]
        for group in groups:
            for part in _cut(rng, columns, 1, rng.choice([1, 2, 3])):
                blocks.append(Block(table, tuple(group), tuple(part), len(groups) > 1))
    rng.shuffle(blocks)
    return blocks


def _choose_rows(rng: random.Random, table: Table) -> list[int]:
    """Up to 18 rows; neighbours when they are times, otherwise any, in the table's order."""
    count = min(len(table.labels), rng.randint(8, 18))
    if table.rows_are == "time":
        start = rng.randint(0, len(table.labels) - count)
        return list(range(start, start + count))
    return sorted(rng.sample(range(len(table.labels)), count))


def _cut(rng: random.Random, items: list[int], smallest: int, largest: int) -> list[list[int]]:
    """Consecutive pieces of `smallest`..`largest` items; a short rest joins its neighbour or is dropped."""
    pieces, at = [], 0
    while len(items) - at >= smallest:
        size = min(rng.randint(smallest, largest), len(items) - at)
        pieces.append(items[at : at + size])
        at += size
    return pieces


# ---------------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True)
class Statement:
    """A sentence with an answer in it. `asks` are questions with a `{deck}` to fill; `hint` finds the page."""

    text: str
    answer: str
    asks: tuple[str, ...]
    hint: str


def statements(rng: random.Random, block: Block) -> list[Statement]:
    """Sentences about numbers that can be worked out from the block but stand in no cell of it."""
    found: list[Statement] = []
    for column in block.columns:
        found += [s for make in (_mean, _gap, _above, _total, _leader, _last) if (s := make(rng, block, column))]
    if len(block.columns) > 1 and block.table.measure and block.table.columns_are == "time":
        found += [_change(rng, block, row) for row in rng.sample(list(block.rows), min(3, len(block.rows)))]
    if block.table.rows_are == "time":
        found += [_change_over_rows(rng, block, column) for column in block.columns]
    rng.shuffle(found)
    return found


def _numbers(block: Block, column: int) -> list[float]:
    return [block.table.values[row][column] for row in block.rows]


def _named(block: Block, column: int) -> str:
    return f"{lower(block.table.measure_of(column))}{block.when(column)}"


def _hint(block: Block, column: int, *extra: str) -> str:
    return " ".join([block.table.measure_of(column), block.table.scope, *extra])


def _mean(rng: random.Random, block: Block, column: int) -> Statement:
    values = _numbers(block, column)
    answer = block.table.columns[column].show(sum(values) / len(values))
    name, who = _named(block, column), block.who()
    text = rng.choice(["Averaged over {who}, {name} comes to {a}.", "Mean {name} over {who}: {a}."])
    asks = (
        "According to the {deck} deck, what is the average " + f"{name} over {who}?",
        "What is the mean " + f"{name} over {who}" + " in the {deck} deck?",
    )
    return Statement(text.format(who=who, name=name, a=hold(answer)), answer, asks, _hint(block, column, "average"))


def _gap(rng: random.Random, block: Block, column: int) -> Statement:
    values = _numbers(block, column)
    answer = block.table.columns[column].show(max(values) - min(values))
    name, who = _named(block, column), block.who()
    text = rng.choice(
        ["Between the highest and the lowest {name} of {who} lie {a}.", "The spread of {name} over {who} is {a}."]
    )
    asks = (
        "In the {deck} deck, how large is the gap between the highest and the lowest " + f"{name} of {who}?",
        "What spread of " + f"{name} over {who}" + " does the {deck} deck report?",
    )
    return Statement(text.format(who=who, name=name, a=hold(answer)), answer, asks, _hint(block, column, "spread"))


def _above(rng: random.Random, block: Block, column: int) -> Statement | None:
    values = _numbers(block, column)
    shown = block.table.columns[column]
    ordered = sorted(values)
    middle = ordered[rng.randint(1, len(ordered) - 2)] if len(ordered) > 3 else ordered[len(ordered) // 2]
    magnitude = 10 ** (len(str(int(abs(middle)))) - 1)
    level = round(middle / magnitude * 2) / 2 * magnitude
    count = sum(value > level for value in values)
    if not 0 < count < len(values) or shown.show(level) in {shown.show(v) for v in values}:
        return None
    name, plural = _named(block, column), block.table.rows_plural
    answer = f"{count} of {len(values)}"
    asks = (
        "According to the {deck} deck, how many " + f"{plural} have a {name} above {shown.show(level)}?",
        "In the {deck} deck, how many of " + f"{block.who()} lie above {shown.show(level)} in {name}?",
    )
    text = rng.choice(["{a} {plural} lie above {level} in {name}.", "In {name}, {a} {plural} are above {level}."])
    filled = text.format(a=hold(answer), plural=plural, level=hold(shown.show(level)), name=name)
    return Statement(filled[0].upper() + filled[1:], answer, asks, _hint(block, column, plural, "above"))


def _total(rng: random.Random, block: Block, column: int) -> Statement | None:
    if not block.table.columns[column].additive:
        return None
    answer = block.table.columns[column].show(sum(_numbers(block, column)))
    name, who = _named(block, column), block.who()
    asks = (
        "What total " + f"{name} for {who}" + " does the {deck} deck state?",
        "In the {deck} deck, what does " + f"{name} of {who} add up to?",
    )
    text = rng.choice(["Together, {who} reach a {name} of {a}.", "Total {name} for {who}: {a}."])
    return Statement(text.format(who=who, name=name, a=hold(answer)), answer, asks, _hint(block, column, "total"))


def _extreme(block: Block, column: int, sign: int) -> str | None:
    values = _numbers(block, column)
    best = max(values, key=lambda value: sign * value)
    return block.table.labels[block.rows[values.index(best)]] if values.count(best) == 1 else None


def _leader(rng: random.Random, block: Block, column: int) -> Statement | None:
    answer = _extreme(block, column, 1)
    if answer is None:
        return None
    name, kind, who = _named(block, column), block.table.row_header.lower(), block.who()
    asks = (
        "In the {deck} deck, " + f"which {kind} has the highest {name} among {who}?",
        "Which " + f"{kind} leads {who} in {name}" + " according to the {deck} deck?",
    )
    text = rng.choice(["{a} has the highest {name} of {who}.", "The highest {name} of {who}: {a}."])
    return Statement(text.format(a=hold(answer), name=name, who=who), answer, asks, _hint(block, column, "highest"))


def _last(rng: random.Random, block: Block, column: int) -> Statement | None:
    answer = _extreme(block, column, -1)
    if answer is None:
        return None
    name, kind, who = _named(block, column), block.table.row_header.lower(), block.who()
    asks = (
        "In the {deck} deck, " + f"which {kind} has the lowest {name} among {who}?",
        "Which " + f"{kind} comes last among {who} in {name}" + " according to the {deck} deck?",
    )
    text = rng.choice(["{a} comes last in {name} among {who}.", "The lowest {name} of {who}: {a}."])
    return Statement(text.format(a=hold(answer), name=name, who=who), answer, asks, _hint(block, column, "lowest"))


def _change(rng: random.Random, block: Block, row: int) -> Statement:
    first, last = block.columns[0], block.columns[-1]
    table = block.table
    change = table.values[row][last] - table.values[row][first]
    answer = table.columns[last].show(abs(change))
    years = f"from {table.columns[first].name} to {table.columns[last].name}"
    name, label = lower(table.measure), table.labels[row]
    verb = "rose" if change > 0 else "fell"
    asks = (
        "By how much did the " + f"{name} of {label} change {years}" + " according to the {deck} deck?",
        "In the {deck} deck, " + f"how much did the {name} of {label} change {years}?",
    )
    text = f"{table.measure} of {label} {verb} by {hold(answer)} {years}."
    return Statement(text, answer, asks, _hint(block, first, label, "change"))


def _change_over_rows(rng: random.Random, block: Block, column: int) -> Statement:
    table, first, last = block.table, block.rows[0], block.rows[-1]
    change = table.values[last][column] - table.values[first][column]
    answer = table.columns[column].show(abs(change))
    years = f"from {table.labels[first]} to {table.labels[last]}"
    name = _named(block, column)
    asks = (
        "By how much did the " + f"{name} change {years}" + " according to the {deck} deck?",
        "In the {deck} deck, " + f"how much did the {name} change {years}?",
    )
    text = f"{name[0].upper()}{name[1:]} {'rose' if change > 0 else 'fell'} by {hold(answer)} {years}."
    return Statement(text, answer, asks, _hint(block, column, "change"))


def small_print(rng: random.Random, title: str) -> Statement:
    """A footnote made up for the page called `title`."""
    who, when, number = person(rng), day(rng), rng.randint(2, 980)
    code = f"{rng.choice('ABCDEFGHKLMNPRSTUVW')}{rng.choice('ABCDEFGHKLMNPRSTUVW')}-{rng.randint(1000, 9999)}"
    margin = f"{rng.randint(1, 9)}.{rng.randint(1, 9)}%"
    page = f'"{title}"'
    forms = [
        ("Figures checked by {a}.", who, f"who checked the figures on the page {page}", "checked by"),
        ("Revised on {a}.", when, f"on what date were the figures on the page {page} revised", "revised on"),
        ("Next update due {a}.", when, f"when is the next update of the page {page} due", "next update"),
        ("Document no. {a}.", code, f"what is the document number given on the page {page}", "document number"),
        ("Margin of error: {a}.", margin, f"what margin of error is stated on the page {page}", "margin of error"),
        ("Sample: n = {a}.", f"{number:,}", f"what sample size is given on the page {page}", "sample size"),
        ("See annex table {a}.", f"{rng.randint(1, 9)}.{rng.randint(1, 30)}",
         f"which annex table does the page {page} refer to", "annex table"),
        ("Questions to {a}.", who, f"to whom should questions about the page {page} be sent", "questions to"),
    ]  # fmt: skip
    text, answer, ask, hint = rng.choice(forms)
    asks = ("In the {deck} deck, " + f"{ask}?", f"{ask[0].upper()}{ask[1:]}" + " of the {deck} deck?")
    return Statement(text.format(a=hold(answer)), answer, asks, f"{title} {hint}")
