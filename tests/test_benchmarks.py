"""The adapters of SlideVQA and ViDoSeek, and which format a question file is in: rows made here in the sets' shapes."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pymupdf
import pytest
from PIL import Image

from vrag_nb.documents.annotations import check_pages, read_rows
from vrag_nb.documents.benchmarks import BENCHMARKS, columns, read_benchmark, recognise
from vrag_nb.documents.slidevqa import bind_decks, read_slidevqa
from vrag_nb.documents.vidoseek import read_vidoseek
from vrag_nb.records import MetaInfo, Page, Question, Region, page_id, read_questions, write_questions

REALDOCS = Path(os.environ.get("VRAG_NB_REALDOCS", Path(__file__).parents[2] / "shared" / "realdocs"))
SLIDE = {
    "deck_name": "yearly-figures-phpapp01_95",
    "deck_url": "https://example.org/deck",
    "image_urls": [],
    "qa_id": 17,
    "question": "How much more was sold in 2012 than in 2011?",
    "answer": "12",
    "arithmetic_expression": "30 - 18",
    "evidence_pages": [9, 4],
    "reasoning_type": "Multi-Hop",
    "answer_type": "Non-Span",
}
REFINED = {
    "uid": "17",
    "query": "How much more lamp oil was sold by the harbour co-operative in 2012 than in 2011?",
    "reference_answer": "12",
    "meta_info": {
        "file_name": "yearly-figures-phpapp01_95.pdf",
        "reference_page": [4, 9],
        "origin_query": "How much more was sold in 2012 than in 2011?",
        "query_type": "multi_hop",
        "source_type": "non_span",
    },
}
SEEK = {
    "uid": "0123456789abcdef0123456789abcdef01234567_1",
    "query": "Which step follows drying?",
    "reference_answer": "Milling",
    "meta_info": {
        "file_name": "0123456789abcdef0123456789abcdef01234567.pdf",
        "reference_page": [4],
        "source_type": "2d_layout",
        "query_type": "Single-Hop",
    },
}
LONG = {
    "doc_id": "report.pdf",
    "doc_type": "Guidebook",
    "question": "How many?",
    "answer": "4",
    "evidence_pages": "[2]",
    "evidence_sources": "['Table']",
    "answer_format": "Int",
}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def examples(path: Path, *rows: Any) -> Path:
    path.write_text(json.dumps({"examples": rows}), encoding="utf-8")
    return path


def test_an_annotation_line_becomes_a_question(tmp_path):
    (question,), bad = read_slidevqa(lines(tmp_path / "test.jsonl", SLIDE))
    assert not bad
    assert (question.uid, question.query, question.reference_answer) == ("slidevqa_17", SLIDE["question"], "12")
    assert question.gold_page_ids == ["yearly-figures-phpapp01_95_4", "yearly-figures-phpapp01_95_9"]
    assert (question.meta_info.query_type, question.meta_info.source_type) == ("multi_hop", "non_span")
    assert columns(question) == ["slidevqa multi"]
    assert question.meta_info.model_extra["arithmetic_expression"] == "30 - 18"


@pytest.mark.parametrize(
    ("change", "hop", "column"),
    [
        ({"reasoning_type": "Single-Hop"}, "single_hop", "single"),
        ({"reasoning_type": "Multi-Hop, Discrete"}, "multi_hop", "multi"),
        ({"reasoning_type": None}, "multi_hop", "multi"),
        ({"reasoning_type": None, "evidence_pages": [3]}, "single_hop", "single"),
        ({"evidence_pages": ["4", "9"]}, "multi_hop", "multi"),
    ],
)
def test_slidevqa_columns(tmp_path, change, hop, column):
    (question,), bad = read_slidevqa(lines(tmp_path / "test.jsonl", SLIDE | change))
    assert (question.meta_info.query_type, columns(question), bad) == (hop, [f"slidevqa {column}"], [])


def test_a_question_has_one_uid_in_both_files_of_slidevqa(tmp_path):
    (original,), _ = read_slidevqa(lines(tmp_path / "test.jsonl", SLIDE))
    (refined,), bad = read_slidevqa(examples(tmp_path / "slidevqa_refined.json", REFINED))
    assert not bad
    assert (refined.uid, refined.gold_page_ids) == (original.uid, original.gold_page_ids)
    assert columns(refined) == columns(original)
    assert refined.meta_info.source_type == original.meta_info.source_type
    assert refined.meta_info.model_extra["origin_query"] == original.query


def test_vidoseek(tmp_path):
    hard = {**SEEK, "uid": "b", "meta_info": SEEK["meta_info"] | {"query_type": "multi_hop", "source_type": "Table"}}
    (one, other), bad = read_vidoseek(examples(tmp_path / "vidoseek.json", SEEK, hard))
    assert not bad
    assert one.uid == SEEK["uid"]
    assert (one.meta_info.source_type, one.meta_info.query_type) == ("layout", "single_hop")
    assert (columns(one), columns(other)) == (["vidoseek extraction"], ["vidoseek logic"])
    assert other.meta_info.source_type == "table"


def without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (without(SLIDE, "deck_name"), "deck_name"),
        (SLIDE | {"question": "  "}, "question"),
        (SLIDE | {"evidence_pages": ["four"]}, "evidence_pages"),
        (SLIDE | {"evidence_pages": 4}, "evidence_pages"),
        (REFINED | {"meta_info": None}, "meta_info"),
        (REFINED | {"meta_info": REFINED["meta_info"] | {"reference_page": [True]}}, "meta_info.reference_page"),
        (REFINED | {"meta_info": without(REFINED["meta_info"], "file_name")}, "meta_info.file_name"),
        (without(REFINED, "reference_answer"), "reference_answer"),
        ([1], "row"),
        ("{half a li", "line"),
    ],
)
def test_a_bad_record_is_named_and_the_rest_goes_on(tmp_path, row, field):
    questions, bad = read_slidevqa(lines(tmp_path / "test.jsonl", SLIDE | {"qa_id": 1}, row, SLIDE | {"qa_id": 2}))
    assert [question.uid for question in questions] == ["slidevqa_1", "slidevqa_2"]
    assert [(one.file, one.row, one.field, one.kept) for one in bad] == [("test.jsonl", 1, field, False)]
    assert str(bad[0]).startswith(f"test.jsonl: record 1, field {field}: ")


def test_nan_is_nothing(tmp_path):
    """Pandas writes NaN for what is missing, into JSON too."""
    nan, path = float("nan"), tmp_path / "q.jsonl"
    meta = SEEK["meta_info"]
    for row, field, answer in ((SLIDE, "question", "answer"), (LONG, "question", "answer")):
        assert read_benchmark(lines(path, row, row | {field: nan}, row | {answer: nan})).skipped[1].field == answer
    seek = [SEEK, SEEK | {"query": nan}, SEEK | {"meta_info": meta | {"file_name": nan}}]
    assert [bad.field for bad in read_benchmark(lines(path, *seek)).bad] == ["query", "meta_info.file_name"]
    for row, others in (
        (SLIDE, {"reasoning_type": nan, "answer_type": nan, "evidence_pages": nan}),
        (LONG, {"doc_type": nan, "answer_format": nan, "evidence_sources": nan, "evidence_pages": nan}),
        (SEEK, {"meta_info": meta | {"reference_page": nan, "source_type": nan, "note": nan}}),
    ):
        [question] = read_benchmark(lines(path, row | others)).questions
        assert "nan" not in question.model_dump_json().lower()
        assert question.meta_info.reference_page == []


def test_what_is_mended_is_reported(tmp_path):
    odd = REFINED | {"meta_info": REFINED["meta_info"] | {"reference_page": [0, 4], "query_type": "riddle"}}
    (question,), bad = read_slidevqa(examples(tmp_path / "refined.json", odd))
    assert question.meta_info.reference_page == [4]
    assert columns(question) == []
    assert [(one.field, one.kept) for one in bad] == [
        ("meta_info.reference_page", True),
        ("meta_info.query_type", True),
    ]


def test_repeated_records_and_taken_uids(tmp_path):
    other = SLIDE | {"question": "Another?"}
    questions, bad = read_slidevqa(lines(tmp_path / "test.jsonl", SLIDE, SLIDE, other))
    assert [question.uid for question in questions] == ["slidevqa_17", "slidevqa_17~2"]
    assert [(one.row, one.field, one.kept) for one in bad] == [(1, "uid", False), (2, "uid", True)]


def test_formats_are_recognised(tmp_path):
    files = {
        lines(tmp_path / "a.jsonl", SLIDE): "slidevqa",
        examples(tmp_path / "b.json", REFINED): "slidevqa",
        examples(tmp_path / "c.json", SEEK): "vidoseek",
        lines(tmp_path / "d.jsonl", LONG): "mmlongbench",
    }
    for path, name in files.items():
        assert recognise(path) == name
        reading = read_benchmark(path)
        assert (reading.format, len(reading.questions)) == (name, 1)
        converted = tmp_path / f"{path.stem}.parquet"
        write_questions(converted, reading.questions)
        again = read_benchmark(converted)  # our own records, not the data set's any more
        assert (again.format, again.questions) == ("unified", reading.questions)
        assert BENCHMARKS[name].licence in reading.summary()
        assert BENCHMARKS[name].licence in again.summary()


def test_own_records_stay_unified(tmp_path):
    meta = MetaInfo(file_name="a.pdf", reference_page=[1], source_type="text", query_type="single_hop")
    mine = [Question(uid="q", query="What?", reference_answer="That", meta_info=meta)]
    for name in ("q.json", "q.jsonl", "q.parquet"):
        write_questions(tmp_path / name, mine)
        assert read_benchmark(tmp_path / name).questions == mine == read_questions(tmp_path / name)
    assert columns(mine[0]) == []


@pytest.mark.parametrize("like", [SEEK, REFINED])
def test_own_fields_make_a_file_unified(tmp_path, like):
    region = {"page": 4, "box": [0.1, 0.1, 0.2, 0.2]}
    mine = like | {"uid": "mine", "meta_info": {"file_name": "a.pdf", "reference_regions": [region]}}
    reading = read_benchmark(examples(tmp_path / "own.json", like, mine))
    assert (reading.format, [one.uid for one in reading.questions]) == ("unified", [like["uid"], "mine"])
    assert reading.questions[1].meta_info.reference_regions[0].page == 4
    with pytest.raises(ValueError, match="appears twice"):
        read_benchmark(examples(tmp_path / "twice.json", like, mine, mine))


def test_an_adapter_keeps_further_fields(tmp_path):
    further = {"answers": ["Grinding"], "note": "mine", "unset": None}
    row = SEEK | {"meta_info": SEEK["meta_info"] | further}
    (question,), bad = read_vidoseek(examples(tmp_path / "vidoseek.json", row))
    assert (question.right_answers, bad) == (["Milling", "Grinding"], [])
    kept = {"answers": ["Grinding"], "note": "mine", "benchmark": "vidoseek", "columns": ["extraction"]}
    assert question.meta_info.model_extra == kept
    questions, bad = read_vidoseek(
        examples(
            tmp_path / "bad.json",
            SEEK | {"uid": "b"},
            row | {"meta_info": {**SEEK["meta_info"], "answers": "Grinding"}},
        )
    )
    assert ([one.uid for one in questions], [one.field for one in bad]) == (["b"], ["meta_info.answers"])


OWN = {"uid": "q", "query": "What?", "reference_answer": "That", "meta_info": {"file_name": "a.pdf"}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"uid": " "}, "uid"),
        ({"query": ""}, "query"),
        ({"meta_info": {"file_name": "a.pdf", "answers": "this"}}, "meta_info.answers"),
        ({"meta_info": {"file_name": "a.pdf", "answers": [None]}}, r"meta_info.answers\.0"),
        ({"meta_info": {"file_name": "a.pdf", "needs_crop": "false"}}, "meta_info.needs_crop"),
        ({"meta_info": {"file_name": "a.pdf", "reference_page": [True]}}, r"meta_info.reference_page\.0"),
    ],
)
def test_a_malformed_own_record_is_an_error_that_names_the_field(tmp_path, change, field):
    path = examples(tmp_path / "own.json", OWN, OWN | {"uid": "r"} | change)
    with pytest.raises(ValueError, match=rf"own\.json: question 1, field {field}: "):
        read_questions(path)


def test_further_fields_may_be_absent_or_null(tmp_path):
    told = OWN | {"meta_info": {"file_name": "a.pdf", "answers": ["This"], "needs_crop": False}}
    null = OWN | {"uid": "r", "meta_info": {"file_name": "a.pdf", "answers": None, "needs_crop": None}}
    one, other = read_questions(examples(tmp_path / "own.json", told, null))
    assert (one.right_answers, other.right_answers, other.needs_crop) == (["That", "This"], ["That"], False)
    assert one.model_dump()["meta_info"]["needs_crop"] is False
    assert "answers" not in Question.model_validate(OWN).model_dump()["meta_info"]


def test_a_named_format_is_taken_at_its_word(tmp_path):
    path = examples(tmp_path / "own.json", SEEK)
    assert read_benchmark(path, "slidevqa").questions[0].uid.startswith("slidevqa_")
    with pytest.raises(ValueError, match="known: auto, slidevqa, vidoseek, mmlongbench, unified"):
        read_benchmark(path, "docvqa")
    with pytest.raises(ValueError, match=r"no record is a question of MMLongBench-Doc; the first: own\.json: record 0"):
        read_benchmark(path, "mmlongbench")
    with pytest.raises(FileNotFoundError):
        read_benchmark(tmp_path / "nowhere.json")


def test_the_summary_counts(tmp_path):
    other = SLIDE | {"qa_id": 18, "reasoning_type": "Single-Hop"}
    told = read_benchmark(
        lines(tmp_path / "test.jsonl", SLIDE, other, "{", SLIDE | {"qa_id": 3, "answer": ""})
    ).summary()
    assert "test.jsonl: slidevqa, 2 questions, 2 records skipped, 0 mended" in told
    assert "columns: slidevqa multi 1, slidevqa single 1" in told
    assert "no redistribution" in told


def test_parquet_without_its_pictures(tmp_path):
    row = SLIDE | {"page_1": {"bytes": b"pixels", "path": "1.jpg"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    assert "page_1" not in read_rows(tmp_path / "test.parquet")[0]
    assert read_benchmark(tmp_path / "test.parquet").questions[0].gold_page_ids[0].endswith("_4")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b'{"rows": []}', b"7"])
def test_files_that_hold_no_records(tmp_path, content):
    path = tmp_path / "questions.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"questions\.json"):
        read_benchmark(path)


@pytest.mark.parametrize("format", ["auto", "slidevqa", "unified"])
def test_a_file_of_another_kind_is_said_before_it_is_read(tmp_path, format):
    (tmp_path / "q.csv").write_text("uid,query\n")
    with pytest.raises(ValueError, match=r"q\.csv: unknown question format '\.csv'; use \.json, \.jsonl or \.parquet"):
        read_benchmark(tmp_path / "q.csv", format)


@pytest.mark.parametrize("suffix", ["json", "jsonl", "parquet"])
def test_a_suffix_may_be_in_capitals(tmp_path, suffix):
    write_questions(tmp_path / f"q.{suffix}", [Question.model_validate(OWN)])
    capitals = (tmp_path / f"q.{suffix}").rename(tmp_path / f"Q.{suffix.upper()}")
    assert [one.uid for one in read_benchmark(capitals).questions] == ["q"]


def pages_of(document: str, count: int) -> list[Page]:
    return [
        Page(page_id=page_id(document, n), document=document, page=n, image="", width=1, height=1)
        for n in range(1, count + 1)
    ]


def test_gold_pages_are_checked_against_the_documents(tmp_path):
    rows = [SLIDE, SLIDE | {"qa_id": 18, "deck_name": "elsewhere"}]
    questions, _ = read_slidevqa(lines(tmp_path / "test.jsonl", *rows))
    kept, problems = check_pages(questions, pages_of("yearly-figures-phpapp01_95", 6))
    assert [question.meta_info.reference_page for question in kept] == [[4]]
    assert columns(kept[0]) == ["slidevqa multi"]
    assert len(problems) == 2
    assert "(6 pages) has no page [9]" in problems[0]
    assert "elsewhere is not there; left out" in problems[1]
    assert questions[0].meta_info.reference_page == [4, 9]


def test_gold_regions_are_checked_against_the_documents():
    regions = [Region(page=page, box=(0.1, 0.1, 0.2, 0.2)) for page in (1, 3, 9)]
    meta = MetaInfo(file_name="deck.pdf", reference_page=[1, 3], reference_regions=regions)
    asked = Question(uid="q", query="What?", reference_answer="That", meta_info=meta)
    (kept,), problems = check_pages([asked], pages_of("deck", 2))
    assert [region.page for region in kept.meta_info.reference_regions] == kept.meta_info.reference_page == [1]
    assert problems == [
        "question q: deck (2 pages) has no page [3]",
        "question q: reference_regions: deck has no page [9]",
    ]
    assert len(asked.meta_info.reference_regions) == 3


def test_folders_of_slides_become_documents(tmp_path):
    slides = {"deck": (1, 2, 10, *range(3, 10)), "gap": (1, 3), "twice": (1,)}
    for deck, numbers in slides.items():
        (tmp_path / "images" / "test" / deck).mkdir(parents=True)
        for number in numbers:
            picture = Image.new("RGB", (100 + number, 60), "white")
            picture.save(tmp_path / "images" / "test" / deck / f"{deck}-{number}-1024.jpg")
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "test" / "twice" / "1.png")
    written, problems = bind_decks(tmp_path / "images", tmp_path / "documents")
    assert [path.name for path in written] == ["deck.pdf"]
    assert problems.keys() == {"gap", "twice"}
    assert "slides [2] are missing" in problems["gap"]
    with pymupdf.open(written[0]) as document:
        assert [round(page.rect.width) for page in document] == [100 + number for number in range(1, 11)]
    assert bind_decks(tmp_path / "images", tmp_path / "documents")[0] == []
    with pytest.raises(FileNotFoundError, match="no folder of slide pictures"):
        bind_decks(tmp_path / "documents", tmp_path / "more")


@pytest.mark.skipif(not (REALDOCS / "samples.json").is_file(), reason=f"no real documents at {REALDOCS}")
def test_the_real_slice_of_mmlongbench_is_recognised():
    reading = read_benchmark(REALDOCS / "samples.json")
    assert reading.format == "mmlongbench"
    assert len(reading.questions) == len(json.loads((REALDOCS / "samples.json").read_text(encoding="utf-8")))
    assert not reading.skipped
    assert "CC BY-NC 4.0" in reading.summary()


def test_a_bad_line_of_a_question_file_is_named(tmp_path):
    path = tmp_path / "q.jsonl"
    good = '{"uid": "a", "query": "q", "reference_answer": "x", "meta_info": {"file_name": "a.pdf"}}'
    path.write_text(f"{good}\n\n{good[:-9]}\n")
    with pytest.raises(ValueError, match=r"q\.jsonl cannot be read .* line 3 is not JSON"):
        read_questions(path)


def test_meta_info_may_be_a_struct_of_a_parquet_file(tmp_path):
    own = {"file_name": "a.pdf", "reference_page": [2], "reference_regions": [{"page": 2, "box": [0.1, 0.1, 0.2, 0.2]}]}
    known = [own, {"file_name": "b.pdf", "query_type": "multi_hop"}]
    rows = [
        {"uid": uid, "query": "q", "reference_answer": "x", "meta_info": meta}
        for uid, meta in zip("ab", known, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "struct.parquet")
    found = read_benchmark(tmp_path / "struct.parquet").questions
    assert found == [Question.model_validate(row) for row in rows]
    write_questions(tmp_path / "text.parquet", found)
    assert read_questions(tmp_path / "text.parquet") == found
    pq.write_table(pa.Table.from_pylist([rows[0] | {"meta_info": None}]), tmp_path / "none.parquet")
    with pytest.raises(ValueError, match="question 0, field meta_info"):
        read_questions(tmp_path / "none.parquet")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x1e"])
def test_only_a_newline_ends_a_line(tmp_path, mark):
    question = Question(uid="a", query=f"One{mark}two?", reference_answer="x", meta_info=MetaInfo(file_name="a.pdf"))
    write_questions(tmp_path / "q.jsonl", [question, question.model_copy(update={"uid": "b"})])
    assert [one.query for one in read_questions(tmp_path / "q.jsonl")] == [question.query] * 2
    assert [row["query"] for row in read_rows(tmp_path / "q.jsonl")] == [question.query] * 2


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path, suffix):
    question = Question(uid="a", query="q", reference_answer="x", meta_info=MetaInfo(file_name="a.pdf"))
    path = tmp_path / f"q.{suffix}"
    write_questions(path, [question])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_benchmark(path).questions == [question]
