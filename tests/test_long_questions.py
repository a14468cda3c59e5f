"""Long questions: what they join, how their values are counted, and what they put before a model, turn by turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_memory_expert import ByQuery

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.evaluation.long_questions import long_questions, values_right
from vrag_nb.evaluation.visual_context import mean_by_step, visual_tokens
from vrag_nb.learning.experts import PrivilegedPlanner
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.records import MetaInfo, Question

BUDGET = 40 * 784  # of one image


def single(uid: str, page: int, answer: str = "7", document: str = "alpha", **meta: Any) -> Question:
    fact = {"page": page, "box": (0, 0, 1, 1), "search_hint": uid, "description": uid, "value": answer}
    about = {"query_type": "single_hop", "reference_page": [page], "needed_facts": [fact], **meta}
    return Question(
        uid=uid, query=f"{uid}?", reference_answer=answer, meta_info=MetaInfo(file_name=f"{document}.pdf", **about)
    )


def test_parts_are_of_one_document_on_different_pages_and_used_once() -> None:
    questions = [single(f"a{number}", number % 3 + 1) for number in range(7)]
    questions += [single("b1", 1, document="beta"), single("b2", 1, document="beta")]
    found = long_questions(questions, pages=3)
    parts = [uid for one in found for uid in (one.meta_info.model_extra or {})["parts"]]
    assert len(found) == 2, "beta has one page, and alpha 7 = 2 * 3 + 1 questions"
    assert len(set(parts)) == len(parts) == 6
    for one in found:
        assert (one.document, sorted(one.meta_info.reference_page)) == ("alpha", [1, 2, 3])
        assert [fact["search_hint"] for fact in one.needed_facts] == (one.meta_info.model_extra or {})["parts"]
        assert one.reference_answer == "7; 7; 7"
        assert all(f"({number}) {part}?" in one.query for number, part in enumerate(one.meta_info.parts, 1))  # type: ignore[attr-defined]
    assert found == long_questions(questions, pages=3), "the seed decides"
    assert found != long_questions(questions, pages=3, seed=1)


def test_only_questions_of_one_value_on_one_page_are_joined() -> None:
    odd = [
        single("two", 2, reference_page=[2, 3]),
        single("none", 2, reference_page=[], query_type="unanswerable"),
        single("sum", 2, query_type="arithmetic"),
        single("list", 2, answer="7; 8"),
    ]
    with pytest.raises(ValueError, match="no document has questions of one value on 2 different pages"):
        long_questions([single("one", 1), *odd], pages=2)
    with pytest.raises(ValueError, match="two questions or more"):
        long_questions([single("one", 1)], pages=1)


def test_parts_may_be_of_different_documents(tiny_corpus: Path) -> None:
    questions = [single("q1", 1), single("q2", 1, document="beta"), single("q3", 2)]
    [question] = long_questions(questions, pages=2, across=True)
    assert sorted(question.gold_page_ids) in (["alpha_1", "beta_1"], ["alpha_2", "beta_1"])
    assert [question.fact_page_id(fact) for fact in question.needed_facts] == question.gold_page_ids
    engine = ByQuery(q1=["alpha_1"], q2=["beta_1"], q3=["alpha_2"])
    settings = Settings(max_turns=6, min_pixels=784, max_pixels=BUDGET)
    [vrag] = rollout(
        PrivilegedPlanner([question]), Environment(engine, tiny_corpus, settings), [question], progress=False
    )
    shares = MemorySettings(min_pixels=784, max_pixels=BUDGET)
    [vimrag] = rollout(
        MemoryPlanner([question]), MemoryEnvironment(engine, tiny_corpus, shares), [question], progress=False
    )
    for one in (vrag, vimrag):
        assert one.answer == question.reference_answer
        assert set(question.gold_page_ids) <= set(one.retrieved_page_ids)
    with pytest.raises(ValueError, match="no questions of one value on 3 different documents"):
        long_questions(questions, pages=3, across=True)
    with pytest.raises(ValueError, match="reference_documents names 1 documents for 2 gold pages"):
        MetaInfo(file_name="a.pdf", reference_page=[1, 2], reference_documents=["a"])  # type: ignore[call-arg]


def test_values_count_in_their_place() -> None:
    [question] = long_questions([single("a", 1, "7"), single("b", 2, "12%")], pages=2)
    first, second = question.reference_answer.split("; ")
    assert values_right(question.reference_answer, question) == 1
    assert values_right(f"{first};", question) == values_right(first, question) == 0.5
    assert values_right(f"{second}; {first}", question) == values_right(None, question) == 0


def test_a_history_grows_where_a_memory_stays_within_its_budget(tiny_corpus: Path) -> None:
    [question] = long_questions([single(f"q{page}", page) for page in (1, 2, 3)], pages=3)
    engine = ByQuery(q1=["alpha_1"], q2=["alpha_2"], q3=["alpha_3"])
    pages = PageStore(tiny_corpus)
    settings = Settings(max_turns=6, min_pixels=784, max_pixels=BUDGET)
    history = Environment(engine, tiny_corpus, settings)
    [vrag] = rollout(PrivilegedPlanner([question]), history, [question], progress=False)
    grown = visual_tokens(vrag, pages)
    page = grown[1]
    assert (vrag.answer, grown) == (question.reference_answer, [0, page, 2 * page, 3 * page])
    assert 30 <= page <= 40
    shares = MemorySettings(min_pixels=784, max_pixels=BUDGET, memory_pixels=20 * 784)
    [vimrag] = rollout(
        MemoryPlanner([question]), MemoryEnvironment(engine, tiny_corpus, shares), [question], progress=False
    )
    held = visual_tokens(vimrag, pages)
    assert vimrag.answer == question.reference_answer
    assert len(held) == 7, "a search and its memorising for each page, and the answer"
    assert held[:2] == [0, page]
    assert all(0 < tokens <= 20 for tokens in held[2::2]), "what is remembered"
    assert all(tokens <= 20 + page for tokens in held[1::2]), "and what a search shows beside it"


def test_means_are_over_those_that_came_so_far() -> None:
    assert mean_by_step([[0, 10], [0, 20, 30]]) == [(0, 2), (15, 2), (30, 1)]
    assert mean_by_step([]) == []
