"""What attention costs a nano training step: PyTorch's fused kernel against `block_attention`, forward and backward.

    python benchmarks/nano_attention.py [--threads 2] [--rounds 7]

Prints the best of `--rounds` rounds in milliseconds, for lengths that training meets: a search without an image, a page
with its questions, a page for the retriever. Rounds alternate between the two, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from vrag_nb.attention import block_attention

CASES = ((24, 200), (12, 640), (12, 890))  # (batch, tokens)
HEADS, WIDTH = 4, 64
Attention = Callable[..., torch.Tensor]


def fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """As transformers calls it for a padded batch: with a boolean mask (batch, 1, n, n)."""
    causal = torch.ones(mask.shape[1], mask.shape[1], dtype=torch.bool).tril() & mask[:, None, None]
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=causal)


def blocks(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return block_attention(nn.Identity(), query, key, value, mask)[0].transpose(1, 2)


def milliseconds(attention: Attention, batch: int, length: int) -> float:
    """One forward and backward pass."""
    query, key, value = (torch.randn(batch, HEADS, length, WIDTH).bfloat16().requires_grad_() for _ in range(3))
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0, -length // 8 :] = False
    started = time.perf_counter()
    attention(query, key, value, mask).sum().backward()
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    table = Table(
        "batch", "tokens", "fused, ms", "block_attention, ms", "ratio", title="attention, forward and backward"
    )
    for batch, length in CASES:
        times: dict[Attention, list[float]] = {fused: [], blocks: []}
        for _ in range(arguments.rounds):
            for attention in times:
                times[attention].append(milliseconds(attention, batch, length))
        usual, ours = min(times[fused]), min(times[blocks])
        table.add_row(str(batch), str(length), f"{usual:.0f}", f"{ours:.0f}", f"{usual / ours:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
