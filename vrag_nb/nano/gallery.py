"""Figures of notebook 00: what the nano models are trained on, drawn as they see it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image as PILImage

from vrag_nb.agent.environment import Session
from vrag_nb.agent.geometry import Box
from vrag_nb.agent.policy import Image
from vrag_nb.nano.cells import ACROSS, DOWN, READABLE, UNASKED, as_grid, cell_targets
from vrag_nb.nano.deck_tasks import DrawnPage
from vrag_nb.nano.glyphs import CHARACTERS, EMPTY, IGNORE, UNKNOWN, Glyph, slot_targets
from vrag_nb.nano.looking import Look, covered_squares
from vrag_nb.nano.samples import Sample, telling_words
from vrag_nb.nano.windows import SIDE, SQUARES, Window
from vrag_nb.plotting.figures import SERIES

FACTOR = 28
_ACROSS = 3  # images of a session in a row


def glyph_figure(image: PILImage.Image, glyphs: Sequence[Glyph]) -> Figure:
    """A drawing with its 28 x 28 squares, each labelled with the characters the glyph head should say."""
    columns, rows = image.width // FACTOR, image.height // FACTOR
    figure, axis = plt.subplots(figsize=(13, 13 * rows / columns))
    axis.imshow(image, extent=(0, image.width, image.height, 0))
    for index, slots in enumerate(slot_targets(glyphs, columns, rows).tolist()):
        x, y = index % columns * FACTOR, index // columns * FACTOR
        axis.add_patch(plt.Rectangle((x, y), FACTOR, FACTOR, fill=False, edgecolor="#0072b2", linewidth=0.6))
        word = "".join(CHARACTERS[slot - 2] if slot >= 2 else "?" for slot in slots if slot not in (EMPTY, IGNORE))
        label = "too small" if IGNORE in slots else word
        axis.text(x + 1, y + FACTOR - 1, label, fontsize=8, color="#d55e00", family="monospace")
    axis.set_axis_off()
    axis.set_title("Each square of 28 x 28 px and, in orange, the characters it is asked for")
    return figure


def cell_figure(windows: Sequence[Window]) -> Figure:
    """Windows above what their cells are asked for: a colour for each run of one letter, the letter once in it."""
    figure, axes = plt.subplots(2, len(windows), figsize=(4 * len(windows), 8.4), squeeze=False, layout="constrained")
    for (above, below), (image, letters) in zip(axes.T, windows, strict=True):
        above.imshow(image)
        grid = as_grid(cell_targets(letters, SQUARES, SQUARES), SQUARES, SQUARES)
        asked = np.ma.masked_where((grid == EMPTY) | (grid == UNASKED), grid)
        below.imshow(np.where(grid == UNASKED, 0.85, 1.0), cmap="gray", vmin=0, vmax=1, aspect=DOWN / ACROSS)
        below.imshow(
            asked % 20, cmap="tab20", vmin=0, vmax=19, alpha=0.6, aspect=DOWN / ACROSS, interpolation="nearest"
        )
        for one in letters:
            x, y = (one.x0 + one.x1) / 2, (one.y0 + one.y1) / 2
            if one.kind > UNKNOWN and one.y1 - one.y0 >= READABLE and 0 < x < SIDE and 0 < y < SIDE:
                middle = (x / ACROSS - 0.5, y / DOWN - 0.5)
                below.text(*middle, CHARACTERS[one.kind - 2], ha="center", va="center", fontsize=7)
        for axis in (above, below):
            axis.set_axis_off()
    axes[0, 0].set_title("What the tower is shown", loc="left")
    axes[1, 0].set_title("What each cell is asked for (grey: too small to ask)", loc="left")
    return figure


def marks_figure(question: str, views: Sequence[tuple[str, DrawnPage, Box | None, Look]]) -> Figure:
    """Windows of pages as the agent is shown them, with the squares that hold words of the question and its answer."""
    figure, axes = plt.subplots(1, len(views), figsize=(6.5 * len(views), 4), squeeze=False)
    asked = telling_words(question)
    for axis, (title, page, box, look) in zip(axes[0], views, strict=True):
        image, cues = page.window(box)[0], [place for word, place in page.words_in(box) if telling_words(word) & asked]
        columns, rows = image.width // FACTOR, image.height // FACTOR
        axis.imshow(image)
        for boxes, colour in ((cues, "#0072b2"), (look.boxes, "#d55e00")):
            for index in covered_squares(boxes, columns, rows).nonzero().flatten().tolist():
                corner = (index % columns * FACTOR, index // columns * FACTOR)
                axis.add_patch(plt.Rectangle(corner, FACTOR, FACTOR, color=colour, alpha=0.35, linewidth=0))
        axis.set_title(title)
        axis.set_axis_off()
    figure.suptitle(question, parse_math=False)
    return figure


def sample_figure(samples: Sequence[Sample]) -> Figure:
    """Training samples side by side: the question above the image, the answer to be learned below it."""
    figure, axes = plt.subplots(1, len(samples), figsize=(4 * len(samples), 3.2), squeeze=False)
    for axis, sample in zip(axes[0], samples, strict=True):
        question = next(part for part in sample.turns[0][1] if isinstance(part, str))
        axis.imshow(sample.images[0])
        axis.set_title(question, fontsize=10, wrap=True, parse_math=False)
        axis.set_xlabel(str(sample.turns[-1][1][0]), fontsize=10, color="#d55e00", parse_math=False)
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    return figure


def session_figure(session: Session) -> Figure:
    """The images of a session at the size the model sees them, each under the words that led to it."""
    steps: list[tuple[str, PILImage.Image | None]] = []
    for asked, answered in zip(session.conversation[1::2], [*session.conversation[2::2], None], strict=False):
        image = next((part for part in (answered.parts if answered else ()) if isinstance(part, Image)), None)
        steps.append((asked.text, image.pixels if image else None))
    rows = -(-len(steps) // _ACROSS)
    figure, axes = plt.subplots(rows, _ACROSS, figsize=(4.6 * _ACROSS, 4.6 * rows), squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
        axis.set_anchor("N")  # words of a row stand at one height
    for axis, (text, pixels) in zip(axes.flat, steps, strict=False):
        axis.set_title("\n".join(textwrap.wrap(text, 48)), fontsize=9, loc="left", parse_math=False)
        if pixels is not None:
            axis.imshow(pixels)
            axis.set_axis_on()
            axis.set_xlabel(f"{pixels.width} x {pixels.height} px, {pixels.width * pixels.height // FACTOR**2} tokens")
        axis.set(xticks=[], yticks=[])
    figure.suptitle(session.question.query, parse_math=False)
    figure.tight_layout(h_pad=2.5)
    return figure


def rotation_figure(settings: Mapping[str, tuple[float, Sequence[int]]], components: int = 32) -> Figure:
    """How far M-RoPE turns each component of a head from one square to the next, by axis.

    settings: name -> (base, components of time, height and width). components: half of a head's size.
    """
    figure, axes = plt.subplots(1, len(settings), figsize=(6 * len(settings), 3.2), sharey=True, squeeze=False)
    for axis, (name, (base, sections)) in zip(axes[0], settings.items(), strict=True):
        start = 0
        for share, label, colour in zip(sections, ("time", "height", "width"), SERIES, strict=False):
            numbers = range(start, start + share)
            axis.bar(numbers, [base ** (-number / components) for number in numbers], color=colour, label=label)
            start += share
        axis.set_yscale("log")
        axis.set(title=f"{name}: base {base:,.0f}", xlabel="component", ylabel="radians from one square to the next")
        axis.legend(frameon=False)
    figure.tight_layout()
    return figure
