"""What an evaluation leaves for readers: metrics.json, metrics.md, and figures.

    write_report(out, metrics, trajectories)     # out/metrics.json, out/metrics.md, out/figures/*.png
    print(markdown(metrics))                     # the same table in a notebook: display(Markdown(...))

Every file is replaced atomically; figures come last, so that one that cannot be drawn costs nothing that was measured.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.files import write_json, write_text

Estimate = Mapping[str, Any]  # {value, low, high, n}
UNBROKEN = 240  # columns of what is no terminal
_ACTED = ("turns", "searches", "crops", "invalid_action_rate", "cut_off_rate")
BEHAVIOUR = (*_ACTED, "forced_rate", "finish_rate", "gold_pages_seen")


def write_report(out: Path, metrics: Mapping[str, Any], trajectories: Mapping[str, Sequence[Trajectory]]) -> None:
    """Write metrics.json, metrics.md and figures below `out`."""
    out = Path(out)
    write_json(out / "metrics.json", metrics)
    write_text(out / "metrics.md", markdown(metrics))
    write_figures(out / "figures", metrics, trajectories)


def markdown(metrics: Mapping[str, Any]) -> str:
    """The metrics as markdown tables: retrieval, accuracy by system and type, behaviour, comparisons, provenance."""
    blocks = [_retrieval_block(metrics["retrieval"]), _answers_block(metrics["answers"])]
    blocks += [_behaviour_block(metrics["answers"]), _comparison_block(metrics.get("comparisons", {}))]
    blocks.append(_run_block(metrics["run"]))
    return "# Evaluation\n\n" + "\n\n".join(block for block in blocks if block) + "\n"


def answers_markdown(found: Mapping[str, Any]) -> str:
    """The tables of answers, behaviour and comparisons alone."""
    answers = found["answers"]
    blocks = [_answers_block(answers), _behaviour_block(answers), _comparison_block(found.get("comparisons", {}))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def estimate_text(one: Estimate) -> str:
    """`.62 [.55, .69]`, or a dash where there was nothing to measure."""
    if one.get("value") is None:
        return "–"
    return f"{short(one['value'])} [{short(one['low'])}, {short(one['high'])}]"


def short(value: float) -> str:
    """Two decimals, without a zero before them: `.62`, `-.05`, `1.00`."""
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0") else text


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; the first column left, the others right. Cells are escaped as `as_cell` says."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(map(as_cell, cells)) + " |" for cells in (head, rule, *rows))


def as_cell(text: str) -> str:
    """A text as a cell of a markdown table: it ends where it should, and no HTML is in it. Code in backticks stays."""
    parts = [" ".join(text.splitlines()).replace("|", "\\|")]
    if not re.search(r"``|\\`", text):  # else a backtick may not begin code
        parts = re.split("(`[^`]+`)", parts[0])
    return "".join(part if place % 2 else html.escape(part, quote=False) for place, part in enumerate(parts))


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], console: Console | None = None) -> None:
    """The same table on a terminal; in a file or a pipe, which has no width, no cell is broken."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left", overflow="fold")  # names stay whole
    for row in rows:
        table.add_row(*row)
    (console or Console(width=None if sys.stdout.isatty() else UNBROKEN)).print(table)


def print_metrics(metrics: Mapping[str, Any], console: Console | None = None) -> None:
    """The retrieval and accuracy tables on a terminal."""
    if metrics["retrieval"]:
        print_table("Retrieval", *_retrieval_table(metrics["retrieval"]), console)
    if metrics["answers"]:
        print_table("Answer accuracy", *_answers_table(metrics["answers"]), console)
    for line in _failures(metrics):
        (console or Console(stderr=True)).print(line, markup=False, soft_wrap=True)


def _failures(metrics: Mapping[str, Any]) -> Iterator[str]:
    """What failed and counts as wrong, lest an endpoint that is away look like a model that knows nothing."""
    run = metrics["run"]
    if failed := run.get("failed_searches"):
        yield f"{failed} of {run['questions']} searches failed and count as finding nothing; {run['failed_search']}"
    for name, one in metrics["answers"].items():
        if one["errors"]:
            told = one.get("error", "see predictions.jsonl")
            yield f"{name}: {one['errors']} of {run['questions']} ended in an error and count as wrong; {told}"
        if cut_off := one.get("behaviour", {}).get("cut_off_rate", {}).get("value"):
            yield f"{name}: {cut_off:.0%} of a question's replies were cut off: raise max_new_tokens, or ask for less"


def write_figures(folder: Path, metrics: Mapping[str, Any], trajectories: Mapping[str, Sequence[Trajectory]]) -> None:
    """accuracy_by_system.png, accuracy_by_type.png, retrieval.png, and turns_{system}.png of the agents."""
    # matplotlib takes a second to import, and only figures need it
    from vrag_nb.evaluation.turn_counts import turn_counts
    from vrag_nb.plotting import figures, plots

    answers = {name: result for name, result in metrics["answers"].items() if result["accuracy"]["n"]}
    if answers:
        figures.save(plots.accuracy_by_system(answers), folder / "accuracy_by_system.png")
        figures.save(plots.accuracy_by_type(answers), folder / "accuracy_by_type.png")
    retrieval = {name: one for name, one in metrics["retrieval"].items() if one["n"]}
    if retrieval:
        figures.save(plots.recall_bars(retrieval), folder / "retrieval.png")
    for name in ("agent_no_crop", metrics["run"].get("agent", "agent")):
        if trajectories.get(name):
            title = f"Turns per question, {name.replace('_', ' ')}"
            figure = turn_counts(list(trajectories[name]), title=title)
            figures.save(figure, folder / f"turns_{name}.png")


def _retrieval_table(retrieval: Mapping[str, Estimate]) -> tuple[list[str], list[list[str]]]:
    rows = [[name, estimate_text(one), str(one["n"])] for name, one in retrieval.items()]
    return ["whole corpus, the question as the query", "value [95%]", "questions"], rows


def _answers_table(answers: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    types = {kind: one["n"] for result in answers.values() for kind, one in result["by_type"].items()}
    count = max((result["accuracy"]["n"] for result in answers.values()), default=0)
    head = ["system", f"all (n={count})", *(f"{kind} (n={n})" for kind, n in types.items())]
    rows = []
    for name, result in answers.items():
        by_type = [result["by_type"].get(kind, {}) for kind in types]
        rows.append([name, estimate_text(result["accuracy"]), *(_value(one) for one in by_type)])
    return head, rows


def _value(one: Estimate) -> str:
    return "–" if one.get("value") is None else short(one["value"])


def _retrieval_block(retrieval: Mapping[str, Estimate]) -> str:
    return "## Retrieval\n\n" + markdown_table(*_retrieval_table(retrieval)) if retrieval else ""


def _answers_block(answers: Mapping[str, Any]) -> str:
    if not answers:
        return ""
    note = "Share of right answers; 95% bootstrap interval over questions for the whole, the share alone by type."
    return f"## Answers\n\n{markdown_table(*_answers_table(answers))}\n\n{note}"


def _behaviour_block(answers: Mapping[str, Any]) -> str:
    rows, found = [], [result.get("behaviour", {}) for result in answers.values()]
    keys = [key for key in BEHAVIOUR if key != "cut_off_rate" or any(key in one for one in found)]  # older ones lack it
    for (name, result), behaviour in zip(answers.items(), found, strict=True):
        rows.append([name, *(_value(behaviour.get(key, {})) for key in keys), str(result.get("errors", 0))])
    head = ["system", *(key.replace("_", " ") for key in keys), "errors"]
    return "## Behaviour\n\n" + markdown_table(head, rows) if rows else ""


def _comparison_block(comparisons: Mapping[str, Estimate]) -> str:
    rows = [[name.replace("_minus_", " − "), estimate_text(one), str(one["n"])] for name, one in comparisons.items()]
    title = "## Differences in accuracy, question by question"
    return f"{title}\n\n" + markdown_table(["pair", "difference [95%]", "questions"], rows) if rows else ""


def _run_block(run: Mapping[str, Any]) -> str:
    seconds = ", ".join(f"{stage} {value:.0f} s" for stage, value in run["seconds"].items())
    machine = run["hardware"]
    where = f"{machine['cpu']}, {machine['cores']} cores" + "".join(f", {gpu}" for gpu in machine["gpus"])
    return f"Seed {run['seed']}, commit {run['commit']}, {where}. Time: {seconds}."
