"""ViDoSeek's questions as unified Questions.

ViDoSeek (ViDoRAG, arXiv 2502.18017) ships PDFs and `vidoseek.json`, `{"examples": [...]}` with one record a question:

    uid, query, reference_answer
    meta_info: file_name (with .pdf), reference_page (1-based list), source_type, query_type

The format is the unified one; what differs is spelling: "Multi-Hop" is multi_hop here, "2d_layout" is layout. The
papers' columns, in `meta_info.columns`, are extraction for single-hop questions and logic for multi-hop ones: VRAG-RL
(arXiv 2505.22019, table 4) counts 645 and 497 of the 1,142 questions. A record that names its column itself keeps it.
Most questions have one gold page, also multi-hop ones: recall is that of the annotated page.

Licence of the data set: Apache-2.0, as its repository says. Nothing is downloaded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vrag_nb.documents.annotations import (
    NOT_ANSWERABLE,
    BadRow,
    FieldError,
    Mended,
    meta_info,
    page_field,
    read_records,
    says_not_answerable,
    slug,
    text_field,
)
from vrag_nb.records import Question

LICENCE = "Apache-2.0, as the data set's repository says"
COLUMNS = {"single_hop": "extraction", "multi_hop": "logic", "extraction": "extraction", "logic": "logic"}
HOPS = {"extraction": "single_hop", "logic": "multi_hop"}
SOURCES = {"2d_layout": "layout"}


def read_vidoseek(path: Path) -> tuple[list[Question], list[BadRow]]:
    """The questions of a `vidoseek.json`, and what was wrong with records. Raises what `read_rows` raises."""
    return read_records(path, lambda row: unified_record(row, "vidoseek", COLUMNS))


def unified_record(
    row: dict[str, Any], benchmark: str, columns: dict[str, str], prefix: str = ""
) -> tuple[Question, Mended]:
    """A record in ViDoSeek's format, also used by its authors for other data sets.

    columns: of a benchmark, by query type. prefix: put before the uid. Further fields of `meta_info` stay as they are.
    Raises FieldError naming the field.
    """
    meta = row.get("meta_info")
    if not isinstance(meta, dict):
        raise FieldError("meta_info", f"expected an object, found {type(meta).__name__}")
    uid, query, answer = (text_field(row, field) for field in ("uid", "query", "reference_answer"))
    try:
        file_name = text_field(meta, "file_name")
        pages, mended = page_field(meta, "reference_page")
    except FieldError as error:
        raise FieldError(f"meta_info.{error.field}", error.reason) from None
    unanswerable = says_not_answerable(answer)
    kind, source = slug(meta.get("query_type")), slug(meta.get("source_type"))
    known = {
        "file_name": file_name,
        "reference_page": pages,
        "source_type": SOURCES.get(source, source),
        "query_type": "unanswerable" if unanswerable else HOPS.get(kind, kind),
        "benchmark": benchmark,
        "columns": [columns[kind]] if kind in columns else [],
        **_original_query(row, meta),
    }
    further = {field: value for field, value in meta.items() if value is not None and field != "origin_query"}
    info = meta_info(**{**further, **known})
    if kind not in columns:
        mended = [*mended, ("meta_info.query_type", f"{kind!r} is none of {sorted(columns)}: counted in no column")]
    reference = NOT_ANSWERABLE if unanswerable else answer
    mended = [(field if field.startswith("meta_info.") else f"meta_info.{field}", why) for field, why in mended]
    return Question(uid=f"{prefix}{uid}", query=query, reference_answer=reference, meta_info=info), mended


def _original_query(row: dict[str, Any], meta: dict[str, Any]) -> dict[str, str]:
    original = meta.get("origin_query") or row.get("origin_query")
    return {"origin_query": original} if isinstance(original, str) and original else {}
