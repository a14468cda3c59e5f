"""Memory given back on a CPU: what is kept of shapes that do not come again.

Pages are of many sizes. oneDNN keeps a kernel for each of the last 1024 shapes of a product, and glibc what was freed
between larger pieces: a process that embedded pages in bfloat16 grew by 20 MB a page, and with both bounded by one (by
hand).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

KERNELS = "64"  # more than a page has shapes


def bound_kernels() -> None:
    """Few kernels are kept, where the environment does not say how many; to be called before the first product."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", KERNELS)


def give_back() -> None:
    """Freed memory goes back to the system, where the C library can be told so."""
    if trim := _trim():
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim  # glibc's
    except (AttributeError, OSError, TypeError):
        return None
