"""Plots of an evaluation and of a training run, from the files these write.

The `metrics.json` of an evaluation holds `{value, low, high, n}` for every figure: the mean, its 95% bootstrap interval
and the number of questions. `accuracy_by_system` and `accuracy_by_type` take its `answers` part, `recall_bars` its
`retrieval` part, or several of those by name. `training_curves` takes a log of one row per step (CSV or JSON lines),
`lesson_curves` that of a nano stage, `seed_bands` the curves of several seeds, `count_bars` labels. All return a
`Figure`; `figures.save(figure, path)` writes it as PNG. `stacked_bars` draws counts on axes that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import INK, MUTED, SERIES

_UNITS = {"difficulty": "0 to 1", "learning_rate": "rate", "tokens": "tokens so far"}
_HATCHES = ("", "//", "..")  # of bars, likewise
STYLES = ("-", "--", ":")  # of lines, once the colours of SERIES are used up
Estimate = Mapping[str, float]  # {value, low, high, n}


def accuracy_by_system(answers: Mapping[str, Mapping[str, Any]], title: str = "Answer accuracy by system") -> Figure:
    """Bars with 95% intervals, a bar per system. answers: system -> {"accuracy": {value, low, high, n}}."""
    estimates = {_name(system): result["accuracy"] for system, result in answers.items()}
    _require(estimates, "systems")
    figure = figures.new_figure(max(5.5, 1.6 * len(estimates)), 4.2)
    axes = _chart(figure, _counted(title, estimates.values()), "", "accuracy", list(estimates.values()))
    _bars(axes, list(range(len(estimates))), list(estimates.values()), 0.6, {"color": SERIES[0]})
    axes.set_xticks(range(len(estimates)), [figures.wrap(name, 1.3, 9) for name in estimates], parse_math=False)
    return figure


def accuracy_by_type(
    answers: Mapping[str, Mapping[str, Any]], title: str = "Answer accuracy by question type"
) -> Figure:
    """Grouped bars, a group per question type, a colour per system. answers: system -> {"by_type": {type: one}}."""
    return _grouped({_name(system): result["by_type"] for system, result in answers.items()}, title, "accuracy")


def recall_bars(retrieval: Mapping[str, Any], title: str = "Retrieval", metrics: Sequence[str] | None = None) -> Figure:
    """Grouped bars of recall@k (and nDCG@k). retrieval: metric -> estimate, or retriever -> metric -> estimate; those
    of no question are left out, and words are in the place of none at all."""
    by_name = retrieval if not any("value" in one for one in retrieval.values()) else {"": retrieval}
    chosen = {
        name: {metric: one for metric, one in result.items() if metrics is None or metric in metrics}
        for name, result in by_name.items()
    }
    counted = {name: {key: one for key, one in result.items() if one["n"]} for name, result in chosen.items()}
    if not any(counted.values()):
        return figures.words_alone(title, "No question names its gold pages: there is nothing to count.")
    return _grouped(counted, title, "score")


def training_curves(
    log: Path | str | pd.DataFrame,
    metrics: Sequence[str] | None = None,
    *,
    x: str = "step",
    smooth: int = 1,
    title: str = "Training",
) -> Figure:
    """One small chart per metric over the steps.

    log: a CSV or JSON-lines file, or a frame, with a column `x`; a row may lack some metrics. metrics: which columns;
    None for all numeric ones; those called accuracy or rate are shares, in percent. smooth: rows of a centred running
    mean, drawn over the raw values. Raises ValueError that names the log when it lacks a column.
    """
    frame = _read_log(log)
    if metrics is None:
        metrics = [column for column in frame.select_dtypes("number").columns if column != x]
    missing = [column for column in (x, *metrics) if column not in frame.columns]
    if missing or not metrics:
        place = "the log" if isinstance(log, pd.DataFrame) else log
        raise ValueError(f"{place} has no {', '.join(missing) or 'numeric column'}; it has {', '.join(frame.columns)}")
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure = figures.new_figure(4.3 * columns, 0.4 + 2.9 * rows)
    figure.suptitle(title, x=0.02, ha="left", fontsize=13, weight="bold", color=INK, parse_math=False)
    for axes, metric in zip(figure.subplots(rows, columns, squeeze=False).flat, metrics, strict=False):
        _curve(axes, frame[[x, metric]].dropna(), x, metric, smooth)
    for axes in figure.axes[len(metrics) :]:
        axes.set_visible(False)
    figure.tight_layout()
    return figure


def lesson_curves(log: Path | str | pd.DataFrame, *, smooth: int = 5, title: str = "Training") -> Figure:
    """The log of a stage of the nano recipe (`nano.training.Training`): a chart for metrics whose names begin alike.

    `match/crop` and `match/page` are two lines of the chart `match`, running means over `smooth` rows. Where `phase`
    counts a further part of the training a dotted line stands, and lines begin anew; steps that are counted from 1
    again are drawn after those before. Raises ValueError for a log without `step` or without figures.
    """
    frame = _counted_on(_read_log(log))
    columns = [name for name in frame.select_dtypes("number").columns if name not in ("step", "seconds", "phase")]
    if "step" not in frame.columns or not columns:
        raise ValueError(f"the log of {title} has no step, or nothing beside; it has {', '.join(frame.columns)}")
    groups: dict[str, list[str]] = {}
    for column in columns:
        groups.setdefault(column.partition("/")[0], []).append(column)
    phases = [part for _, part in frame.groupby(frame["phase"] if "phase" in frame.columns else [0] * len(frame))]
    rows = -(-len(groups) // 2)
    figure = figures.new_figure(13.0, 0.5 + 3.1 * rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, weight="bold", color=INK, parse_math=False)
    for axes, (name, members) in zip(figure.subplots(rows, 2, squeeze=False).flat, groups.items(), strict=False):
        unit = _UNITS.get(name, "nats" if name.endswith("loss") else "share")
        figures.chart(axes, _name(name), "step", unit)
        for number, column in enumerate(members):
            style = {"color": SERIES[number % len(SERIES)], "linestyle": STYLES[number // len(SERIES) % len(STYLES)]}
            for part in phases:
                known = part[["step", column]].dropna()
                mean = known[column].rolling(smooth, center=True, min_periods=1).mean()
                axes.plot(known["step"], mean, linewidth=1.4, label=_name(column.partition("/")[2]), **style)
        for part in phases[1:]:
            axes.axvline(part["step"].iloc[0], color=MUTED, linestyle=":", linewidth=0.8)
        axes.set_xlim(0, frame["step"].max())
        if unit == "share":
            _share_axis(axes)
        if len(members) > 1:
            labelled = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
            figures.names_legend(axes, labelled.values(), labelled, fontsize=8, **beside)
    for axes in figure.axes[len(groups) :]:
        axes.set_visible(False)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    return figure


def seed_bands(
    panels: Mapping[str, Mapping[str, Sequence[tuple[int, Sequence[float]]]]],
    x: str = "step",
    shares: Container[str] = (),
) -> Figure:
    """Several seeds' curves, a chart a panel: a line through their mean, a band from the lowest to the highest.

    panels: title -> series -> (step, the seeds' values); a series keeps its colour from panel to panel. shares: titles
    of the panels whose values are shares, shown in percent. Raises ValueError for no panels.
    """
    _require(panels, "curves")
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    figure = figures.new_figure(4.4 * len(panels), 3.9)
    for axes, (title, series) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        figures.chart(axes, title, x, "mean of the seeds, lowest to highest")
        if title in shares:
            figures.share_ticks(axes.yaxis)
        for name, points in series.items():
            colour, steps = SERIES[names.index(name) % len(SERIES)], [step for step, _ in points]
            means = [sum(values) / len(values) for _, values in points]
            axes.plot(steps, means, "o-", color=colour, markersize=3, label=name)
            low, high = [min(values) for _, values in points], [max(values) for _, values in points]
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    lines, labels = figure.axes[0].get_legend_handles_labels()
    below = {"loc": "outside lower center", "ncols": min(4, len(names))}
    figures.names_legend(figure, lines, labels, fontsize=9, **below)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    return figure


def count_bars(groups: Mapping[str, Sequence[str]], title: str, most: int = 12) -> Figure:
    """How often each label occurs, a colour per group; the `most` frequent labels of all groups together."""
    _require(groups, "groups")
    counts = {name: Counter(labels) for name, labels in groups.items()}
    total = sum(counts.values(), Counter())
    labels = [label for label, _ in total.most_common(most)][::-1]
    figure = figures.new_figure(9, 1.2 + 0.26 * len(labels) * len(groups))
    axes = figure.add_subplot()
    high = 0.8 / len(groups)
    for number, (name, count) in enumerate(counts.items()):
        places = [row + (len(groups) / 2 - number - 0.5) * high for row in range(len(labels))]
        axes.barh(places, [count[label] for label in labels], high, label=name, color=SERIES[number % len(SERIES)])
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    figures.chart(axes, title, "number", "")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figures.names_legend(axes, fontsize=9, loc="lower right")
    figure.set_layout_engine("constrained")
    return figure


def stacked_bars(axes: Axes, places: list[int], parts: Mapping[str, list[int]], colours: Sequence[str]) -> None:
    """Counts on top of each other, a bar a place. parts: name -> a count for every place; colours: of the parts."""
    floor = [0] * len(places)
    for (name, heights), colour in zip(parts.items(), colours, strict=True):
        axes.bar(places, heights, 0.7, bottom=floor, label=name, color=colour, edgecolor="white", linewidth=0.6)
        floor = [a + b for a, b in zip(floor, heights, strict=True)]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=9, ncols=len(parts), loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _grouped(groups: Mapping[str, Mapping[str, Estimate]], title: str, y: str) -> Figure:
    """A group of bars per inner key, a bar per outer key."""
    _require(groups, "series")
    names = list(dict.fromkeys(key for group in groups.values() for key in group))
    width = 0.8 / len(groups)
    figure = figures.new_figure(min(16.0, max(6.0, 1.0 + len(names) * max(1.1, 0.42 * len(groups)))), 4.4)
    axes = _chart(figure, title, "", y, [one for group in groups.values() for one in group.values()])
    for place, (series, group) in enumerate(groups.items()):
        present = [index for index, name in enumerate(names) if name in group]
        middles = [index - 0.4 + width * (place + 0.5) for index in present]
        estimates = [group[names[index]] for index in present]
        style = {"color": SERIES[place % len(SERIES)], "hatch": _HATCHES[place // len(SERIES) % len(_HATCHES)]}
        _bars(axes, middles, estimates, width * 0.9, style, series, small=len(groups) > 2)
    counts = [
        max((int(group[name]["n"]) for group in groups.values() if name in group and "n" in group[name]), default=0)
        for name in names
    ]
    labels = [
        figures.wrap(_name(name), 1.3, 9) + (f"\nn = {n}" if n else "") for name, n in zip(names, counts, strict=True)
    ]
    axes.set_xticks(range(len(names)), labels, parse_math=False)
    if any(groups):
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17)}
        figures.names_legend(axes, fontsize=9, ncols=min(5, len(groups)), **below)
    return figure


def _bars(
    axes: Axes,
    places: list[Any],
    estimates: list[Estimate],
    width: float,
    style: Mapping[str, Any],
    label: str = "",
    small: bool = False,
) -> None:
    """Bars with intervals and their values written above the interval."""
    values = [one["value"] for one in estimates]
    below = [max(0.0, one["value"] - one.get("low", one["value"])) for one in estimates]
    above = [max(0.0, one.get("high", one["value"]) - one["value"]) for one in estimates]
    errors = {"ecolor": INK, "capsize": 3, "elinewidth": 1.1, "capthick": 1.1}
    axes.bar(places, values, width, yerr=[below, above], label=label or None, error_kw=errors, **style)
    for place, value, up in zip(places, values, above, strict=True):
        size = 7.5 if small else 9
        percent = f"{100 * float(f'{value:.2f}'):.0f}"  # a half is rounded as the tables round it
        axes.annotate(percent, (place, value + up), (0, 3), textcoords="offset points", ha="center", fontsize=size)


def _chart(figure: Figure, title: str, x: str, y: str, estimates: Sequence[Estimate]) -> Axes:
    """Axes of shares, from 0 to the least of .1, .2, .4 and 1 that holds all intervals."""
    axes = figure.subplots()
    figures.chart(axes, title, x, y)
    highest = max((one.get("high", one["value"]) for one in estimates), default=1.0)
    top = next((part for part in (0.1, 0.2, 0.4) if highest <= part), 1.0)
    axes.set_ylim(0, 1.08 * top)
    axes.set_yticks([part * top for part in (0, 0.25, 0.5, 0.75, 1)])
    figures.share_ticks(axes.yaxis)
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
    return axes


def _curve(axes: Axes, points: pd.DataFrame, x: str, metric: str, smooth: int) -> None:
    raw = points[metric]
    width, alpha = (0.9, 0.3) if smooth > 1 else (1.5, 1.0)
    marker = "o" if len(points) < 15 else ""
    axes.plot(points[x], raw, color=SERIES[0], linewidth=width, alpha=alpha, marker=marker, markersize=3)
    if smooth > 1:
        mean = raw.rolling(smooth, center=True, min_periods=1).mean()
        axes.plot(points[x], mean, color=SERIES[0], linewidth=1.8)
    figures.chart(axes, _name(metric), x, "")
    if _is_share(metric):
        _share_axis(axes)
    if x == "step":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(_name(metric), fontsize=10, loc="left", color=INK, parse_math=False)


def _share_axis(axes: Axes) -> None:
    """Percent, and no tick below 0% or above 100%, whatever room a flat curve is given."""
    figures.share_ticks(axes.yaxis)
    low, high = axes.get_ylim()
    room = 0.02 * (min(high, 1.0) - max(low, 0.0))  # so that a curve along the edge is drawn whole
    axes.set_ylim(max(low, -room), min(high, 1.0 + room))


def _is_share(metric: str) -> bool:
    return "accuracy" in metric or (metric.endswith("_rate") and not metric.endswith("learning_rate"))


def _counted_on(frame: pd.DataFrame) -> pd.DataFrame:
    """The log with steps that never fall: what begins again at a low step is counted on from the step before it."""
    if "step" not in frame.columns:
        return frame
    before = frame["step"].shift(fill_value=0)
    return frame.assign(step=frame["step"] + before.where(frame["step"] < before, 0).cumsum())


def _read_log(log: Path | str | pd.DataFrame) -> pd.DataFrame:
    if isinstance(log, pd.DataFrame):
        return log
    path = Path(log)
    if path.suffix == ".csv":
        return pd.read_csv(path)
    if path.suffix in (".jsonl", ".ndjson"):
        return pd.read_json(path, lines=True)
    raise ValueError(f"{path}: a training log is a .csv or .jsonl file with one row per step")


def _counted(title: str, estimates: Iterable[Estimate]) -> str:
    counts = {int(one["n"]) for one in estimates if one.get("n") is not None}
    return f"{title} (n = {counts.pop()}, 95% intervals)" if len(counts) == 1 else f"{title} (95% intervals)"


def _require(series: Mapping[str, Any], what: str) -> None:
    if not series:
        raise ValueError(f"there are no {what} to plot")


def _name(key: str) -> str:
    return key.replace("_", " ")
