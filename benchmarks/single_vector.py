"""Recall, speed, memory and build time of the single-vector structures: flat, HNSW and IVF-PQ.

    python benchmarks/single_vector.py [--sizes 1000 10000 100000] [--dim 768] [--out results/single_vector]

**The vectors are synthetic** and need no model: clusters of about 40 pages around centres whose spectrum falls, as that
of embeddings does; a query is a page's vector, perturbed. They are drawn with `--seed`, written as an index's shards,
and each structure is built, saved, opened and searched as `build_index` and `SearchEngine` do it.

Printed for each size: recall@10 against flat, which is exact and the peer; p50 of one query at a time; queries a second
in batches of 64, and how many times flat's in the same run, each the quickest of three rounds; megabytes in memory (the
FAISS file, loaded whole) and on disk (with the float16 vectors, which are memory-mapped); seconds of the build without
embedding. A star marks what `auto` chooses. Everything runs with `--threads` threads; with `--device auto` on a GPU
where FAISS has one, and the table says so. 100,000 vectors of 768 dimensions take about 0.6 GB of memory, and minutes
for the HNSW graph on one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

from vrag_nb.files import write_json
from vrag_nb.plotting import figures
from vrag_nb.retrieval.growing import write_structure
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import VECTOR_TYPE, IndexedPage, Manifest, StoredFile, array_bytes, commit, store
from vrag_nb.retrieval.structure import Kind, SingleVectorSettings, announcement, choose

TOP, BATCH, SHARD = 10, 64, 4096
KINDS: tuple[Kind, ...] = ("flat", "hnsw", "ivfpq")


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    pages: int
    structure: str
    device: str
    recall: float
    p50_ms: float
    queries_a_second: float
    times_flat: float
    memory_mb: float
    disk_mb: float
    build_seconds: float
    auto: bool


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def world(count: int, dim: int, queries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Page vectors (count, dim) in clusters of about 40, and query vectors (queries, dim), all of length 1."""
    generator = np.random.default_rng(seed)
    spread = (np.arange(dim) + 4.0) ** -0.5

    def draw(number: int) -> np.ndarray:
        return unit(generator.standard_normal((number, dim), np.float32) * spread)

    centres = draw(max(4, count // 40))
    pages = unit(centres[generator.integers(0, len(centres), count)] + 0.8 * draw(count))
    return pages, unit(pages[generator.integers(0, count, queries)] + 0.6 * draw(queries))


def write_shards(folder: Path, vectors: np.ndarray) -> Manifest:
    """The vectors as an index's shards, and the manifest of them, yet without a structure."""
    files: dict[str, StoredFile] = {}
    shards = []
    for number, start in enumerate(range(0, len(vectors), SHARD)):
        content = array_bytes(vectors[start : start + SHARD].astype(VECTOR_TYPE))
        name, files_entry = store(folder, f"vectors-{number:05d}", ".npy", content)
        files[name] = files_entry
        shards.append(name)
    pages = [
        IndexedPage(page_id=str(row), document="benchmark", key=str(row), vectors=1) for row in range(len(vectors))
    ]
    return Manifest(
        kind="single_vector", embedder="synthetic", fingerprint="", dim=vectors.shape[1], shard_pages=SHARD,
        page_count=len(pages), pages=pages, shards=shards, files=files,
    )  # fmt: skip


def timed(index: SingleVectorIndex, batches: Sequence[Sequence[np.ndarray]]) -> tuple[list[float], list[set[str]]]:
    """Seconds of every batch in the quickest of three rounds, and the pages found for every query."""
    best: list[float] = []
    for _ in range(3):
        seconds, found = [], []
        for batch in batches:
            started = time.perf_counter()
            hits = index.search(batch, TOP)
            seconds.append(time.perf_counter() - started)
            found += [{hit.page_id for hit in of_query} for of_query in hits]
        best = min(best or seconds, seconds, key=sum)
    return best, found


def measure(pages: np.ndarray, queries: np.ndarray, folder: Path, options: argparse.Namespace) -> list[Row]:
    count, dim = pages.shape
    bare = write_shards(folder, pages)
    chosen = choose(SingleVectorSettings(), count, dim).kind
    print(announcement(choose(SingleVectorSettings(), count, dim), SingleVectorSettings(), count, dim), flush=True)
    asked = [query[None] for query in queries]
    rows: list[Row] = []
    exact: list[set[str]] = []
    for kind in KINDS:
        device: Literal["auto", "cpu", "gpu"] = "cpu" if kind == "hnsw" else options.device
        how = SingleVectorSettings(structure=kind, device=device, seed=options.seed)
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=folder) as work:
            commit(folder, write_structure(folder, Path(work), bare, how))
        build_seconds = time.perf_counter() - started
        index = open_index(folder, verify=False)
        assert isinstance(index, SingleVectorIndex)
        index.use(how)
        singly, found = timed(index, [[query] for query in asked])
        batched, _ = timed(index, [asked[start : start + BATCH] for start in range(0, len(asked), BATCH)])
        exact = exact or found
        speed = len(asked) / sum(batched)
        row = Row(
            pages=count,
            structure=index.structure.kind,
            device=index.device,
            recall=float(np.mean([len(one & two) / len(one) for one, two in zip(exact, found, strict=True)])),
            p50_ms=float(np.median(singly)) * 1000,
            queries_a_second=speed,
            times_flat=speed / rows[0].queries_a_second if rows else 1.0,
            memory_mb=index.memory_bytes / 1e6,
            disk_mb=sum(stored.bytes for stored in index.manifest.files.values()) / 1e6,
            build_seconds=build_seconds,
            auto=index.structure.kind == chosen,
        )
        rows.append(row)
    return rows


def markdown(rows: Sequence[Row]) -> str:
    """The table."""
    titles = ("pages", "structure", "device", "recall@10", "p50, ms", "queries/s", "x flat", "memory, MB", "disk, MB")
    lines = [f"| {' | '.join(titles)} | build, s |", "|" + " ---: |" * (len(fields(Row)) - 1)]
    for row in rows:
        name = f"{row.structure}{' *' if row.auto else ''}"
        lines.append(
            f"| {row.pages:,} | {name} | {row.device} | {row.recall:.3f} | {row.p50_ms:.2f} | "
            f"{row.queries_a_second:,.0f} | {row.times_flat:.1f} | {row.memory_mb:,.1f} | {row.disk_mb:,.1f} | "
            f"{row.build_seconds:.1f} |"
        )
    return "\n".join(lines)


def draw(rows: Sequence[Row], dim: int) -> figures.Picture:
    """Recall, queries a second and memory by pages; one line for each structure."""
    figure = figures.new_figure(11.4, 3.6)
    panels = (
        ("Recall@10 against flat", "recall"),
        ("Queries a second, batches of 64", "queries_a_second"),
        ("Memory, MB", "memory_mb"),
    )
    for place, (title, field) in enumerate(panels):
        axes = figures.axes_at(figure, 0.6 + 3.75 * place, 0.5, 3.0, 2.4)
        figures.chart(axes, title, x=f"synthetic pages, {dim} dimensions")
        axes.set_xscale("log")
        axes.set_xticks(
            sorted({row.pages for row in rows}), [f"{size:,}" for size in sorted({row.pages for row in rows})]
        )
        axes.minorticks_off()
        for colour, style, kind in zip(figures.SERIES, ("o-", "s--", "^-."), KINDS, strict=False):
            line = [row for row in rows if row.structure == kind]
            axes.plot(
                [row.pages for row in line], [getattr(row, field) for row in line], style, color=colour, label=kind
            )
        if field == "recall":
            axes.set_ylim(min(0.9, *(row.recall for row in rows)) - 0.01, 1.01)
            figures.share_ticks(axes.yaxis)
            axes.legend(fontsize=8, frameon=False, loc="lower left")
        else:
            axes.set_yscale("log")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000], help="pages")
    parser.add_argument("--dim", type=int, default=768, help="of the vectors")
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=None, help="where the indexes are written (default: temporary)")
    parser.add_argument("--out", type=Path, default=None, help="folder for single_vector.json and single_vector.png")
    options = parser.parse_args()
    faiss.omp_set_num_threads(options.threads)
    rows: list[Row] = []
    with threadpool_limits(options.threads):
        for size in options.sizes:
            pages, queries = world(size, options.dim, options.queries, options.seed)
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                rows += measure(pages, queries, Path(folder), options)
            if options.out:
                write_json(options.out / "single_vector.json", [asdict(row) for row in rows])
    print(f"\n{markdown(rows)}")
    if options.out:
        figures.save(draw(rows, options.dim), options.out / "single_vector.png")


if __name__ == "__main__":
    main()
