"""The tables of a report, as data: the same `Table` becomes HTML, CSV, JSON and a wandb table.

    table = Table("table_1", "Accuracy", "Judged by rules.", [Column("system"), Column("all", "share")], rows)
    table.records()                  # one flat dict a row: "system", "all", "all low", "all high", "all n"
    table.markdown()                 # as text
    write_tables([table], folder)    # folder/table_1.csv

A cell is text, a number, an estimate `{value, low, high, n, spread?}` or None where there is nothing to say. A column
says how its figures are to be read: a share of questions is shown in percent, a difference of two shares in points,
what a paper prints as it is printed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vrag_nb.evaluation.report import estimate_text, markdown_table, short
from vrag_nb.files import write_text

Cell = str | int | float | Mapping[str, Any] | None
Unit = Literal["text", "count", "share", "points", "number", "printed"]


@dataclass(frozen=True)
class Column:
    """A column. published: its figures are a paper's and were not measured here."""

    title: str
    unit: Unit = "text"
    published: bool = False


@dataclass(frozen=True)
class Table:
    """name: of its files. caption: what is counted, over what, judged by whom. rows: a cell for each column."""

    name: str
    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    source: str = ""  # of a published table
    published: bool = False

    def records(self) -> list[dict[str, Any]]:
        """A flat dict a row: an estimate takes columns of its own for low, high, n and the seeds' spread."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Sequence[Cell]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for column, cell in zip(self.columns, row, strict=True):
            if not isinstance(cell, Mapping):
                record[column.title] = cell
                continue
            record[column.title] = cell.get("value")
            record |= {f"{column.title} {name}": cell.get(name) for name in ("low", "high", "n")}
            if cell.get("spread"):
                lowest, highest = cell["spread"]
                record |= {f"{column.title} lowest seed": lowest, f"{column.title} highest seed": highest}
        return record

    def csv(self) -> str:
        """The records as CSV under the union of their columns."""
        records = self.records()
        names = dict.fromkeys(name for record in records for name in record)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(names) or [column.title for column in self.columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def markdown(self) -> str:
        """The title, the table and the caption; estimates with their intervals, then the lowest and highest seed."""
        rows = [[_cell_text(cell) for cell in row] for row in self.rows]
        return f"### {self.title}\n\n{markdown_table([one.title for one in self.columns], rows)}\n\n{self.caption}\n"

    def dump(self) -> dict[str, Any]:
        """As JSON: what the table says of itself, and its rows by column."""
        titles = [column.title for column in self.columns]
        about: dict[str, Any] = {"title": self.title, "caption": self.caption}
        about |= {"source": self.source, "published": True} if self.published else {}
        return {**about, "rows": [dict(zip(titles, row, strict=True)) for row in self.rows]}


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """A CSV file a table."""
    for table in tables:
        write_text(Path(folder) / f"{table.name}.csv", table.csv())


def _cell_text(cell: Cell) -> str:
    if not isinstance(cell, Mapping):
        return "–" if cell is None else str(cell)
    known = cell.get("low") is not None
    text = estimate_text(cell) if known else short(cell["value"])
    lowest, highest = cell.get("spread") or (0, 0)
    return text if short(lowest) == short(highest) else f"{text}, {short(lowest)} to {short(highest)}"
