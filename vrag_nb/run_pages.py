"""What a run shows: the live line while a notebook executes, its page, and the index of all pages.

Papermill executes; a client of its own kind tells a watcher which cell runs and how far the progress bars in it are.
Widgets cannot work in a page (they need a kernel, and their scripts a network), so executed copies keep none: a
progress bar goes, any other widget becomes a line that says where to use it; notebooks show a PNG twin beside it.
Paths of this machine are taken out of the outputs, because executed notebooks are committed.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import ensure_async, ensure_event_loop
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill import execute_notebook as papermill_execute
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from vrag_nb.files import write_text
from vrag_nb.paths import REPOSITORY
from vrag_nb.run_plan import Run, Step

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ENGINE = "vrag-live"
_BAR = re.compile(r"\d+%\||\[[\d:]+:\d\d[,<]|(?:Float|Int)Progress\(")  # with a total, without one; a bare model
_END_SECONDS = 5.0  # for a cell to end that is interrupted
_QUIET_SECONDS = 3.0  # without a terminal only cells that took longer get a line of their own


class Watcher:
    """The live line of one notebook: the cell's number, the heading it stands under, its own progress bar, the time."""

    def __init__(self, console: Console, head: str, cells: Sequence[Any]) -> None:
        self.console, self.head, self.headings = console, head, _headings(cells)
        self.code_cells = [index for index, cell in enumerate(cells) if cell.cell_type == "code"]
        self.bars: dict[str, dict[str, Any]] = {}
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.progress.add_task(head, total=len(self.code_cells), detail="starting the kernel")
        self._started = time.perf_counter()

    def cell_started(self, cell: Any, cell_index: int) -> None:
        self.bars.clear()
        self._started = time.perf_counter()
        self.progress.update(self.task, detail=self.headings.get(cell_index, ""))

    def cell_ended(self, cell: Any, cell_index: int, **_: Any) -> None:
        if cell_index not in self.code_cells:
            return
        self.progress.advance(self.task)
        seconds, heading = time.perf_counter() - self._started, self.headings.get(cell_index, "")
        if not self.console.is_terminal and seconds >= _QUIET_SECONDS:
            number = self.code_cells.index(cell_index) + 1
            line = f"    cell {number}/{len(self.code_cells)} ({heading}): {seconds:.0f} s"
            self.console.print(line, markup=False, highlight=False)

    def widget_changed(self, comm_id: str, state: dict[str, Any]) -> None:
        """tqdm draws its bars in a notebook as a FloatProgress widget: its value is how far the cell is."""
        bar = self.bars.setdefault(comm_id, {})
        bar.update(state)
        if bar.get("_model_name") == "FloatProgressModel" and bar.get("max", 0) > 1 and "value" in state:
            self.progress.update(self.task, detail=f"{bar['value']:.0f} of {bar['max']:.0f}")


class LiveClient(PapermillNotebookClient):
    """Papermill's client, telling a watcher what happens."""

    def __init__(self, nb_man: Any, watcher: Watcher, **options: Any) -> None:
        super().__init__(nb_man, **options)
        self.watcher = watcher
        self.on_cell_start, self.on_cell_executed = watcher.cell_started, watcher.cell_ended

    def papermill_execute_cells(self) -> None:
        """Papermill's; when it is interrupted the cell ends before its kernel is closed.

        An answer that comes meanwhile would be a traceback of a task that nobody waits for, here or in the kernel.
        """
        try:
            super().papermill_execute_cells()
        except KeyboardInterrupt:
            self._end_cell()
            raise

    def _end_cell(self) -> None:
        """Interrupt the kernel, wait for the cell that is under way, and give up what is not over by then."""
        loop = ensure_event_loop()
        if loop.is_running():  # somebody else's, such as a notebook's own
            return
        if tasks := asyncio.all_tasks(loop):
            loop.run_until_complete(ensure_async(self.km.interrupt_kernel()))
            _, late = loop.run_until_complete(asyncio.wait(tasks, timeout=_END_SECONDS))
            for task in late:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))  # their errors are of no interest

    def handle_comm_msg(self, outs: Any, msg: dict[str, Any], cell_index: int) -> None:
        super().handle_comm_msg(outs, msg, cell_index)
        content = msg["content"]
        state = content.get("data", {}).get("state")
        if state:
            self.watcher.widget_changed(content["comm_id"], state)


class LiveEngine(NBClientEngine):
    """Papermill's engine with the live client."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
        client = LiveClient(
            nb_man,
            options["watcher"],
            kernel_name=kernel_name,
            startup_timeout=options.get("start_timeout", 60),
            timeout=None,
            extra_arguments=["--log-level=ERROR"],  # ipykernel warns of plain TCP on this machine's own loopback
            store_widget_state=False,
        )
        return client.execute()


papermill_engines.register(_ENGINE, LiveEngine)


def execute_notebook(source: Path, out: Path, parameters: dict[str, Any], console: Console, head: str) -> str | None:
    """Execute `source` into `out` with its own folder as working directory; None, or what went wrong in short."""
    logging.getLogger("papermill").setLevel(logging.ERROR)
    watcher = Watcher(console, head, _with_injected(nbformat.read(source, as_version=4).cells, parameters))
    problem = None
    try:
        with watcher.progress:
            papermill_execute(
                str(source),
                str(out),
                parameters=parameters,
                engine_name=_ENGINE,
                kernel_name="python3",
                progress_bar=False,
                cwd=str(source.parent),
                watcher=watcher,
            )
    except PapermillExecutionError as error:
        problem = f"cell {error.exec_count}: {error.ename}: {' '.join(str(error.evalue).split())[:400]}"
    except DeadKernelError as error:
        problem = f"the kernel ended ({error}); is there enough memory?"
    except (CellExecutionError, RuntimeError) as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if out.is_file():
        _clean(out)
    return problem


def write_page(executed: Path, page: Path) -> None:
    """The executed notebook as one HTML file with its pictures inside, replacing atomically."""
    from vrag_nb.offline_page import PageExporter

    body, _ = PageExporter().from_notebook_node(
        nbformat.read(executed, as_version=4), {"metadata": {"name": page.stem}}
    )
    write_text(page, body)


def write_provenance(run: Run, steps: Sequence[Step]) -> None:
    """provenance.json: the run's name and parameters, seconds, commit, versions and machine."""
    from vrag_nb.provenance import provenance

    notebooks = {step.name: {"parameters": step.parameters, "seconds": step.seconds} for step in steps}
    about = {"run": run.name, "profile": run.profile, "notebooks": notebooks, **provenance()}
    write_text(run.folder / "provenance.json", json.dumps(about, indent=1) + "\n")


def write_index(run: Run, steps: Sequence[Step], index: Path) -> None:
    """index.html: the pages in order, the results table and the figures where the run has them."""
    rows = "".join(
        f'<tr><td><a href="{step.page.name}">{html.escape(_title(step.source))}</a></td>'
        f'<td><a href="{step.executed.name}">notebook</a></td><td>{_seconds(step.seconds)}</td></tr>'
        for step in steps
    )
    table, figures = run.folder / "metrics.md", sorted((run.folder / "figures").glob("*.png"))
    results = _markdown(table.read_text(encoding="utf-8")) if table.is_file() else ""
    pictures = "".join(f'<img src="figures/{path.name}" alt="{path.stem.replace("_", " ")}">' for path in figures)
    there = (run.folder / "report" / "report.html").is_file()
    report = _REPORT if there else ""
    page = _INDEX.format(name=html.escape(run.name), rows=rows, report=report, results=results, pictures=pictures)
    write_text(index, page)


_REPORT = '<p><a href="report/report.html">The report: every table, published figures, and the failures</a></p>'
_INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>run {name}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .3rem .8rem; border-bottom: 1px solid #d4d4d4; text-align: left; }}
img {{ max-width: 100%; display: block; margin: 1rem 0; }}
</style></head><body>
<h1>Run {name}</h1>
<table><tr><th>page</th><th>executed copy</th><th>seconds</th></tr>{rows}</table>
{report}
{results}
{pictures}
<p><a href="provenance.json">With what this was made</a></p>
</body></html>
"""


def _markdown(text: str) -> str:
    from nbconvert.filters.markdown import markdown2html

    return str(markdown2html(text))


def _title(notebook: Path) -> str:
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "markdown" and cell.source.startswith("# "):
            return str(cell.source.splitlines()[0][2:])
    return notebook.stem


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.0f}"


def _headings(cells: Sequence[Any]) -> dict[int, str]:
    """The heading each cell stands under."""
    headings, current = {}, ""
    for index, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            found = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
            current = found[-1] if found else current
        headings[index] = current
    return headings


def _with_injected(cells: Sequence[Any], parameters: dict[str, Any]) -> list[Any]:
    """The cells as papermill will run them: with parameters it puts a cell after the one that declares them."""
    if not parameters:
        return list(cells)
    place = next((i + 1 for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])), 0)
    return [*cells[:place], nbformat.v4.new_code_cell(), *cells[place:]]


def _clean(executed: Path) -> None:
    """Take widgets and this machine's paths out of an executed notebook."""
    notebook = nbformat.read(executed, as_version=4)
    notebook.metadata.pop("widgets", None)
    for field in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(field, None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [_without_widget(output) for output in cell.outputs if not _is_bar(output)]
    text = nbformat.writes(notebook).replace(f"{REPOSITORY}/", "")
    home = str(Path.home())
    if home != "/":  # the home of some containers, and part of every path and fraction
        text = text.replace(f"{home}/", "~/")
    write_text(executed, text)


def _is_bar(output: Any) -> bool:
    data = output.get("data", {})
    return _WIDGET in data and _BAR.search("".join(data.get("text/plain", ""))) is not None


def _without_widget(output: Any) -> Any:
    if _WIDGET in output.get("data", {}):
        output.data = {"text/plain": "An interactive widget: run this notebook in JupyterLab to use it."}
        output.metadata = {}
    return output
