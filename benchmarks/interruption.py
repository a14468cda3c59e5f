"""kill -9 at random moments: does a rerun end with the same bytes?

    python benchmarks/interruption.py --documents DIR [--kills 10] [--seed 0] [--checkpoint data/models/nano-retriever]

Prepares and indexes DIR once, undisturbed. Then, for corpus prep and for indexing, `--kills` times: starts anew in an
empty folder, kills the process with SIGKILL at a random moment of its work (every other time its worker processes with
it), runs it again to the end, and compares every file with the undisturbed result. Prints a table; exits 1 when a byte
differs. Without a nano retriever the index is built with a tiny one of random weights, which takes the same path.

Moments are drawn over the undisturbed run's duration, counted from the end of the imports, so that kills fall on work.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STARTED = "work begins"


@dataclass
class Trial:
    """One kill: when it fell (seconds into the work), what it left behind, and whether the rerun's bytes fit."""

    stage: str
    second: float
    finished_first: bool
    files_left: int
    identical: bool


def tree_digest(folder: Path) -> dict[str, str]:
    """`{relative path: sha256}` of every file below the folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_tiny_retriever(folder: Path) -> Path:
    """Save a ColQwen2.5 of random weights and minimal size, with its processor, as a `from_pretrained` folder."""
    import torch
    from colpali_engine.models import ColQwen2_5, ColQwen2_5_Processor

    from vrag_nb.nano.model import NanoSize, build_processor, nano_config, save_checkpoint
    from vrag_nb.nano.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(["What does the page show?", "Describe the image."], vocab_size=300)
    size = NanoSize(text_width=32, text_layers=1, text_heads=2, vision_width=32, vision_layers=2, vision_heads=2)
    torch.manual_seed(0)
    model = ColQwen2_5(nano_config(tokenizer, size))
    parts = build_processor(tokenizer)
    processor = ColQwen2_5_Processor(
        image_processor=parts.image_processor,
        tokenizer=tokenizer,
        video_processor=parts.video_processor,
        chat_template=tokenizer.chat_template,
    )
    save_checkpoint(model, processor, folder, torch.float32)
    return folder


# --- the process that is killed ---------------------------------------------------------------------------------------


def run_stage(stage: str, source: Path, target: Path, checkpoint: str, workers: int) -> None:
    """One stage, in this process, announcing when its imports are done."""
    if stage == "prep":
        from vrag_nb.documents.pages import prepare_corpus

        print(STARTED, flush=True)
        prepare_corpus(source, target, dpi=72, workers=workers, progress=False)
    else:
        from vrag_nb.retrieval.building import build_index
        from vrag_nb.retrieval.embedders import load_embedder

        text = checkpoint == "bm25"
        embedder = load_embedder("bm25") if text else load_embedder("nano-colqwen2_5", checkpoint, device="cpu")
        print(STARTED, flush=True)
        build_index(source, target, embedder, shard_pages=8, progress=False)


def start_stage(stage: str, source: Path, target: Path, checkpoint: str, workers: int) -> subprocess.Popen[str]:
    """The stage in a process (group) of its own, returned when its work begins."""
    arguments = [stage, str(source), str(target), checkpoint, str(workers)]
    process = subprocess.Popen(
        [sys.executable, __file__, "--child", *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != STARTED:
        raise RuntimeError(f"the {stage} process ended before its work began (exit code {process.wait()})")
    return process


def finish_stage(stage: str, source: Path, target: Path, checkpoint: str, workers: int) -> float:
    """Run the stage to its end; the seconds its work took."""
    process = start_stage(stage, source, target, checkpoint, workers)
    begun = time.monotonic()
    if process.wait():
        raise RuntimeError(f"{stage} failed with exit code {process.returncode}")
    return time.monotonic() - begun


def try_kill(
    stage: str,
    source: Path,
    target: Path,
    expected: dict[str, str],
    second: float,
    checkpoint: str,
    workers: int,
    with_children: bool,
) -> Trial:
    """Start the stage in an empty folder, kill it at `second`, run it to the end, compare."""
    shutil.rmtree(target, ignore_errors=True)
    process = start_stage(stage, source, target, checkpoint, workers)
    try:
        process.wait(timeout=second)
    except subprocess.TimeoutExpired:
        (os.killpg if with_children else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    left = len(tree_digest(target)) if target.is_dir() else 0
    finish_stage(stage, source, target, checkpoint, workers)
    return Trial(stage, second, process.returncode == 0, left, tree_digest(target) == expected)


def run_trials(documents: Path, work: Path, kills: int, seed: int, checkpoint: str, workers: int = 2) -> list[Trial]:
    """`kills` trials of prep and of indexing, in `work`."""
    draw = random.Random(seed)
    corpus, index = work / "corpus", work / "index"
    stages = {"prep": (documents, corpus), "index": (corpus, index)}
    trials = []
    for stage, (source, target) in stages.items():
        seconds = finish_stage(stage, source, target, checkpoint, workers)
        expected = tree_digest(target)
        print(f"{stage}: undisturbed in {seconds:.1f} s, {len(expected)} files", flush=True)
        for number in range(kills):
            second = draw.uniform(0, seconds)
            again = target.with_name(f"{target.name}-again")
            trial = try_kill(stage, source, again, expected, second, checkpoint, workers, number % 2 == 1)
            trials.append(trial)
            print(f"{stage} {number + 1}/{kills}: killed at {second:.2f} s, identical: {trial.identical}", flush=True)
    return trials


def table(trials: list[Trial]) -> str:
    """The trials as a markdown table."""
    lines = ["| stage | killed at (s) | files left by the kill | rerun byte-identical |", "|---|---|---|---|"]
    for trial in trials:
        when = "after its end" if trial.finished_first else f"{trial.second:.2f}"
        lines.append(f"| {trial.stage} | {when} | {trial.files_left} | {'yes' if trial.identical else 'NO'} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=Path, required=True, help="a folder of PDFs or images")
    parser.add_argument("--kills", type=int, default=10, help="kills of each stage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes that render")
    parser.add_argument("--checkpoint", default="data/models/nano-retriever", help='a nano retriever, or "bm25"')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vrag-interruption-") as folder:
        checkpoint = arguments.checkpoint
        if checkpoint != "bm25" and not Path(checkpoint).is_dir():
            checkpoint = str(make_tiny_retriever(Path(folder) / "retriever"))
            print("no nano retriever: indexing with a tiny one of random weights")
        trials = run_trials(
            arguments.documents, Path(folder), arguments.kills, arguments.seed, checkpoint, arguments.workers
        )
    print(table(trials))
    return 0 if all(trial.identical for trial in trials) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        stage_name, source_folder, target_folder, weights, processes = sys.argv[2:]
        run_stage(stage_name, Path(source_folder), Path(target_folder), weights, int(processes))
    else:
        sys.exit(main())
