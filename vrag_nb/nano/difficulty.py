"""How hard drawings are: raised by the trainer, read by processes that draw ahead of it.

Whoever draws ahead would read whatever the trainer has come to by then, so that the same seed taught something else
whenever one of the two was slower. Here what is drawn is as hard as it had become when a certain number of batches had
been learned from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from math import ceil
from multiprocessing import Array

from torch.utils.data import get_worker_info


class Level:
    """A difficulty in 0..1, in steps of `step`; processes that inherit it share it."""

    def __init__(self, start: float = 0.0, step: float = 0.01) -> None:
        self.step = step
        rises = max(0, ceil((1 - start) / step)) + 1
        self._values = Array("d", [start, *[0.0] * rises])  # one after each rise; its lock is for both
        self._batches = Array("q", [0] * (rises + 1))  # after how many; the first number counts the rises

    @property
    def value(self) -> float:
        """The latest."""
        with self._values:
            return self._values[self._batches[0]]

    def rise(self, batches: int) -> None:
        """One step up, if there is one, after so many batches."""
        with self._values:
            rises = self._batches[0]
            if self._values[rises] < 1:
                self._values[rises + 1] = min(1.0, self._values[rises] + self.step)
                self._batches[rises + 1] = batches
                self._batches[0] = rises + 1

    def after(self, batches: int | None) -> float:
        """What it was after so many batches, or the latest where that is not known yet; None: the latest."""
        if batches is None:
            return self.value
        with self._values:
            known = range(self._batches[0], 0, -1)
            return self._values[next((rise for rise in known if self._batches[rise] <= batches), 0)]


def learned_from(ahead: int | None) -> Iterator[int | None]:
    """For one who draws batches, in turn with the other workers of a DataLoader: from how many has surely been learned
    when each of its own is drawn, where `ahead` of them are under way at once. None: that cannot be told."""
    if ahead is None:
        return repeat(None)
    worker = get_worker_info()
    return count(worker.id - ahead, worker.num_workers) if worker else count(-ahead)
