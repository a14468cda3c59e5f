"""Whether the recipe that makes nano models from nothing makes the same weights of one seed twice.

    python benchmarks/same_seed.py [--scale 0.02] [--stages letters spell ...] [--out results/benchmarks]

Runs the stages of `make nano-cpu`, with budgets of steps multiplied by `--scale`, twice into folders of their own, as
make does in processes of their own; the second time another process keeps a core busy, so that what is drawn and what
is learned are ready at other times. Compared are the weights with which each stage ends. Left out is `weigh`, whose
quarter of an hour no scale shortens. Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tables import tell

from vrag_nb.nano.optimisation import load_state
from vrag_nb.provenance import hardware

STAGES = ("letters", "spell", "align", "match", "retrieve", "act", "settle")
WEIGHTS = ("visual", "model")  # of a stage's state, the one or the other
HEAD = ["stage", "steps", "seconds", "the second time", "weights", "that differ", "by at most"]


@contextmanager
def busy() -> Iterator[None]:
    """While a process counts for nothing."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(folder: Path, scale: float, stage: str) -> float:
    """How many seconds the stage took."""
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "vrag_nb.nano.recipe"]
    given = ["--threads", "1", "--out", str(folder), "--scale", str(scale), stage]
    started = time.perf_counter()
    subprocess.run([*launched, *given], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - started


def ended(folder: Path, stage: str) -> tuple[int, dict[str, np.ndarray]]:
    """The steps that the stage took, and the weights it ended with."""
    state: dict[str, Any] | None = load_state(folder / "stages" / stage / "state.pt")
    if state is None:
        raise SystemExit(f"{folder}: stage {stage} left no state")
    weights = next(state[name] for name in WEIGHTS if name in state)
    return state["step"], {name: tensor.float().numpy() for name, tensor in weights.items()}


def compared(folders: tuple[Path, Path], stage: str, seconds: tuple[float, float]) -> list[str]:
    """A row of the table."""
    (steps, one), (_, other) = (ended(folder, stage) for folder in folders)
    apart = [np.abs(one[name].astype(float) - other[name].astype(float)) for name in one]
    count, differ = sum(part.size for part in apart), sum(int((part > 0).sum()) for part in apart)
    most = max(float(part.max()) for part in apart if part.size)
    return [stage, f"{steps:,}", *(f"{one:.0f}" for one in seconds), f"{count:,}", f"{differ:,}", f"{most:.2g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.02)
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--out", type=Path, help="folder for same_seed.md")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folders = Path(folder) / "first", Path(folder) / "second"
        for stage in options.stages:
            first = run(folders[0], options.scale, stage)
            with busy():
                second = run(folders[1], options.scale, stage)
            rows.append(compared(folders, stage, (first, second)))
            print(*rows[-1], flush=True)
    title = f"Weights of one seed, twice, budgets times {options.scale:g}, {hardware()['cpu']}"
    tell(title, HEAD, rows, out=options.out)


if __name__ == "__main__":
    main()
