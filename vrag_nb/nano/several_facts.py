"""Turns of the expert on questions that need two facts: comparisons, sums, differences, values from two pages.

One question in five is of this kind, and in a trajectory the turn that decides it is one of five. So they are asked by
themselves: `FactTurns` shows the page or the crop of a fact, `Plans` and `reason` have the facts in words where the
image would stand. A model that has read both values has yet to learn what is made of them, and that costs no squares.
"""

from __future__ import annotations

import calendar
import random
from dataclasses import dataclass

from PIL import Image

from vrag_nb.agent.geometry import jittered
from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.documents.decks.questions import COMPARISONS, DIFFERENCE, HOPS, SUM
from vrag_nb.learning.experts import FIND_PAGE, Fact, facts_of, first_turn, search_words, told
from vrag_nb.nano.deck_tasks import DeckPool, DrawnPage, look_for
from vrag_nb.nano.expert import enlarging, told_answer
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.scribbles import random_word
from vrag_nb.records import Question

Turns = list[tuple[str, list[str | Image.Image]]]
MOST_RECKONED = 999  # sums and differences of longer numbers are asked nowhere
UNITS = ("", "", "%", "°C", " kg", " km", "k")


def pick(pool: DeckPool, rng: random.Random, pages: int = 0) -> tuple[list[DrawnPage], Question] | None:
    """A deck's pages and one of its questions with two facts, on so many pages if told; None for a deck without any."""
    drawn, questions = pool.pick(rng)
    several = [q for q in questions if len(q.needed_facts) == 2 and (not pages or _pages(q) == pages)]
    return (drawn, rng.choice(several)) if several else None


def _pages(question: Question) -> int:
    return len({fact["page"] for fact in question.needed_facts})


class FactTurns:
    """Draws single turns: kind `both` where both facts are read, `first` where the other is still to be searched for,
    `last` where one was read before, `whole` where the print has to be enlarged.
    """

    def __init__(self, pool: DeckPool) -> None:
        self.pool, self.prompt = pool, load_prompt("nano")

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        if (picked := pick(self.pool, rng)) is None:
            return []
        pages, question = picked
        fact = rng.randrange(2) if _pages(question) == 2 else 0
        number = question.needed_facts[fact]["page"]
        page, box = pages[number - 1], None
        whole = rng.random() < 0.3
        if question.needs_crop and not whole:
            box = page.box(tuple(question.needed_facts[fact]["box"]))
            box = jittered(rng, box, page.image.size, rng.uniform(0, 0.3))
        image, glyphs = page.window(box)
        kind, turns, said = self._said(question, fact, page, whole and question.needs_crop)
        turns = [*turns, ("user", [question.query, image]), ("assistant", [said])]
        look = look_for(question, page, number, len(turns) - 1, 0, box)
        looks, words = [look] if look else [], [page.words_in(box)]
        return [Sample(kind, turns, learn_from=len(turns) - 1, words=words, looks=looks, glyphs=[glyphs])]

    def _said(self, question: Question, fact: int, page: DrawnPage, enlarge: bool) -> tuple[str, Turns, str]:
        """The kind, the turns before, and what the expert says."""
        before: Turns = []
        if fact:
            before = [
                ("user", [fill_prompt(self.prompt, question.query)]),
                ("assistant", [first_turn(question)]),
                ("user", [question.query]),
                ("assistant", [on_to_the_next(question)]),
            ]
        if enlarge:
            return "whole", before, enlarging(question, page, fact)
        if _pages(question) == 2 and not fact:
            return "first", before, on_to_the_next(question)
        return "last" if fact else "both", before, told_answer(question)


def on_to_the_next(question: Question) -> str:
    """The expert's turn once it has read the first of two facts."""
    return f"<think>{told(facts_of(question)[:1])} {FIND_PAGE}</think>\n<search>{search_words(question, 1)}</search>"


class Plans:
    """Draws kind `plan`: the searches for two facts on two pages, these told in words in half of the cases."""

    def __init__(self, pool: DeckPool) -> None:
        self.pool, self.prompt = pool, load_prompt("nano")

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        if (picked := pick(self.pool, rng, pages=2)) is None:
            return []
        _, question = picked
        turns: Turns = [("user", [fill_prompt(self.prompt, question.query)]), ("assistant", [first_turn(question)])]
        if rng.random() < 0.5:
            return [Sample("plan", turns)]
        for fact, said in zip(question.needed_facts, (on_to_the_next(question), told_answer(question)), strict=True):
            shown = f"{question.query} {fact['description']}: {fact['value']}."
            turns += [("user", [shown]), ("assistant", [said])]
        return [Sample("plan", turns, learn_from=3)]


def reason(rng: random.Random, difficulty: float) -> Sample:
    """Two of two to six values that are told in words: kind `compared`, or `reckoned`, their sum or difference."""
    column = _Column.drawn(rng, difficulty)
    names = row_names(rng, rng.randint(2, 2 + round(4 * difficulty)))
    values = column.values(rng, len(names))
    asked = rng.sample(range(len(names)), 2)
    (one, other), (a, b) = (names[n] for n in asked), (values[n] for n in asked)
    asks = {"deck": " ".join(random_word(rng).capitalize() for _ in range(2)), "what": random_word(rng).lower()}
    kind = rng.random()
    compared = (kind < 0.6 or column.most > MOST_RECKONED) and a != b
    if compared:
        more = rng.random() < 0.6
        form, answer = rng.choice(COMPARISONS + HOPS), one if (a > b) == more else other
        link = rng.choice(("in", "of"))
        asks |= {"word": "higher" if more else "lower", "kind": random_word(rng).lower()}
        asks |= {"a": f"{asks['what']} {link} {one}", "b": f"{asks['what']} {link} {other}"}
    elif kind < 0.75:
        form, answer = SUM, column.show(a + b)
    else:
        form, answer = DIFFERENCE, column.show(abs(a - b))
    query = form.format(**asks, one=one, other=other)
    listed = "; ".join(f"{name}: {column.show(value)}" for name, value in zip(names, values, strict=True))
    thought = told([Fact(column.show(a), one, a), Fact(column.show(b), other, b)], answer)
    turns: Turns = [
        ("user", [f"{query} {listed}."]),
        ("assistant", [f"<think>{thought}</think>\n<answer>{answer}</answer>"]),
    ]
    return Sample("compared" if compared else "reckoned", turns)


@dataclass(frozen=True)
class _Column:
    """Numbers of one kind, counted in the last decimal that is shown."""

    decimals: int
    most: int
    unit: str

    @classmethod
    def drawn(cls, rng: random.Random, difficulty: float) -> _Column:
        digits = rng.randint(1, 2 + round(3 * difficulty))
        return cls(rng.randint(0, digits - 1), 10**digits - 1, rng.choice(UNITS))

    def values(self, rng: random.Random, count: int) -> list[int]:
        return [rng.randint(0, self.most) for _ in range(count)]

    def show(self, value: int) -> str:
        return f"{value / 10**self.decimals:,.{self.decimals}f}{self.unit}"


def row_names(rng: random.Random, count: int) -> list[str]:
    """Different names as rows of a table have them, all of one kind: years, months, words."""
    kind, names = rng.randrange(4), dict[str, None]()
    while len(names) < count:
        year = str(rng.randint(1900, 2030))
        if kind < 2:
            name = year if kind else f"{rng.choice(calendar.month_name[1:])} {year}"
        else:
            name = " ".join(random_word(rng).capitalize() for _ in range(kind - 1))
        names[name] = None
    return list(names)
