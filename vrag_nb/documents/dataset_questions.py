"""Questions that come with the rows of a data set, as unified questions about the pages that the rows became."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field

from vrag_nb.documents.annotations import NOT_ANSWERABLE, says_not_answerable
from vrag_nb.documents.dataset_rows import plain_text
from vrag_nb.records import MetaInfo, Question, page_id


class Asked(BaseModel):
    """A row's question. `uid`: the data set's, "" for none; `answers`: the reference and what else is right."""

    query: str
    answers: list[str] = Field(default_factory=list)
    uid: str = ""


class AskedRow(BaseModel):
    """A question, the row it stands in (such as `test-12`) and the page that is its gold."""

    asked: Asked
    row: str
    document: str
    page: int


def asked_by(row: dict[str, Any], columns: dict[str, str]) -> Asked | None:
    """The question of a row, by `{meaning: column}`; None for a row without one. Raises FieldError."""
    query = plain_text(row, columns.get("query"))
    if not query:
        return None
    return Asked(query=query, answers=_several(row, columns.get("answer")), uid=plain_text(row, columns.get("uid")))


def gather_questions(rows: Iterable[AskedRow], pages: set[str]) -> tuple[list[Question], list[str]]:
    """Unified questions in the rows' order, and a line for what was left out or changed.

    Rows of one uid, question and document are one question whose gold are all their pages. Another question under a uid
    that is taken gets `~2`, `~3`, ...; one without a uid is named by its row. A question whose page is not among
    `pages` is left out. One that is not answerable has no gold page.
    """
    questions: dict[str, Question] = {}
    problems = []
    for one in rows:
        if page_id(one.document, one.page) not in pages:
            problems.append(f"{one.row}: its question is left out: its page has no image")
            continue
        made = _question(one)
        uid = _free_uid(made, questions)
        if uid in questions:  # the same question about a further page
            gold = questions[uid].meta_info.reference_page
            gold[:] = sorted({*gold, *made.meta_info.reference_page})
            continue
        if uid != made.uid:
            problems.append(f"{one.row}: uid {made.uid!r} is taken by another question; it is {uid!r} here")
        questions[uid] = made.model_copy(update={"uid": uid})
    return list(questions.values()), problems


def _question(one: AskedRow) -> Question:
    reference, *others = one.asked.answers or [""]
    unanswerable = says_not_answerable(reference)
    meta = {
        "file_name": f"{one.document}.pdf",
        "reference_page": [] if unanswerable else [one.page],
        "query_type": "unanswerable" if unanswerable else "unknown",
        **({"answers": [reference, *others]} if others else {}),
    }
    return Question(
        uid=one.asked.uid or one.row,
        query=one.asked.query,
        reference_answer=NOT_ANSWERABLE if unanswerable else reference,
        meta_info=MetaInfo.model_validate(meta),
    )


def _free_uid(question: Question, taken: dict[str, Question]) -> str:
    """A uid that is free, or that of the same question."""
    uid, count = question.uid, 1
    while uid in taken and (taken[uid].query, taken[uid].document) != (question.query, question.document):
        count += 1
        uid = f"{question.uid}~{count}"
    return uid


def _several(row: dict[str, Any], column: str | None) -> list[str]:
    """A column's texts: one, a list, or a list in a string (`"['12', 'twelve']"`); empty ones left out."""
    value = row.get(column) if column else None
    if isinstance(value, str) and value.strip().startswith("["):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):  # it may be an answer in brackets
            value = ast.literal_eval(value.strip())
    values = value if isinstance(value, list) else [value]
    texts = [plain_text({str(column): one}, column) for one in values]
    return list(dict.fromkeys(filter(None, texts)))
