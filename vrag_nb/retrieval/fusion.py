"""Two or more search engines over one corpus, their rankings fused.

    engine = FusedEngine([visual, text])
    hits = engine.search(["revenue by region"], top_k=3)

**Reciprocal rank fusion** (Cormack et al., SIGIR 2009): a page scores sum over rankings of 1 / (k + rank), so that
scores of different kinds need not be compared; k = 60 as in the paper. A page that a ranking lacks gets nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

from vrag_nb.records import Hit
from vrag_nb.retrieval.engine import SearchEngine

K = 60


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]], top_k: int, k: int = K) -> list[Hit]:
    """The best `top_k` pages of several rankings of one query; equal scores keep the order of the first ranking."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for hit in ranking:  # its own rank, so that rankings may be cut anywhere
            scores[hit.page_id] = scores.get(hit.page_id, 0.0) + 1 / (k + hit.rank)
    best = sorted(scores, key=lambda page_id: -scores[page_id])[:top_k]
    return [Hit(page_id=page_id, score=scores[page_id], rank=rank) for rank, page_id in enumerate(best, start=1)]


def _check(top_k: int) -> None:
    if top_k < 1:
        raise ValueError(f"top_k {top_k} must be 1 or more")


class FusedEngine:
    """Searches with every engine, `depth` pages each, and fuses. Raises ValueError for no engines."""

    def __init__(self, engines: Sequence[SearchEngine], depth: int = 50, k: int = K) -> None:
        if not engines:
            raise ValueError("there are no engines to fuse")
        self.engines, self.depth, self.k = list(engines), depth, k

    @property
    def fingerprint(self) -> str:
        """What rankings depend on: every engine's fingerprint, and how they are fused."""
        return f"fused/{self.depth}/{self.k}/" + "+".join(engine.fingerprint for engine in self.engines)

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        """As `SearchEngine.search`."""
        _check(top_k)
        return self._fused([engine.search(queries, max(top_k, self.depth)) for engine in self.engines], top_k)

    def search_in_document(self, queries: list[str], document: str, top_k: int = 3) -> list[list[Hit]]:
        """As `SearchEngine.search_in_document`."""
        _check(top_k)
        depth = max(top_k, self.depth)
        return self._fused([engine.search_in_document(queries, document, depth) for engine in self.engines], top_k)

    def _fused(self, found: Sequence[Sequence[Sequence[Hit]]], top_k: int) -> list[list[Hit]]:
        return [reciprocal_rank_fusion(rankings, top_k, self.k) for rankings in zip(*found, strict=True)]
