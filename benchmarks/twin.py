"""Late interaction against one vector a page: the nano retriever, its twin and BM25 on the same pages and questions.

    python benchmarks/twin.py [--profiles nano nano-single] [--questions dev test] [--out results/twin]

The questions are of the development and the test split; every retriever ranks all pages of the corpus. Printed:
recall@1, 3 and 5 and nDCG@5 with 95% bootstrap intervals over questions, the bytes of the index a page, and the
milliseconds a question takes, embedding included, asked one at a time. An index that is missing is built first.
"Fused" are the reciprocal ranks of a retriever and BM25.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from tables import tell

from vrag_nb.evaluation.evaluate import rank_pages, retrieval_metrics
from vrag_nb.profiles import load_profile
from vrag_nb.records import Hit, Question, read_questions
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index
from vrag_nb.retrieval.fusion import FusedEngine

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@5")
Questions = dict[str, list[Question]]  # by split
HEAD = ["retriever", "split", *METRICS, "KB a page", "ms a question"]


def opened(corpus: Path, folder: Path, embedder: Embedder) -> SearchEngine:
    build_index(corpus, folder, embedder)
    return SearchEngine.open(corpus, folder, embedder)


def rows_of(
    name: str, engine: SearchEngine | FusedEngine, asked: Questions, pages: int, folders: list[Path]
) -> Iterator[list[str]]:
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    for split, questions in asked.items():
        started = time.perf_counter()
        found: dict[str, list[Hit] | Exception] = {}
        for question in questions:
            found |= rank_pages(engine, [question])
        took = (time.perf_counter() - started) / len(questions)
        scores = retrieval_metrics(questions, found)
        told = [f"{one['value']:.3f} [{one['low']:.2f}, {one['high']:.2f}]" for one in map(scores.get, METRICS) if one]
        yield [name, split, *told, f"{size / pages / 1e3:.1f}", f"{1e3 * took:.1f}"]


def with_pages(corpus: Path, split: str) -> list[Question]:
    """The questions of a split that some page answers."""
    return [question for question in read_questions(corpus / f"questions.{split}.parquet") if question.gold_page_ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["nano", "nano-single"], help="whose retrievers to compare")
    parser.add_argument("--questions", nargs="+", choices=["dev", "test"], default=["dev", "test"])
    parser.add_argument("--out", type=Path, help="folder for the table as twin.md")
    options = parser.parse_args()
    profiles = [load_profile(name) for name in options.profiles]
    corpus = profiles[0].corpus_folder
    asked = {split: with_pages(corpus, split) for split in options.questions}
    text_folder = corpus / "indexes" / "bm25"
    text = opened(corpus, text_folder, Bm25())
    pages = len(text.pages)
    rows: list[list[str]] = []
    for profile in profiles:
        engine = opened(corpus, profile.index_folder, profile.load_embedder())
        name = engine.embedder.name
        rows += rows_of(name, engine, asked, pages, [profile.index_folder])
        both = FusedEngine([engine, text])
        rows += rows_of(f"{name} and BM25, fused", both, asked, pages, [profile.index_folder, text_folder])
    rows += rows_of("BM25", text, asked, pages, [text_folder])
    title = f"{', '.join(f'{len(some)} {split}' for split, some in asked.items())} questions, {pages} pages"
    tell(title, HEAD, rows, out=options.out)


if __name__ == "__main__":
    main()
