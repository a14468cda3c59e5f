"""Runs: notebooks executed in order, headless, skipping what is up to date.

    python -m vrag_nb run nano            # or: execute_run("nano")

A run of papermill_runs.yaml names a profile, a results folder and notebooks with their parameters. Each notebook is
executed by papermill into `{results}/{notebook}.ipynb` and written as a page, `{notebook}.html`; `index.html` links
them and shows the results, `provenance.json` says with what they were made.

**Up to date** is a notebook whose executed copy, page and declared outputs exist and whose key is that of its last
execution. The key is a checksum of the notebook's source, its parameters, the profile, the package's sources, the lock,
the declared inputs' content, and the keys of the notebooks it needs. Nothing is imported to find out, so a run with
nothing to do takes a second or two.

**Interrupted** runs go on: finished notebooks are up to date, and the notebook that was cut short resumes through the
functions it calls (corpus prep, indexing and rollouts keep what they have). A failed notebook leaves its executed copy,
with the traceback, as `{notebook}.failed.ipynb`.

**Servers** that a run declares (`servers`) run while the notebooks that need them are executed. A notebook whose server
ended meanwhile has failed, whatever the notebook made of it, and the server is named as the cause.
"""

from __future__ import annotations

import ast
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from pydantic import Field, TypeAdapter, ValidationError
from rich.console import Console

from vrag_nb.folder_lock import alone_in
from vrag_nb.paths import REPOSITORY, project_path, shown_path
from vrag_nb.profile_files import ProfileError, first_problem, read_section
from vrag_nb.profile_parts import Part
from vrag_nb.profiles import RUNS_FILE, Profile, load_profile
from vrag_nb.servers.declared import ServerName, ServerPart, check_servers, needs
from vrag_nb.servers.process import ServerError
from vrag_nb.servers.started import Servers

NOTEBOOKS = REPOSITORY / "notebooks"
STATE = ".state"
# Sources that no notebook's result depends on.
_NO_PART = (
    "__main__.py",
    "commands/",
    "runs.py",
    "run_pages.py",
    "servers/",
    "retrieval/server.py",
    "retrieval/serving/",
    "display/landing.py",
)
_TRAINING = frozenset({"05_sft", "06_grpo"})  # notebooks whose checkpoints others name
_PLAIN_TYPES: Mapping[str, Any] = {one.__name__: one for one in (bool, int, float, str, list, dict)}
_SOURCES = (".py", ".txt", ".js", ".css", ".html")


class RunError(RuntimeError):
    """A notebook or a server that failed.

    The text names the notebook, the cell, the error and the executed copy; or the server and its last words.
    """


class NotebookPart(Part):
    """What a notebook depends on and leaves behind, with the names of `_files_of` filled in.

    needs: notebooks of the same run whose results this one reads.
    """

    inputs: list[str] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    needs: list[str] = Field(default_factory=list)


class Run(Part):
    """A profile's notebooks in order, each with the parameters it is given, where the results go, and the servers that
    notebooks need."""

    name: str
    profile: str
    results: str
    notebooks: dict[str, dict[str, Any]] = Field(min_length=1)
    servers: dict[ServerName, ServerPart] = Field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return project_path(self.results)


@dataclass(frozen=True)
class Step:
    """One notebook of a run, ready to be executed: its source, all its parameters, its key and its outputs."""

    name: str
    source: Path
    parameters: dict[str, Any]
    key: str
    folder: Path
    outputs: list[Path]

    @property
    def executed(self) -> Path:
        return self.folder / f"{self.name}.ipynb"

    @property
    def page(self) -> Path:
        return self.folder / f"{self.name}.html"

    @property
    def state(self) -> Path:
        return self.folder / STATE / f"{self.name}.json"

    @property
    def seconds(self) -> float | None:
        """What its last execution took; None when there was none."""
        return _read_state(self.state).get("seconds")

    @property
    def fresh(self) -> bool:
        there = all(path.exists() for path in (self.executed, self.page, *self.outputs))
        return there and _read_state(self.state).get("key") == self.key


def load_run(name: str, file: Path | str | None = None) -> Run:
    """The run `name` of a YAML file. Raises ProfileError naming the file and the field."""
    path = project_path(file or RUNS_FILE)
    runs = read_section(path, "runs")
    if name not in runs:
        raise ProfileError(f"{shown_path(path)}: there is no run {name!r}; known: {', '.join(runs)}")
    given = runs[name] or {}
    if not isinstance(given, dict):
        raise ProfileError(f"{shown_path(path)}: run {name} is {given!r}: its fields should stand there")
    try:
        return Run.model_validate({**given, "name": name})
    except ValidationError as error:
        raise ProfileError(f"{shown_path(path)}: run {name}, {first_problem(error)}") from None


def plan_run(run: Run, file: Path | str | None = None) -> list[Step]:
    """The steps of a run. Raises ProfileError for a notebook, parameter, server or placeholder that does not exist."""
    path = project_path(file or RUNS_FILE)
    profile = load_profile(run.profile, path)
    try:
        check_servers(run.servers, run.notebooks, _places(profile, run, path), profile.model_dump())
    except ValueError as error:
        raise ProfileError(f"{shown_path(path)}: run {run.name}, {error}") from None
    declared = _notebook_parts(path)
    keys: dict[str, str] = {}
    steps = []
    for name, given in run.notebooks.items():
        source = NOTEBOOKS / f"{name}.ipynb"
        if not source.is_file():
            raise ProfileError(f"{shown_path(path)}: run {run.name}: there is no notebook {shown_path(source)}")
        part = declared.get(name, NotebookPart())
        parameters = _parameters(run, name, given, source, path)
        everything = {**declared_parameters(source), **parameters}
        needed: list[Any] = [keys[other] for other in part.needs if other in keys]
        needed += [server.command for _, server in sorted(run.servers.items()) if needs(server, name)]
        if other := everything.get("memory_profile"):
            needed.append(load_profile(other, path).model_dump(mode="json"))
        inputs = [*_fill(part.inputs, profile, run), *_named_checkpoints(run, everything)]
        keys[name] = _key(source, parameters, profile, inputs, needed)
        outputs = _fill(part.outputs, profile, run, everything.get("run_folder", ""))
        steps.append(Step(name, source, parameters, keys[name], run.folder, outputs))
    return steps


def _named_checkpoints(run: Run, parameters: Mapping[str, Any]) -> list[Path]:
    """Folders of weights that parameters name; those that the run itself trains come of the notebooks that do."""
    if _TRAINING & run.notebooks.keys():
        return []
    compared = parameters.get("compare")
    named = [*(compared.values() if isinstance(compared, dict) else []), parameters.get("start")]
    folders = [project_path(one) for one in named if isinstance(one, str) and one]
    return [folder for folder in folders if folder.is_dir()]


def execute_run(
    name: str, file: Path | str | None = None, *, force: bool = False, console: Console | None = None
) -> Path:
    """Execute what is not up to date (everything with `force`) and return the path of index.html.

    Raises ProfileError for a run that does not fit, RunError for a notebook or server that fails; the notebooks before
    it are kept. Its servers are stopped, whatever happens. Raises FolderInUseError while another run writes there.
    """
    from vrag_nb import run_pages

    console = console or Console()
    run = load_run(name, file)
    steps = plan_run(run, file)
    path = project_path(file or RUNS_FILE)
    places = _places(load_profile(run.profile, path), run, path)
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


def declared_parameters(notebook: Path) -> dict[str, Any]:
    """The names a notebook's `parameters` cell sets, and to what.

    Raises ProfileError naming the notebook when it cannot be read, has no such cell, or sets what is no literal.
    """
    values = {}
    for name, (_, value) in _declarations(notebook).items():
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            raise ProfileError(
                f"{shown_path(notebook)}: parameter {name} is `{ast.unparse(value)}`: write the value itself there, "
                "a literal"
            ) from None
    return values


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook. Raises ProfileError naming the file that is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (OSError, ValueError, AttributeError, KeyError, TypeError, nbformat.ValidationError) as error:
        raise ProfileError(
            f"{shown_path(path)} cannot be read as a notebook ({' '.join(str(error).split())[:100]}): "
            "save it again, or take it back from git"
        ) from None


def _declarations(notebook: Path) -> dict[str, tuple[ast.expr, ast.expr]]:
    """The annotation and the value of each name that a notebook's `parameters` cell sets."""
    for cell in read_notebook(notebook).cells:
        if "parameters" not in cell.metadata.get("tags", []):
            continue
        try:
            body = ast.parse(cell.source).body
        except SyntaxError as error:
            raise ProfileError(
                f"{shown_path(notebook)}: the cell tagged `parameters`, line {error.lineno}: {error.msg}: "
                "every line there is `name: type = literal`"
            ) from None
        return {
            node.target.id: (node.annotation, node.value)
            for node in body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        }
    raise ProfileError(f"{shown_path(notebook)} has no cell tagged `parameters`")


def _type(annotation: ast.expr) -> Any:
    """The type that an annotation of plain types, lists, dicts and `|` means, nothing evaluated; Any for others."""
    match annotation:
        case ast.Constant(value=None):
            return type(None)
        case ast.Name(id=name):
            return _PLAIN_TYPES.get(name, Any)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left) | _type(right)
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type(item)]  # type: ignore[misc]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, item])):
            return dict[_type(key), _type(item)]  # type: ignore[misc]
    return Any


def _notebook_parts(path: Path) -> dict[str, NotebookPart]:
    parts = {}
    for name, fields in read_section(path, "notebooks").items():
        try:
            parts[name] = NotebookPart.model_validate(fields or {})
        except ValidationError as error:
            raise ProfileError(f"{shown_path(path)}: notebook {name}, {first_problem(error)}") from None
    return parts


def _parameters(run: Run, name: str, given: Mapping[str, Any], source: Path, path: Path) -> dict[str, Any]:
    """The run's own parameters for a notebook and, where the notebook has them, those every notebook is given."""
    known = _declarations(source)
    unknown = [parameter for parameter in given or {} if parameter not in known]
    if unknown:
        raise ProfileError(
            f"{shown_path(path)}: run {run.name}, notebook {name}: it has no parameter {unknown[0]!r}; "
            f"known: {', '.join(known)}"
        )
    for parameter, value in (given or {}).items():
        try:
            TypeAdapter(_type(known[parameter][0])).validate_python(value, strict=True)  # "4" stays text: no number
        except ValidationError as error:
            raise ProfileError(
                f"{shown_path(path)}: run {run.name}, notebook {name}, parameter {parameter}: {value!r} is no "
                f"`{ast.unparse(known[parameter][0])}`: {error.errors()[0]['msg']}"
            ) from None
    usual = {"profile_name": run.profile, "profiles_file": shown_path(path), "results_folder": run.results}
    return {**{key: value for key, value in usual.items() if key in known}, **(given or {})}


def _fill(patterns: Iterable[str], profile: Profile, run: Run, run_folder: str = "") -> list[Path]:
    """Declared inputs or outputs as paths; a checkpoint that is no folder here stays a name, and is no file.

    run_folder: where the notebook keeps data sets and checkpoints.
    """
    places = {**_files_of(profile, run), "run_folder": run_folder}
    try:
        filled = [pattern.format_map(places) for pattern in patterns]
        return [project_path(path) for path in filled if path]
    except (KeyError, ValueError) as error:
        raise ProfileError(f"an input or output names {error}; known: {', '.join(places)}") from None


def _files_of(profile: Profile, run: Run) -> dict[str, Path | str]:
    """What placeholders mean. Somebody's own documents, question files and prompt are nothing where the profile has
    none: generated ones come of the notebook that writes the corpus."""
    learning = profile.learning
    return {
        "documents": profile.documents_folder if profile.corpus.documents else "",
        "questions": _own_file(profile, profile.evaluation.questions),
        "train_questions": _own_file(profile, learning.train_questions) if learning else "",
        "dev_questions": _own_file(profile, learning.dev_questions) if learning else "",
        "prompt": profile.agent.prompt if Path(profile.agent.prompt).suffix else "",
        "corpus": profile.corpus_folder,
        "index": profile.index_folder,
        "retriever": profile.retriever.checkpoint or profile.retriever.kind,
        "policy": profile.policy.checkpoint,
        "base": learning.base if learning else "",
        "results": run.folder,
    }


def _own_file(profile: Profile, name: str) -> Path | str:
    """A question file that does not lie in the corpus, where `Profile.questions` looks first."""
    inside = profile.corpus_folder / name  # a whole path stays what it is
    path = inside if inside.is_file() else project_path(name)
    return "" if path.is_relative_to(profile.corpus_folder) or not path.is_file() else path


def _places(profile: Profile, run: Run, path: Path) -> dict[str, Path | str]:
    """What a server's placeholders mean: a checkpoint's folder with its whole path, a hub id as it is. `model`: the
    name that the profile's policy asks an endpoint for."""
    about: dict[str, Path | str] = {"profile": run.profile, "profiles_file": path, "model": profile.policy.checkpoint}
    return {**_files_of(profile, run), **profile.checkpoint_folders, **about}


def _key(source: Path, parameters: Mapping[str, Any], profile: Profile, inputs: list[Path], needed: list[Any]) -> str:
    notebook = read_notebook(source)
    cells = [(cell.cell_type, cell.source) for cell in notebook.cells]
    uses_training = any("vrag_nb.nano" in text for _, text in cells)
    about = [cells, parameters, profile.model_dump(mode="json"), needed, [path.name for path in inputs]]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    package = REPOSITORY / "vrag_nb"
    code = [path for path in sorted(package.rglob("*")) if path.suffix in _SOURCES]
    code = [path for path in code if not path.relative_to(package).as_posix().startswith(_NO_PART)]
    if not uses_training:  # the recipe that made the models does not touch what they do
        code = [path for path in code if path.relative_to(package).parts[0] != "nano"]
    own = [(REPOSITORY, path) for path in (*code, REPOSITORY / "requirements.lock")]
    for top, path in [*own, *((given, file) for given in inputs for file in _files(given))]:
        if path.is_file():
            # below the input, since documents are named by their sub-folders; where the input lies does not count
            digest.update(path.relative_to(top).as_posix().encode("utf-8", "surrogateescape") + b"\0")
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _make_state_folder(folder: Path) -> None:
    """State is this machine's: a clone must not take another one's work for its own, so git is told to leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
