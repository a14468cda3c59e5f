"""What of a trajectory is learned: its segments, and which of them get no gradient.

VRAG's trajectory is one conversation, so it is one segment. VimRAG starts a conversation in every cycle: each is a
segment of its own, with the context the model had, and belongs to the node of the memory graph that it opened. GGPO
(arXiv 2602.12735, equation 11) leaves segments out by their nodes: where the answer was right, those it does not follow
from; where it was wrong, those that found a relevant page.

Where the equation does not say: a cycle that opened no node (a malformed call) counts as a node off the answer's path.
An answer asked for behind a search's pages, because the steps are used up, is a segment of its own, and the search
before it is context there: it is learned, or masked, with the node that it opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vrag_nb.agent.memory_graph import ANSWER, MemoryGraph
from vrag_nb.agent.memory_records import Reply
from vrag_nb.agent.memory_replay import contexts
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Conversation, Message, Text
from vrag_nb.agent.trajectory import Trajectory, Turn
from vrag_nb.learning.ggpo import left_out

Algorithm = Literal["grpo", "gspo", "ggpo"]


@dataclass(frozen=True)
class Segment:
    """A conversation that ends with the model's words; `node`: of the memory graph, "" for none; `masked`: mu.

    start: messages before this one are context, also those that the model wrote.
    """

    conversation: Conversation
    node: str = ""
    masked: bool = False
    start: int = 0


def segments(trajectory: Trajectory, pages: Pages, right: bool, algorithm: Algorithm = "grpo") -> list[Segment]:
    """The segments of a trajectory, in order; only `ggpo` masks any.

    right: whether its answer was. Raises ValueError where GGPO is asked for and there is no memory graph, and
    KeyError / OSError for a page that is not there.
    """
    if trajectory.graph is None:
        if algorithm == "ggpo":
            raise ValueError(f"trajectory {trajectory.uid} has no memory graph, which GGPO needs: use grpo or gspo")
        return [Segment(trajectory.messages(pages))]
    masks = node_masks(trajectory, right) if algorithm == "ggpo" else {}
    found = []
    for turn, conversation, start in _cycles(trajectory, pages):
        node = _node(turn)
        found.append(Segment(conversation, node, masks.get(node, right) if masks else False, start))
    return found


def conversations(trajectory: Trajectory, pages: Pages) -> list[Conversation]:
    """The conversations of a trajectory, each ending with the model's words. Raises what `segments` raises."""
    return [one.conversation for one in segments(trajectory, pages, right=True)]


def node_masks(trajectory: Trajectory, right: bool) -> dict[str, bool]:
    """mu by node of a VimRAG trajectory, from what its searches showed and its question's gold pages."""
    shown = {turn.memory.node: {one.name for one in turn.memory.offered} for turn in trajectory.turns if turn.memory}
    relevant = set(trajectory.reference.gold_page_ids) if trajectory.reference is not None else set()
    return left_out(MemoryGraph.load(trajectory.graph or []), right, shown, relevant)


def mask_reasons(trajectory: Trajectory, right: bool) -> dict[str, str]:
    """What GGPO does with each node's segment, and why, in words; the root has none."""
    why = "the answer does not follow from it" if right else "it found a gold page"
    return {
        name: f"no gradient: {why}" if masked else "gets the trajectory's advantage"
        for name, masked in node_masks(trajectory, right).items()
    }


def _cycles(trajectory: Trajectory, pages: Pages) -> Iterator[tuple[Turn, Conversation, int]]:
    """Each turn with all that was read and written in it, and how many messages were read before it wrote any."""
    read = iter(contexts(trajectory, pages))
    for turn in trajectory.turns:
        written: Turn | Reply = turn.memory.replies[-1] if turn.memory and turn.memory.replies else turn
        own = [next(read) for _ in range(turn.generations)]
        said = Message("assistant", (Text(written.text),), tuple(written.token_ids))
        yield turn, [*own[-1], said], len(own[0])


def _node(turn: Turn) -> str:
    if turn.memory is None or turn.memory.node:
        return turn.memory.node if turn.memory else ""
    return ANSWER if turn.action.kind == "answer" else ""
