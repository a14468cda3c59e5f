"""A data set of page images becomes a corpus, as `documents.pages` makes one of a folder of PDFs.

    report = import_dataset(Path("docvqa/test.parquet"), Path("data/corpora/docvqa"))

reads parquet files or what `datasets` has saved (`documents.dataset_rows`) and writes

    data/corpora/docvqa/
      pages/{document}_{page}.jpg   the images as the data set has them: .jpg, .png, .webp; others become PNG
      pages.parquet                 one records.Page a row, in document then page order; written last
      questions.test.parquet        unified questions, where rows hold any
      prep_report.json              counts, what was skipped and why, what was not kept as it was and why
      .import/                      the plan, and a record of every finished block of rows, for the next run

**Pages.** A row is a page of the document that its document column names; its number is that of the page column, or
where that says nothing, the next one in row order. A row that no column puts into a document is a document of one page,
named by its image file or else by file and row (`test-00000-12`). In a data set of questions a page is there once for
each: rows of one document and one image, byte for byte, are one page then, unless their page numbers differ. Documents
are named by the rule in `documents.names`.

**Images.** What browsers show as it is stays as it is, after it was decoded once to see that it can be. Transparent,
turned, CMYK, 16-bit and too large ones are laid on white, upright and scaled down, and named in the report.

**Resuming.** Finished blocks are not read again while data set and settings are the same; another data set or other
settings begin anew. Files are written under another name and renamed, so after `kill -9` the rerun ends with the same
bytes as an undisturbed run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from tqdm.auto import tqdm

from vrag_nb.documents.annotations import FieldError
from vrag_nb.documents.dataset_images import Kept, Picture, PictureTask, write_pictures
from vrag_nb.documents.dataset_naming import Place, PlaceError, Places
from vrag_nb.documents.dataset_questions import Asked, AskedRow, asked_by, gather_questions
from vrag_nb.documents.dataset_rows import (
    Block,
    Columns,
    Rows,
    choose_columns,
    file_stamp,
    image_bytes,
    image_file,
    open_rows,
    plain_text,
)
from vrag_nb.documents.merging import QUESTIONS
from vrag_nb.documents.pages import PrepReport, Skipped
from vrag_nb.documents.rendered import in_words
from vrag_nb.documents.rendering import start_worker
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.workers import TaskPool, WorkerDied, available_cores
from vrag_nb.files import write_text
from vrag_nb.folder_lock import alone_in
from vrag_nb.records import Page, Question, page_id, write_pages, write_questions

OURS = ".import"  # says that pages/ is this module's to change


class ImportReport(PrepReport):
    """What `import_dataset` did. `rendered` and `reused` count the rows of this run; `columns`: `{meaning: column}`."""

    rows: int = 0
    questions: int = 0
    columns: dict[str, str] = Field(default_factory=dict)


class RowRecord(BaseModel):
    """One row: the page it is, the page's record where it is the first row of it, its question, what is wrong.

    size: bytes of the page's image as it was written. file, stamp: the image's, where it lies beside the data set; no
    stamp where it was not there or failed.
    """

    row: int
    place: Place | None = None
    page: Page | None = None
    asked: Asked | None = None
    note: str = ""
    error: str = ""
    size: int = 0  # of records that were written before it was known
    file: str = ""
    stamp: tuple[int, int] | None = None


class BlockRecord(BaseModel):
    """The rows of a block, as kept in `.import/`; not where the next run should try `again`: the machine may have been
    the cause of what went wrong."""

    rows: list[RowRecord]
    again: bool = Field(default=False, exclude=True)


def import_dataset(
    source: Path,
    corpus: Path,
    columns: Columns | None = None,
    *,
    split: str | None = None,
    first_page: int = 1,
    workers: int | None = None,
    progress: bool = True,
    max_page_pixels: int = 16_000_000,
    time_limit: float = 600.0,
) -> ImportReport:
    """Make the corpus folder from a data set on disk; see the module's docstring.

    `columns`: names that are not the usual ones. `first_page`: what the page column counts from, 0 or 1. `workers`:
    processes that decode (default: one a core); `time_limit`: seconds for a block of rows in one of them. A row that
    cannot be used is named in the report with the reason; the rest goes on. Raises what `open_rows` and
    `choose_columns` raise, ValueError for a setting out of range or a corpus folder that is not the import's, and
    FolderInUseError while another process writes a corpus there.
    """
    if first_page not in (0, 1) or not time_limit > 0:
        raise ValueError(f"first_page {first_page} must be 0 or 1, time_limit {time_limit} more than 0")
    settings = RenderSettings(max_page_pixels=max_page_pixels)
    source, corpus = Path(source), Path(corpus)
    rows = open_rows(source, split)
    columns = choose_columns(rows, columns or Columns())
    importer = _Importer(rows, columns, corpus, first_page, settings)
    count = workers or available_cores()
    _check_folder(source, corpus)  # before a lock is written into a folder that is not ours
    with alone_in(corpus / "pages"):
        _check_folder(source, corpus)  # again: another process may have been there
        _begin(corpus, rows, columns, first_page, settings)
        with TaskPool(count, start_worker, time_limit) as pool:
            records, reused = importer.records(pool, 2 * count, progress)
        return _finish(source, corpus, importer, records, reused)


def _finish(
    source: Path, corpus: Path, importer: _Importer, records: Sequence[BlockRecord], reused: int
) -> ImportReport:
    """Write what is not images, the table of pages last."""
    report = importer.report(records, reused)
    pages = [row.page for record in records for row in record.rows if row.page]
    questions, problems = _questions(importer.rows, records)
    report.notes += [Skipped(file=source.name, reason=problem) for problem in problems]
    report.questions = len(questions)
    _sweep(corpus, pages)
    if questions:
        write_questions(corpus / QUESTIONS, questions)
    else:
        (corpus / QUESTIONS).unlink(missing_ok=True)
    write_text(corpus / "prep_report.json", report.model_dump_json(indent=1))
    write_pages(corpus, sorted(pages, key=lambda page: (page.document, page.page)))
    return report


class _Importer:
    """The rows of a data set on their way into a corpus folder."""

    def __init__(self, rows: Rows, columns: Columns, corpus: Path, first_page: int, settings: RenderSettings) -> None:
        self.rows, self.columns, self.corpus = rows, columns.chosen(), corpus
        self.first_page, self.settings = first_page, settings
        self.places = Places(merge_equal="query" in self.columns)
        self.unread = False  # whether a block could not be read: names after it may change when it can be

    def records(self, pool: TaskPool, together: int, progress: bool) -> tuple[list[BlockRecord], int]:
        """A record of every block, in order, and how many rows were there already.

        `together` blocks are read before their images are handed to the workers.
        """
        blocks = self.rows.blocks
        found = [_read_record(self.corpus, number, self.rows.folder) for number in range(len(blocks))]
        todo = [number for number, record in enumerate(found) if record is None]
        reused = len(self.rows) - sum(blocks[number].count for number in todo)
        stream = self.rows.read([blocks[number] for number in todo], dict.fromkeys(self.columns.values()))
        made: dict[int, BlockRecord] = {}
        tasks: list[PictureTask] = []
        with tqdm(total=len(self.rows), initial=reused, unit="row", desc="importing", disable=not progress) as bar:
            for number, block in enumerate(blocks):
                record = found[number]
                if record is not None:
                    self._take_over(record)
                    continue
                made[number], pictures = self._block(block, next(stream)[1])
                tasks.append(PictureTask(number, tuple(pictures), self.corpus / "pages", self.settings))
                if len(tasks) == together or number == todo[-1]:
                    self._write_pictures(tasks, made, pool)
                    bar.update(sum(blocks[task.number].count for task in tasks))
                    tasks = []
        return [record or made[number] for number, record in enumerate(found)], reused

    def _take_over(self, record: BlockRecord) -> None:
        for row in record.rows:
            if row.place:
                self.places.take(row.place)

    def _block(self, block: Block, content: list[dict[str, Any]] | str) -> tuple[BlockRecord, list[Picture]]:
        """The block's record as far as it is known before its pictures are decoded, and these pictures."""
        if isinstance(content, str):
            last, self.unread = block.first + block.count - 1, True
            return BlockRecord(rows=[RowRecord(row=block.first, error=f"to row {last} {content}")], again=True), []
        rows, pictures = [], []
        for number, row in enumerate(content, start=block.first):
            record, picture = self._row(row, number, row_name(block.file, number))
            rows.append(record)
            pictures += [picture] if picture else []
        return BlockRecord(rows=rows, again=self.unread), pictures

    def _row(self, row: dict[str, Any], number: int, name: str) -> tuple[RowRecord, Picture | None]:
        image, content = row[self.columns["image"]], b""
        record = RowRecord(row=number, file=image_file(image))
        stamp = file_stamp(self.rows.folder / record.file) if record.file else None  # before it is read
        try:
            content, record.stamp = image_bytes(image, self.rows.folder), stamp
        except (ValueError, OSError) as error:
            record.error, record.stamp = in_words(error), None if isinstance(error, OSError) else stamp
        try:
            key = self._key(row, name)
            page = page_number(row, self.columns.get("page"), self.first_page)
            place = self.places.place(key, page, hashlib.sha256(content).hexdigest() if content else "")
        except (PlaceError, FieldError) as error:
            record.error = _in_field(error)
            return record, None
        record.place = place
        try:
            record.asked = asked_by(row, self.columns)
        except FieldError as error:
            record.note = f"its question is left out: {_in_field(error)}"
        if record.error or place.repeated:
            return record, None
        named = {"page_id": page_id(place.document, place.page), "document": place.document, "page": place.page}
        try:
            text = plain_text(row, self.columns.get("text"))
        except FieldError as error:
            text, record.note = "", f"its text is left out: {_in_field(error)}"
        record.page = Page.model_validate({**named, "image": "", "width": 0, "height": 0, "text": text})
        return record, Picture(number, record.page.page_id, content)

    def _key(self, row: dict[str, Any], name: str) -> str:
        for meaning in ("document", "file"):
            if said := plain_text(row, self.columns.get(meaning)):
                return f"{meaning}:{said}"
        return f"row:{name}"

    def _write_pictures(self, tasks: Sequence[PictureTask], made: dict[int, BlockRecord], pool: TaskPool) -> None:
        """Have the tasks' pictures written, and keep the record of each block that is finished."""
        again: list[PictureTask] = []
        for task, result in pool.run(write_pictures, [task for task in tasks if task.pictures]):
            if isinstance(result, WorkerDied):  # each picture alone, so that only the guilty one is lost
                again += [replace(task, pictures=(picture,)) for picture in task.pictures]
            else:
                _fill(made[task.number], result)
        for task, result in pool.run(write_pictures, again):
            if isinstance(result, WorkerDied):
                made[task.number].again = True
                result = [Kept(task.pictures[0].row, error=str(result))]
            _fill(made[task.number], result)
        for task in tasks:
            if not made[task.number].again:
                write_text(_record_path(self.corpus, task.number), made[task.number].model_dump_json())

    def report(self, records: Sequence[BlockRecord], reused: int) -> ImportReport:
        """What became of the rows, without the questions."""
        rows = [
            (block.file, row) for block, record in zip(self.rows.blocks, records, strict=True) for row in record.rows
        ]
        pages = [row.page for _, row in rows if row.page]
        unread = [Skipped(file=file, reason=reason) for file, reason in self.rows.problems.items()]
        return ImportReport(
            pages=len(pages),
            documents=len({page.document for page in pages}),
            rows=len(self.rows),
            skipped=unread + [Skipped(file=f, reason=f"row {row.row}: {row.error}") for f, row in rows if row.error],
            notes=[Skipped(file=file, reason=f"row {row.row}: {row.note}") for file, row in rows if row.note],
            settings={"max_page_pixels": self.settings.max_page_pixels, "first_page": self.first_page},
            columns=self.columns,
            rendered=len(self.rows) - reused,
            reused=reused,
        )


def row_name(file: str, row: int) -> str:
    """What a row is called that has no name of its own: `data/test.parquet` and 12 are `data__test-12`."""
    return f"{file.removesuffix('.parquet').replace('/', '__')}-{row}"


def page_number(row: dict[str, Any], column: str | None, first_page: int) -> int | None:
    """The 1-based page that a row says it is; None where it does not say. Raises FieldError."""
    said = plain_text(row, column)
    if not said:
        return None
    try:
        number = float(said)
        page = int(number) - first_page + 1
    except (ValueError, OverflowError):
        raise FieldError(str(column), f"expected a page number, found {said!r}") from None
    if number != int(number) or page < 1:
        hint = "; do pages count from 0 here?" if number == 0 else ""
        raise FieldError(str(column), f"{said} is no page number from {first_page} on{hint}")
    return page


def _fill(record: BlockRecord, pictures: Iterable[Kept]) -> None:
    """Complete a block's rows by what became of their pictures."""
    rows = {row.row: row for row in record.rows}
    for kept in pictures:
        row = rows[kept.row]
        row.size = kept.size
        row.error, row.note = kept.error, "; ".join(filter(None, [row.note, kept.note]))
        if row.page:
            update = {"image": f"pages/{kept.file}", **{n: getattr(kept, n) for n in ("width", "height", "sha256")}}
            row.page = None if kept.error else row.page.model_copy(update=update)


def _in_field(error: PlaceError | FieldError) -> str:
    return f"column {error.field}: {error.reason}" if isinstance(error, FieldError) else str(error)


def _questions(rows: Rows, records: Sequence[BlockRecord]) -> tuple[list[Question], list[str]]:
    asked = [
        AskedRow(asked=row.asked, row=row_name(block.file, row.row), document=row.place.document, page=row.place.page)
        for block, record in zip(rows.blocks, records, strict=True)
        for row in record.rows
        if row.asked and row.place
    ]
    return gather_questions(asked, {row.page.page_id for record in records for row in record.rows if row.page})


# --- the corpus folder ------------------------------------------------------------------------------------------------


def _check_folder(source: Path, corpus: Path) -> None:
    folder = (source if source.is_dir() else source.parent).resolve()
    if corpus.resolve() == folder or (source.is_dir() and corpus.resolve().is_relative_to(folder)):
        raise ValueError(f"the corpus {corpus} lies in the data set's folder {folder}: choose another")
    pages = corpus / "pages"
    if folder.is_relative_to(pages.resolve()):
        raise ValueError(f"{source} lies inside {pages}, which belongs to the page images")
    if pages.is_dir() and not (corpus / OURS).is_dir() and any(pages.iterdir()):
        raise ValueError(f"{pages} holds files that no import made and would remove; choose another corpus folder")


def _begin(corpus: Path, rows: Rows, columns: Columns, first_page: int, settings: RenderSettings) -> None:
    """Make the folders, and forget what was imported of another data set or by other settings."""
    plan = json.dumps(
        {
            "format": 2,
            "files": [rows.folder.name, *rows.files],
            "blocks": len(rows.blocks),
            "columns": columns.chosen(),
            "first_page": first_page,
            "max_page_pixels": settings.max_page_pixels,
        }
    )
    path = corpus / OURS / "plan.json"
    if not path.is_file() or path.read_text(encoding="utf-8") != plan:
        for record in (corpus / OURS).glob("*.json"):
            record.unlink()
        (corpus / "pages.parquet").unlink(missing_ok=True)  # its images are about to be replaced
    for folder in (corpus / OURS, corpus / "pages"):  # in this order: the first marks pages/ as ours
        folder.mkdir(parents=True, exist_ok=True)
    write_text(path, plan)


def _record_path(corpus: Path, number: int) -> Path:
    return corpus / OURS / f"{number:06d}.json"


def _read_record(corpus: Path, number: int, folder: Path) -> BlockRecord | None:
    """A finished block's record; None where it is not finished, its images are gone or cut, or files that the data set
    in `folder` names have changed or come."""
    try:
        record = BlockRecord.model_validate_json(_record_path(corpus, number).read_bytes())
    except (OSError, ValidationError):
        return None
    there = all(_is_whole(corpus / row.page.image, row.size) for row in record.rows if row.page)
    same = all(file_stamp(folder / row.file) == row.stamp for row in record.rows if row.file)
    return record if there and same else None


def _is_whole(image: Path, size: int) -> bool:
    """Whether the image has its bytes, as many as were written or, where that is not known (0), any."""
    stamp = file_stamp(image)
    return stamp is not None and stamp[0] == (size or max(1, stamp[0]))


def _sweep(corpus: Path, pages: Sequence[Page]) -> None:
    """Remove what belongs to no page: images of an earlier data set, leftovers of a killed run."""
    wanted = {page.image for page in pages}
    for path in (corpus / "pages").iterdir():
        if f"pages/{path.name}" not in wanted and not path.is_dir():
            path.unlink()
    for path in (*corpus.glob(".*.partial"), *(corpus / OURS).glob(".*.partial")):
        path.unlink()
