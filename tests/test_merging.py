"""Merging corpora: unique names, shared and renamed documents, questions that follow them, the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from conftest import RankedEngine
from PIL import Image

from vrag_nb.agent.pages import PageStore
from vrag_nb.documents.merging import QUESTIONS, MergeReport, Part, merge_corpora
from vrag_nb.evaluation.evaluate import retrieval_metrics
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.records import Hit, MetaInfo, Page, Question, page_id, read_pages, read_questions, write_pages


def corpus_at(folder: Path, documents: dict[str, list[int]], start: int = 1) -> Path:
    """A prepared corpus; a page's grey value decides its bytes. `start`: the number of a document's first page."""
    (folder / "pages").mkdir(parents=True)
    pages = []
    for document, greys in documents.items():
        for number, grey in enumerate(greys, start=start):
            name = page_id(document, number)
            image = folder / "pages" / f"{name}.png"
            Image.new("RGB", (20, 10), (grey, grey, grey)).save(image)
            sha256 = hashlib.sha256(image.read_bytes()).hexdigest()
            named = {"page_id": name, "document": document, "page": number, "image": f"pages/{image.name}"}
            pages.append(Page(**named, width=20, height=10, text=f"grey {grey}", sha256=sha256))
    write_pages(folder, pages)
    return folder


def ask(uid: str, document: str, *pages: int) -> Question:
    return Question(
        uid=uid,
        query="What?",
        reference_answer="That",
        meta_info=MetaInfo(file_name=f"{document}.pdf", reference_page=list(pages), columns=["single"]),
    )


@pytest.fixture
def parts(tmp_path: Path) -> list[Part]:
    """`common` is the same in both, `report` differs, `Notes` and `notes` differ in case, `copy` is `only` again."""
    first = corpus_at(tmp_path / "a", {"common": [1, 2], "report": [3], "Notes": [4], "only": [5, 6]})
    second = corpus_at(tmp_path / "b", {"common": [1, 2], "report": [7, 8], "notes": [9], "copy": [5, 6]})
    asked = [ask("1", "common", 2), ask("2", "report", 1), ask("3", "only", 1)]
    others = [ask("1", "common", 1), ask("2", "report", 2), ask("4", "notes", 1), ask("5", "absent", 1)]
    return [Part("first", first, asked), Part("second", second, [*others, ask("6", "copy", 1, 3)])]


def test_a_merged_corpus(parts: list[Part], tmp_path: Path) -> None:
    report = merge_corpora(parts, tmp_path / "out")
    pages = read_pages(tmp_path / "out")
    documents = ["Notes", "common", "copy", "only", "report", "second__notes", "second__report"]
    assert sorted({page.document for page in pages}) == documents
    assert [page.page_id for page in pages] == [page_id(page.document, page.page) for page in pages]
    assert len({page.page_id.casefold() for page in pages}) == len(pages) == 11
    assert pages == sorted(pages, key=lambda page: (page.document, page.page))
    assert (report.documents, report.pages, report.questions) == (7, 11, 7)
    assert report.parts["second"].model_dump() == {"documents": 4, "pages": 7, "questions": 4}
    assert report.shared == ["second: common is the same as common"]
    assert report.alike == ["only and copy are the same pages"]
    assert report.renamed[:2] == [
        "second: document notes is second__notes here",
        "second: document report is second__report here",
    ]
    stored = MergeReport.model_validate_json((tmp_path / "out" / "merge_report.json").read_bytes())
    assert stored == report


def test_images_follow_their_pages(parts: list[Part], tmp_path: Path) -> None:
    merge_corpora(parts, tmp_path / "out")
    store = PageStore(tmp_path / "out")
    greys = {
        name: store.image(name).getpixel((0, 0))[0] for name in ("report_1", "second__report_2", "second__notes_1")
    }
    assert greys == {"report_1": 3, "second__report_2": 8, "second__notes_1": 9}
    assert store.page("second__report_2").text == "grey 8"


def test_questions_follow_their_documents(parts: list[Part], tmp_path: Path) -> None:
    report = merge_corpora(parts, tmp_path / "out")
    questions = {one.uid: one for one in read_questions(tmp_path / "out" / "questions.test.parquet")}
    assert list(questions) == ["1", "2", "3", "second__1", "second__2", "4", "6"]
    gold = {uid: one.gold_page_ids for uid, one in questions.items()}
    assert gold["1"] == ["common_2"]
    assert gold["second__1"] == ["common_1"]  # the shared document
    assert gold["second__2"] == ["second__report_2"]
    assert gold["4"] == ["second__notes_1"]
    assert gold["6"] == ["copy_1"]
    assert questions["4"].meta_info.model_extra == {"columns": ["single"], "part": "second"}
    assert parts[1].questions[1].meta_info.file_name == "report.pdf"  # the caller's own are left as they were
    there = {page.page_id for page in read_pages(tmp_path / "out")}
    assert all(there.issuperset(pages) for pages in gold.values())
    assert len(report.problems) == 2
    assert "second: question 5: its document absent is not there; left out" in report.problems
    assert "second: question 6: copy (2 pages) has no page [3]" in report.problems


def test_a_renamed_document_keeps_its_files_suffix(tmp_path: Path) -> None:
    files = {"talk": "talk.mp4", "tour": "tour.webm", "report": "report.pdf", "bare": "bare"}
    parts = []
    for number, name in enumerate(("first", "second")):
        corpus = corpus_at(tmp_path / name, {document: [number, 9] for document in files})
        asked = [ask(f"{name}-{document}", document, 2) for document in files]
        for question, file in zip(asked, files.values(), strict=True):
            question.meta_info.file_name = file
        parts.append(Part(name, corpus, asked))
    report = merge_corpora(parts, tmp_path / "out")
    questions = {one.uid: one for one in read_questions(tmp_path / "out" / "questions.test.parquet")}
    assert report.problems == []
    for document, file in files.items():
        assert questions[f"first-{document}"].meta_info.file_name == file
        assert questions[f"second-{document}"].meta_info.file_name == f"second__{file}".replace("bare", "bare.pdf")
        assert questions[f"second-{document}"].gold_page_ids == [f"second__{document}_2"]


@pytest.mark.parametrize(
    "file", ["north/report.pdf", "a:b.PDF", "cafe\u0301.mp4", "x" * 220 + ".pdf", "y" * 196, "bare"]
)
def test_a_renamed_document_is_found_by_whatever_its_file_is_called(file: str, tmp_path: Path) -> None:
    question = ask("q", "", 2)
    question.meta_info.file_name = file
    parts = [
        Part(name, corpus_at(tmp_path / name, {question.document: [grey, 9]}), [question])
        for grey, name in enumerate(("first", "second"))
    ]
    assert merge_corpora(parts, tmp_path / "out").problems == []
    _, second = read_questions(tmp_path / "out" / "questions.test.parquet")
    assert second.document.startswith("second__")
    assert second.gold_page_ids[0] in {page.page_id for page in read_pages(tmp_path / "out")}


def test_a_twin_keeps_its_questions(tmp_path: Path) -> None:
    film, slides = ask("film", "talk", 2), ask("slides", "talk", 1)
    film.meta_info.file_name = "talk.mp4"
    parts = [
        Part(name, corpus_at(tmp_path / name, {"talk": [grey], "talk.mp4": [5, grey]}), [film, slides])
        for grey, name in enumerate(("p0", "p1"))
    ]
    assert merge_corpora(parts, tmp_path / "out").problems == []
    gold = {one.uid: one.gold_page_ids for one in read_questions(tmp_path / "out" / "questions.test.parquet")}
    assert gold == {
        "film": ["talk.mp4_2"],
        "slides": ["talk_1"],
        "p1__film": ["p1__talk.mp4_2"],
        "p1__slides": ["p1__talk_1"],
    }


def test_equal_images_under_other_page_numbers_are_another_document(tmp_path: Path) -> None:
    """A data set that holds the annotated pages only, once with their numbers and once counted in row order."""
    first, second = corpus_at(tmp_path / "a", {"deck": [1, 2]}, start=2), corpus_at(tmp_path / "b", {"deck": [1, 2]})
    asked = [Part("a", first, [ask("1", "deck", 2)]), Part("b", second, [ask("2", "deck", 2)])]
    report = merge_corpora(asked, tmp_path / "out")
    greys = {page.page_id: page.text for page in read_pages(tmp_path / "out")}
    gold = {question.uid: question.gold_page_ids for question in read_questions(tmp_path / "out" / QUESTIONS)}
    assert {uid: [greys[page] for page in pages] for uid, pages in gold.items()} == {"1": ["grey 1"], "2": ["grey 2"]}
    assert (report.shared, report.problems) == ([], [])
    assert report.alike == ["deck and b__deck are the same pages"]


def test_gold_of_several_documents_follows_each(tmp_path: Path) -> None:
    corpora = [corpus_at(tmp_path / name, {"one": [grey, 8], "two": [9]}) for grey, name in enumerate("ab")]
    question = ask("q", "one", 2, 1, 7, 1)
    known = {
        "reference_documents": ["one", "two", "two", "gone"],
        "needed_facts": [{"page": 2}, {"page": 1, "document": "one"}, {"page": 1, "document": "two"}],
    }
    question = question.model_copy(update={"meta_info": question.meta_info.model_copy(update=known)})
    report = merge_corpora([Part("a", corpora[0]), Part("b", corpora[1], [question])], tmp_path / "out")
    assert report.problems == [
        "b: question q: two (1 pages) has no page [7]",
        "b: question q: gone (not there) has no page [1]",
    ]
    [merged] = read_questions(tmp_path / "out" / "questions.test.parquet")
    assert merged.gold_page_ids == ["b__one_2", "two_1"]  # `two` is the same in both
    assert [merged.fact_page_id(fact) for fact in merged.needed_facts] == ["b__one_2", "b__one_1", "two_1"]


def test_recall_over_the_merged_corpus(parts: list[Part], tmp_path: Path) -> None:
    merge_corpora(parts, tmp_path / "out")
    questions = read_questions(tmp_path / "out" / "questions.test.parquet")
    ranked = RankedEngine([page.page_id for page in read_pages(tmp_path / "out")])
    hits: dict[str, list[Hit] | Exception] = {one.uid: ranked.search([one.query], 5)[0] for one in questions}
    # Notes_1 common_1 common_2 copy_1 copy_2: three of the seven questions find their page among the first five
    assert retrieval_metrics(questions, hits)["recall@5"]["value"] == pytest.approx(3 / 7, abs=1e-6)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_parts_give_the_same_bytes(parts: list[Part], tmp_path: Path) -> None:
    merge_corpora(parts, tmp_path / "out")
    merge_corpora(parts, tmp_path / "again")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "again")
    merge_corpora(parts[:1], tmp_path / "out")  # less than before: what is no longer wanted goes
    assert len(list((tmp_path / "out" / "pages").iterdir())) == 6
    merge_corpora(parts, tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "again")


def test_a_changed_part_is_taken_over(parts: list[Part], tmp_path: Path) -> None:
    merge_corpora(parts, tmp_path / "out")
    image = tmp_path / "a" / "pages" / "report_1.png"
    Image.new("RGB", (20, 10), "red").save(tmp_path / "new.png")
    (tmp_path / "new.png").replace(image)  # as prep writes: under another name, then renamed
    merge_corpora(parts, tmp_path / "out")
    assert (tmp_path / "out" / "pages" / "report_1.png").read_bytes() == image.read_bytes()


def test_a_missing_image_is_named_and_nothing_looks_finished(parts: list[Part], tmp_path: Path) -> None:
    merge_corpora(parts, tmp_path / "out")
    (tmp_path / "b" / "pages" / "notes_1.png").unlink()
    with pytest.raises(FileNotFoundError, match="page second__notes_1"):
        merge_corpora(parts, tmp_path / "out")
    assert not (tmp_path / "out" / "pages.parquet").exists()


def test_one_process_merges_into_a_corpus(parts: list[Part], tmp_path: Path) -> None:
    with alone_in(tmp_path / "out" / "pages"), pytest.raises(FolderInUseError, match="at work in"):
        merge_corpora(parts, tmp_path / "out")


def test_what_cannot_be_merged(parts: list[Part], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_corpora([], tmp_path / "out")
    with pytest.raises(ValueError, match="two parts have one name"):
        merge_corpora([parts[0], Part("First", parts[1].corpus)], tmp_path / "out")
    with pytest.raises(ValueError, match="is not made of letters"):
        merge_corpora([Part("a/b", parts[0].corpus)], tmp_path / "out")
    with pytest.raises(ValueError, match="which is the part first itself"):
        merge_corpora(parts, parts[0].corpus)
    with pytest.raises(ValueError, match="no merge made"):
        merge_corpora(parts[:1], parts[1].corpus)
    with pytest.raises(FileNotFoundError, match=r"pages\.parquet"):
        merge_corpora([Part("empty", tmp_path / "nowhere")], tmp_path / "out")
