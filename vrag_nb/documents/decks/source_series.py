"""What the modules `sources_*` make: series of tables cut from data sets that Python packages carry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from vrag_nb.documents.decks.tables import Column


@dataclass(frozen=True)
class Dataset:
    """A data set as a package carries it. All its series belong to `split`."""

    key: str
    title: str
    split: str
    licence: str
    credit: str
    origin: str  # package and file


@dataclass(frozen=True)
class TableSource:
    """One table to be written; see `tables.Table` for the words."""

    frame: pd.DataFrame  # index: row names; columns: numbers, in the order of `columns`
    columns: tuple[Column, ...]
    scope: str
    row_header: str
    rows_plural: str
    measure: str = ""
    rows_are: str = "entity"
    columns_are: str = "measure"


@dataclass(frozen=True)
class SeriesSource:
    """One series to be written."""

    name: str
    dataset: Dataset
    tables: tuple[TableSource, ...] = field(default=())


def package_file(package: str, path: str) -> Path:
    """A data file inside an installed package. Raises ModuleNotFoundError naming the extra to install."""
    try:
        return Path(str(resources.files(package))) / path
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{package} is not installed: pip install 'vrag-nb[tables]'") from error


def numbers(names: Iterable[object], **form: Any) -> tuple[Column, ...]:
    """Columns that are all printed alike."""
    return tuple(Column(str(name), **form) for name in names)
