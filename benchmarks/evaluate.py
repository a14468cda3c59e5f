"""Questions a second of the concurrent evaluator against one question at a time: same model, index and machine.

    python benchmarks/evaluate.py --questions 32 --concurrency 16 --threads 1 [--out results/benchmarks]

Evaluates one system of the profile twice in one run, greedily, with a policy of its own each time (so that none finds
the other's cache): one question at a time, then `--concurrency` questions in flight, which the policy takes in one
batch. Then the same with a remote model instead: an OpenAI-compatible server on this machine that waits `--latency`
seconds, as a network and a large model would, and says what a model might say (a search, then an answer made of the
question); that shows what concurrency gives where the time is spent elsewhere, and nothing about accuracy. The seconds
are those of answering (`run.seconds` of metrics.json), without ranking and report.

Every turn's text is compared between the two rows of a model; greedy decoding must say the same whatever else is in the
batch, up to floating-point noise. Exits 1 when an answer or a correctness differs.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from tables import tell

from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.of_profile import evaluation_of
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question


@dataclass
class Row:
    """One evaluation: seconds of answering, and the trajectories by uid."""

    model: str
    concurrency: int
    seconds: float
    found: dict[str, Trajectory]
    correct: dict[str, bool]

    @property
    def rate(self) -> float:
        return len(self.found) / self.seconds


def canned_reply(messages: Sequence[dict[str, Any]]) -> str:
    """A search, then an answer that depends on the conversation's first message and on nothing else."""
    if not any(message["role"] == "assistant" for message in messages):
        return "<think>Which page is it?</think>\n<search>the page with the answer</search>"
    digest = hashlib.sha256(json.dumps(messages[0]).encode()).hexdigest()
    return f"<think>That is it.</think>\n<answer>{digest[:8]}</answer>"


@contextmanager
def canned_endpoint(latency: float) -> Iterator[str]:
    """An OpenAI-compatible server in a thread that answers every request after `latency` seconds; its base URL."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(latency)
        message = {"role": "assistant", "content": canned_reply(body["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the local endpoint did not start")
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            thread.join(10)


def run(profile: Profile, engine: Any, policy: Policy, questions: list[Question], system: str, concurrency: int) -> Row:
    """Evaluate once, into a folder that is thrown away."""
    with tempfile.TemporaryDirectory(prefix="vrag-evaluate-") as folder:
        out = Path(folder)
        metrics = evaluate(
            questions=questions,
            engine=engine,
            policy=policy,
            systems=[system],
            out=out,
            progress=False,
            **(evaluation_of(profile) | {"concurrency": concurrency}),
        )
        rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
        found = {one.uid: one for one in read_trajectories(out / "trajectories" / f"{system}.jsonl")}
    correct = {row["uid"]: row["correct"] for row in rows}
    return Row(policy.name, concurrency, metrics["run"]["seconds"][system], found, correct)


def greedy_policy(profile: Profile, batch_size: int) -> Policy:
    """The profile's own model, decoding greedily, with so many conversations a batch."""
    return profile.with_policy_options(temperature=0.0, batch_size=batch_size).load_policy()


def compare(one: Row, other: Row) -> tuple[str, bool]:
    """How two rows of a model differ, in words, and whether an answer does."""
    turns = answers = rights = 0
    for uid, first in one.found.items():
        second = other.found[uid]
        turns += [turn.text for turn in first.turns] != [turn.text for turn in second.turns]
        answers += (first.status, first.answer) != (second.status, second.answer)
        rights += one.correct[uid] != other.correct[uid]
    words = f"{turns} with another text in some turn, {answers} with another answer, {rights} otherwise correct"
    return f"{one.model}: of {len(one.found)} questions {words}", bool(answers or rights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--system", default="agent")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--latency", type=float, default=0.5, help="seconds a turn of the remote model; 0: none")
    parser.add_argument("--remote-questions", type=int, default=32)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder for evaluate.md")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    profile = load_profile(arguments.profile)
    engine = profile.search_engine()
    questions = sample(profile.questions(), arguments.questions, 1)
    engine.search([questions[0].query], 1)  # the first search pays for reading the index
    system, many = arguments.system, arguments.concurrency
    pairs: list[list[Row]] = [[]]
    for concurrency in (1, many):
        policy = greedy_policy(profile, concurrency)
        pairs[0].append(run(profile, engine, policy, questions, system, concurrency))
        policy.close()
    if arguments.latency > 0:
        few = questions[: arguments.remote_questions]
        with canned_endpoint(arguments.latency) as url:
            policy = OpenAIPolicy(f"remote, {arguments.latency:g} s", url, api_key_env=None)
            pairs.append([run(profile, engine, policy, few, system, concurrency) for concurrency in (1, many)])
            policy.close()
    compared = [compare(alone, together) for alone, together in pairs]
    notes = "\n".join(words for words, _ in compared)
    tell_rows(pairs, f"Evaluation, system {system}, {torch.get_num_threads()} threads", notes, arguments.out)
    return 1 if any(differs for _, differs in compared) else 0


def tell_rows(pairs: Sequence[Sequence[Row]], title: str, notes: str, out: Path | None) -> None:
    """A row an evaluation, with how many times as fast as one question at a time it is."""
    cells = []
    for rows in pairs:
        for row in rows:
            turns = sum(len(one.turns) for one in row.found.values()) / len(row.found)
            figures = (f"{row.seconds:.1f}", f"{row.rate:.2f}", f"{row.rate / rows[0].rate:.2f}", f"{turns:.2f}")
            errors = sum(one.status == "error" for one in row.found.values())
            cells.append([row.model, str(row.concurrency), str(len(row.found)), *figures, str(errors)])
    head = ["model", "at once", "asked", "seconds", "asked/s", "times", "turns", "errors"]
    tell(title, head, cells, notes, out)


if __name__ == "__main__":
    sys.exit(main())
