"""What the landing notebook shows: everything there is to open, found where it lies, as Markdown tables of links.

    display(Markdown(notebook_table()))         # the numbered notebooks: what each does, reads and writes
    display(Markdown(run_table(run_states())))  # the runs, and whether their results are up to date

Only what exists is linked. Links are relative to `start`, the folder of the notebook that shows them (default: the
repository's `notebooks`), so JupyterLab opens them beside it. `root` is the repository; tests give another one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from vrag_nb.notebook_files import read_notebook
from vrag_nb.paths import REPOSITORY, project_path
from vrag_nb.profile_files import ProfileError, read_section
from vrag_nb.profiles import RUNS_FILE
from vrag_nb.run_plan import load_run, plan_run

_READS_WRITES = re.compile(r"\*\*Reads\*\*\s*(.+?)\s*\*\*Writes\*\*\s*(.+?)(?=\n\s*\n|\Z)", re.DOTALL)
_DOCUMENTS = (
    "README.md", "docs/*.md", "results/README.md", "benchmarks/README.md", "data/*/README.md", "data/tables/SOURCES.md"
)  # fmt: skip
_REPORTS = ("index.html", "report.html", "report/report.html", "metrics.md", "skills.md", "data_card.md")


@dataclass(frozen=True)
class Opening:
    """How a notebook begins: its title, and what it says it reads and writes ("" where it does not say)."""

    path: Path
    title: str
    reads: str
    writes: str


@dataclass(frozen=True)
class RunState:
    """A run of the runs file: its profile, where its results go, its steps by name, and those whose results are up to
    date or out of date. problem: why it cannot be planned."""

    name: str
    profile: str = ""
    folder: Path | None = None
    steps: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    problem: str = ""

    @property
    def state(self) -> str:
        """In words."""
        if self.problem:
            return f"cannot be run: {self.problem}"
        if len(self.fresh) == len(self.steps):
            return "up to date"
        missing = len(self.steps) - len(self.fresh) - len(self.stale)
        counts = {"up to date": len(self.fresh), "out of date": len(self.stale), "not executed": missing}
        return (
            "not executed"
            if missing == len(self.steps)
            else ", ".join(f"{n} {word}" for word, n in counts.items() if n)
        )


def openings(root: Path = REPOSITORY) -> list[Opening]:
    """The numbered notebooks in order, as their first cell describes them."""
    return [_opening(path) for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))]


def run_states(file: Path | str = RUNS_FILE) -> list[RunState]:
    """Every run of a YAML file, in its order. One that cannot be planned says why. Raises ProfileError for the file."""
    return [_run_state(name, file) for name in read_section(project_path(file), "runs")]


def notebook_table(root: Path = REPOSITORY, start: Path | None = None) -> str:
    """The numbered notebooks, linked: title, what is read, what is written."""
    rows = [(link(one.title, one.path, _start(root, start)), one.reads, one.writes) for one in openings(root)]
    return table(("notebook", "reads", "writes"), rows) or "There are no numbered notebooks."


def run_table(states: Sequence[RunState], root: Path = REPOSITORY, start: Path | None = None) -> str:
    """The runs: command, profile, number of notebooks, results where there are any, and whether they are up to date."""
    rows = []
    for one in states:
        results = "–"
        if one.folder is not None and (one.folder / "index.html").is_file():
            results = link(_below(one.folder, root), one.folder / "index.html", _start(root, start))
        count = str(len(one.steps) or "–")
        rows.append((f"`.venv/bin/python -m vrag_nb run {one.name}`", one.profile, count, results, one.state))
    return table(("run", "profile", "notebooks", "results", "state"), rows)


def results_table(root: Path = REPOSITORY, folder: str = "results", start: Path | None = None) -> str:
    """Folders of results: executed copies as notebook and page, and the reports beside them. Scratch is left out."""
    rows = []
    for place in _result_folders(root / folder):
        where = _start(root, start)
        copies = [f"{link(path.stem, path, where)}{_page(path, where)}" for path in sorted(place.glob("[0-9]*.ipynb"))]
        found = [place / name for name in _REPORTS if (place / name).is_file()]
        reports = [link(path.relative_to(place).as_posix(), path, where) for path in found]
        if copies or reports:
            rows.append((_below(place, root), "<br>".join(copies) or "–", "<br>".join(reports) or "–"))
    return table(("folder", "executed copies", "reports"), rows) or f"There is nothing below {folder} yet: `make run`."


def model_table(root: Path = REPOSITORY, start: Path | None = None) -> str:
    """The shipped checkpoints: class, weights, size. Their card is among the documents."""
    rows = []
    for config in sorted((root / "data" / "models").glob("*/config.json")):
        folder, size = config.parent, sum(path.stat().st_size for path in config.parent.glob("*.safetensors"))
        kind = ", ".join(json.loads(config.read_text(encoding="utf-8")).get("architectures") or ["?"])
        count = sum(map(_parameters, folder.glob("*.safetensors")))
        shown = link(_below(folder, root), config, _start(root, start))
        rows.append((shown, kind, f"{count / 1e6:.1f} M", f"{size / 1e6:.0f} MB"))
    return table(("checkpoint", "class", "parameters", "on disk"), rows) or (
        "No checkpoint is shipped here: notebook 00 makes them."
    )


def document_table(root: Path = REPOSITORY, start: Path | None = None) -> str:
    """The pages to read: the README, the docs, what was measured and how, and the cards of models and data."""
    paths = [path for pattern in _DOCUMENTS for path in sorted(root.glob(pattern))]
    rows = [(link(_below(path, root), path, _start(root, start)), _title(path)) for path in paths]
    return table(("page", "about"), rows)


def link(text: str, path: Path, start: Path) -> str:
    """A Markdown link from a page in the folder `start`."""
    target = quote(Path(os.path.relpath(path, start)).as_posix())
    return f"[{_cell(text)}]({target})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, all columns left; "" without rows."""
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines]) if lines else ""


def _cell(text: str) -> str:
    """Text that neither ends its cell nor its row."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def _start(root: Path, start: Path | None) -> Path:
    return start or root / "notebooks"


def _below(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _opening(path: Path) -> Opening:
    try:
        cells = read_notebook(path).cells
    except ProfileError:  # which the runs that need it say
        return Opening(path, f"{path.stem} (cannot be read)", "", "")
    first = next((cell.source for cell in cells if cell.cell_type == "markdown"), "")
    title = first.splitlines()[0].lstrip("# ") if first.startswith("# ") else path.stem
    found = _READS_WRITES.search(first)
    return Opening(path, title, found[1] if found else "", found[2] if found else "")


def _run_state(name: str, file: Path | str) -> RunState:
    try:
        run = load_run(name, file)
        steps = plan_run(run, file)
    except ProfileError as error:
        return RunState(name, problem=str(error))
    fresh = tuple(step.name for step in steps if step.fresh)
    stale = tuple(step.name for step in steps if step.name not in fresh and step.executed.is_file())
    return RunState(name, run.profile, run.folder, tuple(step.name for step in steps), fresh, stale)


def _result_folders(results: Path) -> list[Path]:
    """Every folder with something to open, two levels deep; reports of a folder belong to it."""
    found = [path for pattern in ("*", "*/*") for path in sorted(results.glob(pattern)) if path.is_dir()]
    hidden = {"scratch", "report", "trajectories"}
    return sorted(path for path in found if not hidden.intersection(path.relative_to(results).parts))


def _page(executed: Path, start: Path) -> str:
    page = executed.with_suffix(".html")
    return f" ({link('page', page, start)})" if page.is_file() else ""


def _title(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line[2:] for line in lines if line.startswith("# ")), path.stem)


def _parameters(weights: Path) -> int:
    """How many numbers a safetensors file holds, by its header."""
    with weights.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
