"""What every nano training run shares: optimisers, schedule, resumable state.

Matrices of the towers' blocks are updated by Muon (orthogonalised momentum), everything else by AdamW. On a GPU
training is done in bfloat16; on a CPU that is no faster in it, in float32.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vrag_nb.nano import replicas
from vrag_nb.number_formats import CPU, quick_dtype


class Optimisers:
    """Muon for block matrices, AdamW for embeddings, norms, biases and heads, under one warm-up-and-decay schedule.

    The model may be in bfloat16 (on a CPU that has it faster than autocast, which casts weights again and again): the
    optimisers work on float32 master copies, written back after each step.

    `progress` passed to `step` is the share of the run done, 0..1: linear warm-up over `warmup`, constant, then linear
    decay to zero over the last `decay` share.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        muon_lr: float = 2e-3,
        adamw_lr: float = 1e-3,
        warmup: float = 0.02,
        decay: float = 0.4,
    ) -> None:
        self.pairs: list[tuple[nn.Parameter, torch.Tensor]] = []  # (the model's parameter, its float32 master)
        matrices: list[torch.Tensor] = []
        rest: list[torch.Tensor] = []
        for name, parameter in named_parameters:
            if parameter.requires_grad:
                is_block = parameter.ndim == 2 and ("blocks." in name or "layers." in name or "merger." in name)
                master = parameter.detach().float().clone().requires_grad_()
                self.pairs.append((parameter, master))
                (matrices if is_block else rest).append(master)
        self.warmup, self.decay = warmup, decay
        self.optimisers: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon if self.pairs[0][0].dtype == torch.bfloat16 else Float32Muon
            self.optimisers.append(muon(matrices, lr=muon_lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"))
        if rest:
            self.optimisers.append(torch.optim.AdamW(rest, lr=adamw_lr, betas=(0.9, 0.95), weight_decay=0.0))
        self.peaks = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]

    def step(self, progress: float, clip: float = 1.0) -> float:
        """Clip, step, clear gradients. Returns the gradient norm before clipping; a non-finite one skips the step.

        Gradients are averaged over the processes of a run (`replicas`); one that has none counts as zero.
        """
        several = replicas.count() > 1
        for parameter, master in self.pairs:
            missing = torch.zeros_like(master) if several else None
            master.grad = missing if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        replicas.average([master.grad for _, master in self.pairs if master.grad is not None])
        norm = float(nn.utils.clip_grad_norm_([master for _, master in self.pairs], clip))
        scale = min(1.0, (progress + 1e-4) / self.warmup, max(0.0, 1 - progress) / self.decay)
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


def progress(spent: float, seconds: float, step: int, steps: int | None) -> float:
    """The share of a run that is done, by its wall-clock budget or, where it has one, its budget of steps."""
    return max(spent / seconds, step / steps if steps else 0.0)


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
