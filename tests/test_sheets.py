"""Sheets of scribbles, and what a tower is asked about their letters."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from vrag_nb.nano.glyphs import CLASS_OF, CLASSES, UNKNOWN, Glyph, LetterHead, letter_targets
from vrag_nb.nano.model import FACTOR, NanoSize, build_nano_vlm, build_processor
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.reading import train_reading
from vrag_nb.nano.sheets import SIDE, SheetPool, as_jpeg, drawn_sheet, panels

TINY = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)


def test_letters_are_told_by_square_and_place():
    glyphs = [Glyph("a", 7, 14, 0), Glyph(" ", 20, 14, 0), Glyph("7", 28 + 21, 28, 1), Glyph("漢", 50, 30, 1)]
    kinds, places = letter_targets([*glyphs, Glyph("z", 200, 10, 0)], columns=2, rows=2)
    assert kinds.tolist() == [[CLASS_OF["a"], 0], [CLASS_OF["7"], 3], [UNKNOWN, 3]]
    assert torch.allclose(places, torch.tensor([[0.25, 0.5], [0.75, 0.0], [22 / 28, 2 / 28]]))


def test_letters_of_crowded_squares_are_left_out():
    crowd = [Glyph("x", 1 + number, 10, 0) for number in range(13)]
    kinds, places = letter_targets([*crowd, Glyph("y", 30, 10, 0)], columns=2, rows=1)
    assert kinds.tolist() == [[CLASS_OF["y"], 1]]
    assert places.shape == (1, 2)


def test_an_image_without_letters_has_no_letter_targets():
    kinds, places = letter_targets([], columns=3, rows=3)
    assert kinds.shape == places.shape == (0, 2)
    assert kinds.dtype == torch.long


def test_the_letter_head_knows_nothing_at_first_and_tells_places_apart():
    head = LetterHead(32)
    tokens, places = torch.randn(1, 32).expand(2, 32), torch.tensor([[0.1, 0.5], [0.8, 0.5]])
    assert head(tokens, places).shape == (2, CLASSES)
    assert torch.equal(*head(tokens, places))
    torch.nn.init.normal_(head.name.weight)
    assert not torch.allclose(*head(tokens, places))


def test_windows_show_their_letters_where_they_say():
    pool, rng = SheetPool(size=3, draws_per_sheet=5), random.Random(0)
    near, letters = 0, 0
    for _ in range(30):
        image, glyphs = pool.draw(rng, 0.0)
        assert image.width % FACTOR == image.height % FACTOR == 0
        grey = np.asarray(image.convert("L"))
        for glyph in glyphs:
            if glyph.character.isalnum():
                x, y = int(glyph.x), int(glyph.y)
                spot = grey[max(0, y - 8) : y + 9, max(0, x - 8) : x + 9]
                near, letters = near + int(spot.max() - spot.min() > 60), letters + 1
    assert letters > 300
    assert near / letters > 0.97


def test_sheets_follow_from_the_seed():
    one, other = (drawn_sheet(random.Random(3), 1.0) for _ in range(2))
    assert one.glyphs == other.glyphs
    assert one.image.tobytes() == other.image.tobytes()
    assert one.glyphs != drawn_sheet(random.Random(4), 1.0).glyphs


@pytest.mark.parametrize("seed", range(5))
def test_panels_cover_the_sheet(seed: int):
    found = panels(random.Random(seed), (0, 0, *SIDE), depth=3)
    assert sum((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in found) == SIDE[0] * SIDE[1]


def test_a_jpeg_keeps_its_size_and_loses_a_little():
    image, _ = SheetPool(size=1).draw(random.Random(1), 1.0)
    spoilt = as_jpeg(image, 40)
    assert spoilt.size == image.size
    assert spoilt.mode == "RGB"
    off = np.abs(np.asarray(spoilt, dtype=float) - np.asarray(image, dtype=float)).mean()
    assert 0 < off < 30


def test_heads_learn_first_on_a_tower_left_alone(tmp_path: Path):
    torch.set_num_threads(1)
    model = build_nano_vlm(tokenizer(), TINY)
    before = {name: weight.clone() for name, weight in model.model.visual.state_dict().items()}
    processor = build_processor(tokenizer()).image_processor
    options = {"draw": SheetPool(size=1).draw, "batch_size": 2, "workers": 0, "heads_first": 2}
    train_reading(model, processor, tmp_path, 600, steps=2, **options)
    assert all(torch.equal(before[name].to(w.dtype), w) for name, w in model.model.visual.state_dict().items())
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    assert state["head"]["to_slots.weight"].any()
    assert state["letters"]["name.weight"].any()
    train_reading(model, processor, tmp_path, 600, steps=4, **options)
    moved = model.model.visual.state_dict()
    assert not torch.equal(before["blocks.0.attn.qkv.weight"].to(moved["blocks.0.attn.qkv.weight"].dtype),
                           moved["blocks.0.attn.qkv.weight"])  # fmt: skip
