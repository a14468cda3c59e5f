"""Batches for a trainer that is faster than those who draw: what is not there yet is replaced by an earlier batch.

A GPU takes a step in the time in which sixteen processes draw a part of its samples. Rather than wait it sees batches
again (data echoing, Choi et al., arXiv 1907.05550), drawn at random from the latest ones of the same group.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


class Replay(Generic[Batch]):
    """Takes batches off an endless iterator in a thread; `next(group)` never waits once it has some of each group.

    fresh: the share of batches handed out that had not been seen before.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        group: Callable[[Batch], str],
        *,
        kept: int = 48,
        enough: int = 8,
        ahead: int = 4,
        seed: int = 0,
    ) -> None:
        """kept: batches of a group to draw from, `enough` of them before any is seen again. ahead: drawn, not taken."""
        self._batches, self._group, self._kept, self._enough, self._ahead = batches, group, kept, enough, ahead
        self._new: dict[str, queue.Queue[Batch]] = {}
        self._seen: dict[str, deque[Batch]] = {}
        self._lock, self._rng = threading.Lock(), random.Random(seed)
        self._taken = self._handed = 0
        self._error: BaseException | None = None
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def fresh(self) -> float:
        return self._taken / max(1, self._handed)

    def next(self, group: str) -> Batch:
        """Raises RuntimeError where drawing has failed."""
        new, seen = self._queue(group), self._seen.setdefault(group, deque(maxlen=self._kept))
        self._handed += 1
        while True:
            if self._error:
                raise RuntimeError("batches could not be drawn") from self._error
            try:
                batch = new.get(timeout=0.001 if len(seen) >= self._enough else 1.0)
            except queue.Empty:
                if len(seen) >= self._enough:
                    return self._rng.choice(seen)
                continue
            self._taken += 1
            seen.append(batch)
            return batch

    def _queue(self, group: str) -> queue.Queue[Batch]:
        with self._lock:
            return self._new.setdefault(group, queue.Queue(self._ahead))

    def _take(self) -> None:
        try:
            for batch in self._batches:
                self._queue(self._group(batch)).put(batch)
        except BaseException as error:  # told to the trainer, which would wait for ever
            self._error = error
