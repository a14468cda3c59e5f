"""Retrievers side by side on real documents: an MMLongBench-Doc folder in, recall tables out.

    metrics = evaluate_realdocs(Path("mmlongbench"), work=Path("data/corpora/realdocs"), out=Path("results/realdocs"),
                                retrievers=[("nano-colqwen2_5", {}), ("bm25", {})])

The folder holds `documents/*.pdf` and `samples.json` as the data set (arXiv 2407.01523) ships them. Everything made
from the documents - page images, text, indexes - goes below `work`. Only figures go below `out`: metrics.json holds
`retrieval.<retriever>.{in_document, whole_corpus}.recall@{1,3,5}` as `{value, low, high, n}` and metrics.md the same as
a table, neither with a word of a document or a question, so that they can be kept where the documents cannot.

*In document* ranks the pages of the question's own document, the setting of the data set; *whole corpus* ranks all
pages. Of several retrievers the fusion is measured too (`retrieval.fusion`), under their names joined by " + ".
BM25 is left out, which both files say (`run.left_out`), where no page has a text layer and it reads no print itself.
Questions without gold pages are left out, and so are those whose document or gold page is not in the corpus
(counted as `run.questions_without_page`). The query is the question as it is written.

Preparing and indexing resume where a killed run stopped; a second run finds both done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from vrag_nb.documents.mmlongbench import read_mmlongbench
from vrag_nb.documents.pages import prepare_corpus
from vrag_nb.evaluation.metrics import recall_at_k, share_interval
from vrag_nb.evaluation.report import estimate_text, markdown_table, print_table
from vrag_nb.files import write_json, write_text
from vrag_nb.provenance import provenance
from vrag_nb.records import Question, read_pages
from vrag_nb.retrieval.bm25 import words
from vrag_nb.retrieval.building import build_index
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.fusion import FusedEngine

CUTS = (1, 3, 5)
SETTINGS = ("in_document", "whole_corpus")


def evaluate_realdocs(
    folder: Path,
    work: Path,
    out: Path,
    retrievers: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    dpi: int = 150,
    workers: int | None = None,
    seed: int = 0,
    progress: bool = True,
    console: Console | None = None,
) -> dict[str, Any]:
    """Prepare, index, search and measure; prints the table and returns what metrics.json holds.

    retrievers: registered embedder names with the options of `load_embedder` (`checkpoint`, `batch_size`, ...); a name
    that occurs twice is told apart by a number. Raises FileNotFoundError when `folder` is not the data set's, and
    ValueError for an unknown retriever, when no question has a gold page in the corpus, or when BM25 alone is to
    search pages without text.
    """
    documents, samples = Path(folder) / "documents", Path(folder) / "samples.json"
    if not documents.is_dir() or not samples.is_file():
        raise FileNotFoundError(f"{folder} holds no documents/ and samples.json: expected MMLongBench-Doc's own layout")
    named = _named(retrievers)
    work, seconds = Path(work), dict[str, float]()
    started = time.perf_counter()
    report = prepare_corpus(documents, work, dpi=dpi, workers=workers, progress=progress)
    seconds["prepare"] = round(time.perf_counter() - started, 3)
    read, bad = read_mmlongbench(samples)
    questions, missing = _answerable_here(read, work)
    named, left_out = _able(named, work)
    retrieval: dict[str, dict[str, dict[str, Any]]] = {}
    engines: dict[str, SearchEngine] = {}
    for name, (kind, options) in named.items():
        started = time.perf_counter()
        embedder = load_embedder(kind, **options)
        index = work / "indexes" / name
        build_index(work, index, embedder, progress=progress)
        seconds[f"index {name}"] = round(time.perf_counter() - started, 3)
        started = time.perf_counter()
        engines[name] = SearchEngine.open(work, index, embedder)
        retrieval[name] = _measure(engines[name], questions, seed)
        seconds[f"search {name}"] = round(time.perf_counter() - started, 3)
    if len(engines) > 1:
        retrieval[" + ".join(engines)] = _measure(FusedEngine(list(engines.values())), questions, seed)
    about = {"seed": seed, **provenance(), "seconds": seconds, "dpi": dpi}
    about |= {"documents": report.documents, "pages": report.pages, "skipped_files": len(report.skipped)}
    about |= {"questions": len(questions), "questions_without_page": missing, "bad_rows": len(bad)}
    about |= {"left_out": left_out}
    metrics = {"retrieval": retrieval, "run": about}
    write_text(Path(out) / "metrics.md", realdocs_markdown(metrics))
    write_json(Path(out) / "metrics.json", metrics)
    print_table(_title(metrics), *_table(retrieval), console)
    return metrics


def realdocs_markdown(metrics: Mapping[str, Any]) -> str:
    """The figures as a markdown table."""
    note = "Recall of gold pages with the question as the query; 95% bootstrap interval over questions."
    note += "".join(f"\n\nLeft out: {why}." for why in metrics["run"].get("left_out", []))
    return f"# Real documents\n\n{_title(metrics)}.\n\n{markdown_table(*_table(metrics['retrieval']))}\n\n{note}\n"


def _named(retrievers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    if not retrievers:
        raise ValueError("name at least one retriever, such as ('bm25', {})")
    named: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for kind, options in retrievers:
        number = sum(other == kind for other, _ in named.values()) + 1
        named[kind if number == 1 else f"{kind}-{number}"] = (kind, options)
    return named


def _able(
    named: dict[str, tuple[str, Mapping[str, Any]]], corpus: Path
) -> tuple[dict[str, tuple[str, Mapping[str, Any]]], list[str]]:
    """The retrievers that can search this corpus, and a line on each that cannot: known before hours of embedding."""
    if any(words(page.text) for page in read_pages(corpus)):
        return named, []
    without = [
        name for name, (kind, options) in named.items() if kind == "bm25" and options.get("ocr", "never") == "never"
    ]
    if len(without) == len(named):
        raise ValueError(f"no page of {corpus} has a text layer, so bm25 cannot search it: use a visual retriever, too")
    able = {name: one for name, one in named.items() if name not in without}
    return able, [f"{name}, as no page has a text layer" for name in without]


def _answerable_here(questions: Sequence[Question], corpus: Path) -> tuple[list[Question], int]:
    """The questions all of whose gold pages are in the corpus, and how many others have gold pages."""
    there = {page.page_id for page in read_pages(corpus)}
    with_gold = [question for question in questions if question.gold_page_ids]
    kept = [question for question in with_gold if there.issuperset(question.gold_page_ids)]
    if not kept:
        raise ValueError(f"no question has its gold pages in {corpus}: do samples.json and documents/ belong together?")
    return kept, len(with_gold) - len(kept)


def _measure(engine: SearchEngine | FusedEngine, questions: Sequence[Question], seed: int) -> dict[str, dict[str, Any]]:
    gold = {question.uid: question.gold_page_ids for question in questions}
    ranked: dict[str, dict[str, list[str]]] = {setting: {} for setting in SETTINGS}
    by_document: dict[str, list[Question]] = {}
    for question in questions:
        by_document.setdefault(question.document, []).append(question)
    for document, members in by_document.items():
        words = [question.query for question in members]
        inside = engine.search_in_document(words, document, max(CUTS))
        for setting, found in zip(SETTINGS, (inside, engine.search(words, max(CUTS))), strict=True):
            pairs = zip(members, found, strict=True)
            ranked[setting].update({question.uid: [hit.page_id for hit in hits] for question, hits in pairs})
    return {
        setting: {
            f"recall@{k}": share_interval(list(recall_at_k(ranked[setting], gold, k).values()), seed).model_dump(
                mode="json"
            )
            for k in CUTS
        }
        for setting in SETTINGS
    }


def _title(metrics: Mapping[str, Any]) -> str:
    run = metrics["run"]
    return f"{run['documents']} documents of MMLongBench-Doc, {run['pages']} pages, {run['questions']} questions"


def _table(retrieval: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    head = ["retriever", "searched", *(f"recall@{k}" for k in CUTS), "n"]
    rows = []
    for name, settings in retrieval.items():
        for setting, recalls in settings.items():
            figures = [estimate_text(recalls[f"recall@{k}"]) for k in CUTS]
            rows.append([name, setting.replace("_", " "), *figures, str(recalls["recall@1"]["n"])])
    return head, rows
