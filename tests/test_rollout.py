"""The rollout driver: everything is answered once, whatever fails, wherever it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RankedEngine, ScriptedPolicy, make_question

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Conversation, Generation, turn_seed
from vrag_nb.agent.rollout import _Job, _threaded, rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import TrajectoryLog, read_trajectories
from vrag_nb.agent.vimrag import VimRAG
from vrag_nb.agent.vrag import VRAG
from vrag_nb.folder_lock import FolderInUseError, alone_in

QUESTIONS = [make_question(f"q{i}", f"number {i}") for i in range(12)]


def number(conversation: Conversation) -> int:
    return int(conversation[0].text.rsplit(" ", 1)[1])


def script(conversation: Conversation) -> str:
    """Question i searches i % 4 times, then answers with its number."""
    said = sum(message.role == "assistant" for message in conversation)
    i = number(conversation)
    return "<search>q</search>" if said < i % 4 else f"<answer>{i}</answer>"


@pytest.fixture
def environment(tiny_corpus: Path, engine: RankedEngine) -> Environment:
    return Environment(engine, tiny_corpus, Settings(max_turns=4, min_pixels=784, max_pixels=20 * 784), "nano")


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("concurrency", [1, 5, 50])
def test_everyone_is_answered_in_order(environment: Environment, batched: bool, concurrency: int) -> None:
    policy = ScriptedPolicy(script, batched)
    found = rollout(policy, environment, QUESTIONS, concurrency=concurrency, progress=False)
    assert [trajectory.uid for trajectory in found] == [question.uid for question in QUESTIONS]
    assert [trajectory.answer for trajectory in found] == [str(i) for i in range(12)]
    assert [len(trajectory.turns) for trajectory in found] == [i % 4 + 1 for i in range(12)]
    assert all(trajectory.policy == "scripted" for trajectory in found)


def test_sessions_that_end_are_replaced_at_once(environment: Environment) -> None:
    policy = ScriptedPolicy(script)
    rollout(policy, environment, QUESTIONS, concurrency=4, progress=False)
    assert sum(policy.calls) == sum(i % 4 + 1 for i in range(12))
    assert policy.calls[:6] == [4] * 6  # full batches while questions wait, though sessions end at different turns
    assert len(policy.calls) < 12  # turn by turn over sets of four would take 3 x 4 calls


@pytest.mark.parametrize("batched", [True, False])
def test_one_bad_question_stops_nothing(environment: Environment, batched: bool) -> None:
    def failing(conversation: Conversation) -> str:
        if number(conversation) == 3:
            raise ValueError("no reply")
        return "<search>fail</search>" if number(conversation) == 5 else script(conversation)

    found = rollout(ScriptedPolicy(failing, batched), environment, QUESTIONS, concurrency=6, progress=False)
    errors = {trajectory.uid: trajectory.error for trajectory in found if trajectory.status == "error"}
    assert errors == {"q3": "policy: ValueError: no reply", "q5": "search: RuntimeError: the index is gone"}
    assert sum(trajectory.status == "answered" for trajectory in found) == 10


def test_resuming_does_only_what_is_missing(environment: Environment, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    rollout(ScriptedPolicy(script), environment, QUESTIONS[:5], out, progress=False)
    with out.open("ab") as file:
        file.write(b'{"uid": "q5", "half')
    policy = ScriptedPolicy(script)
    found = rollout(policy, environment, QUESTIONS, out, progress=False)
    assert [trajectory.answer for trajectory in found] == [str(i) for i in range(12)]
    assert sum(policy.calls) == sum(i % 4 + 1 for i in range(5, 12))
    assert {trajectory.uid for trajectory in read_trajectories(out)} == {question.uid for question in QUESTIONS}
    again = ScriptedPolicy(script)
    rollout(again, environment, QUESTIONS, out, progress=False)
    assert again.calls == []


def test_two_processes_do_not_write_to_one_file(environment: Environment, tmp_path: Path) -> None:
    out = tmp_path / "trajectories.jsonl"
    with alone_in(out), pytest.raises(FolderInUseError, match=r"at work in .*trajectories\.jsonl: wait"):
        rollout(ScriptedPolicy(script), environment, QUESTIONS, out, progress=False)
    assert not out.exists()
    assert len(rollout(ScriptedPolicy(script), environment, QUESTIONS[:2], out, progress=False)) == 2
    assert list(tmp_path.glob(".*.lock")) == []


def test_errors_are_tried_again_unless_told_otherwise(environment: Environment, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"

    class Failing(ScriptedPolicy):
        def generate(self, conversations: object, seeds: object = None) -> list[Generation]:
            return [Generation.failed("away") for _ in conversations]  # type: ignore[attr-defined]

    rollout(Failing(script), environment, QUESTIONS[:2], out, progress=False)
    kept = rollout(ScriptedPolicy(script), environment, QUESTIONS[:2], out, retry_errors=False, progress=False)
    assert [trajectory.status for trajectory in kept] == ["error", "error"]
    done = rollout(ScriptedPolicy(script), environment, QUESTIONS[:2], out, progress=False)
    assert [trajectory.status for trajectory in done] == ["answered", "answered"]
    assert [trajectory.status for trajectory in read_trajectories(out)] == ["answered", "answered"]


def test_an_interrupted_rollout_asks_for_no_further_turn(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    told = threading.Event()

    class Stopped(threading.Event):
        def set(self) -> None:
            super().set()
            told.set()

    def answer_first(conversation: Conversation) -> str:
        asked.append(number(conversation))
        if asked[-1] == 0:
            return "<answer>0</answer>"
        told.wait(20)
        return "<search>q</search>"

    policy = ScriptedPolicy(answer_first)
    policy.batched = False
    monkeypatch.setattr("vrag_nb.agent.rollout.Event", Stopped)
    found = _threaded(policy, environment, [_Job(one.uid, one) for one in QUESTIONS[:3]], 3, 0)
    assert next(found).answer == "0"
    found.close()
    assert len(asked) <= 3, "what was under way had one generation each"


def test_groups_of_samples(environment: Environment) -> None:
    policy = ScriptedPolicy(script)
    found = rollout(policy, environment, QUESTIONS[:2], samples=3, progress=False)
    assert [trajectory.uid for trajectory in found] == ["q0#0", "q0#1", "q0#2", "q1#0", "q1#1", "q1#2"]
    assert found[4].reference is not None
    assert found[4].reference.uid == "q1"
    assert len(set(policy.seeds)) == len(policy.seeds)  # every turn of every sample draws anew
    assert turn_seed(0, "q0#0", 0) in policy.seeds
    assert turn_seed(1, "q0#0", 0) not in policy.seeds


@pytest.mark.parametrize("factor", [28, 32])
def test_a_factor_that_is_not_the_models_is_refused_at_once(tiny_corpus: Path, factor: int) -> None:
    """Where the model's are known; no single question would be answered."""
    settings = Settings(factor=factor, min_pixels=4 * factor**2, max_pixels=40 * factor**2)
    policy, engine = ScriptedPolicy(["<answer>1</answer>"]), RankedEngine()
    environment = Environment(engine, tiny_corpus, settings, "nano")
    [found] = rollout(policy, environment, QUESTIONS[:1], progress=False)
    assert found.answer == "1"
    policy.encoder = SimpleNamespace(factor=60 - factor)  # type: ignore[attr-defined]
    words = rf"the agent's factor is {factor}, .* of scripted is {60 - factor} pixels wide: set factor to {60 - factor}"
    options = settings.model_dump(include={"factor", "min_pixels", "max_pixels"})
    asked: list[Callable[[], Any]] = [
        lambda: rollout(policy, environment, QUESTIONS[:1], progress=False),
        lambda: VRAG(policy, engine, tiny_corpus, "nano", **options),
        lambda: VimRAG(policy=policy, engine=engine, corpus=tiny_corpus, **options),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=words):
            ask()
    policy.encoder.factor = factor  # type: ignore[attr-defined]
    assert VRAG(policy, engine, tiny_corpus, "nano", **options).ask("What?").answer == "1"


def test_shared_uids_are_refused(environment: Environment) -> None:
    with pytest.raises(ValueError, match="share a uid"):
        rollout(ScriptedPolicy(script), environment, [QUESTIONS[0], QUESTIONS[0]], progress=False)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "and there is None in it"),
        ([], "generate returned 0 generations for 1 conversations"),
        ("<answer>1</answer>", "should return a list of Generation, and there is '<' in it"),
        ([Generation(None)], "the text of a Generation is None"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_returns_something_else_is_told_of_it(
    environment: Environment, batched: bool, made: Any, told: str
) -> None:
    """One of somebody's own; it once ended the whole rollout with a word about `zip`."""

    class Odd(ScriptedPolicy):
        def generate(self, conversations: Any, seeds: Any = None) -> Any:
            return made if any(number(one) == 4 for one in conversations) else super().generate(conversations, seeds)

    found = rollout(Odd(script, batched), environment, QUESTIONS, progress=False)
    [failed] = [one for one in found if one.status == "error"]
    assert failed.uid == "q4"
    assert told in str(failed.error)


def test_what_no_file_can_hold_stops_nothing(environment: Environment, tmp_path: Path) -> None:
    """Half a character, as an endpoint's JSON may hold, and the probabilities of a model that has diverged."""

    class Odd(ScriptedPolicy):
        def generate(self, conversations: object, seeds: object = None) -> list[Generation]:
            found = super().generate(conversations, seeds)  # type: ignore[arg-type]
            for one in found:
                one.text = one.text.replace("<answer>4", "<answer>4\ud83d")
                one.token_ids, one.logprobs = [1], [float("nan") if "<answer>5" in one.text else -0.5]
            return found

    out = tmp_path / "t.jsonl"
    rollout(Odd(script), environment, QUESTIONS, out, progress=False)
    kept = read_trajectories(out)
    answers = {one.uid: one.answer for one in kept if one.status == "answered"}
    assert answers == {f"q{i}": "4?" if i == 4 else str(i) for i in range(12) if i != 5}
    [failed] = [one for one in kept if one.status == "error"]
    assert failed.uid == "q5"
    assert "log-probabilities are not finite" in str(failed.error)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from conftest import RankedEngine, ScriptedPolicy
from test_rollout import QUESTIONS, Environment, Settings, number, rollout, script

def dying(conversation):
    if number(conversation) == 7 and len(conversation) > 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return script(conversation)

settings = Settings(max_turns=4, min_pixels=784, max_pixels=20 * 784)
environment = Environment(RankedEngine(), Path({corpus!r}), settings, "nano")
rollout(ScriptedPolicy(dying), environment, QUESTIONS, Path({out!r}), concurrency=3, progress=False)
"""


def test_kill_minus_nine_loses_only_what_was_in_flight(
    environment: Environment, tiny_corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "t.jsonl"
    code = KILLED.format(tests=os.path.dirname(__file__), corpus=str(tiny_corpus), out=str(out))
    process = subprocess.run([sys.executable, "-c", code], check=False)
    assert process.returncode == -signal.SIGKILL
    before = set(TrajectoryLog(out).done)
    assert 0 < len(before) < 12
    policy = ScriptedPolicy(script)
    found = rollout(policy, environment, QUESTIONS, out, progress=False)
    assert [trajectory.answer for trajectory in found] == [str(i) for i in range(12)]
    assert len(out.read_bytes().splitlines()) == 12  # nothing was done twice


def test_a_question_that_reads_differently_now_is_asked_anew(environment: Environment, tmp_path: Path) -> None:
    out = tmp_path / "kept.jsonl"
    rollout(ScriptedPolicy(script), environment, [make_question("q", "number 4")], out, progress=False)
    policy = ScriptedPolicy(script)
    (same,) = rollout(policy, environment, [make_question("q", "number 4")], out, progress=False)
    assert (same.answer, policy.calls) == ("4", [])
    (other,) = rollout(policy, environment, [make_question("q", "number 8")], out, progress=False)
    assert (other.answer, other.question, other.reference.query) == ("8", "number 8", "number 8")  # type: ignore[union-attr]
    assert read_trajectories(out)[-1].answer == "8"
