"""The figures of a report, from its tables: what the tables say, to be seen at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vrag_nb.evaluation.tables import Table
from vrag_nb.plotting import figures, plots
from vrag_nb.plotting.figures import SERIES

FEW = 10  # questions: points of fewer are hollow
_SIGNS = "os^"  # of points, once the colours are used up
_LINES = ("-", "--", ":", "-.")


def report_figures(tables: Mapping[str, Table]) -> dict[str, Figure]:
    """The figures by name, as far as there are tables (by name) for them."""
    found: dict[str, Figure] = {}
    if "table_1" in tables:
        by_type = estimates(tables["table_1"])
        whole = {name: {"accuracy": row["all"]} for name, row in by_type.items() if "all" in row}
        found["accuracy_by_system"] = plots.accuracy_by_system(whole)
        kinds = {name: {"by_type": {k: v for k, v in row.items() if k != "all"}} for name, row in by_type.items()}
        found["accuracy_by_type"] = plots.accuracy_by_type(kinds)
    if "gold_pages_by_turn" in tables:
        found["gold_pages_by_turn"] = curves(tables["gold_pages_by_turn"], "Gold pages shown", "by turn", "gold pages")
    if "accuracy_by_actions" in tables:
        title = "Accuracy by number of actions (95% intervals)"
        found["accuracy_by_actions"] = points(tables["accuracy_by_actions"], title, "actions", "accuracy")
    if "accuracy_by_gold_pages" in tables:
        pages = {name: {"by_type": row} for name, row in estimates(tables["accuracy_by_gold_pages"]).items()}
        found["accuracy_by_gold_pages"] = plots.accuracy_by_type(pages, "Accuracy by pages of evidence")
    return found


def estimates(table: Table) -> dict[str, dict[str, Any]]:
    """A table's estimates by row and column, those of no question left out."""
    titles = [column.title for column in table.columns]
    rows = {str(row[0]): dict(zip(titles[1:], row[1:], strict=True)) for row in table.rows}
    return {
        name: {title: cell for title, cell in row.items() if isinstance(cell, Mapping) and cell["n"]}
        for name, row in rows.items()
    }


def curves(table: Table, title: str, x: str, y: str) -> Figure:
    """A line a row over the columns' numbers. Lines that lie on each other stay visible: the later ones are dashed."""
    figure, axes = _axes(title, x, y)
    for place, row in enumerate(table.rows):
        known = [(number, cell) for number, cell in zip(_numbers(table), row[1:], strict=True) if cell is not None]
        style: dict[str, Any] = {"color": SERIES[place % len(SERIES)], "linestyle": _LINES[place % len(_LINES)]}
        axes.plot(*zip(*known, strict=True), label=_name(row[0]), marker="o", markersize=4, linewidth=1.8, **style)
    _finish(axes, len(table.rows))
    return figure


def points(table: Table, title: str, x: str, y: str) -> Figure:
    """Estimates with their intervals, a colour a row, side by side; hollow where there are fewer than `FEW`."""
    figure, axes = _axes(title, x, y)
    rows, count = estimates(table), len(table.rows)
    for place, (name, row) in enumerate(rows.items()):
        colour, shift = SERIES[place % len(SERIES)], 0.5 * ((place + 0.5) / count - 0.5)
        sign = _SIGNS[place // len(SERIES) % len(_SIGNS)]
        for number, column in zip(_numbers(table), table.columns[1:], strict=True):
            one = row.get(column.title)
            if one is None:
                continue
            spread = [[max(0, one["value"] - one["low"])], [max(0, one["high"] - one["value"])]]
            face = colour if one["n"] >= FEW else "white"
            axes.errorbar(number + shift, one["value"], spread, fmt=sign, color=colour, markerfacecolor=face, capsize=2)
        axes.plot([], [], sign, color=colour, label=_name(name))
    _finish(axes, count)
    return figure


def _numbers(table: Table) -> Sequence[int]:
    """What a table's columns count: "turn 3" and "3 actions" are 3."""
    return [int(next(word for word in column.title.split() if word.isdigit())) for column in table.columns[1:]]


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = figures.new_figure(7.5, 4.2)
    axes = figure.subplots()
    figures.chart(axes, title, x, y)
    axes.set_ylim(-0.02, 1.04)
    figures.share_ticks(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    return figure, axes


def _finish(axes: Axes, count: int) -> None:
    columns = min(4, count)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
    figures.names_legend(axes, fontsize=9, ncols=columns, **below)


def _name(cell: object) -> str:
    return str(cell).replace("_", " ")
