"""Answers before a judge model: `evaluate --judge` against a local endpoint, and what a report says of it."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ScriptedPolicy, make_question, serving
from test_cli import call, file  # noqa: F401 - a fixture
from test_rewards import Court

from vrag_nb.display.report_page import write_report_page
from vrag_nb.evaluation import report
from vrag_nb.evaluation.agreement import RULES
from vrag_nb.evaluation.judged import judges_table
from vrag_nb.evaluation.result_folders import read_results
from vrag_nb.profiles import Profile
from vrag_nb.records import write_questions


@pytest.fixture
def judged(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], int]:  # noqa: F811
    """`evaluate --judge` of two questions, whose answers are said by a model in place of the profile's."""

    def say(conversation):
        return f"<answer>{'42' if 'right' in conversation[0].text else 'forty-two'}</answer>"

    monkeypatch.setattr(report, "write_figures", lambda *given: None)
    monkeypatch.setattr(Profile, "load_policy", lambda profile: ScriptedPolicy(say))
    write_questions(tmp_path / "questions.json", [make_question("a", "What is right?"), make_question("b", "Other?")])
    plain = file.read_text()

    def go(model: str, url: str) -> int:
        judge = f"{{model: {model}, base_url: '{url}', api_key_env: null, retries: 0}}"
        file.write_text(f"{plain}    evaluation: {{judge: {judge}}}\n")
        given = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json"]
        return call("evaluate", *given, "--out", tmp_path / "out", "--systems", "no_retrieval", "--judge", file=file)

    return go


def rows(out: Path) -> dict[str, dict]:
    return {row["uid"]: row for row in map(json.loads, (out / "judge.jsonl").read_text().splitlines())}


def test_a_judge_is_asked_once_and_stands_beside_the_rules(
    judged: Callable[[str, str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    court, out = Court(), tmp_path / "out"
    with serving(court.app) as url:
        assert judged("fair", f"{url}/v1") == 0
        assert len(court.prompts) == 2
        assert "Question: What is right?\nReference answer: 42\nAnswer: 42" in "".join(court.prompts)
        assert judged("fair", f"{url}/v1") == 0
        assert len(court.prompts) == 2, "verdicts are kept"
        assert "judged by fair beside the rules" in capsys.readouterr().out
        assert [(uid, row["rules"], row["judge"]) for uid, row in rows(out).items()] == [
            ("a", True, True),
            ("b", False, False),
        ]
        found = json.loads((out / "judge.json").read_text())["systems"]["no_retrieval"]
        assert (found["rules"]["value"], found["judge"]["value"], found["agreement"]["kappa"]["value"]) == (0.5, 0.5, 1)
        text = (out / "judge.md").read_text()
        assert all(words in text for words in ("# Judged by fair", "## no_retrieval", f"{RULES} / fair"))
        [row] = judges_table(read_results([out])).rows
        assert row[:2] == ["no_retrieval", "fair"]
        assert (row[2]["value"], row[3]["value"], row[5]["value"], row[6:]) == (0.5, 0.5, 1, [2, 0])

        assert judged("vague", f"{url}/v1") == 0, "a bad reply stops nothing"
        assert "2 answers got no verdict of vague" in capsys.readouterr().err
        assert [row["judge"] for row in rows(out).values()] == [None, None]
        assert all("gave no verdict" in row["error"] for row in rows(out).values())
        accuracy = json.loads((out / "metrics.json").read_text())["answers"]["no_retrieval"]["accuracy"]
        assert accuracy["value"] == 0.5, "the rules' verdicts stay"
        [row] = judges_table(read_results([out])).rows
        assert (row[3]["value"], row[6:]) == (None, [0, 2])


def test_a_verdict_on_an_answer_given_anew_does_not_count(judged: Callable[[str, str], int], tmp_path: Path) -> None:
    with serving(Court().app) as url:
        assert judged("fair", f"{url}/v1") == 0
    path = tmp_path / "out" / "predictions.jsonl"
    path.write_text(path.read_text().replace("forty-two", "41"))
    [row] = judges_table(read_results([tmp_path / "out"])).rows
    assert row[6] == 1


def test_the_reports_page_shows_it_too(judged: Callable[[str, str], int], tmp_path: Path) -> None:
    """It once was among the report's files alone."""
    with serving(Court().app) as url:
        assert judged("fair", f"{url}/v1") == 0
    page, tables = write_report_page([tmp_path / "out"], tmp_path / "report", each=0)
    text = page.read_text(encoding="utf-8")
    assert [table.name for table in tables if table.caption not in html.unescape(text)] == []
    assert "judges" in [table.name for table in tables]


def test_a_profile_without_a_judge_says_so_first(
    file: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_questions(tmp_path / "questions.json", [make_question("a")])
    given = ["--documents", tmp_path / "docs", "--questions", tmp_path / "questions.json", "--out", tmp_path / "out"]
    assert call("evaluate", *given, "--judge", file=file) == 2
    assert "names no judge: say in evaluation.judge" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
