"""The skill sheet of VimRAG's protocol: the expert's words are a perfect sheet, others are wrong in their rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ScriptedPolicy
from test_skills import Oracle

from vrag_nb.agent.memory_actions import parse
from vrag_nb.nano.memory_skills import KINDS, drawn_steps, judged, memory_sheet, step_makers, step_skills
from vrag_nb.nano.memory_tasks import Kind, kind_of
from vrag_nb.nano.skills import Asker, Decks, wanted
from vrag_nb.records import read_questions

FOREIGN = Path(__file__).resolve().parents[1] / "data" / "foreign"


@pytest.fixture(scope="module")
def decks() -> Decks:
    return Decks(FOREIGN / "documents", read_questions(FOREIGN / "questions.dev.json"), limit=2, seed=0)


def test_the_expert_gets_a_perfect_sheet(decks: Decks) -> None:
    sheet = memory_sheet(Oracle(), {"foreign": decks}, count=3)
    assert list(sheet) == ["questions, foreign decks", "long questions, foreign decks", "films, foreign decks"]
    for section, views in sheet.items():
        assert {row.partition(":")[0] for row in views[""]} == set(KINDS), section
        assert {score["value"] for score in views[""].values()} == {1.0}, section
        assert all(score["n"] <= 3 for score in views[""].values())


def test_steps_are_sorted_by_what_the_expert_does(decks: Decks) -> None:
    drawn_steps(step_makers(decks.pool)["questions"], 2, "0")  # decks are drawn with the first of them
    steps = drawn_steps(step_makers(decks.pool)["questions"], 2, "0")
    assert {kind: {kind_of(wanted(one)) for one in samples} for kind, samples in steps.items()} == {
        kind: {kind} for kind in KINDS
    }
    assert all(len({one.about for one in samples}) == len(samples) for samples in steps.values()), "a case a question"
    again = drawn_steps(step_makers(decks.pool)["questions"], 2, "0")
    assert [wanted(one) for one in steps["found"]] == [wanted(one) for one in again["found"]]


def test_what_is_read_is_judged_without_what_was_known_before() -> None:
    thought, told = parse(
        _call("summarize_and_memorize", f'"summarize": "No \'a b\'. It is 4.5.", "memorize": [{{{KEPT}}}]')
    )
    for summary, right in (("No 'a c'. It is 4.5.", True), ("It is 14.5.", False), ("It is 4.", False)):
        _, said = parse(_call("summarize_and_memorize", f'"summarize": "{summary}", "memorize": [{{{KEPT}}}]'))
        assert judged("found", said, told, "I read 4.5.")["read right"] == right
    assert not judged("found", said, told, thought)["read right"], "without a value the whole is compared"


def test_words_that_are_no_call_are_right_nowhere(decks: Decks) -> None:
    steps = drawn_steps(step_makers(decks.pool)["questions"], 2, "0")
    scores = step_skills(Asker(ScriptedPolicy(["hm"])), steps)
    assert {value for values in scores.values() for value in values} == {0.0}


def _call(name: str, arguments: str) -> str:
    return f'<think>So.</think>\n<tool_call>{{"name": "{name}", "arguments": {{{arguments}}}}}</tool_call>'


KEPT = '"information_id": "Picture 1", "is_useful": true, "priority_score": 5'
DROPPED = '"information_id": "Picture 1", "is_useful": false, "priority_score": 1'


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        ("search", _call("add_search_node", '"query": "the  cost"'), {"right tool": 1, "the expert's words": 1}),
        ("search", _call("add_search_node", '"query": "a cost"'), {"right tool": 1, "the expert's words": 0}),
        ("search", _call("add_answer_node", '"answer": "7"'), {"right tool": 0, "the expert's words": 0}),
        (
            "found",
            _call("summarize_and_memorize", f'"summarize": "It is 8.", "memorize": [{{{KEPT}}}]'),
            {"right tool": 1, "kept": 1, "read right": 0},
        ),
        (
            "found",
            _call("summarize_and_memorize", f'"summarize": "It is 7.", "memorize": [{{{DROPPED}}}]'),
            {"right tool": 1, "kept": 0, "read right": 1},
        ),
        (
            "missed",
            _call("summarize_and_memorize", f'"summarize": "None.", "memorize": [{{{DROPPED}}}]'),
            {"right tool": 1, "nothing kept": 1},
        ),
        ("missed", _call("add_answer_node", '"answer": "7"'), {"right tool": 0, "nothing kept": 0}),
        ("answer", _call("add_answer_node", '"answer": "7"'), {"right tool": 1, "what the memory holds": 1}),
        ("answer", _call("add_answer_node", '"answer": "8"'), {"right tool": 1, "what the memory holds": 0}),
    ],
)
def test_a_call_is_judged_beside_the_experts(kind: Kind, said: str, expected: dict[str, int]) -> None:
    told = {
        "search": _call("add_search_node", '"query": "the cost"'),
        "found": _call("summarize_and_memorize", f'"summarize": "It is 7.", "memorize": [{{{KEPT}}}]'),
        "missed": _call("summarize_and_memorize", f'"summarize": "It is not here.", "memorize": [{{{DROPPED}}}]'),
        "answer": _call("add_answer_node", '"answer": "7"'),
    }[kind]
    assert judged(kind, parse(said)[1], parse(told)[1]) == expected
