"""An evaluation's answers before a judge model: its verdicts beside those of the rules, and how far the two agree.

    verdicts = judge_answers(out, judge.many, judge.model)      # out: where `evaluate` wrote

writes below `out`

    judge.jsonl   a row per question and system: the answer, the rules' verdict, the judge's, and why there is none
    judge.json    judge; systems.<system>.{rules, judge, agreement}: accuracies as {value, low, high, n}, and kappa
    judge.md      the same for readers

Predictions and metrics stay the rules'. A reply that is no verdict is recorded and counts for neither side.
`judges_table` is what a report says of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrag_nb.agent.trajectory import read_trajectories
from vrag_nb.evaluation.agreement import (
    RULES,
    Many,
    Verdicts,
    accuracy_by,
    agreement,
    agreement_markdown,
    judges_markdown,
)
from vrag_nb.evaluation.benchmark_report import read_predictions, rule_verdicts
from vrag_nb.evaluation.result_folders import Results, SystemResult
from vrag_nb.evaluation.tables import Cell, Column, Table
from vrag_nb.files import write_json, write_jsonl, write_text


def judge_answers(out: Path, many: Many, judge: str, seed: int = 0) -> dict[str, dict[str, bool | None]]:
    """The judge's verdicts by system and uid, None where it gave none; writes the files.

    many: of a judge such as `learning.judge.Judge`, whose name is `judge`. seed: of the bootstrap. Raises
    FileNotFoundError when `out` holds no predictions.
    """
    out = Path(out)
    by_rules = rule_verdicts(read_predictions(out / "predictions.jsonl"))
    rows = [{**row, "by": judge} for system, said in by_rules.items() for row in _rows(out, system, said, many)]
    write_jsonl(out / "judge.jsonl", rows)
    found: dict[str, dict[str, bool | None]] = {system: {} for system in by_rules}
    for row in rows:
        found[row["system"]][row["uid"]] = row["judge"]
    blocks, systems = [f"# Judged by {judge}"], dict[str, Any]()
    for system, said in found.items():
        beside = {RULES: by_rules[system], judge: said}
        both = agreement(by_rules[system], said, (RULES, judge), seed)
        rules, judged = (accuracy_by(one, seed).model_dump(mode="json") for one in beside.values())
        systems[system] = {"rules": rules, "judge": judged, "agreement": both.model_dump(mode="json")}
        blocks += [f"## {system}", judges_markdown(beside, seed).strip(), agreement_markdown([both]).strip()]
    write_json(out / "judge.json", {"judge": judge, "systems": systems})
    write_text(out / "judge.md", "\n\n".join(blocks) + "\n")
    return found


def _rows(out: Path, system: str, by_rules: Verdicts, many: Many) -> list[dict[str, Any]]:
    """A system's rows, in the order of its predictions."""
    answered = {one.uid: one for one in read_trajectories(out / "trajectories" / f"{system}.jsonl")}
    scores = many([answered[uid] for uid in by_rules])
    return [
        {"uid": uid, "system": system, "answer": answered[uid].answer, "rules": right, **_said(score)}
        for (uid, right), score in zip(by_rules.items(), scores, strict=True)
    ]


def _said(score: float | Exception) -> Mapping[str, Any]:
    return {"judge": None, "error": str(score)} if isinstance(score, Exception) else {"judge": score >= 0.5}


def judges_table(results: Results) -> Table:
    """A system and judge a row: the accuracy by the rules and by the judge, and their agreement, over all seeds.

    A verdict on an answer that was given anew since does not count.
    """
    rows: list[list[Cell]] = []
    for system in results.systems:
        for judge, (by_rules, said) in _both(system).items():
            both = agreement(by_rules, said, (RULES, judge), question_of=_question)
            accuracies = (accuracy_by(verdicts, question_of=_question) for verdicts in (by_rules, said))
            figures = (*accuracies, both.same, both.kappa)
            rows.append([system.name, judge, *(one.model_dump(mode="json") for one in figures), both.n, both.unjudged])
    columns = [Column("system"), Column("judge"), Column("by the rules", "share"), Column("by the judge", "share")]
    columns += [Column("same verdict", "share"), Column("kappa", "number")]
    columns += [Column("judged", "count"), Column("no verdict", "count")]
    caption = (
        "What a judge model makes of the same answers. Kappa: Cohen's, 1 for full agreement and 0 for that of chance. "
        "95% bootstrap intervals over questions."
    )
    return Table("judges", "A judge model beside the rules", caption, columns, rows)


def _both(system: SystemResult) -> dict[str, tuple[dict[str, bool | None], dict[str, bool | None]]]:
    """The rules' verdicts and the judge's on the same answers, by judge; keyed by seed and uid."""
    found: dict[str, tuple[dict[str, bool | None], dict[str, bool | None]]] = {}
    for place, run in enumerate(system.runs):
        for row in _judged_rows(run.folder, system.system):
            now = run.rows.get(row["uid"])
            if now and now["answer"] == row["answer"]:
                by_rules, said = found.setdefault(row["by"], ({}, {}))
                by_rules[f"{place}/{row['uid']}"], said[f"{place}/{row['uid']}"] = bool(now["correct"]), row["judge"]
    return found


def _question(answer: str) -> str:
    """Its uid, of the key of an answer."""
    return answer.partition("/")[2]


def _judged_rows(folder: Path, system: str) -> list[dict[str, Any]]:
    path = folder / "judge.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    return [row for row in map(json.loads, filter(None, lines)) if row["system"] == system]
