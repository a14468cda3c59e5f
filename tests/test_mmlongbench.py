"""The MMLongBench-Doc adapter, on rows made here and, where it is at hand, on a slice of the data set."""

import json
import os
from pathlib import Path

import pytest

from vrag_nb.documents.annotations import check_pages
from vrag_nb.documents.mmlongbench import read_mmlongbench
from vrag_nb.records import Page, Question, page_id

REALDOCS = Path(os.environ.get("VRAG_NB_REALDOCS", Path(__file__).parents[2] / "shared" / "realdocs"))
ROW = {
    "doc_id": "annual.report.pdf",
    "doc_type": "Financial report",
    "question": "How much?",
    "answer": "51%",
    "evidence_pages": "[9, 7]",
    "evidence_sources": "['Chart', 'Pure-text (Plain-text)']",
    "answer_format": "Float",
}


def read(tmp_path: Path, *rows: object):
    path = tmp_path / "samples.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return read_mmlongbench(path)


def test_a_row_becomes_a_question(tmp_path):
    (question,), bad = read(tmp_path, ROW)
    assert not bad
    assert question.document == "annual.report"
    assert question.gold_page_ids == ["annual.report_7", "annual.report_9"]
    assert question.reference_answer == "51%"
    assert (question.meta_info.source_type, question.meta_info.query_type) == ("chart+text", "multi_hop")
    assert question.meta_info.model_extra == {
        "doc_type": "Financial report",
        "answer_format": "Float",
        "benchmark": "mmlongbench",
        "columns": ["chart", "text"],
    }


def test_unanswerable_questions(tmp_path):
    row = ROW | {"answer": "Not answerable", "evidence_pages": "[]", "evidence_sources": "[]"}
    (question,), _ = read(tmp_path, row)
    assert question.reference_answer == "not answerable"
    assert (question.meta_info.reference_page, question.meta_info.query_type) == ([], "unanswerable")
    assert (question.meta_info.model_extra or {})["columns"] == ["unanswerable"]


def test_uids_are_unique_and_do_not_move_when_a_row_is_bad(tmp_path):
    questions, _ = read(tmp_path, ROW, ROW | {"question": ""}, ROW | {"doc_id": "b.pdf"}, ROW)
    assert [question.uid for question in questions] == [
        "mmlongbench_annual.report_0",
        "mmlongbench_b_0",
        "mmlongbench_annual.report_2",
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"evidence_pages": "seven"}, "evidence_pages"),
        ({"evidence_pages": "['7']"}, "evidence_pages"),
        ({"evidence_sources": "{}"}, "evidence_sources"),
        ({"question": None}, "question"),
        ({"answer": ["a"]}, "answer"),
        ({"doc_id": ""}, "doc_id"),
    ],
)
def test_bad_rows_are_named_not_fatal(tmp_path, change, field):
    questions, bad = read(tmp_path, ROW | change, ROW)
    assert len(questions) == 1
    assert [(entry.row, entry.field, entry.kept) for entry in bad] == [(0, field, False)]


def test_rows_of_other_shapes(tmp_path):
    questions, bad = read(
        tmp_path, "row", ROW | {"evidence_pages": [3], "evidence_sources": ["New Kind!"], "answer": 4}
    )
    assert [entry.row for entry in bad] == [0]
    assert questions[0].meta_info.reference_page == [3]
    assert questions[0].meta_info.source_type == "new_kind"
    assert questions[0].reference_answer == "4"


def test_impossible_pages_are_dropped_and_reported(tmp_path):
    (question,), bad = read(tmp_path, ROW | {"evidence_pages": "[0, 4]"})
    assert question.meta_info.reference_page == [4]
    assert [(entry.field, entry.kept) for entry in bad] == [("evidence_pages", True)]


def test_files_that_are_no_samples(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"samples\.json"):
        read_mmlongbench(tmp_path / "nowhere.json")
    path = tmp_path / "samples.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="expected a list"):
        read_mmlongbench(path)
    path.write_text("[")
    with pytest.raises(ValueError, match="not JSON"):
        read_mmlongbench(path)


@pytest.mark.skipif(not (REALDOCS / "samples.json").is_file(), reason=f"no real documents at {REALDOCS}")
def test_the_real_slice_is_read_whole():
    rows = json.loads((REALDOCS / "samples.json").read_text(encoding="utf-8"))
    questions, bad = read_mmlongbench(REALDOCS / "samples.json")
    assert len(questions) == len(rows)
    assert all(entry.kept for entry in bad)
    assert len({question.uid for question in questions}) == len(questions)
    documents = {path.stem for path in (REALDOCS / "documents").glob("*.pdf")}
    assert {question.document for question in questions} <= documents
    unanswerable = [row for row in rows if row["answer"] == "Not answerable"]
    assert sum(question.reference_answer == "not answerable" for question in questions) == len(unanswerable)


@pytest.mark.skipif(not (REALDOCS / "samples.json").is_file(), reason=f"no real documents at {REALDOCS}")
def test_the_real_slice_points_at_pages_that_are_there():
    """Every gold page is one of its PDF's pages; where an answer can be quoted, it is there more than a page away."""
    pymupdf = pytest.importorskip("pymupdf")
    questions, _ = read_mmlongbench(REALDOCS / "samples.json")
    pages: list[Page] = []
    texts: dict[str, str] = {}
    for path in sorted((REALDOCS / "documents").glob("*.pdf")):
        with pymupdf.open(path) as document:
            for number, page in enumerate(document, start=1):
                name = page_id(path.stem, number)
                texts[name] = " ".join(page.get_text().lower().split())
                pages.append(Page(page_id=name, document=path.stem, page=number, image="", width=1, height=1))
    kept, problems = check_pages(questions, pages)
    assert (kept, problems) == (questions, [])
    answerable = [one for one in questions if one.meta_info.query_type != "unanswerable"]
    printed = [one for one in answerable if len(one.reference_answer) > 2 and one.reference_answer[0] != "["]
    hits = {shift: sum(_holds(texts, one, shift) for one in printed) for shift in (-1, 0, 1)}
    assert hits[0] > max(hits[-1], hits[1])  # 1-based: pages before or after hold the answer less often


def _holds(texts: dict[str, str], question: Question, shift: int) -> bool:
    names = [page_id(question.document, page + shift) for page in question.meta_info.reference_page]
    return any(question.reference_answer.lower() in texts.get(name, "") for name in names)
