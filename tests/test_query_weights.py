"""What a query's tokens are worth: the formula, the file, what it changes in a search."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from test_index import build, interruption, make_corpus, tiny  # noqa: F401  (two are fixtures)

from vrag_nb.nano.weighing import compare, fit
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.hubness import page_hubness
from vrag_nb.retrieval.matches import Matches
from vrag_nb.retrieval.query_weights import QUERY_WEIGHTS, QueryWeights

VOCABULARY, DIM = 6, 4


def weights() -> QueryWeights:
    return QueryWeights(np.array([0, 1, 2, 0, 0, -3.0]), np.array([1, 0, 0, 0.5]), 0.25)


def test_a_weight_is_a_softplus_of_the_token_and_its_vector():
    vectors = np.array([[1, 0, 0, 2], [0, 1, 0, 0]], np.float32)
    # 0.25 + 1 + (1 + 0.5 * 2) = 3.25 and 0.25 - 3 + 0 = -2.75
    assert weights()([1, 5], vectors) == pytest.approx([np.log1p(np.exp(3.25)), np.log1p(np.exp(-2.75))], rel=1e-5)


def test_weights_come_back_from_a_checkpoint_and_strangers_are_refused(tmp_path: Path):
    assert QueryWeights.of_checkpoint(tmp_path, DIM, VOCABULARY) is None
    weights().save(tmp_path)
    again = QueryWeights.of_checkpoint(tmp_path, DIM, VOCABULARY)
    assert again is not None
    assert again.fingerprint == weights().fingerprint
    with pytest.raises(ValueError, match=rf"{QUERY_WEIGHTS} is of a model with 6 tokens and 4 dimensions, not 6 and 8"):
        QueryWeights.of_checkpoint(tmp_path, 8, VOCABULARY)
    (tmp_path / QUERY_WEIGHTS).write_bytes(b"no zip file")
    with pytest.raises(ValueError, match=rf"{QUERY_WEIGHTS} holds no query weights"):
        QueryWeights.of_checkpoint(tmp_path, DIM, VOCABULARY)


def test_a_weighed_query_ranks_otherwise_over_the_same_index(tiny, tmp_path: Path):  # noqa: F811
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny, checkpoint)
    plain = load_embedder("nano-colqwen2_5", checkpoint, device="cpu", dtype="float32")
    size = len(plain.processor.tokenizer)  # type: ignore[attr-defined]
    QueryWeights(np.linspace(-2, 2, size), np.zeros(plain.dim), 0.0).save(checkpoint)
    weighed = load_embedder("nano-colqwen2_5", checkpoint, device="cpu", dtype="float32")
    (before,), (after,) = plain.embed_queries(["rent of rooms"]), weighed.embed_queries(["rent of rooms"])
    lengths = np.linalg.norm(after, axis=1)
    assert after / lengths[:, None] == pytest.approx(before, abs=1e-4)
    assert lengths.std() > 0.01
    assert weighed.fingerprint == plain.fingerprint, "pages do not depend on what queries' tokens are worth"
    corpus = make_corpus(tmp_path / "corpus", ["rent of rooms", "costs of plums"])
    build(corpus, tmp_path / "index", plain)
    engines = [SearchEngine.open(corpus, tmp_path / "index", one) for one in (plain, weighed)]
    assert engines[0].fingerprint != engines[1].fingerprint, "rankings do"
    assert not [problem for engine in engines for problem in engine.self_check().problems if "vectors" in problem]
    shown = weighed.similarity_map("rent of rooms", Image.new("RGB", (280, 280), "white"))
    assert abs(shown.scores).max() <= 1 + 1e-4, "a map shows cosines"
    assert shown.weights == pytest.approx(lengths, rel=1e-4)
    parts = Matches.of(shown, "rent of rooms").parts
    assert parts == pytest.approx(lengths * shown.scores.max(axis=(1, 2)), rel=1e-4)
    weighed.query_weights.bias = -np.inf  # type: ignore[attr-defined]
    assert "query vectors have no length" in engines[1].self_check().problems


def test_hubness_is_told_by_unweighed_queries():
    toy = SimpleNamespace(bank_vectors=[np.array([[2.0, 0.0], [0.0, 0.5]])], views=1)
    assert page_hubness(toy, [np.array([[0.6, 0.8]])]) == pytest.approx([0.7])  # type: ignore[arg-type]


def test_fitting_finds_the_tokens_that_tell_pages_apart():
    random = np.random.default_rng(0)
    pages = [np.eye(8)[[number, 5 + number % 2]].astype(np.float32) for number in range(4)]
    queries, ids, gold = [], [], []
    for number in list(range(4)) * 10:  # token 0 names the page; token 1 is on two pages, and on the wrong ones
        telling, noise = np.eye(8)[number] * 0.6, np.eye(8)[5 + (number + 1) % 2]
        queries.append(np.stack([telling, noise]).astype(np.float32))
        ids.append([0, 1])
        gold.append([number])
    order = random.permutation(len(queries))
    table = compare([queries[i] for i in order], [ids[i] for i in order], pages, [gold[i] for i in order], [0.0] * 4)
    assert table.similar.shape == (40, 2, 4)
    found = fit(table, vocabulary=2, hubness_weight=0.5)
    worth = found([0, 1], np.zeros((2, 8), np.float32))
    assert worth[0] > 1.7 * worth[1]
