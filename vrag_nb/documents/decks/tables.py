"""Tables the decks are drawn from: committed real ones, and synthetic ones for pretraining.

A `Table` is small numbers with human names. It knows how to say a cell in words, because the same words become
slide titles and questions:

- rows are things ("entity") or times ("time"); columns are measures ("measure"), times ("time") or groups ("group");
- when the columns are not measures themselves, `measure` names what all numbers are ("Life expectancy");
- `scope` ends a title: "Life expectancy" + "in Europe".

A `Series` is what one deck is about: one to four related tables of one dataset.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from vrag_nb.documents.decks.words import random_label, random_phrase

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
                return f"{words} {self._of(name)} in {label}"
            return f"{words} in {label}"
        if not self.measure:
            return f"{words} {self._of(label)}"
        tail = f" in {name}" if self.columns_are == "time" else f" ({name})"
        return f"{words} {self._of(label)}{tail}"

    def say_row(self, row: int) -> str:
        """The row's name as the answer to "which"."""
        return self.labels[row]

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


PROPER = frozenset({"Internet", "French", "English", "German", "Coderre", "Bergeron", "Joly", "Chrome", "Firefox"})


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


# ---------------------------------------------------------------------------------------------- synthetic tables


def synthetic_series(rng: random.Random) -> Series:
    """A made-up series: random names, measures and numbers in widely varying formats."""
    name = random_phrase(rng)
    scope = rng.choice(["in {}", "of {}", "at {}", "for {}", "across {}"]).format(name)
    row_header, plural = rng.choice(ROW_KINDS)
    series_id = f"synthetic-{rng.getrandbits(32):08x}"
    pool = _labels(rng, rng.randint(12, 26))
    count = rng.randint(2, 4)
    tables = tuple(
        synthetic_table(rng, f"{series_id}-{i}", scope, row_header, plural, pool) for i in range(count)
    )
    return Series(name, series_id, tables, f"Source: {random_phrase(rng)}, {rng.randint(1990, 2026)}")


def synthetic_table(
    rng: random.Random, table_id: str, scope: str, row_header: str, plural: str, pool: list[str]
) -> Table:
    """One made-up table over some of `pool`'s labels, or over years."""
    style = rng.choice(["measure", "measure", "time", "group", "years"])
    width = rng.randint(2, 5)
    measure = "" if style == "measure" or (style == "years" and rng.random() < 0.6) else _measures(rng, 1)[0]
    rows_are = "time" if style == "years" else "entity"
    if rows_are == "time":
        step, start = rng.choice([1, 1, 2, 5]), rng.randint(1890, 2005)
        labels = [str(start + step * i) for i in range(rng.randint(6, 16))]
        row_header, plural = "Year", "years"
    else:
        labels = rng.sample(pool, rng.randint(6, min(16, len(pool))))
    names = _measures(rng, width)
    columns_are = "measure"
    if measure:
        columns_are = "time" if style == "time" else "group"
        start, step = rng.randint(1950, 2010), rng.choice([1, 1, 2, 5, 10])
        names = [str(start + step * i) for i in range(width)] if style == "time" else _labels(rng, width)
    shared = _column(rng, "")
    columns = tuple(replace(shared, name=n) if measure else _column(rng, n) for n in names)
    values = _values(rng, len(labels), columns, bool(measure))
    return Table(
        table_id, scope, row_header, tuple(labels), columns, values, measure, rows_are, columns_are, plural
    )


ROW_KINDS = (
    ("Region", "regions"), ("Country", "countries"), ("Product", "products"), ("Team", "teams"), ("City", "cities"),
    ("Species", "species"), ("Model", "models"), ("Station", "stations"), ("Branch", "branches"), ("Store", "stores"),
    ("School", "schools"), ("Crop", "crops"), ("Plant", "plants"), ("Client", "clients"), ("District", "districts"),
    ("Supplier", "suppliers"), ("Material", "materials"), ("Route", "routes"), ("Project", "projects"),
)  # fmt: skip

MEASURES = (
    "Revenue", "Sales", "Profit", "Cost", "Population", "Rainfall", "Temperature", "Output", "Yield", "Weight",
    "Length", "Height", "Speed", "Price", "Area", "Visitors", "Passengers", "Employees", "Members", "Exports",
    "Imports", "Votes", "Share", "Growth", "Score", "Rating", "Births", "Deaths", "Debt", "Income", "Wages", "Hours",
    "Energy use", "Water use", "Fuel", "Mileage", "Depth", "Distance", "Duration", "Orders", "Returns", "Stock",
    "Capacity", "Budget", "Spending", "Unemployment", "Inflation", "Emissions", "Literacy", "Enrolment", "Density",
    "Pressure", "Humidity", "Wind speed", "Catch", "Harvest", "Rent", "Savings", "Tax", "Clicks", "Downloads",
    "Page views", "Subscribers", "Claims", "Accidents", "Patients", "Beds", "Goals", "Points", "Wins", "Medals",
)  # fmt: skip
_QUALIFIERS = ("Average", "Total", "Net", "Gross", "Annual", "Monthly", "Median", "Peak", "Mean", "Daily", "Local")


def _measures(rng: random.Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        name = rng.choice(MEASURES)
        names.setdefault(f"{rng.choice(_QUALIFIERS)} {lower(name)}" if rng.random() < 0.35 else name)
    return list(names)


def _labels(rng: random.Random, count: int) -> list[str]:
    labels: dict[str, None] = {}
    while len(labels) < count:
        labels.setdefault(random_label(rng))
    return list(labels)


def _column(rng: random.Random, name: str) -> Column:
    """A printing format: prefix, suffix, decimals."""
    prefix, suffix = rng.choice(
        [("", "")] * 8 + [("$", ""), ("€", ""), ("£", ""), ("", "%"), ("", "%"), ("$", "M"), ("", "k"), ("", "M"),
                          ("", " kg"), ("", " km"), ("", " t"), ("", " h")]
    )  # fmt: skip
    return Column(name, "", prefix, suffix, rng.choice([0, 0, 0, 1, 1, 2]), suffix != "%" and rng.random() < 0.7)


def _values(
    rng: random.Random, rows: int, columns: tuple[Column, ...], shared: bool
) -> tuple[tuple[float, ...], ...]:
    """Numbers of one magnitude per column (one for all when the columns share their measure), all cells distinct."""
    tops = [10 ** rng.uniform(1, 2) if c.suffix == "%" else 10 ** rng.uniform(0.8, 5.2) for c in columns]
    tops = [tops[0]] * len(columns) if shared else tops
    floor = rng.choice([0.05, 0.2, 0.5])
    negative = rng.random() < 0.08
    cells = []
    for _ in range(rows):
        row = [top * rng.uniform(floor, 1) * (-1 if negative and rng.random() < 0.3 else 1) for top in tops]
        cells.append(tuple(round(v, c.decimals) for v, c in zip(row, columns, strict=True)))
    return tuple(cells)
