"""Gathering the queries of concurrent requests into one search.

    batcher = Batcher(max_batch=32, max_wait_ms=5)
    futures = batcher.submit(["revenue by region"], engine_search)   # one future a query
    hits = futures[0].result()

One thread searches, one batch at a time. A batch leaves when it is full, or when its oldest query has waited
`max_wait_ms`; queries that came while a batch was being searched have waited already and leave at once. A batch that
fails is searched again query by query, so that only the query to blame fails.

What one query is answered does not depend on the others of its batch, up to the rounding of floating-point numbers in
the embedder (last digits of the scores).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from vrag_nb.records import Hit

Search = Callable[[list[str]], list[list[Hit]]]
# UTF-8 bytes of a batch's queries. A query has at most about as many tokens as bytes, and a search holds a table of
# (page tokens of a shard, query tokens): without this bound, a few long queries together take all memory.
BATCH_BYTES = 8192


class QueueFullError(RuntimeError):
    """So many queries wait that this request's do not fit; it may come again later."""


class ClosedError(RuntimeError):
    """The batcher has been closed and takes no more queries."""


class SearchFailedError(RuntimeError):
    """Searching a query failed; the cause is the error."""


@dataclass(eq=False)
class _Waiting:
    query: str
    search: Search
    future: Future[list[Hit]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Searches queries of several threads together. Safe to use from any thread.

    `max_batch`: queries a search. `max_wait_ms`: how long a query waits for others. `max_queue`: queries that may wait.
    `observe`: called after each search with its number of queries and its seconds.
    """

    def __init__(
        self,
        max_batch: int = 32,
        max_wait_ms: float = 5.0,
        max_queue: int = 1024,
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        for name, value, least in (("max_batch", max_batch, 1), ("max_wait_ms", max_wait_ms, 0)):
            if value < least:
                raise ValueError(f"{name} {value} must be {least} or more")
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait_ms / 1000, max_queue
        self._observe = observe
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """How many queries wait to be searched."""
        return len(self._queue)

    def submit(self, queries: Sequence[str], search: Search) -> list[Future[list[Hit]]]:
        """A future a query, answered by `search`; only queries with an equal `search` share a batch.

        A future that is cancelled before its search begins is left out of it. Raises QueueFullError when not all of the
        queries fit, ClosedError after `close`. A future raises SearchFailedError.
        """
        with self._changed:
            if self._closed:
                raise ClosedError("the server is being stopped")
            if len(self._queue) + len(queries) > self.max_queue:
                self._forget_cancelled()
            if len(self._queue) + len(queries) > self.max_queue:
                raise QueueFullError(f"{len(self._queue)} queries are waiting, {self.max_queue} may")
            items = [_Waiting(query, search) for query in queries]
            self._queue.extend(items)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="search-batches", daemon=True)
                self._thread.start()
            self._changed.notify()
        return [item.future for item in items]

    def close(self, timeout: float | None = None) -> bool:
        """Take no more queries and finish those that wait; whether that was done within `timeout` seconds.

        What still waits after that is cancelled.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)
        with self._changed:
            for item in self._queue:
                item.future.cancel()
            self._queue.clear()
        return self._thread is None or not self._thread.is_alive()

    def _work(self) -> None:
        while self._answer(self._next_batch()):  # no name here holds a batch: it would keep a replaced index alive
            pass

    def _next_batch(self) -> list[_Waiting]:
        """The next queries to search together; none when the batcher has been closed and all are searched."""
        with self._changed:
            while True:
                rest = self._time_left()
                if rest is None or rest > 0:
                    self._changed.wait(rest)
                elif not self._queue:
                    return []
                elif batch := self._take():
                    return batch

    def _time_left(self) -> float | None:
        """Seconds until a batch leaves; None while nothing waits."""
        if self._closed or len(self._queue) >= self.max_batch:
            return 0
        return self._queue[0].arrived + self.max_wait - time.monotonic() if self._queue else None

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < self.max_batch:
            item = self._queue[0]
            size += len(item.query.encode(errors="replace"))
            if batch and (item.search != batch[0].search or size > BATCH_BYTES):
                break
            self._queue.popleft()
            if item.future.set_running_or_notify_cancel():
                batch.append(item)
        return batch

    def _forget_cancelled(self) -> None:
        self._queue = deque(item for item in self._queue if not item.future.cancelled())

    def _answer(self, batch: list[_Waiting]) -> bool:
        """Search a batch and set its futures; False for an empty one."""
        if not batch:
            return False
        started = time.monotonic()
        try:
            answers = batch[0].search([item.query for item in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(batch)} queries got {len(answers)} answers")
        except BaseException as error:  # a panic in a tokenizer's Rust is no Exception, and must not end the thread
            if len(batch) > 1:
                for item in batch:
                    self._answer([item])
                return True
            failure = SearchFailedError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            batch[0].future.set_exception(failure)
            return True
        if self._observe is not None:
            self._observe(len(batch), time.monotonic() - started)
        for item, answer in zip(batch, answers, strict=True):
            item.future.set_result(answer)
        return True
