"""What every figure of the project shares: one palette, one way to make a figure, one way to save it.

Colours are Okabe and Ito's (2008), told apart by people with any common colour-blindness; marks differ in line style as
well. Figures are made without pyplot, so that nothing piles up in a long run and no backend is needed; they show
themselves as a notebook cell's last value. Texts come from documents and models: they are never read as TeX, for a
price of "$3 to $5" is no formula.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from vrag_nb.files import write_bytes

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#aa4499", "#56b4e9", "#f0e442"
)  # fmt: skip
SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)
INK, MUTED, LINE = "#1b1b1b", "#5c5c5c", "#d4d4d4"
DPI = 110


class Picture(Figure):
    """A figure that shows itself as PNG in a notebook, without pyplot."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def new_figure(width: float, height: float) -> Picture:
    """An empty white figure; width and height in inches, DPI pixels each."""
    return Picture(figsize=(width, height), dpi=DPI, facecolor="white")


def words_alone(title: str, words: str) -> Picture:
    """A figure that says why there is nothing to draw."""
    figure = new_figure(6.0, 1.4)
    figure.text(0.02, 0.72, title, fontsize=13, weight="bold", color=INK, parse_math=False)
    figure.text(0.02, 0.3, words, fontsize=10, color=INK, parse_math=False)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG, exactly figsize * dpi pixels."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG, replacing atomically; returns the path."""
    write_bytes(path, png_bytes(figure))
    return path


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes placed in inches from the figure's top left corner."""
    full_width, full_height = figure.get_size_inches()
    box = (left / full_width, 1 - (top + height) / full_height, width / full_width, height / full_height)
    return figure.add_axes(box)


def text_at(figure: Figure, left: float, top: float, text: str, **style: Any) -> None:
    """Plain text placed in inches from the figure's top left corner."""
    full_width, full_height = figure.get_size_inches()
    style = {"ha": "left", "va": "top", "color": INK, "fontsize": 9, "parse_math": False, **style}
    figure.text(left / full_width, 1 - top / full_height, text, **style)


def wrap(text: str, inches: float, fontsize: float = 9, lines: int = 12, weight: str = "normal") -> str:
    """Text broken to fit `inches` of DejaVu Sans, cut with an ellipsis after `lines` lines."""

    def fits(row: str) -> bool:
        return _inches(row, fontsize, weight) <= inches

    found = (row for paragraph in text.strip().splitlines() for row in _rows(paragraph, fits))
    rows = list(islice(found, lines + 1))  # no more than are drawn: a model may write without an end
    if len(rows) > lines:
        last = rows[lines - 1]
        while last and not fits(f"{last} …"):
            last = last[:-1]
        rows = [*rows[: lines - 1], f"{last} …"]
    return "\n".join(rows)


def _rows(paragraph: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """As many words a row as fit; a word that is wider than a row is broken."""
    row = ""
    for word in paragraph.split():
        if row and not fits(f"{row} {word}"):
            yield row
            row = ""
        row = f"{row} {word}".lstrip()
        while len(row) > 1 and not fits(row):
            end = next(end for end in range(2, len(row) + 1) if not fits(row[:end])) - 1
            yield row[:end]
            row = row[end:]
    yield row


@lru_cache(maxsize=20_000)
def _inches(text: str, fontsize: float, weight: str) -> float:
    font = get_font(findfont(FontProperties(weight=weight)))
    font.set_size(fontsize, 72)
    font.set_text(text)
    return float(font.get_width_height()[0]) / 64 / 72


def line_height(fontsize: float) -> float:
    """Inches from one line of text to the next."""
    return fontsize * 1.2 / 72


def names_legend(owner: Axes | Figure, *entries: Any, **style: Any) -> None:
    """A frameless legend of names, which are never read as TeX; arguments as of `Axes.legend` and `Figure.legend`."""
    for text in owner.legend(*entries, frameon=False, **style).get_texts():
        text.set_parse_math(False)


def plain(axes: Axes) -> None:
    """A picture's axes: no ticks, a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(LINE)


def chart(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """A chart's axes: title, broken to their width, and labels, light horizontal grid, open on the right and on top."""
    figure = axes.get_figure(root=True)
    room = 1.1 * axes.get_position().width * (figure.get_figwidth() if figure else 1.0)  # a layout widens axes
    axes.set_title(wrap(title, room, 12, lines=3), fontsize=12, loc="left", color=INK, parse_math=False, pad=10)
    axes.set_xlabel(x, fontsize=10, color=MUTED, parse_math=False)
    axes.set_ylabel(y, fontsize=10, color=MUTED, parse_math=False)
    axes.tick_params(labelsize=9, colors=INK, length=0)
    axes.grid(axis="y", color=LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def share_ticks(axis: Axis) -> None:
    """An axis of shares in percent, without needless decimals: 0.4 reads "40%", 0.025 "2.5%"."""
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 4) + 0.0:g}%")  # + 0.0: a tick at -0.0 is "0%"
