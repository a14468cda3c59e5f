"""How many pixels each remembered image is worth: VimRAG's graph-modulated visual memory (arXiv 2602.12735, eq. 6-8).

An item's energy grows with its priority and with how much was built on its node, fades with the steps since, and takes
a share of what its node's children hold:

    E(v_i, k) = p_k / 5 * (1 + children(v_i)) * exp(-decay * (T - t_i))                                          (6)
    W(v_i, k) = E(v_i, k) + feedback * sum over children c of the mean of W(c, .)                                (7)
    pixels    = floor(budget * W / sum of W over the top K)                                                      (8)

T is the number of the last node and t_i that of the node, the root being 0. Where a paper's notes leave a choice, it is
the official demo's: a child without items gives nothing back. Uniform allocation, which the paper trains with and
compares against, is `uniform`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

from vrag_nb.agent.memory_graph import ANSWER, MemoryGraph
from vrag_nb.agent.task_settings import BUDGET, DECAY, FEEDBACK, TOP_K

Key = tuple[str, int]  # a node's name, and the place of an item in it


def energies(graph: MemoryGraph, decay: float = DECAY, feedback: float = FEEDBACK) -> dict[Key, float]:
    """W (equation 7) of every item, all above 0. The answer node, which remembers nothing, is no child."""
    nodes = [node for node in graph.nodes if node.name != ANSWER]
    last, place = len(nodes) - 1, {node.name: number for number, node in enumerate(nodes)}
    found: dict[Key, float] = {}
    means: dict[str, float] = {}
    for node in reversed(nodes):  # children come after their parents
        children = [name for name in graph.children(node.name) if name != ANSWER]
        given = feedback * sum(means[name] for name in children)
        fading = math.exp(-decay * (last - place[node.name]))
        own = [item.priority / 5 * (1 + len(children)) * fading + given for item in node.items]
        found |= {(node.name, number): value for number, value in enumerate(own)}
        means[node.name] = sum(own) / len(own) if own else 0.0
    ordered = [(node.name, number) for node in nodes for number in range(len(node.items))]
    return {key: max(found[key], sys.float_info.min) for key in ordered}  # a great decay makes zeros of old ones


def allocate(energy: Mapping[Key, float], budget: int = BUDGET, top_k: int = TOP_K) -> dict[Key, int]:
    """Pixels (equation 8) of the `top_k` items of most energy; the others are dropped. Equals keep their order.

    The sum never exceeds the budget.
    """
    chosen = sorted(energy, key=lambda key: -energy[key])[:top_k]
    whole = sum(energy[key] for key in chosen)
    shares = {key: energy[key] / whole * budget for key in energy if key in chosen}
    # What should be whole may come out a last bit below, and a pixel less can cost an image a row of squares.
    return {key: math.floor(share * (1 + sys.float_info.epsilon * 16)) for key, share in shares.items()}


def uniform(energy: Mapping[Key, float], budget: int = BUDGET, top_k: int = TOP_K) -> dict[Key, int]:
    """The same items with equal shares of the budget."""
    chosen = allocate(energy, budget, top_k)
    return {key: budget // len(chosen) for key in chosen}
