"""The nano retriever's single-vector twin: colpali-engine's BiQwen2.5, trained by its InfoNCE loss.

A page and a query are one vector each, the mean of their tokens' hidden states at length 1, and their score is a dot
product. The twin begins as the late-interaction retriever, whose tokens are what is averaged: the last token's state,
the class's default, would have to learn from nothing to gather a page. Its vision tower and its word embeddings stay,
so that what the language model is given of a page is computed once, squares without anything on them left out
(`retrieval.written_squares`). A batch holds several pages of a few documents, so that the negatives that matter are in
it, and asks several queries of each page.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from colpali_engine.loss import BiEncoderLoss
from colpali_engine.models import BiQwen2_5, BiQwen2_5_Processor, ColQwen2_5
from torch.nn.functional import normalize, pad
from tqdm.auto import tqdm

from vrag_nb.attention import linear_patch_embedding, use_block_attention, use_window_attention
from vrag_nb.nano.deck_tasks import DrawnPage
from vrag_nb.nano.finding import asked_of
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.optimisation import Schedule, compile_layers, to_training_form
from vrag_nb.nano.retriever import PAGE_BUDGET, QuerySource, SeenPage, word_squares
from vrag_nb.nano.training import Training
from vrag_nb.retrieval.nano_embedders import POOLING
from vrag_nb.retrieval.written_squares import written_inputs, written_squares

TEMPERATURE = 0.05


@dataclass
class GivenPage(SeenPage):
    """A page as the language model is given it: `tokens` with the prompt's, and their positions (3, n)."""

    positions: torch.Tensor


def build_twin(retriever: ColQwen2_5) -> BiQwen2_5:
    """A BiQwen2.5 with the retriever's weights, its projection left out."""
    model = BiQwen2_5(retriever.config)
    missing, _ = model.load_state_dict(retriever.state_dict(), strict=False)
    if missing:
        raise ValueError(f"the retriever lacks weights of its twin, such as {missing[0]}")
    return model


@torch.no_grad()
def given_pages(model: BiQwen2_5, processor: BiQwen2_5_Processor, pages: Sequence[DrawnPage]) -> list[GivenPage]:
    """Run the vision tower once over drawn pages, at the size the retriever is shown; model: as of `see_written`."""
    given = []
    for page in tqdm(pages, desc="seeing pages", unit="page"):
        image = page.window(budget=PAGE_BUDGET)[0].convert("RGB")
        columns, rows = image.width // FACTOR, image.height // FACTOR
        ((tokens, positions),) = written_inputs(model, processor, [image], [written_squares(image, FACTOR)])
        grid = torch.tensor([1, 2 * rows, 2 * columns])
        given.append(GivenPage(tokens.clone(), grid, word_squares(page, columns, rows), positions[:, 0].clone()))
    return given


def embed_given(model: Any, pages: Sequence[GivenPage]) -> torch.Tensor:
    """(pages, width), length 1: the language half of a page embedding."""
    length = max(len(page.tokens) for page in pages)
    short = [length - len(page.tokens) for page in pages]  # padded on the left, as the processor pads
    mask = (torch.arange(length) >= torch.tensor(short)[:, None]).long()
    hidden = model.language_model(
        inputs_embeds=torch.stack([pad(p.tokens, (0, 0, n, 0)) for p, n in zip(pages, short, strict=True)]),
        position_ids=torch.stack([pad(p.positions, (n, 0)) for p, n in zip(pages, short, strict=True)], 1),
        attention_mask=mask,
        use_cache=False,
    ).last_hidden_state
    return normalize((hidden * mask[:, :, None]).float().sum(1), dim=-1)


def embed_asked(model: BiQwen2_5, processor: BiQwen2_5_Processor, queries: Sequence[str]) -> torch.Tensor:
    """(queries, width), length 1. Without the augmentation tokens that ColPali's queries end with."""
    batch = processor.process_queries(texts=list(queries), suffix="")
    return model(pooling_strategy=POOLING, **batch).float()


def train_twin(
    model: BiQwen2_5,
    processor: BiQwen2_5_Processor,
    source: QuerySource[GivenPage],
    folder: Path,
    schedule: Schedule,
    *,
    seed: int = 0,
    compile_text: bool = True,
) -> None:
    """Train the language model in place; resumable. Logs in-batch accuracy of pages.

    model: as `freeze` leaves it. Of a page without queries only its own words are asked.
    """
    use_block_attention(model.language_model)
    if compile_text:
        compile_layers(model.language_model)
    queries_of: dict[int, list[str]] = {}
    for text, page in (query for group in source.groups for query in group.queries):
        queries_of.setdefault(page, []).extend([text] if text else [])
    loss = BiEncoderLoss(temperature=TEMPERATURE)

    training = Training(folder, {"model": model}, schedule)
    rng = random.Random(f"{seed}/{training.step}")
    model.train()
    for _ in training:
        _, gold = source.draw(rng)
        shown = [source.pages[index] for index in gold]
        asked = [asked_of(rng, queries_of[index], page) for index, page in zip(gold, shown, strict=True)]
        turns = list(zip(*asked, strict=True))  # one query of every page each
        embedded = embed_asked(model, processor, [query for turn in turns for query in turn])
        found = embed_given(model, shown)
        scores = embedded.split(len(gold))
        total = torch.stack([loss(turn, found) for turn in scores]).mean()
        right = torch.cat([(turn @ found.T).argmax(1) == torch.arange(len(gold)) for turn in scores]).float().mean()
        total.backward()
        training.tell(loss=total.item())
        training.blend(accuracy=right.item())


def freeze(model: BiQwen2_5) -> None:
    """All but the language model's layers stays as it is, and pages are seen as fast as this CPU can."""
    tower: Any = model.visual
    linear_patch_embedding(tower)
    use_window_attention(tower)
    tower.requires_grad_(False)
    model.get_input_embeddings().requires_grad_(False)
    to_training_form(model)
