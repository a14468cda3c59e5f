"""The command line: errors in one line with exit code 2, quick help, and every command on a small corpus."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_question, serving
from fastapi import Request
from PIL import Image
from test_merging import ask, corpus_at
from test_policies import Endpoint
from test_profiles import write_pdfs
from test_vimrag import look, note, reply

from vrag_nb import __main__ as cli
from vrag_nb.records import write_questions

COMMANDS = ("ask", "prep", "index", "serve", "run", "evaluate", "merge", "import-dataset", "realdocs", "report")


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
    assert {line.split()[0] for line in done.stdout.splitlines() if line.startswith("    ")} >= set(COMMANDS)
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


def test_the_file_of_profiles_is_looked_for_here_and_then_in_the_repository(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("prep", file=Path(file.name)) == 0
    assert "5 pages" in capsys.readouterr().out
    assert cli.main(["ask", "What?", "--profile", "none", "--file", "papermill_runs.yaml"]) == 2
    assert "papermill_runs.yaml: there is no profile 'none'" in capsys.readouterr().err
    assert cli.main(["run", "r", "--file", "mine.yaml"]) == 2
    assert f"there is no file mine.yaml, neither in {tmp_path} nor in the repository" in capsys.readouterr().err


def test_a_port_in_use_is_said_before_the_index_is_opened(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vrag_nb.profiles import Profile

    assert call("prep", file=file) == call("index", file=file) == 0
    capsys.readouterr()
    monkeypatch.setattr(Profile, "open_engine", lambda profile: pytest.fail("the index was opened"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert call("serve", "--port", port, file=file) == 2
    said = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1, port {port} (Address already in use)" in said
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
    assert call("ask", "What is shown on page 2?", file=file) == 1, "no answer"
    said = capsys.readouterr().out
    assert said.startswith("1 ")
    assert "no answer" in said or "answer" in said


class Player(Endpoint):
    """An endpoint whose model plays VimRAG: searches, keeps the first picture, answers."""

    async def complete(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        content = str(body["messages"][0]["content"])
        if body["model"] == "mute":
            said = "hm"
        elif len(body["messages"]) > 1:
            said = note("page two is here", Picture_1=4)
        else:
            said = (
                reply("a", text="forty-two") if "page two is here" in content else look("a", query="page two of alpha")
            )
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}


def test_ask_streams_vimrag(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    player = Player()
    with serving(player.app) as url:
        hosted = (
            "  hosted:\n    extends: tiny\n    agent: {kind: vimrag, max_steps: 4, top_k: 2, max_pixels: 31360}\n"
            f"    policy: {{kind: openai, checkpoint: m, options: {{base_url: '{url}/v1', api_key_env: null}}}}\n"
            "  mute:\n    extends: hosted\n    policy: {checkpoint: mute}\n"
        )
        file.write_text(file.read_text() + hosted)
        arguments = ["--profile", "hosted", "--file", str(file)]
        assert cli.main(["prep", *arguments]) == cli.main(["index", *arguments]) == 0
        capsys.readouterr()
        assert cli.main(["ask", "What is on page two?", *arguments]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "1       ·  so",
            "1  search  page two of alpha",
            "          is a, after root",
            "          looks at alpha_2 (Picture 1), beta_2 (Picture 2)",
            "2       ·  so",
            "2   notes  page two is here",
            "          remembers alpha_2 (224 x 112 px)",
            "3       ·  so",
            "          follows from a",
            "3  answer  forty-two",
        ]
        arguments[1] = "mute"
        assert cli.main(["ask", "What is on page two?", *arguments]) == 1, "no answer"
        said = capsys.readouterr().out.splitlines()
        assert said[1].startswith("   notice  Invalid call: no tool call was found.")
        assert said[-1] == "no answer"


def test_a_vimrag_profile_is_evaluated_under_its_own_task(file: Path, tmp_path: Path) -> None:
    agent = "{kind: vimrag, memory: graph, max_steps: 2, top_k: 1, max_pixels: 31360}"
    file.write_text(file.read_text() + f"  memory:\n    extends: tiny\n    agent: {agent}\n")
    write_questions(tmp_path / "questions.json", [make_question("a")])
    given = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json", "--out", tmp_path / "out"]
    arguments = [*map(str, given), "--systems", "vimrag_graph", "--profile", "memory", "--file", str(file)]
    assert cli.main(["evaluate", *arguments]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert set(metrics["answers"]) == {"vimrag_graph"}
    assert (metrics["run"]["settings"]["max_steps"], metrics["run"]["settings"]["memory"]) == (2, "graph")


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


def test_evaluate_names_a_document_that_is_not_there(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = [make_question("a"), make_question("b", "Which page is it?")]
    questions[1].meta_info.file_name, questions[1].meta_info.reference_page = "alhpa.pdf", []
    write_questions(tmp_path / "questions.json", questions)
    documents = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
    assert call("evaluate", *documents, "--out", tmp_path / "out", "--retrieval-only", file=file) == 0
    assert "1 documents that questions name are not there, such as alhpa" in capsys.readouterr().err


def test_merge_says_first_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    greys = {f"deck-{number}": [number] for number in range(12)}
    parts: list[object] = []
    for name in ("first", "second"):
        write_questions(tmp_path / f"{name}.json", [ask(f"{name}-q", "deck-1", 1, 9)])
        parts += ["--part", name, corpus_at(tmp_path / name, greys), tmp_path / f"{name}.json"]
    assert call("merge", tmp_path / "out", *parts) == 0
    told = capsys.readouterr()
    for line, name in zip(told.err.splitlines(), ("first", "second"), strict=False):
        assert line == f"{name}: question {name}-q: deck-1 (1 pages) has no page [9]"
    assert "and 2 more" in told.err
    assert str(tmp_path / "out" / "merge_report.json") in told.out


def test_evaluate_says_first_what_cannot_work(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [make_question("a"), make_question("b", "Which page is it?")]
    write_questions(tmp_path / "questions.json", questions)
    documents = [
        "--documents",
        tmp_path / "docs",
        "--questions",
        tmp_path / "questions.json",
        "--out",
        tmp_path / "out",
    ]
    assert call("evaluate", *documents, "--systems", "agnt", file=file) == 2
    assert "unknown system 'agnt'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists(), "before anything is prepared"

    questions[0] = questions[0].model_copy(update={"reference_answer": " "})
    write_questions(tmp_path / "questions.json", questions)
    assert call("evaluate", *documents, "--systems", "no_retrieval", file=file) == 0
    assert "1 questions have no reference_answer, such as 'a': left out" in capsys.readouterr().err
    write_questions(tmp_path / "questions.json", questions[:1])
    assert call("evaluate", *documents, "--systems", "no_retrieval", file=file) == 2
    assert "--retrieval-only" in capsys.readouterr().err
    assert call("evaluate", *documents, "--retrieval-only", "--judge", file=file) == 2
    assert "leave out one of them" in capsys.readouterr().err
    assert call("evaluate", *documents, "--retrieval-only", file=file) == 0


@pytest.mark.parametrize(("given", "count"), [([], 1), (["--limit", "2"], 2), (["--limit", "all"], 3)])
def test_evaluate_asks_as_many_as_the_profile_says(file: Path, tmp_path: Path, given: list[str], count: int) -> None:
    file.write_text(file.read_text() + "    evaluation: {limit: 1}\n")
    write_questions(tmp_path / "questions.json", [make_question(name, f"{name}?") for name in "abc"])
    documents = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
    assert call("evaluate", *documents, "--out", tmp_path / "out", "--retrieval-only", *given, file=file) == 0
    assert len((tmp_path / "out" / "retrieval.jsonl").read_text().splitlines()) == count


def test_evaluate_the_retriever_alone(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*arguments: object) -> None:
        raise AssertionError("a policy was loaded")

    monkeypatch.setattr("vrag_nb.profiles.Profile.load_policy", unwanted)
    write_questions(tmp_path / "questions.json", [make_question("a"), make_question("b", "Which page is it?")])
    documents = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
    assert call("evaluate", *documents, "--out", tmp_path / "out", "--retrieval-only", file=file) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["retrieval"]["recall@1"]["n"] == 2
    assert metrics["answers"] == {}
    assert metrics["run"]["policy"] is None


def test_evaluate_a_picture_beside_its_pdf(file: Path, tmp_path: Path) -> None:
    Image.new("RGB", (90, 60)).save(tmp_path / "docs" / "alpha.png")
    question = make_question("a")
    question.meta_info.file_name, question.meta_info.reference_page = "alpha.png", [1]
    write_questions(tmp_path / "questions.json", [question])
    documents = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
    assert call("evaluate", *documents, "--out", tmp_path / "out", "--retrieval-only", file=file) == 0
    [row] = map(json.loads, (tmp_path / "out" / "retrieval.jsonl").read_text().splitlines())
    assert row["gold_pages"] == ["alpha.png_1"]


def test_a_folder_in_use_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vrag_nb import runs
    from vrag_nb.folder_lock import FolderInUseError

    def busy(*arguments: object, **options: object) -> None:
        raise FolderInUseError("another process is at work in here")

    monkeypatch.setattr(runs, "execute_run", busy)
    assert cli.main(["run", "nano"]) == 2
    assert capsys.readouterr().err == "vrag_nb: another process is at work in here\n"


def test_a_failed_notebook_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vrag_nb import runs

    def fail(*arguments: object, **options: object) -> None:
        raise runs.RunError("01_first: cell 2: ValueError: no")

    monkeypatch.setattr(runs, "execute_run", fail)
    assert cli.main(["run", "nano"]) == 1
    assert capsys.readouterr().err == "vrag_nb: 01_first: cell 2: ValueError: no\n"
