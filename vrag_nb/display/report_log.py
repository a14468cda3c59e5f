"""A report's tables in Weights & Biases: a run of their own, offline unless asked otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrag_nb.evaluation.tables import Table
from vrag_nb.learning.curves import wandb_reporting


def log_report(tables: Sequence[Table], folder: Path, mode: str = "offline", name: str = "report") -> Path:
    """Log every table as `report/{table}`, published ones as `published/{table}`; the folder the run was written to.

    mode: "offline", which writes below `folder` for a later `wandb sync`, or "online". Raises ValueError for another.
    """
    if not mode:
        raise ValueError('wandb mode "": expected "offline" or "online"')
    wandb_reporting(mode, Path(folder), name)
    import wandb

    run: Any = wandb.run
    run.log({f"{'published' if table.published else 'report'}/{table.name}": wandb_table(table) for table in tables})
    where = Path(run.dir).parent
    run.finish()
    return where


def wandb_table(table: Table) -> Any:
    """A table's records as a wandb table; a column holds numbers, words or nothing."""
    import wandb

    records = table.records()
    names: list[Any] = list(dict.fromkeys(name for record in records for name in record))
    data: list[Any] = [[record.get(name) for name in names] for record in records]
    return wandb.Table(columns=names, data=data, allow_mixed_types=True)
