"""Two processes learn what one learns: losses, gradients, weights and figures agree, and files are written once.

The pytest process starts this file as a script, once. The script imports what training needs and forks from itself the
processes of every run: one process, the same in two (gloo, float32), two of which one is killed, and two that go on
after it. What they leave behind is what the tests look at.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from conftest import RankedEngine
from safetensors.torch import load_file
from test_sampling import question
from test_stages import profile
from transformers import TrainerCallback

from vrag_nb.agent.actions import Action
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_records import MemoryAction
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.learning.curves import read_log
from vrag_nb.learning.experts import PrivilegedPlanner
from vrag_nb.learning.grpo import MultiTurnGRPOTrainer, grpo_trainer
from vrag_nb.learning.grpo_settings import GRPOSettings
from vrag_nb.learning.rewards import Reward, Scored
from vrag_nb.learning.sampled_data import write_dataset
from vrag_nb.learning.stages import finetune, reinforcement
from vrag_nb.learning.trainers import train
from vrag_nb.records import Question

TIMEOUT = 1200  # seconds for all runs together, on a busy machine; a hang ends here
LOSS, NORM = 1e-5, 1e-5  # tolerances: loss absolute, norm of the gradient relative
WEIGHTS = 0.01  # tolerance of a weight, of what training moved the weights by at most
SMALL: dict[str, Any] = {"min_pixels": 784, "max_pixels": 12 * 784}
QUESTIONS = [question(f"q{n}", page=1 + n % 2) for n in range(8)]
DEV = [question(f"dev{n}") for n in range(3)]  # of two processes, one has two and the other has one
ROWS = 7  # of the data set for SFT: a step takes four


# ------------------------------------------------------------------------------------------------ what a process does


class Watch(TrainerCallback):
    """What this process saw: everything logged, unrounded, and the weights it ended with."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "seen" / f"{os.environ.get('RANK', '0')}.json"
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.rows.append({"step": state.global_step, **(logs or {})})

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        digest = hashlib.sha256()
        for name, weight in model.state_dict().items():
            digest.update(name.encode() + weight.detach().contiguous().numpy().tobytes())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"rows": self.rows, "weights": digest.hexdigest()}), encoding="utf-8")


class KillSecond(TrainerCallback):
    """`kill -9` of the second process after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def letters(trajectory: Trajectory) -> float:
    """A reward that a babbling model can vary in."""
    return sum(turn.text.count("e") for turn in trajectory.turns) / 4


def sometimes_search(text: str) -> tuple[str, Action]:
    """A parser that makes an answer of some babble, whose trajectory then has no image, and a search of the rest."""
    if len(text) % 2:
        return "", Action(kind="answer", answer=text)
    return "", Action(kind="search", query=text or "nothing")


def some_cycle(text: str) -> tuple[str, MemoryAction]:
    """A parser that makes searches, notes and answers of babble, so that trajectories differ in their segments."""
    kinds: tuple[Literal["retrieve", "memorise", "answer"], ...] = ("retrieve", "memorise", "answer")
    return "", MemoryAction(kind=kinds[len(text) % 3], query="q", summary="s", answer="a", parents=None)


def run_sft(base: Path, out: Path, world: int, *callbacks: TrainerCallback) -> None:
    tiny = profile(base / "corpus", base / "checkpoint")
    changes = {"learning_rate": 3e-3, "epochs": 2, "save_steps": 1, "warmup": 0.0, "freeze_projector": False}
    share = {"batch_size": 2 // world, "accumulation": 2}
    finetune(tiny, base / "sampled" / "train.parquet", out, [Watch(out), *callbacks], **changes, **share)


def reinforced(
    base: Path,
    out: Path,
    world: int,
    environment: Environment | MemoryEnvironment,
    dev: Sequence[Question],
    **changes: Any,
) -> MultiTurnGRPOTrainer:
    """A trainer whose step takes four questions, shared out over the processes."""
    small = {"group_size": 2, "questions_per_step": 4 // world, "max_new_tokens": 6, "max_length": 4000}
    given = {**small, "learning_rate": 1e-3, "save_steps": 1, "freeze_projector": False, "validate_every": 2}
    one = profile(base / "corpus", base / "checkpoint", grpo={**given, **changes})
    reward = Reward({"letters": (letters, 1.0)})
    return reinforcement(one, base / "checkpoint", out, QUESTIONS, dev, environment, reward, [Watch(out)])


def run_grpo(base: Path, out: Path, world: int, *callbacks: TrainerCallback) -> None:
    settings = Settings(max_turns=2, **SMALL)
    environment = Environment(RankedEngine(), base / "corpus", settings, "nano", parse=sometimes_search)
    checkpoints = {"gradient_checkpointing": True}  # where DDP does not look for weights without a gradient by itself
    twice = {"steps": 4, "iterations": 2, "save_steps": 2}
    one = reinforced(base, out, world, environment, DEV, micro_batch=2, beta=0.1, **twice, **checkpoints)
    for callback in callbacks:
        one.add_callback(callback)
    train(one)
    own = [Scored(float(value), {}) for value in ([1, 0, 5], [2, 4, 4])[int(os.environ["RANK"])]]
    advantages = one._advantages(own) if world == 2 else None  # a group of two lies on both processes
    (out / "seen" / f"advantages-{os.environ['RANK']}.json").write_text(
        json.dumps(advantages.tolist() if advantages is not None else [])
    )


def run_memory(base: Path, out: Path, world: int) -> None:
    settings = MemorySettings(max_steps=3, memory_pixels=8 * 784, top_k=1, **SMALL)
    prompt = base / "prompt.txt"  # a short one
    environment = MemoryEnvironment(RankedEngine(), base / "corpus", settings, prompt, parse=some_cycle)
    train(reinforced(base, out, world, environment, [], algorithm="ggpo", steps=2, micro_batch=2, beta=0.0))


# ------------------------------------------------------------------------------------------------ processes of a run


def launch(world: int, job: Callable[..., None], *arguments: Any) -> list[int | None]:
    """Run a job in `world` processes; their exit codes. When one fails, the others are killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=_ranked, args=(n, world, port, job, *arguments)) for n in range(world)]
    for process in started:
        process.start()
    while any(process.is_alive() for process in started):
        if any(process.exitcode for process in started):
            for process in started:
                process.kill()
        time.sleep(0.05)
    for process in started:
        process.join()
    return [process.exitcode for process in started]


def _ranked(number: int, world: int, port: int, job: Callable[..., None], *arguments: Any) -> None:
    """What a launcher (torchrun, accelerate) tells its processes, then the job."""
    place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    if world == 1:
        place = {"RANK": 0}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(1)
    job(*arguments)


def main(base: Path) -> None:
    os.environ.update({"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a machine's own name need not resolve
    codes = {}
    for name, job in {"sft": run_sft, "grpo": run_grpo, "memory": run_memory}.items():
        for world in (1, 2):
            codes[f"{name}-{world}"] = launch(world, job, base, base / f"{name}-{world}", world)
    for name, job in {"sft": run_sft, "grpo": run_grpo}.items():
        folder = base / f"{name}-killed"
        codes[f"{name}-killed"] = launch(2, job, base, folder, 2, KillSecond(3))
        (folder / "checkpoint-3").mkdir()  # as if killed while this one was being written
        codes[f"{name}-resumed"] = launch(2, job, base, folder, 2)
    (base / "codes.json").write_text(json.dumps(codes), encoding="utf-8")


# -------------------------------------------------------------------------------------------------------------- tests


@pytest.fixture(scope="module")
def runs(tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all runs."""
    base = tmp_path_factory.mktemp("two-processes")
    (base / "checkpoint").symlink_to(tiny_vlm_folder)
    (base / "corpus").symlink_to(tiny_corpus)
    settings = Settings(max_turns=6, **SMALL)
    asked = QUESTIONS[:ROWS]
    trajectories = rollout(
        PrivilegedPlanner(asked), Environment(RankedEngine(), tiny_corpus, settings, "nano"), asked, progress=False
    )
    write_dataset(trajectories, PageStore(tiny_corpus), base / "sampled")
    (base / "prompt.txt").write_text("Question: {question}", encoding="utf-8")
    with (base / "log").open("w") as log:
        script = subprocess.Popen([sys.executable, __file__, str(base)], stdout=log, stderr=log, start_new_session=True)
        try:
            script.wait(TIMEOUT)
        finally:
            if script.poll() is None:
                os.killpg(script.pid, signal.SIGKILL)
                script.wait()
    assert script.returncode == 0, (base / "log").read_text()[-4000:]
    return base


def seen(run: Path, number: int = 0) -> dict[str, Any]:
    """What a process of a run saw."""
    return json.loads((run / "seen" / f"{number}.json").read_text())


def steps(run: Path, number: int = 0) -> list[dict[str, Any]]:
    """What a process logged of its training steps."""
    return [row for row in seen(run, number)["rows"] if "loss" in row]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: weight.float() for name, weight in load_file(folder / "model.safetensors").items()}


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight that both files have: tied ones may be in one of them once."""
    return max(float((one[name] - other[name]).abs().max()) for name in one if name in other)


def rolled_out(run: Path, pattern: str) -> dict[str, list[Trajectory]]:
    """Trajectories by file."""
    return {file.name: read_trajectories(file) for file in sorted((run / "trajectories").glob(pattern))}


def files(run: Path) -> set[str]:
    """Names of the files of a run, apart from what is written by or for each process."""
    found = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith("seen/") and "rng_state" not in name}


@pytest.mark.parametrize("name", ["sft", "grpo", "memory"])
def test_two_processes_learn_what_one_does(runs: Path, name: str) -> None:
    one, two = runs / f"{name}-1", runs / f"{name}-2"
    alone, first, second = steps(one), steps(two), steps(two, 1)
    assert len(alone) == len(first) == len(second) == (2 if name == "memory" else 4)
    for wanted, found, other in zip(alone, first, second, strict=True):
        assert wanted["grad_norm"] > 0.1
        for row in (found, other):
            assert row["loss"] == pytest.approx(wanted["loss"], abs=LOSS)
            assert row["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=NORM)
    assert seen(two)["weights"] == seen(two, 1)["weights"]
    start, end = weights(runs / "checkpoint"), weights(one / "final")
    again = weights(two / "final")
    assert set(again) == set(end)
    assert apart(end, again) < WEIGHTS * apart(start, end)


@pytest.mark.parametrize("name", ["grpo", "memory"])
def test_the_same_is_rolled_out_and_all_of_it_is_kept(runs: Path, name: str) -> None:
    alone, shared = (rolled_out(runs / f"{name}-{world}", "step-*") for world in (1, 2))
    assert list(alone) == list(shared)
    for file, wanted in alone.items():
        assert len(wanted) == len(shared[file]) == 8
        for one, other in zip(wanted, shared[file], strict=True):
            assert (one.uid, one.rewards) == (other.uid, other.rewards)
            assert [turn.token_ids for turn in one.turns] == [turn.token_ids for turn in other.turns]


def test_processes_have_unequal_work(runs: Path) -> None:
    """What would go wrong did so with these: rows of the loss and images that are not shared out evenly."""
    for trajectories in rolled_out(runs / "memory-2", "step-*").values():
        segments = [len(one.turns) for one in trajectories]
        assert sum(segments[:4]) != sum(segments[4:])
    shown = [bool(one.retrieved_page_ids) for one in rolled_out(runs / "grpo-2", "step-*")["step-000001.jsonl"]]
    assert 0 < sum(shown) < len(shown)


@pytest.mark.parametrize("name", ["grpo", "memory"])
def test_figures_are_of_all_processes(runs: Path, name: str) -> None:
    one, two = (seen(runs / f"{name}-{world}")["rows"] for world in (1, 2))
    counted = 0
    for wanted, found in zip(one, two, strict=True):
        assert set(wanted) == set(found)
        for figure, value in wanted.items():  # TRL's own means of parts depend on how rows fall into parts
            if figure.startswith(("reward", "eval_", "un", "in", "fi", "turns", "sea", "cr", "gen", "masked")):
                assert found[figure] == pytest.approx(value, abs=1e-6), figure
                counted += 1
    assert counted > 20
    if name == "memory":
        assert 0 < one[0]["masked_share"] < 1
    else:
        assert [[t.uid for t in kept] for kept in rolled_out(runs / "grpo-2", "dev-*").values()] == [
            [asked.uid for asked in DEV] for _ in range(3)
        ]


def test_a_group_on_two_processes_is_one_group(runs: Path) -> None:
    """Rewards 1 0 5 and 2 4 4 in groups of two: (1, 0), (5, 2), (4, 4)."""
    found = [json.loads((runs / "grpo-2" / "seen" / f"advantages-{n}.json").read_text()) for n in (0, 1)]
    half = 0.5**0.5
    assert found[0] == pytest.approx([half, -half, half], abs=1e-5)
    assert found[1] == pytest.approx([-half, 0, 0], abs=1e-5)


@pytest.mark.parametrize("name", ["sft", "grpo", "memory"])
def test_files_are_written_once(runs: Path, name: str) -> None:
    one, two = runs / f"{name}-1", runs / f"{name}-2"
    assert files(one) == files(two)
    kept = [[(row["step"], *sorted(row)) for row in read_log(run / "log.jsonl")] for run in (one, two)]
    assert kept[0] == kept[1]
    assert len(set(kept[1])) == len(kept[1])


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_two_processes_go_on_after_a_kill(runs: Path, name: str) -> None:
    codes = json.loads((runs / "codes.json").read_text())
    assert codes[f"{name}-killed"][1] == -signal.SIGKILL
    assert codes[f"{name}-killed"][0] != 0
    assert {code for run, found in codes.items() if not run.endswith("killed") for code in found} == {0}
    whole, broken = runs / f"{name}-2", runs / f"{name}-killed"
    assert [row["step"] for row in steps(broken)] == [3, 4]  # of the second attempt
    assert seen(whole)["weights"] == seen(broken)["weights"] == seen(broken, 1)["weights"]
    kept = [[(row["step"], *sorted(row)) for row in read_log(run / "log.jsonl")] for run in (whole, broken)]
    assert kept[0] == kept[1]


def test_a_step_takes_no_more_questions_than_there_are(
    tiny_vlm_folder: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    environment = Environment(RankedEngine(), tiny_corpus, Settings(), "nano")
    settings = GRPOSettings(checkpoint=str(tiny_vlm_folder), out=str(tmp_path), questions_per_step=9)
    with pytest.raises(ValueError, match=r"takes 9 questions .* there are 8"):
        grpo_trainer(settings, QUESTIONS, environment, Reward({"letters": (letters, 1.0)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
