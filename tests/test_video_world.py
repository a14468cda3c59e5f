"""A narrated world end to end: decks filmed beside their pages, prepared, indexed, searched, asked of VimRAG."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymupdf
import pytest

from vrag_nb.agent.memory_graph import MemoryGraph
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.vimrag import Event, VimRAG
from vrag_nb.display.video_figure import chunk_rows, gold_span, sheet_figure, timeline_figure
from vrag_nb.documents import narrated
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.documents.narrated import main, narrate_corpus
from vrag_nb.documents.pages import prepare_corpus
from vrag_nb.documents.settings import VideoSettings
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.paths import REPOSITORY
from vrag_nb.plotting.figures import png_bytes
from vrag_nb.records import Page, Question, read_pages, read_questions, write_questions
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.embedders import Embedder, load_embedder
from vrag_nb.retrieval.engine import SearchEngine

RETRIEVER = REPOSITORY / "data/models/nano-retriever"
SECONDS = 8  # of a chunk: the shortest that holds two pages
SMALL = VideoSettings(chunk_seconds=SECONDS, frame_rate=1, max_frame_pixels=30_000, max_sheet_pixels=100_000)


def first_pages(pdf: bytes, count: int) -> bytes:
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        document.select(range(count))
        return document.tobytes()


@pytest.fixture(scope="module")
def decks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated corpus of two decks of three pages."""
    corpus = tmp_path_factory.mktemp("narrated")
    (corpus / "documents").mkdir()
    asked: list[Question] = []
    for seed in itertools.count(1):
        pdf, questions = pretraining_deck(seed)
        early = [one for one in questions if max(one.meta_info.reference_page, default=9) <= 3]
        if len(early) < 5:  # a deck whose first pages say little
            continue
        (corpus / "documents" / f"{questions[0].document}.pdf").write_bytes(first_pages(pdf, 3))
        asked += early
        if len({one.document for one in asked}) == 2:
            break
    write_questions(corpus / "questions.test.parquet", asked)
    return corpus


@pytest.fixture(scope="module")
def corpus(decks: Path) -> Path:
    """Both decks filmed, their videos beside them, and all of it prepared: 2 x 3 pages, 2 x 2 chunks."""
    before = (decks / "questions.test.parquet").read_bytes()
    summary = narrate_corpus(decks, {"test": 2}, seed=1, chunk_seconds=SECONDS, decks=decks)
    assert (summary.videos, summary.made) == (2, 2)
    assert (decks / "questions.test.parquet").read_bytes() == before
    report = prepare_corpus(decks / "documents", decks, dpi=36, workers=1, progress=False, video=SMALL)
    assert (report.documents, report.pages, report.skipped, report.notes) == (4, 10, [], [])
    return decks


@pytest.fixture(scope="module")
def asked(corpus: Path) -> list[Question]:
    return read_questions(corpus / "questions.video-test.parquet")


def test_every_question_has_its_chunk_and_its_span(corpus: Path, asked: list[Question]) -> None:
    pages = {page.page_id: page for page in read_pages(corpus)}
    assert {page.kind for page in pages.values()} == {"page", "video"}
    assert len({question.document for question in asked}) == 2
    for question in asked:
        [name] = question.gold_page_ids
        clip, span = pages[name].video, gold_span(question)
        assert clip is not None
        assert span is not None
        assert clip.start <= span[0] < span[1] <= clip.end
        assert any(span[0] <= frame.seconds < span[1] for frame in clip.frames), "a sampled frame shows it"


def test_a_second_run_makes_nothing_and_a_killed_one_goes_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path: path.read_bytes() for path in sorted(corpus.glob("documents/*.mp4"))}
    filmed: list[int] = []

    def counting(pdf: bytes, shots: Any) -> bytes:
        filmed.append(len(shots))
        if len(filmed) == 2:
            raise KeyboardInterrupt
        return b"a video"

    monkeypatch.setattr(narrated, "film_pages", counting)
    assert narrate_corpus(corpus, {"test": 2}, 1, SECONDS, corpus).made == 0
    assert {path: path.read_bytes() for path in files} == files
    with pytest.raises(KeyboardInterrupt):
        narrate_corpus(tmp_path, {"test": 2}, 1, SECONDS, corpus)
    assert narrate_corpus(tmp_path, {"test": 2}, 1, SECONDS, corpus).made == 1
    assert narrate_corpus(tmp_path, {"test": 2}, 2, SECONDS, corpus).made == 2, "another seed"
    (tmp_path / "documents" / "mine.mp4").touch()
    assert narrate_corpus(tmp_path, {"test": 1}, 2, SECONDS, corpus).made == 0
    assert sorted(path.name for path in (tmp_path / "documents").iterdir()) == ["mine.mp4", next(iter(files)).name]
    assert {one.document for one in read_questions(tmp_path / "questions.video-test.json")} == {next(iter(files)).stem}
    (tmp_path / "narrated.json").write_text('{"files": {"../../elsewhere.mp4": ""}}')
    assert narrate_corpus(tmp_path, {}, 2, SECONDS, corpus).videos == 0, "a forged marker removes nothing outside"


@pytest.mark.parametrize(
    ("wanted", "seconds", "words"),
    [({"exam": 1}, 8, "split 'exam'"), ({"test": -1}, 8, "0 or more"), ({"test": 3}, 8, "2 test decks, and 3"),
     ({"test": 1}, 8.5, "whole number"), ({"test": 1}, 5, "take 8 or more")],
)  # fmt: skip
def test_what_cannot_be_filmed_is_said(
    corpus: Path, tmp_path: Path, wanted: dict[str, int], seconds: float, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        narrate_corpus(tmp_path, wanted, 0, seconds, corpus)


def test_the_command_draws_decks_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(narrated, "film_pages", lambda pdf, shots: pdf[:4])
    main([str(tmp_path / "a"), "--videos", "2", "--seed", "4"])
    main([str(tmp_path / "b"), "--videos", "2", "--seed", "4"])
    assert "2 videos (2 made now)" in capsys.readouterr().out
    files = [{path.name: path.read_bytes() for path in (tmp_path / out).rglob("*") if path.is_file()} for out in "ab"]
    assert files[0] == files[1]
    assert sum(name.endswith("-video.mp4") for name in files[0]) == 2
    assert not any(name.endswith(".pdf") for name in files[0])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "a"), "--decks", str(tmp_path / "nowhere")])
    assert "no question file" in capsys.readouterr().err


# --- search and the agent ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(corpus: Path) -> SearchEngine:
    """The shipped retriever's index over pages and contact sheets."""
    if not RETRIEVER.is_dir():
        pytest.skip("the nano retriever is not in this checkout")
    embedder: Embedder = load_embedder("nano-colqwen2_5", str(RETRIEVER), batch_size=2)
    assert build_index(corpus, corpus / "index", embedder, progress=False).pages == 10
    return SearchEngine.open(corpus, corpus / "index", embedder)


def boxes(asked: list[Question]) -> list[Question]:
    """One question about a box for each video."""
    by_video = itertools.groupby(asked, key=lambda question: question.document)
    return [next(one for one in group if one.meta_info.source_type == "overlay") for _, group in by_video]


def test_a_search_finds_pages_and_chunks_alike(corpus: Path, engine: SearchEngine, asked: list[Question]) -> None:
    found = engine.search([question.query for question in boxes(asked)], 10)
    for hits in found:
        assert {hit.page_id for hit in hits} == {page.page_id for page in read_pages(corpus)}
        assert all(np.isfinite(hit.score) for hit in hits)


def play(corpus: Path, engine: SearchEngine, question: Question, **settings: Any) -> list[Event]:
    budget = {"top_k": 10, "max_pixels": 64 * 784, "memory_pixels": 64 * 784}
    agent = VimRAG(policy=MemoryPlanner([question]), engine=engine, corpus=corpus, **{**budget, **settings})
    return list(agent.run(question))


def events(found: list[Event], kind: str) -> Iterator[Event]:
    return (event for event in found if event.kind == kind)


@pytest.mark.parametrize("items", [("image",), ("image", "video")])
def test_an_expert_finds_the_chunk_remembers_it_and_answers(
    corpus: Path, engine: SearchEngine, asked: list[Question], items: tuple[str, ...]
) -> None:
    for question in boxes(asked):
        [gold] = question.gold_page_ids
        found = play(corpus, engine, question, items=items)
        trajectory = found[-1].trajectory
        assert trajectory is not None
        assert (trajectory.status, is_correct(trajectory.answer, question.reference_answer)) == ("answered", True)
        assert not list(events(found, "notice"))
        shown = [one for one in (trajectory.turns[0].observation, *trajectory.turns[0].also_shown) if one is not None]
        seen = [one for one in shown if one.page_id == gold]
        [item] = MemoryGraph.load(trajectory.graph or []).nodes[1].items
        assert (item.name, item.kind, item.priority) == (gold, items[-1], 5)
        [again] = list(events(found, "graph"))[-2].remembered
        assert (again.name, again.timestamps) == (gold, list(item.timestamps))
        if "video" not in items:
            assert len(seen) == 1, "the chunk's sheet"
            continue
        assert len(seen) > 1, "frame by frame"
        assert all(one.caption.endswith(" s:\n") for one in seen)
        span = gold_span(question)
        assert span is not None
        assert item.timestamps
        assert all(span[0] <= second < span[1] for second in item.timestamps)


# --- on paper ---------------------------------------------------------------------------------------------------------


def test_chunks_as_a_table(corpus: Path) -> None:
    pages = read_pages(corpus)
    rows = pd.DataFrame(chunk_rows(pages))
    assert rows[["start", "end"]].to_numpy().tolist() == 2 * [[0, 8], [8, rows["end"].iloc[-1]]]
    assert (rows["frames"] >= 4).all()
    assert chunk_rows([page for page in pages if page.kind == "page"]) == []


def test_a_sheet_and_a_timeline_can_be_drawn(corpus: Path, asked: list[Question]) -> None:
    pages, store = read_pages(corpus), PageStore(corpus)
    chunk = next(page for page in pages if page.page_id in asked[0].gold_page_ids)
    assert len(png_bytes(sheet_figure(chunk, store))) > 5000
    figure = timeline_figure(asked[0], store, pages)
    words = " ".join(text.get_text() for text in figure.texts)
    assert asked[0].reference_answer in words
    span, clip = gold_span(asked[0]), chunk.video
    assert span is not None
    assert clip is not None
    assert len(png_bytes(figure)) > 5000
    framed = [axes for axes in figure.axes[1:] if axes.spines["left"].get_linewidth() == 2]
    assert len(framed) == sum(span[0] <= frame.seconds < span[1] for frame in clip.frames) >= 1


def test_a_figure_of_what_is_not_there_says_so(corpus: Path, asked: list[Question]) -> None:
    pages = read_pages(corpus)
    still = next(page for page in pages if page.kind == "page")
    with pytest.raises(ValueError, match="no chunk of a video"):
        sheet_figure(still, corpus)
    with pytest.raises(ValueError, match="has no video"):
        timeline_figure(asked[0], corpus, [still])
    with pytest.raises(ValueError, match="chunks of 8 seconds"):
        timeline_figure(asked[0], corpus, [moved(page) for page in pages])


def moved(page: Page) -> Page:
    """A chunk as if the video had been cut elsewhere."""
    if page.video is None:
        return page
    clip = page.video.model_copy(update={"start": page.video.start + 100, "end": page.video.end + 100})
    return page.model_copy(update={"video": clip})
