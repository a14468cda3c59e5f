"""A data set of page images on disk, read in blocks of rows so that it is never in memory as a whole.

    rows = open_rows(Path("docvqa"), split="test")
    columns = choose_columns(rows, Columns(document="docId"))
    for block, content in rows.read(rows.blocks, columns.chosen()):
        ...                                          # content: one dict a row; or a string, why there are none

A data set is a parquet file, a folder of parquet files (as the Hugging Face hub keeps them) or a folder that `datasets`
has saved (`save_to_disk`). Images stay as they are encoded: nothing is decoded here. Nothing is downloaded either.
Of a parquet file no more than a row group is in memory, which is 100 rows where `datasets` wrote it.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vrag_nb.documents.annotations import FieldError
from vrag_nb.documents.rendered import in_words
from vrag_nb.documents.sources import clean_text

BLOCK_ROWS = 16  # rows that are in memory, and with a worker, at once
BUFFER = 2**20  # bytes read at once of a column


@dataclass(frozen=True)
class Block:
    """Rows `first`..`first + count - 1` (0-based) of a file of the data set; `group`: its row group, where there are
    any."""

    file: str
    first: int
    count: int
    group: int = 0


@dataclass(frozen=True)
class Columns:
    """What the columns of a data set are called. None: recognised by its usual names; "": there is none.

    image: the page image, as `datasets` stores it, as bytes, or as a path inside the data set's folder. document, page:
    which page of which document it is; file: the image file's name, which names the document where no column does.
    text: the page's text layer. query, answer, uid: a question about the page.
    """

    image: str | None = None
    document: str | None = None
    file: str | None = None
    page: str | None = None
    text: str | None = None
    query: str | None = None
    answer: str | None = None
    uid: str | None = None

    def chosen(self) -> dict[str, str]:
        """`{meaning: column}` of the columns there are."""
        return {meaning: name for meaning, name in asdict(self).items() if name}


USUAL_NAMES = {  # in order; lower case, letters and digits only: `doc-id`, `doc_id` and `docId` are one
    "image": ("image", "pageimage", "img", "pageimg", "picture"),
    "document": ("document", "docid", "documentid", "doc", "docname", "documentname", "pdf", "pdfname", "deckname"),
    "file": ("imagefilename", "imagefile", "imagename", "imagepath", "filename"),
    "page": ("pagenumber", "page", "pageno", "pagenum", "pagenumberindoc", "pageindex"),
    "text": ("text", "pagetext", "ocr", "ocrtext", "markdown"),
    "query": ("query", "question"),
    "answer": ("answer", "answers", "referenceanswer"),
    "uid": ("uid", "questionid", "queryid", "qid", "qaid"),
}


class Rows(ABC):
    """The rows of a data set. `fields`: its columns and their types; `blocks`: all rows, in order; `folder`: what paths
    in an image column are relative to; `files`: name, size in bytes and time of change of what it was read from."""

    def __init__(self, folder: Path, fields: Mapping[str, pa.DataType], blocks: Sequence[Block]) -> None:
        self.folder, self.fields, self.blocks = folder, dict(fields), list(blocks)
        self.files: list[tuple[str, int, int]] = []
        self.problems: dict[str, str] = {}  # files that cannot be read, and why

    @abstractmethod
    def read(self, blocks: Sequence[Block], columns: Iterable[str]) -> Iterator[tuple[Block, list[dict] | str]]:
        """The given blocks in order with their rows; in the place of rows that cannot be read, the reason."""

    def __len__(self) -> int:
        return sum(block.count for block in self.blocks)


def open_rows(source: Path, split: str | None = None) -> Rows:
    """The rows of a data set on disk; `split` names one of several, None takes all parquet files there are.

    Raises FileNotFoundError where there is nothing, and ValueError naming the file that is no data set or the splits
    there are.
    """
    source = Path(source)
    if source.is_file():
        if split is not None:
            raise ValueError(f"{source} is one file, and a split is chosen among several: leave out the split")
        return ParquetRows(source.parent, [source])
    if not source.is_dir():
        raise FileNotFoundError(f"no data set at {source}: name a parquet file or a folder")
    if any((source / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return SavedRows(source, split)
    return ParquetRows(source, _parquet_files(source, split))


class ParquetRows(Rows):
    """Parquet files, in the order of their names."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        fields: dict[str, pa.DataType] = {}
        blocks: list[Block] = []
        problems: dict[str, str] = {}
        for path in files:
            name = path.relative_to(folder).as_posix()
            try:
                with pq.ParquetFile(path) as file:
                    known = {field.name: field.type for field in file.schema_arrow}
                    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            except (pa.ArrowException, OSError) as error:
                problems[name] = f"is not a parquet file: {in_words(error)}"
                continue
            if fields and fields.keys() != known.keys():
                odd = ", ".join(sorted(fields.keys() ^ known.keys()))
                raise ValueError(
                    f"{folder}: {name} has other columns than the files before it ({odd}): "
                    "name one file, the folder of one configuration, or a split"
                )
            fields = fields or known
            blocks += _cut(name, groups)
        if not blocks:
            why = "; ".join(f"{name} {reason}" for name, reason in problems.items())
            raise ValueError(f"{folder}: no row in {', '.join(path.name for path in files)}{'; ' * bool(why)}{why}")
        super().__init__(folder, fields, blocks)
        self.files, self.problems = _stamps(folder, files), problems

    def read(self, blocks: Sequence[Block], columns: Iterable[str]) -> Iterator[tuple[Block, list[dict] | str]]:
        names = list(columns)
        for (name, group), wanted in groupby(blocks, lambda block: (block.file, block.group)):
            left = {block.first: block for block in wanted}
            every = [block for block in self.blocks if (block.file, block.group) == (name, group)]
            last = max(left)
            try:
                # without a buffer the whole column of a row group is read at once; threads take twice the memory
                with pq.ParquetFile(self.folder / name, buffer_size=BUFFER, pre_buffer=False) as file:
                    batches = file.iter_batches(
                        BLOCK_ROWS, [group], names, use_threads=False
                    )  # threads take twice the memory
                    for block, batch in zip(every, batches, strict=False):
                        if batch.num_rows != block.count:
                            raise OSError(f"{batch.num_rows} rows at row {block.first}, not {block.count}")
                        if left.pop(block.first, None):
                            yield block, batch.to_pylist()
                        if block.first >= last:
                            break
                if left:
                    raise OSError("it ends before its last row")
            except (pa.ArrowException, OSError) as error:
                reason = f"cannot be read: {in_words(error)}"
                for block in list(left.values()):
                    yield block, reason


class SavedRows(Rows):
    """What `datasets.Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote; memory-mapped by `datasets`."""

    def __init__(self, folder: Path, split: str | None) -> None:
        import datasets  # seconds, which readers of parquet do not need

        if (folder / "dataset_dict.json").is_file():
            splits = sorted(path.parent.name for path in folder.glob("*/state.json"))
            if split is None and len(splits) == 1:
                split = splits[0]
            if split not in splits:
                raise ValueError(f"{folder} holds the splits {', '.join(splits) or 'of nothing'}: name one of them")
            folder = folder / split
        elif split is not None and split != (own := _own_split(folder)):
            raise ValueError(
                f"{folder} is one data set, {f'the split {own!r}' if own else 'without splits'}: name no other"
            )
        try:
            loaded = datasets.load_from_disk(str(folder))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise ValueError(f"{folder} is no data set that `datasets` can load: {in_words(error)}") from None
        assert isinstance(loaded, datasets.Dataset)
        self._rows = loaded.with_format("arrow")
        fields = {field.name: field.type for field in loaded.features.arrow_schema}
        super().__init__(folder, fields, _cut(folder.name, [len(loaded)]))
        if not self.blocks:
            raise ValueError(f"{folder} holds no row")
        self.files = _stamps(folder, [path for path in folder.iterdir() if path.is_file()])

    def read(self, blocks: Sequence[Block], columns: Iterable[str]) -> Iterator[tuple[Block, list[dict] | str]]:
        rows = self._rows.select_columns(list(columns))
        for block in blocks:
            try:
                content: list[dict] | str = rows[block.first : block.first + block.count].to_pylist()
            except (pa.ArrowException, OSError) as error:
                content = f"cannot be read: {in_words(error)}"
            yield block, content


def _own_split(folder: Path) -> str:
    """The split that a saved data set says it is; "" where it says nothing."""
    try:
        return str(json.loads((folder / "state.json").read_bytes()).get("_split") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def choose_columns(rows: Rows, columns: Columns) -> Columns:
    """`columns` with what is recognised filled in, None nowhere left.

    Raises ValueError listing the columns there are when a named one is missing or none holds images.
    """
    there = ", ".join(f"{name} ({_type_in_words(kind)})" for name, kind in rows.fields.items())
    named = columns.chosen()
    for meaning, name in named.items():
        if name not in rows.fields:
            raise ValueError(f"{rows.folder}: there is no column {name!r} for {meaning}; its columns: {there}")
    taken = set(named.values())
    found = {
        meaning: _recognised(rows.fields, meaning, taken) for meaning, name in asdict(columns).items() if name is None
    }
    columns = replace(columns, **found)
    if not columns.image or not _may_hold_images(rows.fields[columns.image], paths=True):
        wrong = f"column {columns.image!r} holds no images" if columns.image else "no column of images was recognised"
        raise ValueError(f"{rows.folder}: {wrong}; name one of its columns: {there}")
    if not columns.document:
        if "page" in named:
            raise ValueError(f"{rows.folder}: a page column needs a document column; its columns: {there}")
        columns = replace(columns, page="")  # a number within a document that nothing names
    if not columns.query:
        columns = replace(columns, answer="", uid="")
    return columns


def image_bytes(value: Any, folder: Path) -> bytes:
    """The encoded image of an image column's value. Raises ValueError saying why there is none."""
    if path := image_file(value):
        file = (folder / path).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file():
            raise ValueError(f"there is no image file {path} in the data set's folder")
        return file.read_bytes()
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes) or not content:
        raise ValueError("there is no image")
    return content


def image_file(value: Any) -> str:
    """The file beside the data set that an image column's value names; "" where it holds the image itself, or none."""
    if isinstance(value, dict):
        return "" if value.get("bytes") else str(value.get("path") or "")
    return value if isinstance(value, str) else ""


def file_stamp(file: Path) -> tuple[int, int] | None:
    """Size and time of change; None for a file that is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def plain_text(row: Mapping[str, Any], column: str | None) -> str:
    """A column's text, or number as text; "" for nothing and for no column. Raises FieldError for what is neither."""
    value = row.get(column) if column else None
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FieldError(str(column), f"expected text, found {type(value).__name__}")
    return clean_text(str(value))


def _recognised(fields: Mapping[str, pa.DataType], meaning: str, taken: set[str]) -> str:
    by_name = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(list(fields)) if name not in taken}
    usual = [by_name[name] for name in USUAL_NAMES[meaning] if name in by_name]
    if meaning == "image":
        likely = [name for name, kind in fields.items() if _may_hold_images(kind)]
        usual = [name for name in usual if _may_hold_images(fields[name], paths=True)]
        return usual[0] if usual else likely[0] if len(likely) == 1 else ""
    plain = [name for name in usual if not _may_hold_images(fields[name])]
    return plain[0] if plain else ""


def _may_hold_images(kind: pa.DataType, paths: bool = False) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    texts = (pa.types.is_string, pa.types.is_large_string)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or (paths and any(is_a(kind) for is_a in texts))


def _type_in_words(kind: pa.DataType) -> str:
    return "image" if pa.types.is_struct(kind) and _may_hold_images(kind) else str(kind)


def _cut(file: str, groups: Sequence[int]) -> list[Block]:
    """Blocks of BLOCK_ROWS rows; none reaches over two row groups."""
    blocks, start = [], 0
    for group, count in enumerate(groups):
        blocks += [
            Block(file, start + first, min(BLOCK_ROWS, count - first), group) for first in range(0, count, BLOCK_ROWS)
        ]
        start += count
    return blocks


def _parquet_files(folder: Path, split: str | None) -> list[Path]:
    files = [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise ValueError(f"{folder} holds no data set: no parquet file, and nothing that `datasets` has saved")
    if split is None:
        return files
    chosen = [path for path in files if split in re.split(r"[-./]", path.relative_to(folder).as_posix())]
    if not chosen:
        names = ", ".join(path.relative_to(folder).as_posix() for path in files[:5])
        raise ValueError(f"{folder}: no parquet file of the split {split!r} among {names}{', ...' * (len(files) > 5)}")
    return chosen


def _stamps(folder: Path, files: Iterable[Path]) -> list[tuple[str, int, int]]:
    stats = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(files)]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
