"""Arrays that stay on disk until asked for, without an open file each.

A large index is more than a thousand shards, and processes may usually hold 1,024 files open. Python's `mmap`, and
with it `np.load(..., mmap_mode="r")`, keeps a file's descriptor for as long as the map lives; a map does not need it.
torch gives it back once the file is mapped, so that the number of shards is bounded by the kernel's number of maps
(65,530 on Linux unless told otherwise) and by nothing that is usually low.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch


def map_array(path: Path) -> np.ndarray:
    """The array of a `.npy` file, memory-mapped and read-only.

    A file that is deleted or replaced meanwhile stays readable here. Raises FileNotFoundError, and ValueError naming
    the file when it holds no whole array of numbers in rows, OSError when the kernel has no map left.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, by_columns, dtype = read_header[version](file)
            start = file.tell()
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is no array file: {error}") from None
    size = int(np.prod(shape)) * dtype.itemsize
    if by_columns or dtype.hasobject or path.stat().st_size < start + size:
        raise ValueError(f"{path}: not {shape} of {dtype}, row after row")
    try:
        # private: the file cannot be written through the map, and need not be writable
        mapped = torch.from_file(str(path), shared=False, size=start + size, dtype=torch.uint8)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise OSError(f"{path} cannot be mapped: {reason}; larger shards (shard_pages) need fewer maps") from None
    array = mapped.numpy()[start:].view(dtype).reshape(shape)
    array.flags.writeable = False
    return array
