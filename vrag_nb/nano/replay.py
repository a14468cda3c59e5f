"""Batches for a trainer that is faster than those who draw: what is not there yet is replaced by an earlier batch.

A GPU may take a step in less time than it takes many processes to draw its samples. Rather than wait it sees batches
again (data echoing, Choi et al., arXiv 1907.05550), drawn at random from the latest ones of the same group.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import TypeVar

Batch = TypeVar("Batch")


def _as_it_is(batch: Batch) -> Batch:
    return batch


class Replay(Iterator[Batch]):
    """Takes batches off an endless iterator in a thread, and yields one of every group in turn, without waiting once it
    has enough of the group.

    fresh: the share of batches handed out that had not been seen before.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        groups: Sequence[str],
        group: Callable[[Batch], str],
        *,
        prepare: Callable[[Batch], Batch] | None = None,
        vary: Callable[[Batch], Batch] | None = None,
        kept: int = 48,
        enough: int = 8,
        ahead: int = 16,
    ) -> None:
        """group: whose of the groups a batch is. prepare: done to a new batch in the thread that takes it, as to put it
        on a GPU. vary: done to one that is seen again. kept: batches of a group to draw from, `enough` of them before
        any is seen again. ahead: drawn, not taken.
        """
        self._prepare, self._vary = prepare or _as_it_is, vary or _as_it_is
        self._batches, self._group, self._enough, self._ahead = batches, group, enough, ahead
        self._turns = cycle(groups)
        self._new: defaultdict[str, deque[Batch]] = defaultdict(deque)
        self._seen: defaultdict[str, deque[Batch]] = defaultdict(partial(deque, maxlen=kept))
        self._changed, self._rng = threading.Condition(), random.Random(0)
        self._taken = self._handed = 0
        self._hungry = False  # a batch is waited for, of whatever group comes next: drawing may not pause
        self._error: BaseException | None = None
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def fresh(self) -> float:
        return self._taken / max(1, self._handed)

    def __next__(self) -> Batch:
        """A new batch of the next group, or one seen before. Raises RuntimeError where drawing has failed."""
        group = next(self._turns)
        with self._changed:
            new, seen = self._new[group], self._seen[group]
            self._handed += 1
            again = self._rng.choice(seen) if not new and len(seen) >= self._enough and not self._error else None
        return self._new_one(group) if again is None else self._vary(again)

    def _new_one(self, group: str) -> Batch:
        new = self._new[group]
        with self._changed:
            self._hungry = True
            self._changed.notify_all()
            while not new:
                if self._error:
                    raise RuntimeError("batches could not be drawn") from self._error
                self._changed.wait()
            self._hungry = False
            self._seen[group].append(new.popleft())
            self._taken += 1
            self._changed.notify_all()
            return self._seen[group][-1]

    def _take(self) -> None:
        try:
            for batch in map(self._prepare, self._batches):
                with self._changed:
                    while sum(map(len, self._new.values())) >= self._ahead and not self._hungry:
                        self._changed.wait()
                    self._new[self._group(batch)].append(batch)
                    self._changed.notify_all()
        except BaseException as error:  # told to the trainer, which would wait for ever
            with self._changed:
                self._error = error
                self._changed.notify_all()
