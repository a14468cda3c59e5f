"""The documentation: its examples run, its commands and links exist, and the code it quotes is the code."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import RankedEngine, make_question

from vrag_nb import __main__ as cli
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.task_settings import Settings
from vrag_nb.notebook_files import declared_parameters
from vrag_nb.paths import REPOSITORY
from vrag_nb.profiles import RUNS_FILE, load_profile, profile_names
from vrag_nb.records import Question
from vrag_nb.run_plan import load_run

DOCS = sorted((REPOSITORY / "docs").glob("*.md"))
BENCHMARKS = REPOSITORY / "benchmarks"
PAGES = [*DOCS, REPOSITORY / "README.md", BENCHMARKS / "README.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .*? -->\n```.*?^```$", re.MULTILINE | re.DOTALL)  # the comment says why
NAMED = re.compile(r"# ([\w./-]+\.(?:py|yaml|json))\n")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
OWN = {"my-docs", "my-agent", "my-api", "my-gpu", "me"}  # profiles and runs that a page tells its reader to add


def blocks(page: Path, run: bool = False) -> Iterator[tuple[str, str]]:
    """(language, content) of every fenced block; run: without those that cannot stand alone."""
    text = page.read_text(encoding="utf-8")
    yield from FENCE.findall(NOT_RUN.sub("", text) if run else text)


def python_blocks(page: Path) -> list[str]:
    return [content for language, content in blocks(page) if language == "python"]


@pytest.mark.parametrize(
    "page", [page for page in DOCS if "python" in dict(blocks(page, run=True))], ids=lambda page: page.stem
)
def test_examples_run_as_they_stand(page: Path, tmp_path: Path) -> None:
    script = []
    for language, content in blocks(page, run=True):
        named = NAMED.match(content)
        if named and (REPOSITORY / named[1]).is_file() and named[1].startswith("vrag_nb/"):
            continue  # quoted, and compared below
        if named and language in ("python", "yaml", "json"):
            (tmp_path / named[1]).write_text(content.removeprefix(named[0]), encoding="utf-8")
        elif language == "python":
            script.append(content)
    for file in tmp_path.glob("*.yaml"):
        for name in yaml.safe_load(file.read_text(encoding="utf-8")).get("profiles", {}):
            load_profile(name, file)
    command = [sys.executable, "-c", "\n".join(script)]  # no file: workers would import it, as they would no notebook
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_all_python_is_python(page: Path) -> None:
    for content in python_blocks(page):
        compile(content, page.name, "exec")


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_quoted_files_are_the_files(page: Path) -> None:
    for content in python_blocks(page):
        named = NAMED.match(content)
        if named and named[1].startswith("vrag_nb/"):
            quoted = (REPOSITORY / named[1]).read_text(encoding="utf-8")
            assert content.removeprefix(named[0]) == quoted, f"{named[1]} has changed: copy it to {page.name} again"


@pytest.mark.parametrize("name", ["select_page", "evidence_ledger"])
def test_an_action_of_another_paper_is_one_short_file(name: str) -> None:
    lines = (REPOSITORY / f"vrag_nb/evaluation/systems/{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    stated = f"{name}.py`, {len(lines)} lines"
    assert stated in (REPOSITORY / "docs/extending.md").read_text(encoding="utf-8")


def test_a_thought_turns_no_page_and_a_session_that_failed_fails_alone(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own action, where models write what its example's policy does not."""
    [content] = [one for one in python_blocks(REPOSITORY / "docs/extending.md") if one.startswith("# next_page.py\n")]
    (tmp_path / "next_page.py").write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = Settings(actions=("next_page:NextPage",))
    environment = Environment(RankedEngine(), tiny_corpus, settings, "nano")
    monkeypatch.delitem(sys.modules, "next_page")
    session, failing = (environment.start(make_question(uid)) for uid in ("a", "b"))
    environment.advance([failing, session], [Generation.failed("gone"), Generation("<search>q</search>")])
    assert (failing.error, session.error) == ("policy: gone", None)
    for text in (
        "<think>Not <answer>41</answer>.</think><next></next>",
        "<think>Or <next></next>?</think><search>q</search>",
        "<think>Or <next></next>?</think><bbox>top</bbox>",
    ):
        environment.advance([session], [Generation(text)])
    assert [turn.action.kind for turn in session.turns] == ["search", "next", "search", "invalid"]
    assert [seen.page_id for turn in session.turns[1:3] for seen in turn.observations] == ["alpha_2", "alpha_3"]
    assert "<next></next> shows" in session.prompt
    assert session.conversation[-1].text.count("<next></next> shows") == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [first or second for first, second in LINK.findall(text)]
    assert missing(targets, page.parent) == []


def test_the_landing_notebook_links_files_that_are_there() -> None:
    notebook = nbformat.read(REPOSITORY / "notebooks" / "index.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    targets = [first or second for first, second in LINK.findall(text)]
    assert len(targets) >= 5
    assert missing(targets, REPOSITORY / "notebooks") == []


def missing(targets: list[str], start: Path) -> list[str]:
    local = [target.partition("#")[0] for target in targets if "://" not in target]
    return [target for target in local if target and not (start / target).exists()]


# -------------------------------------------------------------------------------------------------------- command lines


def commands(page: Path) -> list[list[str]]:
    """Every command line of the page's shell blocks and inline code that calls this package, split into words."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line for language, content in FENCE.findall(text) if language in ("bash", "sh") for line in joined(content)
    ]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    called = [line for line in lines if re.search(r"-m vrag_nb\b", line) and "COMMAND" not in line]
    return [shlex.split(line, comments=True) for line in called]


def joined(content: str) -> list[str]:
    return content.replace("\\\n", " ").splitlines()


def subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = cli._parser()._actions
    [found] = [action for action in actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found.choices)


def test_pages_have_commands() -> None:
    assert all(len(commands(page)) >= 1 for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_commands_name_what_exists(page: Path) -> None:
    known = subcommands()
    for words in commands(page):
        module, arguments = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
        shown = " ".join(words)
        if module != "vrag_nb":
            check_module(module, arguments, shown)
            continue
        if not arguments:
            continue
        name, rest = arguments[0], arguments[1:]
        assert name in known, f"{shown}: there is no command {name}"
        check_options(known[name], rest, shown)
        if name == "run" and rest:
            assert rest[0] in OWN or load_run(rest[0]), shown
        check_profile(rest, shown)


def check_module(module: str, arguments: list[str], shown: str) -> None:
    """A module that is run by itself: it is there, and its source declares the options."""
    file = REPOSITORY / f"{module.replace('.', '/')}.py"
    assert file.is_file(), f"{shown}: there is no {module}"
    for option in options_in(arguments):
        assert f'"{option}"' in file.read_text(encoding="utf-8"), f"{shown}: {module} has no {option}"
    check_profile(arguments, shown)


def check_options(parser: argparse.ArgumentParser, arguments: list[str], shown: str) -> None:
    for option in options_in(arguments):
        assert option in parser._option_string_actions, f"{shown}: there is no {option}"


def check_profile(arguments: list[str], shown: str) -> None:
    for place, word in enumerate(arguments[:-1]):
        if word == "--profile" and not arguments[place + 1].isupper():
            assert arguments[place + 1] in {*profile_names(), *OWN}, shown


def options_in(arguments: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in arguments if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)]


def test_every_benchmark_is_listed_with_options_that_it_has() -> None:
    listed: dict[str, list[str]] = {}
    for name, rest in re.findall(r"\bbenchmarks/(\w+)\.py([^`]*)`", (BENCHMARKS / "README.md").read_text()):
        listed.setdefault(name, []).extend(options_in(rest.split()))
    for name, options in listed.items():
        source = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8")
        assert all(f'"{option}"' in source for option in options if option != "--check"), name
    parts = {"tables", "trl_peer", "plaid_worker", "made_with"}  # of other benchmarks
    assert {file.stem for file in BENCHMARKS.glob("*.py")} - parts == set(listed)


def test_no_benchmark_is_taken_for_a_library() -> None:
    """A script's folder is searched first, by transformers' look for optional libraries as well."""
    libraries = "import sys, vrag_nb.profiles, trl, transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"
    files = "[str(getattr(module, '__file__', '')) for module in list(sys.modules.values())]"
    code = f"{libraries}; print([file for file in {files} if file.startswith({str(BENCHMARKS)!r})])"
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_tables_are_those_of_the_results() -> None:
    if json.loads((REPOSITORY / "results/nano/metrics.json").read_text(encoding="utf-8"))["run"].get("limit"):
        pytest.skip("results/nano is of `make run`")
    done = subprocess.run([sys.executable, BENCHMARKS / "readme.py", "--check"], cwd=REPOSITORY, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {first or second for first, second in named} <= targets


# --------------------------------------------------------------------------------------------------- own documents


def own(language: str, has: str) -> list[str]:
    found = [content for kind, content in blocks(REPOSITORY / "docs/own_documents.md") if kind == language]
    return [content for content in found if has in content]


def test_the_question_file_validates() -> None:
    [text] = own("json", "reference_answer")
    questions = [Question.model_validate(row) for row in json.loads(text)["examples"]]
    assert {question.uid for question in questions} == {"harbour-1", "harbour-2", "orchard-5"}
    assert [len(question.gold_page_ids) for question in questions] == [1, 1, 0]


def test_the_profiles_and_the_run_fit_the_runs_file(tmp_path: Path) -> None:
    content = yaml.safe_load((REPOSITORY / RUNS_FILE).read_text(encoding="utf-8"))
    for text in own("yaml", "extends:"):
        content["profiles"] |= yaml.safe_load(text)
    [run] = own("yaml", "notebooks:")
    content["runs"] |= yaml.safe_load(run)
    file = tmp_path / "runs.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    added = set(profile_names(file)) - set(profile_names())
    assert {"my-docs", "my-agent", "my-api", "my-gpu"} <= added <= OWN
    for name in added:
        load_profile(name, file)
    for notebook, given in load_run("my-docs", file).notebooks.items():
        assert set(given) <= set(declared_parameters(REPOSITORY / "notebooks" / f"{notebook}.ipynb"))
