"""What every nano training run shares: schedule, optimisers, resumable state.

Matrices of the towers' blocks are updated by Muon (orthogonalised momentum), everything else by AdamW. On a GPU
training is done in bfloat16; on a CPU that is no faster in it, in float32.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vrag_nb.nano import replicas
from vrag_nb.number_formats import CPU, quick_dtype


@dataclass(frozen=True)
class Schedule:
    """For how long a run trains, how fast it learns, and how often it is heard of.

    seconds, steps: the budget, of wall-clock time and of steps; whichever is spent first ends the run. muon_lr,
    adamw_lr: learning rates at their peak. warmup, decay: shares of the run; rates rise linearly over the first, stay,
    and fall linearly to zero over the last. log_every, save_every: steps.

    Raises ValueError for a run without an end.
    """

    seconds: float = math.inf
    steps: int | None = None
    muon_lr: float = 2e-3
    adamw_lr: float = 1e-3
    warmup: float = 0.02
    decay: float = 0.4
    log_every: int = 10
    save_every: int = 50

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds == math.inf:
            raise ValueError("a schedule needs seconds or steps, or its run has no end")

    def progress(self, spent: float, step: int) -> float:
        """The share of the run that is done after so many seconds and steps: 1 or more where it is over."""
        return max(spent / self.seconds, step / self.steps if self.steps else 0.0)

    def share_of_peak(self, progress: float) -> float:
        """What a learning rate is then, 0..1 of its peak."""
        return min(1.0, (progress + 1e-4) / self.warmup, max(0.0, 1 - progress) / self.decay)


class Optimisers:
    """Muon for block matrices, AdamW for embeddings, norms, biases and heads, under one schedule.

    The model may be in bfloat16 (on a CPU that has it faster than autocast, which casts weights again and again): the
    optimisers work on float32 master copies, written back after each step.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, nn.Parameter]], schedule: Schedule) -> None:
        self.pairs: list[tuple[nn.Parameter, torch.Tensor]] = []  # (the model's parameter, its float32 master)
        matrices: list[torch.Tensor] = []
        rest: list[torch.Tensor] = []
        for name, parameter in named_parameters:
            if parameter.requires_grad:
                is_block = parameter.ndim == 2 and ("blocks." in name or "layers." in name or "merger." in name)
                master = parameter.detach().float().clone().requires_grad_()
                self.pairs.append((parameter, master))
                (matrices if is_block else rest).append(master)
        self.schedule = schedule
        self.optimisers: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon if self.pairs[0][0].dtype == torch.bfloat16 else Float32Muon
            rate = schedule.muon_lr
            self.optimisers.append(muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
        if rest:
            self.optimisers.append(torch.optim.AdamW(rest, lr=schedule.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0))
        self.peaks = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]

    def step(self, progress: float, clip: float = 1.0) -> float:
        """Clip, step, clear gradients. Returns the gradient norm before clipping; a non-finite one skips the step.

        progress: the share of the run that is done, 0..1.
        Gradients are averaged over the processes of a run (`replicas`); one that has none counts as zero.
        """
        several = replicas.count() > 1
        for parameter, master in self.pairs:
            missing = torch.zeros_like(master) if several else None
            master.grad = missing if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        replicas.average([master.grad for _, master in self.pairs if master.grad is not None])
        norm = float(nn.utils.clip_grad_norm_([master for _, master in self.pairs], clip))
        scale = self.schedule.share_of_peak(progress)
        for optimiser, peak in zip(self.optimisers, self.peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * scale
            if math.isfinite(norm):
                optimiser.step()
        with torch.no_grad():
            for parameter, master in self.pairs:
                parameter.copy_(master)
        return norm

    def state_dict(self) -> dict:
        return {
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "masters": [master.detach() for _, master in self.pairs],
        }

    def load_state_dict(self, state: dict) -> None:
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        with torch.no_grad():
            for (parameter, master), saved in zip(self.pairs, state["masters"], strict=True):
                master.copy_(saved)
                parameter.copy_(saved)


class Float32Muon(torch.optim.Muon):
    """torch's Muon with its products in float32; torch's own are in bfloat16 always, which not every CPU can multiply.

    For `adjust_lr_fn="match_rms_adamw"` (Liu et al., arXiv 2502.16982: 0.2 * sqrt(longer side)) only.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        momentum = state["momentum_buffer"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        update = orthogonalised(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonalised(
    matrix: torch.Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> torch.Tensor:
    """Newton-Schulz towards the nearest orthogonal matrix (Jordan et al., Muon, 2024), in the precision it came in."""
    a, b, c = coefficients
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


@cache  # asked before worker processes are forked, which may not ask CUDA any more
def training_device() -> torch.device:
    """Where a stage trains that can do so on a GPU: there, if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_training_form(module: nn.Module, device: torch.device = CPU) -> None:
    """Put a module on a device and cast its parameters, not its buffers: rotary frequencies in bfloat16 would blur
    positions.
    """
    module.to(device)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(quick_dtype(device))


def compile_layers(language_model: Any) -> None:
    """Compile each layer of a language model (a minute, then 1.6 times as fast), on a CPU with a C++ compiler alone."""
    if next(language_model.parameters()).device.type == "cpu" and shutil.which("g++"):
        for layer in language_model.layers:
            layer.compile(dynamic=True)


def save_state(path: Path, state: dict) -> None:
    """`torch.save` that a kill cannot leave half-written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_state(path: Path) -> dict | None:
    """The saved state, or None where there is none."""
    return torch.load(path, map_location="cpu", weights_only=False) if Path(path).is_file() else None
