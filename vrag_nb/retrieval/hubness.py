"""Hubs: pages that are near every query, and what is taken off their scores for it.

Among many pages some come up whatever is asked. A page's *hubness* is how near it is to the queries that it is nearest
to, out of a bank of sample queries that ask for other pages: r of CSLS (Conneau et al., arXiv 1710.04087, section 2.3;
for retrieval with a query bank see QB-Norm, Bogolin et al., arXiv 2112.12777). Here, for late interaction,

    r(p) = mean of MaxSim(b, p) / |b| over the NEAREST share of bank queries b with the greatest
    score(q, p) = MaxSim(q, p) - weight * |q| * r(p)    |q|: summed lengths of a query's vectors, all 1 in the bank

The bank comes with the embedder, so that r(p) depends on the page alone: it is computed when the page is embedded and
stored with it, and a page that is added changes no other page's score. `benchmarks/hubness.py` measures what it brings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vrag_nb.paths import REPOSITORY
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.index import maxsim

NEAREST = 0.1
QUERY_BANK = "query_bank.txt"  # in a checkpoint's folder, one query a line


def page_hubness(embedder: Embedder, pages: Sequence[np.ndarray]) -> list[float]:
    """r of pages by their vectors, (n_tokens, dim) each; 0 where the embedder has no query bank."""
    bank = embedder.bank_vectors
    if not bank:
        return [0.0] * len(pages)
    bank = [query / np.linalg.norm(query, axis=1, keepdims=True).clip(1e-9) for query in bank]
    lengths = np.array([[len(query)] for query in bank])
    similar = maxsim(bank, np.concatenate(pages), [len(page) for page in pages], embedder.views)
    near = np.sort(similar / lengths, axis=0)
    return [round(float(r), 6) for r in near[-math.ceil(NEAREST * len(bank)) :].mean(axis=0)]


def find_query_bank(given: str | None, checkpoint: str) -> Path | None:
    """The file of a bank: the one given, from here or the repository, else the checkpoint folder's own, if it has one.

    Raises FileNotFoundError for one that is given and not there.
    """
    name = given or f"{checkpoint}/{QUERY_BANK}"
    for path in (Path(name), REPOSITORY / name):
        if path.is_file():
            return path
    if given:
        raise FileNotFoundError(f"no query bank at {given}: write sample queries there, one a line")
    return None


def read_query_bank(path: Path) -> tuple[str, ...]:
    """The queries of a bank. Raises ValueError for a file without one, naming it."""
    queries = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
    if not queries:
        raise ValueError(f"query bank {path} holds no query: write one a line")
    return queries
