"""What VimRAG's task is, and what one question's state is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from vrag_nb.agent.actions import Action
from vrag_nb.agent.memory_graph import MemoryGraph
from vrag_nb.agent.memory_records import MemoryAction, MemoryTurn, Offered, Remembered, Reply
from vrag_nb.agent.policy import Conversation, Generation
from vrag_nb.agent.trajectory import Turn
from vrag_nb.records import Question


@dataclass
class MemorySession:
    """One question being worked on: its graph, its turns, and the conversation of the cycle it is in.

    memorising: a search has been shown and is to be written down under `node`. pending: an action accepted and not
    carried out yet. remembered: what this cycle's context shows.
    """

    uid: str
    question: Question
    prompt: str
    graph: MemoryGraph
    conversation: Conversation = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    remembered: list[Remembered] = field(default_factory=list)
    offered: list[Offered] = field(default_factory=list)
    node: str = ""
    memorising: bool = False
    pending: MemoryAction | None = None
    done: bool = False
    forced: bool = False  # the next step is the last one
    answer: str | None = None
    error: str | None = None
    started: float = field(default_factory=time.perf_counter)
    step_started: float = field(default_factory=time.perf_counter)

    @property
    def steps(self) -> int:
        """Generations so far."""
        return sum(turn.generations for turn in self.turns)


def new_turn(session: MemorySession, generation: Generation, thought: str, action: MemoryAction) -> Turn:
    """The record of a cycle's first generation. Its `action` is what VRAG would call it: a search, an answer, or an
    invalid one."""
    node = session.node if action.kind == "retrieve" and not session.forced else ""
    return Turn(
        index=len(session.turns),
        text=generation.text,
        thought=thought,
        action=_as_vrag_action(action),
        token_ids=generation.token_ids,
        logprobs=generation.logprobs,
        prompt_tokens=generation.prompt_tokens,
        finish_reason=generation.finish_reason,
        forced=session.forced,
        memory=MemoryTurn(action=action, node=node, remembered=session.remembered),
    )


def new_reply(generation: Generation, thought: str, action: MemoryAction) -> Reply:
    """The record of a generation after a search."""
    return Reply(
        text=generation.text,
        thought=thought,
        action=action,
        token_ids=generation.token_ids,
        logprobs=generation.logprobs,
        prompt_tokens=generation.prompt_tokens,
        finish_reason=generation.finish_reason,
    )


def _as_vrag_action(action: MemoryAction) -> Action:
    if action.kind == "retrieve":
        return Action(kind="search", query=action.query)
    if action.kind == "answer":
        return Action(kind="answer", answer=action.answer)
    return Action(kind="invalid", query=action.query, problem=action.problem)
