"""The landing notebook and what it lists: links that exist and no others, runs and their state."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
from safetensors.numpy import save_file
from test_runs import WRITES, YAML, write_notebook

from vrag_nb import run_plan
from vrag_nb.display import landing
from vrag_nb.paths import REPOSITORY
from vrag_nb.run_plan import load_run, plan_run

TARGET = re.compile(r"\]\(([^)]+)\)")
FIRST = "# 01 · First | things\n\nWords.\n\n**Reads** the `input`,\nall of it. **Writes** `first.txt`.\n\nMore."


def targets(table: str) -> list[str]:
    return TARGET.findall(table)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two notebooks and a run, nothing executed."""
    folder = tmp_path / "notebooks"
    monkeypatch.setattr(run_plan, "NOTEBOOKS", folder)
    write_notebook(folder, "01_first", WRITES)
    write_notebook(folder, "02_second", "print('second')")
    write_notebook(folder, "index", "print('no number')")
    notebook = nbformat.read(folder / "01_first.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(FIRST))
    nbformat.write(notebook, folder / "01_first.ipynb")
    (tmp_path / "agent").mkdir()
    (tmp_path / "input").write_text("x")
    broken = "  broken: {profile: none, results: r, notebooks: {x: {}}}\n"
    (tmp_path / "runs.yaml").write_text(YAML.format(here=tmp_path) + broken)
    return tmp_path


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def executed(world: Path) -> None:
    """What an execution of the run's first notebook leaves."""
    run = load_run("r", world / "runs.yaml")
    [first, _] = plan_run(run, world / "runs.yaml")
    for path in (first.executed, first.page, *first.outputs):
        put(path)
    put(first.state, json.dumps({"key": first.key, "seconds": 1}))


def test_notebooks_are_listed_as_they_describe_themselves(world: Path) -> None:
    first, second = landing.openings(world)
    assert (first.title, first.reads, first.writes) == (
        "01 · First | things",
        "the `input`,\nall of it.",
        "`first.txt`.",
    )
    assert (second.title, second.reads, second.writes) == ("The 02_second", "", "")
    table = landing.notebook_table(world)
    assert targets(table) == ["01_first.ipynb", "02_second.ipynb"]
    rows = table.splitlines()
    assert len(rows) == 4
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}, "a bar in a title must not end its cell"


def test_runs_tell_what_is_up_to_date(world: Path) -> None:
    one, broken = landing.run_states(world / "runs.yaml")
    assert (one.state, one.profile, one.steps) == ("not executed", "p", ("01_first", "02_second"))
    assert "there is no profile 'none'" in broken.state
    executed(world)
    assert landing.run_states(world / "runs.yaml")[0].state == "1 up to date, 1 not executed"
    put(world / "input", "changed")
    assert landing.run_states(world / "runs.yaml")[0].state == "1 out of date, 1 not executed"


def test_a_notebook_that_cannot_be_read_is_said_and_the_others_are_shown(world: Path) -> None:
    (world / "notebooks" / "02_second.ipynb").write_text('{"cells": [')
    assert "02_second (cannot be read)" in landing.notebook_table(world)
    state, _ = landing.run_states(world / "runs.yaml")
    assert "02_second.ipynb cannot be read as a notebook" in state.state


def test_only_results_that_are_there_are_linked(world: Path) -> None:
    states = landing.run_states(world / "runs.yaml")
    assert targets(landing.run_table(states, world)) == []
    assert "make run" in landing.results_table(world)
    executed(world)
    put(world / "results" / "r" / "02_second.ipynb")
    put(world / "results" / "r" / "report" / "report.html")
    put(world / "results" / "scratch" / "r" / "01_first.ipynb")
    put(world / "results" / "index.html")
    assert targets(landing.run_table(states, world)) == ["../results/index.html"]
    linked = targets(landing.results_table(world))
    assert linked == ["../results/r/02_second.ipynb", "../results/r/report/report.html"]
    assert all((world / "notebooks" / target).exists() for target in linked)


def test_models_are_counted_by_their_weights(world: Path) -> None:
    assert "notebook 00" in landing.model_table(world)
    put(world / "data/models/tiny/config.json", json.dumps({"architectures": ["Tiny"]}))
    weights = {"a": np.zeros((1000, 200), np.float16), "b": np.zeros(100_000, np.float16)}
    save_file(weights, world / "data/models/tiny/m.safetensors")
    assert landing.model_table(world).splitlines()[-1].endswith("| Tiny | 0.3 M | 1 MB |")


def test_links_are_relative_and_quoted(tmp_path: Path) -> None:
    assert landing.link("a|b", tmp_path / "x" / "a b.md", tmp_path / "n") == r"[a\|b](../x/a%20b.md)"
    assert landing.table(("a",), []) == ""


def test_the_repositorys_own_tables_link_what_exists() -> None:
    tables = [landing.notebook_table(), landing.results_table(), landing.model_table(), landing.document_table()]
    linked = [target for table in tables for target in targets(table)]
    assert {"01_corpus_prep.ipynb", "../README.md", "../docs/own_documents.md", "../docs/extending.md"} <= set(linked)
    assert {"../results/README.md", "../benchmarks/README.md"} <= set(linked)
    assert all((REPOSITORY / "notebooks" / target).exists() for target in linked)


@pytest.mark.notebook
def test_the_notebook_runs_and_ends_with_what_it_found(tmp_path: Path) -> None:
    out = tmp_path / "index.ipynb"
    papermill.execute_notebook(
        REPOSITORY / "notebooks/index.ipynb",
        out,
        kernel_name="python3",
        cwd=REPOSITORY / "notebooks",
        progress_bar=False,
    )
    cells = [cell for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"]
    said = json.loads("".join(cells[-1].outputs[0].text))
    assert said["notebooks"] == len(list((REPOSITORY / "notebooks").glob("[0-9]*.ipynb")))
    assert said["runs"] >= 8
    shown = "".join(output.data["text/markdown"] for cell in cells for output in cell.outputs if "data" in output)
    assert "03_agent_rollout.ipynb" in shown
    assert "vrag_nb run nano-eval" in shown


def test_make_lab_opens_it() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("\nlab: ")[2].splitlines()[1]
    assert "jupyter lab" in recipe
    assert (REPOSITORY / recipe.split()[-1]).is_file()
    assert recipe.endswith("notebooks/index.ipynb")
