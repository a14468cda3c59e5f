"""What a step of reinforcement learning is judged by, from its trajectories and their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.learning.rewards import Scored


def step_figures(
    trajectories: Sequence[Trajectory], scored: Sequence[Scored], parts: Sequence[str]
) -> dict[str, float]:
    """Means over a step: reward and its parts, invalid actions a generation, turns, searches, crops, tokens.

    finish_rate: of trajectories with an answer. forced_rate: of those that had to be asked for it on the extra turn.
    """
    count = max(1, len(trajectories))
    turns = [turn for one in trajectories for turn in one.turns]
    totals = [one.total for one in scored if one.total is not None]
    kinds = [turn.taken for turn in turns]
    return {
        "reward": _mean(totals),
        "reward_std": float(torch.tensor(totals).std()) if len(totals) > 1 else 0.0,
        **{f"reward/{name}": _mean([one.parts[name] for one in scored if name in one.parts]) for name in parts},
        "unscored_rate": 1 - len(totals) / count,
        "invalid_action_rate": sum(turn.invalid for turn in turns) / max(1, sum(turn.generations for turn in turns)),
        "finish_rate": sum(one.answer is not None for one in trajectories) / count,
        "forced_rate": sum(any(turn.forced for turn in one.turns) for one in trajectories) / count,
        "turns": len(turns) / count,
        "searches": kinds.count("search") / count,
        "crops": kinds.count("bbox") / count,
        "generated_tokens": sum(one.generated_tokens for one in trajectories) / count,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
