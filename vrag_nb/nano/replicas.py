"""Training on several processes, each on a core of its own with samples of its own: data parallelism over gloo.

`torchrun --nproc-per-node 2 -m vrag_nb.nano.recipe --threads 1 find` starts such a run. Two threads of one process meet
after every matrix product, and wait there for whatever else the machine does; two processes meet once a step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist


def join() -> None:
    """Meet the other processes of a run that `torchrun` started; nothing to do in any other."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")


def rank() -> int:
    """This process' number, 0 for the first or only one."""
    return dist.get_rank() if dist.is_initialized() else 0


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def wait() -> None:
    """Until every process is here."""
    if dist.is_initialized():
        dist.barrier()


def average(tensors: Sequence[torch.Tensor]) -> None:
    """Put the mean over all processes into tensors that every process has."""
    if dist.is_initialized() and tensors:
        flat = torch.cat([tensor.flatten().float() for tensor in tensors])  # gloo need not know their format
        dist.all_reduce(flat)
        parts = (flat / dist.get_world_size()).split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def of_the_first(value: float) -> float:
    """What the first process says: the clock that a schedule goes by must be one."""
    if not dist.is_initialized():
        return value
    said = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(said, 0)
    return said.item()
