"""Made-up tables for pretraining: random names, measures and numbers in widely varying formats."""

from __future__ import annotations

import random
from dataclasses import replace

from vrag_nb.documents.decks.tables import Column, Series, Table, lower
from vrag_nb.documents.decks.words import random_label, random_phrase


def synthetic_series(rng: random.Random) -> Series:
    """A made-up series: random names, measures and numbers in widely varying formats."""
    name = random_phrase(rng)
    scope = rng.choice(["in {}", "of {}", "at {}", "for {}", "across {}"]).format(name)
    row_header, plural = rng.choice(ROW_KINDS)
    series_id = f"synthetic-{rng.getrandbits(32):08x}"
    pool = _labels(rng, rng.randint(12, 26))
    count = rng.randint(2, 4)
    tables = tuple(synthetic_table(rng, f"{series_id}-{i}", scope, row_header, plural, pool) for i in range(count))
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
    return Table(table_id, scope, row_header, tuple(labels), columns, values, measure, rows_are, columns_are, plural)


ROW_KINDS = (
    ("Region", "regions"),
    ("Country", "countries"),
    ("Product", "products"),
    ("Team", "teams"),
    ("City", "cities"),
    ("Species", "species"),
    ("Model", "models"),
    ("Station", "stations"),
    ("Branch", "branches"),
    ("Store", "stores"),
    ("School", "schools"),
    ("Crop", "crops"),
    ("Plant", "plants"),
    ("Client", "clients"),
    ("District", "districts"),
    ("Supplier", "suppliers"),
    ("Material", "materials"),
    ("Route", "routes"),
    ("Project", "projects"),
)

MEASURES = (
    "Revenue",
    "Sales",
    "Profit",
    "Cost",
    "Population",
    "Rainfall",
    "Temperature",
    "Output",
    "Yield",
    "Weight",
    "Length",
    "Height",
    "Speed",
    "Price",
    "Area",
    "Visitor count",
    "Traffic",
    "Staff",
    "Membership",
    "Export value",
    "Import value",
    "Vote count",
    "Share",
    "Growth",
    "Score",
    "Rating",
    "Birth rate",
    "Death rate",
    "Debt",
    "Income",
    "Wage",
    "Work time",
    "Energy use",
    "Water use",
    "Fuel",
    "Mileage",
    "Depth",
    "Distance",
    "Duration",
    "Order volume",
    "Return rate",
    "Stock",
    "Capacity",
    "Budget",
    "Spending",
    "Unemployment",
    "Inflation",
    "Emissions",
    "Literacy",
    "Enrolment",
    "Density",
    "Pressure",
    "Humidity",
    "Wind speed",
    "Catch",
    "Harvest",
    "Rent",
    "Saving",
    "Tax",
    "Click rate",
    "Download count",
    "Reach",
    "Claim sum",
    "Accident rate",
    "Bed count",
    "Goal count",
    "Point total",
    "Medal count",
)
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
        [("", "")] * 8
        + [
            ("$", ""),
            ("€", ""),
            ("£", ""),
            ("", "%"),
            ("", "%"),
            ("$", "M"),
            ("", "k"),
            ("", "M"),
            ("", " kg"),
            ("", " km"),
            ("", " t"),
            ("", " h"),
            ("", "°C"),
            ("", "°F"),
            ("", "°"),
            ("", " m"),
            ("", " mm"),
            ("", " ha"),
            ("", " MW"),
        ]
    )
    return Column(name, "", prefix, suffix, rng.choice([0, 0, 0, 1, 1, 2]), suffix != "%" and rng.random() < 0.7)


def _values(rng: random.Random, rows: int, columns: tuple[Column, ...], shared: bool) -> tuple[tuple[float, ...], ...]:
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
