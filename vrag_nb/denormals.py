"""Denormal numbers, which a CPU takes a hundred times as long for.

A trained model is full of them: the probability of a token that it is sure is another, and all gradients through it. A
training step of a nano model takes nearly half as long with them taken for zero (`benchmarks/denormals.py`).
"""

from __future__ import annotations

import torch


def flush_denormals() -> None:
    """Let this thread, and those it starts, take numbers below 1e-38 for zero; on x86 and ARM only."""
    torch.set_flush_denormal(True)
