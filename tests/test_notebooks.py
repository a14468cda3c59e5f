"""Every notebook, executed through papermill on the run `nano-test`: three decks, three questions, a folder of its own.

With the shipped models where they are; a checkout without them (the recipe has not run yet) takes models of random
weights, which answer nothing and go through every cell.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import serving
from datasets import load_dataset
from rich.console import Console
from test_rewards import Court

from vrag_nb.agent.trajectory import read_trajectories
from vrag_nb.paths import REPOSITORY
from vrag_nb.profiles import RUNS_FILE, load_profile
from vrag_nb.run_plan import Step, load_run, plan_run
from vrag_nb.runs import execute_step

pytestmark = pytest.mark.notebook
RUN = "nano-test"
NAMES = list(load_run(RUN).notebooks)


def random_retriever(vlm_folder: Path, folder: Path) -> Path:
    """A nano retriever on the backbone of a checkpoint, untrained."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from vrag_nb.nano.model import save_checkpoint
    from vrag_nb.nano.retriever import build_retriever, build_retriever_processor

    backbone = AutoModelForImageTextToText.from_pretrained(vlm_folder)
    processor = AutoProcessor.from_pretrained(vlm_folder)
    save_checkpoint(build_retriever(backbone, text_layers=2), build_retriever_processor(processor), folder)
    return folder


@pytest.fixture(scope="module")
def court() -> Iterator[str]:
    """The address of a judge model."""
    with serving(Court().app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, court: str) -> Path:
    """papermill_runs.yaml with the run's folders moved to a temporary place, models that exist, and a judge."""
    here = tmp_path_factory.mktemp("notebooks")
    text = (REPOSITORY / RUNS_FILE).read_text().replace("results/scratch/nano-test", str(here / "results"))
    content = yaml.safe_load(text)
    profile = content["profiles"][load_run(RUN).profile]
    profile["corpus"]["folder"] = str(here / "corpus")
    if set(load_profile(RUN).checkpoint_folders) != {"retriever", "policy", "base"}:
        vlm = request.getfixturevalue("tiny_vlm_folder")
        profile.setdefault("policy", {})["checkpoint"] = str(vlm)
        profile["learning"]["base"] = str(vlm)
        profile["learning"]["sampling"]["experts"]["nano-agent"]["policy"]["checkpoint"] = str(vlm)
        profile.setdefault("retriever", {})["checkpoint"] = str(random_retriever(vlm, here / "retriever"))
    profile["evaluation"]["judge"] = {"model": "fair", "base_url": court, "api_key_env": None}
    content["runs"][RUN]["notebooks"]["07_evaluation"]["judge"] = True
    path = here / "runs.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))  # checkpoints are compared in their order
    return path


def steps(file: Path) -> list[Step]:
    return plan_run(load_run(RUN, file), file)


@pytest.fixture(params=NAMES)
def executed(request: pytest.FixtureRequest, file: Path) -> tuple[str, nbformat.NotebookNode, Path]:
    """A notebook, executed after those before it: (name, executed copy, results folder)."""
    for step in steps(file):
        if not step.fresh:
            execute_step(step, Console())
        if step.name == request.param:
            return step.name, nbformat.read(step.executed, as_version=4), step.folder
    raise AssertionError(request.param)


def summary(notebook: nbformat.NotebookNode) -> dict:
    """The JSON the last code cell printed."""
    cell = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
    printed = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    return json.loads("".join(printed).splitlines()[-1])


def check_01_corpus_prep(said: dict, results: Path) -> None:
    assert said["documents"] == 4
    assert said["pages"] >= 15
    assert said["skipped"] == 0
    assert said["questions"]["test"] == 16


def check_02_indexing(said: dict, results: Path) -> None:
    assert said["dim"] == 128
    assert said["pages"] >= 15
    assert said["recall@1"] <= said["recall@5"]
    assert said["self_check"]["found"] >= 4, "of few pages the shipped retriever finds those of five queries"


def check_03_agent_rollout(said: dict, results: Path) -> None:
    assert said["trajectories"] == 2
    assert "error" not in said["status"]
    assert (results / "rollout" / "trajectory.png").stat().st_size > 5000
    assert said["memory"]["trajectories"] == 2
    assert (results / "rollout" / "memory.png").stat().st_size > 5000
    remembered = read_trajectories(results / "rollout" / "memory.jsonl")
    assert [one.status for one in remembered] == ["answered"] * 2
    assert all(one.graph for one in remembered)


def check_04_cot_sampling(said: dict, results: Path) -> None:
    assert said["sampled"] == {"planner": 5, "nano-agent": 1}
    assert 1 <= said["chosen"] <= 4
    rows = load_dataset("parquet", data_files=str(results / "learning/sampled/train.parquet"), split="train")
    assert len(rows) == said["chosen"]
    assert (results / "sampling" / "trajectory_1.png").stat().st_size > 5000


def check_05_sft(said: dict, results: Path) -> None:
    assert said["steps"] == 2
    assert said["loss"] > 0
    assert set(said["accuracy"]) == {"base", "sft"}
    assert (results / "learning/sft/final/model.safetensors").is_file()


def check_06_grpo(said: dict, results: Path) -> None:
    assert said["steps"] == 2
    assert len(said["dev_reward"]) == 2
    written = {path.name for path in (results / "learning/grpo/trajectories").iterdir()}
    assert {"step-000001.jsonl", "step-000002.jsonl", "dev-000000.jsonl", "dev-000002.jsonl"} <= written
    assert (results / "learning/grpo/final/model.safetensors").is_file()


def check_07_evaluation(said: dict, results: Path) -> None:
    metrics = json.loads((results / "metrics.json").read_text())
    systems = load_profile(RUN).evaluation.systems
    assert list(metrics["answers"]) == systems == list(said["accuracy"])
    assert set(said["errors"].values()) == {0}
    assert metrics["answers"]["agent"]["accuracy"]["n"] == said["questions"] == 3
    assert {"seed", "commit", "versions", "hardware", "seconds"} <= metrics["run"].keys()
    assert len(list((results / "figures").glob("*.png"))) >= 3
    assert set(said["learning"]) == {"sft", "grpo"}
    judged = json.loads((results / "judge.json").read_text())
    assert judged["judge"] == "fair"
    assert list(judged["systems"]) == systems
    assert all(one["agreement"]["n"] == 3 for one in judged["systems"].values()), "every answer has a verdict"
    assert set(json.loads((results / "checkpoints" / "comparison.json").read_text())["comparisons"]) == {
        "grpo_minus_sft"
    }


def check_08_ablations(said: dict, results: Path) -> None:
    assert said["cells"] == 2
    assert set(said["accuracy"]) == {"search, start", "search, outcome", "search, vrag"}
    assert "| search | outcome reward alone | 1 |" in (results / "ablations.md").read_text()
    assert (results / "ablations.png").stat().st_size > 5000
    assert (results / "curves.png").stat().st_size > 5000
    assert (results / "learning/ablations/search-vrag-0/final/model.safetensors").is_file()


def test_the_notebook_runs_and_says_what_it_should(executed: tuple[str, nbformat.NotebookNode, Path]) -> None:
    name, notebook, results = executed
    if name != "00_nano_pretraining":
        globals()[f"check_{name}"](summary(notebook), results)
    assert (results / f"{name}.html").stat().st_size > 10_000
    errors = [output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert not errors
    if name == "00_nano_pretraining":
        last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
        logs = list((REPOSITORY / "data/models/training").glob("*.jsonl"))
        assert sum("image/png" in output.get("data", {}) for output in last.outputs) == len(logs), "a curve a log"


def test_every_notebook_is_in_the_run() -> None:
    assert sorted(path.stem for path in (REPOSITORY / "notebooks").glob("[0-9]*.ipynb")) == sorted(NAMES)


def test_a_second_run_finds_everything_done_and_loads_no_model(file: Path) -> None:
    for step in steps(file):
        if not step.fresh:
            execute_step(step, Console())
    code = f"import sys\nfrom vrag_nb.__main__ import main\nmain(['run', '{RUN}', '--file', {str(file)!r}])"
    code += "\nprint('torch' in sys.modules)"
    index = load_run(RUN, file).folder / "index.html"
    subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # writes the index
    assert index.is_file()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("up to date") == len(NAMES)
    assert str(index) in done.stdout.replace("\n", "")
    assert done.stdout.splitlines()[-1] == "False"
