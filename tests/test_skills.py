"""The skill sheet: a model that reads perfectly scores perfectly, one that babbles does not; sizes are sorted."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ScriptedPolicy

from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.nano import skills
from vrag_nb.nano.skills import Decks, as_markdown, box_iou, legibility_figure, skill_sheet
from vrag_nb.records import read_questions

FOREIGN = Path(__file__).resolve().parents[1] / "data" / "foreign"


class Oracle(Policy):
    """Says what each sample wants; it is told by `ask`, in order."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def generate(self, conversations: list[Conversation], seeds: object = None) -> list[Generation]:
        return [Generation(self.answers.pop(0)) for _ in conversations]


@pytest.fixture(scope="module")
def decks() -> Decks:
    questions = read_questions(FOREIGN / "questions.dev.json")
    return Decks(FOREIGN / "documents", questions, limit=2, seed=0)


def test_a_perfect_reader_gets_a_perfect_sheet(decks: Decks, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, ask = Oracle(), skills.ask

    def told(policy: Policy, samples: list) -> list[str]:
        oracle.answers = [skills._wanted(sample) for sample in samples]
        return ask(oracle, samples)

    monkeypatch.setattr(skills, "ask", told)
    sheet = skill_sheet(oracle, {"foreign": decks}, count=3)
    for skill, views in sheet.items():
        best = 0.0 if "error" in skill else 1.0
        for scores in views.values():
            assert scores, skill
            assert {score["value"] for score in scores.values()} == {best}, skill
    seen = sheet["legibility, foreign decks"]
    assert list(seen) == ["whole page", "gold crop"]
    assert list(seen["whole page"]) == list(seen["gold crop"])  # the same questions
    labels = [skills._label(number) for number in range(len(skills.PRINT_BINS) - 1)]
    assert [label for label in labels if label in seen["gold crop"]] == list(seen["gold crop"])  # small print first
    assert "Legibility, foreign decks" in as_markdown(sheet)
    assert len(legibility_figure(sheet).axes) == 1


def test_a_babbler_does_not(decks: Decks) -> None:
    babbler = ScriptedPolicy(["hm"])
    assert set(skills.cell_lookup(babbler, 2, 0)["1 column"]) == {0.0}
    assert min(skills.character_errors(babbler, 2, 0)["by size"]["8 px"]) > 0.7
    assert set(skills.page_skills(babbler, decks, 2, 0)["box IoU"]) == {0.0}


def test_boxes_are_compared_as_written() -> None:
    assert box_iou("[0, 0, 10, 10]", "[0, 0, 10, 10]") == 1
    assert box_iou("[0, 0, 10, 10]", "[5, 0, 15, 10]") == pytest.approx(1 / 3)
    assert box_iou("somewhere", "[5, 0, 15, 10]") == 0


def test_the_same_seed_asks_the_same(decks: Decks) -> None:
    first, second = (decks.samples(2, 5) for _ in range(2))
    assert [[s.turns[0][1][0] for s in group] for group in first.values()] == [
        [s.turns[0][1][0] for s in group] for group in second.values()
    ]
