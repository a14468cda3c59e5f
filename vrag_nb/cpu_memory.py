"""Memory on a CPU: freed memory is kept for the next tensor for a while, and what does not come again is given up.

A page takes a hundred megabytes of short-lived tensors. Left to itself glibc returns each to the system and gets it
again as 20,000 pages that have to be cleared first, a seventh of the time of embedding. Told to keep them it grows with
every page, as pages are of many sizes, and so does oneDNN, which keeps a kernel for each of the last 1024 shapes of a
product: a process that embedded pages in bfloat16 grew by 20 MB a page. With kernels bounded, and freed memory given
back every few seconds, it grows by one (all by hand).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache

KERNELS = "256"  # more than a page has shapes, or a training step
KEPT = 1 << 29  # bytes at the end of the heap, freed and not given back
PIECES = 1 << 25  # bytes: what is larger, glibc always takes from the system and gives back to it
SECONDS = 5.0  # between one giving back and the next
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names, malloc.h

_given_back = [0.0]  # when


def bound_memory() -> None:
    """Few kernels are kept, where the environment does not say how many, and freed memory is; to be called before the
    first product."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)
    if option := _of_glibc("mallopt"):
        option(M_MMAP_THRESHOLD, PIECES)
        option(M_TRIM_THRESHOLD, KEPT)


def give_back() -> None:
    """Freed memory goes back to the system, where the C library can be told so, every few SECONDS."""
    trim, now = _of_glibc("malloc_trim"), time.monotonic()
    if trim and now - _given_back[0] > SECONDS:
        _given_back[0] = now
        trim(0)


@cache
def _of_glibc(name: str) -> Callable[..., int] | None:
    """A function of the C library; None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
