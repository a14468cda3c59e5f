"""Table 2, reward x actions, from what `benchmarks/ablations.py` left in a results folder.

    if (folder / "ablations.json").is_file():
        table = ablation_table(folder)

The folder holds ablations.json, `{"{actions}, {reward}": [figures of a seed, ...]}`, and the evaluation of every cell
and seed below `{actions}/{reward}-{seed}`. Where their predictions are there, accuracy has an interval over questions;
else only the seeds' spread is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.evaluation.benchmark_report import read_predictions
from vrag_nb.evaluation.metrics import bootstrap
from vrag_nb.evaluation.published import TABLE_2, VRAG, reward_words
from vrag_nb.evaluation.tables import Cell, Column, Table
from vrag_nb.paths import shown_path

COMMAND = "python benchmarks/ablations.py --out results/ablations --run data/runs/ablations --seeds 0 1 2"
_OTHERS = ("gold_pages_seen", "crops", "invalid_action_rate", "finish_rate")


def is_ablation(folder: Path) -> bool:
    """Whether a results folder declares ablation cells."""
    return (Path(folder) / "ablations.json").is_file()


def ablation_table(folder: Path, judge: str) -> Table:
    """A cell a row: actions, reward, accuracy and conduct over its seeds, and the paper's figure.

    Raises ValueError naming the file for one that does not hold cells.
    """
    path = Path(folder) / "ablations.json"
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))
        rows = [_row(Path(folder), name, runs) for name, runs in cells.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{shown_path(path)} does not hold cells of reward and actions: {error}") from None
    columns = [Column("actions"), Column("reward"), Column("seeds", "count"), Column("accuracy", "share")]
    columns += [Column("gold pages seen", "share"), Column("crops", "number")]
    columns += [
        Column("invalid actions", "share"),
        Column("finished", "share"),
        Column("published, 7B", "printed", True),
    ]
    caption = (
        f"Every cell is a training run a seed from the same fine-tuned checkpoint. Judged by {judge}. 95% bootstrap "
        f"intervals over questions; below them, where seeds differ, the lowest and the highest. "
        f"Published: {VRAG}, table 2, percent."
    )
    return Table("table_2", "Table 2. Reward and actions", caption, columns, rows)


def _row(folder: Path, name: str, runs: Sequence[Mapping[str, float]]) -> list[Cell]:
    actions, reward = name.rsplit(", ", 1)
    where = folder / actions.replace(" ", "_")
    found = [*where.glob(f"{reward}-*/predictions.jsonl"), *where.glob(f"{reward}/predictions.jsonl")]
    accuracy = _over_seeds([run["accuracy"] for run in runs], _by_question(found) if len(found) == len(runs) else {})
    others = [_over_seeds([run[key] for run in runs if key in run]) for key in _OTHERS]
    words = "none: the checkpoint all start from" if reward == "start" else reward_words(reward)
    return [actions, words, len(runs), accuracy, *others, TABLE_2.get((reward, actions))]


def _by_question(files: Sequence[Path]) -> dict[str, float]:
    """Each question's mean over the seeds' predictions; nothing when they are not of the same questions."""
    scores: dict[str, list[float]] = {}
    for file in files:
        for rows in read_predictions(file).values():
            for uid, row in rows.items():
                scores.setdefault(uid, []).append(float(row["correct"]))
    if any(len(values) != len(files) for values in scores.values()):
        return {}
    return {uid: sum(values) / len(values) for uid, values in scores.items()}


def _over_seeds(values: Sequence[float], by_question: Mapping[str, float] | None = None) -> dict[str, Any] | None:
    if not values:
        return None
    found: dict[str, Any] = {"value": sum(values) / len(values), "low": None, "high": None, "n": None}
    if by_question:
        found = bootstrap(list(by_question.values())).model_dump(mode="json")
    return {**found, "seeds": len(values), "spread": [min(values), max(values)]}
