"""How many turns questions took and what was done in them, as a figure of trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vrag_nb.agent.trajectory import Trajectory, trajectory_list
from vrag_nb.evaluation.answers import Verdict, answered_right
from vrag_nb.plotting import figures, plots
from vrag_nb.plotting.figures import MUTED, SERIES

_KINDS = {"search": SERIES[0], "bbox": SERIES[1], "answer": SERIES[2], "invalid": SERIES[4]}


def turn_counts(
    trajectories: Iterable[Trajectory] | Path | str,
    *,
    correct: Verdict = answered_right,
    title: str = "Turns per question",
) -> Figure:
    """How many turns questions took, by verdict; beside it, which actions each turn took.

    trajectories: those themselves, or their JSONL file. Raises ValueError for none.
    """
    chosen = trajectory_list(trajectories)
    if not chosen:
        raise ValueError("there are no trajectories to count")
    figure = figures.new_figure(11, 4.0)
    left, right = figure.subplots(1, 2)
    _draw_turns(left, chosen, correct)
    figures.chart(left, f"{title}, {len(chosen)} questions", "turns", "questions")
    _draw_actions(right, chosen)
    figures.chart(right, "Actions by turn", "turn", "actions")
    figure.tight_layout()
    return figure


def _draw_turns(axes: Axes, trajectories: Sequence[Trajectory], correct: Verdict) -> None:
    verdicts = Counter((correct(one), len(one.turns)) for one in trajectories)
    present = [one for one in (True, False, None) if any(key[0] is one for key in verdicts)]
    names = {True: "correct", False: "wrong", None: "not judged"}
    colours = {True: SERIES[2], False: SERIES[3], None: MUTED}
    taken = [len(one.turns) for one in trajectories]
    turns = list(range(min(taken), max(taken) + 1))
    counts = {names[verdict]: [verdicts[verdict, count] for count in turns] for verdict in present}
    plots.stacked_bars(axes, turns, counts, [colours[verdict] for verdict in present])


def _draw_actions(axes: Axes, trajectories: Sequence[Trajectory]) -> None:
    actions = Counter((turn.action.kind, turn.index + 1) for one in trajectories for turn in one.turns)
    steps = list(range(1, max(len(one.turns) for one in trajectories) + 1))
    own = sorted({kind for kind, _ in actions} - set(_KINDS))
    colours = _KINDS | {kind: (SERIES[5], SERIES[3])[number % 2] for number, kind in enumerate(own)}
    kinds = {"crop" if kind == "bbox" else kind: [actions[kind, step] for step in steps] for kind in colours}
    plots.stacked_bars(axes, steps, kinds, list(colours.values()))
