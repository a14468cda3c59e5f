"""Makes `data/tables`: small CSV files cut from the sample data of Python packages, with their licences.

    python -m vrag_nb.documents.decks.sources

needs the `tables` extra (vega-datasets, bokeh-sampledata, plotly, statsmodels) and writes

    data/tables/{table}.csv     first column the row's name, then numbers
    data/tables/sources.json    every series: its split, tables, columns with unit and format, licence
    data/tables/SOURCES.md      the same for people

The files are committed, so that nobody else needs those packages. Whole data sets go to one split each.

The extractions stand in the modules `sources_*`, one function per data set, each returning series (`source_series.py`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from vrag_nb.documents.decks import (
    sources_life,
    sources_nature,
    sources_population,
    sources_society,
    sources_trade,
    sources_work,
)
from vrag_nb.documents.decks.source_series import SeriesSource, TableSource
from vrag_nb.documents.decks.tables import TABLES


def slug(text: str) -> str:
    """`text` as a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def all_sources() -> list[SeriesSource]:
    """Every series of every data set."""
    modules = (sources_population, sources_society, sources_work, sources_trade, sources_nature, sources_life)
    makers: list[Callable[[], list[SeriesSource]]] = [make for module in modules for make in module.MAKERS]
    return [series for make in makers for series in make()]


def write_tables(folder: Path = TABLES) -> int:
    """Write every table, `sources.json` and `SOURCES.md`; returns the number of tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.csv"):
        old.unlink()
    entries, count, seen = [], 0, set()
    for series in all_sources():
        if series.name in seen:
            raise ValueError(f"two series are called {series.name!r}; names must be unique")
        seen.add(series.name)
        items = []
        for number, table in enumerate(series.tables):
            name = f"{slug(series.name)}-{number + 1}.csv"
            _write_table(folder / name, table)
            items.append(_item(name, table))
            count += 1
        data = series.dataset
        entries.append(
            {
                "name": series.name,
                "split": data.split,
                "dataset": data.key,
                "title": data.title,
                "licence": data.licence,
                "credit": data.credit,
                "origin": data.origin,
                "source_line": f"Source: {data.credit}",
                "tables": items,
            }
        )
    text = json.dumps({"series": entries}, ensure_ascii=False, indent=1)
    (folder / "sources.json").write_text(text + "\n", encoding="utf-8")
    (folder / "SOURCES.md").write_text(_markdown(entries), encoding="utf-8")
    return count


def _write_table(path: Path, table: TableSource) -> None:
    frame = table.frame.dropna()
    if len(frame) < 4:
        raise ValueError(f"{path.name}: {len(frame)} complete rows; a table needs at least four")
    if frame.index.duplicated().any():
        raise ValueError(f"{path.name}: row names repeat: {list(frame.index[frame.index.duplicated()])[:3]}")
    shown = pd.DataFrame(index=[str(label) for label in frame.index])
    for position, column in enumerate(table.columns):
        shown[column.name] = [f"{value:.{column.decimals}f}" for value in frame.iloc[:, position]]
    shown.to_csv(path, index_label=table.row_header, lineterminator="\n")


def _item(name: str, table: TableSource) -> dict:
    return {
        "file": name,
        "measure": table.measure,
        "scope": table.scope,
        "row_header": table.row_header,
        "rows_plural": table.rows_plural,
        "rows_are": table.rows_are,
        "columns_are": table.columns_are,
        "columns": [asdict(column) for column in table.columns],
    }


def _markdown(entries: list[dict]) -> str:
    lines = [
        "# Where the tables come from",
        "",
        "The tables are cut from sample data shipped with Python packages, by "
        "`python -m vrag_nb.documents.decks.sources`.",
        "Each data set belongs to one split, together with everything cut from it.",
        "",
        "| data set | split | licence | credit | origin | series | tables |",
        "|---|---|---|---|---|---|---|",
    ]
    for key in dict.fromkeys(entry["dataset"] for entry in entries):
        group = [entry for entry in entries if entry["dataset"] == key]
        first, tables = group[0], sum(len(entry["tables"]) for entry in group)
        names = ", ".join(entry["name"] for entry in group)
        cells = [first[key] for key in ("title", "split", "licence", "credit", "origin")]
        lines.append(f"| {' | '.join([*cells, names, str(tables)])} |")
    total = sum(len(entry["tables"]) for entry in entries)
    return "\n".join([*lines, "", f"{len(entries)} series, {total} tables."]) + "\n"


if __name__ == "__main__":
    print(f"{write_tables(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES)} tables written")
