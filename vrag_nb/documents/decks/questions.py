"""Questions about a deck, from the facts on its pages.

Every question names its deck, so that it means one thing in the whole corpus. Questions about a cell use the words
`Table.say` gives; a wording that fits two facts of the deck is never asked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from vrag_nb.documents.decks.canvas import Box
from vrag_nb.documents.decks.elements import READABLE, SHOWN_PIXELS, Fact
from vrag_nb.documents.decks.plan import Deck
from vrag_nb.documents.decks.tables import Column, lower
from vrag_nb.records import MetaInfo, Question, Region

NOT_ANSWERABLE = "not answerable"
SHARES = {
    "table": 22, "chart": 23, "text": 23, "layout": 11, "multi_hop": 7, "comparison": 6, "arithmetic": 7,
    "unanswerable": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """A question before it gets its uid."""

    kind: str
    query: str
    answer: str
    facts: tuple[Fact, ...]
    query_type: str = "single_hop"


def make_questions(rng: random.Random, deck: Deck, count: int) -> list[Question]:
    """Up to `count` different questions about `deck`, of the kinds in `SHARES` as far as its facts allow."""
    cells = _askable_cells(deck)
    makers: dict[str, Callable[[], Draft | None]] = {
        "table": lambda: _table(rng, deck, cells),
        "chart": lambda: _cell(rng, deck, [f for f in cells if f.source_type == "chart"], "chart"),
        "text": lambda: _text(rng, deck, cells),
        "layout": lambda: _told(rng, deck, [f for f in deck.facts if f.source_type == "layout"], "layout"),
        "multi_hop": lambda: _multi_hop(rng, deck, cells),
        "comparison": lambda: _comparison(rng, deck, cells),
        "arithmetic": lambda: _arithmetic(rng, deck, cells),
        "unanswerable": lambda: _unanswerable(rng, deck),
    }
    drafts: list[Draft] = []
    seen: set[object] = set()
    for _ in range(count * 6):
        if len(drafts) == count:
            break
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        draft = makers[kind]()
        if draft is None:
            continue
        key = (draft.kind, draft.facts) if draft.facts else draft.query
        if key in seen or draft.query in seen:
            continue
        seen |= {key, draft.query}
        drafts.append(draft)
    return [_question(deck, draft, number) for number, draft in enumerate(drafts)]


def _question(deck: Deck, draft: Draft, number: int) -> Question:
    sources = {fact.source_type for fact in draft.facts}
    meta = MetaInfo(
        file_name=f"{deck.deck_id}.pdf",
        reference_page=sorted({fact.page for fact in draft.facts}),
        source_type=draft.kind
        if draft.kind in ("table", "chart", "text", "layout")
        else (sorted(sources) or ["text"])[0],
        query_type=draft.query_type,
        reference_regions=_regions(deck, draft.facts),
        needs_crop=any(_unreadable(deck, fact) for fact in draft.facts),
        needed_facts=[_needed(deck, fact) for fact in draft.facts],
        layout_family=deck.family,
        source=deck.series.dataset,
    )  # type: ignore[call-arg]
    uid = f"{deck.deck_id}-q{number:03d}"
    return Question(uid=uid, query=draft.query, reference_answer=draft.answer, meta_info=meta)


def _regions(deck: Deck, facts: tuple[Fact, ...]) -> list[Region]:
    found = {(fact.page, _fractions(deck, fact.page, fact.region)): None for fact in facts}
    return [Region(page=page, box=box) for page, box in found]


def _fractions(deck: Deck, page: int, box: Box) -> Box:
    width, height = deck.sizes[page - 1]
    x0, y0, x1, y1 = box[0] / width, box[1] / height, box[2] / width, box[3] / height
    return round(max(x0, 0), 5), round(max(y0, 0), 5), round(min(x1, 1), 5), round(min(y1, 1), 5)


def _unreadable(deck: Deck, fact: Fact) -> bool:
    width, height = deck.sizes[fact.page - 1]
    return bool(fact.size * (SHOWN_PIXELS / (width * height)) ** 0.5 < READABLE)


def _needed(deck: Deck, fact: Fact) -> dict:
    described = _say(fact) if fact.block else fact.asks[0].replace("{deck}", deck.name)
    cell = {} if fact.mark is None else {"name": _name(fact), "number": _value(fact)}
    return cell | {
        "page": fact.page,
        "box": list(_fractions(deck, fact.page, fact.region)),
        "answer_box": list(_fractions(deck, fact.page, fact.box)),
        "value": fact.answer,
        "description": described,
        "printed": fact.printed,
        "needs_crop": _unreadable(deck, fact),
        "font_size": fact.size,
        "search_hint": f"{deck.name} {fact.hint}",
    }


# ------------------------------------------------------------------------------------------------- cells in words


def _say(fact: Fact) -> str:
    """The cell (or the share of a pie) in words."""
    block, mark = fact.cell
    if mark.share:
        measure = f"{lower(block.table.measure_of(mark.column))}{block.when(mark.column)}"
        names = f"the {len(block.rows)} {block.table.rows_plural}"
        return f"share of {block.table.labels[mark.row]} in the total {measure} of {names} in the pie chart"
    return block.table.say(mark.row, mark.column)


def _askable_cells(deck: Deck) -> list[Fact]:
    """Facts about cells whose wording fits no other fact of the deck."""
    cells = [fact for fact in deck.facts if fact.mark is not None]
    count = Counter(_say(fact) for fact in cells)
    return [fact for fact in cells if count[_say(fact)] == 1]


_CELL_ASKS = (
    "In the {deck} deck, what is the {cell}?",
    "What is the {cell} according to the {deck} deck?",
    "According to the {deck} deck, what was the {cell}?",
    "{deck} deck: what is the {cell}?",
    "Which value does the {deck} deck give for the {cell}?",
    "What {cell} does the {deck} deck report?",
    "Please look up the {cell} in the {deck} deck.",
)


def _cell(rng: random.Random, deck: Deck, cells: list[Fact], kind: str) -> Draft | None:
    if not cells:
        return None
    page = rng.choice(sorted({(f.page, f.panel) for f in cells}))  # first a panel, so that big tables do not dominate
    fact = rng.choice([f for f in cells if (f.page, f.panel) == page])
    query = rng.choice(_CELL_ASKS).format(deck=deck.name, cell=_say(fact))
    return Draft(kind, query, fact.answer, (fact,))


def _table(rng: random.Random, deck: Deck, cells: list[Fact]) -> Draft | None:
    words = [f for f in deck.facts if f.source_type == "table" and f.asks]
    if words and rng.random() < 0.15:
        return _told(rng, deck, words, "table")
    return _cell(rng, deck, [f for f in cells if f.source_type == "table"], "table")


def _text(rng: random.Random, deck: Deck, cells: list[Fact]) -> Draft | None:
    cards = [f for f in cells if f.source_type == "text"]
    if cards and rng.random() < 0.15:
        return _cell(rng, deck, cards, "text")
    return _told(rng, deck, [f for f in deck.facts if f.source_type == "text" and f.asks], "text")


def _told(rng: random.Random, deck: Deck, facts: list[Fact], kind: str) -> Draft | None:
    if not facts:
        return None
    fact = rng.choice(facts)
    return Draft(kind, rng.choice(fact.asks).replace("{deck}", deck.name), fact.answer, (fact,))


# ------------------------------------------------------------------------------------------------- several cells

COMPARISONS = (
    "In the {deck} deck, which has the {word} {what}: {one} or {other}?",
    "Is the {what} {word} for {one} or for {other} according to the {deck} deck?",
)
HOPS = (
    "In the {deck} deck, which is {word}: the {a} or the {b}? Name the {kind}.",
    "Comparing two pages of the {deck} deck, for which {kind} is the figure {word}: the {a} or the {b}?",
)
SUM = "In the {deck} deck, what do {one} and {other} add up to in {what}?"
DIFFERENCE = "By how much do {one} and {other} differ in {what} in the {deck} deck?"


def _value(fact: Fact) -> float:
    block, mark = fact.cell
    return block.table.values[mark.row][mark.column]


def _name(fact: Fact) -> str:
    block, mark = fact.cell
    return block.table.labels[mark.row]


def _column(fact: Fact) -> Column:
    block, mark = fact.cell
    return block.table.columns[mark.column]


def _what(fact: Fact) -> str:
    """What the cell's column measures, and when or for whom."""
    block, mark = fact.cell
    return f"{lower(block.table.measure_of(mark.column))}{block.when(mark.column)}"


def _kin(a: Fact, b: Fact) -> bool:
    """Whether two cells measure the same in the same unit."""
    (one, mark_one), (two, mark_two) = a.cell, b.cell
    if mark_one.share or mark_two.share:
        return False
    if one.table.measure_of(mark_one.column) != two.table.measure_of(mark_two.column):
        return False
    return replace(_column(a), name="") == replace(_column(b), name="")


def _multi_hop(rng: random.Random, deck: Deck, cells: list[Fact]) -> Draft | None:
    """Two values from two pages, the larger to be named."""
    for _ in range(12):
        if len(cells) < 2:
            return None
        a, b = rng.sample(cells, 2)
        if a.page == b.page or not _kin(a, b) or _name(a) == _name(b) or _value(a) == _value(b):
            continue
        more = rng.random() < 0.6
        answer = _name(max(a, b, key=_value) if more else min(a, b, key=_value))
        word = "higher" if more else "lower"
        query = rng.choice(HOPS).format(deck=deck.name, word=word, a=_say(a), b=_say(b), kind=_row_word(a, b))
        return Draft("multi_hop", query, answer, (a, b), "multi_hop")
    return None


def _row_word(a: Fact, b: Fact) -> str:
    one, two = (fact.cell[0].table.row_header.lower() for fact in (a, b))
    return one if one == two else "entry"


def _pair(rng: random.Random, cells: list[Fact]) -> tuple[Fact, Fact] | None:
    """Two cells of one column in one panel."""
    if not cells:
        return None
    for _ in range(8):
        a = rng.choice(cells)
        rest = [f for f in cells if f is not a and (f.page, f.region) == (a.page, a.region) and _same_column(a, f)]
        if rest:
            return a, rng.choice(rest)
    return None


def _same_column(a: Fact, b: Fact) -> bool:
    (one, mark_one), (two, mark_two) = a.cell, b.cell
    return one.table is two.table and (mark_one.column, mark_one.share) == (mark_two.column, mark_two.share)


def _comparison(rng: random.Random, deck: Deck, cells: list[Fact]) -> Draft | None:
    """Which of two rows of a panel is higher."""
    pair = _pair(rng, cells)
    if pair is None or pair[0].answer == pair[1].answer:
        return None
    a, b = pair
    more = rng.random() < 0.6
    answer = _name(max(a, b, key=_value) if more else min(a, b, key=_value))
    what = _what(a)
    word = "higher" if more else "lower"
    query = rng.choice(COMPARISONS).format(deck=deck.name, word=word, what=what, one=_name(a), other=_name(b))
    return Draft("comparison", query, answer, (a, b), "comparison")


def _arithmetic(rng: random.Random, deck: Deck, cells: list[Fact]) -> Draft | None:
    """The sum or difference of two short numbers of a panel."""
    pair = _pair(rng, cells)
    if pair is None:
        return None
    a, b = pair
    column = _column(a)
    if a.cell[1].share or max(sum(c.isdigit() for c in f.answer) for f in pair) > 3 or min(_value(a), _value(b)) < 0:
        return None
    what = _what(a)
    printed = [round(_value(f), column.decimals) for f in pair]
    if column.additive and rng.random() < 0.5:
        answer, asked = column.show(sum(printed)), SUM
    else:
        answer, asked = column.show(abs(printed[0] - printed[1])), DIFFERENCE
    query = asked.format(deck=deck.name, what=what, one=_name(a), other=_name(b))
    return Draft("arithmetic", query, answer, (a, b), "arithmetic")


def _unanswerable(rng: random.Random, deck: Deck) -> Draft | None:
    """A cell of the deck's tables that no page shows."""
    table = rng.choice(deck.series.tables)
    shown = {f.block.table.labels[r] for f in deck.facts if f.block for r in f.block.rows}
    absent = [r for r in range(len(table.labels)) if table.labels[r] not in shown]
    used = sorted({f.mark.column for f in deck.facts if f.block and f.mark and f.block.table is table})
    if not absent or not used:
        return None
    words = table.say(rng.choice(absent), rng.choice(used))
    query = rng.choice(_CELL_ASKS[:5]).format(deck=deck.name, cell=words)
    return Draft("unanswerable", query, NOT_ANSWERABLE, (), "unanswerable")
