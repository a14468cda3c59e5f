"""Questions split by document, so that nothing is learned from a document twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import networkx as nx

from vrag_nb.records import Question


def disjoint(questions: Sequence[Question], share: float, seed: int = 0) -> tuple[list[Question], list[Question]]:
    """The questions of about `share` of the documents, and those of the others: no document is in both.

    Documents that a question needs together stay together.
    """
    graph: nx.Graph = nx.Graph()
    for question in questions:
        nx.add_path(graph, [question.document, *question.gold_documents])
        graph.add_node(question.document)
    together = sorted((sorted(documents) for documents in nx.connected_components(graph)), key=lambda some: some[0])
    random.Random(seed).shuffle(together)
    first, wanted = set[str](), round(share * len(graph))
    for documents in together:
        if len(first) < wanted:
            first.update(documents)
    return [q for q in questions if q.document in first], [q for q in questions if q.document not in first]
