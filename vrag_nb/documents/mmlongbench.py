"""MMLongBench-Doc's questions as unified Questions.

MMLongBench-Doc (Ma et al., arXiv 2407.01523) ships a folder of PDFs and `samples.json`, one row a question:

    doc_id           the PDF's file name            evidence_pages    a string holding a list of 1-based pages
    doc_type         what kind of document it is    evidence_sources  a string holding a list of what holds the evidence
    question, answer                                answer_format     Str | Int | Float | List | None

Answers stay as they are written, save "Not answerable", which is "not answerable" here. Gold pages stay as shipped too:
a few unanswerable questions name the page that a reader would be misled by, and the data set counts them among those
with evidence. `meta_info.columns` names the papers' columns: text, table, chart, figure and layout, which overlap, of
an answerable question; "unanswerable" of the others. VRAG-RL's tables (arXiv 2505.22019) leave the latter out.

Licence of the data: CC BY-NC 4.0; the documents are third parties'. Nothing is downloaded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrag_nb.documents.annotations import (
    NOT_ANSWERABLE,
    BadRow,
    Mended,
    list_field,
    meta_info,
    page_field,
    read_records,
    says_not_answerable,
    slug,
    text_field,
)
from vrag_nb.records import Question

LICENCE = "data CC BY-NC 4.0 (non-commercial, attribution); the PDFs belong to third parties"
SOURCE_TYPES = {  # the data set's names for what holds the evidence -> ours
    "Pure-text (Plain-text)": "text",
    "Table": "table",
    "Chart": "chart",
    "Figure": "figure",
    "Generalized-text (Layout)": "layout",
}


def read_mmlongbench(samples: Path) -> tuple[list[Question], list[BadRow]]:
    """The questions of a `samples.json` (or `.jsonl`, `.parquet`), and what was wrong with rows.

    `uid` is `mmlongbench_{document}_{n}`, n counting the document's rows from 0, so that it does not depend on what
    other documents a slice holds. `meta_info.source_type` joins several sources with "+" in the data set's order;
    `query_type` is unanswerable, multi_hop (evidence on several pages), single_hop or unknown. `doc_type`,
    `answer_format`, `benchmark` and `columns` ride along in `meta_info`. Raises FileNotFoundError, or ValueError when
    it is no list of rows.
    """
    if not Path(samples).is_file():
        raise FileNotFoundError(f"no MMLongBench-Doc samples at {samples}: expected the data set's samples.json")
    seen: dict[str, int] = {}

    def convert(row: dict[str, Any]) -> tuple[Question, Mended]:
        document = str(row.get("doc_id", "")).removesuffix(".pdf")
        count = seen[document] = seen.get(document, -1) + 1  # a bad row takes its number too: uids do not move
        pages, mended = page_field(row, "evidence_pages")
        return _question(row, f"mmlongbench_{document}_{count}", pages), mended

    return read_records(samples, convert)


def _question(row: dict[str, Any], uid: str, pages: list[int]) -> Question:
    file_name, query, answer = (text_field(row, field) for field in ("doc_id", "question", "answer"))
    sources = [SOURCE_TYPES.get(str(source), slug(source)) for source in list_field(row, "evidence_sources")]
    unanswerable = says_not_answerable(answer)
    meta = meta_info(
        file_name=file_name,
        reference_page=pages,
        source_type="+".join(sources) or "unknown",
        query_type=_query_type(unanswerable, pages),
        doc_type=str(row.get("doc_type") or "unknown"),
        answer_format=str(row.get("answer_format") or "None"),
        benchmark="mmlongbench",
        columns=["unanswerable"] if unanswerable else list(dict.fromkeys(sources)),
    )
    return Question(uid=uid, query=query, reference_answer=NOT_ANSWERABLE if unanswerable else answer, meta_info=meta)


def _query_type(unanswerable: bool, pages: Sequence[int]) -> str:
    if unanswerable:
        return "unanswerable"
    return "unknown" if not pages else "multi_hop" if len(pages) > 1 else "single_hop"
