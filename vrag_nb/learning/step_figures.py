"""What a step of reinforcement learning is judged by, from its trajectories and their rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.per_question import conduct
from vrag_nb.learning.rewards import Scored

CONDUCT = ("invalid_action_rate", "finish_rate", "forced_rate", "turns", "searches", "crops", "generated_tokens")


def step_figures(
    trajectories: Sequence[Trajectory], scored: Sequence[Scored], parts: Sequence[str]
) -> dict[str, float]:
    """Means over a step's trajectories: reward and its parts, and of `per_question.conduct` CONDUCT, as an evaluation
    counts them. NaN where no trajectory has the figure."""
    count = max(1, len(trajectories))
    totals = [one.total for one in scored if one.total is not None]
    conducts = [conduct(one) for one in trajectories]
    return {
        "reward": _mean(totals),
        "reward_std": float(torch.tensor(totals).std()) if len(totals) > 1 else 0.0,
        **{f"reward/{name}": _mean([one.parts[name] for one in scored if name in one.parts]) for name in parts},
        "unscored_rate": 1 - len(totals) / count,
        **{name: _mean([one[name] for one in conducts if name in one]) for name in CONDUCT},
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
