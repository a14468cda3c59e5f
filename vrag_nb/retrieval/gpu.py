"""A FAISS index on a GPU, where FAISS was built for one (`faiss-gpu` in place of `faiss-cpu`) and one is there."""

from __future__ import annotations

from typing import Any

import faiss

MOST_NEIGHBOURS = 2048  # and lists opened: what FAISS's GPU kernels can select
SCRATCH_BYTES = 256 * 2**20  # of GPU memory; FAISS's own default, more than a gigabyte, is taken from the models' share


def gpu_problem() -> str | None:
    """Why no GPU can be used; None where one can."""
    if not hasattr(faiss, "StandardGpuResources"):
        return "this FAISS was built without GPU support (install faiss-gpu in place of faiss-cpu)"
    return None if faiss.get_num_gpus() else "FAISS sees no GPU"


def gpu_copy(index: faiss.Index, half: bool) -> Any:
    """A copy on the first GPU; `half`: the tables of an IVF-PQ search in float16, without which long codes do not fit.

    Raises RuntimeError where FAISS cannot: memory, or a size that its kernels do not have.
    """
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(SCRATCH_BYTES)
    options = faiss.GpuClonerOptions()
    options.useFloat16 = half
    return faiss.index_cpu_to_gpu(resources, 0, index, options)  # which keeps the resources
