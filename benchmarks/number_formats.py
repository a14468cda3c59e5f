"""Which number format the nano models should be trained in on this CPU: matrix products of their shapes, timed in both.

    python benchmarks/number_formats.py [--threads 2] [--repeat 20] [--out results/benchmarks]

A linear layer costs three products: forwards, back to its input, and the gradient of its weight. Printed: billions of
operations a second of all three together, in float32 and in bfloat16, the median of the repeats.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from tables import tell

from vrag_nb.nano.model import NanoSize
from vrag_nb.number_formats import quick_dtype

TOKENS = 4096  # rows: the squares and letters of a batch
FORMATS = (torch.float32, torch.bfloat16)


def layers(size: NanoSize) -> dict[str, tuple[int, int]]:
    """The linear layers that most of a training step is spent on: values in and out."""
    text, vision = size.text_width, size.vision_width
    wide = int(text * 8 / 3) // 32 * 32
    return {
        "attention of the language side": (text, text),
        "feed-forward of the language side": (text, wide),
        "attention of the tower": (vision, 3 * vision),
        "the tower's merger": (4 * vision, 4 * vision),
    }


def operations(inside: int, outside: int, dtype: torch.dtype, repeat: int) -> float:
    """Billions of additions and multiplications a second."""
    values, gradient = torch.randn(TOKENS, inside, dtype=dtype), torch.randn(TOKENS, outside, dtype=dtype)
    weight, seconds = torch.randn(outside, inside, dtype=dtype), []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        _ = torch.nn.functional.linear(values, weight), gradient @ weight, gradient.T @ values
        seconds.append(time.perf_counter() - started)
    return 3 * 2 * TOKENS * inside * outside / statistics.median(seconds[1:]) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--out", type=Path, help="folder for number_formats.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for name, (inside, outside) in layers(NanoSize()).items():
        speeds = [operations(inside, outside, dtype, options.repeat) for dtype in FORMATS]
        told = [f"{speed:.0f}" for speed in speeds]
        rows.append([f"{name} ({inside} to {outside})", *told, f"{speeds[1] / speeds[0]:.2f}"])
    cpu = torch.cpu.get_capabilities().get("cpu_name") or torch.cpu.get_capabilities().get("architecture")
    title = f"Billions of operations a second, {cpu}, {options.threads} threads"
    notes = f"The recipe trains in {str(quick_dtype()).removeprefix('torch.')} here."
    tell(title, ["layer", "float32", "bfloat16", "bfloat16 to float32"], rows, notes, options.out)


if __name__ == "__main__":
    main()
