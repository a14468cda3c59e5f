"""Searching stored page vectors by late interaction (MaxSim), and what every kind of index shares.

MaxSim (Khattab and Zaharia 2020): score(q, p) = sum over query tokens of the greatest dot product with any token of the
page. Pages have different numbers of tokens; here they lie one after another with their lengths beside them, and the
maximum is taken segment by segment, so there is no padding that could win a maximum and a page's score does not depend
on what it is scored with.

A small corpus is searched exhaustively. A large one in two stages: each page is pooled to a few vectors in a FAISS
index, every query token asks it for its neighbours, and the most promising pages are scored exactly on their stored
float16 vectors, which stay on disk (memory-mapped) until asked for. `retrieval.compact` is the same on an eighth of the
bytes; `retrieval.single_vector` searches one vector a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import faiss
import numpy as np
import torch

from vrag_nb.records import Hit
from vrag_nb.retrieval.mapping import map_array
from vrag_nb.retrieval.storage import REBUILD, IndexCorruptError, Manifest

EXACT_UP_TO = 4000  # pages that are scored exhaustively unless told otherwise
POOLED_VECTORS = 16  # a page's vectors in stage one
Ranking = tuple[np.ndarray, np.ndarray]  # page rows and their scores, best first


def maxsim(
    queries: Sequence[np.ndarray], tokens: np.ndarray, lengths: Sequence[int] | np.ndarray, views: int = 1
) -> np.ndarray:
    """MaxSim of every query with every page: (n_queries, n_pages) float32.

    `queries`: (n_tokens, dim) each. `tokens`: (sum(lengths), dim), the pages' tokens one page after another; `lengths`:
    each page's token count, at least 1. `views`: a page's tokens are those of so many views of it, one after another
    and equally many; its score is the mean of theirs.
    """
    if len(lengths) == 0:
        return np.zeros((len(queries), 0), np.float32)
    if views > 1:
        of_views = maxsim(queries, tokens, np.repeat(np.asarray(lengths) // views, views))
        return of_views.reshape(len(queries), len(lengths), views).mean(axis=2)
    stacked = torch.from_numpy(np.concatenate(list(queries)).astype(np.float32))  # (all query tokens, dim)
    best = torch.empty(len(lengths), len(stacked))
    for page, (start, length) in enumerate(zip(_starts(lengths), lengths, strict=True)):
        # a page at a time: the table of similarities stays in the processor's cache, and float16 is widened by torch,
        # which is many times as fast at it as NumPy
        vectors = torch.from_numpy(np.array(tokens[start : start + length])).float()
        torch.amax(stacked @ vectors.T, 1, out=best[page])
    return np.add.reduceat(best.numpy(), _starts([len(query) for query in queries]), axis=1).T


def total_length(query: np.ndarray) -> float:
    """The summed lengths of a query's vectors, (n, dim): how many tokens it has, where none is weighed."""
    return float(np.linalg.norm(query.astype(np.float32), axis=1).sum())


def pool_tokens(tokens: np.ndarray, lengths: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POOLED_VECTORS unit vectors a page, each the mean of consecutive tokens (strips of the page).

    Returns the vectors (n, dim) float32 and the 0-based page of each (n,).
    """
    edges, owners = [], []
    for page, (start, length) in enumerate(zip(_starts(lengths), lengths, strict=True)):
        parts = min(POOLED_VECTORS, int(length))
        edges.append(start + np.arange(parts) * int(length) // parts)
        owners.append(np.full(parts, page))
    pooled = np.add.reduceat(np.asarray(tokens, np.float32), np.concatenate(edges), axis=0)
    norms = np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled / np.maximum(norms, 1e-12), np.concatenate(owners)


def _starts(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


class PageIndex(ABC):
    """An index opened for searching. Rows are positions in `manifest.pages`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = Path(folder), manifest
        self.page_ids = [page.page_id for page in manifest.pages]
        self.row_of = {page_id: row for row, page_id in enumerate(self.page_ids)}

    def search(self, queries: Sequence, top_k: int, rows: np.ndarray | None = None) -> list[list[Hit]]:
        """The best `top_k` pages of every (encoded) query, among `rows` where given; equal scores in page order."""
        rankings = self._rank(queries, min(top_k, len(self.page_ids) if rows is None else len(rows)), rows)
        return [
            [
                Hit(page_id=self.page_ids[row], score=float(score), rank=rank)
                for rank, (row, score) in enumerate(zip(found, scores, strict=True), start=1)
            ]
            for found, scores in rankings
        ]

    @abstractmethod
    def _rank(self, queries: Sequence, top_k: int, rows: np.ndarray | None) -> list[Ranking]: ...


class VectorIndex(PageIndex):
    """What both vector indexes share: the shards, memory-mapped, and the FAISS file."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.lengths = np.array([page.vectors for page in manifest.pages], np.int64)
        self._shards = [self._map(name) for name in manifest.shards]
        self._first_row = np.arange(len(self._shards) + 1) * manifest.shard_pages
        self._first_row[-1] = len(self.page_ids)
        ends = np.cumsum(self.lengths)
        before = np.concatenate([[0], ends])[self._first_row[:-1]]
        self._start = ends - self.lengths - np.repeat(before, np.diff(self._first_row))  # of a page in its shard
        for number, name in enumerate(manifest.shards):
            expected = (int(self.lengths[self._rows_of(number)].sum()), manifest.width)
            if self._shards[number].shape != expected:
                raise IndexCorruptError(f"{folder}/{name}: shape {self._shards[number].shape}, expected {expected}")
        self._faiss = self._read_faiss(manifest.faiss) if manifest.faiss else None

    def _map(self, name: str) -> np.ndarray:
        try:
            return map_array(self.folder / name)
        except ValueError as error:
            raise IndexCorruptError(f"{error}; {REBUILD}") from None

    def _read_faiss(self, name: str) -> faiss.Index:
        try:
            return faiss.read_index(str(self.folder / name))
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise IndexCorruptError(f"{self.folder}/{name} is no FAISS index: {reason}; {REBUILD}") from None

    def _rows_of(self, shard: int) -> slice:
        return slice(int(self._first_row[shard]), int(self._first_row[shard + 1]))

    def vectors(self, row: int) -> np.ndarray:
        """A page's stored vectors, (n_tokens, dim) float16."""
        shard = row // self.manifest.shard_pages
        start = int(self._start[row])
        return self._shards[shard][start : start + int(self.lengths[row])]

    def _pieces(self, rows: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows (all when None) shard by shard, with their vectors one page after another."""
        for shard, tokens in enumerate(self._shards):
            inside = np.arange(len(self.page_ids))[self._rows_of(shard)]
            if rows is None:
                yield inside, tokens
                continue
            chosen = np.intersect1d(inside, rows)
            if len(chosen):
                yield chosen, np.concatenate([self.vectors(int(row)) for row in chosen])


class MultiVectorIndex(VectorIndex):
    """Late interaction.

    `exact`: score every page (True), only those that leave stage one (False), or by the corpus's size (None: every page
    up to `exact_up_to`). `candidates`: how many leave stage one. `hubness_weight`: how much of what makes a page a hub
    is taken off its scores (`retrieval.hubness`).
    """

    exact_up_to: int = EXACT_UP_TO
    exact: bool | None = None
    candidates: int = 256
    hubness_weight: float = 0.0

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._hubness = np.array([page.hubness for page in manifest.pages], np.float32)

    @cached_property
    def _owner(self) -> np.ndarray:
        """The page row of every FAISS vector."""
        pooled = np.minimum(self.lengths, POOLED_VECTORS)
        return np.repeat(np.arange(len(pooled)), pooled)

    def score_rows(
        self, queries: Sequence[np.ndarray], rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Exact MaxSim: the rows in page order, and (n_queries, n_rows) scores."""
        pieces = [
            (chosen, maxsim(queries, tokens, self.lengths[chosen], self.manifest.views))
            for chosen, tokens in self._pieces(rows)
        ]
        if not pieces:
            return np.zeros(0, np.int64), np.zeros((len(queries), 0), np.float32)
        return np.concatenate([chosen for chosen, _ in pieces]), np.concatenate([part for _, part in pieces], axis=1)

    def _rank(self, queries: Sequence[np.ndarray], top_k: int, rows: np.ndarray | None) -> list[Ranking]:
        count = len(self.page_ids) if rows is None else len(rows)
        exhaustive = count <= self.exact_up_to if self.exact is None else self.exact
        if exhaustive or count <= max(top_k, self.candidates):
            found, scores = self.score_rows(queries, rows)
            return [
                best(found, row - self._penalty(query, found), top_k)
                for query, row in zip(queries, scores, strict=True)
            ]
        rankings = []
        for query in queries:
            near = self.nearest(query, max(top_k, self.candidates), rows)
            if len(near) < top_k:  # as many pages with the same pooled vectors leave
                near = np.arange(len(self.page_ids)) if rows is None else rows
            found, scores = self.score_rows([query], near)
            rankings.append(best(found, scores[0] - self._penalty(query, found), top_k))
        return rankings

    def _penalty(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What is taken off a query's scores of pages for their hubness: (n_rows,)."""
        return self.hubness_weight * total_length(query) * self._hubness[rows]

    def nearest(self, query: np.ndarray, count: int, rows: np.ndarray | None = None) -> np.ndarray:
        """Stage one: the rows of about `count` pages that look best on their pooled vectors.

        A page that a query token did not retrieve is credited with the worst similarity the token did retrieve (the
        imputation of XTR, Lee et al., arXiv 2304.01982).
        """
        assert self._faiss is not None
        wanted = min(4 * count, len(self._owner))
        allowed = None if rows is None else np.flatnonzero(np.isin(self._owner, rows))
        similar, ids = _faiss_search(self._faiss, query, wanted, allowed)  # (n_tokens, wanted)
        hit = ids >= 0
        floor = np.where(hit, similar, np.inf).min(axis=1, keepdims=True)
        seen = np.unique(self._owner[ids[hit]])
        credit = np.repeat(floor, len(seen), axis=1)  # (n_tokens, pages seen)
        token = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)[hit]
        np.maximum.at(credit, (token, np.searchsorted(seen, self._owner[ids[hit]])), similar[hit])
        return best(seen, credit.sum(axis=0) - self._penalty(query, seen), count)[0]


def _faiss_search(index: faiss.Index, queries: np.ndarray, count: int, ids: np.ndarray | None) -> Ranking:
    """(scores, ids), each (n, count); among `ids` only where given. Missing neighbours have id -1."""
    only = (
        None
        if ids is None
        else faiss.SearchParameters(  # type: ignore[call-arg]
            sel=faiss.IDSelectorBatch(ids.astype(np.int64))
        )
    )
    return index.search(np.ascontiguousarray(queries, np.float32), count, params=only)


def best(rows: np.ndarray, scores: np.ndarray, count: int) -> Ranking:
    """The `count` rows of greatest score, equal ones in row order."""
    order = np.lexsort((rows, -scores))[:count]
    return rows[order], scores[order]
