"""The compact index: codes, cells and kept patches; what it finds, what it stores, updates, damage, kills."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_index import TEXTS, Toy, ToySingle, contents, found, make_corpus

from vrag_nb.retrieval import compact
from vrag_nb.retrieval.bm25 import words
from vrag_nb.retrieval.building import BuildReport, build_index
from vrag_nb.retrieval.codec import Codec, kept_count, select, split_axes, train_codec, usual_cells
from vrag_nb.retrieval.compact import CompactIndex, maxsim_table, sample_queries
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.index import MultiVectorIndex, maxsim
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.storage import Compression, IndexCorruptError, IndexMismatchError, Manifest

SMALL = Compression(keep=1, vector_bytes=64)
WORDS = [f"word{number} word{number + 1} filler" for number in range(60)]


def build(corpus: Path, index: Path, embedder: Embedder, **options: Any) -> BuildReport:
    return build_index(corpus, index, embedder, progress=False, **options)


def unit(generator: np.random.Generator, *shape: int) -> np.ndarray:
    vectors = generator.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def make_codec(vector_bytes: int, seed: int = 0, dim: int = 32) -> tuple[Codec, np.ndarray]:
    generator = np.random.default_rng(seed)
    pages = unit(generator, 20, 30, dim)
    settings_ = Compression(keep=1, vector_bytes=vector_bytes, cells=16)
    return train_codec(list(pages), unit(generator, 50, dim), 20, settings_), pages.reshape(-1, dim)


# --- codec ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector_bytes", [1, 8, 16, 21, 32, 99])
def test_codes_have_the_bytes_asked_for_and_more_bytes_lose_less(vector_bytes):
    codec, vectors = make_codec(vector_bytes)
    codes = codec.encode(vectors)
    assert codes.dtype == np.uint8
    assert codes.shape == (len(vectors), codec.code_bytes)
    assert codec.code_bytes == min(vector_bytes, 32), "never more than one byte a dimension"
    error = np.square(codec.decode(codes) - vectors).mean()
    finer, _ = make_codec(vector_bytes + 8)
    assert np.square(finer.decode(finer.encode(vectors)) - vectors).mean() <= error * 1.001
    if vector_bytes >= 32:
        np.testing.assert_allclose(codec.decode(codes), vectors, atol=0.01)


@pytest.mark.parametrize("vector_bytes", [5, 16, 32])
def test_a_folded_query_scores_codes_as_their_decoded_vectors(vector_bytes):
    codec, vectors = make_codec(vector_bytes)
    query = unit(np.random.default_rng(3), 7, 32)
    codes = codec.encode(vectors)
    weights, offsets = codec.fold(query)
    scores = weights @ codec.levels(codes).T + offsets[:, None]
    np.testing.assert_allclose(scores, query @ codec.decode(codes).T, atol=1e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=130), st.integers(1, 140))
@settings(max_examples=80, deadline=None)
def test_bytes_are_split_over_the_axes(variance, vector_bytes):
    wide, narrow = split_axes(np.sort(variance)[::-1], vector_bytes)
    assert narrow % 2 == 0
    assert wide + narrow <= len(variance)
    assert wide + narrow // 2 <= vector_bytes


def test_axes_that_vary_more_get_more_bits():
    assert split_axes(np.array([1.0, 1.0, 1e-9, 1e-9]), 2) == (2, 0)
    assert split_axes(np.ones(4), 2) == (0, 4)


@given(st.integers(1, 60), st.floats(0.01, 1), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_selection_keeps_the_share_each_once(length, keep, seed):
    generator = np.random.default_rng(seed)
    chosen = select(unit(generator, length, 8), unit(generator, 5, 8), keep)
    assert len(chosen) == kept_count(length, keep) >= 1
    assert (np.diff(chosen) > 0).all()
    assert chosen.min() >= 0
    assert chosen.max() < length


def test_patches_that_queries_reach_are_kept():
    generator = np.random.default_rng(0)
    content, blank = unit(generator, 5, 16), np.repeat(unit(generator, 1, 16), 45, axis=0)
    page = np.concatenate([blank[:20], content, blank[20:]])
    queries = np.concatenate([content, content]) + 0.1 * unit(generator, 10, 16)
    assert set(range(20, 25)) <= set(select(page, queries, 0.2).tolist())


def test_a_codec_survives_its_file(tmp_path):
    codec, vectors = make_codec(16)
    assert codec.to_bytes() == codec.to_bytes() == make_codec(16)[0].to_bytes()
    (tmp_path / "codec.npz").write_bytes(codec.to_bytes())
    again = Codec.load(tmp_path / "codec.npz")
    np.testing.assert_array_equal(again.encode(vectors), codec.encode(vectors))
    np.savez(tmp_path / "less.npz", queries=codec.queries)
    with pytest.raises(IndexCorruptError, match=r"less\.npz: mean is missing"):
        Codec.load(tmp_path / "less.npz")


def test_more_vectors_get_more_cells():
    assert [usual_cells(count) for count in (0, 1, 10_000, 10**9)] == [1, 4, 512, 4096]


def test_the_table_of_cells_is_maxsim_of_their_centres():
    generator = np.random.default_rng(0)
    centres, query = unit(generator, 12, 8), unit(generator, 5, 8)
    pages = [np.array([0, 3, 4]), np.array([11]), np.array([1, 2, 5, 6])]
    lengths = np.array([len(page) for page in pages])
    expected = maxsim([query], np.concatenate([centres[page] for page in pages]), lengths)[0]
    np.testing.assert_allclose(maxsim_table(centres @ query.T, np.concatenate(pages), lengths), expected, rtol=1e-5)


# --- index ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "corpus", TEXTS)


def opened(corpus: Path, index: Path, exact: bool | None = None) -> SearchEngine:
    return SearchEngine.open(corpus, index, Toy(), exact=exact)


def test_the_compact_index_finds_what_float16_finds(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", WORDS)
    build(corpus, tmp_path / "plain", Toy(), shard_pages=7)
    build(corpus, tmp_path / "index", Toy(), shard_pages=7, compression=SMALL)
    reference = opened(corpus, tmp_path / "plain", exact=True)
    queries = ["word7 word8", "word33 word34", "filler word50 word51"]
    for exact, candidates in [(True, 256), (False, 8)]:
        engine = opened(corpus, tmp_path / "index", exact)
        assert isinstance(engine.index, CompactIndex)
        engine.index.candidates = candidates
        for one, two in zip(reference.search(queries, 2), engine.search(queries, 2), strict=True):
            assert found(one)[0] == found(two)[0], "the second is one of equals"
            assert [hit.score for hit in one] == pytest.approx([hit.score for hit in two], abs=0.05)
        inside = {f"deck{number}_1" for number in range(20)}
        assert set(found(engine.search(["word7"], 3, within=inside)[0])) <= inside
        assert found(engine.search_in_document(["word7 word8"], "deck2", 1)[0]) == ["deck2_2"]


def test_stage_one_keeps_to_the_rows_it_is_given(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", WORDS)
    build(corpus, tmp_path / "index", Toy(), compression=SMALL)
    index = open_index(tmp_path / "index")
    assert isinstance(index, CompactIndex)
    (query,) = Toy().embed_queries(["word7 word8"])
    allowed = np.array([50, 7, 20])
    assert set(index.nearest(query, 2, allowed)) <= set(allowed)
    assert index.nearest(query, 2, allowed)[0] == 7
    assert index.nearest(query, 1)[0] == 7
    index.probes = 1
    assert index.nearest(query, 60).shape == (60,), "a page that no token opened still has the floor's credit"


def test_the_manifest_says_how_and_the_default_is_float16(corpus, tmp_path):
    build(corpus, tmp_path / "plain", Toy())
    plain = open_index(tmp_path / "plain")
    assert type(plain) is MultiVectorIndex
    assert (plain.manifest.format, plain.manifest.compression, plain.manifest.dtype) == (1, None, "float16")
    build(corpus, tmp_path / "index", Toy(), compression=Compression(keep=0.5, vector_bytes=8))
    manifest = open_index(tmp_path / "index").manifest
    assert (manifest.format, manifest.dtype, manifest.code_bytes, manifest.faiss) == (2, "uint8", 8, None)
    assert manifest.compression == Compression(keep=0.5, vector_bytes=8)
    assert [page.vectors for page in manifest.pages] == [kept_count(max(1, len(words(text))), 0.5) for text in TEXTS]


def test_an_index_from_before_compression_opens(corpus, tmp_path):
    build(corpus, tmp_path / "index", Toy())
    path = tmp_path / "index" / "manifest.json"
    before = {"compression", "code_bytes", "codec", "cells"}
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in before})
    )
    assert found(opened(corpus, tmp_path / "index").search(["plums only"], 1)[0]) == ["deck0_3"]
    assert build(corpus, tmp_path / "index", Toy()).embedded == 0


def test_single_vectors_are_not_compressed(corpus, tmp_path):
    with pytest.raises(ValueError, match="toy-single is single_vector"):
        build(corpus, tmp_path / "index", ToySingle(), compression=SMALL)
    with pytest.raises(ValueError, match="keep"):
        Compression(keep=0)


# --- building ---------------------------------------------------------------------------------------------------------


def test_float16_is_compressed_without_embedding_and_back_with(corpus, tmp_path):
    index = tmp_path / "index"
    build(corpus, index, Toy())
    assert build(corpus, index, Toy(), compression=SMALL).embedded == 0
    build(corpus, tmp_path / "scratch", Toy(), compression=SMALL)
    assert contents(index) == contents(tmp_path / "scratch"), "no float16 is left"
    assert build(corpus, index, Toy(), compression=SMALL).embedded == 0
    assert contents(index) == contents(tmp_path / "scratch")
    assert build(corpus, index, Toy(), compression=Compression(keep=0.5)).embedded == len(TEXTS)
    assert build(corpus, index, Toy()).embedded == len(TEXTS)
    assert type(open_index(index)) is MultiVectorIndex


def test_new_pages_join_with_the_codec_that_is_there(corpus, tmp_path):
    index, toy = tmp_path / "index", Toy()
    build(corpus, index, toy, shard_pages=2, compression=SMALL)
    before = open_index(index)
    assert isinstance(before, CompactIndex)
    kept = {page: before.codes(row).copy() for page, row in before.row_of.items()}
    toy.embedded.clear()
    make_corpus(corpus, [*TEXTS[:5], "brand new", "apples once more"])
    report = build(corpus, index, toy, shard_pages=2, compression=SMALL)
    assert (report.embedded, toy.embedded) == (2, ["brand new", "apples once more"])
    after = open_index(index)
    assert isinstance(after, CompactIndex)
    assert after.manifest.codec == before.manifest.codec
    np.testing.assert_array_equal(after.codes(2), kept["deck0_3"])
    assert found(opened(corpus, index).search(["brand new"], 1)[0]) == ["deck1_3"]


def test_pages_without_text_are_compressed_too(tmp_path):
    corpus = make_corpus(tmp_path / "corpus", ["", "", ""])
    assert sample_queries(Toy(), ["", "one two"]).shape == (0, 64)
    build(corpus, tmp_path / "index", Toy(), compression=Compression())
    assert len(opened(corpus, tmp_path / "index").search(["apples"], 3)[0]) == 3


def test_damage_names_the_file(corpus, tmp_path):
    index = tmp_path / "index"
    build(corpus, index, Toy(), compression=SMALL)
    for pattern in ("vectors-*.npy", "codec-*.npz", "cells-*.npy"):
        (path,) = index.glob(pattern)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(IndexCorruptError, match=rf"{path.name}: its checksum"):
            open_index(index)
        path.unlink()
        with pytest.raises(IndexCorruptError, match=rf"{path.name} is missing"):
            open_index(index)
        path.write_bytes(whole)
    open_index(index)
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(manifest | {"code_bytes": 7}))
    with pytest.raises(IndexCorruptError, match=r"vectors-.*shape"):
        open_index(index)
    (index / "manifest.json").write_text(json.dumps(manifest | {"format": 3}))
    with pytest.raises(IndexMismatchError, match="format 3, this version reads 1 and 2"):
        open_index(index)
    assert Manifest.model_validate(manifest).width == 64


KILLED_BUILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_index import Path, Toy
from vrag_nb.retrieval import compact
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.bm25 import words
from vrag_nb.retrieval.storage import Compression
real, seen = compact.encode_page, []
def stumble(*arguments):
    seen.append(1)
    if len(seen) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
compact.encode_page = stumble
settings = Compression(keep=1, vector_bytes=64)
build_index(Path(sys.argv[2]), Path(sys.argv[3]), Toy(), shard_pages=4, compression=settings, progress=False)
"""


def test_a_build_killed_while_encoding_goes_on(tmp_path, monkeypatch):
    corpus, index = make_corpus(tmp_path / "corpus", WORDS[:24]), tmp_path / "index"
    build(corpus, tmp_path / "calm", Toy(), shard_pages=4, compression=SMALL)
    arguments = [sys.executable, "-c", KILLED_BUILD, str(Path(__file__).parent), str(corpus), str(index)]
    assert subprocess.run(arguments, env=os.environ, check=False).returncode == -9
    assert not (index / "manifest.json").exists()
    encoded: list[int] = []
    real = compact.encode_page

    def counted(*arguments: Any) -> Any:
        encoded.append(1)
        return real(*arguments)

    monkeypatch.setattr(compact, "encode_page", counted)
    monkeypatch.setattr(compact, "train_codec", lambda *_, **__: pytest.fail("the codec was trained before the kill"))
    toy = Toy()
    build(corpus, index, toy, shard_pages=4, compression=SMALL)
    assert toy.embedded == []
    assert len(encoded) == 24 - 2 * 4, "two shards were finished"
    assert contents(index) == contents(tmp_path / "calm")


def test_a_codec_is_trained_whatever_was_imported_before():
    """FAISS and pymupdf share the registry of their wrapped types; the one imported later replaces the other's."""
    code = """import faiss, pymupdf, numpy
from vrag_nb.retrieval.codec import train_codec
from vrag_nb.retrieval.storage import Compression
draw = numpy.random.default_rng(0).normal
pages, queries = draw(size=(40, 30, 16)).astype("float32"), draw(size=(50, 16)).astype("float32")
print(train_codec(list(pages), queries, 40, Compression(cells=16)).cells.shape)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(16, 16)", done.stderr
