"""The number format in which a device multiplies fastest without losing what the nano models need."""

from __future__ import annotations

import torch

CPU = torch.device("cpu")


def quick_dtype(device: torch.device = CPU) -> torch.dtype:
    """bfloat16 on a GPU, and where the processor multiplies faster in it than in float32; else float32.

    Where it is emulated it is many times as slow; Intel's AVX-512 without AMX has it, at half the speed of float32
    (`benchmarks/number_formats.py` times both).
    """
    if device.type == "cuda":
        return torch.bfloat16
    able = torch.cpu.get_capabilities()
    quick = any(able.get(name) for name in ("amx_bf16", "bf16"))  # "bf16": what ARM calls it
    vectors = able.get("avx512_bf16") and "Intel" not in str(able.get("cpu_name"))
    return torch.bfloat16 if quick or vectors else torch.float32
