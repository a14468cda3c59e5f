"""Corpora from what others prepared: several merged into one, data sets of page images brought in."""

from __future__ import annotations

import argparse
from pathlib import Path

from vrag_nb.commands.options import Commands, command, positive, say_some

DATASET_COLUMNS = {
    "image": "the page image",
    "document": "which document it is of; none: of its own",
    "file": "the image's file name",
    "page": "its number in the document; none: in row order",
    "text": "the page's text",
    "query": "a question about the page; none: no questions",
    "answer": "the question's answer, or a list of answers",
    "uid": "the question's own name",
}


def add(commands: Commands) -> None:
    """Enter `merge` and `import-dataset`."""
    one = command(commands, merge, "merge", "several prepared corpora and their questions to one", profile=False)
    one.add_argument("out", type=Path, metavar="OUT", help="the merged corpus folder")
    one.add_argument("--part", nargs=3, action="append", required=True, metavar=("NAME", "CORPUS", "QUESTIONS"))
    words = "a data set of page images (parquet, datasets) to a corpus"
    one = command(commands, import_dataset, "import-dataset", words, profile=False)
    one.add_argument(
        "source", type=Path, metavar="SOURCE", help="a parquet file, a folder of them, or a saved data set"
    )
    one.add_argument("out", type=Path, metavar="OUT", help="the corpus folder; then index --corpus OUT")
    one.add_argument("--split", metavar="NAME", help="one split of several (default: all parquet files)")
    one.add_argument("--first-page", type=int, choices=(0, 1), default=1, help="what its pages count from (default: 1)")
    one.add_argument("--workers", type=positive, metavar="N", help="processes (default: one a core)")
    for meaning, words in DATASET_COLUMNS.items():
        one.add_argument(f"--{meaning}-column", metavar="NAME", help=f"{words} (default: by its usual names)")


def merge(options: argparse.Namespace) -> None:
    """Several prepared corpora and their questions to one."""
    from vrag_nb.documents.benchmarks import read_benchmark
    from vrag_nb.documents.merging import REPORT, Part, merge_corpora

    parts = []
    for name, corpus, questions in options.part:
        reading = read_benchmark(Path(questions))
        print(reading.summary())
        parts.append(Part(name, Path(corpus), reading.questions))
    report = merge_corpora(parts, options.out)
    for lines in (report.problems, [*report.shared, *report.renamed, *report.alike]):  # a lost page is never hidden
        say_some(lines)
    print(f"{report.documents} documents, {report.pages} pages, {report.questions} questions in {options.out}")
    print(f"what was left out, shared, renamed or alike: {options.out / REPORT}")


def import_dataset(options: argparse.Namespace) -> None:
    """A data set of page images to a prepared corpus."""
    from vrag_nb.documents.dataset_pages import import_dataset as bring_in
    from vrag_nb.documents.dataset_rows import Columns
    from vrag_nb.documents.merging import QUESTIONS

    given = {meaning: getattr(options, f"{meaning}_column") for meaning in DATASET_COLUMNS}
    columns = Columns(**{meaning: "" if name == "none" else name for meaning, name in given.items()})
    report = bring_in(
        options.source,
        options.out,
        columns,
        split=options.split,
        first_page=options.first_page,
        workers=options.workers,
    )
    print("columns: " + ", ".join(f"{meaning} {column}" for meaning, column in report.columns.items()))
    say_some([f"skipped {entry.file}: {entry.reason}" for entry in report.skipped])
    say_some([f"{entry.file}: {entry.reason}" for entry in report.notes])
    print(f"{report.rows} rows: {report.documents} documents, {report.pages} pages in {options.out}")
    if report.questions:
        print(f"{report.questions} questions in {options.out / QUESTIONS}")
