"""How fast a logged stage ran, against what its GPU can do.

A forward and a backward pass take about six operations a weight and token (Kaplan et al., arXiv 2001.08361). A square
is one token of the language model and four patches of the tower, so of N_text and N_vision weights a square costs

    C = 6 (N_text + 4 N_vision)

operations, and a token of text less: what is printed is an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vrag_nb.learning.curves import read_log

H100 = 989e12  # bfloat16 operations a second, dense, by its data sheet
PATCHES = 4  # a square


@dataclass(frozen=True)
class Throughput:
    """Of one run: tokens a second, the share of the card's peak that they come to, batches not seen before."""

    steps: int
    seconds: float
    tokens: float
    share: float
    fresh: float


def throughput(log: Path, text: float, vision: float, peak: float = H100) -> Throughput:
    """Of a log of `nano.training.Training` that counts tokens; text, vision: weights of the two halves.

    The first row is left out: workers start and decks are drawn before it. Raises ValueError for a log of fewer than
    two rows or without `tokens`.
    """
    rows = read_log(log)
    if len(rows) < 2 or "tokens" not in rows[-1]:
        raise ValueError(f"{log} does not count tokens: only stages perceive, settle and find do")
    first, last = rows[0], rows[-1]
    seconds = last["seconds"] - first["seconds"]
    tokens = (last["tokens"] - first["tokens"]) / seconds
    operations = 6 * (text + PATCHES * vision)
    return Throughput(last["step"], last["seconds"], tokens, tokens * operations / peak, last.get("fresh", 1.0))


def throughput_table(runs: Mapping[str, Throughput]) -> str:
    """Markdown, a row a run."""
    head = "| stage | steps | seconds | tokens a second | of the card's peak, at most | batches not seen before |"
    rows = [
        f"| {name} | {one.steps} | {one.seconds:.0f} | {one.tokens:,.0f} | {one.share:.2%} | {one.fresh:.2f} |"
        for name, one in runs.items()
    ]
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|", *rows])
