"""The skill sheet: a model that reads perfectly scores perfectly, one that babbles does not; sizes are sorted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import RankedEngine, ScriptedPolicy, make_question
from PIL import Image

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.task_settings import Settings
from vrag_nb.nano import skills
from vrag_nb.nano.loop_skills import loop_skills
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.skills import Asker, Decks, as_markdown, box_iou, legibility_figure, skill_sheet, wanted
from vrag_nb.records import read_questions

FOREIGN = Path(__file__).resolve().parents[1] / "data" / "foreign"


class Oracle(Asker):
    """Says what each sample wants."""

    def __init__(self) -> None:
        super().__init__(ScriptedPolicy(["hm"]))

    def ask(self, samples: Sequence[Sample]) -> list[str]:
        super().ask(samples)
        return [wanted(sample) for sample in samples]


@pytest.fixture(scope="module")
def decks() -> Decks:
    questions = read_questions(FOREIGN / "questions.dev.json")
    return Decks(FOREIGN / "documents", questions, limit=2, seed=0)


def test_a_perfect_reader_gets_a_perfect_sheet(decks: Decks) -> None:
    sheet = skill_sheet(Oracle(), {"foreign": decks}, count=3)
    assert "gold crops by what is asked, foreign decks" in sheet
    for skill, views in sheet.items():
        best = 0.0 if "error" in skill else 1.0
        for scores in views.values():
            assert scores, skill
            assert {score["value"] for score in scores.values()} == {best}, skill
    seen = sheet["legibility, foreign decks"]
    assert list(seen) == ["whole page", "gold crop"]
    assert list(seen["whole page"]) == list(seen["gold crop"])  # the same questions
    assert [label for label in skills.PRINT_LABELS if label in seen["gold crop"]] == list(
        seen["gold crop"]
    )  # small print first
    assert "Legibility, foreign decks" in as_markdown(sheet)
    assert len(legibility_figure(sheet).axes) == 1


def test_a_babbler_does_not(decks: Decks) -> None:
    babbler = Asker(ScriptedPolicy(["hm"]))
    assert set(skills.cell_lookup(babbler, 2, 0)["1 column"]) == {0.0}
    assert min(skills.character_errors(babbler, 2, 0)["by size"]["8 px"]) > 0.7
    assert set(skills.page_skills(babbler, decks, 2, 0)["box IoU"]) == {0.0}


def test_boxes_are_compared_as_written() -> None:
    assert box_iou("[0, 0, 10, 10]", "[0, 0, 10, 10]") == 1
    assert box_iou("[0, 0, 10, 10]", "[5, 0, 15, 10]") == pytest.approx(1 / 3)
    assert box_iou("somewhere", "[5, 0, 15, 10]") == 0


def test_every_case_is_another_question(decks: Decks) -> None:
    for samples in decks.samples(50, 0).values():
        asked = [one.turns[0][1][0] for one in samples]
        assert len(set(asked)) == len(asked) > 0


def test_the_same_seed_asks_the_same(decks: Decks) -> None:
    first, second = (decks.samples(2, 5) for _ in range(2))
    assert [[s.turns[0][1][0] for s in group] for group in first.values()] == [
        [s.turns[0][1][0] for s in group] for group in second.values()
    ]


def test_an_agent_is_asked_without_the_task_and_its_action_is_taken() -> None:
    image = Image.new("RGB", (56, 56))
    asked: list[str] = []
    said = {
        "crop": "<think>I read 7.</think>\n<answer>7</answer>",
        "point": "<think>Right page, small print.</think>\n<bbox>[0, 28, 56, 56]</bbox>",
        "match": "<think>Not the right page.</think>\n<search>seven</search>",
        "read": "plain words",
    }

    def told(conversation: list) -> str:
        asked.append(conversation[-1].text)
        return said[asked[-1]]

    samples = [Sample(kind, [("user", [kind, image]), ("assistant", ["?"])]) for kind in said]
    samples[1].turns[0][1][0], samples[2].turns[0][1][0] = "Where: point", "Match: match"
    taken = Asker(ScriptedPolicy(told), acting=True).ask(samples)
    assert asked == ["crop", "point", "match", "read"]
    assert taken == ["7", "[0, 28, 56, 56]", "no", "plain words"]


def test_crops_are_sorted_by_what_is_asked_of_them(decks: Decks) -> None:
    found = decks.in_one_crop(4, seed=0)
    assert {"cell of a table", "value of a chart's label", "which of two is higher"} <= set(found)
    assert all(1 <= len(samples) <= 4 for samples in found.values())
    assert all(len(sample.images) == 1 for samples in found.values() for sample in samples)
    for sample in found["which of two is higher"]:
        assert wanted(sample) in sample.turns[0][1][0]  # the question names the two answers there can be
    for sample in found.get("sum or difference", []):
        assert re.search("differ|add up", str(sample.turns[0][1][0]))


def test_the_loop_counts_turns_searches_and_what_they_find(tiny_corpus: Path, engine: RankedEngine) -> None:
    world = Environment(engine, tiny_corpus, Settings(max_turns=6), "nano")
    questions = [make_question("a"), make_question("b")]  # the gold page is the second

    def script(conversation: list) -> str:
        said = sum(message.role == "assistant" for message in conversation)
        return ["<search>q</search>", "nonsense", "<answer>7</answer>"][min(said, 2)]

    found = loop_skills(ScriptedPolicy(script), world, questions)
    assert found["valid action"] == [1.0, 0.0, 1.0] * 2
    assert found["answered unasked"] == [1.0, 1.0]
    assert found["search, recall@1"] == found["question, recall@1"] == [0.0, 0.0]
    assert found["search, recall@3"] == found["question, recall@3"] == [1.0, 1.0]
    silent = loop_skills(ScriptedPolicy(["<answer>7</answer>"]), world, questions)
    assert silent["search, recall@3"] == [0.0, 0.0]
    with pytest.raises(ValueError, match="no search engine"):
        loop_skills(ScriptedPolicy(["hm"]), Environment(None, tiny_corpus), questions)
