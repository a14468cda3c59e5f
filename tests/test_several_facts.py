"""Lessons on questions with two facts: what is said is what the expert says, and what is reckoned is right."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest
from PIL import Image

from vrag_nb.agent import actions
from vrag_nb.documents.decks.questions import COMPARISONS, DIFFERENCE, HOPS, SUM
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.expert import play, told_answer
from vrag_nb.nano.several_facts import FactTurns, Plans, on_to_the_next, pick, reason, row_names

VALUE = re.compile(r"[\d,.]+\d|\d")


def number(text: str) -> Fraction:
    found = VALUE.search(text)
    assert found, text
    return Fraction(found.group().replace(",", ""))


def asked_rows(query: str) -> list[str]:
    """The two rows that a question names, in its order."""
    for form in (*COMPARISONS, SUM, DIFFERENCE, *HOPS):
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(form))
        if found := re.fullmatch(pattern, query):
            cells = found.groupdict()
            return [cells.get("one") or _row(cells["a"]), cells.get("other") or _row(cells["b"])]
    raise AssertionError(query)


def _row(cell: str) -> str:
    """The row of a cell in words: `gain in 1950`, `gain of North`."""
    return re.split(r" (?:in|of) ", cell, maxsplit=1)[1]


def read_first(thought: str) -> str:
    """What was read, of a thought that may say more."""
    return re.split(r"\.(?: The | I need |$)", thought.removeprefix("I read "), maxsplit=1)[0]


@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
def test_what_is_made_of_two_values_is_right(difficulty: float) -> None:
    rng = random.Random(difficulty)
    for _ in range(200):
        sample = reason(rng, difficulty)
        (_, [asked]), (_, [said]) = sample.turns
        query, listed = re.split(r"(?<=[?]) (?!Name)|(?<=[a-z][.]) ", asked, maxsplit=1)
        told = dict(row.rsplit(": ", 1) for row in listed.removesuffix(".").split("; "))
        rows = asked_rows(query)
        thought, action = actions.parse(said)
        assert len(told) >= 2
        assert read_first(thought) == ", ".join(f"{name}: {told[name]}" for name in rows)
        one, other = (number(told[name]) for name in rows)
        assert thought.endswith(" is higher.") == (action.answer in rows)
        if "add up" in query:
            assert number(action.answer) == one + other
        elif "differ" in query:
            assert number(action.answer) == abs(one - other)
        else:
            best = max if re.search(r"\bhigher\b", query) else min
            assert action.answer == best(rows, key=lambda name: number(told[name]))
            assert thought.endswith(f"The {'first' if one > other else 'second'} is higher.")


def test_turns_are_those_of_the_expert_in_the_environment(pool: DeckPool) -> None:
    rng, seen = random.Random(1), 0
    for _ in range(60):
        picked = pick(pool, rng, pages=2)
        if picked is None:
            continue
        pages, question = picked
        written = [turn.text for turn in play(question, pages, rng, recall=1.0).turns]
        assert on_to_the_next(question) in written
        assert written[-1] == told_answer(question)
        seen += 1
    assert seen > 10


def test_each_kind_of_turn_has_one_image_and_learns_its_last_turn(pool: DeckPool) -> None:
    rng, draw, kinds, checked = random.Random(2), FactTurns(pool), set(), set()
    for _ in range(120):
        for sample in draw(rng, 0.0):
            kinds.add(sample.kind)
            said = "".join(map(str, sample.turns[-1][1]))
            assert sample.learn_from == len(sample.turns) - 1
            assert [isinstance(part, Image.Image) for part in sample.turns[-2][1]] == [False, True]
            kind = {"whole": "bbox", "first": "search"}.get(sample.kind, "answer")
            assert actions.parse(said)[1].kind == kind
            if sample.kind in ("both", "last"):
                assert said.count(", ") >= 1  # both values are in the thought
            if sample.looks and sample.kind != "whole":  # what is printed there is what is said
                printed = "".join("".join(word.split()) for word, _ in sample.words[0])
                read = read_first(actions.parse(said)[0]).split(", ")
                values = ["".join(one.rpartition(": ")[2].split()) for one in read]
                assert all(value in printed for value in (values[-1:] if sample.kind == "last" else values))
                checked.add(sample.kind)
            if sample.kind == "last":
                assert "I need to find the page." in str(sample.turns[3][1][0])
    assert kinds == {"whole", "first", "last", "both"}
    assert checked == {"first", "last", "both"}


def test_searches_are_planned_without_an_image(pool: DeckPool) -> None:
    rng, draw = random.Random(3), Plans(pool)
    drawn = [sample for _ in range(30) for sample in draw(rng, 0.3)]
    assert {sample.kind for sample in drawn} == {"plan"}
    assert not any(sample.images for sample in drawn)
    plans = [
        [actions.parse(str(parts[0]))[1].kind for role, parts in sample.turns if role == "assistant"]
        for sample in drawn
    ]
    assert all(plan in (["search"], ["search", "search", "answer"]) for plan in plans)
    assert len(set(map(tuple, plans))) == 2


def test_a_deck_without_such_questions_gives_nothing(pool: DeckPool) -> None:
    class Empty:
        def pick(self, rng: random.Random) -> tuple[list, list]:
            return pool.pick(rng)[0], []

    assert FactTurns(Empty())(random.Random(0), 0.0) == []  # type: ignore[arg-type]


def test_names_of_rows_differ() -> None:
    for seed in range(20):
        names = row_names(random.Random(seed), 6)
        assert len(set(names)) == 6
