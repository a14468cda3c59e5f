"""Indexes of one corpus side by side: what they find, weigh and are called, and the figure of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle
from test_index import TEXTS, Toy, ToySingle, make_corpus

from vrag_nb.display.index_figure import index_figure
from vrag_nb.evaluation.index_comparison import ComparedIndex, compare_indexes, table
from vrag_nb.evaluation.metrics import Interval
from vrag_nb.plotting import figures
from vrag_nb.records import MetaInfo, Question
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.storage import Compression

WHOLE = Compression(keep=1, vector_bytes=64)


def engine_of(folder: Path, embedder: Embedder, texts: list[str], **options: Any) -> SearchEngine:
    corpus = make_corpus(folder / "corpus", texts)
    build_index(corpus, folder / "index", embedder, progress=False, **options)
    return SearchEngine.open(corpus, folder / "index", embedder)


def ask(query: str, document: str, *pages: int) -> Question:
    meta = MetaInfo(file_name=f"{document}.pdf", reference_page=list(pages))
    return Question(uid=query, query=query, reference_answer="", meta_info=meta)


QUESTIONS = [ask("pears plums", "deck0", 2), ask("table numbers", "deck1", 2), ask("unanswerable", "deck0")]


def test_every_index_is_measured_on_the_same_questions(tmp_path: Path) -> None:
    embedder = Toy()
    engine = engine_of(tmp_path, embedder, TEXTS)
    embedded = len(embedder.embedded)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "index").iterdir())}
    rows = compare_indexes(engine, QUESTIONS, compressions=[WHOLE], cut=1, work=tmp_path)
    names = ["exact MaxSim", "compact: 100% of patches, 64 bytes each", "BM25, text layer"]
    assert [row.name for row in rows] == [*names, "exact MaxSim and BM25, fused"]
    assert [row.recall.value for row in rows] == [1, 1, 1, 1]
    assert {row.recall.n for row in rows} == {2}, "the question without gold pages is left out"
    assert rows[0].bytes == sum(file.bytes for file in engine.index.manifest.files.values())
    assert rows[3].bytes == rows[0].bytes + rows[2].bytes, "fusion needs both"
    assert rows[3].queries_a_second < min(rows[0].queries_a_second, rows[2].queries_a_second)
    assert [row.build_seconds is None for row in rows] == [True, False, False, False]
    assert len(embedder.embedded) == embedded, "no page is embedded again"
    assert {path: path.read_bytes() for path in sorted((tmp_path / "index").iterdir())} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "index"], "nothing is left behind"


def test_what_is_missed_counts(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, Toy(), TEXTS)
    wrong = [*QUESTIONS, ask("plums only", "deck1", 3), ask("apples pears", "deck0", 1, 3)]
    rows = compare_indexes(engine, wrong, compressions=[], cut=1, work=tmp_path)
    assert rows[0].recall.value == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert rows[0].recall.low is not None
    assert rows[0].recall.low < 0.625


@pytest.mark.parametrize(
    ("embedder", "options", "names"),
    [
        (ToySingle, {}, ["one vector a page", "BM25, text layer", "one vector a page and BM25, fused"]),
        (Bm25, {}, ["BM25, text layer"]),
        (
            Toy,
            {"compression": WHOLE},
            ["every page by its codes", "BM25, text layer", "every page by its codes and BM25, fused"],
        ),
    ],
)
def test_other_kinds_of_index_are_compared_with_what_fits(
    tmp_path: Path, embedder: type[Embedder], options: dict[str, Compression], names: list[str]
) -> None:
    engine = engine_of(tmp_path, embedder(), TEXTS, **options)
    assert [row.name for row in compare_indexes(engine, QUESTIONS, work=tmp_path)] == names


def test_pages_without_text_have_no_bm25_and_questions_need_gold(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, Toy(), ["", "", ""])
    rows = compare_indexes(engine, [ask("anything", "deck0", 1)], compressions=[WHOLE], work=tmp_path)
    assert len(rows) == 2
    with pytest.raises(ValueError, match="no question has gold pages"):
        compare_indexes(engine, [ask("anything", "deck0")])


def test_the_engine_goes_on_as_it_was(tmp_path: Path) -> None:
    engine = engine_of(tmp_path, Toy(), TEXTS)
    compare_indexes(engine, QUESTIONS, compressions=[], work=tmp_path)
    assert getattr(engine.index, "exact", "gone") is None


ROWS = [
    ComparedIndex(
        name=name,
        recall=Interval(value=value, low=max(0, value - 0.1), high=min(1, value + 0.1), n=32),
        cut=5,
        queries_a_second=speed,
        bytes=size,
        pages=791,
        build_seconds=seconds,
    )
    for name, value, speed, size, seconds in [
        ("exact MaxSim", 0.75, 1.2, 132_000_000, None),
        ("compact: 40% of patches", 0.77, 2.5, 15_200_000, 60.0),
        ("BM25, text layer", 0.0, 672.0, 560_000, 0.9),
    ]
]


def test_the_table_says_it_in_words() -> None:
    first, second, _ = table(ROWS)
    assert first["recall@5"] == "0.75 (0.65 to 0.85)"
    assert (first["seconds to build"], second["seconds to build"]) == ("there already", "60.0")
    assert second["size against the first"] == "11.5%"
    assert second["KB a page"] == "19.2"


def test_one_figure_has_three_panels() -> None:
    figure = index_figure(ROWS, "Indexes of $5 decks")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Recall@5", "Speed", "Size"]
    assert [bar.get_width() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)] == [0.75, 0.77, 0]
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "log", "log"]
    assert figure.axes[1].lines[0].get_xdata().tolist() == [1.2, 2.5, 672.0]  # type: ignore[union-attr]
    said = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"75%", "672", "15.2 MB"} <= set(said)
    assert "791 pages, 32 questions, each asked alone" in [text.get_text() for text in figure.texts]
    path = figures.png_bytes(figure)
    assert path.startswith(b"\x89PNG")
    index_figure(ROWS[:1])
    with pytest.raises(ValueError, match="no indexes"):
        index_figure([])
