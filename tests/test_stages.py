"""The stages of learning: a profile's experts, resuming, what is put aside, tables, comparing checkpoints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.commands.config.config_args import ClusterConfig
from conftest import RankedEngine, ScriptedPolicy
from PIL import Image
from test_sampling import question
from transformers import TrainerState

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Generation
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.evaluation.compare import compare_policies
from vrag_nb.folder_lock import FolderInUseError
from vrag_nb.learning import stages
from vrag_nb.learning.curves import wandb_reporting
from vrag_nb.learning.experts import GroundedPolicy, PrivilegedPlanner
from vrag_nb.learning.judge import Judge
from vrag_nb.learning.of_profile import expert_of, reward_of
from vrag_nb.learning.rewards import load_reward
from vrag_nb.learning.sampled_data import read_rows
from vrag_nb.learning.stages import claim, sample_experts
from vrag_nb.learning.tables import TrajectoryTables, open_run, wandb_table
from vrag_nb.learning.trainers import train
from vrag_nb.profiles import Profile, ProfileError
from vrag_nb.records import read_pages, write_pages

NANO = {"min_pixels": 128 * 784, "max_pixels": 224 * 784}


def profile(tiny_corpus: Path, tiny_vlm_folder: Path, **learning: Any) -> Profile:
    model = {"kind": "transformers", "checkpoint": str(tiny_vlm_folder), "options": {"max_new_tokens": 4}}
    fields = {
        "name": "tiny",
        "corpus": {"folder": str(tiny_corpus)},
        "retriever": {"kind": "bm25"},
        "policy": model,
        "agent": {"prompt": "nano", "max_turns": 6, **NANO},
        "learning": {"base": str(tiny_vlm_folder), **learning},
    }
    return Profile.model_validate(fields)


@pytest.fixture
def world(tiny_corpus: Path) -> Environment:
    return Environment(RankedEngine(), tiny_corpus, Settings(max_turns=6, **NANO), "nano")


def test_a_profile_names_its_experts(tiny_corpus: Path, tiny_vlm_folder: Path) -> None:
    policy = {"kind": "transformers", "checkpoint": str(tiny_vlm_folder), "options": {"temperature": 0.5}}
    experts = {
        "planner": {},
        "own": {"policy": policy},
        "pair": {"grounder": policy},
        "lost": {"policy": policy | {"checkpoint": "data/nowhere"}},
    }
    one = profile(tiny_corpus, tiny_vlm_folder, sampling={"experts": experts})
    assert isinstance(expert_of(one, "planner", []), PrivilegedPlanner)
    assert expert_of(one, "own", []).temperature == 0.5  # type: ignore[attr-defined]
    assert isinstance(expert_of(one, "pair", []), GroundedPolicy)
    with pytest.raises(ProfileError, match=r"field learning\.sampling\.experts\.lost\.policy\.checkpoint"):
        expert_of(one, "lost", [])
    without = one.model_copy(update={"learning": None})
    with pytest.raises(ProfileError, match="no field learning"):
        without.training_questions()


def test_a_reward_is_one_line_of_a_profile(tiny_corpus: Path, tiny_vlm_folder: Path) -> None:
    parts = {"outcome": 0.7, "vrag_nb.learning.rewards:brevity": 0.3}
    named = profile(tiny_corpus, tiny_vlm_folder, reward={"parts": parts, "gate": ""})
    assert set(reward_of(named).parts) == set(parts)
    with pytest.raises(ProfileError, match=r"learning\.reward.*no reward preset 'fast'"):
        reward_of(profile(tiny_corpus, tiny_vlm_folder, reward="fast"))


def test_experts_are_sampled_once_and_again_when_something_changed(
    tiny_corpus: Path, tiny_vlm_folder: Path, world: Environment, tmp_path: Path
) -> None:
    questions = [question(f"q{n}", page=1 + n % 2, small=n % 2 > 0) for n in range(4)]
    one = profile(tiny_corpus, tiny_vlm_folder, sampling={"experts": {"planner": {"samples": 2}}, "size": 3})
    found = sample_experts(one, questions, world, tmp_path / "sampled", progress=False)
    assert len(found.trajectories["planner"]) == 8
    assert found.accounts[0]["right and clean"] == 8
    assert len(read_rows(tmp_path / "sampled" / "train.parquet")) == len(found.chosen.trajectories) == 3
    written = (tmp_path / "sampled" / "planner.jsonl").stat().st_mtime_ns
    sample_experts(one, questions, world, tmp_path / "sampled", progress=False)
    assert (tmp_path / "sampled" / "planner.jsonl").stat().st_mtime_ns == written
    fewer = profile(tiny_corpus, tiny_vlm_folder, sampling={"experts": {"planner": {"samples": 2}}, "size": 2})
    chosen = sample_experts(fewer, questions, world, tmp_path / "sampled", progress=False).chosen
    assert len(read_rows(tmp_path / "sampled" / "train.parquet")) == len(chosen.trajectories) == 2
    assert (tmp_path / "sampled" / "planner.jsonl").stat().st_mtime_ns == written
    sample_experts(one, questions[:3], world, tmp_path / "sampled", progress=False)  # it is told fewer answers
    assert len((tmp_path / "sampled" / "planner.jsonl").read_text().splitlines()) == 6
    assert len((tmp_path / "sampled" / "planner.stale.jsonl").read_text().splitlines()) == 8


def test_what_an_endpoint_was_paid_for_is_kept_while_it_is_the_same_model(
    tiny_corpus: Path, tiny_vlm_folder: Path, world: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Conversation] = []

    def says(self: OpenAIPolicy, conversations: list[Conversation], seeds: object = None) -> list[Generation]:
        asked.extend(conversations)
        return [Generation("<answer>42</answer>" if len(one) > 1 else "<search>a</search>") for one in conversations]

    monkeypatch.setattr(OpenAIPolicy, "generate", says)

    def sampled(questions: int, options: dict[str, Any], **part: Any) -> int:
        asked.clear()
        options = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": None, **options}
        policy = {"kind": "openai", "checkpoint": "m", "options": options}
        sampling = {"experts": {"endpoint": {"policy": policy}, "planner": {}}, **part}
        one = profile(tiny_corpus, tiny_vlm_folder, sampling=sampling)
        all_of_them = [question(f"q{n}", page=1) for n in range(questions)]
        sample_experts(one, all_of_them, world, tmp_path / "sampled", progress=False)
        return len(asked)

    assert sampled(2, {}) == 4
    assert sampled(2, {"timeout": 7, "retries": 0, "concurrency": 2}, size=1, turns=(1, 4)) == 0
    assert sampled(3, {}) == 2  # the one that is new
    assert sampled(3, {"temperature": 0.7}) == 6
    assert (tmp_path / "sampled" / "endpoint.stale.jsonl").is_file()
    assert not (tmp_path / "sampled.stale").exists()


def test_experts_are_sampled_again_under_another_prompt(
    tiny_corpus: Path, tiny_vlm_folder: Path, world: Environment, tmp_path: Path
) -> None:
    one = profile(tiny_corpus, tiny_vlm_folder, sampling={"experts": {"planner": {}}})
    questions, stale = [question("q", page=2)], tmp_path / "sampled.stale"
    for template, again in ((world.template, False), (f"{world.template} Be brief.", True)):
        world.template = template
        sample_experts(one, questions, world, tmp_path / "sampled", progress=False)
        assert stale.exists() == again


def test_experts_are_sampled_again_on_other_pages(
    tiny_corpus: Path, tiny_vlm_folder: Path, world: Environment, tmp_path: Path
) -> None:
    one = profile(tiny_corpus, tiny_vlm_folder, sampling={"experts": {"planner": {}}})
    world.pages = PageStore(shutil.copytree(tiny_corpus, tmp_path / "corpus"))
    for text, again in (("as before", False), ("as before", False), ("read by OCR", True)):
        pages = read_pages(tmp_path / "corpus")
        write_pages(tmp_path / "corpus", [pages[0].model_copy(update={"text": text}), *pages[1:]])
        sample_experts(one, [question("q", page=2)], world, tmp_path / "sampled", progress=False)
        assert (tmp_path / "sampled.stale").exists() == again


def test_nothing_to_learn_from_is_an_error_that_says_why(
    tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    short = Environment(RankedEngine(), tiny_corpus, Settings(max_turns=1, **NANO), "nano")
    one = profile(tiny_corpus, tiny_vlm_folder)
    with pytest.raises(ValueError, match=r"none of 1 trajectories can be learned from \(wrong answer: 1"):
        sample_experts(one, [question("q")], short, tmp_path, progress=False)
    with pytest.raises(FileNotFoundError, match="run notebook 04_cot_sampling first"):
        read_rows(tmp_path / "none.parquet")


def test_a_claimed_folder_is_kept_for_the_same_thing_only(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    claim(folder, {"settings": {"steps": 3}})
    (folder / "kept").touch()
    claim(folder, {"settings": {"steps": 3}})
    assert (folder / "kept").is_file()
    claim(folder, {"settings": {"steps": 4}})
    assert not (folder / "kept").exists()
    assert (tmp_path / "stage.stale" / "kept").is_file()
    claim(folder, {"settings": {"steps": 3}})
    assert (tmp_path / "stage.stale" / "kept").is_file(), "what was put aside is never thrown away"
    assert (tmp_path / "stage.stale-2" / "made_with.json").is_file()


@pytest.mark.parametrize(("asked", "kept"), [(4, True), (3, True), (2, False)])
def test_a_run_is_kept_for_as_many_steps_or_more(asked: int, kept: bool, tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    claim(folder, {}, steps=3)
    (folder / "checkpoint-3").mkdir()
    TrainerState(global_step=3).save_to_json(str(folder / "checkpoint-3" / "trainer_state.json"))
    claim(folder, {}, steps=asked)
    assert (folder / "checkpoint-3").is_dir() == kept


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each call of `reinforcement` claims its folder for; nothing is trained."""
    found: list[str] = []
    monkeypatch.setattr(stages, "claim", lambda folder, about, steps: found.append(json.dumps(stages._plain(about))))
    monkeypatch.setattr(stages, "grpo_trainer", lambda *_: SimpleNamespace(add_callback=lambda _: None))
    return found


def test_steps_are_settings_where_the_warm_up_is_a_share_of_them(
    made: list[str], world: Environment, tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    for warmup in (0.5, 0.0, 4.0):
        for steps in (8, 9):
            changes = {"warmup": warmup, "steps": steps}
            one = profile(tiny_corpus, tiny_vlm_folder)
            stages.reinforcement(one, tiny_vlm_folder, tmp_path, [question("q")], (), world, **changes)
    assert [left == right for left, right in zip(made[::2], made[1::2], strict=True)] == [False, True, True]


def test_a_folder_at_work_is_left_alone_by_other_processes(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    claim(folder, {"settings": {"steps": 3}})
    code = (
        "import sys, time; from pathlib import Path; from vrag_nb.folder_lock import alone_in\n"
        "with alone_in(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FolderInUseError, match=r"another process is at work in .*stage: wait"):
            claim(folder, {"settings": {"steps": 4}})
        trainer = SimpleNamespace(args=SimpleNamespace(output_dir=folder), is_world_process_zero=lambda: True)
        with pytest.raises(FolderInUseError):
            train(trainer)
        other.kill()
    claim(folder, {"settings": {"steps": 4}})
    assert (tmp_path / "stage.stale").is_dir()


def test_training_is_kept_when_it_moves_and_not_under_other_actions(
    made: list[str], world: Environment, tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    one, moved = profile(tiny_corpus, tiny_vlm_folder), shutil.copytree(tiny_vlm_folder, tmp_path / "moved")
    stages.reinforcement(one, tiny_vlm_folder, tmp_path / "here", [question("q")], (), world)
    stages.reinforcement(one, moved, tmp_path / "there", [question("q")], (), world)
    stages.reinforcement(one, moved, tmp_path / "there", [question("q")], (), world, report_to=["wandb"])
    short = Environment(RankedEngine(), tiny_corpus, Settings(max_turns=3, **NANO), "nano")
    stages.reinforcement(one, moved, tmp_path / "there", [question("q")], (), short)
    assert made[0] == made[1] == made[2] != made[3]


def test_training_is_not_kept_under_other_dev_questions_or_an_edited_reward(
    made: list[str],
    world: Environment,
    tiny_corpus: Path,
    tiny_vlm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "my_reward_of_stages.py"
    own = profile(tiny_corpus, tiny_vlm_folder, reward={"parts": {"my_reward_of_stages:r": 1.0}, "gate": ""})
    for value, uids in (("1.0", ["d1"]), ("1.0", ["d2"]), ("0.5", ["d2"])):
        module.write_text(f"def r(trajectory):\n    return {value}\n")
        sys.modules.pop("my_reward_of_stages", None)
        dev = [question(uid) for uid in uids]
        stages.reinforcement(own, tiny_vlm_folder, tmp_path / "run", [question("q")], dev, world)
    assert len(set(made)) == 3


def test_training_is_not_kept_under_another_judge(
    made: list[str], world: Environment, tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path
) -> None:
    one = profile(tiny_corpus, tiny_vlm_folder)
    judges = [Judge("a", "http://here", None), Judge("a", "http://there", None), Judge("b", "http://here", None)]
    for judge in [*judges, Judge("a", "http://here", None, prompt="Is {answer} right?")]:
        reward = load_reward({"parts": {"judge": 1.0}, "gate": ""}, {"judge": judge})
        stages.reinforcement(one, tiny_vlm_folder, tmp_path, [question("q")], (), world, reward)
    assert made[0] == made[1], "the same model may be reached elsewhere"
    assert len(set(made)) == 3


def test_tables_of_trajectories_reach_wandb(
    world: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [question("q", page=2)]
    found = rollout(PrivilegedPlanner(questions), world, questions, progress=False)
    found[0].rewards = {"total": 0.5}
    assert wandb_reporting("", tmp_path, "none") == {}
    with pytest.raises(ValueError, match="wandb_mode 'on'"):
        wandb_reporting("on", tmp_path, "none")
    assert open_run() is None
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    assert wandb_reporting("offline", tmp_path / "wandb", "tables") == {"report_to": ["wandb"]}
    try:
        [row] = wandb_table(found, 7, world.pages).data
        assert (row[0], row[1], row[3], row[4]) == (7, "What is q?", "42", 0.5)
        assert len(row[-1]) == 3
        assert isinstance(row[-1][0].image, Image.Image)
        keeper = SimpleNamespace(trajectories=found, dev_trajectories=[])
        state = SimpleNamespace(global_step=7, is_world_process_zero=True)
        TrajectoryTables(keeper, tmp_path / "out", world.pages).on_step_end(None, state, None)
        lost = found[0].model_copy(deep=True, update={"status": "error", "error": "observation: gone"})
        next(turn for turn in lost.turns if turn.observation.page_id).observation.page_id = "no_page"  # type: ignore[union-attr]
        keeper.trajectories = [lost]
        TrajectoryTables(keeper, tmp_path / "out", world.pages).on_step_end(None, state, None)
    finally:
        wandb.finish()
    assert (tmp_path / "out" / "step-000007.jsonl").is_file()
    assert list((tmp_path / "wandb").rglob("*.table.json"))


def test_checkpoints_are_compared_question_by_question(tiny_corpus: Path, tmp_path: Path) -> None:
    questions = [question(f"q{n}") for n in range(4)]
    loaders = {
        "base": lambda: ScriptedPolicy(["hm"]),
        "sft": lambda: ScriptedPolicy(["<search>a</search>", "<answer>42</answer>"]),
    }
    options = {
        "corpus": tiny_corpus,
        "questions": questions,
        "engine": RankedEngine(),
        "settings": Settings(max_turns=2, **NANO),
    }
    found = compare_policies(loaders, tmp_path, prompt="nano", progress=False, **options)  # type: ignore[arg-type]
    assert [found["answers"][name]["accuracy"]["value"] for name in ("base", "sft")] == [0, 1]
    assert found["comparisons"]["sft_minus_base"]["value"] == 1
    assert json.loads((tmp_path / "comparison.json").read_text()) == found
    assert "sft − base" in (tmp_path / "comparison.md").read_text()
    assert (tmp_path / "comparison.png").stat().st_size > 5000
    assert compare_policies({}, tmp_path / "none") == {"answers": {}, "comparisons": {}}
    assert not (tmp_path / "none").exists()


def test_a_stage_whose_forerunner_is_missing_says_which_to_run(
    tmp_path: Path, tiny_corpus: Path, tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = profile(tiny_corpus, tiny_vlm_folder)
    monkeypatch.setattr(stages, "load_profile", lambda name, file: one)
    for stage, before in (("sft", "sample"), ("grpo", "sft")):
        monkeypatch.setattr("sys.argv", ["stages", stage, "--out", str(tmp_path)])
        with pytest.raises(SystemExit, match=f"stages {stage}: there is no .*: run the stage '{before}'"):
            stages.main()


def test_the_file_of_profiles_is_looked_for_here_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("profiles: {}\n")
    monkeypatch.chdir(tmp_path)
    for name, said in (("mine.yaml", "mine.yaml: there is no profile"), ("none.yaml", "there is no file none.yaml")):
        monkeypatch.setattr("sys.argv", ["stages", "sft", "--out", "out", "--file", name])
        with pytest.raises(SystemExit, match=f"stages sft: .*{said}"):
            stages.main()


def test_grpo_starts_from_a_checkpoint_that_is_named(
    tmp_path: Path, tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    one = SimpleNamespace(
        load_environment=lambda training: None, training_questions=lambda: ([], []), dev_questions=lambda: []
    )
    monkeypatch.setattr(stages, "load_profile", lambda name, file: one)
    monkeypatch.setattr(stages, "reinforcement", lambda profile, start, *rest: start)
    monkeypatch.setattr(stages, "train", lambda start: started.append(start) or start)
    asked = ["stages", "grpo", "--out", str(tmp_path), "--start"]
    monkeypatch.setattr("sys.argv", [*asked, str(tiny_vlm_folder)])
    stages.main()
    assert started == [tiny_vlm_folder]
    monkeypatch.setattr("sys.argv", [*asked, str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit, match=r"stages grpo: there is no .*nowhere"):
        stages.main()


def test_accelerate_takes_the_launch_file() -> None:
    found = ClusterConfig.from_yaml_file(str(Path(stages.__file__).with_name("zero3.yaml")))
    assert str(found.distributed_type).endswith("DEEPSPEED")
    assert found.deepspeed_config["zero_stage"] == 3


@pytest.mark.parametrize(("stage", "name"), [("sft", "learning_rat"), ("grpo", "stpes")])
def test_a_misspelt_setting_of_a_later_stage_is_said_before_sampling(
    tiny_corpus: Path, tiny_vlm_folder: Path, tmp_path: Path, stage: str, name: str
) -> None:
    one = profile(tiny_corpus, tiny_vlm_folder, **{stage: {name: 3}})
    with pytest.raises(ProfileError, match=rf"field learning\.{stage}\.{name}: Extra inputs"):
        sample_experts(one, [question("q")], None, tmp_path)  # type: ignore[arg-type]
