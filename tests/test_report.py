"""The report: seeds averaged, tables by hand, a page that needs no network, and what it says when things lack."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import RankedEngine, ScriptedPolicy

from vrag_nb import __main__ as cli
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import read_trajectories
from vrag_nb.display import report_page
from vrag_nb.display.inspector import TrajectoryInspector
from vrag_nb.display.report_page import shown_cell, write_report_page
from vrag_nb.evaluation import published, report
from vrag_nb.evaluation.ablation_table import COMMAND, ablation_differences, ablation_table, ablations_markdown
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.measured import measured_tables, turn_curve
from vrag_nb.evaluation.per_question import conduct, gold_by_turn, pages_seen
from vrag_nb.evaluation.published import ORDER, SUCCESSORS, TABLE_1, TABLE_2, order_table, published_tables
from vrag_nb.evaluation.result_folders import read_results, split_name
from vrag_nb.evaluation.tables import Column, Table
from vrag_nb.files import write_jsonl
from vrag_nb.records import MetaInfo, Question, Region, read_pages, write_pages

SETTINGS = Settings(max_turns=3, min_pixels=4 * 784, max_pixels=40 * 784)
LONG_WAY = ["<search>a</search>", "<bbox>[10, 10, 100, 80]</bbox>", "<answer>7</answer>"]
NASTY = 'Is "<script>alert(1)</script>" & $x$ right?'


def ask(uid: str, query: str, answer: str, pages: list[int], kind: str = "single_hop") -> Question:
    regions = [Region(page=page, box=(0.1, 0.1, 0.5, 0.5)) for page in pages]
    meta = MetaInfo(
        file_name="alpha.pdf", reference_page=pages, source_type="table", query_type=kind, reference_regions=regions
    )
    return Question(uid=uid, query=query, reference_answer=answer, meta_info=meta)


QUESTIONS = [
    ask("q0", "How many?", "42", [1]),
    ask("q1", NASTY, "7", [1, 2], "multi_hop"),
    ask("q2", "Whose?", "not answerable", [], "unanswerable"),
]


def run(corpus: Path, out: Path, says: list[str], seed: int = 0, questions: list[Question] = QUESTIONS) -> Path:
    evaluate(
        corpus=corpus,
        questions=questions,
        engine=RankedEngine(),
        policy=ScriptedPolicy(says),
        systems=["vanilla_top1", "agent"],
        out=out,
        settings=SETTINGS,
        prompt="nano",
        seed=seed,
        progress=False,
    )
    return out


@pytest.fixture(scope="module")
def folders(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds: the first says 42 at once, the second goes the long way and says 7 (vanilla: nothing)."""
    base = tmp_path_factory.mktemp("seeds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "write_figures", lambda *given: None)
        return [
            run(tiny_corpus, base / "0", ["<answer>42</answer>"], 0),
            run(tiny_corpus, base / "1", LONG_WAY, 1),
        ]


@pytest.fixture(scope="module")
def page(folders: list[Path], tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, _ = write_report_page([str(one) for one in folders], tmp_path_factory.mktemp("report"), corpus=tiny_corpus)
    return path


def system(folders: list[Any], name: str) -> Any:
    return next(one for one in read_results(folders).systems if one.name == name)


# --------------------------------------------------------------------------------------------------------------- seeds


def test_several_seeds_are_averaged_by_question(folders: list[Path]) -> None:
    agent = system(folders, "agent")
    assert agent.measure("accuracy") == {"q0": 0.5, "q1": 0.5, "q2": 0}  # each right in one seed, the last in none
    found = agent.estimate("accuracy")
    assert found["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["n"] == 3
    assert found["spread"] == [pytest.approx(1 / 3), pytest.approx(1 / 3)]
    assert 0 <= found["low"] <= found["value"] <= found["high"] <= 0.5
    turns = agent.estimate("turns")
    assert (turns["value"], turns["spread"]) == (2, [1, 3])


def test_one_seed_has_no_spread(folders: list[Path]) -> None:
    assert "spread" not in system(folders[:1], "agent").estimate("accuracy")


def test_names_make_rows_of_their_own(folders: list[Path]) -> None:
    results = read_results([f"base={folders[0]}", f"trained={folders[1]}"])
    assert [one.name for one in results.systems] == [
        "base: vanilla_top1", "base: agent", "trained: vanilla_top1", "trained: agent"
    ]  # fmt: skip
    assert system([f"base={folders[0]}", f"trained={folders[1]}"], "trained: agent").measure("accuracy")["q1"] == 1


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "lr=1").mkdir()
    assert split_name(tmp_path / "lr=1") == ("", tmp_path / "lr=1")
    assert split_name(f"name={tmp_path}") == ("name", tmp_path)


def test_what_is_no_seed_is_refused(folders: list[Path], tiny_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "write_figures", lambda *given: None)
    other = run(tiny_corpus, tmp_path / "other", ["<answer>1</answer>"], 0, QUESTIONS[:2])
    with pytest.raises(ValueError, match=r"different questions, 1 are in one only, such as 'q2'"):
        read_results([folders[0], other])
    assert "same questions" in read_results([f"a={folders[0]}", f"b={other}"]).notes[0]
    with pytest.raises(ValueError, match="given twice"):
        read_results([folders[0], folders[0]])
    with pytest.raises(FileNotFoundError, match=r"no metrics\.json: evaluate into it first"):
        read_results([tmp_path])


def test_folders_of_different_policies_are_averaged_with_a_note(folders: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(folders[1], tmp_path / "other")
    metrics = json.loads((other / "metrics.json").read_text())
    metrics["run"]["policy"] = "another"
    (other / "metrics.json").write_text(json.dumps(metrics))
    assert read_results([folders[0], other]).notes == ["The folders averaged differ in policy: scripted, another."]


# -------------------------------------------------------------------------------------------------------------- tables


def test_what_one_question_took(folders: list[Path]) -> None:
    one = read_trajectories(folders[1] / "trajectories" / "agent.jsonl")[0]
    found = conduct(one)
    assert {name: found[name] for name in ("turns", "searches", "crops", "invalid_action_rate", "finish_rate")} == {
        "turns": 3, "searches": 1, "crops": 1, "invalid_action_rate": 0, "finish_rate": 1
    }  # fmt: skip
    assert found["image_tokens"] == sum(seen.image_tokens for seen in one.observations) > 0
    assert "longest_prompt" not in found  # a scripted policy does not count tokens
    assert conduct(one, ready_made=1)["turns"] == 2
    assert gold_by_turn(one, ["alpha_1", "alpha_2"]) == [0.5, 0.5, 0.5]
    assert pages_seen(["alpha_1", "alpha_2"], ["alpha_2"]) == {
        "pages_shown": 1, "gold_pages_seen": 0.5, "all_gold_seen": 0
    }  # fmt: skip
    assert pages_seen([], ["alpha_2"]) == {"pages_shown": 1}


def test_tables_by_hand(folders: list[Path]) -> None:
    results = read_results(folders[1:])
    tables = {table.name: {row["system" if "system" in row else "first"]: row for row in table.records()}
              for table in measured_tables(results)}  # fmt: skip
    agent = tables["table_1"]["agent"]
    assert (agent["all"], agent["table"], agent["multi hop"], agent["unanswerable"]) == (
        pytest.approx(1 / 3, abs=1e-6), 0, 1, 0
    )  # fmt: skip
    assert (agent["all n"], agent["table n"]) == (3, 1)
    seen = tables["retrieval_completeness"]["agent"]
    assert (seen["gold pages seen"], seen["all gold pages seen"], seen["gold pages seen n"]) == (0.75, 0.5, 2)
    assert seen["nDCG of the pages shown"] == pytest.approx((1 + 1 / (1 + 1 / 1.5849625)) / 2, abs=1e-5)
    assert turn_curve(system(folders[1:], "agent")) == [0.75, 0.75, 0.75]
    assert tables["accuracy_by_gold_pages"]["agent"]["2 pages"] == 1
    assert tables["accuracy_by_actions"]["agent"]["3 actions n"] == 3
    assert tables["conduct"]["agent"]["finished"] == 1
    vanilla = tables["paired_differences"]["vanilla_top1"]  # it may only answer, and searched
    assert (vanilla["second"], vanilla["first minus second"]) == ("agent", pytest.approx(-1 / 3, abs=1e-6))
    assert tables["failures"]["vanilla_top1"]["gave up"] == 3
    wrong = tables["failures"]["agent"]
    assert (wrong["asked"], wrong["wrong"], wrong["misread"], wrong["invented"]) == (3, 2, 1, 1)


def test_actions_are_counted_seed_by_seed(folders: list[Path]) -> None:
    table = next(one for one in measured_tables(read_results(folders)) if one.name == "accuracy_by_actions")
    agent = next(row for row in table.records() if row["system"] == "agent")
    assert (agent["1 action"], agent["1 action n"]) == (pytest.approx(1 / 3, abs=1e-6), 3)
    assert (agent["3 actions"], agent["3 actions n"]) == (pytest.approx(1 / 3, abs=1e-6), 3)


def test_every_caption_with_accuracy_names_the_judge(folders: list[Path]) -> None:
    for table in measured_tables(read_results(folders)):
        if table.name in ("table_1", "accuracy_by_actions", "accuracy_by_gold_pages", "paired_differences", "failures"):
            assert "rules (answers.is_correct)" in table.caption


def test_csv_holds_what_the_table_holds() -> None:
    cell = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "spread": [0.4, 0.6]}
    table = Table("t", "T", "", [Column("system"), Column("all", "share")], [["a", cell], ["b", None]])
    rows = list(csv.DictReader(table.csv().splitlines()))
    assert rows[0] == {
        "system": "a", "all": "0.5", "all low": "0.25", "all high": "0.75", "all n": "8", "all lowest seed": "0.4",
        "all highest seed": "0.6",
    }  # fmt: skip
    assert rows[1]["all"] == rows[1]["all n"] == ""
    shown = shown_cell(cell, Column("all", "share"))
    assert (shown.text, shown.interval, shown.spread) == ("50.0", "[25.0, 75.0]", "seeds 40.0–60.0")
    assert shown_cell({**cell, "spread": [0.5, 0.5]}, Column("all", "share")).spread == ""
    points = {"value": -0.05, "low": -0.08, "high": -0.01, "n": 8}
    assert shown_cell(points, Column("d", "points")).text == "−5.0"
    assert shown_cell(points, Column("d", "points")).strong
    assert not shown_cell({**points, "high": 0.01}, Column("d", "points")).strong


def test_benchmark_questions_are_in_the_papers_columns(tiny_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "write_figures", lambda *given: None)
    meta = {"file_name": "alpha.pdf", "query_type": "single_hop", "benchmark": "slidevqa", "columns": ["single"]}
    asked = [
        Question(uid=f"s{n}", query="How many?", reference_answer=answer, meta_info=MetaInfo(**meta))  # type: ignore
        for n, answer in enumerate(("42", "43"))
    ]
    results = read_results([run(tiny_corpus, tmp_path / "bench", ["<answer>42</answer>"], 0, asked)])
    tables = {table.name: table for table in measured_tables(results)}
    agent = tables["benchmarks"].records()[1]
    assert (agent["system"], agent["slidevqa single"], agent["slidevqa single n"]) == ("agent", 0.5, 2)
    assert "rules (answers.is_correct)" in tables["benchmarks"].caption
    assert "gold_pages_by_turn" not in tables  # these have no gold pages, so nothing is to be found
    assert tables["failures"].records()[1]["unplaced"] == 1
    page, _ = write_report_page([tmp_path / "bench"], tmp_path / "out", corpus=tiny_corpus)
    assert "Accuracy in the papers&#39; columns" in page.read_text()


# ----------------------------------------------------------------------------------------------------------- published


def test_published_figures_agree_with_each_other() -> None:
    for size, rows in TABLE_1.items():
        assert all(len(row) == 10 for row in rows.values())
        assert all(rows[above][-1] > rows[below][-1] for above, below in ORDER), size
    weights = (1648 / 2215, 567 / 2215)  # SlideVQA's questions, single and multi-hop; ViDoSeek's: 645 and 497
    for name in ("VRAG-RL", "Search-R1-VL"):
        row, later = TABLE_1["7B"][name], next(one for one in SUCCESSORS if one[0] == name)
        assert weights[0] * row[0] + weights[1] * row[1] == pytest.approx(later[1], abs=0.02)
        assert (645 * row[2] + 497 * row[3]) / 1142 == pytest.approx(later[2], abs=0.02)
    assert TABLE_2["vrag", "search and crop"] == TABLE_1["7B"]["VRAG-RL"][-1]


def test_published_tables_say_so_and_where_from() -> None:
    for table in published_tables():
        assert table.published
        assert "arXiv" in table.source or all("arXiv" in str(row[-1]) for row in table.rows)


def test_the_papers_order_is_judged_by_the_interval(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(published.COUNTERPARTS, "Search-R1-VL", "vanilla_top1")
    verdicts = {row[0]: row[-1] for row in order_table(read_results(folders[1:])).rows}
    assert verdicts["VRAG-RL above Search-R1-VL"] == "undecided"  # one question of three
    assert verdicts["visual ReAct above OCR ReAct"] == "not measured"


# ----------------------------------------------------------------------------------------------------------- ablations


@pytest.mark.usefixtures("no_figures")
def test_ablation_cells_with_and_without_predictions(folders: list[Path], tmp_path: Path) -> None:
    cells = {"search, start": [{"accuracy": 0.5}], "search and crop, start": [{"accuracy": 0.0}]}
    cells |= {"search and crop, vrag": [{"accuracy": 0.25}, {"accuracy": 0.75}]}
    (tmp_path / "ablations.json").write_text(json.dumps(cells))
    where = tmp_path / "search_and_crop"
    for seed, correct in ((0, [True, False]), (1, [True, True])):
        rows = [{"uid": f"q{place}", "system": "agent", "correct": one} for place, one in enumerate(correct)]
        write_jsonl(where / f"vrag-{seed}" / "predictions.jsonl", rows)
    start, _, cell = ablation_table(tmp_path, "rules").records()
    assert (start["accuracy"], start["accuracy low"], start["published, 7B"]) == (0.5, None, None)
    assert (cell["accuracy"], cell["accuracy n"], cell["seeds"]) == (0.75, 2, 2)
    assert (cell["accuracy lowest seed"], cell["published, 7B"]) == (0.25, 57.1)
    assert ablation_differences(tmp_path).rows == []  # the start left no predictions
    other = [{"uid": f"q{place}", "system": "agent", "correct": False} for place in range(2)]
    write_jsonl(where / "vrag-after-sft-0" / "predictions.jsonl", other)  # another reward's
    rows = [{"uid": f"q{place}", "system": "agent", "correct": False} for place in range(2)]
    write_jsonl(where / "start" / "predictions.jsonl", rows)
    (pair,) = ablation_differences(tmp_path).rows
    assert pair[:2] == ["search and crop, vrag", "search and crop, start"]
    assert (pair[2]["value"], pair[2]["n"]) == (0.75, 2)
    text = ablations_markdown(tmp_path, "rules")
    assert "| .75 [" in text
    assert ", .25 to .75 |" in text
    page, _ = write_report_page([folders[0], tmp_path], tmp_path / "out", each=0)
    text = page.read_text()
    assert "Table 2. Reward and actions" in text
    assert COMMAND not in text
    again = tmp_path / "again"
    again.mkdir()
    (again / "ablations.json").write_text(json.dumps(cells))
    _, tables = write_report_page([folders[0], tmp_path, again], tmp_path / "out", each=0)
    named = {table.name: table.title for table in tables if table.name.startswith("table_2")}
    assert set(named) == {"table_2_1", "table_2_2"}
    assert named["table_2_2"].endswith(": again")
    with pytest.raises(ValueError, match="at least one folder of an evaluation"):
        write_report_page([tmp_path], tmp_path / "out")
    (tmp_path / "ablations.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"ablations\.json does not hold cells"):
        ablation_table(tmp_path, "rules")


def test_a_seed_that_an_earlier_ablation_left_is_not_counted(tmp_path: Path) -> None:
    cells = {"search, start": [{"accuracy": 0.0}], "search, vrag": [{"seed": 0, "accuracy": 1.0}]}
    (tmp_path / "ablations.json").write_text(json.dumps(cells))
    for folder, correct in (("start", False), ("vrag-0", True), ("vrag-1", False), ("vrag-10", False)):
        row = {"uid": "q0", "system": "agent_no_crop", "correct": correct}
        write_jsonl(tmp_path / "search" / folder / "predictions.jsonl", [row])
    _, cell = ablation_table(tmp_path, "rules").records()
    assert (cell["accuracy"], cell["accuracy n"], cell["seeds"]) == (1.0, 1, 1)
    [pair] = ablation_differences(tmp_path).rows
    assert pair[2]["value"] == 1.0


@pytest.mark.usefixtures("no_figures")
def test_a_folder_may_hold_an_evaluation_and_ablations(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "both")
    (tmp_path / "both" / "ablations.json").write_text(json.dumps({"search, start": [{"accuracy": 0.5}]}))
    _, tables = write_report_page([tmp_path / "both"], tmp_path / "out", each=0)
    assert {"table_2", "failures"} <= {table.name for table in tables}


# ---------------------------------------------------------------------------------------------------------------- page


def test_the_page_fetches_nothing_and_escapes_what_it_shows(page: Path) -> None:
    text = page.read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert sources
    assert all(one.startswith(("data:image/", "#")) or one in ("tables/", "report.json") for one in sources)
    assert "<script" not in text
    assert "@import" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert COMMAND in text  # no ablations were given: how to make them
    assert text.count('class="tag">published') == len(published_tables())
    for heading in ("Table 1.", "Retrieval completeness", "Differences between systems", "Why answers are wrong"):
        assert heading in text


def test_beside_the_page_lie_its_tables(page: Path) -> None:
    data = json.loads((page.parent / "report.json").read_text())
    assert data["judge"] == "rules (answers.is_correct)"
    assert [run["seed"] for run in data["folders"].values()] == [0, 1]
    assert data["tables"]["table_1"]["rows"][1]["system"] == "agent"
    assert data["tables"]["published_vrag_table_2"]["source"] == "arXiv 2505.22019"
    for name in data["tables"]:
        assert (page.parent / "tables" / f"{name}.csv").read_text()
    assert (page.parent / "figures" / "accuracy_by_actions.png").is_file()
    assert (page.parent / "figures" / "gold_pages_by_turn.png").is_file()


def test_examples_have_pictures_and_open_in_the_inspector(page: Path, folders: list[Path], tiny_corpus: Path) -> None:
    text = page.read_text()
    assert "data:image/webp" in text
    assert "alpha_1 ★ gold page" in text
    file = folders[0] / "trajectories" / "agent.jsonl"
    assert f"TrajectoryInspector(project_path(&#34;{file}&#34;)" in text
    uids = [one.uid for one in read_trajectories(file)]
    place, uid = re.findall(r"<dd>(\d+) <span class=\"muted\">\((q\d)\)", text.split("Wrong answers of agent")[1])[0]
    inspector = TrajectoryInspector(file, tiny_corpus, trajectory_index=int(place))
    assert inspector.trajectory is not None
    assert inspector.trajectory.uid == uid == uids[int(place)]


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "report_figures", lambda tables: {})


@pytest.mark.usefixtures("no_figures")
def test_without_pages_there_are_words_and_a_note(folders: list[Path], tiny_corpus: Path, tmp_path: Path) -> None:
    path, _ = write_report_page(folders, tmp_path / "none")
    assert "Page pictures are left out: no corpus was named" in path.read_text()
    path, _ = write_report_page(folders, tmp_path / "gone", corpus=tmp_path / "nowhere")
    assert "holds no pages.parquet" in path.read_text()
    assert "data:image/webp" not in path.read_text()
    moved = shutil.copytree(tiny_corpus, tmp_path / "moved")
    (moved / "pages" / "alpha_1.png").unlink()
    path, _ = write_report_page(folders, tmp_path / "some", corpus=moved)
    assert "No picture of alpha_1: not in the corpus" in path.read_text()


@pytest.mark.usefixtures("no_figures")
def test_pages_that_were_replaced_are_not_shown_under_old_answers(
    folders: list[Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    corpus, old = shutil.copytree(tiny_corpus, tmp_path / "corpus"), shutil.copytree(folders[0], tmp_path / "old")
    path, _ = write_report_page([old], tmp_path / "same", corpus=corpus)
    assert "data:image/webp" in path.read_text()
    write_pages(corpus, [page.model_copy(update={"sha256": "0" * 64}) for page in read_pages(corpus)])
    path, _ = write_report_page([old], tmp_path / "replaced", corpus=corpus)
    assert "Page pictures of agent are left out: its answers were given on other pages" in path.read_text()
    assert "data:image/webp" not in path.read_text()


@pytest.mark.usefixtures("no_figures")
def test_without_trajectories_the_rest_is_there(folders: list[Path], tmp_path: Path) -> None:
    bare = shutil.copytree(folders[0], tmp_path / "bare", ignore=shutil.ignore_patterns("trajectories"))
    path, tables = write_report_page([bare], tmp_path / "out")
    names = {table.name for table in tables}
    assert {"table_1", "retrieval_completeness", "paired_differences"} <= names
    assert not names & {"effort", "conduct", "failures", "accuracy_by_actions", "gold_pages_by_turn"}
    assert "No trajectories were kept of vanilla_top1, agent" in path.read_text()


@pytest.mark.usefixtures("no_figures")
def test_the_command(folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(folders[0]), "--out", str(tmp_path / "out"), "--examples", "0"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").is_file()
    assert cli.main(["report", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "no metrics.json" in capsys.readouterr().err


def test_wandb_takes_the_tables_offline(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vrag_nb.display.report_log import log_report, wandb_table

    monkeypatch.setenv("WANDB_SILENT", "true")
    tables = measured_tables(read_results(folders[:1]))
    found = wandb_table(tables[0])
    assert found.columns[:2] == ["system", "all"]
    assert [row[0] for row in found.data] == ["vanilla_top1", "agent"]
    where = log_report(tables[:2], tmp_path, name="r")
    assert where.parent == tmp_path / "wandb"
    assert list(where.glob("run-*.wandb"))
    with pytest.raises(ValueError, match="expected"):
        log_report(tables, tmp_path, mode="")


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium executable found (Debian: apt-get install chromium)")
def test_in_a_browser_it_asks_for_nothing_and_fits(page: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 420, "height": 800})
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
        assert tab.evaluate("document.documentElement.scrollWidth") <= 420  # wide tables scroll by themselves
        assert tab.evaluate("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        browser.close()
