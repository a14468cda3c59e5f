"""Training curves: a log with one JSON line a step, which a resumed run continues; and Weights & Biases."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback

from vrag_nb.files import append_line, read_lines, write_jsonl, write_text


class RunLog:
    """Appends one JSON line a step to `path`; on resume, forgets lines after the step resumed from."""

    def __init__(self, path: Path, resume_step: int = 0) -> None:
        self.path = Path(path)
        write_jsonl(self.path, [row for row in read_log(self.path) if row["step"] <= resume_step])

    def write(self, **values: float | int | str) -> None:
        rounded = {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}
        append_line(self.path, json.dumps(rounded))


def read_log(path: Path) -> list[dict]:
    """The rows of a run log; a half-written last line is left out."""
    return [json.loads(line) for line in read_lines(path)] if Path(path).is_file() else []


def over_seeds(logs: Sequence[Sequence[Mapping[str, Any]]], field: str) -> list[tuple[int, list[float]]]:
    """(step, the seeds' values) at every step at which all seeds have the field. logs: the rows of every seed."""
    found = [{row["step"]: float(row[field]) for row in log if field in row} for log in logs]
    steps = sorted(set(found[0]).intersection(*found[1:])) if found else []
    return [(step, [one[step] for one in found]) for step in steps]


class CurveLog(TrainerCallback):
    """Writes what a trainer logs to `log.jsonl`, one row per logged step; a resumed run forgets what it repeats.

    Of several processes the first one writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log: RunLog | None = None
        self._resumed = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._log, self._resumed = RunLog(self.path, state.global_step or -1), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if self._log is None or 0 < state.global_step == self._resumed:  # it validates again what is in the log
            return
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        self._log.write(step=state.global_step, **numbers)


def _mark(folder: Path) -> str:
    """What tells a folder's runs from those of other folders and machines, kept in it."""
    path = folder / "wandb" / "run.id"
    if not path.is_file():
        write_text(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()


def wandb_reporting(mode: str, folder: Path, name: str) -> dict[str, Any]:
    """Open a wandb run and return the setting that makes a trainer log to it; nothing for mode "".

    mode: "online", or "offline", which writes below `folder` for a later `wandb sync`. A run of the same name and
    folder is continued; those of other folders are others. Raises ValueError for another mode.
    """
    if not mode:
        return {}
    if mode not in ("online", "offline"):
        raise ValueError(f'wandb_mode {mode!r}: expected "", "offline" or "online"')
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    where: Literal["online", "offline"] = "online" if mode == "online" else "offline"
    wandb.init(project="vrag_nb", name=name, id=f"{name}-{_mark(folder)}", dir=folder, mode=where, resume="allow")
    return {"report_to": ["wandb"]}
