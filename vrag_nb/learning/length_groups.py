"""Rows of similar length in one batch: padded to the longest, trajectories of one crop and of four are half padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import Sampler

POOL = 8  # batches whose rows are sorted together: more saves more padding, and mixes the rows less


class LengthGroups(Sampler[int]):
    """Row numbers in an order whose every `batch_size` rows are of similar length, the batches in random order.

    batch_size: rows of a whole step, of all processes and all accumulated batches. epoch: says which one begins. The
    order follows from the seed and the epoch alone, so that a killed run goes on as an unbroken one. A batch that is
    not full comes last.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int, epoch: Callable[[], int]) -> None:
        self.lengths, self.batch_size, self.seed, self.epoch = list(lengths), batch_size, seed, epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch())
        order = torch.randperm(len(self), generator=generator).tolist()
        whole, rest = [], []
        for start in range(0, len(order), POOL * self.batch_size):
            pool = sorted(order[start : start + POOL * self.batch_size], key=lambda row: self.lengths[row])
            full = len(pool) // self.batch_size * self.batch_size
            whole += [pool[first : first + self.batch_size] for first in range(0, full, self.batch_size)]
            rest = pool[full:]
        for number in torch.randperm(len(whole), generator=generator).tolist():
            yield from whole[number]
        yield from rest
