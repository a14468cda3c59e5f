"""The nano models: tokenizer, samples, glyph supervision, training that learns and resumes, checkpoints that load."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2_5_VLForConditionalGeneration

from vrag_nb import attention
from vrag_nb.agent import actions
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.learning.curves import RunLog, read_log
from vrag_nb.nano.aligning import Stream, StreamBatches, Teaching, train_streams
from vrag_nb.nano.difficulty import Level
from vrag_nb.nano.glyphs import CLASS_OF, EMPTY, IGNORE, SLOTS, Glyph, slot_targets
from vrag_nb.nano.lookups import SOUGHT, drawn_table, loose_lines, reading_strip, sought_table
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Float32Muon, Optimisers, Schedule, load_state, orthogonalised
from vrag_nb.nano.patches import recoloured, seen, tower_inputs
from vrag_nb.nano.plan import processor_of
from vrag_nb.nano.plan import tokenizer as make_tokenizer
from vrag_nb.nano.reading import train_reading
from vrag_nb.nano.samples import Sample, collate, decisions, encode, exact_match, thought_loss
from vrag_nb.nano.scribbles import scribble
from vrag_nb.nano.tokenizer import build_tokenizer
from vrag_nb.nano.wording import copied_words
from vrag_nb.number_formats import quick_dtype
from vrag_nb.retrieval.image_patches import packed_patches

TINY = NanoSize(text_width=64, text_layers=2, text_heads=2, vision_width=48, vision_layers=2, vision_heads=2)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def processor(tokenizer):
    return build_processor(tokenizer)


def test_tokenizer_round_trips_and_splits_digits(tokenizer):
    text = "<think>Größe: 1,234.5% of Norway</think>\n<bbox>[12, 3, 40, 56]</bbox>"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids[0] == tokenizer.convert_tokens_to_ids("<think>")
    assert [tokenizer.decode([i]) for i in tokenizer.encode("2047")] == ["2", "0", "4", "7"]


@pytest.mark.parametrize("patch", [7, 14, 28])
def test_a_token_is_a_square_whatever_its_patches(tokenizer, patch: int) -> None:
    model = build_nano_vlm(tokenizer, replace(TINY, patch=patch))
    images = build_processor(tokenizer, patch=patch).image_processor
    batch = images(images=[Image.new("RGB", (8 * 28, 6 * 28))], do_resize=False, return_tensors="pt")
    assert batch["pixel_values"].shape[0] == 8 * 6 * (28 // patch) ** 2
    with torch.no_grad():
        tokens = model.model.visual(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
    assert tokens.shape == (8 * 6, TINY.text_width)


def test_recoloured_images_keep_what_is_drawn_where_it_is() -> None:
    torch.manual_seed(0)
    drawn = Image.new("RGB", (56, 28), "white")
    drawn.paste((200, 100, 0), (0, 0, 14, 28))
    images = [drawn, *(Image.new("RGB", (28, 28), (value, 0, 0)) for value in range(0, 250, 5))]
    patches, grids = packed_patches(images, 14)
    changed = recoloured(patches, grids)
    assert changed.shape == patches.shape
    assert changed.dtype == torch.uint8
    by_channel = changed.view(len(changed), 3, -1)
    assert (by_channel == by_channel[:, :, :1]).all(), "what was one colour is one colour"
    first = by_channel[: 2 * 4, :, 0]
    blank, ink = first[4:], first[[0, 2]]
    assert blank.unique(dim=0).shape[0] == ink.unique(dim=0).shape[0] == 1, "alike in all of an image"
    assert (blank[0].int() - ink[0].int()).abs().sum() > 100, "what is printed still stands out"
    assert by_channel[8:].view(50, 4, 3, -1)[:, 0, :, 0].argmax(-1).unique().tolist() == [0, 1, 2]
    assert 0 < (by_channel[8:].float().mean((1, 2)).view(50, 4)[:, 0] < 80).sum() < 50


def test_slot_targets_by_hand():
    first = [Glyph("b", 20, 10, 0), Glyph("a", 10, 10, 0), Glyph("c", 5, 20, 1), Glyph(" ", 15, 10, 0)]
    glyphs = [*first, Glyph("z", 40, 5, 0)]
    targets = slot_targets(glyphs, columns=2, rows=1)
    assert targets[0].tolist() == [CLASS_OF["a"], CLASS_OF["b"], CLASS_OF["c"]] + [EMPTY] * (SLOTS - 3)
    assert targets[1].tolist() == [CLASS_OF["z"]] + [EMPTY] * (SLOTS - 1)
    crowded = [Glyph("x", x, 5, 0) for x in range(SLOTS + 1)]
    assert slot_targets(crowded, 1, 1).eq(IGNORE).all()


@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
def test_scribble_ink_lies_where_its_glyphs_say(difficulty):
    image, glyphs = scribble(random.Random(4), 8, 6, difficulty)
    assert image.size == (224, 168)
    paper = image.getpixel((223, 167))
    inked = 0
    for glyph in glyphs:
        box = (int(glyph.x) - 3, int(glyph.y) - 6, int(glyph.x) + 4, int(glyph.y) + 7)
        colours = image.crop(box).getcolors(4096) or []
        inked += any(sum(abs(a - b) for a, b in zip(c, paper, strict=True)) > 60 for _, c in colours)
    assert inked > 0.9 * sum(not g.character.isspace() for g in glyphs)


def test_loss_covers_the_assistants_words_only(tokenizer, processor):
    sample = reading_strip(random.Random(0), 0.5)
    ids, labels = encode(sample, tokenizer)
    learned = [token for token, label in zip(ids, labels, strict=True) if label != IGNORE]
    assert tokenizer.decode(learned) == sample.turns[1][1][0] + "<|im_end|>"
    batch = collate([sample, drawn_table(random.Random(1), 0.5)], processor)
    tokens = (batch["input_ids"] == tokenizer.convert_tokens_to_ids("<|image_pad|>")).sum()
    assert tokens * 4 == batch["pixel_values"].shape[0]
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORE).all()


def test_loose_lines_are_drawn_where_their_letters_are_said_to_be():
    sizes = set()
    for seed in range(20):
        sample = loose_lines(random.Random(seed), 0.3)
        (image,), ((_, (printed,)),) = sample.images, sample.turns[1:]
        assert image.width % 28 == image.height % 28 == 0
        letters, glyphs = sample.looks[0].letters, sample.glyphs[0]
        assert "".join(printed.split()) == "".join(glyph.character for glyph in glyphs)
        assert [(glyph.x, glyph.y) for glyph in glyphs] == letters
        assert all(0 < x < image.width and 0 < y < image.height for x, y in letters)
        assert len({glyph.line for glyph in glyphs}) <= len(printed.split("\n"))
        sizes.add(image.size)
    assert len(sizes) > 10


def test_decisions_are_the_first_words_of_learned_thoughts():
    tokenizer = make_tokenizer()
    ids = [tokenizer.encode(f"<think>{said}.</think>")[:5] for said in ("on", "no", "it")]
    width = max(map(len, ids))
    labels = torch.tensor([[IGNORE, *row, *[IGNORE] * (width - len(row))] for row in ids])
    labels[1, 1] = IGNORE  # not learned
    logits = torch.zeros(3, labels.shape[1], len(tokenizer))
    logits[0, 1, labels[0, 2]] = logits[2, 1, 7] = 30.0  # the first rightly, the third wrongly
    loss, rows, right = decisions(logits, labels, tokenizer)
    assert rows.tolist() == [0, 2]
    assert right.tolist() == [True, False]
    assert loss.item() == pytest.approx(30.0 / 2)
    loss, rows, right = decisions(logits, labels[1:2], tokenizer)
    assert (loss.item(), len(rows), len(right)) == (0.0, 0, 0)


def test_thoughts_are_learned_to_their_end_and_nothing_behind_them():
    tokenizer = make_tokenizer()
    said = tokenizer.encode("<think>no.</think>on")
    labels = torch.tensor([[IGNORE, *said], [IGNORE] * (len(said) + 1)])
    end = said.index(tokenizer.convert_tokens_to_ids("</think>"))
    logits = torch.zeros(2, labels.shape[1], len(tokenizer), requires_grad=True)
    loss = thought_loss(logits, labels, tokenizer)
    assert loss.item() == pytest.approx(math.log(len(tokenizer)))
    loss.backward()
    asked = logits.grad.abs().sum(-1).nonzero().tolist()
    assert asked == [[0, place] for place in range(1, end + 1)]  # each gives the next one, the last of them the end
    assert thought_loss(logits, labels[1:].expand(2, -1), tokenizer).item() == 0


def test_what_is_sought_is_in_the_table_or_is_not():
    kinds = Counter()
    for seed in range(60):
        sample = sought_table(random.Random(seed), 0.6)
        (question, _), (said,) = sample.turns[0][1], sample.turns[1][1]
        texts = [text for text, _ in sample.words[0]]
        cell = next(
            m[1] for form in SOUGHT if (m := re.fullmatch(re.escape(form).replace(r"\{cell\}", "(.*)"), question))
        )
        lacking = [part for part in cell.split(" of ") if part not in texts]
        thought, action = actions.parse(said)
        kinds[sample.kind] += 1
        if sample.kind == "present":
            assert (action.kind, sample.looks[0].printed) == ("answer", action.answer)
            assert action.answer in texts
            assert not lacking
        else:
            assert (action.kind, action.query, thought) == ("search", question, "Not the right page.")
            assert len(lacking) == 1
            assert not sample.looks
    assert min(kinds["present"], kinds["absent"]) > 20


def test_exact_match_needs_every_token_of_an_answer():
    """Row 0 holds two answers, the second wrong in its last token; row 1 holds one."""
    labels = torch.tensor([[IGNORE, 1, 2, IGNORE, 3, 1], [IGNORE, IGNORE, 1, 2, IGNORE, IGNORE]])
    logits = torch.nn.functional.one_hot(labels.clamp(min=0), 4).float().roll(-1, 1)
    logits[0, 4] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    rows, matches = exact_match(logits, labels)
    assert rows.tolist() == [0, 0, 1]
    assert matches.tolist() == [True, False, True]


@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_in_blocks_is_attention(tokenizer, side, monkeypatch):
    monkeypatch.setattr(attention, "ROWS", 8)  # 29 tokens are three blocks and a rest
    model = build_nano_vlm(tokenizer, TINY).train()
    ids = torch.randint(0, 256, (3, 29), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    mask[2, 5:] = 0
    if side == "left":
        mask = mask.flip(1)
    seen = mask.bool()
    outputs = []
    for switch in (lambda _: None, use_block_attention):
        switch(model.model.language_model)
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits[seen].square().sum().backward()
        outputs.append((logits[seen], model.model.language_model.embed_tokens.weight.grad.clone()))
        model.zero_grad()
    for usual, blocks in zip(*outputs, strict=True):
        assert torch.allclose(usual, blocks, atol=1e-4, rtol=1e-3)


def test_a_policy_on_a_cpu_sees_the_same_by_faster_means(tokenizer, processor, tmp_path):
    model = build_nano_vlm(tokenizer, TINY).eval()
    images = [Image.effect_noise(size, 90).convert("RGB") for size in ((28 * 9, 28 * 5), (28, 56))]
    pixels = processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    save_checkpoint(model, processor, tmp_path)
    policy = TransformersPolicy(tmp_path, device="cpu", dtype="float32")
    usual = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    visual = policy.model.model.visual
    assert all("forward" in vars(part) for part in (visual.patch_embed, *(block.attn for block in visual.blocks)))
    with torch.no_grad():
        seen = [
            tower(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
            for tower in (usual.model.visual, visual)
        ]
    assert torch.allclose(*seen, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("scores", "long"), [(500, 512), (attention.SCORES, 512), (attention.SCORES, 64)])
def test_attention_in_windows_is_attention(tokenizer, processor, scores, long, monkeypatch):
    monkeypatch.setattr(attention, "SCORES", scores)  # few scores at once: a window at a time
    monkeypatch.setattr(attention, "LONG", long)  # windows of so many tokens go through the fused kernel
    visual = build_nano_vlm(tokenizer, TINY).train().model.visual
    images = [Image.effect_noise(size, 90).convert("RGB") for size in ((28 * 9, 28 * 5), (28 * 4, 28 * 4), (28, 56))]
    pixels = processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    outputs = []
    for switch in (lambda _: None, use_window_attention):
        switch(visual)
        seen = visual(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
        seen.square().sum().backward()
        outputs.append((seen, visual.blocks[0].attn.qkv.weight.grad.clone()))
        visual.zero_grad()
    for usual, windows in zip(*outputs, strict=True):
        assert torch.allclose(usual, windows, atol=1e-4, rtol=1e-3)


def test_packed_patches_are_what_a_processor_makes(tokenizer, processor):
    """One frame of bytes: the tower says of it what it says of a processor's patches."""
    visual = build_nano_vlm(tokenizer, TINY).eval().model.visual
    images = [Image.effect_noise(size, 90).convert("RGB") for size in ((28 * 9, 28 * 5), (28 * 4, 28 * 4), (28, 56))]
    pixels = processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    with torch.inference_mode():
        usual = visual(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
        linear_patch_embedding(visual)
        told = tower_inputs(images, visual.config)
        assert told["patches"].dtype == torch.uint8
        assert torch.equal(told["grid_thw"], pixels["image_grid_thw"])
        assert torch.allclose(seen(visual, told), usual, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_long_windows_attend_alike_in_bfloat16(learns, amx, monkeypatch):
    """In blocks; before a backward pass, or where AMX multiplies, through the fused kernel, which keeps no scores."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    fused = []
    usual = attention.scaled_dot_product_attention
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda *a, **k: fused.append(1) or usual(*a, **k))
    monkeypatch.setattr(attention, "LONG", 16)
    monkeypatch.setattr(attention, "ROWS", 8)
    ends = torch.tensor([0, 40, 63])
    exact = torch.randn(3, 63, 2, 8, generator=torch.Generator().manual_seed(0))
    wanted = attention.window_attention(*exact, ends)
    fused.clear()
    query, key, value = exact.bfloat16().requires_grad_(learns)
    found = attention.window_attention(query, key, value, ends)
    assert torch.allclose(found.float(), wanted, atol=0.03)
    assert len(fused) == (2 if learns or amx else 0)


def test_padded_windows_attend_as_windows_do():
    ends = torch.tensor([0, 5, 6, 20, 25])
    query, key, value = torch.randn(3, 25, 2, 8, generator=torch.Generator().manual_seed(0))
    padded = attention.padded_attention(query, key, value, ends)
    assert torch.allclose(padded, attention.window_attention(query, key, value, ends), atol=1e-5)
    whole = attention.padded_attention(query, key, value, torch.tensor([0, 25]))
    assert not torch.allclose(padded, whole, atol=0.1), "windows matter"


def test_streams_of_a_group_share_a_batch(tokenizer, processor):
    model = build_nano_vlm(tokenizer, TINY)
    streams = [
        Stream("read", reading_strip, 4, group="short"),
        Stream("table", drawn_table, 2, group="short"),
        Stream("copy", copied_words, 6),
    ]
    levels = {stream.name: Level() for stream in streams}
    batches = iter(StreamBatches(streams, model, processor, levels, "seed"))
    for _ in range(2):
        short, copy = next(batches), next(batches)
        assert (short.group, copy.group) == ("short", "copy")
        assert short.streams == ["read"] * 4 + ["table"] * 2
        assert len(copy.texts["input_ids"]) == len(copy.kinds) == 6
        assert not copy.images


def test_what_is_taught_on_keeps_the_tokenizer_beside_its_weights(tmp_path):
    """One built anew may differ: the manual that it learns from is another in another Python."""
    other = build_tokenizer(["zebra quartz vexing jumps"] * 50)
    save_checkpoint(build_nano_vlm(other, TINY), build_processor(other), tmp_path)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path)
    assert processor_of(model).tokenizer.get_vocab() == other.get_vocab() != make_tokenizer().get_vocab()


def test_optimisers_write_masters_back_and_resume():
    layer = torch.nn.Linear(4, 4).bfloat16()
    schedule = Schedule(steps=2, muon_lr=0.1, adamw_lr=0.1)
    optimisers = Optimisers([("layers.weight", layer.weight), ("bias", layer.bias)], schedule)
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 4).bfloat16()).sum().backward()
    optimisers.step(0.5)
    assert not torch.equal(before, layer.weight)
    state = optimisers.state_dict()
    other = torch.nn.Linear(4, 4).bfloat16()
    resumed = Optimisers([("layers.weight", other.weight), ("bias", other.bias)], schedule)
    resumed.load_state_dict(state)
    assert torch.equal(other.weight, layer.weight)


PARALLEL = """
import sys, torch
from vrag_nb.nano import replicas
from vrag_nb.nano.optimisation import Optimisers, Schedule

replicas.join()
torch.manual_seed(0)
layer = torch.nn.Linear(4, 2)
data = torch.arange(16.0).view(4, 4)
mine = data[replicas.rank() :: 2] if torch.distributed.is_initialized() else data
optimisers = Optimisers([("bias", layer.bias), ("weight", layer.weight)], Schedule(steps=3, adamw_lr=0.1))
for _ in range(3):
    layer(mine).square().mean().backward()
    optimisers.step(replicas.of_the_first(0.7 + 0.1 * replicas.rank()))
if replicas.rank() == 0:
    torch.save(layer.weight, sys.argv[1])
"""


def test_two_replicas_learn_what_one_process_learns_from_all_the_data(tmp_path: Path):
    script = tmp_path / "parallel.py"
    script.write_text(PARALLEL)
    alone = [sys.executable, str(script), str(tmp_path / "one.pt")]
    local = ["--standalone", "--local-addr", "127.0.0.1"]  # a machine's own name need not resolve
    launcher = ["-m", "torch.distributed.run", *local, "--nproc-per-node", "2"]
    together = [sys.executable, *launcher, str(script), str(tmp_path / "two.pt")]
    for command in (alone, together):
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[1], timeout=300)
    one, two = torch.load(tmp_path / "one.pt"), torch.load(tmp_path / "two.pt")
    assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize(
    ("able", "quick"),
    [
        ({}, False),
        ({"avx512_bf16": True, "cpu_name": "Intel Xeon"}, False),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
    ],
)
def test_bfloat16_is_for_processors_that_multiply_in_it(
    able: dict[str, Any], quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    assert (quick_dtype() == torch.bfloat16) == quick


def test_run_log_forgets_what_comes_after_the_resumed_step(tmp_path: Path):
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.write(step=step, loss=1.0 / step)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    RunLog(tmp_path / "log.jsonl", resume_step=2).write(step=3, loss=0.1)
    assert [(row["step"], row["loss"]) for row in read_log(tmp_path / "log.jsonl")] == [(1, 1.0), (2, 0.5), (3, 0.1)]


def test_reading_learns_and_resumes(tokenizer, processor, tmp_path: Path):
    torch.set_num_threads(1)
    model, schedule = build_nano_vlm(tokenizer, TINY), Schedule(steps=40)
    train_reading(model, processor.image_processor, tmp_path, schedule, batch_size=4, workers=0)
    rows = read_log(tmp_path / "log.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"]
    resumed = build_nano_vlm(tokenizer, TINY, seed=5)
    train_reading(resumed, processor.image_processor, tmp_path, schedule, batch_size=4, workers=0)
    for old, new in zip(model.model.visual.parameters(), resumed.model.visual.parameters(), strict=True):
        assert torch.equal(old, new)


def test_streams_train_the_language_side_with_frozen_vision(tokenizer, processor, tmp_path: Path):
    torch.set_num_threads(1)
    model = build_nano_vlm(tokenizer, TINY)
    vision = model.model.visual.blocks[0].attn.qkv.weight.detach().clone()
    streams = [Stream("read", reading_strip, 4), Stream("table", drawn_table, 4)]
    train_streams(model, processor, streams, tmp_path, Schedule(steps=30), Teaching(compile_text=False), workers=0)
    rows = read_log(tmp_path / "log.jsonl")
    assert rows[-1]["loss/read"] < 6.3  # below log(512): it learns
    assert torch.equal(model.model.visual.blocks[0].attn.qkv.weight.float(), vision.to(quick_dtype()).float())


def test_a_tower_that_is_to_learn_nothing_stays_as_it_is(tokenizer, processor, tmp_path: Path):
    torch.set_num_threads(1)
    changed: dict[str, bool] = {}
    for what in ("nothing", "merger"):
        model = build_nano_vlm(tokenizer, TINY)
        before = model.model.visual.merger.mlp[0].weight.detach().to(quick_dtype()).float().clone()
        streams = [Stream("table", drawn_table, 2)]
        teaching = Teaching(vision=what, compile_text=False)
        train_streams(model, processor, streams, tmp_path / what, Schedule(steps=2), teaching, workers=0)
        changed[what] = not torch.equal(model.model.visual.merger.mlp[0].weight.float(), before)
    assert changed == {"nothing": False, "merger": True}


def test_heads_and_difficulties_are_handed_on(tokenizer, processor, tmp_path: Path):
    torch.set_num_threads(1)
    table, read = Stream("table", drawn_table, 2, difficulty=0.3), Stream("read", reading_strip, 2, difficulty=0.1)
    model, teaching = build_nano_vlm(tokenizer, TINY), Teaching(compile_text=False)
    train_streams(model, processor, [table], tmp_path / "first", Schedule(steps=2), teaching, workers=0)
    before = load_state(tmp_path / "first" / "state.pt")
    before["kept"]["difficulties"] |= {"table": 0.6, "search": 0.9}
    still, teaching = Schedule(steps=1, muon_lr=0.0, adamw_lr=0.0), replace(teaching, before=before)
    model = build_nano_vlm(tokenizer, TINY)
    train_streams(model, processor, [table, read], tmp_path / "second", still, teaching, workers=0)
    after = load_state(tmp_path / "second" / "state.pt")
    assert all(torch.equal(weights, after["looking"][name]) for name, weights in before["looking"].items())
    assert after["kept"]["difficulties"] == {"table": 0.6, "read": 0.1, "search": 0.9}, "search comes up again later"


def test_checkpoint_loads_with_the_auto_classes(tokenizer, processor, tmp_path: Path):
    model = build_nano_vlm(tokenizer, TINY)
    save_checkpoint(model, processor, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in set(file.keys())  # tied to the embedding
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32)
    loaded_processor = AutoProcessor.from_pretrained(tmp_path)
    image = scribble(random.Random(1), 12, 9, 0.0)[0]
    batch = collate([Sample("x", [("user", [image, "Read."]), ("assistant", ["1"])])], processor)
    again = loaded_processor.image_processor(images=[image], do_resize=False, return_tensors="pt")
    assert torch.equal(again["pixel_values"], batch["pixel_values"])
    with torch.inference_mode():
        rounded = build_nano_vlm(tokenizer, TINY)
        rounded.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
        expected, got = rounded.eval()(**batch).logits, loaded.eval()(**batch).logits
    assert torch.allclose(expected, got, atol=1e-4)


def test_muon_in_float32_is_torchs():
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((24, 40), (40, 24), (16, 16))]
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in ours]
    options = {"lr": 0.02, "weight_decay": 0.01, "adjust_lr_fn": "match_rms_adamw"}
    mine, torchs = Float32Muon(ours, **options), torch.optim.Muon(theirs, **options)
    before = [one.detach().clone() for one in ours]
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        torchs.step()
    for start, one, other in zip(before, ours, theirs, strict=True):
        assert (one - other).norm() < 0.03 * (one - start).norm()  # torch's products are in bfloat16
    assert all(list(state) == ["momentum_buffer"] for state in mine.state_dict()["state"].values())


def test_newton_schulz_brings_singular_values_near_one():
    matrix = orthogonalised(torch.randn(12, 30), (3.4445, -4.775, 2.0315), 8, 1e-7)
    values = torch.linalg.svdvals(matrix)
    assert values.min() > 0.5
    assert values.max() < 1.5
