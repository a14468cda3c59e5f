"""How hard drawings are depends on what was learned, not on who was faster."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch

from vrag_nb.nano.aligning import AHEAD, Stream, Teaching, train_streams
from vrag_nb.nano.difficulty import Level, learned_from
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor
from vrag_nb.nano.optimisation import Schedule, load_state
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.samples import Sample

TINY = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)


def test_a_level_is_known_as_of_any_batch() -> None:
    level = Level(0.5, 0.2)
    for batches in (3, 3, 7, 9, 11):
        level.rise(batches)
    assert level.value == level.after(None) == level.after(100) == 1.0, "and it rises no further"
    told = [level.after(batches) for batches in (-4, 0, 2, 3, 6, 7)]
    assert told == pytest.approx([0.5, 0.5, 0.5, 0.9, 0.9, 1.0])


def test_a_level_at_its_end_stays_there() -> None:
    level = Level(1.0, 0.02)
    level.rise(1)
    assert level.value == level.after(5) == 1.0


def test_who_draws_counts_what_was_learned_from() -> None:
    assert list(islice(learned_from(None), 2)) == [None, None]
    assert list(islice(learned_from(6), 8)) == [-6, -5, -4, -3, -2, -1, 0, 1]


@dataclass
class Told:
    """Draws a text that tells how hard it is to be, and takes a while."""

    seconds: float

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        time.sleep(self.seconds)
        return Sample("told", [("user", ["How hard?"]), ("assistant", [f"{difficulty:.2f}, {rng.randrange(100)}"])])


def taught(folder: Path, seconds: float) -> dict[str, torch.Tensor]:
    """The weights of a model that rises with every batch, where a drawing takes so long."""
    torch.set_num_threads(1)
    model, words = build_nano_vlm(tokenizer(), TINY), build_processor(tokenizer())
    stream = Stream("told", Told(seconds), 2, promote_at=-1.0)
    train_streams(model, words, [stream], folder, Schedule(steps=AHEAD + 6), Teaching(compile_text=False), workers=1)
    return load_state(folder / "state.pt")["model"]


def test_a_seed_teaches_the_same_however_fast_its_drawings_are(tmp_path: Path) -> None:
    quick, slow = taught(tmp_path / "quick", 0.0), taught(tmp_path / "slow", 0.05)
    assert all(torch.equal(weights, slow[name]) for name, weights in quick.items())
