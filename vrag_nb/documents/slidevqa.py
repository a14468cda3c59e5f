"""SlideVQA's questions as unified Questions, and its decks as documents.

SlideVQA (Tanaka et al., AAAI 2023, arXiv 2301.04883) annotates decks of 20 slides, one JSON line a question:

    deck_name, deck_url, image_urls, qa_id, question, answer
    evidence_pages         1-based slides                  arithmetic_expression  how a number is derived, or "None"
    reasoning_type         Single-Hop, Multi-Hop, ...      answer_type            Single-Span, Multi-Span, Non-Span

Its questions were written for one known deck. ViDoSeek's authors rewrote those of the test split so that they can be
asked of a whole corpus, `slidevqa_refined.json`, in ViDoSeek's own format, with the old wording as `origin_query`; the
papers evaluate on these. Both files are read, and a question has the same uid, `slidevqa_{qa_id}`, in both.

The papers' columns, in `meta_info.columns`, are single and multi, by reasoning type; without one, several evidence
pages mean multi. `source_type` holds the answer type (single_span, multi_span, non_span) as in the refined file:
what holds the evidence is not annotated.

Slides come as pictures, a folder a deck, or bound as PDFs with the refined file. `bind_decks` makes PDFs of the former.

Licence: NTT's software evaluation licence: internal evaluation only, no redistribution; the repository of the refined
file says Apache-2.0, but the decks are the same. Nothing is downloaded here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vrag_nb.documents.annotations import (
    NOT_ANSWERABLE,
    BadRow,
    FieldError,
    Mended,
    list_field,
    meta_info,
    page_field,
    read_records,
    says_not_answerable,
    slug,
    text_field,
)
from vrag_nb.documents.vidoseek import unified_record
from vrag_nb.files import replacing
from vrag_nb.records import Question

LICENCE = (
    "NTT Software Evaluation License (internal evaluation only, no redistribution); "
    "the refined questions Apache-2.0, as their repository says"
)
COLUMNS = {"single_hop": "single", "multi_hop": "multi"}
PICTURES = (".jpg", ".jpeg", ".png")


def read_slidevqa(path: Path) -> tuple[list[Question], list[BadRow]]:
    """The questions of SlideVQA's own annotations or of the refined file, and what was wrong with records.

    `answer_type`, `reasoning_type` and `arithmetic_expression` ride along in `meta_info`. Raises what `read_rows`
    raises.
    """
    return read_records(path, _convert)


def _convert(row: dict[str, Any]) -> tuple[Question, Mended]:
    if "meta_info" in row:
        return unified_record(row, "slidevqa", COLUMNS, prefix="slidevqa_")
    deck, number, query, answer = (text_field(row, field) for field in ("deck_name", "qa_id", "question", "answer"))
    pages, mended = page_field({**row, "evidence_pages": _numbers(row)}, "evidence_pages")
    unanswerable = says_not_answerable(answer)
    hop = _hop(row.get("reasoning_type"), pages)
    more = {name: str(row[name]) for name in ("reasoning_type", "answer_type") if row.get(name)}
    expression = str(row.get("arithmetic_expression") or "None")
    meta = meta_info(
        file_name=f"{deck.removesuffix('.pdf')}.pdf",
        reference_page=pages,
        source_type=slug(row.get("answer_type")),
        query_type="unanswerable" if unanswerable else hop,
        benchmark="slidevqa",
        columns=[COLUMNS[hop]] if hop in COLUMNS else [],
        **more,
        **({"arithmetic_expression": expression} if expression != "None" else {}),
    )
    reference = NOT_ANSWERABLE if unanswerable else answer
    return Question(uid=f"slidevqa_{number}", query=query, reference_answer=reference, meta_info=meta), mended


def _numbers(row: dict[str, Any]) -> list[Any]:
    """Evidence pages as numbers; some copies of the data set write them as strings."""
    pages = list_field(row, "evidence_pages")
    return [int(page) if isinstance(page, str) and re.fullmatch(r"\s*-?\d+\s*", page) else page for page in pages]


def _hop(reasoning_type: object, pages: list[int]) -> str:
    kind = slug(reasoning_type)
    for word, hop in (("multi", "multi_hop"), ("single", "single_hop")):
        if kind.startswith(word):
            return hop
    return "unknown" if not pages else "multi_hop" if len(pages) > 1 else "single_hop"


def bind_decks(pictures: Path, documents: Path) -> tuple[list[Path], dict[str, str]]:
    """Make `documents/{deck}.pdf` of every folder of slide pictures below `pictures`; `(written, {deck: problem})`.

    Slides are put in the order of the slide number in their names: SlideShare's `...-7-1024.jpg` is slide 7, `7.png`
    too. Pixels are embedded as they are, one point a pixel. A deck whose slides are not numbered 1, 2, 3, ... without
    a gap is not bound, because its pages would not be the annotated ones. A PDF that is there is left as it is. Raises
    FileNotFoundError when there are no decks.
    """
    folders: dict[str, list[Path]] = {}
    for path in sorted(Path(pictures).rglob("*")):
        if path.suffix.lower() in PICTURES and path.is_file():
            folders.setdefault(path.parent.name, []).append(path)
    if not folders:
        raise FileNotFoundError(f"no folder of slide pictures ({', '.join(PICTURES)}) below {pictures}")
    Path(documents).mkdir(parents=True, exist_ok=True)
    written, problems = [], {}
    for deck, slides in folders.items():
        target = Path(documents) / f"{deck}.pdf"
        try:
            if not target.exists():
                _bind(_in_order(slides), target)
                written.append(target)
        except (FieldError, RuntimeError, ValueError, OSError) as error:
            problems[deck] = str(error)
    return written, problems


def _in_order(slides: list[Path]) -> list[Path]:
    numbered: dict[int, Path] = {}
    for path in slides:
        found = re.search(r"(\d+)(?:-\d+)?$", path.stem)
        number = int(found[1]) if found else 0
        if number in numbered:
            raise FieldError("slides", f"{path.name} and {numbered[number].name} are both slide {number}")
        numbered[number] = path
    missing = sorted(set(range(1, max(numbered) + 1)) - numbered.keys())
    if missing or 0 in numbered:
        raise FieldError("slides", f"slides {missing} are missing" if missing else f"{numbered[0].name} has no number")
    return [numbered[number] for number in sorted(numbered)]


def _bind(slides: list[Path], target: Path) -> None:
    import pymupdf  # takes two seconds to import

    with replacing(target) as temporary, pymupdf.open() as document:
        for path in slides:
            size = pymupdf.Pixmap(str(path))
            page = document.new_page(width=size.width, height=size.height)
            page.insert_image(page.rect, filename=str(path))
        document.save(temporary)
