"""A judge model: is this answer right, given the question and the reference? Over any OpenAI-compatible endpoint.

The protocol is the binary one of the papers: the judge is shown the question, the reference answer and the answer, and
says true or false; detail beyond the reference is allowed. Verdicts are cached on disk by model, prompt and texts, so
a question is paid for once and a killed run goes on where it was. A trajectory without an answer is false, unasked. A
judge that stays away, is cut off or says neither outside of its thinking is an error of its sample, never a silent 0.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from vrag_nb.agent import thinking
from vrag_nb.agent.chat_endpoint import ChatEndpoint, EndpointError, Said, endpoint_key
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.files import append_line, read_lines
from vrag_nb.records import without_surrogates

PROMPT = """Decide whether an answer to a question is right.

Question: {question}
Reference answer: {reference}
Answer: {answer}

The answer is right if it says what the reference says. It may be worded otherwise, and may say more, as long as \
nothing in it contradicts the reference. Numbers must agree in value and unit.
End with <judge>True</judge> or <judge>False</judge>."""
Case = tuple[str, str, str | None]  # question, reference, answer
VERDICT = re.compile(r"<judge>\s*(true|false)\s*</judge>", re.IGNORECASE)


class JudgeError(RuntimeError):
    """The judge did not answer, or said neither true nor false."""


@dataclass
class Usage:
    """What a judge was asked and what that took."""

    asked: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Judge:
    """A reward part (`many`) and a verdict on single answers.

    model, base_url: the endpoint's. api_key_env: the environment variable with the key, None where none is needed.
    workers: requests at once. retries: attempts after the first on connection errors, rate limits and server errors,
    with growing waits. cache: a JSON lines file of verdicts. prompt: with {question}, {reference} and {answer} to fill.
    timeout: seconds of an attempt. Raises ValueError when the variable is not set or holds no key, or base_url is no
    address.
    """

    model: str
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    workers: int = 8
    retries: int = 3
    timeout: float = 60.0
    cache: Path | None = None
    prompt: str = PROMPT
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        key = endpoint_key(self.api_key_env)
        self._endpoint = ChatEndpoint(self.base_url, key, retries=self.retries, timeout=self.timeout)
        self._lock = threading.Lock()
        self.cache = Path(self.cache) if self.cache else None
        self._known = _read_cache(self.cache)

    @property
    def identity(self) -> dict[str, str]:
        """What its verdicts follow from, as in the cache; not where it is reached."""
        return {"model": self.model, "prompt": self.prompt}

    def many(self, trajectories: Sequence[Trajectory]) -> list[float | Exception]:
        """1 for an answer judged right, 0 for a wrong or missing one, an exception where there is no verdict.

        Answers that occur several times, as in a group of samples, are judged once.
        """
        cases = [_case(trajectory) for trajectory in trajectories]
        known = [case for case in dict.fromkeys(cases) if not isinstance(case, JudgeError)]
        with ThreadPoolExecutor(max_workers=max(1, self.workers)) as pool:
            verdicts = dict(zip(known, pool.map(self._score, known), strict=True))
        return [case if isinstance(case, JudgeError) else verdicts[case] for case in cases]

    def _score(self, case: Case) -> float | Exception:
        try:
            return float(self.verdict(*case))
        except JudgeError as error:
            return error

    def verdict(self, question: str, reference: str, answer: str | None) -> bool:
        """Whether the answer is right. Raises JudgeError where the judge cannot be had or does not say."""
        if not (answer or "").strip():
            return False
        filled = self.prompt
        for name, text in (("{question}", question), ("{reference}", reference), ("{answer}", str(answer))):
            filled = filled.replace(name, text)
        key = hashlib.sha256(f"{self.model}\n{filled}".encode()).hexdigest()
        with self._lock:
            if key in self._known:
                self.usage.cached += 1
                return self._known[key]
        said = self._ask(filled)
        with self._lock:
            self._known[key] = said
            if self.cache is not None:
                append_line(self.cache, json.dumps({"key": key, "model": self.model, "right": said}))
        return said

    def _ask(self, prompt: str) -> bool:
        messages = [{"role": "user", "content": without_surrogates(prompt)}]
        try:
            said = self._endpoint.ask(model=self.model, messages=messages, temperature=0.0)
        except EndpointError as error:
            raise self._failure(f"the judge {self.model} could not be asked: {error}") from None
        self._count(said)
        if said.finish_reason == "length":
            raise self._failure(f"the judge {self.model} was cut off before its verdict: {said.text[-120:]!r}")
        verdicts = VERDICT.findall(thinking.outside(said.text))
        if not verdicts:
            raise self._failure(f"the judge {self.model} gave no verdict: {said.text[-120:]!r}")
        return bool(verdicts[-1].lower() == "true")

    def _failure(self, message: str) -> JudgeError:
        with self._lock:
            self.usage.failed += 1
        return JudgeError(self._endpoint.without_key(message))

    def _count(self, said: Said) -> None:
        with self._lock:
            self.usage.asked += 1
            self.usage.prompt_tokens += said.prompt_tokens
            self.usage.completion_tokens += said.completion_tokens


def _case(trajectory: Trajectory) -> Case | JudgeError:
    if trajectory.reference is None:
        return JudgeError(f"trajectory {trajectory.uid} has no reference answer to judge by")
    return trajectory.question, trajectory.reference.reference_answer, trajectory.answer


def _read_cache(path: Path | None) -> dict[str, bool]:
    """Cached verdicts; lines that a killed process left half written are left out."""
    known: dict[str, bool] = {}
    if path is None:
        return known
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    if Path(path).is_file():
        for line in read_lines(path):
            try:
                row = json.loads(line)
                known[row["key"]] = bool(row["right"])
            except (ValueError, KeyError, TypeError):
                continue
    return known
