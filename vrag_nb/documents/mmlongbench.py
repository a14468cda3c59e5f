"""MMLongBench-Doc's questions as unified Questions.

MMLongBench-Doc (Ma et al., arXiv 2407.01523) ships a folder of PDFs and `samples.json`, one row a question:

    doc_id           the PDF's file name            evidence_pages    a string holding a list of 1-based pages
    doc_type         what kind of document it is    evidence_sources  a string holding a list of what holds the evidence
    question, answer                                answer_format     Str | Int | Float | List | None

Answers stay as they are written, save "Not answerable", which is "not answerable" here. Gold pages stay as shipped too:
a few unanswerable questions name the page that a reader would be misled by, and the data set counts them among those
with evidence.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vrag_nb.records import MetaInfo, Question

NOT_ANSWERABLE = "not answerable"
SOURCE_TYPES = {  # the data set's names for what holds the evidence -> ours
    "Pure-text (Plain-text)": "text",
    "Table": "table",
    "Chart": "chart",
    "Figure": "figure",
    "Generalized-text (Layout)": "layout",
}


class BadRow(BaseModel):
    """What is wrong with which field of which row (0-based); `kept`: the question was read all the same."""

    row: int
    field: str
    reason: str
    kept: bool = False


def read_mmlongbench(samples: Path) -> tuple[list[Question], list[BadRow]]:
    """The questions of a `samples.json` (or `.jsonl`), and what was wrong with rows.

    `uid` is `mmlongbench_{document}_{n}`, n counting the document's rows from 0, so that it does not depend on what
    other documents a slice holds. `meta_info.source_type` joins several sources with "+" in the data set's order;
    `query_type` is unanswerable, multi_hop (evidence on several pages), single_hop or unknown. `doc_type` and
    `answer_format` ride along in `meta_info`. Raises FileNotFoundError, or ValueError when it is no list of rows.
    """
    questions: list[Question] = []
    bad: list[BadRow] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(_read_rows(Path(samples))):
        if not isinstance(row, dict):
            bad.append(BadRow(row=number, field="row", reason=f"expected an object, found {type(row).__name__}"))
            continue
        document = str(row.get("doc_id", "")).removesuffix(".pdf")
        count = seen[document] = seen.get(document, -1) + 1  # a bad row takes its number too: uids do not move
        try:
            pages, impossible = _page_numbers(row)
            questions.append(_question(row, f"mmlongbench_{document}_{count}", pages))
            if impossible:
                reason = f"dropped {impossible}, which are no 1-based page numbers"
                bad.append(BadRow(row=number, field="evidence_pages", reason=reason, kept=True))
        except _FieldError as error:
            bad.append(BadRow(row=number, field=error.field, reason=error.reason))
    return questions, bad


def _read_rows(samples: Path) -> list[Any]:
    if not samples.is_file():
        raise FileNotFoundError(f"no MMLongBench-Doc samples at {samples}: expected the data set's samples.json")
    text = samples.read_text(encoding="utf-8")
    try:
        if samples.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{samples} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ValueError(f"{samples}: expected a list of rows, found {type(rows).__name__}")
    return rows


class _FieldError(Exception):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field, self.reason = field, reason


def _question(row: dict[str, Any], uid: str, pages: list[int]) -> Question:
    file_name, query, answer = (_text(row, field) for field in ("doc_id", "question", "answer"))
    sources = [str(source) for source in _listed(row, "evidence_sources")]
    unanswerable = answer.lower().rstrip(".") == NOT_ANSWERABLE
    try:
        meta = MetaInfo.model_validate(
            {
                "file_name": file_name,
                "reference_page": pages,
                "source_type": "+".join(SOURCE_TYPES.get(source, _slug(source)) for source in sources) or "unknown",
                "query_type": _query_type(unanswerable, pages),
                "doc_type": str(row.get("doc_type") or "unknown"),
                "answer_format": str(row.get("answer_format") or "None"),
            }
        )
    except ValidationError as error:
        raise _FieldError("meta_info", error.errors()[0]["msg"]) from None
    return Question(uid=uid, query=query, reference_answer=NOT_ANSWERABLE if unanswerable else answer, meta_info=meta)


def _query_type(unanswerable: bool, pages: Sequence[int]) -> str:
    if unanswerable:
        return "unanswerable"
    return "unknown" if not pages else "multi_hop" if len(pages) > 1 else "single_hop"


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise _FieldError(field, "is missing or empty" if value in (None, "") else f"expected text, found {value!r}")
    return str(value).strip()


def _page_numbers(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """The gold pages, and the numbers that no page can have (the data set holds a few zeros)."""
    pages = _listed(row, "evidence_pages")
    if any(not isinstance(page, int) or isinstance(page, bool) for page in pages):
        raise _FieldError("evidence_pages", f"expected page numbers, found {pages!r}")
    return sorted({page for page in pages if page >= 1}), sorted({page for page in pages if page < 1})


def _listed(row: dict[str, Any], field: str) -> list[Any]:
    """A list that the data set writes as a string (`"[3, 5]"`); a real list, or nothing at all, is taken too."""
    value = row.get(field)
    if value in (None, ""):
        return []
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise _FieldError(field, f"expected a list in a string, found {row[field]!r}") from None
    if not isinstance(value, list):
        raise _FieldError(field, f"expected a list, found {value!r}")
    return value


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unknown"
