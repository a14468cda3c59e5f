"""One corpus under several indexes: what each finds, how fast it answers, and what it weighs.

    rows = compare_indexes(profile.open_engine(), profile.dev_questions(32))
    pd.DataFrame(table(rows))

The engine's own index is the reference, scored page by page. From its vectors compact indexes are made
(`retrieval.compact`), beside them a BM25 index of the pages' text, all in a temporary folder, and the rankings of the
reference and of BM25 are fused (`retrieval.fusion`). Nothing is embedded but the questions and, to train the compact
indexes, some words of the pages.

Every index answers every question alone, as an agent asks; the seconds are those of the search, without embedding the
question. Bytes are those of an index's files. Speeds are of this machine and this process, one after another: they tell
which index is faster here, no more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from tqdm.auto import tqdm

from vrag_nb.evaluation.metrics import Interval, recall_at_k, share_interval
from vrag_nb.records import Hit, Question
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.compact import CompactIndex, sample_queries, write_compact
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.fusion import reciprocal_rank_fusion
from vrag_nb.retrieval.index import MultiVectorIndex, PageIndex
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.storage import Compression, Manifest, commit

DEPTH = 50  # hits of a ranking, before fusion
SMALL = Compression(keep=0.2, vector_bytes=36)
_SHARD_PAGES = 64
Rankings = list[list[Hit]]  # one list of hits a question


class ComparedIndex(BaseModel):
    """One index over the corpus.

    `recall`: of gold pages among the first `cut`, with its 95% interval. `bytes`: of its files, for `pages` pages.
    `build_seconds`: without embedding pages; None for the index that was there.
    """

    name: str
    recall: Interval
    cut: int
    queries_a_second: float
    bytes: int
    pages: int
    build_seconds: float | None = None


def compare_indexes(
    engine: SearchEngine,
    questions: Sequence[Question],
    *,
    compressions: Sequence[Compression] = (Compression(), SMALL),
    cut: int = 5,
    seed: int = 0,
    work: Path | None = None,
    progress: bool = True,
) -> list[ComparedIndex]:
    """See the module's docstring; the engine's own index comes first, fusion last.

    questions: those without gold pages are left out. Ask development questions: what is looked at to choose an index is
    no test any more. compressions: of the compact indexes, made where the engine's index holds vectors of patches as
    they are. cut: recall@cut. work: an existing folder for what is temporary. BM25 and fusion need pages with text and
    are left out without. Raises ValueError when no question has gold pages.
    """
    comparison = _Comparison([question for question in questions if question.gold_page_ids], cut, seed, progress)
    index, embedder = _scoring_every_page(engine.index), engine.embedder
    texts = [page.text for page in engine.pages.values()]
    encoded = comparison.words if index.manifest.kind == "text" else embedder.embed_queries(comparison.words)
    visual, visual_seconds = comparison.ask(index, encoded)
    rows = [comparison.row(_own_name(index), visual, visual_seconds, index)]
    if isinstance(index, MultiVectorIndex) and index.hubness_weight:
        with_hubs = _scoring_every_page(engine.index, hubness_weight=0.0)
        rows.append(comparison.row(f"{_own_name(index)}, hubs as they are", *comparison.ask(with_hubs, encoded), index))
    with tempfile.TemporaryDirectory(dir=work) as folder:
        if isinstance(index, MultiVectorIndex) and not isinstance(index, CompactIndex):
            sampled = sample_queries(embedder, texts)  # the same for every compression, in no build's time
            for number, compression in enumerate(compressions):
                started = time.perf_counter()
                compact = _compact(index, Path(folder) / f"compact-{number}", compression, sampled)
                seconds = time.perf_counter() - started
                name = f"compact: {compression.keep:.0%} of patches, {compression.vector_bytes} bytes each"
                rows.append(comparison.row(name, *comparison.ask(compact, encoded), compact, build_seconds=seconds))
        if index.manifest.kind != "text" and any(text.strip() for text in texts):
            started = time.perf_counter()
            build_index(engine.corpus, Path(folder) / "bm25", Bm25(), progress=False)
            bm25 = open_index(Path(folder) / "bm25")
            seconds = time.perf_counter() - started
            text, text_seconds = comparison.ask(bm25, comparison.words)
            rows.append(comparison.row("BM25, text layer", text, text_seconds, bm25, build_seconds=seconds))
            started = time.perf_counter()
            fused = [reciprocal_rank_fusion(both, DEPTH) for both in zip(visual, text, strict=True)]
            took = time.perf_counter() - started + visual_seconds + text_seconds
            rows.append(
                comparison.row(f"{_own_name(index)} and BM25, fused", fused, took, index, bm25, build_seconds=seconds)
            )
    return rows


def table(rows: Sequence[ComparedIndex]) -> list[dict[str, str]]:
    """The figures in words, a dict a row."""
    return [
        {
            "index": row.name,
            f"recall@{row.cut}": f"{row.recall.value:.2f} ({row.recall.low:.2f} to {row.recall.high:.2f})",
            "queries a second": f"{row.queries_a_second:,.1f}",
            "MB on disk": f"{row.bytes / 1e6:,.2f}",
            "KB a page": f"{row.bytes / row.pages / 1e3:,.1f}",
            "size against the first": f"{row.bytes / rows[0].bytes:.1%}",
            "seconds to build": "there already" if row.build_seconds is None else f"{row.build_seconds:.1f}",
        }
        for row in rows
    ]


class _Comparison:
    """The questions, and how an index is measured by them."""

    def __init__(self, questions: Sequence[Question], cut: int, seed: int, progress: bool) -> None:
        if not questions:
            raise ValueError("no question has gold pages: there is nothing to compare indexes by")
        self.words = [question.query for question in questions]
        self._gold = {question.uid: question.gold_page_ids for question in questions}
        self._cut, self._seed = cut, seed
        self._bar = tqdm(desc="comparing indexes", unit="index", disable=not progress)

    def ask(self, index: PageIndex, encoded: Sequence[Any]) -> tuple[Rankings, float]:
        """The rankings, and the seconds of all searches, one at a time; the first is asked twice, to warm the files."""
        index.search(encoded[:1], DEPTH)
        started = time.perf_counter()
        rankings = [index.search([one], DEPTH)[0] for one in encoded]
        return rankings, time.perf_counter() - started

    def row(
        self, name: str, rankings: Rankings, seconds: float, *indexes: PageIndex, build_seconds: float | None = None
    ) -> ComparedIndex:
        """What was measured; `indexes`: those that were searched, whose bytes count."""
        ranked = {uid: [hit.page_id for hit in hits] for uid, hits in zip(self._gold, rankings, strict=True)}
        self._bar.update()
        return ComparedIndex(
            name=name,
            recall=share_interval(list(recall_at_k(ranked, self._gold, self._cut).values()), self._seed),
            cut=self._cut,
            queries_a_second=len(rankings) / max(seconds, 1e-9),
            bytes=sum(file.bytes for index in indexes for file in index.manifest.files.values()),
            pages=len(indexes[0].page_ids),
            build_seconds=build_seconds,
        )


def _scoring_every_page(index: PageIndex, hubness_weight: float | None = None) -> PageIndex:
    """The engine's index opened once more: exact, whatever its size, without a change to the engine's own.

    hubness_weight: another one than the engine's.
    """
    opened = open_index(index.folder, verify=False)
    if isinstance(opened, MultiVectorIndex) and isinstance(index, MultiVectorIndex):
        opened.exact = True
        opened.hubness_weight = index.hubness_weight if hubness_weight is None else hubness_weight
    return opened


def _own_name(index: PageIndex) -> str:
    if isinstance(index, CompactIndex):
        return "every page by its codes"
    return {"multi_vector": "exact MaxSim", "single_vector": "one vector a page", "text": "BM25, text layer"}[
        index.manifest.kind
    ]


def _compact(index: MultiVectorIndex, folder: Path, compression: Compression, sampled: np.ndarray) -> PageIndex:
    """A compact index of the vectors in `index`, opened; hubs weigh as much."""
    folder.mkdir()
    listed = [entry.model_copy() for entry in index.manifest.pages]
    row_of = {entry.key: row for row, entry in enumerate(listed)}
    parts = write_compact(
        folder,
        folder / ".building",
        listed,
        lambda key: index.vectors(row_of[key]),
        lambda: sampled,
        compression,
        _SHARD_PAGES,
        views=index.manifest.views,
    )
    about = index.manifest.model_dump(
        include={"kind", "embedder", "fingerprint", "dim", "views", "checkpoint", "options"}
    )
    commit(folder, Manifest(**about, shard_pages=_SHARD_PAGES, page_count=len(listed), pages=listed, **parts))
    opened = open_index(folder, verify=False)
    assert isinstance(opened, CompactIndex)
    opened.hubness_weight = index.hubness_weight
    return opened
