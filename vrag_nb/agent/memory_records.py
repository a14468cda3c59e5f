"""What a VimRAG trajectory holds beyond a VRAG one: tool calls, what was remembered, what was memorised.

One `Turn` of a trajectory is one cycle of VimRAG (arXiv 2602.12735, section 3.1), which is also the segment that graph
guided policy optimisation weighs: the model reads a context rebuilt from its memory graph and searches; it sees what
came back and memorises. The turn itself carries the first of the two generations, `Turn.memory` the rest. So
everything that reads searches, pages and answers from a trajectory reads VimRAG's as it reads VRAG's. A malformed call
in place of a search is a turn of its own; one in place of memorising is a further `Reply` of the same turn.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from vrag_nb.agent.policy import FinishReason


class Judgement(BaseModel):
    """What a model said of one item of a search: its label ("Picture 2"), whether to keep it, how important it is.

    priority: 1 to 5. timestamps: seconds of a video's frames that matter.
    """

    label: str
    useful: bool
    priority: int = Field(ge=1, le=5)
    timestamps: list[float] = Field(default_factory=list)


class MemoryAction(BaseModel):
    """One tool call. retrieve: `node`, `parents`, `query`; memorise: `summary`, `judgements`; answer: `parents`,
    `answer`; invalid: `problem`. A name or parents that the model left out are None."""

    kind: Literal["retrieve", "memorise", "answer", "invalid"]
    node: str | None = None
    parents: list[str] | None = None
    query: str | None = None
    summary: str | None = None
    judgements: list[Judgement] = Field(default_factory=list)
    answer: str | None = None
    problem: str | None = None


class Remembered(BaseModel):
    """One item of the memory as a context showed it.

    name: of the page. kind: of `memory_items.KINDS`. nodes: who keeps it. energy: equation 7, summed over them. pixels:
    what it was allotted; shown_size: the (width, height) that made of it, None for a text or where the allotment is
    less than one token; of a video, what it makes of a single frame. timestamps: seconds of a video's frames that
    matter.
    """

    name: str
    kind: str = "image"
    nodes: list[str]
    energy: float
    pixels: int = 0
    shown_size: tuple[int, int] | None = None
    timestamps: list[float] = Field(default_factory=list)


class Offered(BaseModel):
    """One item that a search showed, under the label the model was given for it."""

    label: str
    name: str
    kind: str = "image"


class Reply(BaseModel):
    """A generation after a search: the memorising, or a failed attempt at it with the `notice` that answered it.

    finish_reason: as a turn's.
    """

    text: str
    thought: str
    action: MemoryAction
    notice: str = ""
    finish_reason: FinishReason | None = None
    token_ids: list[int] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    prompt_tokens: int = 0
    seconds: float = 0.0


class MemoryTurn(BaseModel):
    """The memory's side of one cycle.

    action: the first call. node: the node it opened, empty where it opened none. remembered: what its context showed.
    offered: what its search showed. replies: the generations after the search, in order.
    """

    action: MemoryAction
    node: str = ""
    remembered: list[Remembered] = Field(default_factory=list)
    offered: list[Offered] = Field(default_factory=list)
    replies: list[Reply] = Field(default_factory=list)
