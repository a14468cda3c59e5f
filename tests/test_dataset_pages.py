"""Data sets of page images: columns, names, images as they are, bad rows, questions, kills, and searching them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import draw_page
from PIL import Image
from test_pages import load_benchmark, snapshot

from vrag_nb import __main__ as cli
from vrag_nb.documents import dataset_pages
from vrag_nb.documents.dataset_images import PictureTask
from vrag_nb.documents.dataset_pages import ImportReport, import_dataset
from vrag_nb.documents.dataset_rows import BLOCK_ROWS, Columns, choose_columns, open_rows
from vrag_nb.documents.pages import page_image, prepare_corpus
from vrag_nb.documents.workers import WorkerDied
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.records import read_pages, read_questions
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index


class PoolHere:
    """Does a pool's work in this process; a task with a picture of this name kills its worker."""

    deadly = ""

    def __init__(self, *arguments: object) -> None: ...

    def __enter__(self) -> PoolHere:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def run(self, function: Callable[[Any], Any], tasks: Iterable[PictureTask]) -> Iterator[tuple[PictureTask, Any]]:
        for task in tasks:
            dies = self.deadly in [picture.name for picture in task.pictures]
            yield task, WorkerDied() if dies else function(task)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> type[PoolHere]:
    monkeypatch.setattr(dataset_pages, "TaskPool", PoolHere)
    monkeypatch.setattr(PoolHere, "deadly", "")
    return PoolHere


def encoded(label: str = "", kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    draw_page((60, 40), label).save(buffer, kind, **options)
    return buffer.getvalue()


def image(label: str, kind: str = "PNG") -> dict[str, Any]:
    """As `datasets` stores it."""
    return {"bytes": encoded(label, kind), "path": None}


def table(path: Path, rows: list[dict[str, Any]], group: int = 5) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)
    return path


def bring(source: Path, corpus: Path, columns: Columns | None = None, **options: Any) -> ImportReport:
    return import_dataset(source, corpus, columns, workers=1, progress=False, **options)


def deck(count: int = 6) -> list[dict[str, Any]]:
    """Rows as vidore's: every page of two documents, with a text, a question and an answer."""
    return [
        {
            "image": image(f"{number}", "JPEG" if number % 2 else "PNG"),
            "doc-id": f"reports/report {number // 4}.pdf",
            "page_number": number % 4 + 1,
            "text": f"subject{number} of its own",
            "query": f"What is subject{number}?",
            "answer": f"number {number}",
        }
        for number in range(count)
    ]


# --- pages ------------------------------------------------------------------------------------------------------------


def test_rows_become_pages_and_their_images_stay_as_they_are(tmp_path: Path, here: object) -> None:
    rows = deck()
    report = bring(table(tmp_path / "test.parquet", rows), tmp_path / "corpus")
    pages = read_pages(tmp_path / "corpus")
    names = [f"reports__report 0_{page}" for page in (1, 2, 3, 4)] + ["reports__report 1_1", "reports__report 1_2"]
    assert [page.page_id for page in pages] == names
    assert (report.rows, report.pages, report.documents, report.questions, report.skipped) == (6, 6, 2, 6, [])
    for page, row in zip(pages, rows, strict=True):
        assert (tmp_path / "corpus" / page.image).read_bytes() == row["image"]["bytes"]
        assert Path(page.image).suffix == (".jpg" if row["image"]["bytes"].startswith(b"\xff") else ".png")
        assert (page.width, page.height, page.text) == (60, 40, row["text"])
    questions = read_questions(tmp_path / "corpus" / "questions.test.parquet")
    assert questions[4].gold_page_ids == ["reports__report 1_1"]
    assert (questions[4].uid, questions[4].query, questions[4].reference_answer) == (
        "test-4",
        "What is subject4?",
        "number 4",
    )
    stored = ImportReport.model_validate_json((tmp_path / "corpus" / "prep_report.json").read_bytes())
    assert stored.columns["document"] == "doc-id"
    assert stored.model_dump() == report.model_dump()


def test_images_that_cannot_stay_are_laid_on_white_upright_and_in_size(tmp_path: Path, here: object) -> None:
    def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        return buffer.getvalue()

    turned = Image.Exif()
    turned[0x0112] = 6
    contents = {
        "clear": saved(Image.new("RGBA", (30, 20), (0, 0, 0, 0)), "PNG"),
        "turned": saved(Image.new("RGB", (30, 20), "red"), "JPEG", exif=turned),
        "cmyk": saved(Image.new("CMYK", (30, 20)), "JPEG"),
        "deep": saved(Image.new("I;16", (30, 20), 65535), "PNG"),
        "huge": saved(Image.new("RGB", (300, 200)), "PNG"),
        "scan": saved(Image.new("L", (30, 20), 9), "TIFF"),
        "plain": saved(Image.new("P", (30, 20)), "PNG"),
        "webp": saved(Image.new("RGB", (30, 20)), "WEBP"),
    }
    rows = [{"image": content, "document": name} for name, content in contents.items()]
    report = bring(table(tmp_path / "a.parquet", rows), tmp_path / "corpus", max_page_pixels=15_000)
    pages = {page.document: page for page in read_pages(tmp_path / "corpus")}
    sizes = {name: (page.width, page.height) for name, page in pages.items()}
    assert sizes["turned"] == (20, 30)
    assert sizes["huge"] == (150, 100)
    assert page_image(tmp_path / "corpus", pages["clear"]).getpixel((5, 5)) == (255, 255, 255)
    assert page_image(tmp_path / "corpus", pages["deep"]).getpixel((5, 5)) == (255, 255, 255)
    assert {name for name, page in pages.items() if not page.image.endswith(".png")} == {"webp"}
    noted = [entry.reason for entry in report.notes]
    assert [reason.split(":")[0] for reason in noted] == [f"row {number}" for number in range(6)]
    assert "transparent" in noted[0]
    assert "turned upright" in noted[1]
    assert "scaled to 150 x 100" in noted[4]


def test_bad_rows_are_named_and_the_rest_goes_on(tmp_path: Path, here: object) -> None:
    whole, other = encoded("a" * 30), encoded("other")
    rows = [
        {"image": {"bytes": content, "path": path}, "doc": doc, "page": page, "query": "What?"}
        for content, path, doc, page in [
            (whole, None, "a", "1"),
            (None, None, "a", "2"),
            (b"no image", None, "a", "3"),
            (whole[:-60], None, "a", "4"),
            (other, None, "a", "1"),
            (whole, None, "a", "0"),
            (whole, None, "a", "seven"),
            (None, "../secret.png", "a", "8"),
            (whole, None, "a", "9"),
        ]
    ]
    (tmp_path / "secret.png").write_bytes(whole)
    report = bring(table(tmp_path / "set" / "a.parquet", rows), tmp_path / "corpus")
    assert [page.page_id for page in read_pages(tmp_path / "corpus")] == ["a_1", "a_9"]
    reasons = [entry.reason for entry in report.skipped]
    assert {entry.file for entry in report.skipped} == {"a.parquet"}
    assert reasons[0] == "row 1: there is no image"
    assert "row 2: broken image: of no kind" in reasons[1]
    assert "row 3: broken image" in reasons[2]
    assert "row 4: page 1 of a is there already" in reasons[3]
    assert "row 5: column page: 0 is no page number from 1 on; do pages count from 0 here?" in reasons[4]
    assert "row 6: column page: expected a page number, found 'seven'" in reasons[5]
    assert "row 7: there is no image file ../secret.png in the data set's folder" in reasons[6]
    assert report.questions == 2
    assert any("a-2: its question is left out" in entry.reason for entry in report.notes)
    assert bring(tmp_path / "set" / "a.parquet", tmp_path / "corpus", first_page=0).pages == 3


def test_images_may_be_files_beside_the_data_set(tmp_path: Path, here: object) -> None:
    (tmp_path / "set" / "scans").mkdir(parents=True)
    (tmp_path / "set" / "scans" / "one.png").write_bytes(encoded("one"))
    rows = [{"image": "scans/one.png", "note": 1}, {"image": "scans/none.png", "note": 2}]
    report = bring(table(tmp_path / "set" / "a.parquet", rows), tmp_path / "corpus")
    assert [page.document for page in read_pages(tmp_path / "corpus")] == ["a-0"]
    assert "no image file scans/none.png" in report.skipped[0].reason
    source = tmp_path / "set" / "a.parquet"
    assert bring(source, tmp_path / "corpus").reused == 2, "what is not there is not looked for again"
    (tmp_path / "set" / "scans" / "none.png").write_bytes(encoded("none"))
    again = bring(source, tmp_path / "corpus")
    assert (again.pages, again.skipped) == (2, [])
    (tmp_path / "set" / "scans" / "one.png").write_bytes(encoded("another one"))
    bring(source, tmp_path / "corpus")
    bring(source, tmp_path / "calm")
    assert snapshot(tmp_path / "corpus") == snapshot(tmp_path / "calm")


def test_a_picture_that_kills_its_reader_is_lost_alone_and_tried_again(tmp_path: Path, here: type[PoolHere]) -> None:
    source = table(tmp_path / "test.parquet", deck())
    here.deadly = "reports__report 0_3"
    report = bring(source, tmp_path / "corpus")
    assert [entry.reason[:6] for entry in report.skipped] == ["row 2:"]
    assert "died" in report.skipped[0].reason
    assert report.pages == 5
    here.deadly = ""
    again = bring(source, tmp_path / "corpus")
    assert (again.pages, again.skipped, again.reused) == (6, [], 1), "the block of rows 5.. was finished"
    bring(source, tmp_path / "calm")
    assert snapshot(tmp_path / "corpus") == snapshot(tmp_path / "calm")


# --- names ------------------------------------------------------------------------------------------------------------


def test_rows_that_no_column_puts_into_a_document(tmp_path: Path, here: object) -> None:
    named = [{"image": image(name), "image_filename": f"scans/{name}.png", "page": "7"} for name in "abca"]
    bring(table(tmp_path / "named.parquet", named), tmp_path / "named")
    assert [page.page_id for page in read_pages(tmp_path / "named")] == ["scans__a_1", "scans__b_1", "scans__c_1"]
    bare = [{"image": image(name)} for name in "aba"]
    bring(table(tmp_path / "data" / "bare.parquet", bare, 2), tmp_path / "bare")
    assert [page.page_id for page in read_pages(tmp_path / "bare")] == ["bare-0_1", "bare-1_1", "bare-2_1"]
    asked = [{**row, "query": f"What? {number}"} for number, row in enumerate(bare)]
    report = bring(table(tmp_path / "asked.parquet", asked, 2), tmp_path / "asked")
    assert [page.page_id for page in read_pages(tmp_path / "asked")] == ["asked-0_1", "asked-1_1"]
    gold = [one.gold_page_ids for one in read_questions(tmp_path / "asked" / "questions.test.parquet")]
    assert gold == [["asked-0_1"], ["asked-1_1"], ["asked-0_1"]], "one image, two questions"
    assert report.skipped == []


def test_pages_without_numbers_are_counted_and_names_stay_apart(tmp_path: Path, here: object) -> None:
    documents = ["Deck", "deck", "Deck", "a/b", "a__b", None, "2023.acl-long.386", "x" * 300]
    rows = [{"image": image(str(number)), "document": name} for number, name in enumerate(documents)]
    report = bring(table(tmp_path / "a.parquet", rows), tmp_path / "corpus")
    pages = read_pages(tmp_path / "corpus")
    assert report.pages == len(pages) == len({page.page_id.casefold() for page in pages}) == len(documents)
    found = {page.page_id for page in pages}
    assert {"Deck_1", "Deck_2", "a__b_1", "a-5_1", "2023.acl-long.386_1"} <= found
    assert sum(name.startswith(("deck~", "a__b~")) for name in found) == 2
    numbered = [{**row, "page": 2 * number} for number, row in enumerate(rows[:2], 1)]
    bring(table(tmp_path / "b.parquet", numbered), tmp_path / "corpus", Columns(page="page"), first_page=0)
    assert [page.page for page in read_pages(tmp_path / "corpus")] == [3, 5]


def test_questions_of_several_rows(tmp_path: Path, here: object) -> None:
    def row(page: int, query: object, answer: object, uid: object, document: str = "a") -> dict[str, Any]:
        return {
            "image": image(f"{document}{page}"),
            "document": document,
            "page": page,
            "question": query,
            "answers": answer,
            "questionId": uid,
        }

    rows = [
        row(1, "Both pages?", "['yes', 'both']", "q1"),
        row(2, "Both pages?", "['yes', 'both']", "q1"),
        row(3, "Another?", "[12]", "q1"),
        row(1, "Unanswered?", "Not answerable", "q2"),
        row(4, None, None, None),
        row(4, " ", "", ""),
        row(5, "No answer given?", None, None),
    ]
    report = bring(table(tmp_path / "a.parquet", rows), tmp_path / "corpus")
    found = {one.uid: one for one in read_questions(tmp_path / "corpus" / "questions.test.parquet")}
    assert list(found) == ["q1", "q1~2", "q2", "a-6"]
    assert found["q1"].gold_page_ids == ["a_1", "a_2"]
    assert found["q1"].meta_info.model_extra == {"answers": ["yes", "both"]}
    assert (found["q1"].reference_answer, found["q1~2"].reference_answer) == ("yes", "12")
    assert (found["q2"].reference_answer, found["q2"].gold_page_ids) == ("not answerable", [])
    assert found["a-6"].reference_answer == ""
    assert report.pages == 5
    assert any("it is 'q1~2' here" in entry.reason for entry in report.notes)
    bring(tmp_path / "a.parquet", tmp_path / "corpus", Columns(query=""))
    assert not (tmp_path / "corpus" / "questions.test.parquet").exists()


# --- what is read -----------------------------------------------------------------------------------------------------


def test_columns_are_recognised_named_or_listed(tmp_path: Path) -> None:
    rows = [{"Scan": image("a"), "docId": 3, "ucsf_page": "1", "words": ["a"]}]
    opened = open_rows(table(tmp_path / "a.parquet", rows))
    chosen = choose_columns(opened, Columns(page="ucsf_page"))
    assert chosen.chosen() == {"image": "Scan", "document": "docId", "page": "ucsf_page"}
    listed = r"Scan \(image\), docId \(int64\), ucsf_page \(string\), words"
    with pytest.raises(ValueError, match=rf"no column 'picture' for image; its columns: .*{listed}"):
        choose_columns(opened, Columns(image="picture"))
    with pytest.raises(ValueError, match=r"column 'docId' holds no images; name one of its columns"):
        choose_columns(opened, Columns(image="docId"))
    with pytest.raises(ValueError, match="a page column needs a document column"):
        choose_columns(opened, Columns(document="", page="ucsf_page"))
    none = open_rows(table(tmp_path / "b.parquet", [{"a": 1}]))
    with pytest.raises(ValueError, match=r"no column of images was recognised; name one of its columns: a \(int64\)"):
        choose_columns(none, Columns())


def test_a_folder_of_parquet_files_and_its_splits(tmp_path: Path, here: object) -> None:
    rows, folder = deck(8), tmp_path / "set"
    table(folder / "data" / "test-00000-of-00002.parquet", rows[:5])
    table(folder / "data" / "test-00001-of-00002.parquet", rows[5:])
    table(folder / "data" / "train-00000-of-00001.parquet", [{**row, "doc-id": "other"} for row in rows[:2]])
    table(folder / ".cache" / "test.parquet", [{"x": 1}])
    (folder / "data" / "test-00002-of-00002.parquet").write_bytes(b"PAR1 cut off")
    report = bring(folder, tmp_path / "corpus", split="test")
    assert (report.pages, report.documents) == (8, 2)
    assert [(entry.file, "not a parquet file" in entry.reason) for entry in report.skipped] == [
        ("data/test-00002-of-00002.parquet", True)
    ]
    assert bring(folder, tmp_path / "all").documents == 3
    with pytest.raises(ValueError, match="no parquet file of the split 'dev' among data/test-00000"):
        open_rows(folder, "dev")
    table(folder / "queries" / "test.parquet", [{"query": "What?"}])
    with pytest.raises(ValueError, match=r"queries/test\.parquet has other columns than the files before it"):
        open_rows(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no data set"):
        open_rows(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no data set at"):
        open_rows(tmp_path / "none")
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(ValueError, match=r"text\.parquet is not a parquet file"):
        open_rows(tmp_path / "text.parquet")
    with pytest.raises(ValueError, match=r"text\.parquet is one file, .* leave out the split"):
        open_rows(tmp_path / "text.parquet", "test")


def test_what_datasets_saved_gives_the_same_pages_as_parquet(tmp_path: Path, here: object) -> None:
    rows = deck(8)
    saved = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image(decode=False))
    shuffled = saved.select([7, *range(7)]).select(range(1, 8))  # rows picked by a list of their numbers
    datasets.DatasetDict({"test": saved, "some": shuffled}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="holds the splits some, test: name one of them"):
        open_rows(tmp_path / "saved")
    bring(tmp_path / "saved", tmp_path / "one", split="test")
    bring(table(tmp_path / "test.parquet", rows), tmp_path / "two")
    assert read_pages(tmp_path / "one") == read_pages(tmp_path / "two")
    questions = [read_questions(tmp_path / name / "questions.test.parquet") for name in ("one", "two")]
    assert questions[0] == questions[1]
    assert bring(tmp_path / "saved" / "some", tmp_path / "some").pages == 7
    saved.save_to_disk(tmp_path / "single")
    with pytest.raises(ValueError, match="is one data set, without splits"):
        open_rows(tmp_path / "single", "test")
    state = json.loads((tmp_path / "single" / "state.json").read_text()) | {"_split": "test"}
    (tmp_path / "single" / "state.json").write_text(json.dumps(state))
    assert len(open_rows(tmp_path / "single", "test")) == 8
    with pytest.raises(ValueError, match="is one data set, the split 'test'"):
        open_rows(tmp_path / "single", "dev")
    (next((tmp_path / "saved" / "some").glob("*.arrow"))).write_bytes(b"none")
    with pytest.raises(ValueError, match="is no data set that `datasets` can load"):
        open_rows(tmp_path / "saved", "some")


def test_no_more_than_a_row_group_is_read_at_once(tmp_path: Path) -> None:
    rows = [{"image": np.random.default_rng(number).bytes(100_000), "doc": number} for number in range(100)]
    opened = open_rows(table(tmp_path / "a.parquet", rows, group=BLOCK_ROWS))
    before = pa.total_allocated_bytes()
    most = 0
    for block, content in opened.read(opened.blocks, ["image", "doc"]):
        assert [row["doc"] for row in content] == list(range(block.first, block.first + block.count))
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 4 * BLOCK_ROWS * 100_000, "of 10 MB"
    some = [opened.blocks[1], opened.blocks[4]]
    assert [content[0]["doc"] for _, content in opened.read(some, ["doc"])] == [BLOCK_ROWS, 4 * BLOCK_ROWS]


def test_rows_that_cannot_be_read_are_named_and_tried_again(tmp_path: Path, here: object) -> None:
    rows = [{"image": encoded(str(number)), "doc": "all"} for number in range(60)]
    source = table(tmp_path / "a.parquet", rows, group=20)
    whole, changed = source.read_bytes(), source.stat()
    start = pq.read_metadata(source).row_group(1).column(0).data_page_offset
    source.write_bytes(whole[:start] + b"\xff" * 300 + whole[start + 300 :])
    os.utime(source, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    report = bring(source, tmp_path / "corpus")
    assert report.pages == 40
    assert [entry.reason.split(":")[0] for entry in report.skipped] == ["row 20", "row 36"]
    assert "to row 35 cannot be read" in report.skipped[0].reason
    source.write_bytes(whole)  # a disk that failed for a while: the data set is the same
    os.utime(source, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    again = bring(source, tmp_path / "corpus")
    assert (again.reused, again.pages, again.skipped) == (20, 60, [])
    bring(source, tmp_path / "calm")
    assert snapshot(tmp_path / "corpus") == snapshot(tmp_path / "calm"), "pages are numbered in row order"


# --- again, and after a kill ------------------------------------------------------------------------------------------


def test_a_rerun_reads_nothing_and_a_changed_data_set_begins_anew(
    tmp_path: Path, here: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = table(tmp_path / "test.parquet", deck())
    first = bring(source, tmp_path / "corpus")
    before = snapshot(tmp_path / "corpus")
    with monkeypatch.context() as patch:
        patch.setattr(dataset_pages, "image_bytes", lambda *_: pytest.fail("nothing is to be read again"))
        again = bring(source, tmp_path / "corpus")
    assert (first.reused, again.reused, again.rendered) == (0, 6, 0)
    assert snapshot(tmp_path / "corpus") == before
    (tmp_path / "corpus" / "pages" / "reports__report 0_1.png").unlink()
    assert bring(source, tmp_path / "corpus").rendered == 5, "the block of the lost image"
    assert snapshot(tmp_path / "corpus") == before
    for left in (0, 100):
        image = tmp_path / "corpus" / "pages" / "reports__report 0_1.png"
        image.write_bytes(image.read_bytes()[:left])
        assert bring(source, tmp_path / "corpus").rendered == 5, "the block of the image that was cut"
        assert snapshot(tmp_path / "corpus") == before

    table(source, deck(3))
    assert bring(source, tmp_path / "corpus").pages == 3
    bring(source, tmp_path / "calm")
    assert snapshot(tmp_path / "corpus") == snapshot(tmp_path / "calm"), "nothing of the data set before is left"


def test_folders_that_are_not_the_imports_are_refused(tmp_path: Path, here: object) -> None:
    source = table(tmp_path / "set" / "test.parquet", deck())
    with pytest.raises(ValueError, match="lies in the data set's folder"):
        bring(tmp_path / "set", tmp_path / "set" / "corpus")
    with pytest.raises(ValueError, match="lies in the data set's folder"):
        bring(source, tmp_path / "set")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.png").write_bytes(encoded())
    prepare_corpus(tmp_path / "docs", tmp_path / "prepared", workers=1, progress=False)
    with pytest.raises(ValueError, match="files that no import made"):
        bring(source, tmp_path / "prepared")
    bring(source, tmp_path / "corpus")
    with pytest.raises(ValueError, match="prep did not make"):
        prepare_corpus(tmp_path / "docs", tmp_path / "corpus", workers=1, progress=False)
    with pytest.raises(ValueError, match="first_page 2"):
        bring(source, tmp_path / "corpus", first_page=2)


def test_one_process_imports_into_a_corpus(tmp_path: Path, here: object) -> None:
    source = table(tmp_path / "test.parquet", deck())
    for reused in (0, 6):
        with alone_in(tmp_path / "corpus" / "pages"), pytest.raises(FolderInUseError, match="at work in"):
            bring(source, tmp_path / "corpus")
        assert bring(source, tmp_path / "corpus").reused == reused


KILLED_IMPORT = """
import os, signal, sys
from pathlib import Path
if __name__ == "__main__":
    from vrag_nb.documents import dataset_pages
    real, files = dataset_pages.write_text, []
    def stumble(path, text):
        files.append(path)
        if len(files) == int(sys.argv[3]):
            path.with_name(f".{path.name}.partial").write_text(text[:9])
            os.kill(os.getpid(), signal.SIGKILL)
        real(path, text)
    dataset_pages.write_text = stumble
    dataset_pages.import_dataset(Path(sys.argv[1]), Path(sys.argv[2]), workers=1, progress=False)
"""


def test_a_killed_import_ends_with_the_same_bytes(tmp_path: Path, here: object) -> None:
    rows = [row for row in deck(60) for _ in range(2)]  # every page twice: names depend on the rows before
    source = table(tmp_path / "test.parquet", [{**row, "page_number": None} for row in rows], group=50)
    bring(source, tmp_path / "calm")
    assert len(read_pages(tmp_path / "calm")) == 60
    program, corpus = tmp_path / "killed.py", tmp_path / "corpus"
    program.write_text(KILLED_IMPORT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    # the plan is the first file, then come the records of ten blocks, two of them once only, then the report
    for files, records in ((4, 2), (10, 10)):
        arguments = [sys.executable, str(program), str(source), str(corpus), str(files)]
        assert subprocess.run(arguments, env=environment, check=False).returncode == -signal.SIGKILL
        assert len(list((corpus / ".import").glob("0*.json"))) == records
        assert not (corpus / "pages.parquet").exists()
    assert bring(source, corpus).reused == 120
    assert snapshot(corpus) == snapshot(tmp_path / "calm")


# --- index and search -------------------------------------------------------------------------------------------------


def test_an_imported_data_set_is_indexed_and_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line and BM25, then by late interaction on a tiny model of random weights."""
    source, corpus = table(tmp_path / "test.parquet", deck()), tmp_path / "corpus"
    assert cli.main(["import-dataset", str(source), str(corpus), "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "document doc-id" in said
    assert "6 rows: 2 documents, 6 pages" in said
    assert "6 questions in" in said
    assert cli.main(["import-dataset", str(source), str(corpus), "--image-column", "scan"]) == 2
    assert "there is no column 'scan' for image; its columns: image (image), doc-id" in capsys.readouterr().err

    file = tmp_path / "runs.yaml"
    file.write_text(
        f"profiles:\n  tiny:\n    corpus: {{folder: {tmp_path}, kind: documents}}\n    retriever: {{kind: bm25}}\n"
        "    policy: {kind: openai, checkpoint: m}\n"
    )
    assert cli.main(["index", "--corpus", str(corpus), "--profile", "tiny", "--file", str(file)]) == 0
    engine = SearchEngine.open(corpus, corpus / "indexes" / "bm25")
    for question in read_questions(corpus / "questions.test.parquet"):
        assert [hit.page_id for hit in engine.search([question.query], 1)[0]] == question.gold_page_ids

    tiny = load_benchmark().make_tiny_retriever(tmp_path / "tiny")
    embedder = load_embedder("nano-colqwen2_5", tiny, device="cpu")
    assert build_index(corpus, tmp_path / "index", embedder, progress=False).embedded == 6
    visual = SearchEngine.open(corpus, tmp_path / "index", embedder)
    (hits,) = visual.search(["What is subject3?"], 6)
    assert {hit.page_id for hit in hits} == set(engine.pages)
    page = engine.page("reports__report 0_2")
    (vectors,) = embedder.embed_pages([page_image(corpus, page)], [""])
    row = visual.index.row_of[page.page_id]
    np.testing.assert_allclose(visual.index.vectors(row), vectors, atol=2e-3)  # type: ignore[attr-defined]
    assert json.loads((corpus / "prep_report.json").read_text())["rows"] == 6
