"""The command line: errors in one line with exit code 2, quick help, and every command on a small corpus."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import make_question
from test_profiles import write_pdfs

from vrag_nb import __main__ as cli
from vrag_nb.records import write_questions

COMMANDS = ("ask", "prep", "index", "serve", "run", "evaluate", "merge", "realdocs")


@pytest.fixture
def file(tmp_path: Path, tiny_vlm_folder: Path) -> Path:
    """A profile `tiny`: five pages in two PDFs, BM25, a model of random weights."""
    write_pdfs(tmp_path / "docs")
    path = tmp_path / "runs.yaml"
    options = "{max_new_tokens: 6, dtype: float32}"
    path.write_text(
        "profiles:\n  tiny:\n"
        f"    corpus: {{folder: {tmp_path / 'corpus'}, kind: documents, documents: {tmp_path / 'docs'}}}\n"
        "    retriever: {kind: bm25}\n"
        f"    policy: {{kind: transformers, checkpoint: {tiny_vlm_folder}, options: {options}}}\n"
        "    agent: {prompt: nano, max_turns: 1, min_pixels: 3136, max_pixels: 31360}\n"
    )
    return path


def call(*arguments: object, file: Path | None = None) -> int:
    more = ["--profile", "tiny", "--file", str(file)] if file else []
    return cli.main([*map(str, arguments), *more])


def test_help_names_every_command_and_imports_no_library() -> None:
    code = (
        "import sys\nfrom vrag_nb.__main__ import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'pandas', 'pydantic', 'papermill') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"    {command} " in done.stdout for command in COMMANDS)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask", "hello", "--profile", "none"], "there is no profile 'none'"),
        (["run", "none"], "there is no run 'none'"),
        (["run", "nano", "--file", "/nowhere.yaml"], "there is no file /nowhere.yaml"),
        (["evaluate", "--documents", "d", "--questions", "/none.json", "--out", "o"], "no question file at /none.json"),
        (["prep", "--documents", "/none"], "--documents needs --corpus"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_missing_folders_are_named(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("ask", "What?", file=file) == 2
    assert "has no index" in capsys.readouterr().err
    assert call("realdocs", tmp_path / "none", file=file) == 2
    assert "none" in capsys.readouterr().err
    assert call("ask", "  ", file=file) == 2
    assert "the question is empty" in capsys.readouterr().err


def test_prep_index_ask(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("prep", file=file) == 0
    assert "5 pages" in capsys.readouterr().out
    assert call("index", file=file) == 0
    assert "5 pages" in capsys.readouterr().out
    assert call("ask", "What is shown on page 2?", file=file) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 ")
    assert "no answer" in said or "answer" in said


def test_evaluate_any_documents(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [make_question("a"), make_question("b", "Which page is it?")]
    write_questions(tmp_path / "questions.json", questions)
    documents = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
    out = ["--out", tmp_path / "out", "--systems", "no_retrieval", "agent"]
    assert call("evaluate", *documents, *out, file=file) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["retrieval"]["recall@1"]["n"] == 2
    assert set(metrics["answers"]) == {"no_retrieval", "agent"}
    assert metrics["run"]["profile"] == "tiny"
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "out" / "trajectories" / "agent.jsonl").is_file()
    capsys.readouterr()

    questions[0].meta_info.file_name = questions[1].meta_info.file_name = "other.pdf"
    write_questions(tmp_path / "questions.json", questions)
    assert call("evaluate", *documents, *out, file=file) == 2
    assert "no question's file_name is a document" in capsys.readouterr().err


def test_a_failed_notebook_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vrag_nb import runs

    def fail(*arguments: object, **options: object) -> None:
        raise runs.RunError("01_first: cell 2: ValueError: no")

    monkeypatch.setattr(runs, "execute_run", fail)
    assert cli.main(["run", "nano"]) == 1
    assert capsys.readouterr().err == "vrag_nb: 01_first: cell 2: ValueError: no\n"
