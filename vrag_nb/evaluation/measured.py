"""The tables of what was measured: Table 1, retrieval, effort, conduct, accuracy by actions and pages, failures.

    for table in measured_tables(read_results(folders)):
        print(table.title, table.records())

Captions say over what, by which judge, and what an interval is. What needs trajectories is left out where there are
none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from vrag_nb.evaluation.columns import column_accuracy
from vrag_nb.evaluation.failures import KINDS, Failure, classify
from vrag_nb.evaluation.judged import judges_table
from vrag_nb.evaluation.metrics import paired_bootstrap, share_interval
from vrag_nb.evaluation.per_question import gold_by_turn
from vrag_nb.evaluation.result_folders import Results, Run, SystemResult
from vrag_nb.evaluation.tables import Cell, Column, Table

BY_TURN_MOST = 8  # turns given one by one


def measured_tables(results: Results) -> list[Table]:
    """Every table of what was measured that these results have something for."""
    found = [accuracy_table(results), benchmark_table(results), completeness_table(results), by_turn_table(results)]
    found += [effort_table(results), conduct_table(results), pages_table(results), actions_table(results)]
    found += [pairs_table(results), failure_table(results), judges_table(results)]
    return [table for table in found if table.rows]


def accuracy_table(results: Results) -> Table:
    """Table 1: a system a row, its accuracy over all questions and by question type."""
    counts = Counter(kind for uid, kind in _types(results).items())
    types = sorted(counts)
    columns = [Column("system"), Column("all", "share"), *(Column(_words(kind), "share") for kind in types)]
    rows: list[list[Cell]] = []
    for system in results.systems:
        by_type = [[uid for uid, kind in system.types.items() if kind == one] for one in types]
        rows.append([system.name, system.estimate("accuracy"), *(system.estimate("accuracy", one) for one in by_type)])
    caption = f"Share of questions answered right, judged by {results.judge}. {_intervals(results)}"
    return Table("table_1", "Table 1. Accuracy by system and question type", caption, columns, rows)


def benchmark_table(results: Results) -> Table:
    """The papers' columns, where questions are of a benchmark."""
    wanted = [one for one in results.questions.values() if (one.meta_info.model_extra or {}).get("benchmark")]
    scores: dict[str, Any] = {system.name: system.measure("accuracy") for system in results.systems}
    found = column_accuracy(scores, wanted) if wanted else {}
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    rows: list[list[Cell]] = [[system, *(row.get(name) for name in names)] for system, row in found.items()]
    columns = [Column("system"), *(Column(name, "share") for name in names)]
    caption = f"Columns as in VRAG-RL's table 1, judged by {results.judge}. {_intervals(results)}"
    return Table("benchmarks", "Accuracy in the papers' columns", caption, columns, rows)


def completeness_table(results: Results) -> Table:
    """How much of what a question needs was put before the model."""
    measures = {
        "gold pages seen": ("gold_pages_seen", "share"),
        "all gold pages seen": ("all_gold_seen", "share"),
        "nDCG of the pages shown": ("ndcg", "number"),
        "pages shown": ("pages_shown", "number"),
    }
    caption = (
        "Over questions with gold pages. nDCG is VRAG-RL's retrieval reward (arXiv 2505.22019, equations 7 to 9): all "
        "pages in the order shown against the gold pages first."
    )
    return _by_measure("retrieval_completeness", "Retrieval completeness", caption, results.systems, measures)


def by_turn_table(results: Results) -> Table:
    """The share of gold pages shown by the end of each turn."""
    systems = [one for one in results.systems if one.has_trajectories]
    curves = {one.name: turn_curve(one) for one in systems}
    most = min(BY_TURN_MOST, max((len(curve) for curve in curves.values()), default=0))
    rows: list[list[Cell]] = [[name, *_padded(curve, most)] for name, curve in curves.items() if curve]
    columns = [Column("system"), *(Column(f"turn {number}", "share") for number in range(1, most + 1))]
    caption = "Share of a question's gold pages shown by the end of each turn; a question that ended keeps its share."
    return Table("gold_pages_by_turn", "Recall of the gold pages by turn", caption, columns, rows)


def turn_curve(system: SystemResult) -> list[float]:
    """The mean share of gold pages shown by the end of turn 1, 2, ...; empty without gold pages or trajectories."""
    found = []
    for run in system.runs:
        gold = {uid: run.rows[uid]["gold_pages"] for uid in run.trajectories}
        found += [gold_by_turn(run.trajectories[uid], pages) or [0.0] for uid, pages in gold.items() if pages]
    most = max((len(curve) for curve in found), default=0)
    return [sum(curve[min(turn, len(curve) - 1)] for curve in found) / len(found) for turn in range(most)]


def effort_table(results: Results) -> Table:
    """Turns, tokens and seconds a question."""
    measures = {
        "turns": ("turns", "number"),
        "searches": ("searches", "number"),
        "crops": ("crops", "number"),
        "generated tokens": ("generated_tokens", "count"),
        "image tokens shown": ("image_tokens", "count"),
        "longest prompt, tokens": ("longest_prompt", "count"),
        "seconds, start to end": ("seconds", "number"),
    }
    caption = (
        "A question's mean. Turns are the model's own. Start to end is what one question took while others were in "
        "flight; machine seconds are the whole run's divided by its questions."
    )
    systems = [one for one in results.systems if one.has_trajectories]
    table = _by_measure("effort", "Turns, tokens and seconds a question", caption, systems, measures)
    rows = [[*row, _machine_seconds(results, one)] for row, one in zip(table.rows, systems, strict=True)]
    return Table(table.name, table.title, table.caption, [*table.columns, Column("machine seconds", "number")], rows)


def conduct_table(results: Results) -> Table:
    """How often actions were invalid, and how often questions ended with an answer."""
    measures = {
        "invalid actions": ("invalid_action_rate", "share"),
        "finished": ("finish_rate", "share"),
        "last turn forced": ("forced_rate", "share"),
    }
    caption = (
        "Invalid actions: the share of a question's turns, then the mean over questions. Finished: ended with an "
        "answer. Forced: reached the extra turn in which only an answer is left, for some systems the only one."
    )
    systems = [one for one in results.systems if one.has_trajectories]
    if any(one.measure("cut_off_rate") for one in systems):  # records of before do not say
        measures["cut off"] = ("cut_off_rate", "share")
        caption += " Cut off: the share of a question's replies that the limit on new tokens ended."
    return _by_measure("conduct", "Invalid actions and finished questions", caption, systems, measures)


def pages_table(results: Results) -> Table:
    """Accuracy by how many pages hold the evidence."""
    groups = {one.name: [dict(one.gold_pages)] * len(one.runs) for one in results.systems}
    none = "0: no gold page is named, as of questions that cannot be answered"
    caption = f"By the number of gold pages; {none}. Judged by {results.judge}."
    return _by_group("accuracy_by_gold_pages", "Accuracy by pages of evidence", "pages", caption, results, groups)


def actions_table(results: Results) -> Table:
    """Accuracy by how many actions a question took."""
    systems = [one for one in results.systems if one.has_trajectories]
    groups = {one.name: [_turns(run) for run in one.runs] for one in systems}
    caption = (
        "By the number of the model's turns, the answer included. No cause is shown by this: hard questions take more "
        f"turns. Judged by {results.judge}."
    )
    return _by_group("accuracy_by_actions", "Accuracy by number of actions", "actions", caption, results, groups)


def pairs_table(results: Results) -> Table:
    """Every pair of systems: the difference in accuracy, question by question."""
    rows: list[list[Cell]] = []
    for first, second in combinations(results.systems, 2):
        found = difference(first, second)
        if found["n"]:
            rows.append([first.name, second.name, found, "yes" if found["low"] > 0 or found["high"] < 0 else "no"])
    columns = [Column("first"), Column("second"), Column("first minus second", "points"), Column("excludes zero")]
    caption = (
        "Paired bootstrap over the questions that both answered, 95%. With many pairs some intervals exclude zero by "
        f"chance. Judged by {results.judge}."
    )
    return Table("paired_differences", "Differences between systems", caption, columns, rows)


def difference(first: SystemResult, second: SystemResult, seed: int = 0) -> dict[str, Any]:
    """`{value, low, high, n}` of the accuracy of `first` less that of `second`, over the questions both answered."""
    a, b = first.measure("accuracy"), second.measure("accuracy")
    both = [uid for uid in a if uid in b]
    found = paired_bootstrap({uid: a[uid] for uid in both}, {uid: b[uid] for uid in both}, seed)
    return dict(found.model_dump(mode="json"))


def failures(run: Run) -> dict[str, Failure]:
    """The class of every wrong answer of a run that has a trajectory and a question, by uid."""
    wrong = [uid for uid, row in run.rows.items() if not row["correct"] and uid in run.trajectories]
    placed = [run.trajectories[uid] for uid in wrong if run.trajectories[uid].reference is not None]
    return {one.uid: classify(one, run.ready_made) for one in placed}


def failure_table(results: Results) -> Table:
    """How many wrong answers of each class each system has, over all its seeds."""
    systems = [one for one in results.systems if one.has_trajectories]
    counts = {one.name: Counter(f.kind for run in one.runs for f in failures(run).values()) for one in systems}
    kinds = [kind for kind in KINDS if any(count[kind] for count in counts.values())]
    rows: list[list[Cell]] = []
    for one in systems:
        asked = sum(len(run.rows) for run in one.runs)
        rows.append([one.name, asked, sum(counts[one.name].values()), *(counts[one.name][kind] for kind in kinds)])
    columns = [Column("system"), Column("asked", "count"), Column("wrong", "count")]
    columns += [Column(_words(kind), "count") for kind in kinds]
    caption = (
        f"Wrong answers by class, over all seeds, each once: the first class that applies. Wrong: {results.judge}."
    )
    return Table("failures", "Why answers are wrong", caption, columns, rows)


def _by_measure(
    name: str, title: str, caption: str, systems: Sequence[SystemResult], measures: Mapping[str, tuple[str, Any]]
) -> Table:
    columns = [Column("system"), *(Column(words, unit) for words, (_, unit) in measures.items())]
    rows: list[list[Cell]] = [[one.name, *(one.estimate(key) for key, _ in measures.values())] for one in systems]
    return Table(name, title, caption, columns, rows)


def _by_group(
    name: str, title: str, unit: str, caption: str, results: Results, groups: Mapping[str, Sequence[Mapping[str, int]]]
) -> Table:
    """A column for every number in `groups`, which is by system, run and uid."""
    numbers = sorted({number for runs in groups.values() for run in runs for number in run.values()})
    rows: list[list[Cell]] = []
    for system in (one for one in results.systems if one.name in groups):
        rows.append([system.name, *(_in_group(system, groups[system.name], number) for number in numbers)])
    titles = [f"{number} {unit.removesuffix('s') if number == 1 else unit}" for number in numbers]
    return Table(name, title, caption, [Column("system"), *(Column(one, "share") for one in titles)], rows)


def _in_group(system: SystemResult, groups: Sequence[Mapping[str, int]], number: int) -> dict[str, Any]:
    """Accuracy where a question has this number; of a question with several seeds, over those that have it."""
    found: dict[str, list[float]] = {}
    for run, group in zip(system.runs, groups, strict=True):
        for uid in (uid for uid, one in group.items() if one == number):
            found.setdefault(uid, []).append(run.measures[uid]["accuracy"])
    return dict(share_interval([sum(values) / len(values) for values in found.values()]).model_dump(mode="json"))


def _turns(run: Run) -> dict[str, int]:
    return {uid: round(found["turns"]) for uid, found in run.measures.items() if "turns" in found}


def _machine_seconds(results: Results, system: SystemResult) -> float | None:
    spent = [results.folders[run.folder]["run"].get("seconds", {}).get(system.system) for run in system.runs]
    known = [seconds / len(run.rows) for seconds, run in zip(spent, system.runs, strict=True) if seconds and run.rows]
    return sum(known) / len(known) if known else None


def _types(results: Results) -> dict[str, str]:
    return {uid: kind for system in results.systems for uid, kind in system.types.items()}


def _padded(curve: Sequence[float], length: int) -> list[float | None]:
    return [curve[min(place, len(curve) - 1)] if curve else None for place in range(length)]


def _intervals(results: Results) -> str:
    seeds = max((len(one.runs) for one in results.systems), default=1)
    words = "95% bootstrap intervals over questions, exact binomial ones where none or all are right."
    return (
        f"{words} Means of {seeds} seeds; below them, where seeds differ, the lowest and the highest."
        if seeds > 1
        else words
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
