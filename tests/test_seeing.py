"""Cells, windows, and a tower that learns from them."""

from __future__ import annotations

import random
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import seeing
from vrag_nb.nano.aligning import Stream, Teaching, train_streams
from vrag_nb.nano.cells import CELLS, COLUMNS, ROWS, UNASKED, CellHead, Letter, as_grid, cell_loss, cell_targets
from vrag_nb.nano.glyphs import CLASS_OF, CLASSES, UNKNOWN, Glyph, LetterHead, letter_targets
from vrag_nb.nano.lookups import drawn_table, sought_table
from vrag_nb.nano.model import FACTOR, NanoSize, build_nano_vlm, build_processor
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.seeing import StillTower, WindowLessons, scaled, train_held, train_seeing
from vrag_nb.nano.windows import SIDE, SQUARES, deck_windows, draw_windows, printed_window

TINY = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)
DECK = partial(pretraining_deck, questions=(6, 8))


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


def test_cells_hold_the_letter_that_covers_their_middle():
    # 2 x 1 squares: cells of 3.5 x 7 pixels, 16 across and 4 down.
    wide, thin, low, cut = (
        Letter(5, 7.0, 0.0, 14.0, 28.0),  # the middles of cells 2 and 3; of the height .18 to .82: rows 1 and 2
        Letter(6, 15.8, 14.0, 16.2, 24.0),  # covers no middle: the cell it stands in; rows at 17.5
        Letter(7, 28.0, 0.0, 35.0, 8.0),  # too low to be asked for
        Letter(8, 52.0, 14.0, 80.0, 28.0),  # goes on beyond the image
    )
    grid = as_grid(cell_targets([wide, thin, low, cut], columns=2, rows=1), 2, 1)
    assert grid.shape == (ROWS, 2 * COLUMNS)
    expected = np.zeros((4, 16), np.uint8)
    expected[0:4, 2:4] = 0
    expected[1:3, 2:4] = 5  # middles at 10.5 and 17.5 lie in 5.04..22.96
    expected[2, 4] = 6
    expected[0, 8:10] = UNASKED
    expected[2:4, 15] = 8
    expected[3, 15] = 8 if 14 + 0.82 * 14 >= 24.5 else 0
    assert np.array_equal(grid, expected)


def test_squares_and_cells_come_back_as_the_image():
    told = np.arange(6 * CELLS).reshape(6, CELLS)
    grid = as_grid(told, columns=3, rows=2)
    assert grid.shape == (2 * ROWS, 3 * COLUMNS)
    assert grid[ROWS, COLUMNS] == told[4, 0]  # the first cell of the square in the second row and column
    assert grid[1, 0] == told[0, COLUMNS]


def test_the_loss_asks_blank_cells_less_and_small_print_not_at_all():
    logits = torch.zeros(1, CELLS, CLASSES)
    targets = torch.zeros(1, CELLS, dtype=torch.uint8)
    targets[0, 0], targets[0, 1] = 3, UNASKED
    told = logits.clone()
    told[0, 0, 3] = 20.0
    at_letter = cell_loss(logits, targets)[0] - cell_loss(told, targets)[0]
    told = logits.clone()
    told[0, 5, 0] = 20.0
    at_blank = cell_loss(logits, targets)[0] - cell_loss(told, targets)[0]
    assert at_letter.item() == pytest.approx(5 * at_blank.item(), rel=1e-4)
    told = logits.clone()
    told[0, 1, 9] = 20.0
    assert cell_loss(told, targets)[0] == cell_loss(logits, targets)[0]
    assert cell_loss(told, targets)[1] == 0.0
    assert CellHead(32)(torch.randn(2, 5, 32)).shape == (2, 5, CELLS, CLASSES)


def _darkest_at(image: Image.Image, letter: Letter) -> int:
    """How far the pixels under a letter are apart."""
    grey = np.asarray(image.convert("L"), dtype=int)
    spot = grey[max(0, int(letter.y0)) : int(letter.y1) + 1, max(0, int(letter.x0)) : int(letter.x1) + 2]
    return int(spot.max() - spot.min()) if spot.size else 0


def test_windows_kept_beside_the_tower_are_those_of_the_disk(tmp_path: Path):
    windows = draw_windows(tmp_path, DECK, 2, printed=3)
    visual = build_nano_vlm(tokenizer(), TINY).model.visual
    asked = []
    for resident in (False, True):
        torch.manual_seed(0)  # of its head
        lessons = WindowLessons(visual, windows, 5, seed=3, compiled=False, resident=resident)
        asked.append(lessons.ask()[0])
    assert torch.equal(*asked)


def test_windows_show_their_letters_where_they_say():
    rng = random.Random(0)
    drawn = [printed_window(rng) for _ in range(4)] + list(deck_windows(rng, *DECK(5), 12))
    assert len(drawn) == 16
    shown = [
        (image, one)
        for image, letters in drawn
        for one in letters
        if min(one.x0, one.y0) >= 0 and max(one.x1, one.y1) <= SIDE
    ]
    assert all(image.size == (SIDE, SIDE) for image, _ in drawn)
    inked = [_darkest_at(image, one) > 40 for image, one in shown]
    assert len(inked) > 400
    assert np.mean(inked) > 0.99


def test_windows_on_disk_are_drawn_once_and_follow_from_the_seed(tmp_path: Path):
    one = draw_windows(tmp_path / "a", DECK, 1, printed=3, seed=4)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    again = draw_windows(tmp_path / "a", DECK, 1, printed=3, seed=4)
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a").iterdir()}
    other = draw_windows(tmp_path / "b", DECK, 1, printed=3, seed=4)
    assert len(one) == len(again) == len(other) == 63
    for left, right in zip(one.pick(range(63)), other.pick(range(63)), strict=True):
        assert np.array_equal(left, right)
    images, targets = one.pick([0, 62])
    assert images.shape == (2, SIDE, SIDE, 3)
    assert targets.shape == (2, SQUARES**2, CELLS)


@pytest.mark.parametrize("patch", [14, 7])
def test_the_compiled_towers_numbers_are_transformers_own(patch: int):
    torch.manual_seed(0)
    size = NanoSize(32, 1, 2, 32, 3, 2, patch)
    visual = build_nano_vlm(tokenizer(), size).model.visual
    images = np.stack([np.asarray(printed_window(random.Random(seed))[0]) for seed in range(2)])
    processor = build_processor(tokenizer(), patch=patch).image_processor
    batch = processor(images=[Image.fromarray(one) for one in images], do_resize=False, return_tensors="pt")
    theirs = visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
    ours = StillTower(visual)(scaled(images))
    assert torch.allclose(ours.flatten(0, 1), theirs, atol=1e-4)
    assert ours.shape == (2, SQUARES**2, 32)
    assert SIDE == SQUARES * FACTOR


def test_a_tower_learns_from_windows_and_goes_on_after_a_kill(tmp_path: Path):
    torch.set_num_threads(1)
    windows = draw_windows(tmp_path / "windows", DECK, 1, printed=3)
    visual = build_nano_vlm(tokenizer(), TINY).model.visual
    before = visual.blocks[0].attn.qkv.weight.clone()
    train_seeing(visual, WindowLessons(visual, windows, 2, compiled=False), tmp_path, Schedule(steps=2))
    moved = visual.blocks[0].attn.qkv.weight.clone()
    assert not torch.equal(before, moved)
    again = build_nano_vlm(tokenizer(), TINY, seed=1).model.visual
    train_seeing(again, WindowLessons(again, windows, 2, compiled=False), tmp_path, Schedule(steps=2))
    assert torch.equal(again.blocks[0].attn.qkv.weight, moved)
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    assert state["step"] == 2
    assert state["head"]["name.weight"].any()


def test_a_tower_that_is_held_to_what_it_said_is_told_how_far_it_went(tmp_path: Path):
    windows = draw_windows(tmp_path / "windows", DECK, 1, printed=3)
    visual = build_nano_vlm(tokenizer(), TINY).model.visual
    earlier = deepcopy(visual).requires_grad_(False)
    lessons = WindowLessons(visual, windows, 2, held_to=earlier, hold=2.0, compiled=False)
    free = WindowLessons(visual, windows, 2, compiled=False)
    free.head.load_state_dict(lessons.head.state_dict())
    loss, figures = lessons.ask()
    assert figures["kept"] == 1.0
    assert loss.item() == pytest.approx(free.ask()[0].item(), rel=1e-5)
    with torch.no_grad():
        visual.merger.mlp[-1].bias.add_(0.1)
    lessons.start(5)
    free.start(5)
    (loss, figures), (alone, told) = lessons.ask(), free.ask()
    assert figures["kept"] < 1
    assert set(told) == {"cells"}
    assert (loss - alone).item() == pytest.approx(2 * (1 - figures["kept"]), rel=1e-3)
    loss.backward()
    assert visual.merger.mlp[-1].bias.grad.any()
    assert all(parameter.grad is None for parameter in earlier.parameters())


def test_a_tower_may_begin_as_one_that_reads_better_and_is_held_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vrag_nb.nano.seeing.shutil.which", lambda name: None)
    monkeypatch.setattr("vrag_nb.nano.optimisation.quick_dtype", lambda device: torch.float32)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(seeing, "train_seeing", lambda visual, lessons, *args: asked.update(lessons=lessons))
    visual, reader = (build_nano_vlm(tokenizer(), TINY, seed=seed).model.visual for seed in (0, 1))
    before = deepcopy(visual)
    windows = draw_windows(tmp_path, DECK, 1, seed=1, printed=4)
    head = CellHead(visual.config.out_hidden_size).state_dict()
    train_held(visual, windows, tmp_path / "run", Schedule(steps=1), reader=reader, head=head)
    assert all(torch.equal(a, b) for a, b in zip(visual.parameters(), reader.parameters(), strict=True))
    lessons = asked["lessons"]
    assert all(torch.equal(lessons.head.state_dict()[name], weight) for name, weight in head.items())
    kept = lessons.ask()[1]["kept"]
    again = WindowLessons(reader, windows, lessons.batch_size, held_to=before, compiled=False)
    assert kept == pytest.approx(again.ask()[1]["kept"])
    assert kept < 1


def test_a_held_tower_learns_in_bfloat16_where_that_is_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vrag_nb.nano.seeing.shutil.which", lambda name: None)
    monkeypatch.setattr("vrag_nb.nano.optimisation.quick_dtype", lambda device: torch.bfloat16)
    visual = build_nano_vlm(tokenizer(), TINY).model.visual
    before = deepcopy(visual)
    windows = draw_windows(tmp_path / "windows", DECK, 1, printed=3)
    train_held(visual, windows, tmp_path / "run", Schedule(steps=2))
    assert {parameter.dtype for parameter in visual.parameters()} == {torch.bfloat16}
    assert any(not torch.equal(a, b.bfloat16()) for a, b in zip(visual.parameters(), before.parameters(), strict=True))
    masters = torch.load(tmp_path / "run" / "state.pt", weights_only=False)["optimisers"]["masters"]
    assert {master.dtype for master in masters} == {torch.float32}


def test_a_head_gets_acquainted_with_a_tower_and_leaves_it_alone(tmp_path: Path):
    torch.manual_seed(0)
    windows = draw_windows(tmp_path / "windows", DECK, 1, printed=3)
    visual = build_nano_vlm(tokenizer(), TINY).model.visual
    lessons = WindowLessons(visual, windows, 8, compiled=False)
    before = [parameter.clone() for parameter in visual.parameters()]
    first = lessons.ask()[0].item()
    lessons.acquaint(steps=20)
    assert lessons.ask()[0].item() < first
    assert all(torch.equal(a, b) for a, b in zip(before, visual.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in visual.parameters())


def test_the_tower_goes_on_reading_beside_a_language_model(tmp_path: Path):
    torch.set_num_threads(1)
    windows = draw_windows(tmp_path / "windows", DECK, 1, printed=3)
    model, processor = build_nano_vlm(tokenizer(), TINY), build_processor(tokenizer())
    lessons = WindowLessons(model.model.visual, windows, 2, compiled=False)
    streams = [Stream("table", drawn_table, 2), Stream("sought", sought_table, 2)]
    teaching = Teaching(vision="all", windows=lessons, compile_text=False)
    before = model.model.visual.blocks[0].attn.qkv.weight.clone()
    train_streams(model, processor, streams, tmp_path, Schedule(steps=2), teaching, workers=0)
    assert not torch.equal(before, model.model.visual.blocks[0].attn.qkv.weight)
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    assert state["windows"]["head.name.weight"].any()
    assert {"cells"} <= set(state["means"])
    assert "table1" in state["kept"]["shares"]["match"]
    assert {"present", "absent"} & set(state["kept"]["shares"]["decided"])
