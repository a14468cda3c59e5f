"""Table 2, reward x actions, from what `learning.ablations` left in a results folder.

    if is_ablation(folder):
        table = ablation_table(folder, "rules")
        differences = ablation_differences(folder)
        text = ablations_markdown(folder, "rules")

The folder holds ablations.json, `{"{actions}, {reward}": [{"seed": 0, figure: ...}, ...]}`, and the evaluation of every
cell and seed below `{actions}/{reward}-{seed}`. Where their predictions are there, accuracy has an interval over
questions; else only the seeds' spread is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.evaluation.benchmark_report import read_predictions
from vrag_nb.evaluation.metrics import paired_bootstrap, share_interval
from vrag_nb.evaluation.published import TABLE_2, VRAG, reward_words
from vrag_nb.evaluation.tables import Cell, Column, Table
from vrag_nb.paths import shown_path

COMMAND = "python -m vrag_nb run nano-ablations"
FIGURES = ("accuracy", "gold_pages_seen", "crops", "invalid_action_rate", "forced_rate", "finish_rate")  # of a run


def is_ablation(folder: Path) -> bool:
    """Whether a results folder declares ablation cells."""
    return (Path(folder) / "ablations.json").is_file()


def actions_folder(actions: str) -> str:
    """The folder below the results in which evaluations under these actions lie."""
    return actions.replace(" ", "_")


def ablation_table(folder: Path, judge: str) -> Table:
    """A cell a row: actions, reward, accuracy and conduct over its seeds, and the paper's figure.

    Raises ValueError naming the file for one that does not hold cells.
    """
    rows = _read(folder, lambda cells: [_row(Path(folder), name, runs) for name, runs in cells.items()])
    columns = [Column("actions"), Column("reward"), Column("seeds", "count"), Column("accuracy", "share")]
    columns += [Column("gold pages seen", "share"), Column("crops", "number")]
    columns += [
        Column("invalid actions", "share"),
        Column("forced to answer", "share"),
        Column("finished", "share"),
        Column("published, 7B", "printed", True),
    ]
    caption = (
        f"Every cell is a training run a seed from the same fine-tuned checkpoint. Judged by {judge}. 95% bootstrap "
        f"intervals over questions; with them, where seeds differ, the lowest and the highest. "
        f"Published: {VRAG}, table 2, percent."
    )
    return Table("table_2", "Table 2. Reward and actions", caption, columns, rows)


def ablation_differences(folder: Path) -> Table:
    """What differs between cells, question by question over their seeds' means: a pair a row.

    Every cell against the start under its actions, `vrag` against `outcome` under the same actions, and with crop
    against search alone under the same reward; pairs whose predictions are not there are left out. Raises ValueError
    naming the file for one that does not hold cells.
    """
    cells = dict(_read(folder, lambda found: list(found.items())))
    files = {name: _predictions(Path(folder), name, runs) for name, runs in cells.items()}
    scores = {name: _by_question(files[name]) if len(files[name]) == len(runs) else {} for name, runs in cells.items()}
    pairs = [(name, f"{_parts(name)[0]}, start") for name in cells if _parts(name)[1] != "start"]
    pairs += [(f"{actions}, vrag", f"{actions}, outcome") for actions in ("search", "search and crop")]
    pairs += [(f"search and crop, {reward}", f"search, {reward}") for reward in ("start", "outcome", "vrag")]
    rows: list[list[Cell]] = [
        [*pair, paired_bootstrap(scores[pair[0]], scores[pair[1]]).model_dump(mode="json")]
        for pair in pairs
        if all(scores.get(name) for name in pair) and scores[pair[0]].keys() == scores[pair[1]].keys()
    ]
    columns = [Column("cell"), Column("less"), Column("accuracy", "points")]
    caption = "Question by question, each the mean over its seeds; 95% bootstrap intervals over questions."
    return Table("table_2_differences", "Differences between cells", caption, columns, rows)


def ablations_markdown(folder: Path, judge: str, command: str = COMMAND) -> str:
    """Both tables and the command that makes them. Raises what they raise."""
    tables = [ablation_table(folder, judge), ablation_differences(folder)]
    return "\n".join([f"`{command}`:\n", *(table.markdown() for table in tables)])


def _read(folder: Path, take: Callable[[dict[str, Any]], list[Any]]) -> list[Any]:
    """What `take` makes of the cells; an error of it is the file's."""
    path = Path(folder) / "ablations.json"
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))
        return take(cells)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{shown_path(path)} does not hold cells of reward and actions: {error}") from None


def _parts(name: str) -> tuple[str, str]:
    """The actions and the reward of a cell's name."""
    actions, reward = name.rsplit(", ", 1)
    return actions, reward


def _predictions(folder: Path, name: str, runs: Sequence[Mapping[str, float]]) -> list[Path]:
    """What a cell's seeds predicted; of the start there is one folder, without a seed.

    Seeds that an earlier run of the ablation left in the folder are not the cell's, where its figures name theirs.
    """
    actions, reward = _parts(name)
    seeds = "|".join(str(run["seed"]) for run in runs if "seed" in run) or r"\d+"
    named = re.compile(rf"{re.escape(reward)}(-({seeds}))?")  # `look-0`, not `look-conduct-0`
    where = folder / actions_folder(actions)
    return sorted(path for path in where.glob("*/predictions.jsonl") if named.fullmatch(path.parent.name))


def _row(folder: Path, name: str, runs: Sequence[Mapping[str, float]]) -> list[Cell]:
    actions, reward = _parts(name)
    found = _predictions(folder, name, runs)
    accuracy = _over_seeds([run["accuracy"] for run in runs], _by_question(found) if len(found) == len(runs) else {})
    others = [_over_seeds([run[key] for run in runs if key in run]) for key in FIGURES[1:]]
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
        found = share_interval(list(by_question.values())).model_dump(mode="json")
    return {**found, "seeds": len(values), "spread": [min(values), max(values)]}
