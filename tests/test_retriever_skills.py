"""The skill sheet of a retriever: what it finds, by kind and print; whether its patches lie on the words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import make_question

from vrag_nb.nano.retriever_skills import answer_print, pages_found, printed_words, recall_by, word_met
from vrag_nb.records import Hit, Question
from vrag_nb.retrieval.embedders import SimilarityMap
from vrag_nb.retrieval.matches import Matches

FOREIGN = Path(__file__).resolve().parents[1] / "data" / "foreign"


def _question(uid: str, page: int, printed: bool = True, height: float = 0.05, kind: str = "table") -> Question:
    one = make_question(uid)
    fact: dict[str, Any] = {"page": page, "printed": printed, "answer_box": (0.1, 0.2, 0.3, 0.2 + height)}
    meta = one.meta_info.model_copy(
        update={"reference_page": [page], "needed_facts": [fact], "source_type": kind, "query_type": kind}
    )
    return one.model_copy(update={"meta_info": meta})


def _hits(*names: str) -> list[Hit]:
    return [Hit(rank=rank, score=-rank, page_id=name) for rank, name in enumerate(names, start=1)]


def test_what_is_found_is_counted_question_by_question() -> None:
    questions = [_question("a", 1), _question("b", 2), _question("c", 3), _question("d", 4)]
    gold = [question.gold_page_ids[0] for question in questions]
    other = "another_1"
    rankings = {
        "a": _hits(gold[0], other),
        "b": _hits(other, gold[1]),
        "c": _hits(gold[0]),  # another page of its document
        "d": RuntimeError("no answer"),
    }
    rows = pages_found(rankings, questions, lambda name: name.rpartition("_")[0])
    assert {name: row["value"] for name, row in rows.items()} == pytest.approx(
        {
            "recall@1": 0.25,
            "recall@3": 0.5,
            "recall@5": 0.5,
            "ndcg@5": (1 + 1 / np.log2(3)) / 4,
            "right document first": 0.5,
        },
        abs=1e-4,
    )
    assert {row["n"] for row in rows.values()} == {4}


def test_groups_have_rows_of_their_own() -> None:
    questions = [_question("a", 1, kind="chart"), _question("b", 2), _question("c", 3), _question("d", 4, kind="text")]
    rankings = {"a": _hits("x_1"), "b": [], "c": _hits(*questions[2].gold_page_ids), "d": _hits("x_1")}
    rows = recall_by(rankings, questions, lambda one: None if one.uid == "d" else one.meta_info.source_type)
    assert {name: (row["value"], row["n"]) for name, row in rows.items()} == {"chart": (0.0, 1), "table": (0.5, 2)}


def test_print_is_as_high_as_the_page_is_shown() -> None:
    page: Any = SimpleNamespace(width=2000, height=1000)  # shown 980 pixels wide and 476 high
    assert answer_print(_question("a", 1, height=11 / 476), page) == "10 to 13"
    assert answer_print(_question("a", 1, height=9.9 / 476), page) == "8 to 10"
    assert answer_print(_question("a", 1, printed=False), page) is None


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
