"""What VimRAG's task is, and what one question's state is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from vrag_nb.agent.actions import Action
from vrag_nb.agent.geometry import Budget
from vrag_nb.agent.memory_energy import BUDGET, DECAY, FEEDBACK, TOP_K
from vrag_nb.agent.memory_graph import MemoryGraph
from vrag_nb.agent.memory_records import MemoryAction, MemoryTurn, Offered, Remembered, Reply
from vrag_nb.agent.policy import Conversation, Generation
from vrag_nb.agent.trajectory import Turn
from vrag_nb.records import Question

# summary: one running summary; graph: the graph's text; multimodal: and the kept items, with equal shares of the
# pixels; energy: with shares by energy. Each adds to the one before, as in the paper's ablation.
MemoryKind = Literal["summary", "graph", "multimodal", "energy"]


class MemorySettings(BaseModel):
    """What the task is. Written into every trajectory.

    memory: what is remembered between cycles. max_steps: generations at most; the last one is asked for the answer.
    top_k: pages one search shows. items: as what a page is offered (`memory_items.KINDS`): "image", "text", "video".
    min_pixels, max_pixels, factor: the budget of one image that a search shows. memory_pixels, memory_items: pixels of
    all remembered images together, and how many there are at most. decay, feedback: lambda and gamma of the energies.
    text_chars: characters of one text at most. caption: what is said before each item that a search shows; {query}
    stands for its query. formats, memorise_text, forced_text, nothing_found_text: what the environment says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    memory: MemoryKind = "energy"
    max_steps: int = Field(default=20, ge=1)
    top_k: int = Field(default=3, ge=1)
    items: tuple[str, ...] = Field(default=("image",), min_length=1)
    min_pixels: int = 4 * 28 * 28
    max_pixels: int = 1280 * 28 * 28
    factor: int = 28
    memory_pixels: int = Field(default=BUDGET, ge=1)
    memory_items: int = Field(default=TOP_K, ge=1)
    decay: float = Field(default=DECAY, ge=0)
    feedback: float = Field(default=FEEDBACK, ge=0)
    text_chars: int = Field(default=4000, ge=1)
    caption: str = ""
    system: str | None = None
    formats: str = "Call one of add_search_node, summarize_and_memorize and add_answer_node, as JSON in <tool_call>."
    memorise_text: str = "Write down now what this brought: call summarize_and_memorize."
    forced_text: str = "This is the last step. Answer now: call add_answer_node."
    nothing_found_text: str = "The search found nothing."

    @property
    def budget(self) -> Budget:
        return Budget(self.min_pixels, self.max_pixels, self.factor)

    @property
    def keeps_graph(self) -> bool:
        """Whether contexts show the graph, and not just its last summary."""
        return self.memory != "summary"

    @property
    def keeps_items(self) -> bool:
        """Whether items are kept beside the summaries."""
        return self.memory in ("multimodal", "energy")


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
