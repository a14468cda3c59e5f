"""The order in which GRPO takes its questions: a killed run goes on with those an unbroken one would have taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trl.trainer.utils import RepeatSampler


class QuestionOrder(RepeatSampler):
    """TRL's order of rows, groups side by side, drawn anew from the seed and the epoch at the start of each.

    TRL's own (1.16) draws one order after another from one generator, so that a run which is resumed in its second
    epoch takes the questions of the first again. `epoch` says which one begins; `options` are those of RepeatSampler.
    """

    def __init__(self, rows: Any, seed: int, epoch: Callable[[], int], **options: Any) -> None:
        super().__init__(rows, **options)
        self.first_seed, self.epoch = seed, epoch

    def __iter__(self) -> Iterator[int]:
        # Far apart: else the second epoch of one seed is the first of the next, which counts as another run.
        self.generator.manual_seed(self.first_seed * 1_000_003 + self.epoch())
        yield from super().__iter__()
