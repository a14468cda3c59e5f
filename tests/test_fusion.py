"""Rankings fused by hand-worked numbers."""

from __future__ import annotations

import pytest

from vrag_nb.records import Hit
from vrag_nb.retrieval.fusion import FusedEngine, reciprocal_rank_fusion


class Fixed:
    """An engine that always finds the same pages."""

    def __init__(self, *page_ids: str) -> None:
        self.hits = [Hit(page_id=name, score=9.0 / rank, rank=rank) for rank, name in enumerate(page_ids, start=1)]

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        return [self.hits[:top_k] for _ in queries]

    def search_in_document(self, queries: list[str], document: str, top_k: int = 3) -> list[list[Hit]]:
        return [[hit for hit in self.hits if hit.page_id.startswith(document)][:top_k] for _ in queries]


def test_ranks_are_fused_whatever_the_scores() -> None:
    fused = reciprocal_rank_fusion([Fixed("a", "b", "c").hits, Fixed("b", "d").hits], 3, k=60)
    assert [hit.page_id for hit in fused] == ["b", "a", "d"]
    assert [hit.score for hit in fused] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])
    assert [hit.rank for hit in fused] == [1, 2, 3]
    assert reciprocal_rank_fusion([[], []], 3) == []


def test_engines_are_searched_deeper_than_asked() -> None:
    """The page that is second in both wins over those that are first in one, even for one result."""
    engine = FusedEngine([Fixed("x_1", "x_2"), Fixed("y_1", "x_2")])  # type: ignore[list-item]
    assert [[hit.page_id for hit in hits] for hits in engine.search(["one", "two"], 1)] == [["x_2"], ["x_2"]]
    assert [hit.page_id for hit in engine.search_in_document(["one"], "x", 2)[0]] == ["x_2", "x_1"]
    for search in (engine.search, lambda queries, top_k: engine.search_in_document(queries, "x", top_k)):
        with pytest.raises(ValueError, match="top_k 0 must be 1 or more"):
            search(["one"], 0)
    with pytest.raises(ValueError, match="no engines"):
        FusedEngine([])
