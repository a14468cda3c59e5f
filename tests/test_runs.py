"""Runs: order, freshness, failures and what they leave, on notebooks of two lines."""

from __future__ import annotations

import asyncio
import io
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
import yaml
from rich.console import Console

from vrag_nb import run_pages, run_plan
from vrag_nb.folder_lock import FolderInUseError, alone_in
from vrag_nb.notebook_files import declared_parameters
from vrag_nb.paths import REPOSITORY
from vrag_nb.profiles import RUNS_FILE, ProfileError
from vrag_nb.run_plan import load_run, plan_run
from vrag_nb.runs import RunError, execute_run

YAML = """
profiles:
  p:
    corpus: {{folder: {here}/corpus}}
    retriever: {{kind: bm25}}
    policy: {{kind: transformers, checkpoint: {here}/agent}}
notebooks:
  01_first: {{inputs: ["{here}/input"], outputs: ["{{results}}/first.txt"]}}
  02_second: {{needs: [01_first]}}
runs:
  r:
    profile: p
    results: {here}/results
    notebooks: {{01_first: {{word: hello}}, 02_second: {{}}}}
"""
WRITES = """from pathlib import Path
Path(results_folder).mkdir(exist_ok=True, parents=True)
Path(results_folder, "first.txt").write_text(word)
print(word)"""
PARAMETERS = 'results_folder: str = "."  # where to\nword: str = "x"  # what'


def write_notebook(folder: Path, name: str, *cells: str, parameters: str = PARAMETERS) -> None:
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    rest = [nbformat.v4.new_code_cell(cell) for cell in cells]
    title = nbformat.v4.new_markdown_cell(f"# The {name}")
    notebook = nbformat.v4.new_notebook(cells=[title, first, *rest])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder.mkdir(exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs file with two notebooks, the second needing the first."""
    monkeypatch.setattr(run_plan, "NOTEBOOKS", tmp_path / "notebooks")
    write_notebook(tmp_path / "notebooks", "01_first", WRITES)
    write_notebook(tmp_path / "notebooks", "02_second", "print('second')")
    (tmp_path / "input").write_text("1")
    (tmp_path / "runs.yaml").write_text(YAML.format(here=tmp_path))
    return tmp_path


def run(world: Path, **options: bool) -> str:
    said = io.StringIO()
    execute_run("r", world / "runs.yaml", console=Console(file=said, width=200), **options)
    return said.getvalue()


def stale(world: Path) -> list[str]:
    steps = plan_run(load_run("r", world / "runs.yaml"), world / "runs.yaml")
    return [step.name for step in steps if not step.fresh]


def test_a_run_leaves_copies_pages_index_and_provenance_and_is_then_up_to_date(world: Path) -> None:
    said = run(world)
    results = world / "results"
    assert re.search(r"\[1/2\] 01_first: done in \d+ s", said)
    assert (results / "first.txt").read_text() == "hello"
    assert "hello" in (results / "01_first.html").read_text()
    assert 'href="02_second.html"' in (results / "index.html").read_text()
    assert "The 01_first" in (results / "index.html").read_text()
    about = json.loads((results / "provenance.json").read_text())
    assert about["notebooks"]["01_first"]["parameters"]["word"] == "hello"
    assert {"commit", "versions", "hardware"} <= about.keys()
    assert (results / ".state" / ".gitignore").read_text() == "*\n"
    assert str(REPOSITORY) not in (results / "01_first.ipynb").read_text()
    assert run(world).count("up to date") == 2


def test_what_changed_and_what_needs_it_is_stale(world: Path) -> None:
    run(world)
    assert stale(world) == []
    (world / "input").write_text("2")
    assert stale(world) == ["01_first", "02_second"]
    (world / "input").write_text("1")
    assert stale(world) == []
    (world / "results" / "first.txt").unlink()
    assert stale(world) == ["01_first"]
    write_notebook(world / "notebooks", "02_second", "print('changed')")
    assert stale(world) == ["01_first", "02_second"]
    file = world / "runs.yaml"
    file.write_text(file.read_text().replace("word: hello", "word: hi"))
    assert stale(world) == ["01_first", "02_second"]


def test_what_parameters_name_counts(world: Path) -> None:
    """Checkpoints that are compared, by their content or by the notebook of the run that makes them; another profile;
    data sets that lie outside of the results."""
    parameters = f'{PARAMETERS}\ncompare: dict = {{}}\nmemory_profile: str = "q"\nrun_folder: str = "{world}/runs"'
    write_notebook(world / "notebooks", "02_second", "print('second')", parameters=parameters)
    file = world / "runs.yaml"
    text = file.read_text().replace(
        "02_second: {}", f"02_second: {{compare: {{own: {world}/weights, made: {world}/results/first.txt}}}}"
    )
    text = text.replace(
        "02_second: {needs: [01_first]}",
        "02_second: {inputs: ['{compare}'], outputs: ['{run_folder}/data'], profiles: [memory_profile]}",
    )
    file.write_text(text.replace("profiles:\n", "profiles:\n  q: {extends: p}\n"))
    for name in ("weights", "runs"):
        (world / name).mkdir()
    (world / "weights" / "config.json").write_text("1")
    (world / "runs" / "data").write_text("1")
    run(world)
    assert stale(world) == []
    (world / "weights" / "config.json").write_text("2")
    assert stale(world) == ["02_second"]
    (world / "weights" / "config.json").write_text("1")
    (world / "runs" / "data").rename(world / "runs" / "gone")
    assert stale(world) == ["02_second"]
    (world / "runs" / "gone").rename(world / "runs" / "data")
    assert stale(world) == []
    file.write_text(file.read_text().replace("q: {extends: p}", "q: {extends: p, legible_only: true}"))
    assert stale(world) == ["02_second"]
    file.write_text(file.read_text().replace("legible_only: true", "legible_only: false"))
    assert stale(world) == []
    file.write_text(file.read_text().replace("word: hello", "word: hi"))
    assert stale(world) == ["01_first", "02_second"]


def test_where_a_document_lies_in_its_folder_counts_and_where_the_folder_lies_does_not(world: Path) -> None:
    file = world / "runs.yaml"
    (world / "docs" / "a").mkdir(parents=True)
    (world / "docs" / "a" / "x.pdf").write_text("1")
    file.write_text(file.read_text().replace(f"{world}/input", f"{world}/docs"))
    run(world)
    (world / "docs" / "a").rename(world / "docs" / "b")  # document ids are made of it
    assert stale(world) == ["01_first", "02_second"]
    (world / "docs" / "b").rename(world / "docs" / "a")
    (world / "moved").mkdir()
    (world / "docs").rename(world / "moved" / "docs")
    file.write_text(file.read_text().replace(f"{world}/docs", f"{world}/moved/docs"))
    assert stale(world) == []


def test_two_runs_do_not_write_into_one_folder(world: Path) -> None:
    with alone_in(world / "results"), pytest.raises(FolderInUseError, match="at work in"):
        run(world)


def test_documents_questions_and_prompt_of_ones_own_count(world: Path) -> None:
    file = world / "runs.yaml"
    own = f"kind: documents, documents: {world}/docs, folder: {world}/corpus"
    text = file.read_text().replace(f"folder: {world}/corpus", own)
    text = text.replace(
        "    policy:",
        f"    evaluation: {{questions: {world}/q.json}}\n    agent: {{prompt: {world}/p.txt}}\n    policy:",
    )
    text = text.replace("02_second: {needs: [01_first]}", '02_second: {inputs: ["{questions}", "{prompt}"]}')
    file.write_text(text.replace(f'inputs: ["{world}/input"]', 'inputs: ["{documents}", "{dev_questions}"]'))
    (world / "docs").mkdir()
    for name in ("docs/a.pdf", "q.json", "p.txt"):
        (world / name).write_text("1")
    run(world)
    assert stale(world) == []
    (world / "docs" / "b.pdf").write_text("1")
    assert stale(world) == ["01_first"]
    (world / "docs" / "b.pdf").unlink()
    for name in ("q.json", "p.txt"):
        (world / name).write_text("2")
        assert stale(world) == ["02_second"]
        (world / name).write_text("1")


def test_nothing_imports_the_recipe() -> None:
    """A notebook that does not name `vrag_nb.nano` is up to date whatever changes there."""
    package = REPOSITORY / "vrag_nb"
    others = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] != "nano"]
    assert [path for path in others if re.search(r"(from|import) vrag_nb\.nano\b", path.read_text())] == []


def test_a_failure_says_cell_and_error_and_leaves_its_copy(world: Path) -> None:
    write_notebook(world / "notebooks", "02_second", "value = 1", "raise ValueError('the sea is dry')")
    with pytest.raises(RunError, match=r"02_second: cell \d+: ValueError: the sea is dry; .*02_second\.failed\.ipynb"):
        run(world)
    failed = nbformat.read(world / "results" / "02_second.failed.ipynb", as_version=4)
    assert any(output.output_type == "error" for cell in failed.cells for output in cell.get("outputs", []))
    assert stale(world) == ["02_second"]
    write_notebook(world / "notebooks", "02_second", "value = 1")
    said = run(world)
    assert "01_first: up to date" in said
    assert not (world / "results" / "02_second.failed.ipynb").exists()


def test_an_interrupted_cell_is_ended_before_its_kernel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way would otherwise be a traceback of a task that nobody waits for."""
    loop, done = asyncio.new_event_loop(), []

    async def interrupt_kernel() -> None:
        done.append("interrupted")

    def interrupted(client: Any) -> None:
        client.under_way = loop.create_task(asyncio.sleep(3600))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_pages, "_END_SECONDS", 0.05)
    monkeypatch.setattr(run_pages, "ensure_event_loop", lambda: loop)
    monkeypatch.setattr(run_pages.PapermillNotebookClient, "papermill_execute_cells", interrupted)
    client = run_pages.LiveClient.__new__(run_pages.LiveClient)
    client.km = SimpleNamespace(interrupt_kernel=interrupt_kernel)
    with pytest.raises(KeyboardInterrupt):
        client.papermill_execute_cells()
    assert done == ["interrupted"]
    assert client.under_way.cancelled()
    loop.close()


def test_an_output_that_was_declared_must_be_there(world: Path) -> None:
    write_notebook(world / "notebooks", "01_first", "pass")
    with pytest.raises(RunError, match=r"without writing .*first\.txt"):
        run(world)


def test_executed_copies_keep_no_widget_and_no_path(world: Path) -> None:
    bar = "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)):\n    pass"
    endless = "for _ in tqdm(iter(range(3)), desc='comparing indexes', unit='index'):\n    pass"
    model = "ipywidgets.HBox([ipywidgets.HTML(), ipywidgets.FloatProgress()])"
    write_notebook(
        world / "notebooks",
        "02_second",
        bar,
        endless,
        "import ipywidgets\nipywidgets.IntSlider()",
        model,
        "import vrag_nb",
        "vrag_nb.__file__",
    )
    run(world)
    text = (world / "results" / "02_second.ipynb").read_text()
    assert "widget-view" not in text
    assert "0%|" not in text
    assert text.count("An interactive widget") == 1, "the slider alone"
    assert "'vrag_nb/__init__.py'" in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "word: hello",
            "wort: hello",
            "run r, notebook 01_first: it has no parameter 'wort'; known: results_folder, word",
        ),
        ("02_second: {}}", "09_none: {}}", r"run r: there is no notebook .*09_none"),
        ("profile: p\n", "profile: q\n", "there is no profile 'q'"),
        ("    results: ", "    result: ", "run r, field results: Field required"),
        ("needs: [01_first]", "need: [01_first]", r"notebook 02_second, field need: Extra"),
        (
            "needs: [01_first]",
            "profiles: [other]",
            r"names 'other', no parameter of the notebook; known: results_folder",
        ),
        ("{results}/first", "{resluts}/first", "names 'resluts'"),
    ],
)
def test_what_does_not_fit_is_named(world: Path, old: str, new: str, words: str) -> None:
    file = world / "runs.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ProfileError, match=words):
        plan_run(load_run("r", file), file)


def test_unknown_runs_and_notebooks_without_parameters_are_named(world: Path) -> None:
    with pytest.raises(ProfileError, match="there is no run 'nope'; known: r"):
        load_run("nope", world / "runs.yaml")
    (world / "runs.yaml").write_text("runs: {r: [01_first]}")
    with pytest.raises(ProfileError, match="its fields should stand there"):
        load_run("r", world / "runs.yaml")
    path = world / "notebooks" / "bare.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), path)
    with pytest.raises(ProfileError, match="no cell tagged"):
        declared_parameters(path)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("n: int = 1\nk: int = 3 +", r"02_second\.ipynb: the cell tagged `parameters`, line 2: .*`name: type = lit"),
        ("k: int = 2*3", r"02_second\.ipynb: parameter k is `2 \* 3`: write the value itself"),
    ],
)
def test_a_parameters_cell_that_is_wrong_is_named(world: Path, parameters: str, words: str) -> None:
    write_notebook(world / "notebooks", "02_second", "pass", parameters=parameters)
    file = world / "runs.yaml"
    with pytest.raises(ProfileError, match=words):
        plan_run(load_run("r", file), file)


@pytest.mark.parametrize("text", ['{"cells": [', "[]", "{}", '{"nbformat": 4, "nbformat_minor": 5}'])
def test_a_notebook_that_cannot_be_read_is_named(world: Path, text: str) -> None:
    (world / "notebooks" / "02_second.ipynb").write_text(text)
    file = world / "runs.yaml"
    with pytest.raises(ProfileError, match=r"02_second\.ipynb"):
        plan_run(load_run("r", file), file)


TYPED = """n: int = 1
x: float = 0.5
flag: bool = True
names: list = []
seeds: list[int] = [0]
rates: dict[str, float] = {}
most: int | None = None
odd: Something[int] = 3"""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("n: four", "run r, notebook 02_second, parameter n: 'four' is no `int`: Input should be a valid integer"),
        ('n: "4"', "parameter n: '4' is no `int`"),
        ("n: 4.5", "parameter n: 4.5 is no `int`"),
        ("x: 1e-4", "parameter x: '1e-4' is no `float`"),  # text to YAML, for want of a point
        ("names: nano", "parameter names: 'nano' is no `list`"),
        ("seeds: [0, one]", r"parameter seeds: .* is no `list\[int\]`"),
        ("rates: {a: b}", r"parameter rates: .* is no `dict\[str, float\]`"),
        ("most: all", r"parameter most: 'all' is no `int \| None`"),
        ("n: 4, x: 1, flag: false, names: [a], seeds: [1, 2], rates: {a: 1}, most: null, odd: anything", None),
        ("most: 3", None),
    ],
)
def test_values_that_are_not_of_a_parameters_type_are_named(world: Path, given: str, words: str | None) -> None:
    write_notebook(world / "notebooks", "02_second", "pass", parameters=TYPED)
    file = world / "runs.yaml"
    file.write_text(file.read_text().replace("02_second: {}}", f"02_second: {{{given}}}}}"))
    with nullcontext() if words is None else pytest.raises(ProfileError, match=words):
        plan_run(load_run("r", file), file)


def test_a_run_may_be_called_by_a_number(world: Path) -> None:
    file = world / "runs.yaml"
    file.write_text(file.read_text().replace("  r:\n", "  2024:\n"))
    assert load_run("2024", file).name == "2024"
    with pytest.raises(ProfileError, match="there is no run 'r'; known: 2024"):
        load_run("r", file)


@pytest.mark.parametrize("name", yaml.safe_load((REPOSITORY / RUNS_FILE).read_text(encoding="utf-8"))["runs"])
def test_shipped_runs_fit_their_notebooks(name: str) -> None:
    run = load_run(name)
    assert [step.name for step in plan_run(run)] == list(run.notebooks)
