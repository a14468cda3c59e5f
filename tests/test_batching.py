"""The batcher: shared searches, answers as if alone, and nobody harmed by a neighbour."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag_nb.records import Hit
from vrag_nb.retrieval.serving.batching import BATCH_BYTES, Batcher, ClosedError, QueueFullError, SearchFailedError


def hits(query: str) -> list[Hit]:
    return [Hit(page_id=query, score=len(query), rank=1)]


class Search:
    """Finds a page of the query's own name; waits for `free`, notes its batches, fails for "bad"."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.free, self.busy = threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, queries: list[str]) -> list[list[Hit]]:
        self.batches.append(queries)
        self.busy.set()
        assert self.free.wait(20)
        if "bad" in queries:
            raise ValueError("no such query")
        if "panic" in queries:
            raise BaseException("a panic")
        return [hits(query) for query in queries]

    def hold(self, batcher: Batcher) -> None:
        """Keep the batcher's thread in a search until `free` is set."""
        self.free.clear()
        batcher.submit(["first"], self)
        assert self.busy.wait(20)


@pytest.fixture
def search() -> Search:
    return Search()


def results(futures: list) -> list[list[Hit]]:
    return [future.result(20) for future in futures]


def test_queries_that_come_during_a_search_share_the_next(search: Search) -> None:
    seen: list[int] = []
    batcher = Batcher(max_batch=4, observe=lambda queries, seconds: seen.append(queries))
    search.hold(batcher)
    futures = [future for name in "abcdef" for future in batcher.submit([name], search)]
    assert batcher.waiting == 6
    search.free.set()
    assert results(futures) == [hits(name) for name in "abcdef"]
    assert search.batches == [["first"], ["a", "b", "c", "d"], ["e", "f"]]
    assert batcher.close(20)
    assert seen == [1, 4, 2]


def test_a_lone_query_leaves_after_its_wait_and_a_full_batch_at_once(search: Search) -> None:
    assert results(Batcher(max_wait_ms=1).submit(["a"], search)) == [hits("a")]
    batcher = Batcher(max_batch=2, max_wait_ms=1e6)
    assert results(batcher.submit(["b", "c"], search)) == [hits("b"), hits("c")]
    lone = batcher.submit(["d"], search)
    assert batcher.close(20)  # does not wait for company either
    assert results(lone) == [hits("d")]


def test_queries_of_another_search_do_not_mix(search: Search) -> None:
    other, batcher = Search(), Batcher()
    search.hold(batcher)
    futures = [*batcher.submit(["a"], search), *batcher.submit(["b"], other), *batcher.submit(["c"], search)]
    search.free.set()
    assert results(futures) == [hits("a"), hits("b"), hits("c")]
    assert search.batches == [["first"], ["a"], ["c"]]
    assert other.batches == [["b"]]


def test_long_queries_do_not_share_a_search(search: Search) -> None:
    batcher = Batcher()
    search.hold(batcher)
    long = ["é" * (BATCH_BYTES // 4 + 1)] * 3  # two bytes a letter: two of them are over the bound
    futures = batcher.submit([*long, "short"], search)
    search.free.set()
    results(futures)
    assert [len(batch) for batch in search.batches] == [1, 1, 1, 2]


@pytest.mark.parametrize("bad", ["bad", "panic"])
def test_only_the_query_to_blame_fails(search: Search, bad: str) -> None:
    batcher = Batcher()
    search.hold(batcher)
    good, evil, late = batcher.submit(["a", bad, "b"], search)
    search.free.set()
    assert results([good, late]) == [hits("a"), hits("b")]
    with pytest.raises(SearchFailedError, match=r"no such query|a panic"):
        evil.result(20)
    assert results(batcher.submit(["after"], search)) == [hits("after")]


def test_an_answer_of_another_length_is_no_answer(search: Search) -> None:
    (future,) = Batcher().submit(["a"], lambda queries: [])
    with pytest.raises(SearchFailedError, match="1 queries got 0 answers"):
        future.result(20)


def test_what_is_cancelled_is_not_searched_and_makes_room(search: Search) -> None:
    batcher = Batcher(max_queue=3)
    search.hold(batcher)
    first, second, third = batcher.submit(["a", "b", "c"], search)
    with pytest.raises(QueueFullError, match="3 queries are waiting, 3 may"):
        batcher.submit(["d"], search)
    assert second.cancel()
    (fourth,) = batcher.submit(["d"], search)
    search.free.set()
    assert results([first, third, fourth]) == [hits("a"), hits("c"), hits("d")]
    assert search.batches == [["first"], ["a", "c", "d"]]
    assert not first.cancel()


def test_a_request_that_does_not_fit_leaves_nothing_behind(search: Search) -> None:
    batcher = Batcher(max_queue=2)
    with pytest.raises(QueueFullError):
        batcher.submit(["a", "b", "c"], search)
    assert batcher.waiting == 0
    assert batcher.submit([], search) == []


def test_closing_finishes_what_waits_and_refuses_the_rest(search: Search) -> None:
    batcher = Batcher()
    search.hold(batcher)
    waiting = batcher.submit(["a"], search)
    assert not batcher.close(0.01)
    with pytest.raises(ClosedError):
        batcher.submit(["b"], search)
    with pytest.raises(CancelledError):
        waiting[0].result(20)  # it was not searched in time
    search.free.set()
    assert batcher.close(20)
    assert Batcher().close(1)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="max_batch 0 must be 1 or more"):
        Batcher(max_batch=0)
    with pytest.raises(ValueError, match="max_wait_ms -1 must be 0 or more"):
        Batcher(max_wait_ms=-1)


def test_a_search_is_let_go_when_its_queries_are_done() -> None:
    batcher, search = Batcher(), Search()
    results(batcher.submit(["a"], search))
    watch = weakref.ref(search)
    del search
    until = time.monotonic() + 20
    while watch() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert watch() is None


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(st.lists(st.text(max_size=5), max_size=5), max_size=20),
    max_batch=st.integers(1, 7),
    max_wait_ms=st.sampled_from([0, 0.5, 2]),
)
def test_everybody_gets_their_own_answers(requests: list[list[str]], max_batch: int, max_wait_ms: float) -> None:
    search, batcher = Search(), Batcher(max_batch, max_wait_ms)
    names = [[f"{query}!" for query in queries] for queries in requests]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda queries: results(batcher.submit(queries, search)), names))
    assert found == [[hits(query) for query in queries] for queries in names]
    assert all(1 <= len(batch) <= max_batch for batch in search.batches)
    assert sorted(query for batch in search.batches for query in batch) == sorted(q for one in names for q in one)
    assert batcher.close(20)
