"""The recipe's stages that teach on what is shipped: once each, on the latest weights."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano import recipe as recipes
from vrag_nb.nano.aligning import Stream, Teaching, _in_turn
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Schedule, save_state
from vrag_nb.nano.plan import FEWEST, Recipe, fresh_model, load_earlier, tokenizer, window_lessons
from vrag_nb.nano.recipe import ENDED, run_stages
from vrag_nb.nano.seeing import WindowLessons
from vrag_nb.nano.several_facts import reason
from vrag_nb.nano.windows import draw_windows
from vrag_nb.paths import REPOSITORY

TINY = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A tiny agent, one file of windows, and a second of `see`."""
    made = Recipe(runs=tmp_path / "runs", models=tmp_path / "models", threads=1, window_files=1, see_seconds=1.0)
    save_checkpoint(build_nano_vlm(tokenizer(), TINY), build_processor(tokenizer()), made.models / "nano-agent")
    draw_windows(made.runs / "windows", partial(pretraining_deck, questions=(6, 8)), 1, printed=3)
    return made


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vrag_nb.nano.seeing.shutil.which", lambda name: None)


def _tower(folder: Path) -> torch.Tensor:
    return recipes.Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).model.visual.blocks[0].attn.qkv.weight


def test_what_is_taught_on_lies_beside_what_is_shipped(recipe: Recipe):
    shipped = recipe.models / "nano-agent"
    before = (shipped / "model.safetensors").read_bytes()
    assert recipe.latest("nano-agent") == shipped
    run_stages(recipe, ["see"])
    assert recipe.latest("nano-agent") == recipe.models / "nano-agent-next"
    assert (shipped / "model.safetensors").read_bytes() == before
    assert not torch.equal(_tower(shipped), _tower(recipe.latest("nano-agent")))


def test_a_stage_that_has_ended_does_not_undo_what_came_after(recipe: Recipe, capsys: pytest.CaptureFixture[str]):
    run_stages(recipe, ["see"])
    latest = recipe.latest("nano-agent") / "model.safetensors"
    latest.write_bytes(b"what a later stage made")
    run_stages(Recipe.scaled(1.0, runs=recipe.runs, models=recipe.models, threads=1), ["see"])
    assert latest.read_bytes() == b"what a later stage made"
    assert f"stage see has ended; move {recipe.runs / 'see'} away" in capsys.readouterr().out


def test_a_stage_that_was_killed_goes_on(recipe: Recipe):
    run_stages(recipe, ["see"])
    first = _tower(recipe.latest("nano-agent"))
    (recipe.runs / "see" / ENDED).unlink()  # its state was saved, its weights perhaps not
    other = build_nano_vlm(tokenizer(), TINY, seed=1)
    save_checkpoint(other, build_processor(tokenizer()), recipe.latest("nano-agent"))
    run_stages(recipe, ["see"])
    assert torch.equal(_tower(recipe.latest("nano-agent")), first)


def test_a_tower_is_taught_letters_from_nothing_and_handed_on(recipe: Recipe):
    run_stages(replace(recipe, letters_steps=2), ["letters"])
    untaught, taught = fresh_model(recipe), fresh_model(recipe)
    load_earlier(taught, recipe.runs / "letters")
    before, after = untaught.state_dict(), taught.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert "model.visual.blocks.0.attn.qkv.weight" in changed
    assert all(".visual." in name for name in changed)
    assert all(after[name].isfinite().all() for name in changed)


def test_an_unknown_stage_is_named(recipe: Recipe):
    with pytest.raises(ValueError, match="unknown stage sea; there are letters, "):
        run_stages(recipe, ["sea"])


def test_make_nano_cpu_goes_through_stages_that_there_are() -> None:
    named = re.search(r"for stage in ([a-z ]+);", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert named is not None
    assert set(named[1].split()) <= set(recipes.STAGES)


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `train_streams` was last given, and no training."""
    given: dict[str, Any] = {}

    def learned(
        model: Any,
        processor: Any,
        streams: list[Stream],
        folder: Path,
        schedule: Schedule,
        teaching: Teaching,
        **options: Any,
    ) -> None:
        folder.mkdir()
        given.clear()
        given.update(options, streams=streams, schedule=schedule, teaching=teaching)

    monkeypatch.setattr(recipes, "train_streams", learned)
    return given


def test_settle_teaches_the_tower_on_unless_it_is_held(recipe: Recipe, taught: dict[str, Any]):
    run_stages(recipe, ["settle"])
    assert taught["teaching"].vision == "all"
    assert taught["teaching"].windows is not None
    (recipe.runs / "settle" / ENDED).unlink()
    (recipe.runs / "settle").rmdir()
    run_stages(replace(recipe, hold=True), ["settle"])
    assert taught["teaching"].vision == "nothing"
    assert taught["teaching"].windows is None


def test_settle_takes_up_what_act_handed_on(recipe: Recipe, taught: dict[str, Any]):
    run_stages(recipe, ["settle"])
    assert taught["teaching"].before is None, "the shipped agent comes without its heads"
    (recipe.runs / "settle" / ENDED).unlink()
    (recipe.runs / "settle").rmdir()
    handed_on = {"looking": {}, "kept": {"difficulties": {"read": 0.2}}}
    save_state(recipe.runs / "act" / "state.pt", handed_on)
    run_stages(recipe, ["settle"])
    assert taught["teaching"].before == handed_on


def test_batches_and_rates_are_so_many_times_as_large(recipe: Recipe, taught: dict[str, Any]):
    run_stages(recipe, ["reckon"])
    (once,), slow = taught["streams"], taught["schedule"]
    (recipe.runs / "reckon" / ENDED).unlink()
    (recipe.runs / "reckon").rmdir()
    run_stages(replace(recipe, times=4, rate=2.0, workers=3), ["reckon"])
    assert taught["streams"] == [replace(once, batch_size=4 * once.batch_size)]
    assert taught["schedule"] == replace(slow, muon_lr=2 * slow.muon_lr, adamw_lr=2 * slow.adamw_lr)
    assert taught["workers"] == 3


def test_a_head_that_knows_the_tower_is_taken_up_and_any_other_gets_acquainted(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    visual, met = recipes.latest_agent(recipe).model.visual, list[WindowLessons]()
    monkeypatch.setattr(WindowLessons, "acquaint", lambda lessons: met.append(lessons))

    def made(stage: str = "settle", **options: Any) -> tuple[bool, bool]:
        """Whether the head says what `see` has taught, and whether it was made acquainted with the tower."""
        met.clear()
        lessons = window_lessons(recipe, visual, recipe.runs / stage, **options)
        return torch.equal(lessons.head.name.weight, taught["name.weight"]), bool(met)

    taught = window_lessons(recipe, visual, recipe.runs / "settle").head.state_dict()
    taught = {name: weight + 1 for name, weight in taught.items()}
    assert made() == (False, True)
    save_state(recipe.runs / "letters" / "state.pt", {"head": taught})
    assert made() == (True, True), "the tower has learned on since `letters`"
    assert made(handed_on=False) == (False, True)
    save_state(recipe.runs / "see" / "state.pt", {"head": taught})
    assert made() == (True, False)
    assert made(stage="see", handed_on=False) == (False, False), "a run that goes on has its own head"


def test_comparing_is_learned_in_words_alone(recipe: Recipe):
    before = recipes.latest_agent(recipe).state_dict()
    run_stages(replace(recipe, reckon_seconds=1.0), ["reckon"])
    after = recipes.latest_agent(recipe).state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert any("language_model" in name for name in changed)
    assert not any("visual" in name for name in changed)


def test_one_model_is_taught_both_protocols_and_short_samples_share_batches(recipe: Recipe, taught: dict[str, Any]):
    run_stages(recipe, ["unite"])
    agent, both = recipes.settling(recipe), taught["streams"]
    assert [one.name for one in both] == [*(one.name for one in agent), "memory", "words", "film"]
    assert taught["teaching"].thought_weight > 0
    assert set(recipes.TOGETHER) >= {one.name for one in both} - {"act", "memory"}, (
        "long ones have batches of their own"
    )
    assert recipe.latest("nano-agent") == recipe.models / "nano-agent-next"


def test_a_run_goes_on_with_the_scale_that_it_began_with(tmp_path: Path):
    for scale in (0.5, 0.5):
        recipes._same_scale(tmp_path / "run", scale)
    with pytest.raises(ValueError, match=r"begun with --scale 0\.5, not 4\.0: name another --out"):
        recipes._same_scale(tmp_path / "run", 4.0)


def test_a_smaller_recipe_draws_less_and_a_larger_one_no_more():
    tenth, double = Recipe.scaled(0.1), Recipe.scaled(2.0, retriever_decks=3)
    assert (tenth.align_steps, tenth.see_seconds) == (Recipe.align_steps // 10, pytest.approx(Recipe.see_seconds / 10))
    assert (tenth.retriever_decks, tenth.window_files) == (15, 17)
    assert (double.align_steps, double.window_files) == (2 * Recipe.align_steps, Recipe.window_files)
    assert double.retriever_decks == 3
    assert Recipe.scaled(0.001).retriever_decks == FEWEST


def test_several_processes_share_the_batches_of_one(monkeypatch: pytest.MonkeyPatch):
    streams = [Stream("long", reason, 28), Stream("few", reason, 1)]
    assert [one.batch_size for one in recipes.shared_out(streams)] == [28, 1]
    monkeypatch.setattr(recipes.replicas, "count", lambda: 2)
    assert [one.batch_size for one in recipes.shared_out(streams)] == [14, 1]


def test_several_workers_hand_on_one_batch_of_every_stream() -> None:
    drawn = [SimpleNamespace(group=group, number=number) for group in "aabb" for number in (0, 1)]
    found = _in_turn(cycle(drawn), ["a", "b"])  # type: ignore[arg-type]
    assert [one.group for one in islice(found, 8)] == ["a", "b"] * 4
