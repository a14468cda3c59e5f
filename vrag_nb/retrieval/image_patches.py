"""Images as the nano models' towers take them: patches of one frame, a byte a value, scaled where they are used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

MERGE = 2  # patches a square, both ways


def packed_patches(images: Sequence[Image.Image], patch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(patches, 3 * patch ** 2) uint8 in a processor's order, and (images, 3) grids, of images in whole squares."""
    packed, grids = [], []
    for image in images:
        pixels = np.asarray(image.convert("RGB"))
        rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
        parts = pixels.reshape(rows // MERGE, MERGE, patch, columns // MERGE, MERGE, patch, 3)
        packed.append(parts.transpose(0, 3, 1, 4, 6, 2, 5).reshape(rows * columns, -1))
        grids.append((1, rows, columns))
    return torch.from_numpy(np.concatenate(packed)), torch.tensor(grids)


def scaled_patches(packed: torch.Tensor) -> torch.Tensor:
    """Float values as a nano processor scales them: white is 0, black -3."""
    return packed.float().sub_(255).mul_(3 / 255)  # in place: of a page in all its views these are large
