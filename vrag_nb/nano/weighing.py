"""What each token of a query is worth, learned from training questions (`retrieval.query_weights`).

The retriever itself stays as it is. Every question is compared with every page of the training decks once: the table of
(tokens, pages) best similarities is all that the weights need. They are then fitted in seconds to put the gold page
first: cross-entropy over pages of the weighed sums, what is taken off for hubness included.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm

from vrag_nb.agent.pages import PageStore
from vrag_nb.records import Question, read_pages
from vrag_nb.retrieval.colpali import ColpaliEngineEmbedder
from vrag_nb.retrieval.hubness import page_hubness
from vrag_nb.retrieval.query_weights import QueryWeights

STEPS, BATCH, RATE, DECAY = 300, 96, 2e-2, 0.1


@dataclass(frozen=True)
class Comparison:
    """Questions against pages, padded to the longest question.

    similar: (questions, tokens, pages), the best similarity of each token on each page, 0 at padding. vectors:
    (questions, tokens, dim) and ids: (questions, tokens) of the tokens. real: (questions, tokens), False at padding.
    gold: (questions, pages). hubness: (pages,).
    """

    similar: torch.Tensor
    vectors: torch.Tensor
    ids: torch.Tensor
    real: torch.Tensor
    gold: torch.Tensor
    hubness: torch.Tensor


def learn_weights(
    embedder: ColpaliEngineEmbedder, corpus: Path, asked: Sequence[Question], count: int = 1000, seed: int = 0
) -> QueryWeights:
    """From `count` of the questions, over the pages of all their documents; the embedder loses those it has."""
    embedder.query_weights = None
    asked = [question for question in asked if question.gold_page_ids]
    questions = random.Random(seed).sample(asked, min(count, len(asked)))
    documents = {question.document for question in asked}
    row = {page.page_id: n for n, page in enumerate(p for p in read_pages(corpus) if p.document in documents)}
    store = PageStore(corpus)
    pages = [embedder.embed_pages([store.image(name)], [""])[0] for name in tqdm(row, desc="embedding pages")]
    queries, ids = embedder.query_tokens([question.query for question in questions])
    gold = [[row[name] for name in question.gold_page_ids] for question in questions]
    table = compare(queries, ids, pages, gold, page_hubness(embedder, pages), embedder.views)
    return fit(table, len(embedder.processor.tokenizer), embedder.hubness_weight, seed)


def compare(
    queries: Sequence[np.ndarray],
    ids: Sequence[Sequence[int]],
    pages: Sequence[np.ndarray],
    gold: Sequence[Sequence[int]],
    hubness: Sequence[float],
    views: int = 1,
) -> Comparison:
    """queries and pages: (tokens, dim) each; gold: the rows of each question's pages. views: of a page
    (`Embedder.views`)."""
    count, longest = len(queries), max(map(len, queries))
    patches = torch.from_numpy(np.concatenate(pages).astype(np.float32))
    lengths = np.repeat([len(page) // views for page in pages], views)
    starts = np.cumsum([0, *lengths[:-1]])
    similar = torch.zeros(count, longest, len(pages), dtype=torch.float16)
    vectors = torch.zeros(count, longest, patches.shape[1])
    padded, real = torch.zeros(count, longest, dtype=torch.long), torch.zeros(count, longest, dtype=torch.bool)
    right = torch.zeros(count, len(pages), dtype=torch.bool)
    for row, (query, own, found) in enumerate(zip(tqdm(queries, desc="comparing"), ids, gold, strict=True)):
        tokens = torch.from_numpy(query.astype(np.float32))
        best = np.maximum.reduceat((tokens @ patches.T).numpy(), starts, axis=1).reshape(-1, len(pages), views).mean(2)
        similar[row, : len(query)] = torch.from_numpy(best)
        vectors[row, : len(query)], padded[row, : len(query)] = tokens, torch.tensor(own)
        real[row, : len(query)], right[row, list(found)] = True, True
    return Comparison(similar, vectors, padded, real, right, torch.tensor(hubness))


class _Weigher(nn.Module):
    """`QueryWeights` with gradients, and the temperature of the fit."""

    def __init__(self, dim: int, vocabulary: int) -> None:
        super().__init__()
        self.pieces, self.direction = nn.Parameter(torch.zeros(vocabulary)), nn.Parameter(torch.zeros(dim))
        self.bias = nn.Parameter(torch.tensor(1.0).expm1().log())  # every weight is 1 at first
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def scores(self, table: Comparison, rows: torch.Tensor, hubness_weight: float) -> torch.Tensor:
        """(rows, pages): what the engine would say, on the scale of the fit."""
        told = self.bias + self.pieces[table.ids[rows]] + table.vectors[rows] @ self.direction
        weights = nn.functional.softplus(told) * table.real[rows]
        sums = torch.einsum("nt,ntp->np", weights, table.similar[rows].float())
        sums = sums - hubness_weight * weights.sum(1, keepdim=True) * table.hubness
        return sums * self.log_scale.exp() / table.real[rows].sum(1, keepdim=True) ** 0.5


def fit(table: Comparison, vocabulary: int, hubness_weight: float, seed: int = 0) -> QueryWeights:
    """The weights under which the gold pages come first most surely."""
    rng = random.Random(seed)
    model = _Weigher(table.vectors.shape[-1], vocabulary)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        rows = torch.tensor(rng.choices(range(len(table.gold)), k=BATCH))
        scores = model.scores(table, rows, hubness_weight)
        loss = (scores.logsumexp(1) - scores.masked_fill(~table.gold[rows], -torch.inf).logsumexp(1)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return QueryWeights(model.pieces.numpy(), model.direction.numpy(), model.bias.item())
