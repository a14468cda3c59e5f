"""Group-relative advantages (GRPO; VRAG-RL, arXiv 2505.22019, appendix C)."""

from __future__ import annotations

import torch

EPSILON = 1e-6


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """(B,) advantages of (B,) rewards, groups of `group_size` side by side: (r - mean) / (std + 1e-6) in each group.

    The standard deviation is that of the sample (n - 1), as in upstream's trainer. A reward that is nan (it could not
    be worked out) is left out of its group's mean and deviation and gets the advantage 0, as does the only reward of a
    group. Raises ValueError where the groups do not come out even.
    """
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards do not make groups of {group_size}")
    grouped = rewards.double().view(-1, group_size)  # float32 would make a little of five equal rewards
    known = ~grouped.isnan()
    count = known.sum(1, keepdim=True)
    mean = grouped.nansum(1, keepdim=True) / count.clamp(min=1)
    off = torch.where(known, grouped - mean, torch.zeros_like(grouped))
    std = (off.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return torch.where(count > 1, off / (std + EPSILON), torch.zeros_like(off)).flatten().float()
