"""Long questions: several questions asked as one, of one document or many, so that an answer takes as many searches.

    long = long_questions(questions, pages=4)               # each needs four pages of one document
    long = long_questions(questions, pages=4, across=True)  # of four documents
    values_right("7; 12; x; 4", long[0])                    # 0.75 where three of the four are right

A memory is worth having where facts of many pages must be held together. Joined are questions whose answer is one value
on one page; each is used once, no two parts of a long question share a page (or, across documents, a document), and a
document gives as many as its questions last for. The order is drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from vrag_nb.evaluation.answers import is_correct
from vrag_nb.records import MetaInfo, Question

BETWEEN = ";"
ASK = "Answer each, in this order, with a semicolon between two answers:"
QUERY_TYPE = "long"


def long_questions(
    questions: Iterable[Question], pages: int = 4, seed: int = 0, across: bool = False
) -> list[Question]:
    """Questions that need `pages` pages each, in the order of the documents; `across`: each of another document.

    Raises ValueError for fewer than two pages, or where no document has that many pages with a question of their own
    (across: for fewer documents).
    """
    if pages < 2:
        raise ValueError(f"pages {pages}: a long question joins two questions or more")
    single = [question for question in questions if _one_value(question)]
    rng = random.Random(seed)
    if across:
        groups = _groups(rng.sample(single, len(single)), pages, lambda one: one.document)
        found = [_joined(f"documents-long{number:02d}", group) for number, group in enumerate(groups)]
    else:
        by_document: dict[str, list[Question]] = {}
        for question in single:
            by_document.setdefault(question.document, []).append(question)
        found = [
            _joined(f"{document}-long{number:02d}", group)
            for document, some in by_document.items()
            for number, group in enumerate(_groups(rng.sample(some, len(some)), pages, _page))
        ]
    if not found:
        raise ValueError(
            f"there are no questions of one value on {pages} different documents"
            if across
            else f"no document has questions of one value on {pages} different pages"
        )
    return found


def values_right(answer: str | None, question: Question) -> float:
    """The share of a long question's values that are right in their place; 0 without an answer."""
    wanted = question.reference_answer.split(BETWEEN)
    given = (answer or "").split(BETWEEN)
    return sum(is_correct(one, value) for one, value in zip(given, wanted, strict=False)) / len(wanted)


def _one_value(question: Question) -> bool:
    meta, answer = question.meta_info, question.reference_answer
    alone = len(meta.reference_page) == 1 and len(question.needed_facts) <= 1 and BETWEEN not in answer
    return alone and meta.query_type in ("single_hop", "unknown")


def _page(question: Question) -> int:
    return question.meta_info.reference_page[0]


def _groups(questions: Sequence[Question], size: int, place: Callable[[Question], Hashable]) -> list[list[Question]]:
    """Groups of `size` questions in different places; every group takes from the places with the most left."""
    left: dict[Hashable, list[Question]] = {}
    for question in questions:
        left.setdefault(place(question), []).append(question)
    found = []
    while len(left) >= size:
        fullest = sorted(left, key=lambda one: -len(left[one]))[:size]
        found.append([left[one].pop() for one in fullest])
        left = {one: rest for one, rest in left.items() if rest}
    return found


def _hinted(part: Question) -> list[dict[str, Any]]:
    return [{**fact, "other_hints": [part.query]} for fact in part.needed_facts]


def _joined(uid: str, parts: Sequence[Question]) -> Question:
    first = parts[0].meta_info
    asked = " ".join(f"({number}) {part.query}" for number, part in enumerate(parts, start=1))
    facts = [fact for part in parts for fact in _hinted(part)]
    known: dict[str, Any] = {"parts": [part.uid for part in parts]}
    regions = [region for part in parts for region in part.meta_info.reference_regions]
    if len({part.document for part in parts}) > 1:
        known |= {"reference_documents": [part.document for part in parts]}
        facts = [{**fact, "document": part.document} for part in parts for fact in _hinted(part)]
        regions = parts[0].meta_info.reference_regions
    known |= {"needs_crop": any(part.needs_crop for part in parts)}
    if len(facts) == len(parts):
        known["needed_facts"] = facts
    return Question(
        uid=uid,
        query=f"{ASK} {asked}",
        reference_answer=f"{BETWEEN} ".join(part.reference_answer for part in parts),
        meta_info=MetaInfo(
            file_name=first.file_name,
            reference_page=[part.meta_info.reference_page[0] for part in parts],
            source_type="mixed",
            query_type=QUERY_TYPE,
            reference_regions=regions,
            **known,
        ),
    )
