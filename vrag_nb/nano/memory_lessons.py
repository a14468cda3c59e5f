"""VimRAG's protocol as streams of samples, for a recipe to teach beside others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from vrag_nb.nano.aligning import Stream
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.memory_tasks import FilmSteps, MemorySteps
from vrag_nb.nano.samples import Sample


def memory_streams(pool: DeckPool, batches: Sequence[int]) -> list[Stream]:
    """Steps over pages, steps in words alone, most of them of long questions, and steps over films, so many of each."""
    draws: dict[str, Callable[[random.Random, float], Sample | list[Sample]]] = {
        "memory": MemorySteps(pool, long=0.3),
        "words": MemorySteps(pool, long=0.8, in_words=True),
        "film": FilmSteps(pool),
    }
    return [Stream(name, draw, size, buckets=4) for (name, draw), size in zip(draws.items(), batches, strict=True)]
