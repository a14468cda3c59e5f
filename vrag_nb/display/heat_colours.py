"""The colours of a similarity map: over a page, whose print stays legible, and over white paper."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, to_rgb
from PIL import Image

_OPAQUE = 0.85


def _heat_colours() -> ListedColormap:
    """Nothing at 0, then pale yellow to dark red, more and more opaque: print stays legible where nothing matched."""
    colours = colormaps["YlOrRd"](np.linspace(0.15, 1, 256))
    colours[:, 3] = _OPAQUE * np.linspace(0, 1, 256) ** 0.7
    return ListedColormap(colours, "heat")


HEAT = _heat_colours()


def paint(values: np.ndarray, greatest: float, power: float = 1.0) -> Image.Image:
    """Values (h, w) as an RGBA image of w x h pixels: clear at 0 and below, darkest at `greatest` and above.

    power: below 1 it lifts small values.
    """
    shares = np.clip(values / max(greatest, 1e-9), 0, 1) ** power
    return Image.fromarray((HEAT(shares) * 255).round().astype(np.uint8), "RGBA")


def on_white(colours: ListedColormap = HEAT) -> ListedColormap:
    """The colours as they look over white paper, for a colour bar."""
    table = np.asarray(colours(np.linspace(0, 1, 256)))
    return ListedColormap(table[:, :3] * table[:, 3:] + np.array(to_rgb("white")) * (1 - table[:, 3:]), "heat on white")
