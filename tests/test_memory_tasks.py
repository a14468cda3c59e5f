"""What VimRAG's expert teaches on decks drawn and filmed in memory: long questions, chunks of videos."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageStat

from vrag_nb.agent.pages import PageStore
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.documents.narrated import narrate
from vrag_nb.documents.pages import prepare_corpus
from vrag_nb.nano.deck_tasks import DeckPool, rendered_deck
from vrag_nb.nano.film_tasks import VIDEO, FilmPages
from vrag_nb.nano.memory_tasks import FilmSteps, MemorySteps, Weights, renamed


@pytest.fixture(scope="module")
def pool() -> DeckPool:
    return DeckPool(pretraining_deck, size=2, draws_per_deck=10_000)


def _text(turns: list[tuple[str, list[str | Image.Image]]]) -> str:
    return "".join(part for _, parts in turns for part in parts if isinstance(part, str))


def test_long_questions_are_searched_for_part_by_part(pool: DeckPool) -> None:
    rng, draw = random.Random(0), MemorySteps(pool, long=1.0)
    samples = [sample for _ in range(80) for sample in draw(rng, 0.0)]
    searches = [sample for sample in samples if sample.kind == "search"]
    asked = [(_text(one.turns[:-1]), _text(one.turns[-1:])) for one in searches]
    long = [(read, said) for read, said in asked if "Answer each, in this order" in read and "I need (" in said]
    assert long
    for read, said in long:
        query = json.loads(re.search(r"<tool_call>(.*)</tool_call>", said)[1])["arguments"]["query"]
        assert re.search(rf"\(\d\) {re.escape(query)}", read), "a part, in its own words"


def test_two_steps_of_a_trajectory_are_taken_and_none_that_weighs_nothing(pool: DeckPool) -> None:
    rng, draw = random.Random(3), MemorySteps(pool)
    drawn = [draw(rng, 0.0) for _ in range(30)]
    assert max(map(len, drawn)) == 2
    assert all(len({_text(one.turns) for one in samples}) == len(samples) for samples in drawn)
    weights: Weights = {"search": 0.0, "found": 1.0, "missed": 0.0, "answer": 0.0}
    draw.weights = weights
    assert {one.kind for _ in range(30) for one in draw(rng, 0.0)} == {"found"}


def test_steps_in_words_show_no_image_and_tell_the_answers_in_their_order(pool: DeckPool) -> None:
    rng, draw = random.Random(1), MemorySteps(pool, long=1.0, in_words=True)
    samples = [sample for _ in range(100) for sample in draw(rng, 0.0)]
    assert {sample.kind for sample in samples} == {"search", "answer"}
    assert not any(sample.images for sample in samples)
    told = 0
    for sample in samples:
        read, said = _text(sample.turns[:-1]), _text(sample.turns[-1:])
        if sample.kind == "answer" and "Answer each, in this order" in read and "I have all of it" in said:
            answers = json.loads(re.search(r"<tool_call>(.*)</tool_call>", said)[1])["arguments"]["answer"]
            for number, value in enumerate(answers.split("; "), start=1):
                assert f"({number}) {value}." in read
            told += 1
    assert told > 5


def test_a_renamed_question_asks_its_searches_in_the_new_words_and_keeps_its_answer(pool: DeckPool) -> None:
    rng = random.Random(4)
    before = [one for one in pool.pick(rng)[1] if one.needed_facts]
    after = renamed(before, rng)
    words = {word for one in before for word in re.findall(r"[A-Za-z]{3,}", one.query)}
    kept = {word for one in after for word in re.findall(r"[A-Za-z]{3,}", one.query)} & words
    assert 0.2 * len(words) < len(kept) < 0.8 * len(words)
    for old, new in zip(before, after, strict=True):
        assert (new.uid, new.reference_answer) == (old.uid, old.reference_answer)
        assert re.findall(r"\d+", new.query) == re.findall(r"\d+", old.query)
        assert [fact["value"] for fact in new.needed_facts] == [fact["value"] for fact in old.needed_facts]
        others = dict(zip(old.query.split(), new.query.split(), strict=True))
        for was, now in zip(old.needed_facts, new.needed_facts, strict=True):
            for word, other in zip(was["search_hint"].split(), now["search_hint"].split(), strict=True):
                assert others.get(word, other) == other


def test_a_step_of_a_long_question_looks_at_what_is_written_down_alone(pool: DeckPool) -> None:
    rng, draw = random.Random(2), MemorySteps(pool, long=1.0, recall=0.2)
    drawn = [sample for _ in range(120) for sample in draw(rng, 0.0)]
    long = [sample for sample in drawn if "Answer each, in this order" in _text(sample.turns[:1])]
    looking = [sample for sample in long if sample.looks]
    assert looking
    for sample in looking:
        said = _text(sample.turns[-1:])
        assert all(look.printed and look.printed in said for look in sample.looks), said


def test_film_steps_show_frames_under_their_seconds_and_keep_those_of_the_box(pool: DeckPool) -> None:
    rng, draw = random.Random(0), FilmSteps(pool)
    samples = [sample for _ in range(60) for sample in draw(rng, 0.0)]
    assert {sample.kind for sample in samples} == {"film search", "film found", "film missed", "film answer"}
    found = [sample for sample in samples if sample.kind == "film found"]
    kept = 0
    for sample in found:
        shown, said = _text(sample.turns[-2:-1]), _text(sample.turns[-1:])
        label, seconds = re.search(r'"(Video \d)", "is_useful": true, .*?"key_timestamp": \[([^]]*)\]', said).groups()
        assert f"\n{label}, " in shown
        kept += bool(seconds)
        value = re.search(r"<think>I read (.+)\.</think>", said)[1]
        assert f'It is {value}."' in said
        for second in filter(None, seconds.split(", ")):
            assert f"\n{float(second):.1f} s:\n" in shown
    assert kept > len(found) / 2
    assert all(sample.learn_from == len(sample.turns) - 1 for sample in samples)


def test_a_film_in_memory_shows_what_the_encoded_one_shows(tmp_path: Path) -> None:
    pdf, questions = pretraining_deck(3)
    pages, _ = rendered_deck(pdf, questions)
    store = FilmPages(pages, questions, seed=1)
    (tmp_path / "documents").mkdir()
    film, asked = narrate(pdf, questions, seed=1)
    (tmp_path / "documents" / f"{asked[0].document}.mp4").write_bytes(film)
    assert asked == store.questions
    prepare_corpus(tmp_path / "documents", tmp_path, workers=1, progress=False, video=VIDEO)
    encoded = PageStore(tmp_path)
    chunks = [name for name in store.names if name in encoded]
    assert len(chunks) == len(encoded)
    for name in chunks[:3]:
        assert store.page(name).video.model_copy(update={"frames": []}) == encoded.page(name).video.model_copy(
            update={"frames": []}
        )
        ours, theirs = store.page(name).video.frames, encoded.page(name).video.frames
        assert [one.seconds for one in ours] == [one.seconds for one in theirs]
        for one, other in zip(ours, theirs, strict=True):
            difference = ImageChops.difference(
                store.image(name).crop(one.box).resize((240, 135)),
                encoded.image(name).crop(other.box).resize((240, 135)),
            )
            assert ImageStat.Stat(difference).mean[0] < 6
