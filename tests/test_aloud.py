"""Reading aloud: turns behind a sample that ask what stands after a word."""

from __future__ import annotations

import random

import pytest
from PIL import Image

from vrag_nb.nano.aloud import MOST, aloud, reading_on
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.lookups import drawn_table
from vrag_nb.nano.model import build_processor
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.samples import Sample, collate, looking_targets

WORDS = [
    ("Norway", (10.0, 10.0, 60.0, 26.0)),
    ("12.5", (80.0, 11.0, 110.0, 27.0)),
    ("kg", (115.0, 11.0, 130.0, 27.0)),
    ("Sweden", (10.0, 40.0, 60.0, 56.0)),
    ("7,031", (80.0, 40.0, 120.0, 56.0)),
    ("tiny", (10.0, 70.0, 30.0, 78.0)),
    ("upright", (130.0, 60.0, 145.0, 120.0)),
]


def _sample(words: list = WORDS) -> Sample:
    glyphs = [
        Glyph(letter, x0 + (number + 0.5) * (x1 - x0) / len(word), (y0 + y1) / 2, line)
        for line, (word, (x0, y0, x1, y1)) in enumerate(words)
        for number, letter in enumerate(word)
    ]
    image = Image.new("RGB", (168, 140), "white")
    turns = [("user", ["How much?", image]), ("assistant", ["12.5"])]
    return Sample("crop", turns, words=[words], glyphs=[glyphs])


def _asked(sample: Sample) -> dict[str, str]:
    turns = sample.turns[len(sample.turns) - 2 * sample.aloud :]
    return {asked[1][0]: said[1][0] for asked, said in zip(turns[::2], turns[1::2], strict=True)}


def test_what_stands_after_a_word_in_its_row_is_asked():
    found: dict[str, set[str]] = {}
    for seed in range(40):
        sample = reading_on(_sample(), random.Random(seed), 3)
        assert sample.answer_kinds == ["crop", *["aloud"] * sample.aloud]
        for asked, said in _asked(sample).items():
            found.setdefault(asked, set()).add(said)
            assert len(said) <= MOST
    assert found == {"After Norway?": {"12.5", "12.5 kg"}, "After Sweden?": {"7,031"}}


def test_a_word_that_is_printed_twice_is_not_asked_about():
    twice = [*WORDS, ("norway", (10.0, 100.0, 60.0, 116.0)), ("88", (80.0, 100.0, 100.0, 116.0))]
    asked = [said for seed in range(20) for said in _asked(reading_on(_sample(twice), random.Random(seed), 5))]
    assert set(asked) == {"After Sweden?"}


def test_answers_are_looked_for_where_they_are_printed():
    sample = reading_on(_sample(), random.Random(1), 3)
    look = next(look for look in sample.looks if look.printed == "7,031")
    assert sample.turns[look.turn] == ("assistant", ["7,031"])
    assert look.boxes == [(80.0, 40.0, 120.0, 56.0)]
    assert [y for _, y in look.letters] == [48.0] * 5
    assert [x for x, _ in look.letters] == sorted(x for x, _ in look.letters)


def test_a_batch_of_tables_read_aloud_points_at_letters_of_all_answers():
    rng, draw, processor = random.Random(2), aloud(drawn_table, 2), build_processor(tokenizer())
    samples = [draw(rng, 0.6) for _ in range(4)]
    assert sum(sample.aloud for sample in samples) >= 6
    batch = collate(samples, processor)
    pointers = looking_targets(samples, batch["input_ids"], processor.tokenizer).pointers
    assert len(pointers["answer"].rows) == sum(len(sample.answer_kinds) for sample in samples)
    assert set(pointers["letter"].rows.tolist()) == {0, 1, 2, 3}


def test_a_sample_without_an_image_is_refused():
    with pytest.raises(ValueError, match="kind search has 0 images"):
        reading_on(Sample("search", [("user", ["a"]), ("assistant", ["b"])]), random.Random(0), 2)
