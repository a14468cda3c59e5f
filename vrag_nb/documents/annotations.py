"""Published question files, read record by record: what is wrong with one is named, and the rest goes on.

    questions, bad = read_records(path, convert)     # convert: one row -> (Question, [(field, what was mended)])

A file is `.json` (a list, or `{"examples": [...]}`), `.jsonl` or `.parquet`. An adapter of a data set is one `convert`
that takes the row apart with `text_field`, `list_field` and `page_field`; these raise `FieldError` with the field and a
reason. A record that does not fit becomes a `BadRow` with file, number and field. Image columns of a parquet file are
not read.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ValidationError

from vrag_nb.records import MetaInfo, Page, Question, page_id, question_format

NOT_ANSWERABLE = "not answerable"


class BadRow(BaseModel):
    """What is wrong with which field of which record (0-based); `kept`: the question was read all the same."""

    row: int
    field: str
    reason: str
    kept: bool = False
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file}: record {self.row}, field {self.field}: {self.reason}"


class FieldError(Exception):
    """A record that cannot become a question; `field` and `reason` say why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


Mended = list[tuple[str, str]]  # (field, what was done to it)
Convert = Callable[[dict[str, Any]], tuple[Question, Mended]]


def read_records(path: Path, convert: Convert) -> tuple[list[Question], list[BadRow]]:
    """The questions of a file, and what was wrong with records.

    A record that repeats an earlier one (same uid, document and question) is left out; another question under a uid
    that is taken gets `~2`, `~3`, ... appended. Both are reported. Raises what `read_rows` raises.
    """
    path = Path(path)
    questions: dict[str, Question] = {}
    bad: list[BadRow] = []
    for number, row in enumerate(read_rows(path)):
        try:
            question, mended = convert(_object(row))
            uid = _free_uid(question, questions)
            if uid != question.uid:
                mended = [*mended, ("uid", f"{question.uid!r} is taken by another question; it is {uid!r} here")]
                question = question.model_copy(update={"uid": uid})
            questions[uid] = question
            bad += [BadRow(row=number, field=field, reason=why, kept=True, file=path.name) for field, why in mended]
        except FieldError as error:
            bad.append(BadRow(row=number, field=error.field, reason=error.reason, file=path.name))
    return list(questions.values()), bad


def read_rows(path: Path) -> list[Any]:
    """The records of a file as they are. A line that is no JSON stands as the `FieldError` that says so.

    Raises FileNotFoundError, and ValueError naming the file when it is of another kind or holds no records.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no question file at {path}")
    suffix = question_format(path)
    if suffix == ".parquet":
        return _parquet_rows(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        if suffix == ".jsonl":
            return [_line(line) for line in text.split("\n") if line.strip()]  # not at U+2028
        rows = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if isinstance(rows, dict):
        rows = rows.get("examples", rows)
    if not isinstance(rows, list):
        raise ValueError(f'{path}: expected a list of rows, or {{"examples": [...]}}, found {type(rows).__name__}')
    return rows


def text_field(row: dict[str, Any], field: str) -> str:
    """A field that must hold text or a number, stripped. Raises FieldError."""
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise FieldError(field, "is missing or empty" if value in (None, "") else f"expected text, found {value!r}")
    return str(value).strip()


def list_field(row: dict[str, Any], field: str) -> list[Any]:
    """A list, or a list written as a string (`"[3, 5]"`); empty where there is nothing. Raises FieldError."""
    value = row.get(field)
    if value in (None, ""):
        return []
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise FieldError(field, f"expected a list in a string, found {row[field]!r}") from None
    if not isinstance(value, list):
        raise FieldError(field, f"expected a list, found {value!r}")
    return value


def page_field(row: dict[str, Any], field: str) -> tuple[list[int], Mended]:
    """1-based pages in order, once each; numbers that no page can have are dropped and reported. Raises FieldError."""
    pages = list_field(row, field)
    if any(not isinstance(page, int) or isinstance(page, bool) for page in pages):
        raise FieldError(field, f"expected page numbers, found {pages!r}")
    impossible = sorted({page for page in pages if page < 1})
    mended = [(field, f"dropped {impossible}, which are no 1-based page numbers")] if impossible else []
    return sorted({page for page in pages if page >= 1}), mended


def meta_info(**fields: Any) -> MetaInfo:
    """A MetaInfo. Raises FieldError in place of pydantic's error."""
    try:
        return MetaInfo.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise FieldError(".".join(["meta_info", *map(str, first["loc"])]), first["msg"]) from None


def slug(name: object) -> str:
    """A label in lower case with underscores: "Multi-Hop" is multi_hop; "unknown" for nothing."""
    return re.sub(r"[^a-z0-9]+", "_", str(name or "").lower()).strip("_") or "unknown"


def says_not_answerable(answer: str) -> bool:
    """Whether a reference answer is the data sets' "Not answerable"."""
    return answer.strip().lower().rstrip(".") == NOT_ANSWERABLE


def check_pages(questions: Sequence[Question], pages: Iterable[Page]) -> tuple[list[Question], list[str]]:
    """Questions whose document is among `pages`, and a line for everything that did not fit.

    A question on a document that is not there is left out. A gold page that its document (`reference_documents`,
    where gold is of several) does not have is dropped, the question kept; so is a gold region on such a page.
    Questions that name no document stay as they are.
    """
    pages = list(pages)
    there, last = {page.page_id for page in pages}, Counter[str]()
    for page in pages:
        last[page.document] = max(last[page.document], page.page)
    kept, problems = [], []
    for question in questions:
        document = question.document
        if document and document not in last:
            problems.append(f"question {question.uid}: its document {document} is not there; left out")
            continue
        missing: dict[str, list[int]] = {}
        for document, number in zip(question.gold_documents, question.meta_info.reference_page, strict=True):
            if page_id(document, number) not in there:
                missing.setdefault(document, []).append(number)
        for document, gone in missing.items():
            pages_there = f"{last[document]} pages" if document in last else "not there"
            problems.append(f"question {question.uid}: {document} ({pages_there}) has no page {gone}")
        lost = _lost_regions(question, there)
        if unsaid := sorted(lost.difference(missing.get(question.document, []))):
            problems.append(f"question {question.uid}: reference_regions: {question.document} has no page {unsaid}")
        kept.append(_with_gold(question, there) if missing or lost else question)
    return kept, problems


def _lost_regions(question: Question, there: set[str]) -> set[int]:
    """Pages of gold regions that the question's document does not have."""
    pages = {region.page for region in question.meta_info.reference_regions if question.document}
    return {page for page in pages if page_id(question.document, page) not in there}


def _with_gold(question: Question, there: set[str]) -> Question:
    """The question with those of its gold pages and regions that are there, and their documents where named."""
    meta, lost = question.meta_info, _lost_regions(question, there)
    gold = zip(question.gold_page_ids, question.gold_documents, meta.reference_page, strict=True)
    left = [(document, page) for name, document, page in gold if name in there]
    update: dict[str, Any] = {
        "reference_page": [page for _, page in left],
        "reference_regions": [region for region in meta.reference_regions if region.page not in lost],
    }
    if (meta.model_extra or {}).get("reference_documents"):
        update["reference_documents"] = [document for document, _ in left]
    return question.model_copy(update={"meta_info": meta.model_copy(update=update)})


def _parquet_rows(path: Path) -> list[Any]:
    try:
        schema = pq.read_schema(path)
        names = [field.name for field in schema if not pa.types.is_struct(field.type) or field.name == "meta_info"]
        return pq.read_table(path, columns=names).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from None


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return FieldError("line", f"is not JSON: {error}")


def _object(row: Any) -> dict[str, Any]:
    if isinstance(row, FieldError):
        raise row
    if not isinstance(row, dict):
        raise FieldError("row", f"expected an object, found {type(row).__name__}")
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    """A field's value; None for NaN, which pandas writes where there is nothing."""
    if isinstance(value, dict):
        return {name: _value(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _free_uid(question: Question, taken: dict[str, Question]) -> str:
    uid, count = question.uid, 1
    while uid in taken:
        other = taken[uid]
        if (other.document, other.query) == (question.document, question.query):
            raise FieldError("uid", f"{question.uid!r} and its question stand in an earlier record")
        count += 1
        uid = f"{question.uid}~{count}"
    return uid
