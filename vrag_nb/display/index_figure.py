"""Several indexes of one corpus in one figure: what they find, how fast they answer, what they weigh.

index_figure(compare_indexes(engine, questions))
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from vrag_nb.evaluation.index_comparison import ComparedIndex
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import BLUE, GREEN, INK, MUTED, ORANGE, axes_at, text_at, wrap

_NAMES, _PANEL, _GAP, _MARGIN = 2.0, 3.1, 0.45, 0.3  # inches
_ROW = 0.5


def index_figure(rows: Sequence[ComparedIndex], title: str = "Indexes compared") -> Figure:
    """Three panels with one row an index: recall with 95% intervals, queries a second, megabytes on disk.

    The latter two are on logarithmic scales, so they are dots: a bar's length would mean nothing. Raises ValueError for
    no rows.
    """
    if not rows:
        raise ValueError("there are no indexes to draw")
    top = _MARGIN + 0.95
    height = _ROW * len(rows)
    figure = figures.new_figure(2 * _MARGIN + _NAMES + 3 * _PANEL + 2 * _GAP, top + height + 0.65)
    text_at(figure, _MARGIN, _MARGIN, title, fontsize=13, weight="bold")
    said = f"{rows[0].pages} pages, {rows[0].recall.n} questions, each asked alone"
    text_at(figure, _MARGIN, _MARGIN + 0.28, said, fontsize=10, color=MUTED)
    panels = [axes_at(figure, _MARGIN + _NAMES + place * (_PANEL + _GAP), top, _PANEL, height) for place in range(3)]
    found = [row.recall.value or 0.0 for row in rows]
    speeds, sizes = [row.queries_a_second for row in rows], [row.bytes / 1e6 for row in rows]
    panels[0].barh(range(len(rows)), found, 0.6, color=GREEN)
    _values(panels[0], found, [f"{value:.0%}" for value in found])
    _intervals(panels[0], rows)
    figures.chart(panels[0], f"Recall@{rows[0].cut}", x="share of the gold pages found: more is better")
    panels[1].plot(speeds, range(len(rows)), "o", color=BLUE, markersize=9)
    _values(panels[1], speeds, [_short(value) for value in speeds])
    figures.chart(panels[1], "Speed", x="queries a second: more is better")
    panels[2].plot(sizes, range(len(rows)), "o", color=ORANGE, markersize=9)
    _values(panels[2], sizes, [f"{_short(value)} MB" for value in sizes])
    figures.chart(panels[2], "Size", x="megabytes on disk: less is better")
    for place, axes in enumerate(panels):
        _rows(axes, [wrap(row.name, _NAMES - 0.1, 9, lines=2) for row in rows] if place == 0 else [], len(rows))
    panels[0].set_xlim(0, 1.18)
    panels[0].set_xticks([0, 0.25, 0.5, 0.75, 1])
    figures.share_ticks(panels[0].xaxis)
    _logarithmic(panels[1], speeds)
    _logarithmic(panels[2], sizes)
    return figure


def _values(axes: Axes, values: Sequence[float], labels: Sequence[str]) -> None:
    for place, (value, label) in enumerate(zip(values, labels, strict=True)):
        axes.annotate(label, (value, place), (8, 0), textcoords="offset points", va="center", fontsize=9, color=INK)


def _intervals(axes: Axes, rows: Sequence[ComparedIndex]) -> None:
    """Drawn in the lower half of a bar, so that the value beside it stays legible."""
    for place, row in enumerate(rows):
        if row.recall.low is not None and row.recall.high is not None:
            axes.plot([row.recall.low, row.recall.high], [place + 0.22] * 2, color=INK, linewidth=1.4, marker="|")


def _rows(axes: Axes, names: Sequence[str], count: int) -> None:
    axes.set_ylim(count - 0.45, -0.55)
    axes.set_yticks(range(count), names or [""] * count, parse_math=False)
    axes.tick_params(axis="y", labelsize=9)
    axes.grid(axis="both", color=figures.LINE, linewidth=0.7)


def _logarithmic(axes: Axes, values: Sequence[float]) -> None:
    """Decades as plain numbers, with room for the value beside the longest bar."""
    low, high = min(values) / 4, max(values)
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.35)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.set_major_locator(LogLocator(numticks=5))  # more of them would run into each other
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _short(value: float) -> str:
    """Two or three digits, no more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
