"""An evaluation of benchmark questions from file to table: the papers' columns, the own score, the judges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ScriptedPolicy, make_question

from vrag_nb.agent.task_settings import Settings
from vrag_nb.documents.benchmarks import read_benchmark
from vrag_nb.evaluation import compare, report
from vrag_nb.evaluation.benchmark_report import read_predictions, write_benchmark_report
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.files import write_jsonl
from vrag_nb.records import Question

ROWS = [
    ("How many?", "42", "[1]", "['Table', 'Chart']", "Int"),
    ("How much?", "41.8%", "[2, 3]", "['Chart']", "Float"),
    ("Whose?", "Not answerable", "[]", "[]", "None"),
]


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    names = ("question", "answer", "evidence_pages", "evidence_sources", "answer_format")
    rows = [{"doc_id": "alpha.pdf", "doc_type": "Guidebook", **dict(zip(names, row, strict=True))} for row in ROWS]
    (tmp_path / "samples.json").write_text(json.dumps(rows))
    return read_benchmark(tmp_path / "samples.json").questions


@pytest.fixture
def out(tiny_corpus: Path, engine, questions: list[Question], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "write_figures", lambda *given: None)
    evaluate(
        corpus=tiny_corpus,
        questions=questions,
        engine=engine,
        policy=ScriptedPolicy(["<answer>42</answer>"]),
        systems=["vanilla_top1", "text_top1"],
        out=tmp_path / "out",
        settings=Settings(max_turns=2, min_pixels=4 * 784, max_pixels=40 * 784),
        prompt="nano",
        progress=False,
    )
    return tmp_path / "out"


def test_columns_and_score_by_hand(out: Path, questions: list[Question]) -> None:
    text = write_benchmark_report(out, questions)
    assert text == (out / "benchmark.md").read_text()
    found = json.loads((out / "benchmark.json").read_text())
    assert found["judge"] == {"columns": "rules (answers.is_correct)", "mmlongbench": "rules of MMLongBench-Doc"}
    assert all(judge in text for judge in found["judge"].values())
    for system in ("vanilla_top1", "text_top1"):
        columns = {name: (one["value"], one["n"]) for name, one in found["columns"][system].items()}
        assert columns == {
            "mmlongbench chart": (0.5, 2),
            "mmlongbench table": (1, 1),
            "mmlongbench unanswerable": (0, 1),
            "mmlongbench answerable": (0.5, 2),
            "mmlongbench all": (pytest.approx(1 / 3, abs=1e-6), 3),
        }
        own = found["mmlongbench"][system]  # 42 is within 1% of 41.8, which the other rules do not allow
        assert own["accuracy"]["value"] == pytest.approx(2 / 3, abs=1e-6)
        assert own["f1"]["value"] == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3), abs=1e-6)
    assert "CC BY-NC 4.0" in text


def test_another_judges_verdicts(out: Path, questions: list[Question]) -> None:
    said = {"text_top1": {one.uid: True for one in questions}}
    text = write_benchmark_report(out, questions, judged={"m-72b": said})
    assert text.index("judged by rules") < text.index("judged by m-72b")
    found = json.loads((out / "benchmark.json").read_text())
    assert found["judged"]["m-72b"]["text_top1"]["mmlongbench all"]["value"] == 1
    assert found["columns"]["text_top1"]["mmlongbench all"]["value"] < 1


def test_own_questions_leave_nothing(tmp_path: Path, questions: list[Question]) -> None:
    assert write_benchmark_report(tmp_path / "none", [make_question("q")]) == ""
    assert not (tmp_path / "none").exists()
    with pytest.raises(FileNotFoundError, match="evaluate first"):
        write_benchmark_report(tmp_path / "none", questions)


def test_only_a_newline_ends_a_row_of_predictions(tmp_path: Path) -> None:
    rows = [{"system": "agent", "uid": uid, "answer": "one\u2028two\u0085three", "correct": uid == "a"} for uid in "ab"]
    write_jsonl(tmp_path / "predictions.jsonl", rows)
    assert read_predictions(tmp_path / "predictions.jsonl") == {"agent": {row["uid"]: row for row in rows}}
    assert compare._right(tmp_path / "predictions.jsonl") == {"a": 1.0, "b": 0.0}
