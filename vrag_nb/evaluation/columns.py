"""Accuracy in the papers' columns: SlideVQA single / multi, ViDoSeek extraction / logic, MMLongBench-Doc by source.

    table = column_accuracy({"agent": verdicts, "vanilla_top1": others}, questions)
    print(columns_markdown(table, judge="rules (answers.is_correct)"))

Columns of MMLongBench-Doc overlap: a question that needs a chart and a table counts in both. Beside each benchmark's
columns stands "all", every question once, and where some cannot be answered "answerable", the others: VRAG-RL's tables
(arXiv 2505.22019) are over these. The papers' "overall" is not given: it cannot be reproduced from their own columns,
so figures are to be compared by benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vrag_nb.documents.benchmarks import columns
from vrag_nb.evaluation.metrics import share_interval
from vrag_nb.evaluation.report import estimate_text, markdown_table
from vrag_nb.records import Question

_WHOLES = {"answerable": 1, "all": 2}  # these come last, in this order
ColumnTable = dict[str, dict[str, dict[str, Any]]]  # system -> column -> {value, low, high, n}


def column_accuracy(
    verdicts: Mapping[str, Mapping[str, bool | None]], questions: Sequence[Question], seed: int = 0
) -> ColumnTable:
    """`{system: {column: {value, low, high, n}}}` of verdicts by system and uid.

    Questions without a verdict (None, or not there) are left out; `n` counts those that are in. Questions of no
    benchmark are in no column.
    """
    members: dict[str, list[str]] = {}
    for question in questions:
        names = columns(question)
        benchmark = (question.meta_info.model_extra or {}).get("benchmark")
        if benchmark:
            answerable = question.meta_info.query_type != "unanswerable"
            names += [f"{benchmark} {whole}" for whole in ("answerable", "all") if answerable or whole == "all"]
        for name in names:
            members.setdefault(name, []).append(question.uid)
    order = sorted(members, key=lambda name: (name.split()[0], _WHOLES.get(name.split()[1], 0), name))
    order = [name for name in order if not name.endswith(" answerable") or _says_more(name, members)]
    table: ColumnTable = {}
    for system, said in verdicts.items():
        known = {uid: float(right) for uid, right in said.items() if right is not None}
        table[system] = {}
        for name in order:
            scores = [known[uid] for uid in members[name] if uid in known]
            table[system][name] = share_interval(scores, seed).model_dump(mode="json")
    return table


def _says_more(answerable: str, members: Mapping[str, Sequence[str]]) -> bool:
    return len(members[answerable]) < len(members[answerable.replace(" answerable", " all")])


def columns_markdown(table: ColumnTable, judge: str) -> str:
    """The table, a system a row, under a line that names the judge. Raises ValueError for no judge's name."""
    if not judge.strip():
        raise ValueError("name the judge: accuracies under different judges cannot be compared")
    names = list(dict.fromkeys(name for found in table.values() for name in found))
    counts = {name: max(found[name]["n"] for found in table.values() if name in found) for name in names}
    head = ["system", *(f"{name} (n={counts[name]})" for name in names)]
    rows = [[system, *(estimate_text(found.get(name, {})) for name in names)] for system, found in table.items()]
    return f"Accuracy [95%], judged by {judge}.\n\n{markdown_table(head, rows)}\n"
