"""Embedders, indexes, building and the search engine: scores, mismatches, increments, kills."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.records import Page, read_pages, write_pages
from vrag_nb.retrieval import building
from vrag_nb.retrieval.bm25 import Bm25, words
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.embedders import Embedder, load_embedder, register
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.index import MultiVectorIndex, maxsim, pool_tokens
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.storage import IndexCorruptError, IndexMismatchError
from vrag_nb.retrieval.token_budget import squeezed

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "interruption.py"
TEXTS = ["apples and pears", "pears and plums", "plums only", "", "a table of numbers 1,234.5", "apples again"]


@register("toy")
class Toy(Embedder):
    """One unit vector a word, made from the word alone; counts what it embeds."""

    dim = 64
    batch_size = 2

    def __init__(self, fingerprint: str = "toy") -> None:
        self.fingerprint, self.options = fingerprint, {}
        self.embedded: list[str] = []

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        self.embedded += texts
        return [self._embed(text or "blank") for text in texts]

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        return [self._embed(query) for query in queries]

    def _embed(self, text: str) -> np.ndarray:
        rows = [np.random.default_rng(list(word.encode())).normal(size=self.dim) for word in words(text)]
        vectors = np.stack(rows).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors if self.multi_vector else vectors[:1]


@register("toy-single")
class ToySingle(Toy):
    multi_vector = False


def make_corpus(folder: Path, texts: list[str]) -> Path:
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    pages = []
    for number, text in enumerate(texts):
        document, page = f"deck{number // 3}", number % 3 + 1
        image = f"pages/{document}_{page}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / image)
        name = f"{document}_{page}"
        pages.append(
            Page(page_id=name, document=document, page=page, image=image, width=8, height=8, text=text, sha256=text)
        )
    write_pages(folder, pages)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "corpus", TEXTS)


def build(corpus: Path, index: Path, embedder: Embedder, **options: int):
    return build_index(corpus, index, embedder, progress=False, **options)


def found(hits):
    return [hit.page_id for hit in hits]


# --- scores -----------------------------------------------------------------------------------------------------------


def unit(generator: np.random.Generator, count: int, dim: int = 16) -> np.ndarray:
    vectors = generator.normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_batched_maxsim_equals_the_unpadded_loop():
    generator = np.random.default_rng(0)
    pages = [unit(generator, count) for count in (1, 40, 3, 17, 200)]
    # All similarities of this query are negative: one zero of padding would win every maximum.
    queries = [unit(generator, 5), unit(generator, 1), -np.repeat(pages[0], 2, axis=0)]
    loop = [[(query @ page.T).max(axis=1).sum() for page in pages] for query in queries]
    batched = maxsim(queries, np.concatenate(pages), [len(page) for page in pages])
    np.testing.assert_allclose(batched, loop, rtol=1e-5, atol=1e-6)
    assert batched[2, 0] == pytest.approx(-2)
    alone = maxsim(queries[2:], pages[0], [1])
    np.testing.assert_allclose(batched[2:, :1], alone, rtol=1e-6), "a page scores the same alone and in company"


def test_pooling_keeps_short_pages_and_unit_length():
    generator = np.random.default_rng(1)
    pages = [unit(generator, count) for count in (3, 100)]
    pooled, owners = pool_tokens(np.concatenate(pages), [3, 100])
    assert np.bincount(owners).tolist() == [3, 16]
    np.testing.assert_allclose(pooled[:3], pages[0], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1, rtol=1e-5)


def test_the_two_stages_find_what_the_exact_search_finds(tmp_path):
    texts = [f"word{number} word{number + 1} filler" for number in range(60)]
    corpus = make_corpus(tmp_path / "corpus", texts)
    build(corpus, tmp_path / "index", Toy(), shard_pages=7)
    exact = SearchEngine.open(corpus, tmp_path / "index", Toy(), exact=True)
    staged = SearchEngine.open(corpus, tmp_path / "index", Toy(), exact=False)
    assert isinstance(staged.index, MultiVectorIndex)
    staged.index.candidates = 8
    queries = ["word7 word8", "word33", "filler word50"]
    for one, two in zip(exact.search(queries, 2), staged.search(queries, 2), strict=True):
        assert found(one) == found(two)
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in two], rel=1e-5)
    inside = {f"deck{number}_1" for number in range(20)}
    assert set(found(staged.search(["word7"], 3, within=inside)[0])) <= inside


def test_one_process_builds_an_index(corpus, tmp_path):
    with alone_in(tmp_path / "index"), pytest.raises(FolderInUseError, match="at work in"):
        build(corpus, tmp_path / "index", Toy())
    build(corpus, tmp_path / "index", Toy())
    with alone_in(tmp_path / "index"):
        assert build(corpus, tmp_path / "index", Toy()).embedded == 0, "one that is up to date can be opened meanwhile"


def test_pages_that_are_all_alike_fill_the_list(tmp_path):
    """Few of them hold all the vectors that stage one looks at."""
    corpus = make_corpus(tmp_path / "corpus", ["word3 " * 16] * 60)
    build(corpus, tmp_path / "index", Toy())
    staged = SearchEngine.open(corpus, tmp_path / "index", Toy(), exact=False)
    assert isinstance(staged.index, MultiVectorIndex)
    staged.index.candidates = 2
    assert len(staged.index.nearest(Toy().embed_queries(["word3"])[0], 5)) < 5
    assert len(staged.search(["word3"], 5)[0]) == 5


# --- engine -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Toy, ToySingle, Bm25])
def test_every_kind_of_index_finds_the_page(corpus, tmp_path, kind):
    build(corpus, tmp_path / "index", kind())
    engine = SearchEngine.open(corpus, tmp_path / "index", kind())
    first, second = engine.search(["plums only", "apples again"], top_k=2)
    assert (first[0].page_id, first[0].rank) == ("deck0_3", 1)
    assert second[0].page_id in ("deck0_1", "deck1_3")
    assert [hit.rank for hit in second] == [1, 2]
    assert second[0].score >= second[1].score
    assert found(engine.search(["apples"], 3, within=["deck1_3"])[0]) == ["deck1_3"]
    assert {hit.page_id[:5] for hit in engine.search_in_document(["apples"], "deck1", 3)[0]} == {"deck1"}
    assert engine.search([], 3) == []


def test_bm25_returns_only_pages_that_share_a_word(corpus, tmp_path):
    build(corpus, tmp_path / "index", Bm25(k1=1.2))
    engine = SearchEngine.open(corpus, tmp_path / "index")  # the embedder and its options are read from the index
    assert isinstance(engine.embedder, Bm25)
    assert engine.embedder.k1 == 1.2
    assert set(found(engine.search(["PEARS!"], 5)[0])) == {"deck0_1", "deck0_2"}
    assert found(engine.search(["1,234.5"], 5)[0]) == ["deck1_2"]
    assert engine.search(["zebra"], 5) == [[]]
    with pytest.raises(ValueError, match="no page of the corpus has a text layer"):
        build(make_corpus(tmp_path / "silent", ["", ""]), tmp_path / "other", Bm25())


def test_scripts_without_blanks_are_searched_by_pairs(tmp_path):
    assert words("第3章 東京都庁のPDFカメラ v2") == [
        *("第", "3", "章"),
        *("東京", "京都", "都庁", "庁の", "pdf", "カメ", "メラ", "v2"),
    ]
    assert words("ที่ดิน") == ["ที", "ี่", "่ด", "ดิ", "ิน"]
    assert words("हिन्दी भाषा বাংলা infor\u00admation") == ["हिन्दी", "भाषा", "বাংলা", "information"]
    assert words("한국어 문서 naïve_x 1,234.5 Ünï ½") == ["한국어", "문서", "naïve_x", "1,234.5", "ünï", "1", "2"]
    texts = ["東京都庁の北側に桟橋がある", "大阪の港に三つの埠頭がある", "ท่าเรือเหนืออยู่ที่กรุงเทพ"]
    build(make_corpus(tmp_path / "corpus", texts), tmp_path / "index", Bm25())
    engine = SearchEngine.open(tmp_path / "corpus", tmp_path / "index")
    asked = ["桟橋はどこ?", "埠頭の数", "กรุงเทพ"]
    assert [found(hits)[:1] for hits in engine.search(asked, 3)] == [["deck0_1"], ["deck0_2"], ["deck0_3"]]


def test_an_index_of_whole_runs_is_to_be_built_again(tmp_path, monkeypatch):
    for name, text in (("runs", "東京都庁 plan"), ("plain", "plan of 1,234.5 naïve things 東京")):
        with monkeypatch.context() as before:
            before.setattr("vrag_nb.retrieval.bm25.words", lambda text: re.findall(r"\w+", text.lower()))
            build(make_corpus(tmp_path / name, [text]), tmp_path / f"{name}-index", Bm25())
    assert SearchEngine.open(tmp_path / "plain", tmp_path / "plain-index").search(["plan"], 1)[0]
    with pytest.raises(IndexMismatchError, match="build it again"):
        SearchEngine.open(tmp_path / "runs", tmp_path / "runs-index")
    build(tmp_path / "runs", tmp_path / "runs-index", Bm25())
    assert SearchEngine.open(tmp_path / "runs", tmp_path / "runs-index").search(["東京"], 1)[0]


def test_bad_searches_are_named(corpus, tmp_path):
    build(corpus, tmp_path / "index", Toy())
    engine = SearchEngine.open(corpus, tmp_path / "index", Toy())
    for call, problem in [
        (lambda: engine.search([" "]), "query 0 is empty"),
        (lambda: engine.search(["a", ""]), "query 1 is empty"),
        (lambda: engine.search("text"), "list of strings"),  # type: ignore[arg-type]
        (lambda: engine.search(["a"], top_k=0), "top_k 0"),
        (lambda: engine.search(["a"], within=["deck9_1"]), "no page 'deck9_1'"),
        (lambda: engine.search_in_document(["a"], "deck9"), "no document 'deck9'"),
        (lambda: engine.page("deck9_1"), "no page 'deck9_1'"),
    ]:
        with pytest.raises(ValueError, match=problem):
            call()
    with pytest.raises(TypeError, match="no similarity map"):
        engine.similarity_map("apples", "deck0_1")


def test_self_check(tmp_path):
    texts = [f"a page of its own about subject number {number}" for number in range(6)]
    corpus = make_corpus(tmp_path / "corpus", texts)
    build(corpus, tmp_path / "index", Toy())
    check = SearchEngine.open(corpus, tmp_path / "index", Toy()).self_check(pages=3)
    assert check.ok
    assert (check.found, len(check.checks), check.query_vectors) == (3, 3, (5, 64))
    silent = make_corpus(tmp_path / "silent", ["", ""])
    build(silent, tmp_path / "other", Toy())
    assert "no page has a text layer" in SearchEngine.open(silent, tmp_path / "other", Toy()).self_check().problems[0]


# --- mismatch and damage ----------------------------------------------------------------------------------------------


def test_an_index_opens_only_with_what_made_it(corpus, tmp_path):
    index = tmp_path / "index"
    with pytest.raises(FileNotFoundError, match="no index"):
        open_index(index)
    build(corpus, index, Toy())
    wider = Toy()
    wider.dim = 65
    for other, field in [(ToySingle(), "embedder"), (wider, "dim"), (Toy("retrained"), "fingerprint")]:
        with pytest.raises(IndexMismatchError, match=f"with {field} .*`python -m vrag_nb index` with the --profile"):
            SearchEngine.open(corpus, index, other)
    with pytest.raises(IndexMismatchError, match="choose another index folder"):
        build(corpus, index, ToySingle())
    changed = make_corpus(tmp_path / "changed", ["other", *TEXTS[1:-1], "x", "y"])
    with pytest.raises(IndexMismatchError, match=r"1 new \(such as deck2_1\), 2 changed \(such as deck0_1\)"):
        SearchEngine.open(changed, index, Toy())


def test_damage_names_the_file(corpus, tmp_path):
    index = tmp_path / "index"
    build(corpus, index, Toy())
    (shard,) = index.glob("vectors-*.npy")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + b"\x00")
    with pytest.raises(IndexCorruptError, match=rf"{shard.name}: its checksum"):
        open_index(index)
    shard.write_bytes(whole[:-9])
    with pytest.raises(IndexCorruptError, match=rf"{shard.name} has"):
        open_index(index, verify=False)
    assert build(corpus, index, Toy()).embedded == len(TEXTS), "a damaged index is built anew"
    shard.unlink()
    with pytest.raises(IndexCorruptError, match=r"npy is missing"):
        open_index(index)
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(manifest | {"dim": "wide"}))
    with pytest.raises(IndexCorruptError, match=r"manifest\.json: dim"):
        open_index(index)
    (index / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(IndexMismatchError, match="format 99"):
        open_index(index)


# --- building ---------------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_only_what_is_new_is_embedded(corpus, tmp_path):
    index, toy = tmp_path / "index", Toy()
    assert build(corpus, index, toy, shard_pages=2).embedded == len(TEXTS)
    before = contents(index)
    assert build(corpus, index, toy, shard_pages=2).embedded == 0
    assert contents(index) == before

    toy.embedded.clear()
    make_corpus(corpus, ["brand new", *TEXTS[1:5]])
    report = build(corpus, index, toy, shard_pages=2)
    assert toy.embedded == ["brand new"]
    assert (report.pages, report.embedded, report.reused, report.dropped) == (5, 1, 4, 1)
    engine = SearchEngine.open(corpus, index, toy)
    assert engine.search(["brand new"], 1)[0][0].page_id == "deck0_1"
    build(corpus, tmp_path / "scratch", Toy(), shard_pages=2)
    assert contents(index) == contents(tmp_path / "scratch"), "no leftovers of the earlier state"

    retrained = Toy("retrained")
    assert build(corpus, index, retrained, shard_pages=2).embedded == 5


class SeveralAtOnce(Toy):
    """A toy that waits until so many batches are being embedded, each by a thread of its own."""

    batches_at_once = True

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.together = threading.Barrier(threads, timeout=30)

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        self.together.wait()
        assert torch.get_num_threads() == 1
        return super().embed_pages(images, texts)


def test_batches_embedded_at_once_make_the_same_index(tmp_path):
    corpus, before = make_corpus(tmp_path / "corpus", TEXTS[:4]), torch.get_num_threads()
    build(corpus, tmp_path / "one-by-one", Toy())
    torch.set_num_threads(2)
    try:
        build(corpus, tmp_path / "together", SeveralAtOnce(2))
        assert torch.get_num_threads() == 2
        (corpus / "pages" / "deck0_3.png").unlink()
        with pytest.raises(FileNotFoundError, match="deck0_3"):
            build(corpus, tmp_path / "without", SeveralAtOnce(1))
    finally:
        torch.set_num_threads(before)
    one, other = (open_index(tmp_path / name) for name in ("one-by-one", "together"))
    assert one.manifest.files == other.manifest.files


class InterruptedBuildError(Exception):
    pass


def test_an_interrupted_build_goes_on_where_it_stopped(corpus, tmp_path, monkeypatch):
    build(corpus, tmp_path / "calm", Toy(), shard_pages=2)
    index, toy = tmp_path / "index", Toy()
    real, calls = building.page_image, []

    def stumble(folder, page):
        calls.append(page)
        if len(calls) == 4:
            raise InterruptedBuildError
        return real(folder, page)

    monkeypatch.setattr(building, "page_image", stumble)
    with pytest.raises(InterruptedBuildError):
        build(corpus, index, toy, shard_pages=2)
    assert not (index / "manifest.json").exists()
    toy.embedded.clear()
    build(corpus, index, toy, shard_pages=2)
    assert toy.embedded == TEXTS[2:], "the finished unit is not embedded again"
    assert contents(index) == contents(tmp_path / "calm")


def test_wrong_vectors_are_refused(corpus, tmp_path, monkeypatch):
    toy = Toy()
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: [np.full((2, 64), np.nan)] * len(texts))
    with pytest.raises(ValueError, match=r"deck0_1: the vectors hold NaN"):
        build(corpus, tmp_path / "index", toy)
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: [np.zeros((2, 3))] * len(texts))
    with pytest.raises(ValueError, match=r"deck0_1: shape \(2, 3\)"):
        build(corpus, tmp_path / "index", toy)
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: [np.full((2, 64), 1e5)] * len(texts))
    with pytest.raises(ValueError, match=r"deck0_1: .*too long for float16"):  # an index once held infinity instead
        build(corpus, tmp_path / "index", toy)
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: [np.eye(2, 64) * [[1], [1.5]]] * len(texts))
    with pytest.raises(ValueError, match=r"deck0_1: vector 1 of 2 has length 1\.5, and should have length 1"):
        build(corpus, tmp_path / "index", toy)
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: [[[0.0] * 64]] * len(texts))
    with pytest.raises(ValueError, match=r"deck0_1: a list, not a NumPy array"):
        build(corpus, tmp_path / "index", toy)
    monkeypatch.setattr(toy, "embed_pages", lambda images, texts: None)
    with pytest.raises(ValueError, match="toy gave None embeddings for 2 pages"):
        build(corpus, tmp_path / "index", toy)


def test_an_error_of_an_embedder_says_of_which_pages(corpus, tmp_path, monkeypatch):
    toy = Toy()

    def refuse(images, texts):
        raise RuntimeError("no memory left")

    monkeypatch.setattr(toy, "embed_pages", refuse)
    with pytest.raises(RuntimeError, match="no memory left") as caught:
        build(corpus, tmp_path / "index", toy)
    assert caught.value.__notes__ == ["(toy, embedding deck0_1, deck0_2)"]


@pytest.mark.parametrize("kind", [Toy, ToySingle])
def test_wrong_vectors_of_queries_are_refused(corpus, tmp_path, monkeypatch, kind):
    """An embedder of one's own: no search with NaN that finds nothing, or whatever stands first."""
    toy = kind()
    build(corpus, tmp_path / "index", toy)
    engine = SearchEngine.open(corpus, tmp_path / "index", toy)
    right = toy.embed_queries(["plums"])[0]
    for wrong, told in (
        ([right * np.nan], "query 'plums': the vectors hold NaN"),
        ([right[0]], r"query 'plums': shape \(64,\)"),
        ([right[:, :5]], r"query 'plums': shape \(1, 5\)"),
        ([right[:0]], r"query 'plums': shape \(0, 64\)"),
        ([], "gave 0 embeddings for 1 queries"),
    ):
        monkeypatch.setattr(toy, "embed_queries", lambda queries, wrong=wrong: wrong)
        with pytest.raises(ValueError, match=told):
            engine.search(["plums"])


class Extended(Toy):
    """One of somebody's own, which extends one with a name."""


class Bare(Embedder):
    """One whose `__init__` sets nothing."""

    dim = 3

    def embed_pages(self, images, texts):
        return []

    embed_queries = embed_pages  # type: ignore[assignment]


def test_a_class_of_ones_own_has_a_name_of_its_own(corpus, tmp_path):
    """It once had that of the class which it extends: an index that named its embedder was opened with the other."""
    embedder = load_embedder(f"{__name__}:Extended")
    assert (embedder.name, Toy.name) == (f"{__name__}:Extended", "toy")
    build(corpus, tmp_path / "index", embedder)
    assert type(SearchEngine.open(corpus, tmp_path / "index").embedder) is Extended
    assert type(load_embedder(f"{__name__}:Toy")) is Toy


def test_an_embedder_that_lacks_an_attribute_is_refused_when_it_is_loaded():
    with pytest.raises(ValueError, match=r"embedder '.*:Bare' has no fingerprint, options: set it in __init__"):
        load_embedder(f"{__name__}:Bare")


# --- the ColPali family, on random weights ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interruption():
    specification = importlib.util.spec_from_file_location("interruption", BENCHMARK)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["interruption"] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(interruption, tmp_path_factory):
    return interruption.make_tiny_retriever(tmp_path_factory.mktemp("checkpoints") / "tiny")


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8))


def test_colqwen_returns_real_tokens_whatever_the_batch(tiny):
    embedder = load_embedder("nano-colqwen2_5", tiny, batch_size=3, device="cpu", dtype="float32")
    assert (embedder.name, embedder.dim, embedder.multi_vector) == ("nano-colqwen2_5", 128, True)
    images = [noise(750, 422), noise(420, 590), noise(200, 200)]
    together = embedder.embed_pages(images, [""] * 3)
    for image, vectors in zip(images, together, strict=True):
        (alone,) = embedder.embed_pages([image], [""])
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, alone, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-4)
    queries = ["short", "a question of many more tokens"]
    for query, vectors in zip(queries, embedder.embed_queries(queries), strict=True):
        np.testing.assert_allclose(vectors, embedder.embed_queries([query])[0], atol=1e-5)
    similarity = embedder.similarity_map("short", images[0])
    assert similarity.scores.shape == (len(similarity.tokens), 11, 19), "a wide page has a wide grid"
    assert embedder.similarity_map("short", noise(422, 750)).scores.shape[1:] == (19, 11)
    assert abs(similarity.scores).max() <= 1.0001

    small = load_embedder("nano-colqwen2_5", tiny, max_visual_tokens=50, device="cpu")
    assert all(
        len(vectors) < len(large) for vectors, large in zip(small.embed_pages(images, []), together, strict=True)
    )
    assert small.fingerprint != embedder.fingerprint


def test_missing_checkpoints_and_unknown_names(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"unknown embedder 'nope'; known: .*bm25.*colpali"):
        load_embedder("nope")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint folder at data/models/nowhere; make it with"):
        load_embedder("nano-colqwen2_5", "data/models/nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_embedder("colqwen2_5", tmp_path)
    with pytest.raises(ValueError, match=r"unexpected keyword.*colour"):
        load_embedder("colqwen2_5", tiny, colour="red")
    with pytest.raises(ValueError, match="no default checkpoint"):
        load_embedder("biqwen2")


@pytest.mark.parametrize("kind", ["nano-colqwen2_5", "biqwen2_5"])
def test_the_whole_path_with_a_real_class(corpus, tmp_path, tiny, kind):
    embedder = load_embedder(kind, tiny, device="cpu")
    build(corpus, tmp_path / "index", embedder)
    engine = SearchEngine.open(corpus, tmp_path / "index", device="cpu")  # kind and checkpoint from the manifest
    assert engine.embedder.fingerprint == embedder.fingerprint
    assert len(engine.search(["apples"], 4)[0]) == 4
    assert engine.self_check().dim == embedder.dim


SLOW_BUILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_index import Path, Toy, build
class SlowToy(Toy):
    def embed_pages(self, images, texts):
        print("embedding", flush=True)
        time.sleep(0.05)
        return super().embed_pages(images, texts)
build(Path(sys.argv[2]), Path(sys.argv[3]), SlowToy(), shard_pages=4)
"""


def test_a_killed_build_ends_with_the_same_bytes(tmp_path):
    corpus, index = make_corpus(tmp_path / "corpus", [f"page {number}" for number in range(24)]), tmp_path / "index"
    build(corpus, tmp_path / "calm", Toy(), shard_pages=4)
    for batches in (3, 4):  # killed after so many batches of two pages; the second kill falls on the resumed build
        arguments = [sys.executable, "-c", SLOW_BUILD, str(Path(__file__).parent), str(corpus), str(index)]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(batches):
            assert process.stdout.readline() == "embedding\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (index / "manifest.json").exists()
        assert list(index.rglob("unit-*.npz")), "a finished unit was kept"
    toy = Toy()
    build(corpus, index, toy, shard_pages=4)
    assert len(toy.embedded) <= 24 - 2 * 4
    assert contents(index) == contents(tmp_path / "calm")


def test_a_page_like_a_line_is_squeezed(tiny, tmp_path):
    """transformers refuses pages more than 200 times as long as they are wide."""
    line = Image.new("RGB", (5000, 4), "red")
    assert squeezed(line).size == (5000, 26)
    assert squeezed(squeezed(line)).size == (5000, 26)
    assert squeezed(noise(200, 1)).size == (200, 2)
    usual = noise(30, 40)
    assert squeezed(usual) is usual
    corpus = make_corpus(tmp_path / "corpus", ["a line", "a page"])
    page = read_pages(corpus)[0]
    line.save(corpus / page.image)
    report = build(corpus, tmp_path / "index", load_embedder("nano-colqwen2_5", tiny, device="cpu", dtype="float32"))
    assert report.embedded == 2
