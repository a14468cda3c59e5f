"""Images in figures: a picture with its marks and its caption, and a legend of what the marks mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image

from vrag_nb.display.scenes import Mark, MarkKind
from vrag_nb.plotting.figures import BLUE, GREEN, MUTED, PURPLE, VERMILION, axes_at, plain, text_at

TALLEST = 3.4  # inches, of a picture in a row

LineStyle = Literal["-", "--", "-.", ":"]

MARK_STYLES: dict[MarkKind, tuple[str, LineStyle, str]] = {  # colour, line style, words for the legend
    "model": (VERMILION, "-", "model's crop"),
    "written": (VERMILION, ":", "box as the model wrote it"),
    "before": (PURPLE, "--", "what the model saw before"),
    "gold": (GREEN, "--", "gold region"),
    "yours": (BLUE, "-.", "your crop"),
}


@dataclass(frozen=True)
class Panel:
    """An image with its marks and its caption, to be fitted into a column; gold frames it."""

    image: Image.Image
    marks: list[Mark]
    caption: str
    gold: bool

    def fit(self, width: float, height: float = TALLEST) -> tuple[float, float]:
        """(width, height) in inches: as wide as the column, never taller than `height`."""
        scale = min(width / self.image.width, height / self.image.height)
        return self.image.width * scale, self.image.height * scale


def draw_panel(figure: Figure, left: float, top: float, panel: Panel, size: tuple[float, float]) -> None:
    """Draw a panel `size` inches large, its caption below."""
    axes = axes_at(figure, left, top, *size)
    axes.imshow(np.asarray(panel.image), interpolation="antialiased", aspect="auto")
    draw_marks(axes, panel.marks, panel.image.width, panel.image.height)
    plain(axes)
    if panel.gold:
        for spine in axes.spines.values():
            spine.set(color=GREEN, linewidth=2)
    caption = panel.caption + ("  ★ gold page" if panel.gold else "")
    text_at(figure, left, top + size[1] + 0.06, caption, fontsize=8.5, color=GREEN if panel.gold else MUTED)


def legend(figure: Figure, marks: Sequence[Mark]) -> None:
    """What the marks mean, in the bottom right corner; nothing without marks."""
    kinds = [kind for kind in MARK_STYLES if any(mark.kind == kind for mark in marks)]
    if not kinds:
        return
    width, height = figure.get_size_inches()
    lines = [Line2D([], [], color=MARK_STYLES[k][0], linestyle=MARK_STYLES[k][1], linewidth=1.8) for k in kinds]
    labels = [MARK_STYLES[kind][2] for kind in kinds]
    anchor = (1 - 0.3 / width, 0.14 / height)
    figure.legend(lines, labels, loc="lower right", bbox_to_anchor=anchor, frameon=False, fontsize=9, ncols=len(kinds))


def draw_marks(axes: Axes, marks: Sequence[Mark], width: float, height: float) -> None:
    """Draw marks on an image shown with `imshow` whose pixels are width x height."""
    for mark in marks:
        colour, style, _ = MARK_STYLES[mark.kind]
        x0, y0, x1, y1 = mark.box
        corner = (x0 * width - 0.5, y0 * height - 0.5)
        size = ((x1 - x0) * width, (y1 - y0) * height)
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colour, linestyle=style, linewidth=1.8))
