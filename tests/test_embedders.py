"""Every embedder on random weights of its real class: batches, limits, instructions, pooling, OCR, what is missing."""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from tiny_checkpoints import MAKERS, make_checkpoint

from vrag_nb.retrieval.bm25 import OCR_CACHE, Bm25
from vrag_nb.retrieval.embedders import Embedder, embedder_kinds, load_embedder
from vrag_nb.retrieval.ocr import MODELS, OcrReader, PageTexts, reading_order
from vrag_nb.retrieval.token_budget import token_batches

WIDTHS = {"colqwen3": 320} | {kind: 32 for kind in MAKERS if not kind.startswith("col")}
VISUAL = [kind for kind in MAKERS if kind != "sentences"]
QWEN = [kind for kind in VISUAL if "qwen" in kind or "gve" in kind]
GRIDS = {  # of a page of 150 x 85 pixels: (rows, columns), and of one of 85 x 150
    **dict.fromkeys(["colqwen2", "colqwen2_5", "colqwen3"], ((3, 5), (5, 3))),
    "colpali": ((8, 8), (8, 8)),
    **dict.fromkeys(["colidefics3", "colmodernvbert"], ((4, 6), (6, 4))),
}
QUERIES = ["short", "a question of many more words"]


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8))


PAGES = [noise(150, 85), noise(84, 118), noise(60, 60)]
TEXTS = ["apples and pears are good", "x", "plums only"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")

    def made(kind: str) -> Path:
        maker = next(name for name in MAKERS if MAKERS[name] is MAKERS[kind])  # twins share theirs
        return folder / maker if (folder / maker).is_dir() else make_checkpoint(maker, folder / maker)

    return made


def load(kind: str, folder: Path, **options) -> Embedder:
    return load_embedder(kind, folder, device="cpu", **options)


@pytest.fixture(scope="module")
def loaded(checkpoints):
    return functools.cache(lambda kind: load(kind, checkpoints(kind), batch_size=3))


# --- every class ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(MAKERS))
def test_vectors_are_unit_and_do_not_depend_on_their_company(kind, loaded):
    embedder = loaded(kind)
    assert (embedder.name, embedder.dim) == (kind, WIDTHS.get(kind, 128))
    assert embedder.multi_vector == kind.startswith("col")
    pages, queries = embedder.embed_pages(PAGES, TEXTS), embedder.embed_queries(QUERIES)
    alone = [embedder.embed_pages([image], [text])[0] for image, text in zip(PAGES, TEXTS, strict=True)]
    alone += [embedder.embed_queries([query])[0] for query in QUERIES]
    for vectors, single in zip([*pages, *queries], alone, strict=True):
        assert vectors.dtype == np.float32
        assert vectors.shape == single.shape
        assert vectors.shape[1] == embedder.dim
        assert len(vectors) == 1 or embedder.multi_vector
        np.testing.assert_allclose(vectors, single, atol=2e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    assert not np.allclose(pages[0][-1], pages[1][-1], atol=1e-4), "pages differ"
    assert not np.allclose(queries[0][0], pages[0][0], atol=1e-4)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_the_fingerprint_is_of_weights_and_options(kind, loaded, checkpoints, tmp_path):
    first = loaded(kind)
    other = load(kind, make_checkpoint(kind, tmp_path / "retrained", seed=1), batch_size=1, **first.options)
    assert other.fingerprint != first.fingerprint
    if kind in ("colmodernvbert", "gve-3b", "sentences"):
        again = load(kind, checkpoints(kind), batch_size=1, **first.options)
        assert again.fingerprint == first.fingerprint, "an index opens with the options it stores"
        assert load(kind, checkpoints(kind), dtype="bfloat16").fingerprint != first.fingerprint


@pytest.mark.parametrize("kind", list(GRIDS))
def test_similarity_maps_lie_on_the_page(kind, loaded):
    embedder = loaded(kind)
    for size, grid in zip([(150, 85), (85, 150)], GRIDS[kind], strict=True):
        found = embedder.similarity_map("short", noise(*size))
        assert found.scores.shape == (len(found.tokens), *grid)
        assert abs(found.scores).max() <= 1.0001


@pytest.mark.parametrize("kind", ["biqwen3", "bimodernvbert", "qwen3-vl-embedding-2b", "sentences"])
def test_a_single_vector_has_no_similarity_map(kind, loaded):
    with pytest.raises(TypeError, match="no similarity map"):
        loaded(kind).similarity_map("short", PAGES[0])


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", QWEN)
def test_visual_tokens_are_limited(kind, loaded, checkpoints, monkeypatch):
    embedder = load(kind, checkpoints(kind), max_visual_tokens=12, batch_size=8, batch_tokens=24)
    assert embedder.fingerprint != loaded(kind).fingerprint
    seen: list[list[int]] = []
    processor = type(embedder.processor)
    call = processor.__call__

    def watch(self, *args, **kwargs):
        inputs = call(self, *args, **kwargs)
        if "image_grid_thw" in inputs:
            seen.append((inputs["image_grid_thw"].prod(-1) // 4).tolist())
        return inputs

    monkeypatch.setattr(processor, "__call__", watch)
    embedder.embed_pages([noise(600, 338), noise(300, 424), noise(200, 200), noise(90, 90)], [""] * 4)
    assert max(max(batch) for batch in seen) <= 12
    assert len(seen) > 1
    assert all(len(batch) * max(batch) <= 24 for batch in seen)


@given(lengths=st.lists(st.integers(1, 50)), size=st.integers(1, 8), tokens=st.none() | st.integers(1, 200))
def test_token_batches_keep_the_order_and_the_bounds(lengths, size, tokens):
    groups = [lengths[group] for group in token_batches(lengths, size, tokens)]
    assert [length for group in groups for length in group] == lengths
    for group in groups:
        assert 1 <= len(group) <= size
        assert len(group) == 1 or tokens is None or len(group) * max(group) <= tokens


def test_bad_options_are_named(checkpoints):
    for kind, options, problem in [
        ("colpali", {"max_visual_tokens": 50}, "fixed page resolution: max_visual_tokens"),
        ("colmodernvbert", {"batch_tokens": 50}, "fixed page resolution: batch_tokens"),
        ("gve-3b", {"max_visual_tokens": 2}, "max_visual_tokens 2 must be 4 or more"),
        ("gve-3b", {"batch_size": 0}, "gve-3b: batch_size 0"),
        ("sentences", {"batch_tokens": 0}, "batch_tokens 0"),
        ("sentences", {"dtype": "int9"}, "dtype 'int9' is no number format"),
        ("sentences", {"pooling": "max"}, "pooling 'max' is none of mean, cls, last"),
        ("sentences", {"max_length": 4000}, "max_length 4000 must be 8 to 64"),
        ("sentences", {"ocr": "yes"}, "ocr 'yes' is none of never, missing, always"),
        ("gve-3b", {"colour": 1}, "unexpected keyword.*colour"),
    ]:
        with pytest.raises(ValueError, match=problem):
            load(kind, checkpoints(kind), **options)


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_all_kinds_are_registered():
    assert {*MAKERS, "bm25", "nano-colqwen2_5"} <= set(embedder_kinds())


@pytest.mark.parametrize(
    ("kind", "hub_id"),
    [
        ("colmodernvbert", "ModernVBERT/colmodernvbert"),
        ("gve-7b", "Alibaba-NLP/GVE-7B"),
        ("qwen3-vl-embedding-8b", "Qwen/Qwen3-VL-Embedding-8B"),
        ("sentences", "BAAI/bge-m3"),
    ],
)
def test_a_missing_checkpoint_says_what_to_download(kind, hub_id, tmp_path, monkeypatch):
    command = rf"hf download {hub_id} --local-dir "
    with pytest.raises(FileNotFoundError, match=rf"{kind}: no checkpoint folder.*{command}{tmp_path}/nowhere"):
        load_embedder(kind, tmp_path / "nowhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=rf"{kind}: checkpoint {hub_id}: .*{command}data/models/"):
        load_embedder(kind)


def test_weights_of_another_model_are_refused(checkpoints, tmp_path):
    with pytest.raises(ValueError, match=r"gve-3b: .* Qwen2_5_VLModel"):
        load("gve-3b", checkpoints("qwen3-vl-embedding-2b"))
    with pytest.raises(ValueError, match=r"colmodernvbert: .* is no ColModernVBert: \d+ weights missing"):
        load("colmodernvbert", checkpoints("bimodernvbert"))
    half = make_checkpoint("sentences", tmp_path / "half")
    (half / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="is it a complete download"):
        load("sentences", half)


# --- Qwen embedding models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gve-3b", "qwen3-vl-embedding-2b"])
def test_clips_and_instructions(kind, loaded, checkpoints):
    embedder = loaded(kind)
    (page,), (query,) = embedder.embed_pages(PAGES[:1], [""]), embedder.embed_queries(["plums"])
    frames = [noise(120, 60 + step).resize((120, 60)) for step in range(4)]
    clip, backwards, still = embedder.embed_videos([frames, frames[::-1], frames[:1]], seconds=2.0)
    for vector in (page, query, clip, backwards, still):
        assert vector.shape == (1, embedder.dim)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-4)
    assert not np.allclose(clip, backwards, atol=1e-5), "the order of frames is seen"
    small = load(kind, checkpoints(kind), max_visual_tokens=4)
    tokens = small._clip_inputs(frames, 2.0)["video_grid_thw"].prod().item() // 4
    assert tokens <= 4
    with pytest.raises(ValueError, match="clip 1: 0 frames"):
        embedder.embed_videos([frames, []])
    with pytest.raises(ValueError, match="clip 0: 2 frames, which must be 1 or more of one size"):
        embedder.embed_videos([PAGES[:2]])

    other = load(kind, checkpoints(kind), query_instruction="Find fruit.")
    assert other.fingerprint != embedder.fingerprint
    assert not np.allclose(other.embed_queries(["plums"])[0], query, atol=1e-4)
    np.testing.assert_allclose(other.embed_pages(PAGES[:1], [""])[0], page, atol=1e-6)


# --- sentences --------------------------------------------------------------------------------------------------------


def test_pooling_is_what_the_checkpoint_says(tmp_path):
    folder = make_checkpoint("sentences", tmp_path / "model")
    mean = load("sentences", folder)
    assert mean.options["pooling"] == "mean"
    (folder / "1_Pooling").mkdir()
    config = folder / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    cls = load("sentences", folder)
    assert cls.options["pooling"] == "cls"
    assert cls.fingerprint != mean.fingerprint
    vectors = [load("sentences", folder, pooling=mode).embed_queries(["plums"])[0] for mode in ("mean", "cls", "last")]
    np.testing.assert_allclose(vectors[0], mean.embed_queries(["plums"])[0], atol=1e-6)
    np.testing.assert_allclose(vectors[1], cls.embed_queries(["plums"])[0], atol=1e-6)
    assert not np.allclose(vectors[1], vectors[2], atol=1e-4)
    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="names no pooling of mean, cls, last; set pooling"):
        load("sentences", folder)


def test_prefixes_and_the_cut_of_long_pages(loaded, checkpoints):
    folder, plain = checkpoints("sentences"), loaded("sentences")
    prefixed = load("sentences", folder, query_prefix="query: ", passage_prefix="passage: ")
    (vector,) = prefixed.embed_queries(["plums"])
    np.testing.assert_allclose(vector, plain.embed_queries(["query: plums"])[0], atol=1e-6)
    np.testing.assert_allclose(
        prefixed.embed_pages(PAGES[:1], ["plums"])[0], plain.embed_queries(["passage: plums"])[0], atol=1e-6
    )
    short = load("sentences", folder, max_length=16)
    one, two = short.embed_pages(PAGES[:2], ["a " * 14 + "pears", "a " * 14 + "plums and more"])
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.linalg.norm(plain.embed_pages(PAGES[:2], ["", "plums"])[0]) == 0, "no text: it scores 0 with every query"


# --- OCR --------------------------------------------------------------------------------------------------------------


LEFT = [
    "the harbour was rebuilt after the war",
    "and its cranes were sold to a museum",
    "which shows two of them today",
]
RIGHT = ["visitors come mostly in the summer", "when the ferries leave every hour", "and the market stays open late"]


def printed_page(two_columns: bool = True) -> Image.Image:
    page, font = Image.new("RGB", (1100, 420), "white"), ImageFont.load_default(24)
    draw = ImageDraw.Draw(page)
    draw.text((330, 30), "Annual Report of the Harbour 2019", fill="black", font=font)
    for row, (left, right) in enumerate(zip(LEFT, RIGHT, strict=True)):
        draw.text((50, 140 + 50 * row), left, fill="black", font=font)
        if two_columns:
            draw.text((600, 140 + 50 * row), right, fill="black", font=font)
    return page


def test_reading_order_of_columns_and_tables():
    title = [(100, 0, 900, 20)]
    left = [(0, 60 + 30 * row, 400, 80 + 30 * row) for row in range(3)]
    right = [(500, 60 + 30 * row, 900, 80 + 30 * row) for row in range(3)]
    mixed = [right[1], left[2], *title, left[0], right[0], left[1], right[2]]
    order = [line for row in reading_order(np.array(mixed, float)) for line in row]
    assert [mixed[line] for line in order] == [*title, *left, *right]
    cells = [(x, 30 * row + x / 100, x + 60, 30 * row + 20) for row in range(3) for x in (0, 300, 600)]
    assert reading_order(np.array(cells, float)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]], "a table keeps its rows"
    assert reading_order(np.zeros((0, 4))) == []


BOX = st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 200), st.integers(0, 40))


@settings(max_examples=60)
@given(st.lists(BOX, max_size=25))
def test_reading_order_keeps_every_line_once(boxes):
    corners = np.array([(x, y, x + width, y + height) for x, y, width, height in boxes], float).reshape(-1, 4)
    assert sorted(line for row in reading_order(corners) for line in row) == list(range(len(boxes)))


class Spelled(OcrReader):
    """A reader whose recognition is a table: what is tested is everything around it."""

    def __init__(self, cache: Path | None = None) -> None:
        self.read_images = 0
        self._cache, self._known = cache, {}

    def _recognise(self, image: Image.Image) -> str:
        self.read_images += 1
        return f"read{image.size[0]}"


def test_which_pages_are_read(loaded, checkpoints, monkeypatch):
    monkeypatch.setattr("vrag_nb.retrieval.ocr.OcrReader", Spelled)
    texts = ["layer", " ", ""]
    assert PageTexts("never")(PAGES, texts) == texts
    assert PageTexts("missing")(PAGES, texts) == ["layer", "read84", "read60"]
    assert PageTexts("always")(PAGES, texts) == ["read150", "read84", "read60"]
    plain, reading = (
        load("sentences", checkpoints("sentences")),
        load("sentences", checkpoints("sentences"), ocr="missing"),
    )
    assert MODELS in reading.fingerprint
    np.testing.assert_allclose(reading.embed_pages(PAGES, texts)[1], plain.embed_queries(["read84"])[0], atol=1e-6)


def test_bm25_over_scanned_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("vrag_nb.retrieval.ocr.OcrReader", Spelled)
    assert Bm25().fingerprint == Bm25(ocr="never").fingerprint != Bm25(ocr="missing").fingerprint
    with pytest.raises(ValueError, match="ocr 'missing'"):
        Bm25().build(tmp_path, ["", ""])
    with pytest.raises(ValueError, match="needs the page images"):
        Bm25(ocr="missing").build(tmp_path, ["layer", ""])
    asked: list[int] = []

    def image(row: int) -> Image.Image:
        asked.append(row)
        return PAGES[row]

    _, files = load_embedder("bm25", ocr="missing").build(tmp_path, ["layer", "", ""], image)
    assert asked == [1, 2]
    vocabulary = next(path for path in files if "vocab" in path)
    assert {"read84", "read60", "layer"} <= set(json.loads((tmp_path / vocabulary).read_text()))
    assert (tmp_path / OCR_CACHE).read_text().count("\n") == 2


def test_rapidocr_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(ImportError, match=r"pip install 'vrag-nb\[ocr\]'"):
        OcrReader()


def test_rapidocr_reads_a_page_in_order_and_remembers_it(tmp_path, monkeypatch):
    pytest.importorskip("rapidocr")
    cache = tmp_path / "ocr.jsonl"
    page = printed_page()
    text = OcrReader(cache, threads=1).read(page)
    wanted = re.findall(r"\w+", " ".join(["Annual Report of the Harbour 2019", *LEFT, *RIGHT]).lower())
    got = re.findall(r"\w+", text.lower())
    assert sum(word in got for word in wanted) >= 0.9 * len(wanted)
    assert text.index("museum") < text.index("visitors"), "the left column comes first"
    with cache.open("ab") as file:
        file.write(b'{"image": "cut o')  # a process killed while it wrote
    again = OcrReader(cache, threads=1)
    monkeypatch.setattr(again, "_recognise", lambda image: pytest.fail("read twice"))
    assert again.read(page) == text
    monkeypatch.undo()
    assert again.read(Image.new("RGB", (200, 100), "white")) == ""
    assert len(OcrReader(cache, threads=1)._known) == 2
