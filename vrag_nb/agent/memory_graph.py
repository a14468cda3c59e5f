"""VimRAG's multimodal memory graph (arXiv 2602.12735, section 3.1): what an agent has asked, read and kept.

    graph = MemoryGraph("Which country grew faster?")
    graph.open("a", ["root"], "growth of Norway")          # before a search
    graph.memorise("a", "Norway grew by 2%", [Item("deck_3", priority=4)])
    graph.answer(["a"], "Norway")
    graph.path()                                           # {"root", "a", "answer"}

A node is a search: which nodes it follows from, what it asked, a summary of what came back, and the items to keep.
Parents must be there before their child, so the graph has no cycles by construction; what is loaded from a record is
checked. The question is the node `root`; the answer is the node `answer`, and nothing follows it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import networkx as nx
from pydantic import BaseModel, ConfigDict, Field

ROOT, ANSWER = "root", "answer"
LONGEST_NAME = 64  # characters of a node's name


class GraphError(ValueError):
    """A change that does not fit the graph; the text says why, so that a model can be told."""


class Item(BaseModel):
    """Something seen that is kept: a page, a text or a part of a video, by name, and how important it is (1 to 5).

    kind: of `memory_items.KINDS`. timestamps: seconds of a video's frames that matter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    priority: int = Field(ge=1, le=5)
    kind: str = "image"
    timestamps: tuple[float, ...] = ()


class Node(BaseModel):
    """One step: its parents, its sub-query, a summary of what it found, and the items kept. The root's query is the
    question; the answer's summary is the answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    parents: tuple[str, ...] = ()
    query: str = ""
    summary: str = ""
    items: tuple[Item, ...] = ()


class MemoryGraph:
    """A growing graph of nodes, in the order in which they were opened."""

    def __init__(self, question: str) -> None:
        self._nodes: dict[str, Node] = {ROOT: Node(name=ROOT, query=question)}

    @property
    def nodes(self) -> list[Node]:
        """All nodes, parents before their children."""
        return list(self._nodes.values())

    @property
    def answered(self) -> bool:
        return ANSWER in self._nodes

    def __getitem__(self, name: str) -> Node:
        if name not in self._nodes:
            raise GraphError(f"there is no node {name!r}; there are {', '.join(self._nodes)}")
        return self._nodes[name]

    def known(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are nodes, in their order."""
        return [name for name in names if name in self._nodes]

    def free_name(self, name: str) -> str:
        """The name, with the first number from 2 on behind it that makes it one no node has, if it is taken.

        With its number, too, it is no longer than LONGEST_NAME, which a reference to it is cut to.
        """
        free, number = name, 1
        while free in self._nodes or free == ANSWER:
            number += 1
            mark = f"_{number}"
            free = name[: LONGEST_NAME - len(mark)] + mark
        return free

    def open(self, name: str, parents: Sequence[str], query: str) -> Node:
        """A new node about to be searched for. Raises GraphError for a name that is taken or parents that are not."""
        if name == ANSWER:
            raise GraphError(f"the name {name!r} is taken: it is the answer's")
        if not query.strip():
            raise GraphError(f"node {name!r} has no query")
        return self._add(Node(name=name, parents=tuple(dict.fromkeys(parents)), query=query))

    def memorise(self, name: str, summary: str, items: Sequence[Item] = ()) -> Node:
        """Write down what a search brought. Raises GraphError for an unknown node, or the root or the answer."""
        if name in (ROOT, ANSWER):
            raise GraphError(f"node {name!r} is no search: it has nothing to remember")
        self._nodes[name] = self[name].model_copy(update={"summary": summary, "items": tuple(items)})
        return self._nodes[name]

    def answer(self, parents: Sequence[str], text: str) -> Node:
        """The last node: what is answered, and the nodes it follows from. Raises GraphError as `open` does."""
        return self._add(Node(name=ANSWER, parents=tuple(dict.fromkeys(parents)), summary=text))

    def _add(self, node: Node) -> Node:
        if self.answered:
            raise GraphError("the question is answered: no node can follow")
        if not node.name or node.name in self._nodes:
            raise GraphError(f"the name {node.name!r} is taken" if node.name else "a node needs a name")
        if not node.parents:
            raise GraphError(f"node {node.name!r} has no parents; the first ones follow from {ROOT!r}")
        for parent in node.parents:
            _ = self[parent]
        self._nodes[node.name] = node
        return node

    def copy(self) -> MemoryGraph:
        """The graph as it is now; nodes never change, so only their list is copied."""
        graph = MemoryGraph("")
        graph._nodes = dict(self._nodes)
        return graph

    # what it looks like

    def as_networkx(self) -> nx.DiGraph:
        """Edges from parents to children."""
        graph = nx.DiGraph()
        for node in self.nodes:
            graph.add_node(node.name)
            graph.add_edges_from((parent, node.name) for parent in node.parents)
        return graph

    def children(self, name: str) -> list[str]:
        """Names of the nodes that follow from one, in order."""
        return [node.name for node in self.nodes if self[name].name in node.parents]

    def path(self) -> set[str]:
        """P_ans: the answer, and every node met walking parents back from it; empty before there is an answer."""
        if not self.answered:
            return set()
        return {ANSWER, *nx.ancestors(self.as_networkx(), ANSWER)}

    def redundant(self) -> list[str]:
        """Nodes that the answer does not follow from; none before there is an answer."""
        path = self.path()
        return [node.name for node in self.nodes if node.name not in path] if path else []

    def dead_ends(self) -> list[str]:
        """Searches that nothing follows from."""
        return [node.name for node in self.nodes if node.name not in (ROOT, ANSWER) and not self.children(node.name)]

    def linearise(self) -> str:
        """The graph as text for a prompt: a JSON line per node in order, items by name with their priority."""
        return "\n".join(json.dumps(_line(node), ensure_ascii=False) for node in self.nodes)

    # records

    def dump(self) -> list[dict[str, Any]]:
        """As plain data, for a trajectory's record."""
        return [node.model_dump(mode="json") for node in self.nodes]

    @classmethod
    def load(cls, data: Sequence[dict[str, Any]]) -> MemoryGraph:
        """What `dump` gave. Raises GraphError where a parent is missing or comes later, or the root does not lead."""
        nodes = [Node.model_validate(one) for one in data]
        if not nodes or nodes[0].name != ROOT or nodes[0].parents:
            raise GraphError(f"the first node must be {ROOT!r}, without parents")
        graph = cls(nodes[0].query)
        for node in nodes[1:]:
            graph._add(node)
        return graph


def _line(node: Node) -> dict[str, Any]:
    kept: dict[str, int] = {}
    for item in node.items:  # one that is kept as an image and as a text has the higher priority
        kept[item.name] = max(item.priority, kept.get(item.name, 0))
    fields = {
        "id": node.name,
        "parents": list(node.parents),
        "query": node.query,
        "summary": node.summary,
        "kept": kept,
    }
    return {name: value for name, value in fields.items() if value}
