"""Sentences worked out from a block: means, gaps, counts, leaders, changes.

Their numbers stand in no cell, so that the sentence is the one place where the answer is printed. On a page whose
title names the rows the sentence speaks of "the 8 countries"; its question always names them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from vrag_nb.documents.decks.blocks import Block
from vrag_nb.documents.decks.tables import lower
from vrag_nb.documents.decks.typeset import hold


@dataclass(frozen=True)
class Statement:
    """A sentence with an answer in it. `asks` are questions with a `{deck}` to fill; `hint` finds the page.

    place: where in `text` the answer begins; the same words may stand before it.
    """

    text: str
    answer: str
    asks: tuple[str, ...]
    hint: str
    place: int = 0


def stated(form: str, answer: str, asks: tuple[str, ...], hint: str) -> Statement:
    """The statement that `form` makes with the answer in the place of its `{a}`."""
    before, after = form.split("{a}")
    return Statement(f"{before}{hold(answer)}{after}", answer, asks, hint, len(before))


def statements(rng: random.Random, block: Block, brief: bool = True) -> list[Statement]:
    """Every sentence the block allows, in random order. `brief`: the page's title names the rows."""
    found: list[Statement] = []
    for column in block.columns:
        view = _View(rng, block, column, brief)
        found += [s for make in (_mean, _gap, _above, _total) if (s := make(view))]
        found += [s for s in (_extreme(view, 1), _extreme(view, -1)) if s]
    if len(block.columns) > 1 and block.table.measure and block.table.columns_are == "time":
        found += [_change(rng, block, row) for row in rng.sample(block.rows, min(3, len(block.rows)))]
    if block.by_year:
        found += [_change_over_rows(block, column) for column in block.columns]
    rng.shuffle(found)
    return found


class _View:
    """One column of a block, in numbers and in words."""

    def __init__(self, rng: random.Random, block: Block, column: int, brief: bool) -> None:
        self.rng, self.block, self.table = rng, block, block.table
        self.column = block.table.columns[column]
        self.values = [block.table.values[row][column] for row in block.rows]
        self.name = f"{lower(block.table.measure_of(column))}{block.when(column)}"
        self.capital = self.name[0].upper() + self.name[1:]
        self.full, self.short = block.who(), block.who(brief)

    def make(self, texts: list[str], answer: str, asks: list[str], hint: str) -> Statement:
        """Fill {a} (the answer), {name}, {Name}, {who} and {full}; in `asks` {deck} stays."""
        words = {"name": self.name, "Name": self.capital, "full": self.full, "plural": self.table.rows_plural}
        form = self.rng.choice(texts).format(a="{a}", who=self.short, **words)
        form = form if form.startswith("{a}") else form[0].upper() + form[1:]
        filled = tuple(ask.format(deck="{deck}", **words) for ask in asks)
        return stated(form, answer, filled, f"{self.name} {self.block.row_range} {hint}")


def _mean(view: _View) -> Statement:
    answer = view.column.show(sum(view.values) / len(view.values))
    texts = ["Over {who}, the average {name} is {a}.", "Mean {name} of {who}: {a}.", "{who} average {a} in {name}."]
    if view.block.by_year:
        texts = ["The average {name} over {who} is {a}.", "Mean {name}, {who}: {a}."]
    if view.name.split()[0] in ("mean", "average", "median"):
        texts = ["Averaged over {who}, the {name} is {a}."]
    asks = [
        "According to the {deck} deck, what is the average {name} over {full}?",
        "What is the mean {name} over {full} in the {deck} deck?",
    ]
    return view.make(texts, answer, asks, "average")


def _gap(view: _View) -> Statement:
    answer = view.column.show(max(view.values) - min(view.values))
    texts = ["Highest and lowest {name} are {a} apart.", "The range of {name} over {who} is {a}.",
             "Between the highest and the lowest {name} lie {a}."]  # fmt: skip
    asks = [
        "In the {deck} deck, how large is the gap between the highest and the lowest {name} of {full}?",
        "What range of {name} over {full} does the {deck} deck report?",
    ]
    return view.make(texts, answer, asks, "range")


def _above(view: _View) -> Statement | None:
    ordered = sorted(view.values)
    middle = ordered[view.rng.randint(1, len(ordered) - 2)] if len(ordered) > 3 else ordered[len(ordered) // 2]
    magnitude = 10 ** (len(str(int(abs(middle)))) - 1)
    level = round(middle / magnitude * 2) / 2 * magnitude
    count, shown = sum(value > level for value in view.values), view.column.show(level)
    if not 0 < count < len(view.values) or any(view.column.show(value) == shown for value in view.values):
        return None
    texts = [
        f"{{a}} {{plural}} exceed {hold(shown)} in {{name}}.",
        f"{{Name}} is above {hold(shown)} in {{a}} {{plural}}.",
    ]
    asks = [
        f"According to the {{deck}} deck, how many of {{full}} exceed {shown} in {{name}}?",
        f"In the {{deck}} deck, in how many of {{full}} is the {{name}} above {shown}?",
    ]
    return view.make(texts, f"{count} of {len(view.values)}", asks, "exceed")


def _total(view: _View) -> Statement | None:
    if not view.column.additive:
        return None
    texts = ["Together, {who} come to {a} in {name}.", "Total {name} of {who}: {a}.", "{Name} adds up to {a}."]
    if view.block.by_year:
        texts = ["Total {name} over {who}: {a}.", "{Name} adds up to {a}."]
    asks = [
        "What total {name} over {full} does the {deck} deck state?",
        "In the {deck} deck, what does the {name} of {full} add up to?",
    ]
    return view.make(texts, view.column.show(sum(view.values)), asks, "total")


def _extreme(view: _View, sign: int) -> Statement | None:
    """Who leads (sign 1) or comes last (sign -1), unless two share the place."""
    best = max(view.values, key=lambda value: sign * value)
    if view.values.count(best) > 1:
        return None
    answer = view.table.labels[view.block.rows[view.values.index(best)]]
    word, kind = ("highest" if sign > 0 else "lowest"), view.table.row_header.lower()
    if view.table.rows_are == "time":
        texts = [f"{{Name}} was {word} in {{a}}.", f"The {word} {{name}} was seen in {{a}}."]
        asks = [
            f"In the {{deck}} deck, in which {kind} was the {{name}} {word} over {{full}}?",
            f"According to the {{deck}} deck, when was the {{name}} over {{full}} {word}?",
        ]
    else:
        place = "leads" if sign > 0 else "comes last"
        texts = [
            f"{{a}} has the {word} {{name}}.",
            f"{{a}} {place} in {{name}}.",
            f"The {word} {{name}} of {{who}}: {{a}}.",
        ]
        asks = [
            f"In the {{deck}} deck, which {kind} has the {word} {{name}} among {{full}}?",
            f"Which {kind} {place} among {{full}} in {{name}} according to the {{deck}} deck?",
        ]
    return view.make(texts, answer, asks, word)


def _change(rng: random.Random, block: Block, row: int) -> Statement:
    first, last = block.columns[0], block.columns[-1]
    table = block.table
    change = table.values[row][last] - table.values[row][first]
    answer = table.columns[last].show(abs(change))
    years = f"from {table.columns[first].name} to {table.columns[last].name}"
    name, label = lower(table.measure), table.labels[row]
    verb = "rose" if change > 0 else "fell"
    asks = (
        f"By how much did the {name} of {label} change {years} according to the {{deck}} deck?",
        f"In the {{deck}} deck, how much did the {name} of {label} change {years}?",
    )
    texts = [
        f"{table.measure} of {label} {verb} by {{a}} {years}.",
        f"{label}: {name} {verb} by {{a}} {years}.",
    ]
    return stated(rng.choice(texts), answer, asks, f"{name} {label} {years} change")


def _change_over_rows(block: Block, column: int) -> Statement:
    table, first, last = block.table, block.rows[0], block.rows[-1]
    change = table.values[last][column] - table.values[first][column]
    answer = table.columns[column].show(abs(change))
    years = f"from {table.labels[first]} to {table.labels[last]}"
    name = f"{lower(table.measure_of(column))}{block.when(column)}"
    asks = (
        f"By how much did the {name} change {years} according to the {{deck}} deck?",
        f"In the {{deck}} deck, how much did the {name} change {years}?",
    )
    form = f"{name[0].upper()}{name[1:]} {'rose' if change > 0 else 'fell'} by {{a}} {years}."
    return stated(form, answer, asks, f"{name} {years} change")
