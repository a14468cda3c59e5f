"""What an evaluation on public benchmarks adds to `evaluate`'s files: the papers' columns and MMLongBench-Doc's score.

    text = write_benchmark_report(out, questions)      # out: where `evaluate` wrote; questions: of `read_benchmark`

writes below `out`

    benchmark.json   columns.<system>.<benchmark column>, mmlongbench.<system>.{accuracy, f1, ...}, every figure as
                     {value, low, high, n}; judge.{columns, mmlongbench}; licences by benchmark; judged.<judge>: the
                     columns of other judges
    benchmark.md     the same as tables, each under the name of its judge

and nothing for questions of no benchmark. Answers come from predictions.jsonl, so that a report can be made again, and
with the verdicts of other judges beneath the rules'.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.documents.benchmarks import BENCHMARKS
from vrag_nb.evaluation.agreement import RULES
from vrag_nb.evaluation.columns import column_accuracy, columns_markdown
from vrag_nb.evaluation.mmlongbench_score import JUDGE, mmlongbench_metrics
from vrag_nb.evaluation.report import estimate_text, markdown_table
from vrag_nb.files import write_json, write_text
from vrag_nb.records import Question

Verdicts = Mapping[str, Mapping[str, bool | None]]  # by system and uid


def write_benchmark_report(
    out: Path, questions: Sequence[Question], seed: int = 0, judged: Mapping[str, Verdicts] | None = None
) -> str:
    """Write benchmark.json and benchmark.md, and return the latter's text; "" for questions of no benchmark.

    judged: other judges' verdicts, by the judge's name; those of predictions.jsonl are the rules'. Raises
    FileNotFoundError when `out` holds no predictions.
    """
    out = Path(out)
    ours = [one for one in questions if _benchmark(one) in BENCHMARKS]
    if not ours:
        return ""
    predictions = read_predictions(out / "predictions.jsonl")
    columns = column_accuracy(rule_verdicts(predictions), ours, seed)
    others = {judge: column_accuracy(verdicts, ours, seed) for judge, verdicts in (judged or {}).items()}
    long = [one for one in ours if _benchmark(one) == "mmlongbench"]
    scores: dict[str, dict[str, Any]] = {}
    for system, rows in predictions.items() if long else ():
        scores[system] = mmlongbench_metrics({uid: row["answer"] for uid, row in rows.items()}, long, seed)
    names = [name for name in BENCHMARKS if any(_benchmark(one) == name for one in ours)]
    licences = {BENCHMARKS[name].title: BENCHMARKS[name].licence for name in names}
    blocks = ["# Benchmarks", columns_markdown(columns, RULES).strip()]
    blocks += [columns_markdown(found, judge).strip() for judge, found in others.items()]
    blocks += [_scores_markdown(scores)] if scores else []
    blocks.append("\n".join(f"- {title}: {licence}." for title, licence in licences.items()))
    text = "\n\n".join(blocks) + "\n"
    write_text(out / "benchmark.md", text)
    judges = {"columns": RULES, **({"mmlongbench": JUDGE} if scores else {})}
    report = {"columns": columns, "mmlongbench": scores, "judge": judges, "licences": licences}
    write_json(out / "benchmark.json", report | ({"judged": others} if others else {}))
    return text


def read_predictions(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """`{system: {uid: row}}` of a predictions.jsonl. Raises FileNotFoundError."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no predictions at {path}: evaluate first")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for line in filter(None, Path(path).read_text(encoding="utf-8").split("\n")):  # not at U+2028
        row = json.loads(line)
        found.setdefault(row["system"], {})[row["uid"]] = row
    return found


def _benchmark(question: Question) -> str:
    return str((question.meta_info.model_extra or {}).get("benchmark", ""))


def rule_verdicts(predictions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, bool | None]]:
    """What the rules said of predictions, by system and uid."""
    return {system: {uid: bool(row["correct"]) for uid, row in rows.items()} for system, rows in predictions.items()}


def _scores_markdown(scores: Mapping[str, Mapping[str, Any]]) -> str:
    places = ("single_page", "cross_page", "unanswerable")
    head = ["system", "accuracy [95%]", "F1 [95%]", *(place.replace("_", " ") for place in places), "questions"]
    rows = []
    for system, found in scores.items():
        by_place = [estimate_text(found["by_location"].get(place, {})) for place in places]
        figures = [estimate_text(found[name]) for name in ("accuracy", "f1")]
        rows.append([system, *figures, *by_place, str(found["accuracy"]["n"])])
    return f"MMLongBench-Doc's own score, judged by {JUDGE}.\n\n{markdown_table(head, rows)}"
