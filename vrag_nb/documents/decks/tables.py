"""Tables the decks are drawn from (`synthetic` makes up more for pretraining).

A `Table` is small numbers with human names. It knows how to say a cell in words, because the same words become
slide titles and questions:

- rows are things ("entity") or times ("time"); columns are measures ("measure"), times ("time") or groups ("group");
- when the columns are not measures themselves, `measure` names what all numbers are ("Life expectancy");
- `scope` ends a title: "Life expectancy" + "in Europe".

A `Series` is what one deck is about: one to four related tables of one dataset.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from vrag_nb.documents.decks.words import MONTHS

TABLES = Path(__file__).resolve().parents[3] / "data" / "tables"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Column:
    """One column of numbers and how they are printed. `additive`: a sum over rows means something."""

    name: str
    unit: str = ""
    prefix: str = ""
    suffix: str = ""
    decimals: int = 0
    additive: bool = False

    def show(self, value: float) -> str:
        """The number as printed: "$1,234", "12.5%"."""
        sign = "-" if round(value, self.decimals) < 0 else ""
        return f"{sign}{self.prefix}{abs(value):,.{self.decimals}f}{self.suffix}"


@dataclass(frozen=True)
class Table:
    """Numbers with names; see the module's docstring for `rows_are`, `columns_are`, `measure` and `scope`."""

    table_id: str
    scope: str
    row_header: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    values: tuple[tuple[float, ...], ...]  # values[row][column]
    measure: str = ""
    rows_are: str = "entity"
    columns_are: str = "measure"
    rows_plural: str = "rows"

    def show(self, row: int, column: int) -> str:
        """The cell as printed."""
        return self.columns[column].show(self.values[row][column])

    def measure_of(self, column: int) -> str:
        """What the numbers of this column are, without time or group."""
        return self.measure or self.columns[column].name

    def say(self, row: int, column: int) -> str:
        """The cell in words: "life expectancy of Norway in 2007"."""
        label, name = self.labels[row], self.columns[column].name
        words = f"{lower(self.measure_of(column))}"
        if self.rows_are == "time":
            if self.measure:
                return f"{words} ({name}) in {label}"
            return f"{words} in {label}"
        if not self.measure:
            return f"{words} {self._of(label)}"
        tail = f" in {name}" if self.columns_are == "time" else f" ({name})"
        return f"{words} {self._of(label)}{tail}"

    @staticmethod
    def _of(name: str) -> str:
        return f"of {name}"


@dataclass(frozen=True)
class Series:
    """What one deck is about. `name` is unique in a corpus and appears in every question about the deck."""

    name: str
    dataset: str
    tables: tuple[Table, ...]
    source_line: str


def lower(name: str) -> str:
    """A column's name inside a sentence: the first letter small unless the word is an acronym or a proper name."""
    first = name.split(" ")[0]
    if len(first) > 1 and (first[1:] != first[1:].lower() or any(c.isdigit() for c in first)):
        return name
    if first in PROPER:
        return name
    return name[:1].lower() + name[1:]


PROPER = frozenset({"Internet", "French", "English", "German", "Coderre", "Bergeron", "Joly", "Euro", *MONTHS})


@lru_cache(maxsize=8)
def load_series(split: str, folder: Path = TABLES) -> tuple[Series, ...]:
    """All series of a split from `folder/sources.json` and its CSV files.

    Raises FileNotFoundError that says how to make the folder, ValueError for a split that does not exist.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
    index = folder / "sources.json"
    if not index.is_file():
        raise FileNotFoundError(f"no {index}: run `python -m vrag_nb.documents.decks.sources` to make the tables")
    entries = json.loads(index.read_text(encoding="utf-8"))["series"]
    return tuple(_series(entry, folder) for entry in entries if entry["split"] == split)


def _series(entry: dict, folder: Path) -> Series:
    tables = tuple(_table(item, folder) for item in entry["tables"])
    return Series(entry["name"], entry["dataset"], tables, entry["source_line"])


def _table(item: dict, folder: Path) -> Table:
    path = folder / item["file"]
    frame = pd.read_csv(path, dtype={0: str}, keep_default_na=False)
    columns = tuple(Column(**column) for column in item["columns"])
    names = [column.name for column in columns]
    if list(frame.columns[1:]) != names:
        raise ValueError(f"{path}: columns {list(frame.columns[1:])} are not the {names} of sources.json")
    values = tuple(tuple(float(v) for v in row) for row in frame[names].itertuples(index=False))
    labels = tuple(str(label) for label in frame.iloc[:, 0])
    known = {key: item[key] for key in ("measure", "rows_are", "columns_are", "rows_plural", "scope", "row_header")}
    return Table(table_id=path.stem, labels=labels, columns=columns, values=values, **known)
