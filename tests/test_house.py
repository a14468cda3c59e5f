"""The house: dependencies in step, a lock without addresses, notebooks by the conventions, the Makefile's targets."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS_IN_LOCK = ("dev", "tables", "ocr")


def locked() -> dict[str, Version]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line.partition(" ;")[0].split("==") for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(name): Version(version.strip()) for name, version in pins}


def wanted() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"]
    return [Requirement(text) for text in [*PROJECT["dependencies"], *(r for e in EXTRAS_IN_LOCK for r in extras[e])]]


@pytest.mark.parametrize("requirement", wanted(), ids=lambda requirement: requirement.name)
def test_every_dependency_is_locked_at_a_version_it_allows(requirement: Requirement) -> None:
    version = locked().get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is in pyproject.toml and not in requirements.lock: run `make lock`"
    assert requirement.specifier.contains(version, prereleases=True), f"the lock has {requirement.name} {version}"


def test_the_lock_has_exact_public_versions_and_no_address() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"https?://|file:|--index|--find-links|--extra-index|@", text)
    assert len(locked()) > 100
    assert all(version.local is None for version in locked().values()), (
        "a build of one machine (+cu..., +cpu) is locked"
    )


def test_the_gpu_extra_stays_out_of_the_lock() -> None:
    gpu = {canonicalize_name(Requirement(text).name) for text in PROJECT["optional-dependencies"]["gpu"]}
    assert not gpu & locked().keys()


def test_the_gpu_extra_has_a_vllm_that_trl_supports_and_no_second_faiss() -> None:
    gpu = {one.name: one for one in map(Requirement, PROJECT["optional-dependencies"]["gpu"])}
    assert "faiss-gpu" not in gpu, "it writes the same files as faiss-cpu"
    trl = importlib.util.find_spec("trl")
    assert trl is not None
    assert trl.origin is not None
    source = Path(trl.origin).with_name("import_utils.py").read_text(encoding="utf-8")
    found = re.search(r'Version\("([\d.]+)"\) <= _vllm_base_version <= Version\("([\d.]+)"\)', source)
    assert found is not None
    first, last = sorted(Version(one.version) for one in gpu["vllm"].specifier)
    assert Version(found[1]) <= first < last <= Version(found[2])


def test_environment_yml_installs_the_lock_on_a_python_the_project_allows() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(entry for entry in environment["dependencies"] if str(entry).startswith("python="))
    assert Version(python.removeprefix("python=")) in Requirement(f"x{PROJECT['requires-python']}").specifier
    pip = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pip == ["-r requirements.lock", "-e ."]


def test_the_makefile_has_its_targets_and_ci_calls_make_test() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets >= {"run", "test", "lab", "serve", "bench", "lint", "realdocs", "nano-eval", "report"}
    ci = ROOT / ".ci" / "run"
    assert ci.stat().st_mode & 0o100, ".ci/run must be executable"
    assert "make test" in ci.read_text()


@pytest.mark.parametrize("target", ["run", "test", "lab", "serve", "bench", "lint", "nano-eval"])
def test_targets_are_sound(target: str, tmp_path: Path) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ".venv/bin/python -m" in done.stdout or "benchmarks" in done.stdout


def test_realdocs_asks_for_its_folder() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("realdocs: ")[2]
    assert "DIR=path" in recipe.splitlines()[1]


def test_the_licence_is_apache() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]


def packages() -> list[str]:
    """In the order of the README's tree."""
    tree = (ROOT / "README.md").read_text().partition("\nvrag_nb/\n")[2].partition("\n```")[0]
    return re.findall(r"^  (\w+)/ ", tree, re.MULTILINE)


def imported(module: Path) -> set[str]:
    """The packages and modules of `vrag_nb` that a module imports, in functions as well."""
    names: list[str] = []
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.relative_to(ROOT)} imports by a relative name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("vrag_nb.")}


def test_the_readme_lists_every_package() -> None:
    assert sorted(packages()) == sorted(path.parent.name for path in (ROOT / "vrag_nb").glob("*/__init__.py"))


@pytest.mark.parametrize("package", packages())
def test_a_package_imports_only_what_stands_above_it_in_the_readme(package: str) -> None:
    order = packages()
    later = set(order[order.index(package) + 1 :])
    modules = sorted((ROOT / "vrag_nb" / package).rglob("*.py"))
    against = {str(path.relative_to(ROOT)): sorted(found) for path in modules if (found := imported(path) & later)}
    assert not against, f"data flows one way, in the order of the README's tree: {against}"


def test_what_packages_share_imports_none_of_the_last() -> None:
    last = {"evaluation", "nano", "display", "commands"}
    modules = [path for path in (ROOT / "vrag_nb").glob("*.py") if path.name != "__main__.py"]
    against = {path.name: sorted(found) for path in modules if (found := imported(path) & last)}
    assert not against, f"profiles, records and the like are what these are built on: {against}"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    found = nbformat.read(request.param, as_version=4)
    nbformat.validate(found)
    return found


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_parameters_come_first_and_are_annotated_literals_with_a_comment(notebook: nbformat.NotebookNode) -> None:
    cell = code_cells(notebook)[0]
    assert cell.metadata.get("tags") == ["parameters"]
    for node, line in zip(ast.parse(cell.source).body, cell.source.splitlines(), strict=True):
        assert isinstance(node, ast.AnnAssign), f"{line!r} is not `name: type = literal`"
        assert node.value is not None
        ast.literal_eval(node.value)
        assert re.search(r"  # \S", line), f"{line!r} has no comment that says what it is"


def test_notebooks_are_clean_and_thin(notebook: nbformat.NotebookNode) -> None:
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    for cell in code_cells(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        assert not any(isinstance(node, kinds) for node in ast.walk(ast.parse(cell.source))), (
            f"code belongs in the package, not in a cell:\n{cell.source}"
        )


def test_nothing_committed_names_a_machine() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = [ROOT / name for name in done.stdout.splitlines() if not name.startswith("data/tables/")]
    assert not (done.returncode and (ROOT / ".git").exists()), done.stderr
    if not files:
        pytest.skip("not a git checkout")
    home = re.compile(r"(?<![\w.])/(?:(?:home|Users)/[a-z]\w+|root|tmp/\w+)/")
    texts = [path for path in files if path.suffix in {".py", ".ipynb", ".md", ".yaml", ".yml", ".toml", ".json", ""}]
    named = [
        path.relative_to(ROOT) for path in texts if path.is_file() and path != Path(__file__) and _finds(home, path)
    ]
    assert not named, f"these files name a place on somebody's machine: {named}"


def _finds(pattern: re.Pattern[str], path: Path) -> bool:
    return pattern.search(path.read_text(encoding="utf-8", errors="ignore")) is not None
