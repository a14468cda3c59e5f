"""The command line: `python -m vrag_nb COMMAND`, or what the Makefile calls.

    run nano                          the notebooks of a run, headless, into its results folder
    ask "What was revenue in 2019?"   one question, thoughts and actions as they come
    prep, index, serve                a corpus's page images, its index, the search engine over HTTP
    evaluate --documents DIR --questions FILE --out DIR     any folder of PDFs; unified questions, or SlideVQA's,
                                      ViDoSeek's or MMLongBench-Doc's own file; --corpus DIR for a prepared corpus
    report RESULTS ... --out DIR      evaluations as one page: tables, figures, failures; several seeds are averaged
    merge OUT --part NAME CORPUS QUESTIONS ...              several prepared corpora to one
    import-dataset SOURCE OUT         parquet files, or what `datasets` saved, to page images and questions
    realdocs DIR                      recall on a folder of MMLongBench-Doc

What a user got wrong is one line and exit code 2; a notebook that failed is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrag_nb.paths import project_path, shown_path
from vrag_nb.retrieval.serving.options import add_serving_arguments

if TYPE_CHECKING:
    from vrag_nb.profiles import Profile
    from vrag_nb.retrieval.building import BuildReport

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.function(options) or 0)
    except (ValueError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        return _say(error, 2)
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on where it was", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RuntimeError as error:
        if type(error).__name__ != "RunError":
            raise
        print(f"vrag_nb: {error}", file=sys.stderr)  # a server's last words keep their lines
        return 1


def _say(error: Exception, code: int) -> int:
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"vrag_nb: {words}", file=sys.stderr)
    return code


def ask(options: argparse.Namespace) -> None:
    """Stream one question's thoughts, actions and answer."""
    profile = _profile(options)
    if not options.question.strip():
        raise ValueError("the question is empty")
    _need_index(profile)
    agent = profile.load_agent()

    from vrag_nb.display.transcript import transcript

    for line in transcript(agent, options.question):
        print(line, flush=True)


def prep(options: argparse.Namespace) -> None:
    """Documents to page images."""
    profile = _with_documents(_profile(options), options)
    report = profile.prepare_corpus()
    print(f"{report.documents} documents, {report.pages} pages in {shown_path(profile.corpus_folder)}")
    for entry in report.skipped:
        where = f"page {entry.page} of " if entry.page else ""
        print(f"  skipped {where}{entry.file}: {entry.reason}")


def index(options: argparse.Namespace) -> None:
    """Page images to an index."""
    profile = _with_documents(_profile(options), options)
    report = _build_on_cluster(profile, options) if _wants_workers(options) else profile.build_index()
    done = f"{report.embedded} embedded, {report.reused} as before, {report.dropped} dropped"
    resumed = f"; {report.resumed} of those embedded were left by a run that was stopped" if report.resumed else ""
    print(f"{report.pages} pages ({done}) in {shown_path(profile.index_folder)}{resumed}")


def _wants_workers(options: argparse.Namespace) -> bool:
    given = [name for name in ("ray", "cpus", "gpus", "shard_pages") if getattr(options, name) is not None]
    if given and options.workers is None:
        raise ValueError(f"--{given[0].replace('_', '-')} needs --workers, the number of workers")
    return options.workers is not None


def _build_on_cluster(profile: Profile, options: argparse.Namespace) -> BuildReport:
    """The index, embedded by Ray workers."""
    from vrag_nb.retrieval.cluster import Cluster, build_on_cluster

    report = build_on_cluster(
        profile.corpus_folder,
        profile.index_folder,
        profile.load_embedder,
        Cluster(workers=options.workers, cpus=options.cpus or 1, gpus=options.gpus or 0, address=options.ray),
        shard_pages=options.shard_pages,
        compression=profile.retriever.compression,
        single_vector=profile.retriever.single_vector,
    )
    for worker, shards in sorted(report.by_worker.items()):
        print(f"  worker {worker}: {shards} shards")
    return report


def serve(options: argparse.Namespace) -> None:
    """The search engine over HTTP."""
    from vrag_nb.retrieval.serving.options import serving_options

    serving = serving_options(options)
    profile = _with_documents(_profile(options), options)
    _need_index(profile)

    from vrag_nb.retrieval.server import run_server
    from vrag_nb.retrieval.serving.reload import reopened

    run_server(
        profile.open_engine(),
        profile.corpus_folder,
        options.host,
        options.port,
        serving,
        lambda engine: reopened(engine, profile.open_engine),
    )


def run(options: argparse.Namespace) -> None:
    """A run's notebooks."""
    from vrag_nb.runs import execute_run

    started = time.perf_counter()
    page = execute_run(options.name, options.file, force=options.force)
    print(f"done in {time.perf_counter() - started:.0f} s; the report: {page}")


def evaluate(options: argparse.Namespace) -> None:
    """Any documents, any questions: the same metrics, predictions and trajectories."""
    from vrag_nb.documents.annotations import check_pages
    from vrag_nb.documents.benchmarks import read_benchmark
    from vrag_nb.profiles import sample
    from vrag_nb.records import read_pages

    profile = _profile(options)
    reading = read_benchmark(options.questions, options.format)
    print(reading.summary())
    _list(reading.bad)
    if (options.documents is None) == (options.corpus is None):
        raise ValueError("name either --documents, to be prepared, or --corpus, a prepared corpus")
    work = options.corpus or options.work or options.out / "corpus"
    profile = _reading(profile, options.documents or work, work)
    if options.corpus is None:
        for entry in profile.prepare_corpus().skipped:
            print(f"skipped {entry.file}: {entry.reason}", file=sys.stderr)
    pages, questions = read_pages(profile.corpus_folder), reading.questions
    documents = {page.document for page in pages}
    missing = sorted({question.document for question in questions if question.gold_page_ids} - documents)
    if missing and not documents.intersection(question.document for question in questions):
        raise ValueError(
            f"{options.questions}: no question's file_name is a document of {options.documents or options.corpus}, "
            f"such as {missing[0]!r}"
        )
    if missing:
        print(f"{len(missing)} documents that questions name are not there, such as {missing[0]}", file=sys.stderr)
    if reading.benchmark:  # a slice of a benchmark: what cannot be found is not asked
        questions, problems = check_pages(questions, pages)
        _list(problems)
    questions = sample(questions, options.limit, profile.evaluation.seed)
    profile.build_index()

    from vrag_nb.evaluation.benchmark_report import write_benchmark_report
    from vrag_nb.evaluation.evaluate import evaluate as measure
    from vrag_nb.evaluation.report import print_metrics

    metrics = measure(
        corpus=profile.corpus_folder,
        questions=questions,
        engine=profile.search_engine(),
        policy=None if options.retrieval_only else profile.load_policy(),
        systems=[] if options.retrieval_only else options.systems or profile.evaluation.systems,
        out=options.out,
        settings=profile.task(),
        prompt=profile.agent.prompt,
        seed=profile.evaluation.seed,
        concurrency=profile.evaluation.concurrency,
        run_info={"profile": profile.name, "retriever": profile.retriever.kind, "limit": options.limit},
    )
    print_metrics(metrics)
    if not options.retrieval_only and write_benchmark_report(options.out, questions, profile.evaluation.seed):
        print(f"the benchmark's columns are in {options.out / 'benchmark.md'}")
    print(f"written to {options.out / 'metrics.json'}")


def report(options: argparse.Namespace) -> None:
    """Evaluations as one page, and their tables as data."""
    from vrag_nb.display.report_page import write_report_page
    from vrag_nb.evaluation.result_folders import split_name

    corpus = options.corpus or _corpus_of([split_name(folder)[1] for folder in options.folders], options.file)
    page, tables = write_report_page(
        options.folders, options.out, corpus=corpus, each=options.examples, title=options.title
    )
    print(f"{len(tables)} tables, the report: {shown_path(page)}")
    if options.wandb:
        from vrag_nb.display.report_log import log_report

        where = log_report(tables, options.out, options.wandb, f"report-{page.parent.resolve().name}")
        print(f"in wandb: {shown_path(where)}")


def _corpus_of(folders: Sequence[Path], file: str | None) -> Path | None:
    """Where the pages of evaluations lie: beside the results, or where their profile says; None for neither."""
    import json

    from vrag_nb.profiles import load_profile

    for folder in folders:
        if (folder / "corpus" / "pages.parquet").is_file():
            return folder / "corpus"
        try:
            run = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["run"]
            found = load_profile(run["profile"], file).corpus_folder
        except (OSError, ValueError, KeyError, TypeError):  # no evaluation of a profile that is known here
            continue
        if (found / "pages.parquet").is_file():
            return found
    return None


def merge(options: argparse.Namespace) -> None:
    """Several prepared corpora and their questions to one."""
    from vrag_nb.documents.benchmarks import read_benchmark
    from vrag_nb.documents.merging import Part, merge_corpora

    parts = []
    for name, corpus, questions in options.part:
        reading = read_benchmark(Path(questions))
        print(reading.summary())
        parts.append(Part(name, Path(corpus), reading.questions))
    report = merge_corpora(parts, options.out)
    _list([*report.shared, *report.renamed, *report.alike, *report.problems])
    print(f"{report.documents} documents, {report.pages} pages, {report.questions} questions in {options.out}")


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
    _list([f"skipped {entry.file}: {entry.reason}" for entry in report.skipped])
    _list([f"{entry.file}: {entry.reason}" for entry in report.notes])
    print(f"{report.rows} rows: {report.documents} documents, {report.pages} pages in {options.out}")
    if report.questions:
        print(f"{report.questions} questions in {options.out / QUESTIONS}")


def realdocs(options: argparse.Namespace) -> None:
    """The profile's retriever and BM25 side by side on real documents."""
    from vrag_nb.evaluation.realdocs import evaluate_realdocs

    profile = _profile(options)
    if not (Path(options.folder) / "samples.json").is_file():
        raise FileNotFoundError(f"{options.folder} holds no samples.json: name a folder of MMLongBench-Doc")
    profile.load_embedder()  # a missing checkpoint is said before an hour of rendering
    part = profile.retriever
    known = {**part.options, **({"checkpoint": part.checkpoint} if part.checkpoint else {})}
    retrievers: list[tuple[str, dict[str, Any]]] = [(part.kind, known), ("bm25", {})]
    evaluate_realdocs(options.folder, project_path(options.work), project_path(options.out), retrievers)
    print(f"written to {shown_path(project_path(options.out) / 'metrics.json')}")


def _list(lines: Sequence[object], most: int = 10) -> None:
    """The first lines, and how many more there are."""
    for line in lines[:most]:
        print(line, file=sys.stderr)
    if len(lines) > most:
        print(f"and {len(lines) - most} more", file=sys.stderr)


def _profile(options: argparse.Namespace) -> Profile:
    from vrag_nb.profiles import load_profile

    return load_profile(options.profile, options.file)


def _with_documents(profile: Profile, options: argparse.Namespace) -> Profile:
    """The profile, reading `--documents` into `--corpus` where they are given."""
    if options.corpus is None and getattr(options, "documents", None) is None:
        return profile
    if options.corpus is None:
        raise ValueError("--documents needs --corpus, the folder that page images and index go to")
    return _reading(profile, getattr(options, "documents", None) or options.corpus / "documents", options.corpus)


def _reading(profile: Profile, documents: Path, corpus: Path) -> Profile:
    change = {"kind": "documents", "documents": str(documents.resolve()), "folder": str(corpus.resolve())}
    return profile.model_copy(update={"corpus": profile.corpus.model_copy(update=change)})


def _need_index(profile: Profile) -> None:
    if not (profile.index_folder / "manifest.json").is_file():
        raise FileNotFoundError(
            f"profile {profile.name} has no index at {shown_path(profile.index_folder)}: "
            f"run `python -m vrag_nb prep --profile {profile.name}` and `index` likewise, or `make run`"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m vrag_nb", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    one = _command(commands, "ask", ask, "ask one question and watch the agent work")
    one.add_argument("question")
    _corpus_options(_command(commands, "prep", prep, "documents to page images"))
    one = _command(commands, "index", index, "page images to index")
    _corpus_options(one)
    _cluster_options(one)
    one = _command(commands, "serve", serve, "the search engine over HTTP")
    _corpus_options(one)
    one.add_argument("--host", default="127.0.0.1")
    one.add_argument("--port", type=int, default=8001)
    add_serving_arguments(one)
    one = _command(commands, "run", run, "execute a run's notebooks headless", profile=False)
    one.add_argument("name", help="a run of papermill_runs.yaml, such as nano")
    one.add_argument("--force", action="store_true", help="execute what is up to date as well")
    one = _command(commands, "evaluate", evaluate, "evaluate on your own documents and questions")
    one.add_argument("--documents", type=Path, metavar="DIR", help="a folder of PDFs or pictures")
    one.add_argument("--corpus", type=Path, metavar="DIR", help="a prepared or merged corpus, instead of --documents")
    one.add_argument("--questions", type=Path, required=True, metavar="FILE", help="json, jsonl or parquet")
    one.add_argument(
        "--format",
        default="auto",
        choices=("auto", "slidevqa", "vidoseek", "mmlongbench", "unified"),
        help="the questions' format (default: recognised)",
    )
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="where metrics and trajectories go")
    one.add_argument("--work", type=Path, metavar="DIR", help="where page images and index go (default: OUT/corpus)")
    asked = one.add_mutually_exclusive_group()
    asked.add_argument("--systems", nargs="+", metavar="NAME", help="default: those of the profile")
    asked.add_argument("--retrieval-only", action="store_true", help="recall and nDCG alone: no policy is loaded")
    one.add_argument("--limit", type=_positive, help="so many questions, drawn at random")
    one = _command(commands, "report", report, "evaluations as one page of tables and failures", profile=False)
    one.add_argument("folders", nargs="+", metavar="RESULTS", help="folder of an evaluation or of ablations; NAME=DIR")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="where report.html and its tables go")
    one.add_argument("--corpus", type=Path, metavar="DIR", help="whose pages are shown (default: the evaluation's)")
    one.add_argument("--examples", type=int, default=2, metavar="N", help="of a class and system (default: 2; 0: none)")
    one.add_argument("--title", default="Results", help="the page's heading")
    one.add_argument(
        "--wandb", nargs="?", const="offline", choices=("offline", "online"), help="log the tables there, too"
    )
    one = _command(commands, "merge", merge, "several prepared corpora and their questions to one", profile=False)
    one.add_argument("out", type=Path, metavar="OUT", help="the merged corpus folder")
    one.add_argument("--part", nargs=3, action="append", required=True, metavar=("NAME", "CORPUS", "QUESTIONS"))
    one = _command(
        commands, "import-dataset", import_dataset, "a data set of page images (parquet, datasets) to a corpus", False
    )
    one.add_argument(
        "source", type=Path, metavar="SOURCE", help="a parquet file, a folder of them, or a saved data set"
    )
    one.add_argument("out", type=Path, metavar="OUT", help="the corpus folder; then index --corpus OUT")
    one.add_argument("--split", metavar="NAME", help="one split of several (default: all parquet files)")
    one.add_argument("--first-page", type=int, choices=(0, 1), default=1, help="what its pages count from (default: 1)")
    one.add_argument("--workers", type=_positive, metavar="N", help="processes (default: one a core)")
    for meaning, words in DATASET_COLUMNS.items():
        one.add_argument(f"--{meaning}-column", metavar="NAME", help=f"{words} (default: by its usual names)")
    one = _command(commands, "realdocs", realdocs, "recall on a folder of MMLongBench-Doc (documents/, samples.json)")
    one.add_argument("folder", type=Path, metavar="DIR")
    one.add_argument("--work", type=Path, default=Path("data/corpora/realdocs"), metavar="DIR")
    one.add_argument("--out", type=Path, default=Path("results/realdocs"), metavar="DIR")
    return parser


def _command(commands: Any, name: str, function: Any, words: str, profile: bool = True) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(name, help=words, description=words)
    one.set_defaults(function=function)
    if profile:
        one.add_argument("--profile", default="nano", help="a profile of papermill_runs.yaml (default: nano)")
    one.add_argument("--file", metavar="YAML", help="another file of profiles and runs")
    return one


def _corpus_options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--documents", type=Path, metavar="DIR", help="read these documents instead of the profile's")
    one.add_argument("--corpus", type=Path, metavar="DIR", help="the corpus folder, instead of the profile's")


def _cluster_options(one: argparse.ArgumentParser) -> None:
    group = one.add_argument_group("many workers", "embed on a Ray cluster; needs pip install 'vrag-nb[cluster]'")
    group.add_argument("--workers", type=_positive, metavar="N", help="so many workers, started on this machine")
    group.add_argument("--ray", metavar="ADDRESS", help="... on the machines of a running cluster, such as auto")
    group.add_argument("--cpus", type=_amount, metavar="N", help="cores and threads of a worker (default: 1)")
    group.add_argument("--gpus", type=_amount, metavar="N", help="GPUs of a worker (default: 0)")
    group.add_argument("--shard-pages", type=_positive, metavar="N", help="pages of a shard (default: 64)")


def _amount(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
