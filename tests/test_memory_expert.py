"""The expert of VimRAG's protocol: what it finds it keeps and answers from, under every kind of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import RankedEngine, make_question

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_graph import ANSWER, ROOT, MemoryGraph
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import MemoryKind, MemorySettings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.learning.memory_expert import NO_ANSWER, MemoryPlanner
from vrag_nb.records import Hit, MetaInfo, Question

KINDS: tuple[MemoryKind, ...] = ("summary", "graph", "multimodal", "energy")


def fact(page: int, hint: str, value: str) -> dict[str, Any]:
    return {"page": page, "search_hint": hint, "description": f'"growth" of {hint} ', "value": value}


def asked(
    *facts: dict[str, Any], pages: Sequence[int] = (), query: str = "Which grew?", answer: str = "Peru"
) -> Question:
    gold = list(pages) or sorted({one["page"] for one in facts})
    meta = MetaInfo(file_name="alpha.pdf", reference_page=gold, needed_facts=list(facts))  # type: ignore[call-arg]
    return Question(uid=f"u{len(facts)}{query}", query=query, reference_answer=answer, meta_info=meta)


class ByQuery(RankedEngine):
    """Finds what a table says for a query, and page beta_1 for any other."""

    def __init__(self, **found: list[str]) -> None:
        super().__init__()
        self.found = found

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        self.calls.append(list(queries))
        names = [self.found.get(query.replace(" ", "_"), ["beta_1"])[:top_k] for query in queries]
        return [[Hit(page_id=name, score=1.0, rank=n + 1) for n, name in enumerate(found)] for found in names]


def play(corpus: Path, question: Question, engine: RankedEngine, **options: Any) -> tuple[Trajectory, MemoryGraph]:
    options = {"max_pixels": 40 * 784, "memory_pixels": 60 * 784, **options}
    environment = MemoryEnvironment(engine, corpus, MemorySettings(**options))
    [trajectory] = rollout(MemoryPlanner([question, make_question("other")]), environment, [question], progress=False)
    assert trajectory.error is None
    replies = [reply for turn in trajectory.turns if turn.memory for reply in turn.memory.replies]
    assert not any(turn.action.kind == "invalid" for turn in trajectory.turns)
    assert not any(reply.notice for reply in replies)
    return trajectory, MemoryGraph.load(trajectory.graph or [])


TWO = asked(fact(1, "Norway  2%", "2%"), fact(3, "Peru", "3%"))


@pytest.mark.parametrize("memory", KINDS)
def test_pages_are_found_kept_and_answered_from(tiny_corpus: Path, memory: MemoryKind) -> None:
    engine = ByQuery(**{"Norway_2%": ["beta_2", "alpha_1"], "Peru": ["alpha_3", "alpha_1"]})
    trajectory, graph = play(tiny_corpus, TWO, engine, memory=memory)
    assert (trajectory.answer, trajectory.status, trajectory.policy) == ("Peru", "answered", MemoryPlanner.name)
    assert engine.calls == [["Norway 2%"], ["Peru"]]
    first, second = graph.nodes[1:3]
    assert '"growth" of Norway 2%: 2%.' in first.summary
    assert '"growth" of Peru: 3%.' in second.summary
    assert ("Norway" in second.summary) == (memory == "summary")  # a running summary is told again
    kept = [[(item.name, item.priority) for item in node.items] for node in (first, second)]
    assert kept == ([[("alpha_1", 5)], [("alpha_3", 5)]] if memory in ("multimodal", "energy") else [[], []])
    if memory != "summary":
        assert (first.parents, second.parents) == ((ROOT,), (ROOT,))
        assert graph[ANSWER].parents == (first.name, second.name)


LIST = asked(fact(1, "Norway", "2%"), fact(3, "Peru", "3%"), query="(1) How is Norway? (2) And Peru?", answer="2%; 3%")
LIST = LIST.model_copy(
    update={"meta_info": LIST.meta_info.model_validate({**LIST.meta_info.model_dump(), "parts": ["u1", "u2"]})}
)


@pytest.mark.parametrize("memory", KINDS)
def test_the_parts_of_a_list_of_questions_have_their_numbers(tiny_corpus: Path, memory: MemoryKind) -> None:
    engine = ByQuery(Norway=["alpha_1"], Peru=["alpha_3"])
    trajectory, graph = play(tiny_corpus, LIST, engine, memory=memory)
    assert trajectory.answer == "2%; 3%"
    assert [turn.thought for turn in trajectory.turns] == ["I need (1).", "I need (2).", "I have all of it."]
    told = [node.summary for node in graph.nodes[1:3]]
    assert told == ["(1) 2%.", "(1) 2%. (2) 3%." if memory == "summary" else "(2) 3%."]


@pytest.mark.parametrize("asked_only", [False, True])
def test_what_was_not_searched_for_may_be_passed_over(tiny_corpus: Path, asked_only: bool) -> None:
    engine = ByQuery(Norway=["alpha_3", "alpha_1"], Peru=["alpha_3"])
    planner = MemoryPlanner([LIST], asked_only=asked_only)
    environment = MemoryEnvironment(engine, tiny_corpus, MemorySettings(max_pixels=40 * 784, caption="{query}"))
    [trajectory] = rollout(planner, environment, [LIST], progress=False)
    graph = MemoryGraph.load(trajectory.graph or [])
    assert trajectory.answer == "2%; 3%"
    assert graph.nodes[1].summary == ("(1) 2%." if asked_only else "(1) 2%. (2) 3%.")
    assert [item.name for item in graph.nodes[1].items] == (["alpha_1"] if asked_only else ["alpha_3", "alpha_1"])


@pytest.mark.parametrize("memory", KINDS)
def test_a_found_answer_is_not_said_to_be_missing(tiny_corpus: Path, memory: MemoryKind) -> None:
    found, _ = play(tiny_corpus, TWO, ByQuery(**{"Norway_2%": ["alpha_1"], "Peru": ["alpha_3"]}), memory=memory)
    missed, _ = play(tiny_corpus, TWO, ByQuery(), memory=memory)
    assert found.turns[-1].thought == "I have all of it."
    assert missed.turns[-1].thought == "The pages do not hold it."


def test_other_hints_come_before_the_question_itself(tiny_corpus: Path) -> None:
    facts = fact(1, "Norway", "2%"), {**fact(3, "Peru", "3%"), "other_hints": ["Lima"]}
    engine = ByQuery(Norway=["alpha_1"], Lima=["alpha_3"])
    trajectory, _ = play(tiny_corpus, asked(*facts), engine)
    assert engine.calls == [["Norway"], ["Peru"], ["Lima"]]
    assert trajectory.answer == "Peru"


@pytest.mark.parametrize("memory", KINDS)
def test_a_miss_leads_to_the_next_attempt_and_to_no_answer_in_the_end(tiny_corpus: Path, memory: MemoryKind) -> None:
    engine = ByQuery(**{"Which_grew?": ["alpha_1"], "Peru": ["alpha_3"]})
    trajectory, graph = play(tiny_corpus, TWO, engine, memory=memory)
    assert engine.calls == [["Norway 2%"], ["Which grew?"], ["Peru"]]
    assert trajectory.answer == "Peru"
    if memory != "summary":
        missed, found, other = graph.nodes[1:4]
        assert found.parents == (missed.name,)
        assert other.parents == (ROOT,)
        assert graph.redundant() == []
    trajectory, graph = play(tiny_corpus, TWO, ByQuery(Peru=["alpha_3"]), memory=memory)
    assert trajectory.answer == NO_ANSWER
    assert len(trajectory.turns) == 3


@pytest.mark.parametrize("memory", KINDS)
def test_both_pages_at_once_and_an_empty_search(tiny_corpus: Path, memory: MemoryKind) -> None:
    _, graph = play(tiny_corpus, TWO, ByQuery(**{"Norway_2%": ["alpha_3", "alpha_1"]}), memory=memory)
    assert len(graph.nodes) == 3
    nothing = ByQuery(**{"Norway_2%": [], "Which_grew?": ["alpha_3"]})
    trajectory, graph = play(tiny_corpus, TWO, nothing, memory=memory)
    assert nothing.calls == [["Norway 2%"], ["Which grew?"]]
    assert (trajectory.answer, trajectory.status) == (NO_ANSWER, "answered")


@pytest.mark.parametrize("memory", KINDS)
def test_questions_without_facts_and_without_an_answer(tiny_corpus: Path, memory: MemoryKind) -> None:
    plain = asked(pages=[2], query="Where?", answer="there")
    trajectory, graph = play(tiny_corpus, plain, ByQuery(**{"Where?": ["alpha_1", "alpha_2"]}), memory=memory)
    assert trajectory.answer == "there"
    assert graph.nodes[1].summary == "alpha_2 is about it."
    hinted = asked(fact(2, "Peru", "3%"))
    _, graph = play(tiny_corpus, hinted, ByQuery(Peru=["alpha_2"]), memory=memory)
    assert [node.query for node in graph.nodes[1:3]] == ["Which grew?", "Peru"]
    unanswerable = asked(query="When?", answer="not answerable")
    trajectory, graph = play(tiny_corpus, unanswerable, ByQuery(), memory=memory)
    assert trajectory.answer == "not answerable"
    assert len(graph.nodes) == 3
    assert graph.nodes[1].items == ()


def test_a_vague_search_is_made_with_half_of_its_words_and_is_a_dead_end(tiny_corpus: Path) -> None:
    question = asked(fact(2, "Peru", "3%"), query="In which year did Peru grow?", answer="1999")
    engine = ByQuery(**{"In_which_year_did_Peru_grow?": ["alpha_2"]})
    environment = MemoryEnvironment(engine, tiny_corpus, MemorySettings(max_pixels=40 * 784))
    planner = MemoryPlanner([question], follow_misses=False, vague=0.5)
    played = rollout(planner, environment, [question], samples=24, progress=False)
    searches = [[turn.action.query for turn in one.turns if turn.action.kind == "search"] for one in played]
    assert {query for made in searches for query in made} == {"In which year", "In which year did Peru grow?"}
    assert {len(made) for made in searches} >= {1, 2}
    for one, made in zip(played, searches, strict=True):
        assert (one.answer, made.count("In which year did Peru grow?")) == ("1999", 1)
        assert len(MemoryGraph.load(one.graph or []).redundant()) == len(made) - 1
    assert planner.identity != MemoryPlanner([question]).identity != MemoryPlanner([question], vague=0.1).identity


def test_a_page_in_memory_is_not_taken_for_one_just_found(tiny_corpus: Path) -> None:
    """With a system message the context is not the first one, and its own pictures are no search's."""
    engine = ByQuery(**{"Norway_2%": ["alpha_1"], "Peru": ["beta_1", "alpha_3"]})
    trajectory, graph = play(tiny_corpus, TWO, engine, system="You are careful.")
    assert trajectory.answer == "Peru"
    assert [item.name for item in graph.nodes[2].items] == ["alpha_3"]


def test_a_question_it_was_not_told_of_is_an_error(tiny_corpus: Path) -> None:
    environment = MemoryEnvironment(RankedEngine(), tiny_corpus, MemorySettings())
    [trajectory] = rollout(MemoryPlanner([]), environment, [make_question("u")], progress=False)
    assert "not told the gold" in (trajectory.error or "")
