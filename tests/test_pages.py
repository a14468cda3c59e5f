"""Corpus preparation: names, bad files, limits, resuming, workers that die, kill -9."""

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pymupdf
import pytest
from PIL import Image
from pydantic import ValidationError

from vrag_nb.agent.pages import PageStore
from vrag_nb.document_names import document_of
from vrag_nb.documents.annotations import check_pages
from vrag_nb.documents.names import find_sources, resolve_questions
from vrag_nb.documents.pages import page_image, page_path, prepare_corpus
from vrag_nb.documents.rendering import Block, Written, render_block
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.sources import ImageSource
from vrag_nb.documents.workers import TaskPool, WorkerDied
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.records import MetaInfo, Page, Question, read_pages, write_pages

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "interruption.py"


def make_pdf(path: Path, texts: list[str], size: tuple[float, float] = (360, 202.5), **save: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pymupdf.open() as document:
        for text in texts:
            document.new_page(width=size[0], height=size[1]).insert_text((36, 72), text)
        document.save(path, **save)
    return path


def prepare(documents: Path, corpus: Path, **options: object):
    return prepare_corpus(documents, corpus, dpi=72, workers=1, progress=False, **options)  # type: ignore[arg-type]


def snapshot(corpus: Path) -> dict[str, bytes]:
    return {str(path.relative_to(corpus)): path.read_bytes() for path in sorted(corpus.rglob("*")) if path.is_file()}


def test_pdfs_and_images_become_pages_with_their_text(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_pdf(documents / "report.pdf", ["first page", "second page"])
    (documents / "scans").mkdir()
    Image.new("RGBA", (60, 40), (0, 0, 0, 0)).save(documents / "scans" / "a.png")
    Image.new("L", (30, 50), 7).save(documents / "fax.tiff", save_all=True, append_images=[Image.new("L", (30, 50), 9)])
    stills = [Image.new("P", (20, 20), shade) for shade in (1, 2)]
    stills[0].save(documents / "moving.gif", save_all=True, append_images=stills[1:])
    Image.new("1", (20, 20), 1).save(documents / "plain.bmp")
    report = prepare(documents, corpus)
    pages = {page.page_id: page for page in read_pages(corpus)}
    assert list(pages) == ["fax_1", "fax_2", "moving_1", "plain_1", "report_1", "report_2", "scans__a_1"]
    assert (report.pages, report.documents, report.skipped) == (7, 5, [])
    assert pages["report_2"].text == "second page"
    assert pages["report_2"].image == "pages/report_2.png"
    assert (pages["report_1"].width, pages["report_1"].height) == (360, 203)  # points at 72 dpi, rounded outwards
    assert page_image(corpus, pages["report_1"]).size == (360, 203)
    assert page_image(corpus, pages["scans__a_1"]).getpixel((5, 5)) == (255, 255, 255), "transparency is paper"


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        (np.array([[0, 32896, 65535]], dtype=np.uint16), False),
        (np.array([[-7, 124, 255 - 7]], dtype=np.int32), True),
        (np.array([[0.25, 0.625, 1]], dtype=np.float32), True),
        (np.array([[0, 128, 255, np.nan]], dtype=np.float32), True),
    ],
)
def test_scans_of_many_bits_keep_their_shades(tmp_path, values, noted):
    Image.fromarray(values).save(tmp_path / "scan.tif")
    [page] = ImageSource().render(tmp_path / "scan.tif", 1, 1, RenderSettings())
    shades = [page.image.getpixel((x, 0))[0] for x in range(values.shape[1])]
    assert shades == pytest.approx([0, 128, 255, 255][: len(shades)], abs=3)
    assert ("stretched" in page.note) == noted


def test_a_document_under_two_names_is_noted(tmp_path):
    documents = tmp_path / "documents"
    report = make_pdf(documents / "report.pdf", ["first page", "second page"])
    make_pdf(documents / "other.pdf", ["first page"])
    for name in ("copy.pdf", "north/report.pdf"):
        (documents / name).parent.mkdir(exist_ok=True)
        (documents / name).write_bytes(report.read_bytes())
    for _ in range(2):  # a run that reuses them says it, too
        found = prepare(documents, tmp_path / "corpus")
        assert [(note.file, note.page) for note in found.notes] == [("north/report.pdf", None), ("report.pdf", None)]
        assert all("the same as those of copy.pdf" in note.reason for note in found.notes)
    assert (found.documents, found.pages, found.skipped) == (4, 7, [])


def test_jpg_and_dpi_are_parameters(tmp_path):
    make_pdf(tmp_path / "documents" / "a.pdf", ["x"])
    prepare_corpus(
        tmp_path / "documents", tmp_path / "corpus", dpi=144, image_format="jpg", workers=1, progress=False, quality=70
    )
    (page,) = read_pages(tmp_path / "corpus")
    assert page.image == "pages/a_1.jpg"
    assert page.width == 720
    with Image.open(tmp_path / "corpus" / page.image) as image:
        assert image.format == "JPEG"
    with pytest.raises(ValueError, match="image_format 'gif'"):
        prepare(tmp_path / "documents", tmp_path / "corpus", image_format="gif")


def test_names_are_unique_safe_and_stable(tmp_path):
    for name in ["a.pdf", "a.png", "A.pdf", "north/a.pdf", "2023.acl-long.386.pdf", ".hidden.pdf", "what?:.png"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ("x" * 240 + ".pdf")).touch()
    sources, others = find_sources(tmp_path)
    named = {path.relative_to(tmp_path).as_posix(): name for name, path in sources.items()}
    assert named["a.pdf"] == "a.pdf"  # "A.pdf" comes first in the alphabet and keeps the plain name
    assert named["A.pdf"] == "A"
    assert named["a.png"] == "a.png"
    assert named["north/a.pdf"] == "north__a"
    assert named["2023.acl-long.386.pdf"] == "2023.acl-long.386"
    assert named["what?:.png"] == "what__"
    assert ".hidden.pdf" not in named
    assert len({name.casefold() for name in sources}) == len(sources) == 7
    assert all(len(name.encode()) <= 200 for name in sources)
    assert not others


def test_links_to_nowhere_are_named(tmp_path):
    (tmp_path / "there.pdf").touch()
    (tmp_path / "linked.pdf").symlink_to("there.pdf")
    (tmp_path / "gone.pdf").symlink_to("moved.pdf")
    sources, others = find_sources(tmp_path)
    assert set(sources) == {"there", "linked"}
    assert others == {"gone.pdf": "a link to what is not there"}


def test_folders_that_are_not_read_are_named(tmp_path, monkeypatch):
    documents, elsewhere = tmp_path / "documents", tmp_path / "elsewhere"
    for file in (documents / "a.pdf", documents / "closed" / "sub" / "b.pdf", elsewhere / "c.pdf"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (documents / "linked").symlink_to(elsewhere)
    (documents / ".hidden").symlink_to(elsewhere)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "closed")
    sources, others = find_sources(documents)
    assert sources == {"a": documents / "a.pdf"}
    assert others == {"closed": "a folder that cannot be read", "linked": "a link to a folder, which is not followed"}


def asked_of(*files: str) -> list[Question]:
    meta = [MetaInfo(file_name=file, reference_page=[1]) for file in files]
    return [Question(uid=f"of {one.file_name}", query="what?", reference_answer="a", meta_info=one) for one in meta]


def test_a_question_about_a_twin_means_the_twin(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    for pdf in ("report.pdf", "north/plan.pdf", "north__plan.pdf", "scan.png.pdf", "Case.pdf", "case.pdf"):
        make_pdf(documents / pdf, [pdf])
    for picture in ("report.png", "north/plan.PNG", "scan.png", "case.png", "CASE.png"):
        Image.new("RGB", (9, 9)).save(documents / picture)
    files = [path.relative_to(documents).as_posix() for path in documents.rglob("*") if path.is_file()]
    asked = asked_of(*files, "north__plan.PNG", "report", "elsewhere.png", "")
    assert resolve_questions(asked, corpus) == asked, "nothing is known of a corpus that is not there"
    prepare(documents, corpus)
    sources = {path.relative_to(documents).as_posix(): name for name, path in find_sources(documents)[0].items()}
    found = {one.uid.removeprefix("of "): one.document for one in resolve_questions(asked, corpus)}
    others = {"north__plan.PNG": "north__plan.PNG", "report": "report", "elsewhere.png": "elsewhere", "": ""}
    assert found == sources | others
    twins = {"report.png": "report.png", "north/plan.PNG": "north__plan.PNG", "scan.png": "scan"}
    assert {file: found[file] for file in twins} == twins
    names = [one.uid.removeprefix("of ") for one in asked]
    assert [one.meta_info.file_name for one in asked] == names, "the caller's own are as they were"
    assert resolve_questions(resolve_questions(asked, corpus), corpus) == resolve_questions(asked, corpus)


def test_a_question_about_an_absent_video_means_no_pages_of_its_name(tmp_path):
    (tmp_path / ".prep").mkdir()
    sources = {"plain": "plain.pdf", "talk": "talk.mp4", "scan": "scan.tif", "brought": ""}
    pages = [Page(page_id=f"{name}_1", document=name, page=1, image="", width=1, height=1) for name in sources]
    write_pages(tmp_path, pages)
    for name, source in sources.items():
        if source:  # a corpus that was imported has no such record
            (tmp_path / ".prep" / f"{name}.json").write_text(json.dumps({"source": source}))
    there = ["plain.pdf", "plain", "plain.PDF", "talk.mp4", "talk.mkv", "talk", "scan.pdf", "scan.tif", "brought.pdf"]
    gone = ["plain.mp4", "talk.pdf", "talk.png"]
    resolved = resolve_questions(asked_of(*there, *gone), tmp_path)
    assert [one.uid.removeprefix("of ") for one in check_pages(resolved, pages)[0]] == there
    assert [one.document for one in resolved] == [document_of(file) for file in there] + gone
    assert resolve_questions(resolved, tmp_path) == resolved


@pytest.mark.parametrize(
    ("file", "document"),
    [
        ("report.pdf", "report"),
        ("REPORT.PDF", "REPORT"),
        ("photo.JPG", "photo"),
        ("Clip.MP4", "Clip"),
        ("north/report.pdf", "north__report"),
        ("a:b?.pdf", "a_b_"),
        ("cafe\u0301.pdf", "caf\u00e9"),
        ("e\u0301" * 150 + ".pdf", document_of("\u00e9" * 150 + ".pdf")),
        ("2023.acl-long.386.pdf", "2023.acl-long.386"),
        ("deck", "deck"),
        ("", ""),
    ],
)
def test_a_question_names_the_document_that_prep_makes_of_the_file(file, document):
    meta = MetaInfo(file_name=file, reference_page=[1])
    question = Question(uid="q", query="what?", reference_answer="a", meta_info=meta)
    assert question.document == document
    with pytest.raises(ValidationError, match="greater than 0"):
        MetaInfo(file_name=file, reference_page=[0])


def test_bad_files_are_named_and_the_rest_goes_on(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_pdf(documents / "good.pdf", ["fine"])
    make_pdf(documents / "locked.pdf", ["secret"], encryption=pymupdf.PDF_ENCRYPT_AES_256, user_pw="u", owner_pw="o")
    make_pdf(documents / "long.pdf", ["x"] * 4)
    make_pdf(documents / "poster.pdf", ["big"], size=(7200, 7200))
    (documents / "zero.pdf").touch()
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7\nnot really")
    (documents / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    (documents / "letter.docx").write_bytes(b"PK")
    (documents / "error.pdf").write_bytes(b"<html><body>404: not found</body></html>")
    Image.new("RGB", (20, 20)).save(documents / "picture.pdf", "JPEG")
    make_pdf(documents / "report.pdf", ["misnamed"])
    (documents / "report.pdf").rename(documents / "report.png")
    (documents / "talk.mp4").write_bytes(b"....")
    Image.new("1", (4000, 3000)).save(documents / "bomb.png")  # 12 megapixels in a few hundred bytes
    report = prepare(documents, corpus, max_pages=3, max_page_pixels=500_000)
    reasons = {entry.file: entry.reason for entry in report.skipped}
    assert "password" in reasons["locked.pdf"]
    assert "4 pages" in reasons["long.pdf"]
    assert "zero bytes" in reasons["zero.pdf"]
    assert "broken PDF" in reasons["broken.pdf"]
    assert "broken image" in reasons["broken.png"]
    assert "no PDF but HTML" in reasons["error.pdf"]
    assert "no PDF but" in reasons["picture.pdf"]
    assert reasons["report.png"] == "no image but a PDF: name it .pdf"
    assert "unsupported" in reasons["letter.docx"]
    assert "broken video" in reasons["talk.mp4"]
    assert "max_page_pixels" in reasons["bomb.png"]
    assert {page.page_id for page in read_pages(corpus)} == {"good_1", "poster_1"}
    (note,) = report.notes
    assert (note.file, note.page) == ("poster.pdf", 1)
    assert "rendered at 7 dpi" in note.reason
    poster = next(page for page in read_pages(corpus) if page.document == "poster")
    assert poster.width * poster.height <= 500_000


def make_tiff(path: Path, shades: list[int], size: tuple[int, int] = (20, 30)) -> Path:
    """A document like any other, and quicker for a worker to open than a PDF."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = [Image.new("L", size, shade) for shade in shades]
    first.save(path, save_all=True, append_images=rest)
    return path


def test_what_the_machine_failed_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / "none").touch()  # no folder
    block = Block(make_tiff(tmp_path / "a.tif", [1, 2]), "a", 1, 2, tmp_path / "none", RenderSettings())
    assert [(page.retry, "File exists" in page.error) for page in render_block(block)] == [(True, True)] * 2
    (tmp_path / "broken.tif").write_bytes((tmp_path / "a.tif").read_bytes()[:200])
    [page, *_] = render_block(replace(block, source=tmp_path / "broken.tif", pages=tmp_path))
    assert page.error
    assert not page.retry

    documents, corpus = make_tiff(tmp_path / "documents" / "a.tif", [1, 2]).parent, tmp_path / "corpus"
    failed = [Written(1, 20, 30, "x"), Written(2, error="No space left on device", retry=True)]
    monkeypatch.setattr(
        TaskPool, "run", lambda pool, task, items, *skip: ((one, failed if skip else 2) for one in items)
    )
    assert [(one.page, one.reason) for one in prepare(documents, corpus).skipped] == [(2, "No space left on device")]
    monkeypatch.undo()
    again = prepare(documents, corpus)
    assert (again.rendered, again.pages, again.skipped) == (1, 2, [])


def test_one_process_renders_into_a_corpus(tmp_path):
    documents, corpus = make_tiff(tmp_path / "documents" / "a.tif", [1]).parent, tmp_path / "corpus"
    for reused in (0, 1):  # also where nothing is to be rendered: the pages of others would be swept away
        with alone_in(corpus / "pages"), pytest.raises(FolderInUseError, match="at work in"):
            prepare(documents, corpus)
        assert prepare(documents, corpus).reused == reused


def test_a_name_that_is_not_utf8_and_a_strange_folder_stop_nothing(tmp_path):
    documents, corpus = make_tiff(tmp_path / "documents" / "a.tif", [1]).parent, tmp_path / "corpus"
    Path(os.fsdecode(os.fsencode(documents) + b"/K\xf6ln.pdf")).write_bytes(b"%PDF")
    (corpus / ".prep").mkdir(parents=True)
    (corpus / "pages" / "@eaDir").mkdir(parents=True)
    report = prepare(documents, corpus)
    assert [(one.file, one.reason) for one in report.skipped] == [
        ("K\\udcf6ln.pdf", "its name is not UTF-8: rename it")
    ]
    assert report.pages == 1
    assert (corpus / "pages" / "@eaDir").is_dir()


def test_a_rerun_renders_only_what_changed(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_tiff(documents / "a.tif", [1, 2])
    make_tiff(documents / "b.tif", [3])
    make_tiff(documents / "c.tif", [4])
    assert prepare(documents, corpus).rendered == 3
    first = snapshot(corpus)
    again = prepare(documents, corpus)
    assert (again.rendered, again.reused) == (0, 3)
    assert snapshot(corpus) == first

    make_tiff(documents / "a.tif", [5])
    (documents / "b.tif").unlink()
    (corpus / "pages" / ".9.1.partial").touch()  # what a killed worker leaves behind
    changed = prepare(documents, corpus)
    assert (changed.rendered, changed.reused) == (1, 1)
    assert [page.page_id for page in read_pages(corpus)] == ["a_1", "c_1"]
    assert sorted(path.name for path in (corpus / "pages").iterdir()) == ["a_1.png", "c_1.png"]

    (corpus / "pages" / "c_1.png").unlink()
    assert prepare(documents, corpus).rendered == 1
    assert prepare(documents, corpus, max_pages=7).rendered == 2, "other settings, other bytes"


def test_a_page_image_that_was_cut_short_is_rendered_again(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_pdf(documents / "a.pdf", ["one", "two"])
    prepare(documents, corpus)
    first, cut = snapshot(corpus), corpus / "pages" / "a_2.png"
    cut.write_bytes(cut.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"page a_2: .*a_2\.png cannot be read .*prepare the corpus again"):
        PageStore(corpus).image("a_2")
    assert prepare(documents, corpus).rendered == 1, "of one document"
    assert snapshot(corpus) == first


def test_a_pdf_that_had_to_be_repaired_says_so(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    make_pdf(documents / "half.pdf", ["one", "two"])
    whole = (documents / "half.pdf").read_bytes()
    (documents / "half.pdf").write_bytes(whole[: whole.rindex(b"xref")])
    report = prepare(documents, corpus)
    assert report.pages == 2
    assert {note.page for note in report.notes} == {1, 2}
    assert all("damaged PDF that was repaired" in note.reason for note in report.notes)


def test_damage_within_a_page_is_noted(tmp_path):
    documents, corpus = tmp_path / "documents", tmp_path / "corpus"
    whole = make_pdf(documents / "a.pdf", ["one", "two", "three"])
    with pymupdf.open(whole) as document:
        document.update_stream(document[1].get_contents()[0], b"q BT /F1 12 Tf (no end")
        document.update_object(document[2].xref, "null")
        document.save(documents / "hurt.pdf")
    report = prepare(documents, corpus)
    assert [(note.file, note.page) for note in report.notes] == [("hurt.pdf", 2), ("hurt.pdf", 3)]
    assert "syntax error" in report.notes[0].reason
    assert "lacks it" in report.notes[1].reason
    assert (report.pages, report.skipped) == (6, []), "the page is kept"


def test_folders_that_are_not_ours_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder of documents"):
        prepare(tmp_path / "nowhere", tmp_path / "corpus")
    (tmp_path / "documents").mkdir()
    with pytest.raises(ValueError, match="holds no document"):
        prepare(tmp_path / "documents", tmp_path / "corpus")
    make_pdf(tmp_path / "documents" / "a.pdf", ["x"])
    with pytest.raises(ValueError, match="lies inside"):
        prepare(tmp_path / "documents", tmp_path / "documents" / "corpus")
    precious = tmp_path / "mine" / "pages" / "holiday.png"
    precious.parent.mkdir(parents=True)
    precious.touch()
    with pytest.raises(ValueError, match="did not make"):
        prepare(tmp_path / "documents", tmp_path / "mine")
    assert precious.exists()


def test_a_page_image_is_only_read_from_the_corpus(tmp_path):
    (tmp_path / "secret.png").touch()
    (tmp_path / "corpus").mkdir()
    page = Page(page_id="a_1", document="a", page=1, image="../secret.png", width=1, height=1)
    with pytest.raises(ValueError, match="out of the corpus"):
        page_path(tmp_path / "corpus", page)
    with pytest.raises(FileNotFoundError, match="a_1"):
        page_image(tmp_path / "corpus", page.model_copy(update={"image": "pages/a_1.png"}))


def test_a_worker_that_dies_takes_only_its_own_task_along():
    tasks = ["1 + 1", "2 + 1", "__import__('os')._exit(9)", "3 + 1", "4 + 1", "5 + 1", "6 + 1"]
    with TaskPool(2) as pool:  # the worker runs `eval` because a builtin needs no import there
        results = dict(pool.run(eval, tasks))
        assert isinstance(results.pop(tasks[2]), WorkerDied)
        assert sorted(results.values()) == [2, 3, 4, 5, 6, 7]  # type: ignore[type-var]
        assert dict(pool.run(len, ["the pool", "lives on"])) == {"the pool": 8, "lives on": 8}


def load_benchmark():
    specification = importlib.util.spec_from_file_location("interruption", BENCHMARK)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["interruption"] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


def test_a_killed_prep_ends_with_the_same_bytes(tmp_path):
    interruption = load_benchmark()
    documents = tmp_path / "documents"
    for number in range(4):
        make_tiff(documents / f"{number}.tif", [number] * 20, size=(500, 700))
    interruption.finish_stage("prep", documents, tmp_path / "calm", "", 1)
    expected = interruption.tree_digest(tmp_path / "calm")
    assert sum(name.startswith("pages/") for name in expected) == 80
    for files, with_children in ((10, True), (50, False)):
        trial = interruption.try_kill(
            "prep", documents, tmp_path / "killed", expected, (files, 0.0), "", 1, with_children
        )
        assert trial.killed, "the kill fell on a running process"
        assert trial.files_left < len(expected)
        assert trial.identical
