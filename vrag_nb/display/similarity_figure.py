"""Why a page was found, as one figure: where the words of a query found their matches, and what each gave to the score.

    match_figure(engine.similarity_map(query, hit.page_id), store.image(hit.page_id), query, title=hit.page_id)

Above, the page with the patches that won a token, coloured by what they add to the score, beside the score taken apart
by words. Below, one map for each of the words that tell most: the cosine of the word with every patch, its winning
patches framed. All maps share one scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from vrag_nb.display.heat_colours import HEAT, on_white
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import BLUE, INK, MUTED, PURPLE, axes_at, text_at, wrap
from vrag_nb.retrieval.embedders import SimilarityMap
from vrag_nb.retrieval.matches import Matches, Word

_WIDTH, _MARGIN, _GAP = 13.0, 0.3, 0.3  # inches
_PAGE, _BARS = (7.2, 5.0), 4.2  # the page above, at most; the bars beside it
_BAR, _LABELS = 0.16, 1.35  # a colour bar's width; room for the words of the bars
_MAP = 3.8  # a small map's greatest height
_MOST_BARS = 20
_NAME: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": BLUE, "parse_math": False}
_NAME["bbox"] = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": BLUE, "linewidth": 0.7, "alpha": 0.9}


def match_figure(
    similarity: SimilarityMap,
    page_image: Image.Image,
    query: str,
    *,
    words: int = 6,
    title: str = "",
) -> Figure:
    """See the module's docstring.

    similarity: of `query` with the page whose picture is `page_image`. words: how many get a map of their own. title:
    what the page is, such as its id. Raises ValueError when the map does not fit its tokens, or for no words.
    """
    if words < 1:
        raise ValueError(f"words {words} must be 1 or more")
    matches = Matches.of(similarity, query)
    telling = matches.telling(words)
    grey = page_image.convert("L")
    grey.thumbnail((1400, 1400))
    page = _fit(page_image, *_PAGE)
    columns = min(3 if page_image.width > page_image.height else 4, max(1, len(telling)))
    small = _fit(page_image, (_WIDTH - 2 * _MARGIN - 0.7 - columns * _GAP) / columns, _MAP)
    heading = wrap(f"“{query}”", _WIDTH - 2 * _MARGIN, 13, lines=2, weight="bold")
    top = _MARGIN + (heading.count("\n") + 1) * figures.line_height(13) + 0.62
    below = top + max(page[1], _bars_height(matches)) + 0.75
    rows = math.ceil(len(telling) / columns)
    figure = figures.new_figure(_WIDTH, below + rows * (small[1] + 0.42) + 0.1)
    text_at(figure, _MARGIN, _MARGIN, heading, fontsize=13, weight="bold")
    _draw_sum(figure, top, page, matches, telling, grey, title)
    if telling:
        _draw_maps(figure, below, small, columns, matches, telling, grey)
    return figure


def _fit(image: Image.Image, width: float, height: float) -> tuple[float, float]:
    scale = min(width / image.width, height / image.height)
    return image.width * scale, image.height * scale


def _draw_sum(
    figure: Figure,
    top: float,
    size: tuple[float, float],
    matches: Matches,
    telling: Sequence[Word],
    grey: Image.Image,
    title: str,
) -> None:
    """The page with its winning patches, and the score by words."""
    total = matches.contributions
    scale = PowerNorm(0.5, 0, max(float(total.max()), 1e-6))  # a few patches win much, and the others must be seen
    won = int((total > 0).sum())
    caption = f"{title + ': ' if title else ''}{won} of {total.size} patches win a token"
    text_at(figure, _MARGIN, top - 0.5, caption, fontsize=10, color=MUTED)
    axes = axes_at(figure, _MARGIN, top, *size)
    _lay(axes, grey, total, scale)
    named = [(word.text, next(iter(matches.cells(word)))) for word in telling]
    _frame(axes, [cell for _, cell in named], matches.grid, grey.size)
    _name(axes, named, matches.grid, size)
    bar = axes_at(figure, _MARGIN + size[0] + 0.12, top, _BAR, size[1])
    _scale(figure, bar, scale, "what the patch adds to the score")
    _draw_bars(figure, (_MARGIN + size[0] + 1.1, top), matches, telling)


def _draw_bars(figure: Figure, at: tuple[float, float], matches: Matches, telling: Sequence[Word]) -> None:
    """A bar a word, in query order; of a long query the greatest, the others together. `at`: left and top, inches."""
    shown = sorted(matches.words, key=lambda word: -matches.part(word))[:_MOST_BARS]
    rows = [(word.text, matches.part(word), _colour(word, telling)) for word in matches.words if word in shown]
    rest = [matches.part(word) for word in matches.words if word not in shown]
    rows += [(f"{len(rest)} other words", sum(rest), figures.LINE)] if rest else []
    left, top = at[0] + _LABELS, at[1]
    said = f"MaxSim by words: {matches.parts.sum():.2f} in all"
    text_at(figure, left - _LABELS, top - 0.24, said, fontsize=10, color=MUTED)
    axes = axes_at(figure, left, top, _BARS - _LABELS, _bars_height(matches))
    axes.barh(range(len(rows)), [part for _, part, _ in rows], 0.72, color=[colour for _, _, colour in rows])
    axes.invert_yaxis()
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [wrap(text, _LABELS, 8, lines=1) for text, _, _ in rows], parse_math=False)
    axes.set_xlim(0, 1.25 * max(part for _, part, _ in rows))
    for place, (_, part, _) in enumerate(rows):
        axes.annotate(f"{part:.2f}", (part, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.tick_params(labelsize=8, colors=INK, length=0, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _bars_height(matches: Matches) -> float:
    return min(5.0, 0.2 * min(len(matches.words), _MOST_BARS + 1))


def _colour(word: Word, telling: Sequence[Word]) -> str:
    return PURPLE if word.added else BLUE if word in telling else figures.MUTED


def _draw_maps(
    figure: Figure,
    top: float,
    size: tuple[float, float],
    columns: int,
    matches: Matches,
    telling: Sequence[Word],
    grey: Image.Image,
) -> None:
    """A small map a word."""
    scale = Normalize(0, 1)
    said = "Where the words that tell most look: cosine with every patch; framed, the patches that won their tokens"
    text_at(figure, _MARGIN, top - 0.32, said, fontsize=10, color=MUTED)
    for place, word in enumerate(telling):
        left = _MARGIN + place % columns * (size[0] + _GAP)
        line = top + place // columns * (size[1] + 0.42)
        text_at(
            figure, left, line, wrap(word.text, size[0] - 1.2, 10, 1, "bold"), fontsize=10, weight="bold", color=BLUE
        )
        text_at(figure, left + size[0], line, f"adds {matches.part(word):.2f}", color=MUTED, ha="right")
        axes = axes_at(figure, left, line + 0.22, *size)
        _lay(axes, grey, matches.heat(word), scale)
        _frame(axes, matches.cells(word), matches.grid, grey.size)
    bar = axes_at(figure, _MARGIN + columns * (size[0] + _GAP) - _GAP + 0.12, top + 0.22, _BAR, size[1])
    _scale(figure, bar, scale, "cosine, below 0 clear")


def _lay(axes: Axes, grey: Image.Image, values: np.ndarray, scale: Normalize) -> None:
    """Values (h, w) over the grey page, in pixels of the grey picture."""
    extent = (0.0, float(grey.width), float(grey.height), 0.0)
    axes.imshow(np.asarray(grey), cmap="gray", vmin=0, vmax=255, extent=extent, aspect="auto")
    axes.imshow(values, cmap=HEAT, norm=scale, extent=extent, aspect="auto", interpolation="nearest")
    figures.plain(axes)


def _frame(axes: Axes, cells: Iterable[tuple[int, int]], grid: tuple[int, int], size: tuple[int, int]) -> None:
    high, wide = size[1] / grid[0], size[0] / grid[1]
    for y, x in cells:
        axes.add_patch(Rectangle((x * wide, y * high), wide, high, fill=False, edgecolor=BLUE, linewidth=1.6))


def _name(
    axes: Axes, named: Sequence[tuple[str, tuple[int, int]]], grid: tuple[int, int], size: tuple[float, float]
) -> None:
    """Words beside their patches, each where it covers no other: on the right, the left, below or above.

    `size`: of the axes, in inches.
    """
    high, wide = size[1] / grid[0], size[0] / grid[1]
    taken: list[tuple[float, float, float, float]] = [(x * wide, y * high, wide, high) for _, (y, x) in named]
    for text, (y, x) in named:
        width, height = 0.075 * len(text) + 0.12, 0.19
        middle = y * high + (high - height) / 2
        places = [((x + 1) * wide + 0.04, middle), (x * wide - width - 0.04, middle)]
        places += [(x * wide, (y + 1) * high + 0.04), (x * wide, y * high - height - 0.04)]
        inside = [(left, top) for left, top in places if left >= 0 and top >= 0 and left + width <= size[0]]
        free = [place for place in inside if not any(_meet((*place, width, height), other) for other in taken)]
        left, top = (free or inside or places)[0]
        taken.append((left, top, width, height))
        where = ((left + width / 2) / size[0], 1 - (top + height / 2) / size[1])
        axes.text(*where, text, transform=axes.transAxes, **_NAME)


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Whether two rectangles (left, top, width, height) have a point in common."""
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


def _scale(figure: Figure, axes: Axes, scale: Normalize, label: str) -> None:
    bar = figure.colorbar(ScalarMappable(scale, on_white()), cax=axes)
    bar.set_label(label, fontsize=8.5, color=MUTED)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_edgecolor(figures.LINE)
