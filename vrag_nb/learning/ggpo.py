"""Graph-guided policy optimisation (GGPO; VimRAG, arXiv 2602.12735, equations 11 and 12).

A trajectory is a list of segments, one a node of its memory graph, each with a context of its own. All share the
trajectory's group-relative advantage, apart from those that the mask leaves out: in a right trajectory the nodes that
the answer does not follow from, in a wrong one the nodes that found a relevant page. The rest is GSPO: one ratio for a
segment, normalised by its length, and clipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import torch

from vrag_nb.agent.memory_graph import ROOT, MemoryGraph


def left_out(graph: MemoryGraph, right: bool, found: Mapping[str, Set[str]], relevant: Set[str]) -> dict[str, bool]:
    """mu (equation 11) by node, the root apart: True where a segment gets no gradient.

    right: whether the trajectory's answer was. found: by node, the names of what its search showed. relevant: names of
    the gold pages or items.
    """
    path = graph.path()
    names = [node.name for node in graph.nodes if node.name != ROOT]
    if right:
        return {name: name not in path for name in names}
    return {name: bool(relevant & found.get(name, frozenset())) for name in names}


def ggpo_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    written: torch.Tensor,
    advantages: torch.Tensor,
    masked: torch.Tensor,
    clip: float = 0.2,
) -> torch.Tensor:
    """The negative of equation 12 as it stands, a scalar: what training computes (`learning.grpo`) is held to it.

    logps, old_logps: (S, T) log-probabilities of the segments' tokens, now and when sampled. written: (S, T) bool, what
    the model wrote. advantages: (S,) of each segment's trajectory. masked: (S,) bool, mu. The mean is over all
    segments, the masked ones included, as the equation has it; none of their tokens gets any gradient.
    """
    lengths = written.sum(1).clamp(min=1)
    ratio = torch.exp(torch.where(written, logps - old_logps, 0.0).sum(1) / lengths)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -torch.where(masked, torch.zeros_like(gain), gain).mean()
