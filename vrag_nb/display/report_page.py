"""The report of one or more evaluations: a page that reads without a network, and every table as data beside it.

    page = write_report_page(["results/nano"], Path("results/report"), corpus=Path("data/corpora/decks"))

writes below `out`

    report.html      tables, figures and examples of wrong answers in one file: no script, no font, nothing to fetch
    report.json      every table, what was evaluated, and the notes
    tables/*.csv     a file a table
    figures/*.png    the figures again, for slides and papers

Published figures stand in sections and columns of their own, tinted and with their source. The template
(`report_page.html`) lays out; what is said is said by the tables.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vrag_nb.agent.pages import PageStore
from vrag_nb.display.failure_gallery import Example, examples, inspector_code
from vrag_nb.display.report_figures import report_figures
from vrag_nb.evaluation.ablation_table import COMMAND, ablation_table, is_ablation
from vrag_nb.evaluation.failures import MEANINGS
from vrag_nb.evaluation.measured import measured_tables
from vrag_nb.evaluation.published import beside_table, order_table, published_tables
from vrag_nb.evaluation.result_folders import Results, SystemResult, read_results, split_name
from vrag_nb.evaluation.tables import Cell, Column, Table, write_tables
from vrag_nb.files import write_json, write_text
from vrag_nb.paths import shown_path
from vrag_nb.plotting import figures
from vrag_nb.records import pages_digest

_TEMPLATE = "report_page.html"


@dataclass(frozen=True)
class Section:
    """A part of the page. missing: why there is nothing; command: what would make it. meanings: of words, in words."""

    title: str
    tables: Sequence[Table] = ()
    figures: Sequence[str] = ()
    missing: str = ""
    command: str = ""
    published: bool = False
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Gallery:
    """Examples of one system's failures, and the code that opens them."""

    system: str
    code: str
    examples: Sequence[Example] = field(repr=False)


@dataclass(frozen=True)
class Shown:
    """A cell as it is read: the figure, its interval and seeds below it."""

    text: str
    interval: str = ""
    spread: str = ""
    strong: bool = False


def write_report_page(
    folders: Sequence[str | Path], out: Path, *, corpus: Path | None = None, each: int = 2, title: str = "Results"
) -> tuple[Path, list[Table]]:
    """Write the report of evaluation folders (`DIR` or `NAME=DIR`) to `out`; the page's path and all tables.

    Folders with an ablations.json make Table 2; those with a metrics.json, and all others, are evaluations, and one at
    least is needed. corpus: the prepared folder that page pictures come from; without it, and for answers that were
    given on other pages than it holds by now, examples are words. each: examples of a class and system.
    Raises what `read_results` and `ablation_table` raise, ValueError when no folder is an evaluation.
    """
    evaluated = [one for one in folders if not is_ablation(where := split_name(one)[1]) or _evaluated(where)]
    if not evaluated:
        raise ValueError("name at least one folder of an evaluation; ablations alone have no systems to compare")
    results, out = read_results(evaluated), Path(out)
    ablations = [split_name(one)[1] for one in folders if is_ablation(split_name(one)[1])]
    pages, notes = _pages(corpus, results)
    replaced = _replaced(pages, results.systems)
    why = "are left out: its answers were given on other pages than the corpus holds now. Evaluate again."
    notes += [f"Page pictures of {name} {why}" for name in replaced]
    tables = measured_tables(results) + _ablation_tables(ablations, results.judge)
    tables += [beside_table(results), order_table(results)]
    drawn = report_figures({table.name: table for table in tables})
    pictures = {name: _saved(figure, out / "figures" / f"{name}.png") for name, figure in drawn.items()}
    everything = [*tables, *published_tables()]
    drawable = {one.name: None if one.name in replaced else pages for one in results.systems}
    galleries = [_gallery(one.name, examples(one, drawable[one.name], each), corpus) for one in results.systems if each]
    html = _page(title, results, everything, pictures, [one for one in galleries if one.examples], notes)
    write_tables(everything, out / "tables")
    write_json(out / "report.json", _dump(results, everything, notes))
    write_text(out / "report.html", html)
    return out / "report.html", everything


def _evaluated(folder: Path) -> bool:
    return (folder / "metrics.json").is_file()


def _ablation_tables(folders: Sequence[Path], judge: str) -> list[Table]:
    """Table 2 of each folder; of several, each with its folder's name."""
    tables = [ablation_table(folder, judge) for folder in folders]
    if len(tables) == 1:
        return tables
    return [
        replace(table, name=f"{table.name}_{place}", title=f"{table.title}: {folder.resolve().name}")
        for place, (table, folder) in enumerate(zip(tables, folders, strict=True), start=1)
    ]


def _pages(corpus: Path | None, results: Results) -> tuple[PageStore | None, list[str]]:
    """The corpus, where it is there, and the report's notes."""
    notes = list(results.notes)
    if not all(one.has_trajectories for one in results.systems):
        lacking = ", ".join(one.name for one in results.systems if not one.has_trajectories)
        notes.append(
            f"No trajectories were kept of {lacking}: turns, tokens, actions and failures are missing there. The "
            "evaluation's command makes them again."
        )
    try:
        if corpus is not None:
            return PageStore(corpus), notes
        why = "no corpus was named"
    except (FileNotFoundError, ValueError) as error:
        why = str(error)
    notes.append(f"Page pictures are left out: {why}.")
    return None, notes


def _replaced(pages: PageStore | None, systems: Sequence[SystemResult]) -> list[str]:
    """The systems that were answered on other pages than these, as the stamps beside the trajectories drawn say."""
    stamps = {one.name: one.runs[0].trajectory_file.with_suffix(".stamp.json") for one in systems}
    there = {name: path for name, path in stamps.items() if path.is_file()}
    if pages is None or not there:
        return []
    now = pages_digest(pages.corpus)
    answered = {name: json.loads(path.read_text(encoding="utf-8")).get("identity", {}) for name, path in there.items()}
    return [name for name, identity in answered.items() if identity.get("pages", now) != now]


def _gallery(system: str, chosen: Sequence[Example], corpus: Path | None) -> Gallery:
    return Gallery(system, inspector_code(chosen[0].file, corpus) if chosen else "", chosen)


def _dump(results: Results, tables: Sequence[Table], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "judge": results.judge,
        "notes": list(notes),
        "folders": {shown_path(folder.resolve()): found["run"] for folder, found in results.folders.items()},
        "tables": {table.name: table.dump() for table in tables},
    }


def _page(
    title: str,
    results: Results,
    tables: Sequence[Table],
    pictures: Mapping[str, tuple[str, int]],
    galleries: Sequence[Gallery],
    notes: Sequence[str],
) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.lstrip_blocks = True
    environment.filters |= {"cell": shown_cell, "words": lambda name: name.replace("_", " ")}
    environment.globals["counted"] = counted
    return environment.get_template(_TEMPLATE).render(
        title=title,
        results=results,
        seeds=max((len(one.runs) for one in results.systems), default=0),
        questions=max((len(one.uids) for one in results.systems), default=0),
        sections=_sections({table.name: table for table in tables}, results),
        pictures=pictures,
        galleries=galleries,
        folders=[_made(folder, found["run"]) for folder, found in results.folders.items()],
        notes=notes,
    )


def _sections(tables: Mapping[str, Table], results: Results) -> list[Section]:
    """The page's parts in order."""

    def section(title: str, names: Sequence[str], drawn: Sequence[str] = (), published: bool = False) -> Section:
        found = [tables[name] for name in names if name in tables]
        missing = "" if found else "No trajectories were kept, from which this is counted."
        return Section(title, found, drawn, missing, published=published)

    ablations = section("Reward and actions", [name for name in tables if name.startswith("table_2")])
    if not ablations.tables:
        why = "No folder of this report holds ablation cells. Each is a training run; this makes them, and the folder "
        why += "is then given to this report as well:"
        ablations = Section("Reward and actions", missing=f"Table 2. {why}", command=COMMAND)
    matrix = [_matrix(tables["paired_differences"], results)] if "paired_differences" in tables else []
    papers = [name for name, table in tables.items() if table.published]
    return [
        section("Accuracy", ["table_1", "benchmarks", "judges"], ["accuracy_by_system", "accuracy_by_type"]),
        ablations,
        section("Retrieval", ["retrieval_completeness", "gold_pages_by_turn"], ["gold_pages_by_turn"]),
        section("Effort", ["effort"]),
        section("Conduct", ["conduct"]),
        section("Accuracy by actions and by pages", ["accuracy_by_actions", "accuracy_by_gold_pages"],
                ["accuracy_by_actions", "accuracy_by_gold_pages"]),
        Section("Paired differences", matrix, missing="" if matrix else "There is no other system."),
        section("Beside the paper", ["paper_order", "beside_published"]),
        section("Published, not measured here", papers, published=True),
        replace(section("Failures", ["failures"]), meanings=MEANINGS if "failures" in tables else {}),
    ]  # fmt: skip


def _matrix(pairs: Table, results: Results) -> Table:
    """The pairs as a square: row minus column. Its data is the list of pairs."""
    names = [one.name for one in results.systems]
    found = {(row[0], row[1]): row[2] for row in pairs.rows}
    rows: list[list[Cell]] = [[name] for name in names[:-1]]
    for row, column in product(range(len(names) - 1), range(1, len(names))):
        rows[row].append(found.get((names[row], names[column])))
    columns = [Column("row minus column"), *(Column(name, "points") for name in names[1:])]
    caption = f"{pairs.caption} Bold: the interval excludes zero. Percentage points."
    return Table(pairs.name, pairs.title, caption, columns, rows)


def _made(folder: Path, run: Mapping[str, Any]) -> dict[str, str]:
    machine = run.get("hardware") or {}
    where = f"{machine.get('cpu')}, {machine.get('cores')} cores" + "".join(
        f", {gpu}" for gpu in machine.get("gpus", ())
    )
    known = {"folder": shown_path(folder.resolve()), "machine": where, "commit": str(run.get("commit"))[:12]}
    names = ("seed", "profile", "policy", "prompt", "retriever", "questions")
    return known | {name: str(run[name]) for name in names if run.get(name) is not None}


def shown_cell(cell: Cell, column: Column) -> Shown:
    """A cell in words: shares and their differences in percent, one decimal."""
    if cell is None:
        return Shown("–")
    if isinstance(cell, str):
        return Shown(cell)
    if not isinstance(cell, Mapping):
        return Shown(_figure(cell, column.unit))
    if cell.get("value") is None:
        return Shown("–")
    ends, spread = [cell[end] for end in ("low", "high") if cell.get(end) is not None], cell.get("spread")
    interval = f"[{', '.join(_figure(end, column.unit) for end in ends)}]" if ends else ""
    lowest, highest = (_figure(end, column.unit) for end in spread or (0, 0))
    seeds = f"seeds {lowest}–{highest}" if lowest != highest else ""
    strong = column.unit == "points" and bool(ends) and (ends[0] > 0 or ends[-1] < 0)
    return Shown(_figure(cell["value"], column.unit), interval, seeds, strong)


def _figure(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.1f}"
    if unit == "points":
        return f"{100 * value:+.1f}".replace("-", "−")
    if unit == "count":
        return f"{value:,.0f}"
    if unit == "printed":
        return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"
    return f"{value:.2f}"


def counted(table: Table, place: int) -> str:
    """How many questions a column's figures are over, "n = 12" or "n = 10 to 12"; "" where it has none."""
    cells = [row[place] for row in table.rows]
    counts = sorted({int(cell["n"]) for cell in cells if isinstance(cell, Mapping) and cell.get("n")})
    if not counts:
        return ""
    return f"n = {counts[0]:,}" if len(counts) == 1 else f"n = {counts[0]:,} to {counts[-1]:,}"


def _saved(figure: figures.Figure, path: Path) -> tuple[str, int]:
    """Save a figure; it again as a data URI, and how wide the page shows it, in pixels: 80 an inch."""
    png = figures.save(figure, path).read_bytes()
    return f"data:image/png;base64,{base64.b64encode(png).decode()}", round(80 * figure.get_size_inches()[0])
