"""The skill sheet of a retriever: what it finds, by kind and print; whether its patches lie on the words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_question

from vrag_nb.display.matches import Matches
from vrag_nb.nano.retriever_skills import (
    by_kind,
    by_print,
    pages_found,
    printed_words,
    ranked_pages,
    scored,
    shown_height,
    word_met,
)
from vrag_nb.records import Hit, Question
from vrag_nb.retrieval.embedders import SimilarityMap

FOREIGN = Path(__file__).resolve().parents[1] / "data" / "foreign"


def _question(uid: str, page: int, printed: bool = True, height: float = 0.05, kind: str = "table") -> Question:
    one = make_question(uid)
    fact: dict[str, Any] = {"page": page, "printed": printed, "answer_box": (0.1, 0.2, 0.3, 0.2 + height)}
    meta = one.meta_info.model_copy(
        update={"reference_page": [page], "needed_facts": [fact], "source_type": kind, "query_type": kind}
    )
    return one.model_copy(update={"meta_info": meta})


class Pages:
    """Pages of 1000 x 1000 pixels, ten of a document: what a sheet asks of an engine."""

    def __init__(self, ranked: dict[str, list[str]]) -> None:
        self.ranked = ranked

    def search(self, queries: list[str], top_k: int = 5) -> list[list[Hit]]:
        return [
            [
                Hit(rank=rank, score=-rank, page_id=name, document="d", page=1)
                for rank, name in enumerate(self.ranked[q], 1)
            ]
            for q in queries
        ]

    def page(self, page_id: str) -> SimpleNamespace:
        return SimpleNamespace(document=page_id.rpartition("_")[0], page=1, width=1000, height=1000)


def test_what_is_found_is_counted_question_by_question() -> None:
    questions = [_question("a", 1), _question("b", 2), _question("c", 3)]
    gold = [question.gold_page_ids[0] for question in questions]
    other = "another_1"
    engine: Any = Pages({"a": [gold[0], other], "b": [other, gold[1]], "c": []})
    ranked = ranked_pages(engine, questions, lambda question: question.uid)
    assert ranked == {"a": [gold[0], other], "b": [other, gold[1]], "c": []}
    scores = pages_found(ranked, questions, engine)
    assert scores["recall@1"] == [1.0, 0.0, 0.0]
    assert scores["recall@5"] == [1.0, 1.0, 0.0]
    assert scores["nDCG@5"] == pytest.approx([1.0, 1 / np.log2(3), 0.0], abs=1e-4)
    assert scores["right document first"] == [1.0, 0.0, 0.0]


def test_groups_by_kind_and_by_print_smallest_first() -> None:
    questions = [
        _question("a", 1, height=0.03, kind="chart"),
        _question("b", 2, height=0.01),
        _question("c", 3, printed=False),
    ]
    ranked = {"a": questions[0].gold_page_ids, "b": [], "c": questions[2].gold_page_ids}
    assert by_kind(ranked, questions) == {"chart": [1.0], "table": [0.0, 1.0]}
    engine: Any = Pages({})
    assert by_print(ranked, questions, engine, budget=640) == {"6.5 to 8": [0.0], "13 on": [1.0]}


def test_print_is_as_high_as_the_page_is_shown() -> None:
    page: Any = SimpleNamespace(width=2000, height=1000)
    budget = 2000 * 1000 // 784 // 4  # half as wide and half as high
    assert shown_height(page, (0, 0.1, 1, 0.14), budget) == pytest.approx(20, rel=0.01)
    assert shown_height(page, (0, 0.1, 1, 0.14), 10**6) == pytest.approx(40), "a page is not enlarged"


@pytest.mark.parametrize(("place", "hit"), [((0.4, 0.3, 0.6, 0.4), 1.0), ((0.0, 0.3, 0.2, 0.4), 0.0)])
def test_a_words_best_patch_lies_on_it_or_not(place: tuple[float, float, float, float], hit: float) -> None:
    scores = np.zeros((2, 4, 5), np.float32)
    scores[:, 1, 2] = 1  # the second row, the third column
    matches = Matches.of(SimilarityMap(["Ġgo", "ld"], scores), "gold")
    met, chance = word_met(matches, matches.words[0], [place])
    assert met == hit
    assert chance == pytest.approx(1 / 20)


def test_words_of_a_page_stand_where_they_are_printed() -> None:
    pdf = sorted((FOREIGN / "documents").glob("*.pdf"))[0]
    places = printed_words(pdf, 1)
    assert places
    assert all(0 <= x0 < x1 <= 1.01 and 0 <= y0 < y1 <= 1.01 for boxes in places.values() for x0, y0, x1, y1 in boxes)
    assert all(word == word.lower() for word in places)


def test_shares_of_hits_have_exact_ends_and_other_means_do_not() -> None:
    found = scored({"hits": [1.0, 1.0, 1.0], "means": [0.5, 0.75, 1.0]})
    assert found["hits"].low < 1
    assert found["means"].value == pytest.approx(0.75)
