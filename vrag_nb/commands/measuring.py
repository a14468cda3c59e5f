"""Evaluations, their report, and recall on real documents."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vrag_nb.commands.options import ALL, Commands, command, file_of, positive_or_all, profile_of, say_some
from vrag_nb.paths import project_path, shown_path

if TYPE_CHECKING:
    from vrag_nb.documents.benchmarks import Reading
    from vrag_nb.learning.judge import Judge
    from vrag_nb.profiles import Profile
    from vrag_nb.records import Question


def add(commands: Commands) -> None:
    """Enter `evaluate`, `report` and `realdocs`."""
    one = command(commands, evaluate, "evaluate", "evaluate on your own documents and questions")
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
    one.add_argument("--judge", action="store_true", help="have the profile's judge, a model, judge the answers too")
    one.add_argument(
        "--limit",
        type=positive_or_all,
        metavar="N",
        help='so many questions, drawn at random, or "all" (default: as many as the profile says)',
    )
    one = command(commands, report, "report", "evaluations as one page of tables and failures", profile=False)
    one.add_argument("folders", nargs="+", metavar="RESULTS", help="folder of an evaluation or of ablations; NAME=DIR")
    one.add_argument("--out", type=Path, required=True, metavar="DIR", help="where report.html and its tables go")
    one.add_argument("--corpus", type=Path, metavar="DIR", help="whose pages are shown (default: the evaluation's)")
    one.add_argument("--examples", type=int, default=2, metavar="N", help="of a class and system (default: 2; 0: none)")
    one.add_argument("--title", default="Results", help="the page's heading")
    one.add_argument(
        "--wandb", nargs="?", const="offline", choices=("offline", "online"), help="log the tables there, too"
    )
    one = command(commands, realdocs, "realdocs", "recall on a folder of MMLongBench-Doc (documents/, samples.json)")
    one.add_argument("folder", type=Path, metavar="DIR")
    one.add_argument("--work", type=Path, default=Path("data/corpora/realdocs"), metavar="DIR")
    one.add_argument("--out", type=Path, default=Path("results/realdocs"), metavar="DIR")


def evaluate(options: argparse.Namespace) -> None:
    """Any documents, any questions: the same metrics, predictions and trajectories."""
    from vrag_nb.documents.benchmarks import read_benchmark
    from vrag_nb.evaluation.baselines import find_system

    if options.retrieval_only and options.judge:
        raise ValueError("--judge is about answers, and --retrieval-only asks for none: leave out one of them")
    profile, benchmark = profile_of(options), read_benchmark(options.questions, options.format)
    print(benchmark.summary())
    say_some(benchmark.bad)
    systems = [] if options.retrieval_only else options.systems or profile.evaluation.systems
    for name in systems:  # a misspelt name and a missing key are said before hours of preparing
        find_system(name)
    policy = profile.load_policy() if systems and profile.policy.kind == "openai" else None
    judge = _judge(profile, options.out) if options.judge and systems else None
    profile = _prepared(profile, options)
    questions = _asked(benchmark, profile, options, judged=bool(systems))
    if profile.retriever.server:
        profile.build_fused()
    else:
        profile.build_index()

    from vrag_nb.evaluation.benchmark_report import write_benchmark_report
    from vrag_nb.evaluation.evaluate import evaluate as measure
    from vrag_nb.evaluation.of_profile import evaluation_of
    from vrag_nb.evaluation.report import print_metrics

    metrics = measure(
        questions=questions,
        engine=profile.search_engine(),
        policy=policy or (profile.load_policy() if systems else None),
        systems=systems,
        out=options.out,
        **evaluation_of(profile, limit=options.limit or profile.evaluation.limit),
    )
    print_metrics(metrics)
    judged = {judge.model: _judged(judge, options.out, profile.evaluation.seed)} if judge else None
    if systems and write_benchmark_report(options.out, questions, profile.evaluation.seed, judged):
        print(f"the benchmark's columns are in {options.out / 'benchmark.md'}")
    print(f"written to {options.out / 'metrics.json'}")


def _judge(profile: Profile, out: Path) -> Judge:
    from vrag_nb.learning.of_profile import judge_of  # the models that learning knows take seconds to import

    return judge_of(profile, out / "verdicts.jsonl")


def _judged(judge: Judge, out: Path, seed: int) -> dict[str, dict[str, bool | None]]:
    """The judge's verdicts by system and uid, and on the terminal what came of it."""
    from vrag_nb.evaluation.judged import judge_answers

    found = judge_answers(out, judge.many, judge.model, seed)
    lost = sum(said is None for verdicts in found.values() for said in verdicts.values())
    if lost:
        print(f"{lost} answers got no verdict of {judge.model}; why, is in {out / 'judge.jsonl'}", file=sys.stderr)
    print(f"judged by {judge.model} beside the rules: {out / 'judge.md'}")
    return found


def _prepared(profile: Profile, options: argparse.Namespace) -> Profile:
    """The profile on the corpus that is evaluated, whose documents are brought in where they are given."""
    if (options.documents is None) == (options.corpus is None):
        raise ValueError("name either --documents, to be prepared, or --corpus, a prepared corpus")
    work = options.corpus or options.work or options.out / "corpus"
    profile = profile.on_documents(options.documents or work, work)
    if options.corpus is None:
        prepared = profile.prepare_corpus()
        for entry in prepared.skipped:
            print(f"skipped {entry.place}: {entry.reason}", file=sys.stderr)
        say_some([f"{entry.place}: {entry.reason}" for entry in prepared.notes])
    return profile


def _asked(benchmark: Reading, profile: Profile, options: argparse.Namespace, judged: bool) -> list[Question]:
    """The questions that are asked: as many as are to be, judged: of those that answers can be judged by."""
    from vrag_nb.profiles import sample

    fitting = _about(benchmark, profile, options)
    fitting = _with_reference(fitting, options.questions) if judged else fitting
    limit = options.limit or profile.evaluation.limit
    return sample(fitting, None if limit == ALL else limit, profile.evaluation.seed)


def _about(benchmark: Reading, profile: Profile, options: argparse.Namespace) -> list[Question]:
    """The questions; of a slice of a benchmark, those whose pages are there. Raises ValueError where none are."""
    from vrag_nb.documents.annotations import check_pages
    from vrag_nb.documents.names import resolve_questions
    from vrag_nb.records import read_pages

    pages = read_pages(profile.corpus_folder)
    questions = resolve_questions(benchmark.questions, profile.corpus_folder)
    documents = {page.document for page in pages}
    missing = sorted({question.document for question in questions} - {""} - documents)
    if missing and not documents.intersection(question.document for question in questions):
        raise ValueError(
            f"{options.questions}: no question's file_name is a document of {options.documents or options.corpus}, "
            f"such as {missing[0]!r}"
        )
    if missing:
        print(f"{len(missing)} documents that questions name are not there, such as {missing[0]}", file=sys.stderr)
    fitting, problems = check_pages(questions, pages)
    if benchmark.benchmark:
        say_some(problems)
        return fitting
    say_some([line for line in problems if "left out" not in line])  # one's own questions all count
    return questions


def _with_reference(questions: Sequence[Question], file: Path) -> list[Question]:
    """Those that answers can be judged by. Raises ValueError for none."""
    judged = [question for question in questions if question.reference_answer.strip()]
    if blank := [question.uid for question in questions if not question.reference_answer.strip()]:
        words = f"{file}: {len(blank)} questions have no reference_answer, such as {blank[0]!r}"
        if not judged:
            raise ValueError(f"{words}: measure what is found with --retrieval-only, or fill them in")
        print(f"{words}: left out", file=sys.stderr)
    return judged


def report(options: argparse.Namespace) -> None:
    """Evaluations as one page, and their tables as data."""
    from vrag_nb.display.report_page import write_report_page
    from vrag_nb.evaluation.result_folders import split_name

    corpus = options.corpus or _corpus_of([split_name(folder)[1] for folder in options.folders], file_of(options))
    page, tables = write_report_page(
        options.folders, options.out, corpus=corpus, each=options.examples, title=options.title
    )
    print(f"{len(tables)} tables, the report: {shown_path(page)}")
    if options.wandb:
        from vrag_nb.display.report_log import log_report

        where = log_report(tables, options.out, options.wandb, f"report-{page.parent.resolve().name}")
        print(f"in wandb: {shown_path(where)}")


def _corpus_of(folders: Sequence[Path], file: Path | None) -> Path | None:
    """Where the pages of evaluations lie: where they or their profile say, or beside the results; None for neither."""
    import json

    from vrag_nb.profiles import load_profile

    for folder in folders:
        if (folder / "corpus" / "pages.parquet").is_file():
            return folder / "corpus"
        try:
            run = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["run"]
            named = run.get("corpus")
            found = project_path(named) if named else load_profile(run["profile"], file).corpus_folder
        except (OSError, ValueError, KeyError, TypeError):  # no evaluation of a profile that is known here
            continue
        if (found / "pages.parquet").is_file():
            return found
    return None


def realdocs(options: argparse.Namespace) -> None:
    """The profile's retriever and BM25 side by side on real documents."""
    from vrag_nb.evaluation.realdocs import evaluate_realdocs

    profile = profile_of(options)
    if not (Path(options.folder) / "samples.json").is_file():
        raise FileNotFoundError(f"{options.folder} holds no samples.json: name a folder of MMLongBench-Doc")
    profile.load_embedder()  # a missing checkpoint is said before an hour of rendering
    part = profile.retriever
    known = {**part.options, **({"checkpoint": part.checkpoint} if part.checkpoint else {})}
    retrievers: list[tuple[str, dict[str, Any]]] = [(part.kind, known), ("bm25", {})]
    evaluate_realdocs(options.folder, project_path(options.work), project_path(options.out), retrievers)
    print(f"written to {shown_path(project_path(options.out) / 'metrics.json')}")
