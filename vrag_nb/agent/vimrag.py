"""VimRAG in one object: ask a question, watch its memory grow, get a trajectory.

    agent = VimRAG("qwen3-vl-8b", base_url="http://127.0.0.1:8000/v1", search_url="http://127.0.0.1:8001")
    for event in agent.run({"query": "What was revenue in 2019?"}):
        print(event.kind, event.text)
    agent.ask("What was revenue in 2019?").answer

The model is an OpenAI-compatible endpoint and the search a server of this project, or any `policy`, `engine` and
`corpus` of one's own. A key is used for the endpoint and goes nowhere else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image as PILImage

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_graph import MemoryGraph
from vrag_nb.agent.memory_records import Offered, Remembered, Reply
from vrag_nb.agent.memory_session import MemorySession
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Policy, check_factor, generate_safely, turn_seed
from vrag_nb.agent.search_client import SearchClient
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory, Turn
from vrag_nb.records import Hit, Question, as_question

# A model that thinks at length and calls tools wants long replies, time for them, and no stop strings, which a thought
# may quote. 4096 new tokens are the official demo's limit.
MODEL_OPTIONS: dict[str, Any] = {"max_new_tokens": 4096, "timeout": 300.0, "stop": False}

EventKind = Literal["think", "search", "memorize", "graph", "answer", "notice", "error"]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    kind: think - a thought; search - a query, with its node, parents, hits, what of them was offered under which label,
    and the images of that; memorize - a node's summary; graph - the graph after a change, with what the memory shows
    now; notice - what the model was told about a fault; answer; error. step: generations before it. The last event of a
    question carries the whole `trajectory`: it is the answer, the error, or a notice that there is none.
    """

    kind: EventKind
    step: int
    text: str = ""
    node: str = ""
    parents: tuple[str, ...] = ()
    hits: list[Hit] = field(default_factory=list, repr=False)
    offered: list[Offered] = field(default_factory=list, repr=False)
    images: list[PILImage.Image] = field(default_factory=list, repr=False, compare=False)
    graph: MemoryGraph | None = field(default=None, repr=False, compare=False)
    remembered: list[Remembered] = field(default_factory=list, repr=False)
    trajectory: Trajectory | None = field(default=None, repr=False)


class VimRAG:
    """A policy, a search and pages, ready to be asked.

    model_name, base_url, api_key (or api_key_env, the variable that holds it; None for a server that wants none),
    enable_thinking, model_options: of an `OpenAIPolicy`, with `MODEL_OPTIONS` where
    model_options say nothing else; or a `policy`. search_url, search_token: of a search server;
    or an `engine` and a `corpus` (a prepared folder or an open store; with a server it spares fetching the pages).
    prompt: a template's name or path. Further options are those of `MemorySettings` (memory, max_steps, top_k, ...).
    Raises ValueError where a part is missing, the key's variable is not set or the factor is not the policy's, and what
    `MemoryEnvironment` raises.
    """

    def __init__(
        self,
        model_name: str | None = None,
        *,
        base_url: str | None = None,
        search_url: str | None = None,
        search_token: str | None = None,
        api_key: str | None = None,
        api_key_env: str | None = "OPENAI_API_KEY",
        enable_thinking: bool | None = None,
        model_options: Mapping[str, Any] | None = None,
        policy: Policy | None = None,
        engine: Engine | None = None,
        corpus: Path | str | Pages | None = None,
        prompt: str | Path | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        if policy is None and model_name is None:
            raise ValueError("name a model (model_name, base_url, api_key), or give a policy")
        client = SearchClient(search_url, token=search_token) if search_url else None
        pages = Path(corpus) if isinstance(corpus, str) else corpus or client
        if pages is None or (engine is None and client is None):
            raise ValueError("give the search_url of a search server, or an engine and its corpus")
        self.environment = MemoryEnvironment(engine or client, pages, MemorySettings(**settings), prompt)
        self.policy: Policy = policy or OpenAIPolicy(
            model_name or "",
            base_url,
            api_key=api_key,
            api_key_env=api_key_env,
            enable_thinking=enable_thinking,
            **{**MODEL_OPTIONS, **(model_options or {})},
        )
        check_factor(self.policy, self.environment.settings.factor)
        self.seed = seed

    def run(self, question: str | Mapping[str, Any] | Question) -> Generator[Event, None, Trajectory]:
        """The events of one question as they happen; the generator returns the trajectory.

        question: its text, `{"query": text}`, or a `Question`. Raises ValueError for one without text; whatever fails
        later is an event.
        """
        return self._stream(self.environment.start(as_question(question)))

    def ask(self, question: str | Mapping[str, Any] | Question) -> Trajectory:
        """Work a question through. Failures are in the trajectory's status and error, not raised."""
        *_, last = self.run(question)
        assert last.trajectory is not None
        return last.trajectory

    def _stream(self, session: MemorySession) -> Generator[Event, None, Trajectory]:
        step = 0
        while not session.done:
            step = session.steps
            yield from self._step(session, step)
        trajectory = self.environment.finish(session, self.policy.name)
        kind: EventKind = "answer" if trajectory.status == "answered" else "notice"
        text = trajectory.answer or f"no answer after {session.steps} steps"
        if trajectory.error is not None:
            kind, text = "error", trajectory.error
        yield Event(kind, step, text, graph=session.graph.copy(), trajectory=trajectory)
        return trajectory

    def _step(self, session: MemorySession, step: int) -> Iterator[Event]:
        environment, memorising, node = self.environment, session.memorising, session.node
        seeds = [turn_seed(self.seed, session.uid, session.steps)]
        [generation] = generate_safely(self.policy, [session.conversation], seeds)
        environment.receive(session, generation)
        if session.done:
            return
        turn = session.turns[-1]
        reply = turn.memory.replies[-1] if memorising and turn.memory else None
        thought = (reply or turn).thought
        if thought:
            yield Event("think", step, thought)
        environment.carry_out(session, environment.search(session) if environment.wants_search(session) else [])
        if session.error is not None:
            if turn.memory and turn.memory.node and reply is None:  # what was searched for when it failed
                yield _searched(turn, step, [])
            return
        yield from _memorised(session, reply, node, step) if reply is not None else _acted(session, turn, step)


def _acted(session: MemorySession, turn: Turn, step: int) -> Iterator[Event]:
    """What an action at the start of a cycle did."""
    memory = turn.memory
    assert memory is not None
    if memory.node:
        images = [image.resolved() for image in session.conversation[-1].images] if memory.offered else []
        yield _searched(turn, step, images)
    for notice in turn.notices:
        yield Event("notice", step, notice)
    if memory.node or turn.action.kind == "answer":
        yield _grown(session, step, memory.node)


def _searched(turn: Turn, step: int, images: list[PILImage.Image]) -> Event:
    memory = turn.memory
    assert memory is not None
    query, parents = turn.action.query or "", tuple(memory.action.parents or ())
    return Event("search", step, query, memory.node, parents, hits=turn.hits, offered=memory.offered, images=images)


def _memorised(session: MemorySession, reply: Reply, node: str, step: int) -> Iterator[Event]:
    """What an action after a search did."""
    if reply.notice:
        yield Event("notice", step, reply.notice, node)
        return
    if reply.action.kind == "memorise":
        yield Event("memorize", step, reply.action.summary or "", node)
        yield _grown(session, step, node)


def _grown(session: MemorySession, step: int, node: str) -> Event:
    return Event("graph", step, node=node, graph=session.graph.copy(), remembered=list(session.remembered))
