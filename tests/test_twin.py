"""The retriever's single-vector twin: what it begins with, what training changes, pages without their bare squares."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_index import interruption, noise, tiny  # noqa: F401  (two are fixtures)

from vrag_nb.attention import linear_patch_embedding
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano.deck_tasks import DeckPool, DrawnPage
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.optimisation import Schedule, load_state
from vrag_nb.nano.plan import tokenizer
from vrag_nb.nano.retriever import PAGE_BUDGET, QueryGroup, QuerySource, build_retriever, build_retriever_processor
from vrag_nb.nano.twin import build_twin, embed_given, freeze, given_pages, train_twin
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.token_budget import shown_size

TINY = NanoSize(text_width=32, text_layers=2, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)


@pytest.fixture(scope="module")
def pages() -> list[DrawnPage]:
    return DeckPool(pretraining_deck, size=1).pick(random.Random(0))[0][:3]


@pytest.fixture
def twin() -> Any:
    made = build_twin(build_retriever(build_nano_vlm(tokenizer(), TINY), text_layers=2))
    linear_patch_embedding(made.visual)
    return made


def test_the_language_model_learns_and_the_rest_stays(twin, pages: list[DrawnPage], tmp_path: Path) -> None:
    processor = build_retriever_processor(build_processor(tokenizer()))
    freeze(twin)
    before = {name: weight.clone() for name, weight in twin.state_dict().items()}
    given = given_pages(twin, processor, pages)  # type: ignore[arg-type]
    groups = [QueryGroup([0, 1, 2], [("revenue of the first year", 0), ("costs", 1), ("", 2)])]
    source = QuerySource(given, groups, queries=2, decks=1)
    for steps in (1, 2):
        schedule = Schedule(steps=steps)
        train_twin(twin, processor, source, tmp_path, schedule, compile_text=False)  # type: ignore[arg-type]
        state = load_state(tmp_path / "state.pt")
        assert state is not None
        assert state["step"] == steps
    changed = {name for name, weight in twin.state_dict().items() if not torch.equal(weight, before[name])}
    assert {"language_model.layers.0.mlp.up_proj.weight", "language_model.layers.1.self_attn.q_proj.weight"} <= changed
    assert all("language_model" in name and "embed_tokens" not in name for name in changed)


def test_a_page_does_not_depend_on_its_company(twin, pages: list[DrawnPage]) -> None:
    processor = build_retriever_processor(build_processor(tokenizer()))
    given = given_pages(twin, processor, pages)  # type: ignore[arg-type]
    assert len({len(page.tokens) for page in given}) > 1, "else nothing is padded"
    with torch.no_grad():
        together = embed_given(twin, given)
        alone = torch.cat([embed_given(twin, [page]) for page in given])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(len(given)))


def test_the_embedder_sees_a_page_as_training_does(twin, pages: list[DrawnPage], tmp_path: Path) -> None:
    processor = build_retriever_processor(build_processor(tokenizer()))
    save_checkpoint(twin, processor, tmp_path, torch.float32)  # type: ignore[arg-type]
    embedder = load_embedder("nano-biqwen2_5", tmp_path, device="cpu", dtype="float32")
    page = pages[0].part(budget=PAGE_BUDGET)
    (given,) = given_pages(twin, processor, [page])  # type: ignore[arg-type]
    (found,) = embedder.embed_pages([page.image], [""])
    with torch.no_grad():
        np.testing.assert_allclose(found, embed_given(twin, [given]).numpy(), atol=1e-5)
    assert found.shape == (1, embedder.dim)
    assert not embedder.multi_vector
    queries = embedder.embed_queries(["costs", "revenue of the first year"])
    np.testing.assert_allclose(queries[0], embedder.embed_queries(["costs"])[0], atol=1e-5)


def test_a_page_full_of_print_is_embedded_as_the_engine_does_it(tiny) -> None:  # noqa: F811
    nano: Any = load_embedder("nano-biqwen2_5", tiny, device="cpu", dtype="float32")
    page = noise(*shown_size(nano.processor.image_processor, noise(500, 400)))
    with torch.no_grad():
        wanted = nano.model(pooling_strategy="mean", **nano.processor.process_images([page]))
    np.testing.assert_allclose(nano.embed_pages([page], [])[0], wanted.numpy(), atol=1e-5)
