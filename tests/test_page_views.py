"""Pages that the nano retriever sees several times, a little to the side, and only where something is written."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_index import TEXTS, Toy, build, interruption, make_corpus, noise, tiny  # noqa: F401  (two are fixtures)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision, get_vision_window_index

from vrag_nb.attention import NAME as BLOCKS
from vrag_nb.cpu_memory import KERNELS, bound_memory, give_back
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.weighing import compare
from vrag_nb.recurring_shapes import blank_rows
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.embedders import load_embedder, register
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.hubness import page_hubness
from vrag_nb.retrieval.index import MultiVectorIndex, maxsim
from vrag_nb.retrieval.nano_embedders import MOVED, halved, shown
from vrag_nb.retrieval.storage import Compression
from vrag_nb.retrieval.token_budget import shown_size
from vrag_nb.retrieval.written_squares import embed_written, written_squares
from vrag_nb.shifting import shifted


def test_a_shifted_image_repeats_its_edge() -> None:
    image = noise(40, 30)
    pixels, moved = np.asarray(image), np.asarray(shifted(image, 7, -5))
    assert shifted(image, 0, 0) is image
    np.testing.assert_array_equal(moved[:-5, 7:], pixels[5:, :-7])
    np.testing.assert_array_equal(moved[:, :7], np.repeat(moved[:, 7:8], 7, axis=1))
    np.testing.assert_array_equal(moved[-5:], np.repeat(moved[-6:-5], 5, axis=0))


def load(folder, **options) -> Any:
    return load_embedder("nano-colqwen2_5", folder, device="cpu", dtype="float32", **options)


def test_a_page_keeps_the_vectors_of_all_its_views(tiny) -> None:  # noqa: F811
    pages = [noise(750, 422), noise(200, 420)]
    one, three = (load(tiny, views=views, halves=False) for views in (1, len(MOVED)))
    assert one.fingerprint != three.fingerprint
    assert three.options["views"] == len(MOVED)
    once, thrice = one.embed_pages(pages, ["", ""]), three.embed_pages(pages, ["", ""])
    for page, single, several in zip(pages, once, thrice, strict=True):
        assert len(several) == len(MOVED) * len(single)
        first, *others = np.split(several, len(MOVED))
        np.testing.assert_allclose(first, single, atol=1e-5, err_msg="the first view is the page where it is")
        assert all(not np.allclose(first, other, atol=1e-3) for other in others)
        moved = shifted(shown(three.processor, page), -7, 7)
        np.testing.assert_allclose(others[0], one.embed_pages([moved], [""])[0], atol=1e-5)
        np.testing.assert_allclose(several, three.embed_pages([page], [""])[0], atol=1e-5)


@pytest.mark.parametrize(("width", "height"), [(1001, 700), (700, 1001), (700, 700)])
def test_halves_are_all_of_a_page_and_share_its_middle(width: int, height: int) -> None:
    page = noise(width, height)
    first, second = halved(page)
    longest, across = max(width, height), width >= height
    sides = [part.width if across else part.height for part in (first, second)]
    assert 1.05 * longest < sum(sides) < 1.07 * longest
    assert [part.height if across else part.width for part in (first, second)] == [min(width, height)] * 2
    np.testing.assert_array_equal(np.asarray(first), np.asarray(page)[: first.height, : first.width])
    np.testing.assert_array_equal(np.asarray(second), np.asarray(page)[-second.height :, -second.width :])


def test_the_second_view_of_a_reduced_page_is_its_halves(tiny) -> None:  # noqa: F811
    reduced, whole = noise(1400, 840), noise(280, 140)
    one, two, three = (load(tiny, max_visual_tokens=100, overview_tokens=None, views=views) for views in (1, 2, 3))
    moved = load(tiny, max_visual_tokens=100, overview_tokens=None, halves=False)
    assert len({embedder.fingerprint for embedder in (one, two, three, moved)}) == 4
    (seen, small), (once, _) = two.embed_pages([reduced, whole], []), one.embed_pages([reduced, whole], [])
    first, second = np.split(seen, 2)
    parts = np.concatenate(one.embed_pages(halved(reduced), ["", ""]))
    assert len(parts) > len(once)
    np.testing.assert_allclose(first[: len(once)], once, atol=1e-5)
    np.testing.assert_allclose(first[len(once) :], np.resize(once, (len(parts), 128))[len(once) :], atol=1e-5)
    np.testing.assert_allclose(second, parts, atol=1e-5)
    np.testing.assert_allclose(small, moved.embed_pages([whole], [])[0], atol=1e-5, err_msg="nothing would be larger")
    third = np.split(three.embed_pages([reduced], [])[0], 3)[2]
    shifted_one = np.split(moved.embed_pages([reduced], [])[0], 2)[1]
    np.testing.assert_allclose(third[: len(shifted_one)], shifted_one, atol=1e-5)


def test_a_large_page_is_seen_at_two_sizes_in_every_view(tiny) -> None:  # noqa: F811
    large, small = noise(840, 840), noise(140, 280)
    twice = load(tiny, max_visual_tokens=100, overview_tokens=60, halves=False)
    once = load(tiny, max_visual_tokens=100, overview_tokens=None, halves=False)
    tiny_sized = load(tiny, max_visual_tokens=60, overview_tokens=None, halves=False)
    assert twice.fingerprint != once.fingerprint
    (both, other), (whole, same), (overview, _) = (e.embed_pages([large, small], []) for e in (twice, once, tiny_sized))
    for seen, at_full, reduced in zip(*(np.split(array, 2) for array in (both, whole, overview)), strict=True):
        np.testing.assert_allclose(seen, np.concatenate([at_full, reduced]), atol=1e-5)
    np.testing.assert_allclose(other, same, atol=1e-5)


def test_a_clip_has_the_vectors_of_its_frames_in_every_view(tiny) -> None:  # noqa: F811
    frames = [noise(200, 420), noise(420, 200)]
    embedder, sheets = load(tiny), load(tiny, frames=False)
    assert (embedder.takes_videos, sheets.takes_videos) == (True, False)
    assert embedder.fingerprint != sheets.fingerprint
    (clip,), single = embedder.embed_videos([frames]), embedder.embed_pages(frames, ["", ""])
    by_frame = [np.split(array, embedder.views) for array in single]
    for number, view in enumerate(np.split(clip, embedder.views)):
        np.testing.assert_allclose(view, np.concatenate([parts[number] for parts in by_frame]), atol=1e-5)
    with pytest.raises(ValueError, match="clip 1 has no frames"):
        embedder.embed_videos([frames, []])


def test_the_module_alone_does_not_import_torch() -> None:
    code = "import sys, vrag_nb.retrieval.nano_embedders; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- squares that something is written on -----------------------------------------------------------------------------


def test_bare_squares_are_told_from_written_ones() -> None:
    image = Image.new("RGB", (84, 56), "white")
    image.paste((0, 0, 200), (28, 0, 56, 28))  # a square of one colour is bare, whichever it is
    image.putpixel((83, 55), (230, 255, 255))
    image.putpixel((0, 0), (252, 255, 255))
    assert written_squares(image, 28).tolist() == [[False, False, False], [False, False, True]]
    assert written_squares(Image.new("RGB", (84, 56), "white"), 28).sum() == 1, "a page without anything keeps one"


def test_a_page_full_of_print_is_embedded_as_the_model_does_it(tiny) -> None:  # noqa: F811
    nano, plain = load(tiny, views=1, overview_tokens=None), load_embedder("colqwen2_5", tiny, device="cpu")
    page = noise(*shown_size(nano.processor.image_processor, noise(500, 400)))
    np.testing.assert_allclose(nano.embed_pages([page], [])[0], plain.embed_pages([page], [])[0], atol=1e-5)


def test_bare_squares_have_no_vectors_and_change_nothing_else(tiny) -> None:  # noqa: F811
    nano = load(tiny, views=1, overview_tokens=None)
    width, height = shown_size(nano.processor.image_processor, noise(560, 420))
    full = noise(width, height)
    half = Image.new("RGB", full.size, "white")
    half.paste(full.crop((0, 0, width, 140)), (0, 0))
    whole, less = (nano.embed_pages([page], [])[0] for page in (full, half))
    assert len(whole) - len(less) == (width // 28) * (height // 28 - 5)
    np.testing.assert_allclose(np.linalg.norm(less, axis=1), 1, atol=1e-5)
    grid = nano.similarity_map("short", half).scores
    assert grid.shape[1:] == (height // 28, width // 28)
    assert np.abs(grid[:, :5]).min() > 0
    assert not grid[:, 5:].any()


def test_written_squares_are_embedded_as_if_the_others_were_masked(tiny) -> None:  # noqa: F811
    """The model's own forward pass over all squares, in which nobody may attend to a bare one."""
    nano, plain = load(tiny, views=1, overview_tokens=None), load_embedder("colqwen2_5", tiny, device="cpu")
    model: Any = plain.model  # type: ignore[attr-defined]
    width, height = shown_size(nano.processor.image_processor, noise(560, 420))
    page, random = noise(width, height), np.random.default_rng(0)
    kept = random.random((height // 28, width // 28)) < 0.5
    for row, column in np.argwhere(~kept):
        page.paste((255, 255, 255), (column * 28, row * 28, column * 28 + 28, row * 28 + 28))
    inputs = plain.processor.process_images([page])  # type: ignore[attr-defined]
    order = get_vision_window_index(
        inputs["image_grid_thw"], spatial_merge_size=2, window_size=model.visual.window_size, patch_size=14, kwargs={}
    )[0]
    stays = torch.from_numpy(kept.flatten())[order].repeat_interleave(4)

    def attend(self: Any, hidden: torch.Tensor, cu_seqlens: torch.Tensor, position_embeddings: Any, **_: Any) -> Any:
        query, key, value = self.qkv(hidden).unflatten(1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)
        turned = (
            apply_rotary_pos_emb_vision(x.transpose(0, 1), x.transpose(0, 1), *position_embeddings)[0]
            for x in (query, key)
        )
        query, key = (x.transpose(0, 1) for x in turned)
        window = torch.repeat_interleave(torch.arange(len(cu_seqlens) - 1), cu_seqlens.diff())
        allowed = (window[:, None] == window) & (stays | torch.eye(len(stays), dtype=torch.bool))
        met = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return self.proj(met.transpose(0, 1).flatten(1))

    for block in model.visual.blocks:
        block.attn.forward = MethodType(attend, block.attn)
    is_square = inputs["input_ids"][0] == model.config.image_token_id
    inputs["position_ids"] = model.get_rope_index(
        inputs["input_ids"], is_square[None].int(), inputs["image_grid_thw"], attention_mask=inputs["attention_mask"]
    )[0]
    inputs["attention_mask"][0, is_square] = torch.from_numpy(kept.flatten()).long()
    expected = plain._forward(inputs)[0]  # type: ignore[attr-defined]
    found = nano.embed_pages([page], [])[0]
    assert found.shape == expected.shape == (int((~is_square).sum() + kept.sum()), 128)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    everything = load(tiny, views=1, overview_tokens=None, bare=True)
    assert everything.fingerprint != nano.fingerprint
    assert len(everything.embed_pages([page], [])[0]) == len(is_square)


@pytest.mark.parametrize("attention", [BLOCKS, "sdpa"])
@pytest.mark.parametrize("packed", [30, 150, 4096])
def test_pages_embedded_together_do_not_meet(tiny, attention: str, packed: int, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr("vrag_nb.retrieval.written_squares.PACKED", packed)  # a page at a time, two or three, all
    nano = load(tiny)
    nano.model.language_model.config._attn_implementation = attention
    pages = [noise(28 * width, 28 * height) for width, height in ((9, 5), (4, 4), (9, 9), (1, 2))]
    written = [
        written_squares(page, 28) & (np.random.default_rng(0).random(page.size[::-1])[::28, ::28] < 0.6)
        for page in pages
    ]
    together = embed_written(nano.model, nano.processor, pages, written)
    for page, squares, vectors in zip(pages, written, together, strict=True):
        (alone,) = embed_written(nano.model, nano.processor, [page], [squares])
        np.testing.assert_allclose(vectors, alone, atol=1e-5)


@pytest.mark.parametrize("amx", [False, True])
def test_blank_rows_make_shapes_recur_and_change_nothing(tiny, amx: bool, monkeypatch) -> None:  # noqa: F811
    """In bfloat16 on a CPU, where every shape of a product costs a kernel."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    nano = load_embedder("nano-colqwen2_5", tiny, device="cpu", dtype="bfloat16")
    pages = [noise(28 * width, 28 * height) for width, height in ((9, 5), (4, 4), (9, 9), (1, 2))]
    written = [np.ones((page.height // 28, page.width // 28), bool) for page in pages]
    rows: list[int] = []

    def count(module: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        if isinstance(module, torch.nn.Linear):
            rows.append(given[0].shape[-2])

    found, recurring = [], []
    with torch.nn.modules.module.register_module_forward_pre_hook(count):
        for multiple in (1, 64):
            monkeypatch.setattr("vrag_nb.retrieval.written_squares.RECURRING", multiple)
            rows.clear()
            found.append(embed_written(nano.model, nano.processor, pages, written))
            recurring.append(all(one % 64 == 0 for one in rows))
    assert recurring == [False, True]
    for plain, padded in zip(*found, strict=True):
        np.testing.assert_allclose(padded, plain, atol=0.02)
        assert padded.shape == plain.shape
    assert blank_rows(130, 128, torch.zeros(1)) == 0, "float32 has kernels for any shape"


def test_an_index_of_other_views_is_another_index(tiny, tmp_path) -> None:  # noqa: F811
    corpus = make_corpus(tmp_path / "corpus", ["one page about cats", "another one about dogs"])
    build(corpus, tmp_path / "index", load(tiny, views=3))
    again = SearchEngine.open(corpus, tmp_path / "index", checkpoint=str(tiny), device="cpu")
    assert again.embedder.views == 3, "the manifest says how often"  # type: ignore[attr-defined]
    assert again.self_check().checks
    with pytest.raises(ValueError, match="fingerprint"):
        SearchEngine.open(corpus, tmp_path / "index", load(tiny))


@pytest.mark.parametrize("views", [0, len(MOVED) + 1])
def test_as_many_views_as_there_are(tiny, views: int) -> None:  # noqa: F811
    with pytest.raises(ValueError, match=f"views {views} must be from 1 to {len(MOVED)}"):
        load_embedder("nano-colqwen2_5", tiny, device="cpu", views=views)


def test_a_page_is_shown_as_pillow_would_resize_it(tiny) -> None:  # noqa: F811
    processor = load(tiny).processor
    page = DeckPool(pretraining_deck, size=1).pick(random.Random(0))[0][0].image
    found = shown(processor, page)
    wanted = page.resize(shown_size(processor.image_processor, page), Image.Resampling.BICUBIC)
    assert found.size == wanted.size
    differ = np.abs(np.asarray(found, int) - np.asarray(wanted, int))
    assert (differ > 2).mean() < 0.001


def test_a_nano_retriever_takes_the_format_that_is_quick_here(tiny, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr("vrag_nb.number_formats.quick_dtype", lambda device, dtype=dtype: dtype)
        nano: Any = load_embedder("nano-colqwen2_5", tiny, device="cpu")
        assert nano.model.dtype == dtype
        assert nano.options["dtype"] == str(dtype).removeprefix("torch.")
        lengths = np.linalg.norm(nano.embed_pages([noise(200, 200)], [""])[0], axis=1)
        np.testing.assert_allclose(lengths, 1, atol=1e-4)
    assert load(tiny).options["dtype"] == "float32", "what is asked for comes first"


def test_attention_in_blocks_is_for_a_cpu(tiny) -> None:  # noqa: F811
    nano = load(tiny)
    config = nano.model.language_model.config
    assert config._attn_implementation == BLOCKS
    config._attn_implementation, nano.device = "sdpa", "cuda"
    nano._mend(nano.model)
    assert config._attn_implementation == "sdpa"


# --- scores of views --------------------------------------------------------------------------------------------------


@register("toy-twice")
class Twice(Toy):
    """Sees every page twice, the second time with every word misread."""

    views = 2
    query_bank = ("apples", "tables and plums")
    hubness_weight = 0.5

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        seen = super().embed_pages(images, texts)
        return [np.concatenate([vectors, vectors[:, ::-1]]) for vectors in seen]


def halves(page: np.ndarray) -> list[np.ndarray]:
    return np.split(page, 2)


def test_the_score_of_a_page_is_the_mean_over_its_views() -> None:
    embedder = Twice()
    pages = embedder.embed_pages([], TEXTS)
    queries = embedder.embed_queries(["pears", "plums and apples"])
    expected = [[np.mean([(q @ v.T).max(1).sum() for v in halves(page)]) for page in pages] for q in queries]
    lengths = [len(page) for page in pages]
    scores = maxsim(queries, np.concatenate(pages), lengths, 2)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(scores, maxsim(queries, np.concatenate(pages), lengths))
    nearest = [
        max(np.mean([(q @ v.T).max(1).mean() for v in halves(page)]) for q in embedder.bank_vectors) for page in pages
    ]
    assert page_hubness(embedder, pages) == pytest.approx(nearest, abs=1e-5)


@pytest.mark.parametrize("compression", [None, Compression(keep=1, vector_bytes=64), Compression(keep=0.5)])
def test_every_index_keeps_the_views_apart(tmp_path: Path, compression: Compression | None) -> None:
    corpus = make_corpus(tmp_path / "corpus", TEXTS)
    build_index(corpus, tmp_path / "index", Twice(), progress=False, compression=compression)
    engine = SearchEngine.open(corpus, tmp_path / "index", Twice())
    index = engine.index
    assert isinstance(index, MultiVectorIndex)
    assert index.manifest.views == 2
    assert not (index.lengths % 2).any()
    query = Twice().embed_queries(["plums apples"])[0]
    expected = [
        np.mean([(query @ view.T).max(1).sum() for view in halves(np.asarray(index.vectors(row), np.float32))])
        for row in range(len(TEXTS))
    ]
    rows, scores = index.score_rows([query])
    np.testing.assert_allclose(scores[0], np.array(expected)[rows], atol=0.02)
    if compression is None or compression.keep == 1:
        assert engine.search(["plums only"], 1)[0][0].page_id == "deck0_3"
    assert index.nearest(query, 3).shape == (3,)


def test_a_page_whose_views_are_not_alike_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(tmp_path / "corpus", TEXTS)
    monkeypatch.setattr(Twice, "embed_pages", Toy.embed_pages)
    with pytest.raises(ValueError, match="page deck0_1: 3 vectors are not those of 2 views"):
        build_index(corpus, tmp_path / "index", Twice(), progress=False)


def test_weights_are_fitted_to_the_mean_of_views() -> None:
    page = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)  # two views of two patches
    table = compare([np.array([[1.0, 0.0]])], [[0]], [page, page[::-1].copy()], [[0]], [0.0, 0.0], views=2)
    assert table.similar[0, 0].tolist() == pytest.approx([0.9, 0.9], abs=1e-3)


def test_embedding_bounds_what_onednn_keeps_and_gives_freed_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    bound_memory()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == KERNELS
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "9")  # somebody's own
    bound_memory()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "9"
    give_back()  # nothing to see, and no error where the C library is another
