"""Products of few shapes, for a CPU that multiplies in bfloat16.

oneDNN makes a kernel for every shape of a product and keeps it for the next of that shape. Made for a page's rows on a
Xeon with AMX it takes three to seven milliseconds, longer than the product (`benchmarks/recurring_shapes.py`). Pages
have all sizes, so hardly a shape comes twice, unless rows are added up to the next multiple of something.
"""

from __future__ import annotations

import torch


def blank_rows(count: int, multiple: int, weights: torch.Tensor) -> int:
    """How many rows to add to `count` that are to be multiplied by `weights`: up to the next multiple, or none where
    no kernels are made."""
    made = weights.device.type == "cpu" and weights.dtype == torch.bfloat16
    return -count % multiple if made else 0
