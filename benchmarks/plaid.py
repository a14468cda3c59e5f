"""The compact index beside fast-plaid, a well-kept engine for late interaction: recall, speed, bytes, build time.

    python benchmarks/plaid.py --python ENV/bin/python [--pages 1000 5000] [--out results/benchmarks]

fast-plaid is built for other versions of torch than this project's, so it lives in an environment of its own (without
`--python` the commands that make it are printed). Both engines index the same float16 vectors and answer the same
queries, one a call, on a CPU with `--threads` threads: the default profile's pages and questions where its index is
there, and the synthetic pages of `benchmarks/search.py`.

Printed for each engine and setting: recall@10 against exact MaxSim in float32 over all patches; p50 and p95 of a query;
queries a second; bytes on disk as a share of bfloat16 patches; seconds of the build without embedding. `nbits` are
fast-plaid's bits a dimension, `full` the pages it scores by their codes, `probes` the cells it
opens a query token (8 is its default); `candidates` are ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np
import torch
from search import DIM, KINDS, TOP, Corpus, build, corpora, exact_top
from tables import tell
from threadpoolctl import threadpool_limits

from vrag_nb.files import write_json
from vrag_nb.retrieval.storage import Compression

WORKER = Path(__file__).with_name("plaid_worker.py")
RECIPE = """fast-plaid is wanted in an environment of its own (5 GB, a minute):

    uv venv --python 3.11 ENV
    uv pip install --python ENV/bin/python fast-plaid==1.7.0.2110 numpy

Then:

    python benchmarks/plaid.py --python ENV/bin/python"""


@dataclass(frozen=True)
class Row:
    """One engine on one corpus; times in milliseconds."""

    corpus: str
    pages: int
    engine: str
    recall: float
    p50: float
    p95: float
    queries_a_second: float
    disk_share: float
    build_seconds: float


def row(
    corpus: Corpus,
    engine: str,
    wanted: Sequence[set[int]],
    found: Sequence[Sequence[int]],
    seconds: Sequence[float],
    disk_share: float,
    build_seconds: float,
) -> Row:
    recall = float(np.mean([len(a & set(b)) / len(a) for a, b in zip(wanted, found, strict=True)]))
    p50, p95 = (float(np.quantile(seconds, share)) * 1000 for share in (0.5, 0.95))
    speed = 1 / float(np.mean(seconds))
    return Row(corpus.name, corpus.count, engine, recall, p50, p95, speed, disk_share, build_seconds)


def ours(corpus: Corpus, wanted: Sequence[set[int]], patches: int, options: argparse.Namespace) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder, threadpool_limits(options.threads):
        index, build_seconds = build(corpus, Path(folder), Compression())
        disk = sum(stored.bytes for stored in index.manifest.files.values()) / (2 * DIM * patches)
        for candidates in options.candidates:
            index.exact, index.candidates = False, candidates
            for _ in range(2):  # the first round warms the files
                seconds, found = [], []
                for query in corpus.queries:
                    started = time.perf_counter()
                    [hits] = index.search([query], TOP)
                    seconds.append(time.perf_counter() - started)
                    found.append([index.row_of[hit.page_id] for hit in hits])
            rows.append(row(corpus, f"ours, {candidates} candidates", wanted, found, seconds, disk, build_seconds))
    return rows


def theirs(corpus: Corpus, wanted: Sequence[set[int]], patches: int, options: argparse.Namespace) -> list[Row]:
    """What the worker measured in the other environment."""
    threads = {f"{name}_NUM_THREADS": str(options.threads) for name in ("OMP", "RAYON", "MKL", "OPENBLAS")}
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        pages = [corpus.page(number).astype(np.float16) for number in range(corpus.count)]
        np.savez(
            Path(folder) / "corpus.npz",
            tokens=np.concatenate(pages),
            lengths=[len(page) for page in pages],
            queries=np.concatenate(corpus.queries).astype(np.float32),
            query_lengths=[len(query) for query in corpus.queries],
        )
        del pages
        for nbits in options.nbits:
            command = [options.python, WORKER, folder, "--nbits", nbits, "--top", TOP, "--full", *options.full]
            command += ["--probes", *options.probes, "--threads", options.threads]
            done = subprocess.run([str(part) for part in command], env={**os.environ, **threads}, capture_output=True)
            if done.returncode:
                sys.exit(f"{WORKER.name}: {done.stderr.decode()[-2000:]}")
            made = json.loads(done.stdout.decode().splitlines()[-1])
            share = made["disk_bytes"] / (2 * DIM * patches)
            for run in made["runs"]:
                name = f"fast-plaid, {nbits} bits, {run['full']} full, {run['probes']} probes"
                rows.append(row(corpus, name, wanted, run["found"], run["seconds"], share, made["build_seconds"]))
    return rows


def show(rows: Sequence[Row], threads: int, out: Path | None) -> None:
    head = ["corpus", "pages", "engine", "recall@10", "p50, ms", "p95, ms", "queries/s", "of bf16", "build, s"]
    cells = [
        [one.corpus, f"{one.pages:,}", one.engine, f"{one.recall:.3f}", f"{one.p50:.1f}", f"{one.p95:.1f}",
         f"{one.queries_a_second:.1f}", f"1/{1 / one.disk_share:.1f}", f"{one.build_seconds:.0f}"]
        for one in rows
    ]  # fmt: skip
    tell(f"The compact index beside fast-plaid, {threads} threads", head, cells, out=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="the interpreter of an environment with fast-plaid")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["real", "synthetic"], help="see search.py")
    parser.add_argument("--pages", type=int, nargs="*", default=[1000], help="sizes of corpora that are drawn")
    parser.add_argument("--patches", type=int, default=750, help="of a synthetic page, about")
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--candidates", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--nbits", type=int, nargs="+", default=[2, 4], choices=[1, 2, 4, 8])
    parser.add_argument("--full", type=int, nargs="+", default=[256, 4096], help="pages fast-plaid scores in full")
    parser.add_argument("--probes", type=int, nargs="+", default=[8, 32], help="cells fast-plaid opens a query token")
    parser.add_argument("--profile", default="nano", help="whose index is measured too, where it is there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=None, help="where the indexes are written (default: temporary)")
    parser.add_argument("--out", type=Path, default=None, help="folder for plaid.json and plaid.md")
    options = parser.parse_args()
    if options.python is None:
        sys.exit(RECIPE)
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    rows: list[Row] = []
    for corpus in corpora(options):
        wanted, patches = exact_top(corpus)
        for engine in (ours, theirs):
            rows += engine(corpus, wanted, patches, options)
        if options.out:
            write_json(options.out / "plaid.json", [asdict(one) for one in rows])
    show(rows, options.threads, options.out)


if __name__ == "__main__":
    main()
