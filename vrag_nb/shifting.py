"""An image moved by a few pixels, so that it falls otherwise on a vision tower's grid of squares.

Whether a small tower reads a letter right depends on how the letter lies on the grid. A retriever that sees a page at
several places (`retrieval.nano_embedders`) and a policy that reads an image several times (`agent.views`) depend on it
less.
"""

from __future__ import annotations

import numpy as np
from PIL import Image


def shifted(image: Image.Image, across: int, down: int) -> Image.Image:
    """The image moved by so many pixels to the right and down (less than 0: left, up), its edge repeated behind it."""
    if not (across or down):
        return image
    pixels = np.asarray(image)
    rows = np.clip(np.arange(image.height) - down, 0, image.height - 1)
    columns = np.clip(np.arange(image.width) - across, 0, image.width - 1)
    return Image.fromarray(pixels[rows][:, columns])
