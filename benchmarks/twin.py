"""Late interaction against one vector a page: the nano retriever, its twin and BM25 on the same pages and questions.

    python benchmarks/twin.py [--profiles nano nano-single] [--questions dev] [--out results/twin]

The questions are of the development or the test split; every retriever ranks all pages of the corpus. Printed:
recall@1, 3 and 5 and nDCG@5 with 95% bootstrap intervals over questions, the bytes of the index a page, and the
milliseconds a question takes, embedding included, asked one at a time. An index that is missing is built first.
"Fused" are the reciprocal ranks of a retriever and BM25.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tables import tell

from vrag_nb.evaluation.evaluate import rank_pages, retrieval_metrics
from vrag_nb.profiles import load_profile
from vrag_nb.records import Question, read_questions
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.embedders import Embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index
from vrag_nb.retrieval.fusion import FusedEngine

METRICS = ("recall@1", "recall@3", "recall@5", "ndcg@5")
HEAD = ["retriever", *METRICS, "KB a page", "ms a question"]


def opened(corpus: Path, folder: Path, embedder: Embedder) -> SearchEngine:
    build_index(corpus, folder, embedder)
    return SearchEngine.open(corpus, folder, embedder)


def row(
    name: str, engine: SearchEngine | FusedEngine, questions: list[Question], pages: int, folders: list[Path]
) -> list[str]:
    started = time.perf_counter()
    found = {}
    for question in questions:
        found |= rank_pages(engine, [question])
    took = (time.perf_counter() - started) / len(questions)
    scores = retrieval_metrics(questions, found)
    told = [f"{one['value']:.3f} [{one['low']:.2f}, {one['high']:.2f}]" for one in map(scores.get, METRICS) if one]
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    return [name, *told, f"{size / pages / 1e3:.1f}", f"{1e3 * took:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=["nano", "nano-single"], help="whose retrievers to compare")
    parser.add_argument("--questions", choices=["dev", "test"], default="dev")
    parser.add_argument("--out", type=Path, help="folder for the table as twin.md")
    options = parser.parse_args()
    profiles = [load_profile(name) for name in options.profiles]
    corpus = profiles[0].corpus_folder
    asked = read_questions(corpus / f"questions.{options.questions}.parquet")
    questions = [question for question in asked if question.gold_page_ids]
    text_folder = corpus / "indexes" / "bm25"
    text = opened(corpus, text_folder, Bm25())
    rows, pages = [], len(text.pages)
    for profile in profiles:
        engine = opened(corpus, profile.index_folder, profile.load_embedder())
        name = engine.embedder.name
        rows.append(row(name, engine, questions, pages, [profile.index_folder]))
        both = FusedEngine([engine, text])
        rows.append(row(f"{name} and BM25, fused", both, questions, [profile.index_folder, text_folder]))
    rows.append(row("BM25", text, questions, pages, [text_folder]))
    title = f"{len(questions)} {options.questions} questions, {pages} pages"
    tell(title, HEAD, rows, out=options.out)


if __name__ == "__main__":
    main()
