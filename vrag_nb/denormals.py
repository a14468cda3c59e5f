"""Denormal numbers, which a CPU takes a hundred times as long for.

A trained model is full of them: the probability of a token that it is sure is another, and all gradients through it.
With them taken for zero a training step of the nano agent is a fifth to a quarter shorter (`benchmarks/denormals.py`),
one of its vision tower alone, which is asked for thousands of letters at once, nearly by half.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Let this thread, and those it starts within, take numbers below 1e-38 for zero; on x86 and ARM only.

    Afterwards the thread counts as before: other libraries may rely on it (hypothesis checks).
    """
    before = bool((torch.full((1,), 1e-40) * 1.0 == 0).item())
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
