"""What a run is, and which of its notebooks are up to date.

A run of papermill_runs.yaml names a profile, a results folder and notebooks with their parameters. What a notebook
reads and writes stands under `notebooks` in the same file, with placeholders for the profile's files (`_files_of`) and
for the notebook's own parameters; nothing here knows a notebook or a parameter by name, but for the three that every
notebook may have.

**Up to date** is a notebook whose executed copy, page and declared outputs exist and whose key is that of its last
execution. The key is a checksum of the notebook's source, its parameters, the profile, the package's sources, the lock,
the declared inputs' content, and the keys of the notebooks it needs or whose outputs it reads. Nothing is imported to
find out, so a run with nothing to do takes a second or two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from vrag_nb.notebook_files import declared_parameters, declared_types, read_notebook
from vrag_nb.paths import REPOSITORY, project_path, shown_path
from vrag_nb.profile_files import ProfileError, first_problem, read_section
from vrag_nb.profile_parts import Part
from vrag_nb.profiles import RUNS_FILE, Profile, load_profile
from vrag_nb.servers.declared import ServerName, ServerPart, check_servers, needs

NOTEBOOKS = REPOSITORY / "notebooks"
STATE = ".state"
# Sources that no notebook's result depends on.
_NO_PART = (
    "__main__.py",
    "commands/",
    "notebook_files.py",
    "runs.py",
    "run_plan.py",
    "run_pages.py",
    "servers/",
    "retrieval/server.py",
    "retrieval/serving/",
    "display/landing.py",
)
_SOURCES = (".py", ".txt", ".js", ".css", ".html")


class NotebookPart(Part):
    """What a notebook depends on and leaves behind.

    inputs, outputs: files and folders, with the names of `_files_of` and the notebook's parameters filled in; a
    parameter that is a dict stands alone and means all its values. profiles: parameters that name another profile.
    needs: notebooks of the same run whose results this one reads.
    """

    inputs: list[str] = Field(default_factory=list)
    outputs: list[str] = Field(default_factory=list)
    profiles: list[str] = Field(default_factory=list)
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
        check_servers(run.servers, run.notebooks, server_places(profile, run, path), profile.model_dump())
    except ValueError as error:
        raise ProfileError(f"{shown_path(path)}: run {run.name}, {error}") from None
    declared = _notebook_parts(path)
    keys: dict[str, str] = {}
    steps: list[Step] = []
    for name, given in run.notebooks.items():
        source = NOTEBOOKS / f"{name}.ipynb"
        if not source.is_file():
            raise ProfileError(f"{shown_path(path)}: run {run.name}: there is no notebook {shown_path(source)}")
        part = declared.get(name, NotebookPart())
        parameters = _parameters(run, name, given, source, path)
        places = {**declared_parameters(source), **parameters, **_files_of(profile, run)}
        needed: list[Any] = [keys[other] for other in part.needs if other in keys]
        needed += [server.command for _, server in sorted(run.servers.items()) if needs(server, name)]
        needed += [one.model_dump(mode="json") for one in _other_profiles(part.profiles, places, path)]
        read = _fill(part.inputs, places)  # what the run makes counts by how: it need not be there yet
        made = {path: step.key for step in steps for path in read if any(map(path.is_relative_to, step.outputs))}
        inputs, needed = [path for path in read if path not in made], [*needed, *made.values()]
        keys[name] = _key(source, parameters, profile, inputs, needed)
        outputs = _fill(part.outputs, places)
        steps.append(Step(name, source, parameters, keys[name], run.folder, outputs))
    return steps


def _other_profiles(names: Iterable[str], places: Mapping[str, Any], path: Path) -> list[Profile]:
    """The profiles that these parameters name, the empty ones left out."""
    for name in names:
        if name not in places:
            raise ProfileError(f"`profiles` names {name!r}, no parameter of the notebook; known: {', '.join(places)}")
    return [load_profile(places[name], path) for name in names if places[name]]


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
    known = declared_types(source)
    unknown = [parameter for parameter in given or {} if parameter not in known]
    if unknown:
        raise ProfileError(
            f"{shown_path(path)}: run {run.name}, notebook {name}: it has no parameter {unknown[0]!r}; "
            f"known: {', '.join(known)}"
        )
    for parameter, value in (given or {}).items():
        try:
            TypeAdapter(known[parameter][1]).validate_python(value, strict=True)  # "4" stays text: no number
        except ValidationError as error:
            raise ProfileError(
                f"{shown_path(path)}: run {run.name}, notebook {name}, parameter {parameter}: {value!r} is no "
                f"`{known[parameter][0]}`: {error.errors()[0]['msg']}"
            ) from None
    usual = {"profile_name": run.profile, "profiles_file": shown_path(path), "results_folder": run.results}
    return {**{key: value for key, value in usual.items() if key in known}, **(given or {})}


def _fill(patterns: Iterable[str], places: Mapping[str, Any]) -> list[Path]:
    """Declared inputs or outputs as paths; a checkpoint that is no folder here stays a name, and is no file."""
    try:
        return [project_path(path) for pattern in patterns for path in _filled(pattern, places) if path]
    except (KeyError, ValueError) as error:
        raise ProfileError(f"an input or output names {error}; known: {', '.join(places)}") from None


def _filled(pattern: str, places: Mapping[str, Any]) -> list[str]:
    several = places.get(pattern[1:-1])
    return [str(one) for one in several.values()] if isinstance(several, dict) else [pattern.format_map(places)]


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


def server_places(profile: Profile, run: Run, path: Path) -> dict[str, Path | str]:
    """What a server's placeholders mean: a checkpoint's folder with its whole path, a hub id as it is. `model`: the
    name that the profile's policy asks an endpoint for. `max_pixels`: of an image that the profile's agent shows."""
    about: dict[str, Path | str] = {"profile": run.profile, "profiles_file": path, "model": profile.policy.checkpoint}
    about["max_pixels"] = str(profile.agent.max_pixels)
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
        code = [path for path in code if not path.relative_to(package).as_posix().startswith("nano/")]
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
