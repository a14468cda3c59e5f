"""Every class of wrong answer on trajectories made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.agent.actions import Action
from vrag_nb.agent.trajectory import Observation, Trajectory, Turn
from vrag_nb.evaluation.failures import ENLARGES, KINDS, MEANINGS, classify, is_computed
from vrag_nb.records import MetaInfo, Question, Region

SIZE = (1000, 500)  # page pixels
VALUE = (0.6, 0.4, 0.7, 0.5)  # where the answer is printed, in page fractions: 600 to 700 x 200 to 250 pixels
REGION = (0.5, 0.2, 0.9, 0.8)
FACT: dict[str, Any] = {
    "page": 2, "box": list(REGION), "answer_box": list(VALUE), "value": "43.6", "printed": True, "needs_crop": True,
}  # fmt: skip


def question(answer: str = "43.6", pages: tuple[int, ...] = (2,), kind: str = "single_hop", **more: Any) -> Question:
    meta = MetaInfo(file_name="deck.pdf", reference_page=list(pages), query_type=kind, **more)
    return Question(uid="q", query="How much?", reference_answer=answer, meta_info=meta)


def page(number: int, text: bool = False) -> Observation:
    shown = {"text": "words"} if text else {"page_size": SIZE, "shown_size": (560, 280), "image": "p.png"}
    return Observation(kind="page", page_id=f"deck_{number}", **shown)  # type: ignore[arg-type]


def crop(number: int, box: tuple[int, int, int, int]) -> Observation:
    return Observation(
        kind="crop", page_id=f"deck_{number}", page_size=SIZE, crop_box=box, shown_size=(560, 280), image="p.png"
    )


def trajectory(asked: Question, *seen: Observation, answer: str | None = "12", **more: Any) -> Trajectory:
    """A search or a crop a turn, then the answer."""
    actions = [Action(kind="search" if one.kind == "page" else "bbox") for one in seen]
    turns = [
        Turn(index=place, text="", thought="", action=action, observation=one)
        for place, (action, one) in enumerate(zip(actions, seen, strict=True))
    ]
    forced = more.pop("forced", False)
    last = Action(kind="answer" if answer is not None else "invalid", answer=answer)
    turns.append(Turn(index=len(turns), text="", thought="", action=last, forced=forced))
    status = more.pop("status", "answered" if answer is not None else "no_answer")
    return Trajectory(
        uid="q", question="How much?", prompt="", reference=asked, turns=turns, answer=answer, status=status, **more
    )


SMALL = question(needed_facts=[FACT], needs_crop=True)
PLAIN = question()
SUM = question("54", (2, 3), "arithmetic")
ASKED_NOTHING = question("not answerable", (), "unanswerable")

CASES = {
    "no page": (trajectory(PLAIN), "wrong_page", "no page was shown"),
    "another page": (trajectory(PLAIN, page(1)), "wrong_page", "the gold page was never shown"),
    "one of two pages": (trajectory(SUM, page(2)), "wrong_page", "1 of 2 gold pages was never shown"),
    "no crop": (trajectory(SMALL, page(2)), "wrong_region", "deck_2 was never enlarged"),
    "another page cropped": (trajectory(SMALL, page(2), crop(1, (0, 0, 9, 9))), "wrong_region", "another page was"),
    "crop beside it": (trajectory(SMALL, page(2), crop(2, (0, 0, 500, 250))), "wrong_region", "no crop of deck_2"),
    "crop of it all": (trajectory(SMALL, page(2), crop(2, (0, 0, *SIZE))), "wrong_region", "no crop of deck_2"),
    "half the value": (trajectory(SMALL, page(2), crop(2, (650, 150, 900, 300))), "wrong_region", "no crop of deck_2"),
    "crop of the value": (trajectory(SMALL, page(2), crop(2, (550, 150, 800, 300))), "misread", "another number"),
    "page as text": (trajectory(SMALL, page(2, text=True)), "misread", "another number"),
    "print is large": (trajectory(PLAIN, page(2)), "misread", "another number"),
    "nearly right": (trajectory(question("117,388"), page(2), answer="117,338"), "misread", "1 character off"),
    "short and other": (trajectory(question("1949"), page(2), answer="1954"), "misread", "another number"),
    "other words": (trajectory(question("Peru"), page(2), answer="Norway"), "misread", "other words"),
    "words for a number": (trajectory(PLAIN, page(2), answer="Peru"), "other_kind", "asked for a number"),
    "sum": (trajectory(SUM, page(2), page(3)), "wrong_arithmetic", "the result is another one"),
    "comparison": (trajectory(question(kind="comparison"), page(2)), "wrong_arithmetic", "the result"),
    "no answer": (trajectory(PLAIN, page(2), answer=None), "gave_up", "no answer"),
    "refused": (trajectory(PLAIN, page(1), answer="not answerable"), "gave_up", "not all gold pages"),
    "used up": (trajectory(PLAIN, page(2), page(1), forced=True), "gave_up", "no action was left after 2"),
    "only the forced turn": (trajectory(PLAIN, forced=True), "wrong_page", "no page was shown"),
    "invented": (trajectory(ASKED_NOTHING, page(1)), "invented", "it answered"),
    "gold unknown": (trajectory(question(pages=()), page(1)), "unplaced", "not known"),
    "failed": (trajectory(PLAIN, answer=None, status="error", error="policy: gone"), "error", "policy: gone"),
}


@pytest.mark.parametrize("name", CASES)
def test_classes_by_hand(name: str) -> None:
    one, kind, why = CASES[name]
    found = classify(one)
    assert (found.kind, why in found.why) == (kind, True), found


def test_every_class_is_tested_and_explained() -> None:
    assert {kind for _, kind, _ in CASES.values()} == set(KINDS) == set(MEANINGS)


def test_a_turn_that_no_model_wrote_is_not_one_of_its_actions() -> None:
    """vanilla_top1's only turn of its own is the forced one: it did not give up."""
    one = trajectory(PLAIN, page(2), forced=True)
    assert classify(one).kind == "gave_up"
    assert classify(one, ready_made=1).kind == "misread"


def test_regions_decide_where_no_fact_is_known() -> None:
    asked = question(needs_crop=True, reference_regions=[Region(page=2, box=REGION)])
    assert classify(trajectory(asked, page(2), crop(2, (550, 150, 800, 300)))).kind == "wrong_region"  # a part of it
    assert classify(trajectory(asked, page(2), crop(2, (480, 80, 920, 420)))).kind == "misread"


def test_an_answer_nobody_printed_was_computed() -> None:
    facts = [{**FACT, "value": value} for value in ("120,445", "112,075")]
    assert is_computed(question("1951", (2,), "multi_hop", needed_facts=facts))
    assert not is_computed(question("112,075", (2,), "multi_hop", needed_facts=facts))
    assert is_computed(question("3", (2,), "single_hop", arithmetic_expression="5-2"))


def test_without_a_question_there_is_nothing_to_place() -> None:
    one = trajectory(PLAIN).model_copy(update={"reference": None})
    with pytest.raises(ValueError, match="no reference question"):
        classify(one)


@given(st.integers(0, 600), st.integers(0, 200), st.integers(700, 1000), st.integers(250, 500))
def test_a_crop_around_the_value_is_the_region_unless_it_is_nearly_the_page(x0: int, y0: int, x1: int, y1: int) -> None:
    found = classify(trajectory(SMALL, page(2), crop(2, (x0, y0, x1, y1)))).kind
    enlarges = (x1 - x0) * (y1 - y0) <= ENLARGES * SIZE[0] * SIZE[1]
    assert found == ("misread" if enlarges else "wrong_region")
