"""Result folders of evaluations read back: every system's answers by question, over as many seeds as there are folders.

    results = read_results(["results/seed-0", "results/seed-1"])
    results = read_results(["base=results/base", "trained=results/grpo"])     # rows of their own, under these names
    results.systems[0].measure("accuracy")                                    # {uid: mean over seeds}
    results.systems[0].estimate("accuracy")                                   # with interval and spread

Folders that are given without a name, or with the same one, are seeds of the same systems: a question's score is its
mean over them. Intervals are bootstrap intervals over questions, so they do not shrink because one question was asked
several times; `spread` is the lowest and highest mean of a seed.

A folder is what `evaluate` wrote: metrics.json, predictions.jsonl and, where they were kept, trajectories/. Without
trajectories there is accuracy and retrieval, and nothing about turns. Token ids and log-probabilities are dropped as
soon as they are counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.evaluation.agreement import RULES
from vrag_nb.evaluation.baselines import find_system
from vrag_nb.evaluation.benchmark_report import read_predictions
from vrag_nb.evaluation.metrics import bootstrap, ndcg_at_k, share_interval
from vrag_nb.evaluation.per_question import SHARES, conduct, pages_seen
from vrag_nb.paths import shown_path
from vrag_nb.records import Question

_ALL_RANKS = 1000  # every page of a trajectory counts in nDCG, as in VRAG-RL's equations 7 to 9


@dataclass(frozen=True)
class Run:
    """One system in one result folder: a seed.

    rows: predictions by uid, in the order asked. trajectories: those that were kept, by uid; places: where each stands
    in its file, from 0. ready_made: turns at the beginning of each that no model wrote. measures: by uid and name.
    """

    folder: Path
    system: str
    rows: Mapping[str, Mapping[str, Any]]
    trajectories: Mapping[str, Trajectory]
    places: Mapping[str, int]
    ready_made: int
    measures: Mapping[str, Mapping[str, float]]

    @property
    def trajectory_file(self) -> Path:
        return self.folder / "trajectories" / f"{self.system}.jsonl"


@dataclass(frozen=True)
class SystemResult:
    """A row of the tables. `name` is the system's, after the name its folders were given."""

    name: str
    system: str
    runs: list[Run] = field(repr=False)

    @property
    def uids(self) -> list[str]:
        return list(self.runs[0].rows)

    @property
    def types(self) -> dict[str, str]:
        """The question types, by uid."""
        return {uid: row["type"] for uid, row in self.runs[0].rows.items()}

    @property
    def gold_pages(self) -> dict[str, int]:
        """How many gold pages each question has, by uid."""
        return {uid: len(row["gold_pages"]) for uid, row in self.runs[0].rows.items()}

    @property
    def has_trajectories(self) -> bool:
        return all(run.trajectories for run in self.runs)

    def measure(self, name: str) -> dict[str, float]:
        """A measure by uid, the mean over the seeds that have it; questions without it are left out."""
        found = {uid: [run.measures[uid][name] for run in self.runs if name in run.measures[uid]] for uid in self.uids}
        return {uid: sum(values) / len(values) for uid, values in found.items() if values}

    def estimate(self, name: str, uids: Iterable[str] | None = None, seed: int = 0) -> dict[str, Any]:
        """`{value, low, high, n}` of a measure over `uids` (default: all); with several seeds their `spread` too."""
        chosen = set(self.uids if uids is None else uids)
        values = [value for uid, value in self.measure(name).items() if uid in chosen]
        interval = share_interval if name in SHARES else bootstrap
        found: dict[str, Any] = interval(values, seed).model_dump(mode="json")
        if len(self.runs) > 1:
            each = [_mean(run.measures[uid][name] for uid in self.uids if uid in chosen and name in run.measures[uid])
                    for run in self.runs]  # fmt: skip
            means = [one for one in each if one is not None]
            found |= {"seeds": len(means), "spread": [min(means), max(means)] if means else None}
        return found


@dataclass(frozen=True)
class Results:
    """What `read_results` found. folders: metrics.json by folder. judge: who says right or wrong in predictions."""

    folders: Mapping[Path, Mapping[str, Any]]
    systems: list[SystemResult]
    notes: list[str]
    judge: ClassVar[str] = RULES

    @cached_property
    def questions(self) -> dict[str, Question]:
        """The questions by uid, as far as trajectories hold them."""
        runs = [run for system in self.systems for run in system.runs]
        return {uid: one.reference for run in runs for uid, one in run.trajectories.items() if one.reference}


def read_results(folders: Sequence[str | Path]) -> Results:
    """Read evaluation folders, `DIR` or `NAME=DIR` each.

    Raises FileNotFoundError for a folder that holds no finished evaluation; ValueError for a folder given twice and
    for seeds of one system that answered different questions.
    """
    named = [split_name(folder) for folder in folders]
    metrics: dict[Path, dict[str, Any]] = {}
    runs: dict[tuple[str, str], list[Run]] = {}
    for name, folder in named:
        if folder in metrics:
            raise ValueError(f"{shown_path(folder)} is given twice")
        metrics[folder] = read_metrics(folder)
        for system, rows in read_predictions(folder / "predictions.jsonl").items():
            ready_made = _ready_made(system, metrics[folder]["run"])
            runs.setdefault((name, system), []).append(_run(folder, system, rows, ready_made))
    systems = [
        SystemResult(f"{name}: {system}" if name else system, system, found) for (name, system), found in runs.items()
    ]
    for one in systems:
        _same_questions(one)
    return Results(metrics, systems, _notes(named, metrics, systems))


def split_name(folder: str | Path) -> tuple[str, Path]:
    """(name, folder) of `NAME=DIR`; the name is empty for a `DIR`, also where it has a "=" in it."""
    name, equals, rest = str(folder).partition("=")
    return (name, Path(rest)) if equals and not Path(folder).is_dir() else ("", Path(folder))


def read_metrics(folder: Path) -> dict[str, Any]:
    """A folder's metrics.json. Raises FileNotFoundError for none, ValueError for one that is no evaluation's."""
    path = folder / "metrics.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{shown_path(folder)} holds no metrics.json: evaluate into it first; an interrupted evaluation goes on "
            "with the same command"
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    if not {"answers", "run"} <= found.keys():
        raise ValueError(f"{shown_path(path)} is not of an evaluation of answers: it lacks `answers` or `run`")
    return dict(found)


def _run(folder: Path, system: str, rows: Mapping[str, Mapping[str, Any]], ready_made: int) -> Run:
    path = folder / "trajectories" / f"{system}.jsonl"
    everything = read_trajectories(path) if path.is_file() else []
    places = {one.uid: place for place, one in enumerate(everything)}
    kept = {one.uid: one for one in everything if one.uid in rows}
    ndcg = ndcg_at_k(
        {uid: row["retrieved_pages"] for uid, row in rows.items()},
        {uid: row["gold_pages"] for uid, row in rows.items()},
        _ALL_RANKS,
    )
    measures: dict[str, dict[str, float]] = {}
    for uid, row in rows.items():
        measures[uid] = {"accuracy": float(row["correct"]), **pages_seen(row["gold_pages"], row["retrieved_pages"])}
        measures[uid] |= {"ndcg": ndcg[uid]} if uid in ndcg else {}
        measures[uid] |= conduct(kept[uid], ready_made) if uid in kept else {}
    for one in kept.values():
        _slim(one)
    return Run(folder, system, rows, kept, places, ready_made, measures)


def _ready_made(system: str, run: Mapping[str, Any]) -> int:
    """How many turns a system begins with that are not the model's, as its evaluation says; of an older one, as its
    class does."""
    if system in (said := run.get("ready_made_turns", {})):
        return int(said[system])
    try:
        return find_system(system).ready_made_turns
    except ValueError:  # a class of somebody's own, evaluated under its own name
        return 0


def _slim(trajectory: Trajectory) -> None:
    """Forget what no table and no picture needs: most of a record's bytes."""
    for turn in trajectory.turns:
        turn.token_ids, turn.logprobs, turn.hits = [], [], []
        for reply in turn.memory.replies if turn.memory else ():
            reply.token_ids, reply.logprobs = [], []


def _same_questions(system: SystemResult) -> None:
    first = system.runs[0]
    for other in system.runs[1:]:
        odd = sorted(first.rows.keys() ^ other.rows.keys())
        if odd:
            raise ValueError(
                f"{system.system}: {shown_path(first.folder)} and {shown_path(other.folder)} answered different "
                f"questions, {len(odd)} are in one only, such as {odd[0]!r}: they are no seeds of one system; give "
                "them names, NAME=DIR, or report them apart"
            )


def _notes(
    named: Sequence[tuple[str, Path]], metrics: Mapping[Path, Mapping[str, Any]], systems: Sequence[SystemResult]
) -> list[str]:
    """What a reader should know before comparing rows."""
    notes = []
    for name in dict.fromkeys(name for name, _ in named):
        runs = [metrics[folder]["run"] for other, folder in named if other == name]
        for what in ("policy", "prompt", "profile", "retriever"):
            kinds = list(dict.fromkeys(str(run.get(what)) for run in runs))
            if len(kinds) > 1:
                label = f" under {name}" if name else ""
                notes.append(f"The folders averaged{label} differ in {what}: {', '.join(kinds)}.")
    if len({frozenset(one.uids) for one in systems}) > 1:
        notes.append("Not all systems answered the same questions; differences are over those that both answered.")
    return notes


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None
