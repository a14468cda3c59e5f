"""What the nano models are taught on drawn pages: windows, tasks, the privileged expert, the retriever's batches."""

from __future__ import annotations

import random

import pytest
import torch

from vrag_nb.agent import actions
from vrag_nb.agent.encoding import ChatEncoder
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DeckTasks, jitter
from vrag_nb.nano.expert import EXPERT_SETTINGS, ExpertSamples, play, session_sample
from vrag_nb.nano.model import NanoSize, build_nano_vlm, build_processor, save_checkpoint
from vrag_nb.nano.recipe import tokenizer as make_tokenizer
from vrag_nb.nano.retriever import (
    QueryGroup,
    build_retriever,
    build_retriever_processor,
    draw_batch,
    embed_query_texts,
    embed_seen_pages,
    see_pages,
)
from vrag_nb.nano.samples import IGNORE, encode
from vrag_nb.retrieval.embedders import load_embedder

TINY = NanoSize(text_width=64, text_layers=2, text_heads=2, vision_width=48, vision_layers=2, vision_heads=2)


@pytest.fixture(scope="module")
def pool() -> DeckPool:
    return DeckPool(pretraining_deck, size=3, draws_per_deck=10_000)


@pytest.fixture(scope="module")
def processor():
    return build_processor(make_tokenizer())


def test_windows_keep_the_budget_and_carry_their_glyphs(pool):
    rng = random.Random(0)
    for _ in range(20):
        image, glyphs = DeckTasks(pool).glyphs(rng, 1.0)
        assert image.width % 28 == image.height % 28 == 0
        assert BUDGET.min_pixels <= image.width * image.height <= BUDGET.max_pixels
        assert all(0 <= g.x <= image.width and 0 <= g.y <= image.height + 14 for g in glyphs)


def test_a_jittered_box_contains_the_region_and_stays_on_the_page():
    rng = random.Random(0)
    for _ in range(100):
        x0, y0, x1, y1 = jitter(rng, (100, 50, 300, 90), (320, 100))
        assert 0 <= x0 <= 100
        assert 0 <= y0 <= 50
        assert 300 <= x1 <= 320
        assert 90 <= y1 <= 100


def test_tasks_point_where_the_gold_region_lies(pool):
    rng = random.Random(3)
    kinds = set()
    for _ in range(60):
        for sample in DeckTasks(pool).question_samples(rng, 1.0):
            kinds.add(sample.kind)
            if sample.kind == "point":
                _, action = actions.parse(f"<bbox>{sample.turns[1][1][0]}</bbox>")
                assert action.kind == "bbox"
                assert action.box is not None
                assert max(action.box[0::2]) <= sample.images[0].width
    assert {"crop", "point", "page", "match"} <= kinds


def test_the_expert_ends_with_the_right_answer_in_the_real_environment(pool):
    rng = random.Random(5)
    searched_twice = 0
    for _ in range(40):
        pages, questions = pool.pick(rng)
        question = rng.choice(questions)
        session = play(question, pages, rng, recall=0.5)
        assert session.error is None
        kinds = [turn.action.kind for turn in session.turns]
        assert "invalid" not in kinds
        searched_twice += kinds.count("search") > 1
        if len(kinds) <= EXPERT_SETTINGS.max_turns:
            assert session.answer == question.reference_answer
    assert searched_twice > 5


def test_training_and_acting_use_the_same_token_ids(pool, processor):
    rng = random.Random(6)
    encoder = ChatEncoder(processor)
    for sample_number in range(8):
        pages, questions = pool.pick(rng)
        session = play(questions[sample_number], pages, rng)
        ids, labels = encode(session_sample(session), processor.tokenizer)
        encoded = encoder.encode(session.conversation, reply=False)
        assert ids == encoded.input_ids
        assert [label != IGNORE for label in labels] == encoded.model_mask


def test_expert_samples_are_conversations_that_end_in_an_answer(pool):
    rng = random.Random(7)
    samples = [sample for _ in range(10) for sample in ExpertSamples(pool)(rng, 1.0)]
    assert samples
    assert all("</answer>" in sample.turns[-1][1][0] for sample in samples)


def test_batches_hold_distinct_pages():
    decks = [range(n * 10, n * 10 + 10) for n in range(5)]
    groups = [QueryGroup(list(deck), [(f"q{page}", page) for page in deck] * 2) for deck in decks]
    queries, pages = draw_batch(random.Random(0), groups, size=12, decks=3)
    assert len(queries) == len(set(pages)) == 12


def test_the_saved_retriever_embeds_as_the_trained_one(pool, processor, tmp_path):
    backbone = build_nano_vlm(processor.tokenizer, TINY)
    model = build_retriever(backbone, text_layers=2).eval()
    retriever_processor = build_retriever_processor(processor)
    pages, _ = pool.pick(random.Random(0))
    image = pages[1].image
    with torch.inference_mode():
        seen = see_pages(model, retriever_processor, [image])
        page = embed_seen_pages(model, retriever_processor, seen)[0].numpy()
        query = embed_query_texts(model, retriever_processor, ["net profit"])[0].numpy()
    save_checkpoint(model, retriever_processor, tmp_path, torch.float32)
    embedder = load_embedder("nano-colqwen2_5", tmp_path)
    assert abs(embedder.embed_queries(["net profit"])[0] - query).max() < 1e-4
    assert abs(embedder.embed_pages([image], [""])[0] - page).max() < 0.05  # the vision tower ran in bfloat16
