"""The foreign decks: committed ones hold what their questions say; a browser draws them again."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pymupdf
import pytest
from test_decks import words_in

from vrag_nb.documents.decks.questions import make_questions
from vrag_nb.documents.decks.tables import load_series
from vrag_nb.documents.foreign.generate import SIZES, chromium, print_deck
from vrag_nb.documents.foreign.slides import LOOKS, write_deck
from vrag_nb.records import Question, read_questions

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = ROOT / "data" / "foreign"
BROWSER = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Question]]:
    return {split: read_questions(FOREIGN / f"questions.{split}.json") for split in SIZES}


def check(document: pymupdf.Document, asked: list[Question]) -> int:
    """Every printed answer stands in its box, and that in its region; how many were looked at."""
    looked = 0
    for question in asked:
        for fact in question.meta_info.model_extra["needed_facts"]:
            if fact["printed"]:
                value = " ".join(fact["value"].split())
                assert value in words_in(document[fact["page"] - 1], fact["answer_box"], 1.5), question
                (x0, y0, x1, y1), (a0, b0, a1, b1) = fact["box"], fact["answer_box"]
                assert max(x0 - a0, y0 - b0, a1 - x1, b1 - y1) < 0.01, question
                looked += 1
    return looked


def test_committed_answers_stand_where_their_questions_say(questions: dict[str, list[Question]]) -> None:
    looked = 0
    for asked in questions.values():
        for name in sorted({question.meta_info.file_name for question in asked}):
            with pymupdf.open(FOREIGN / "documents" / name) as document:
                looked += check(document, [q for q in asked if q.meta_info.file_name == name])
    assert looked > 350


def test_each_split_has_its_own_tables_and_enough_questions(questions: dict[str, list[Question]]) -> None:
    for split, (decks, wanted) in SIZES.items():
        known = {series.dataset for series in load_series(split)}
        assert {question.meta_info.model_extra["source"] for question in questions[split]} <= known
        assert len({question.document for question in questions[split]}) == decks
        assert len(questions[split]) >= wanted
        kinds = {question.meta_info.source_type for question in questions[split]}
        assert {"text", "table", "chart", "layout"} <= kinds
    assert len({question.uid for asked in questions.values() for question in asked}) == sum(
        map(len, questions.values())
    )


def test_training_cannot_reach_them() -> None:
    for path in (ROOT / "vrag_nb" / "nano").glob("*.py"):
        measures = path.name in ("skills.py", "memory_skills.py", "retriever_skills.py")
        assert measures or "foreign" not in path.read_text(encoding="utf-8"), path


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_draws_a_deck_and_its_facts_are_measured() -> None:
    pytest.importorskip("playwright.sync_api")
    rng = random.Random(3)
    with chromium() as browser:
        writer = write_deck(rng, load_series("dev")[0], "Trial Talk")
        deck = print_deck(browser, writer, "trial-talk")
    assert writer.theme in LOOKS
    asked = make_questions(rng, deck, 40)
    with pymupdf.open(stream=deck.pdf, filetype="pdf") as document:
        assert len(document) == len(writer.slides)
        assert {(round(page.rect.width), round(page.rect.height)) for page in document} == {(960, 540)}
        assert check(document, asked) > 20
