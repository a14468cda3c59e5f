"""kill -9 at random moments: does a rerun end with the same bytes?

    python benchmarks/interruption.py --documents DIR [--kills 10] [--seed 0] [--checkpoint data/models/nano-retriever]

Prepares and indexes DIR once, undisturbed. Then, for corpus prep and for indexing, `--kills` times: starts anew in an
empty folder, kills the process with SIGKILL at a random moment of its work (every other time its worker processes with
it), runs it again to the end, and compares every file with the undisturbed result. Prints a table; exits 1 when a byte
differs. Without a nano retriever the index is built with a tiny one of random weights, which takes the same path.

A moment is drawn as progress, not as time, which on a busy machine would often fall after the end: so many files
written (of the most that the undisturbed run ever had), plus up to MAX_DELAY seconds. A run whose result was complete
before its kill is no trial: another moment is drawn.
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
MAX_DELAY = 0.1  # seconds between the drawn file's appearance and the kill: moments between two files count too
POLL = 0.002  # seconds


@dataclass
class Trial:
    """One kill: after which file it fell, what it left behind, and whether the rerun's bytes fit.

    `killed` is False when the result was already complete when the kill came, and the trial then says nothing.
    """

    stage: str
    after_files: int
    killed: bool
    files_left: int
    identical: bool


def count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


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


def finish_stage(stage: str, source: Path, target: Path, checkpoint: str, workers: int) -> int:
    """Run the stage to its end; the most files its target ever held."""
    process = start_stage(stage, source, target, checkpoint, workers)
    most = 0
    while process.poll() is None:
        most = max(most, count_files(target))
        time.sleep(POLL)
    if process.returncode:
        raise RuntimeError(f"{stage} failed with exit code {process.returncode}")
    return most


def try_kill(
    stage: str,
    source: Path,
    target: Path,
    expected: dict[str, str],
    moment: tuple[int, float],
    checkpoint: str,
    workers: int,
    with_children: bool,
) -> Trial:
    """Start the stage in an empty folder, kill it at `moment` (files written, seconds after), rerun it, compare."""
    files, delay = moment
    shutil.rmtree(target, ignore_errors=True)
    process = start_stage(stage, source, target, checkpoint, workers)
    while process.poll() is None and count_files(target) < files:
        time.sleep(POLL)
    time.sleep(delay)
    if process.poll() is None:
        (os.killpg if with_children else os.kill)(process.pid, signal.SIGKILL)
    # A process can also be hit while it shuts down, its work done: only an unfinished result makes a trial.
    killed = process.wait() == -signal.SIGKILL and tree_digest(target) != expected
    left = count_files(target)
    finish_stage(stage, source, target, checkpoint, workers)
    return Trial(stage, files, killed, left, tree_digest(target) == expected)


def run_trials(documents: Path, work: Path, kills: int, seed: int, checkpoint: str, workers: int = 2) -> list[Trial]:
    """`kills` trials of prep and of indexing, in `work`. Raises RuntimeError when the stage is too short to be hit."""
    draw = random.Random(seed)
    corpus, index = work / "corpus", work / "index"
    trials: list[Trial] = []
    for stage, source, target in (("prep", documents, corpus), ("index", corpus, index)):
        most = finish_stage(stage, source, target, checkpoint, workers)
        expected = tree_digest(target)
        print(f"{stage}: {len(expected)} files when undisturbed", flush=True)
        done = 0
        for attempt in range(5 * kills):
            moment = (draw.randint(0, most), draw.uniform(0, MAX_DELAY))
            again = target.with_name(f"{target.name}-again")
            trial = try_kill(stage, source, again, expected, moment, checkpoint, workers, attempt % 2 == 1)
            if not trial.identical or trial.killed:
                trials.append(trial)
                done += 1
                print(f"{stage} {done}/{kills}: after {moment[0]} files, identical: {trial.identical}", flush=True)
            if done == kills:
                break
        else:
            raise RuntimeError(f"{stage}: only {done} of {kills} kills hit a running process; give it more documents")
    return trials


def table(trials: list[Trial]) -> str:
    """The trials as a markdown table."""
    lines = [
        "| stage | killed once it had written | files left by the kill | rerun byte-identical |",
        "|---|---|---|---|",
    ]
    for trial in trials:
        result = "yes" if trial.identical else "NO"
        lines.append(f"| {trial.stage} | {trial.after_files} files | {trial.files_left} | {result} |")
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
