"""Hubs: their measure against hand-worked numbers, what a search loses of them, where the query bank comes from."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_index import Toy, build, found, interruption, make_corpus, tiny  # noqa: F401  (two are fixtures)

from vrag_nb.nano.plan import Recipe
from vrag_nb.nano.retriever_stages import write_query_bank
from vrag_nb.records import MetaInfo, Question, write_questions
from vrag_nb.retrieval.colpali import ColQwen25
from vrag_nb.retrieval.embedders import Embedder, load_embedder, register
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.hubness import page_hubness, read_query_bank
from vrag_nb.retrieval.index import MultiVectorIndex
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.storage import Compression, IndexMismatchError

HUB = "revenue profit costs staff rent"  # has a word of everything
TEXTS = ["revenue of apples", "profit of pears", "costs of plums", HUB, "staff of four", "rent of rooms"]
QUERY = "staff rent costs four"
BANK = ("staff rent", "revenue profit", "costs staff", "rent costs")


@register("toy-with-bank")
class Banked(Toy):
    def __init__(self, bank: tuple[str, ...] = BANK, weight: float = 1.0) -> None:
        super().__init__(f"toy/{'+'.join(bank)}")
        self.query_bank, self.hubness_weight = bank, weight


class Square(Embedder):
    """Queries and pages of two dimensions, by hand."""

    name, dim, query_bank = "square", 2, ("one", "other")

    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        raise NotImplementedError

    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        vectors = {"one": [[1, 0], [0, 1]], "other": [[0, 1]]}
        return [np.array(vectors[query], np.float32) for query in queries]


def test_hubness_is_the_mean_maxsim_a_token_of_the_nearest_queries():
    pages = [np.array([[1, 0], [0.6, 0.8]], np.float16), np.array([[0.8, 0.6]], np.float16)]
    # page 0: "one" (1 + 0.8) / 2 = 0.9, "other" 0.8; page 1: "one" (0.8 + 0.6) / 2 = 0.7, "other" 0.6.
    # A tenth of two queries is one: the nearest.
    assert page_hubness(Square(), pages) == pytest.approx([0.9, 0.7], abs=1e-3)
    assert page_hubness(Toy(), pages) == [0, 0], "no bank, no hubness"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return make_corpus(tmp_path / "corpus", TEXTS)


@pytest.mark.parametrize("compression", [None, Compression(keep=1, vector_bytes=64)])
@pytest.mark.parametrize("exact", [True, False])
def test_a_hub_no_longer_comes_first(corpus, tmp_path, compression, exact):
    def first(weight: float) -> str:
        embedder = Banked(weight=weight)
        build(corpus, tmp_path / "index", embedder, compression=compression)
        engine = SearchEngine.open(corpus, tmp_path / "index", embedder, exact=exact)
        assert isinstance(engine.index, MultiVectorIndex)
        engine.index.candidates = 2  # stage one, too, must let the right page through
        return found(engine.search([QUERY], 1)[0])[0]

    assert first(0.0) == "deck1_1", "three words of the query, and everybody else's"
    assert first(1.0) == "deck1_2"


def test_scores_are_maxsim_less_the_penalty(corpus, tmp_path):
    embedder = Banked(weight=0.5)
    build(corpus, tmp_path / "index", embedder)
    engine = SearchEngine.open(corpus, tmp_path / "index", embedder)
    plain = SearchEngine.open(corpus, tmp_path / "index", Banked(weight=0.0))
    assert plain.fingerprint != engine.fingerprint, "rankings differ, and so must what they are kept under"
    hubness = {entry.page_id: entry.hubness for entry in engine.index.manifest.pages}
    assert hubness["deck1_1"] == max(hubness.values())
    before = {hit.page_id: hit.score for hit in plain.search([QUERY], 6)[0]}
    for hit in engine.search([QUERY], 6)[0]:
        assert hit.score == pytest.approx(before[hit.page_id] - 0.5 * 4 * hubness[hit.page_id], abs=1e-5)


def test_an_update_keeps_what_was_measured(corpus, tmp_path):
    embedder = Banked()
    build(corpus, tmp_path / "index", embedder)
    before = {entry.page_id: entry.hubness for entry in open_index(tmp_path / "index").manifest.pages}
    make_corpus(corpus, [*TEXTS, "rent and staff"])
    embedder.embedded.clear()
    build(corpus, tmp_path / "index", embedder)
    after = {entry.page_id: entry.hubness for entry in open_index(tmp_path / "index").manifest.pages}
    assert embedder.embedded == ["rent and staff"]
    assert after.pop("deck2_1") > 0
    assert after == before
    with pytest.raises(IndexMismatchError, match="fingerprint"):
        SearchEngine.open(corpus, tmp_path / "index", Banked(bank=("another",)))


def test_a_checkpoint_brings_its_bank(tiny, tmp_path, monkeypatch):  # noqa: F811
    plain = load_embedder("colqwen2_5", tiny, device="cpu")
    assert (plain.query_bank, plain.hubness_weight) == ((), 0)
    bank = tmp_path / "bank.txt"
    bank.write_text("which page?\n\nwhose page?\n")
    given = load_embedder("colqwen2_5", tiny, device="cpu", query_bank=str(bank), hubness_weight=0.3)
    assert (given.query_bank, given.hubness_weight) == (("which page?", "whose page?"), 0.3)
    assert len(given.bank_vectors) == 2
    assert given.fingerprint != plain.fingerprint
    monkeypatch.setattr(ColQwen25, "query_suffix", "")
    otherwise = load_embedder("colqwen2_5", tiny, device="cpu", query_bank=str(bank))
    assert otherwise.fingerprint not in (plain.fingerprint, given.fingerprint), "hubness depends on the queries' suffix"
    shipped = load_embedder("nano-colqwen2_5", device="cpu")
    assert len(shipped.query_bank) == 100
    assert shipped.hubness_weight > 0


def test_banks_that_cannot_be_used_are_named(tiny, tmp_path):  # noqa: F811
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.txt holds no query"):
        read_query_bank(tmp_path / "empty.txt")
    with pytest.raises(FileNotFoundError, match=r"no query bank at .*nowhere\.txt"):
        load_embedder("colqwen2_5", tiny, device="cpu", query_bank=str(tmp_path / "nowhere.txt"))
    with pytest.raises(ValueError, match="one vector a page: query_bank does not apply"):
        load_embedder("biqwen2_5", tiny, device="cpu", query_bank=str(tmp_path / "empty.txt"))


def test_nano_queries_go_without_augmentation(tiny):  # noqa: F811
    augmented = load_embedder("colqwen2_5", tiny, device="cpu").embed_queries(["revenue by region"])[0]
    nano = load_embedder("nano-colqwen2_5", tiny, device="cpu", dtype="float32")
    short = nano.embed_queries(["revenue by region"])[0]
    assert len(short) == len(augmented) - 10
    np.testing.assert_allclose(short, augmented[: len(short)], atol=1e-5)


def test_the_bank_asks_every_train_deck_in_turn(tmp_path):
    asked = [
        Question(
            uid=f"{deck}-{number}",
            query=f"{deck} {number}?",
            reference_answer="1",
            meta_info=MetaInfo(file_name=f"{deck}.pdf", reference_page=[1] if number else []),
        )
        for deck in ("ab", "cd", "ef")
        for number in range(4)
    ]
    write_questions(tmp_path / "questions.train.parquet", asked)
    write_query_bank(Recipe(corpus=tmp_path), tmp_path / "bank.txt", count=7)
    bank = read_query_bank(tmp_path / "bank.txt")
    assert [query.split()[0] for query in bank] == ["ab", "cd", "ef", "ab", "cd", "ef", "ab"]
    assert len(set(bank)) == 7
    assert not any("0?" in query for query in bank), "questions without a page bring a page nothing"
