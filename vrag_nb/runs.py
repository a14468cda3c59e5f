"""Runs: notebooks executed in order, headless, skipping what is up to date.

    python -m vrag_nb run nano            # or: execute_run("nano")

A run of papermill_runs.yaml names a profile, a results folder and notebooks with their parameters (`run_plan`, which
also says what is up to date). Each notebook is executed by papermill into `{results}/{notebook}.ipynb` and written as a
page, `{notebook}.html`; `index.html` links them and shows the results, `provenance.json` says with what they were made.

**Interrupted** runs go on: finished notebooks are up to date, and the notebook that was cut short resumes through the
functions it calls (corpus prep, indexing and rollouts keep what they have). A failed notebook leaves its executed copy,
with the traceback, as `{notebook}.failed.ipynb`.

**Servers** that a run declares (`servers`) run while the notebooks that need them are executed. A notebook whose server
ended meanwhile has failed, whatever the notebook made of it, and the server is named as the cause.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from vrag_nb.folder_lock import alone_in
from vrag_nb.paths import project_path, shown_path
from vrag_nb.profiles import RUNS_FILE, load_profile
from vrag_nb.run_plan import Step, load_run, plan_run, server_places
from vrag_nb.servers.process import ServerError
from vrag_nb.servers.started import Servers


class RunError(RuntimeError):
    """A notebook or a server that failed.

    The text names the notebook, the cell, the error and the executed copy; or the server and its last words.
    """


def execute_run(
    name: str, file: Path | str | None = None, *, force: bool = False, console: Console | None = None
) -> Path:
    """Execute what is not up to date (everything with `force`) and return the path of index.html.

    Raises ProfileError for a run that does not fit, RunError for a notebook or server that fails; the notebooks before
    it are kept. Its servers are stopped, whatever happens. Raises FolderInUseError while another run writes there.
    """
    from vrag_nb import run_pages  # papermill takes a second to import, and there may be nothing to execute

    console = console or Console()
    run = load_run(name, file)
    steps = plan_run(run, file)
    path = project_path(file or RUNS_FILE)
    places = server_places(load_profile(run.profile, path), run, path)
    console.print(f"[bold]run {run.name}[/bold]: {len(steps)} notebooks into {shown_path(run.folder)}")
    executed = False
    with alone_in(run.folder), Servers(run.servers, places, run.folder / "servers", console) as servers:
        for number, step in enumerate(steps, start=1):
            head = f"[{number}/{len(steps)}] {step.name}"
            if step.fresh and not force:
                console.print(f"{head}: up to date", markup=False, highlight=False)
                continue
            try:
                servers.provide(step.name)
            except ServerError as error:
                raise RunError(f"{step.name} could not begin: {error}") from None
            execute_step(step, console, head, servers.problem)
            executed = True
            console.print(f"{head}: done in {step.seconds:.0f} s", markup=False, highlight=False)
    index = run.folder / "index.html"
    if executed or not index.is_file():
        run_pages.write_provenance(run, steps)
        run_pages.write_index(run, steps, index)
    return index


def execute_step(
    step: Step, console: Console, head: str = "", server_problem: Callable[[], str | None] = lambda: None
) -> None:
    """Execute one notebook and write its page and its state. Raises RunError.

    server_problem: asked when the notebook is over; what it tells of a server has failed the notebook.
    """
    from vrag_nb import run_pages

    step.folder.mkdir(parents=True, exist_ok=True)
    _make_state_folder(step.state.parent)
    step.state.unlink(missing_ok=True)  # whatever happens now, the last execution no longer counts
    failed = step.folder / f"{step.name}.failed.ipynb"
    failed.unlink(missing_ok=True)
    partial = step.state.parent / f"{step.name}.partial.ipynb"
    started = time.perf_counter()
    problem = run_pages.execute_notebook(step.source, partial, step.parameters, console, head or step.name)
    cause = server_problem()
    if problem is not None or cause is not None:
        if partial.is_file():
            partial.replace(failed)
        said = "\n".join(text for text in (cause, problem) if text)
        raise RunError(f"{step.name}: {said}; the executed copy with the traceback: {shown_path(failed)}")
    missing = [shown_path(path) for path in step.outputs if not path.exists()]
    if missing:
        raise RunError(f"{step.name} ended without writing {missing[0]}, an output papermill_runs.yaml names")
    partial.replace(step.executed)
    run_pages.write_page(step.executed, step.page)
    seconds = round(time.perf_counter() - started, 1)
    step.state.write_text(json.dumps({"key": step.key, "seconds": seconds}), encoding="utf-8")


def _make_state_folder(folder: Path) -> None:
    """State is this machine's: a clone must not take another one's work for its own, so git is told to leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
