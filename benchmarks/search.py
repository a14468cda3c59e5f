"""Queries a second, recall and bytes of the compact index against MaxSim over bfloat16 patches (colpali-engine).

    python benchmarks/search.py --pages 1000 10000 [--out results/search] [--queries 40] [--threads 1]

Three kinds of corpora (`--kinds`), of which the first two need the index of `--profile`:

real        its page vectors as they are, and its questions
perturbed   its page vectors, then pages put together from runs of patches of four of them, each patch moved by noise of
            the spectrum that page vectors have (`Perturbed`); its questions
synthetic   no model: `World` draws patch vectors whose spectrum falls, from topics that share concepts; about two
            fifths of a page are background; a query is tokens of a page, perturbed. What is random in a patch cannot
            be compressed, so this is the hardest

Pages are drawn anew from their number whenever they are needed, so that memory stays small.

The peer is `score_multi_vector` on `--peer-pages` pages in memory, all queries in one call (its best case) and one
query a call, scaled linearly to the corpus; patches in bfloat16 or float32, whichever is faster on this processor.
Everything runs on the CPU with `--threads` threads, the index's files in the system's cache. 70,000 pages need about
4 GB of disk in `--scratch` while the index is built and, on one thread, some 20 to 60 ms a page.

Printed for each corpus and each count of candidates: recall@10 against exact MaxSim in float32 over all patches; p50
and p95 of one query at a time; queries a second, and how often the peer's; bytes of the index on disk, and as a share
of bfloat16 patches, and in memory (arrays that are loaded, without what the system maps); seconds of the build without
embedding. "all" scores every page by its codes, all queries in one call: the loss of the codes alone.

Rows of corpora that are in --out's search.json already, from the same settings, are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from colpali_engine.utils.processing_utils import BaseVisualRetrieverProcessor
from made_with import digest
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from vrag_nb.files import write_json
from vrag_nb.plotting import figures
from vrag_nb.profiles import load_profile, sample
from vrag_nb.provenance import hardware
from vrag_nb.records import read_pages
from vrag_nb.retrieval.compact import CompactIndex, sample_queries, write_compact
from vrag_nb.retrieval.index import VectorIndex, best, maxsim
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.storage import Compression, IndexedPage, Manifest, commit

DIM, TOP = 128, 10
CHUNK = 64  # pages drawn and scored together
KINDS = ("real", "perturbed", "synthetic")
ALL = "all"  # instead of a number of candidates: every page by its codes
FILE = "search.json"
SETTINGS = (
    "candidates", "keep", "patches", "peer_pages", "profile", "queries", "seed", "threads", "vector_bytes",
)  # fmt: skip
PEER_TARGET, RECALL_TARGET, BYTES_TARGET = 20, 0.98, 1 / 8


class World:
    """Synthetic pages of about `patches` unit vectors, and queries of 20 to 30 tokens."""

    def __init__(self, pages: int, patches: int, seed: int) -> None:
        self.pages, self.patches, self.seed = pages, patches, seed
        generator = np.random.default_rng(seed)
        self._spread = (np.arange(DIM) + 4.0) ** -0.7  # of the axes: most of the variance in a third of them
        self._common = unit(generator.normal(size=DIM) * self._spread)
        self._concepts = self._draw(generator, 4000)
        self._topics = generator.integers(0, len(self._concepts), (max(8, pages // 40), 50))
        self._backgrounds = self._draw(generator, 40)

    def _draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        return unit(0.6 * self._common + 0.8 * unit(generator.normal(size=(count, DIM)) * self._spread))

    def _near(self, generator: np.random.Generator, vectors: np.ndarray, amount: float) -> np.ndarray:
        return unit(vectors + amount * unit(generator.normal(size=vectors.shape) * self._spread))

    def _spots(self, page: int) -> np.ndarray:
        """What the page shows: three quarters of its topic, a quarter of anything, each in the page's own way."""
        generator = np.random.default_rng([self.seed, 1, page])
        count = int(generator.integers(40, 100))
        own = generator.choice(self._topics[page % len(self._topics)], count)
        any_ = generator.integers(0, len(self._concepts), count)
        concepts = self._concepts[np.where(generator.random(count) < 0.75, own, any_)]
        return self._near(generator, concepts, 0.5)

    def page(self, number: int) -> np.ndarray:
        """(patches, DIM) float32."""
        spots, generator = self._spots(number), np.random.default_rng([self.seed, 2, number])
        length = int(self.patches * generator.uniform(0.9, 1.1))
        paper = self._backgrounds[generator.integers(0, len(self._backgrounds), 3)]
        blank = generator.random(length) < 0.4
        patches = np.where(
            blank[:, None], paper[generator.integers(0, 3, length)], spots[generator.integers(0, len(spots), length)]
        )
        return self._near(generator, patches, 0.25).astype(np.float32)

    def queries(self, count: int, purpose: int) -> list[np.ndarray]:
        """Perturbed spots of pages drawn anew for every purpose."""
        generator = np.random.default_rng([self.seed, 3, purpose])
        made = []
        for page in generator.integers(0, self.pages, count):
            spots = self._spots(int(page))
            tokens = spots[generator.integers(0, len(spots), int(generator.integers(20, 31)))]
            made.append(self._near(generator, tokens, 0.8).astype(np.float32))
        return made


RUN = (8, 65)  # patches that a perturbed page takes from a page in one go, in reading order
DONORS, NOISE = 4, 0.3  # pages that a perturbed page is put together from; length of the noise of a patch


class Perturbed:
    """More pages of the kind that an index holds: the first ones are its own, see the module's docstring."""

    def __init__(self, own: Sequence[np.ndarray], seed: int) -> None:
        self.own, self.seed = own, seed
        every = np.concatenate([page[::7] for page in own]).astype(np.float32)
        variance, axes = np.linalg.eigh(np.cov(every.T))
        self._colour = (axes * np.sqrt(np.maximum(variance, 0))).astype(np.float32).T  # white noise to page-like noise

    def page(self, number: int) -> np.ndarray:
        """(patches, DIM) float32."""
        if number < len(self.own):
            return self.own[number].astype(np.float32)
        generator = np.random.default_rng([self.seed, 4, number])
        donors = [self.own[place] for place in generator.integers(0, len(self.own), DONORS)]
        runs: list[np.ndarray] = []
        while sum(map(len, runs)) < len(donors[0]):
            donor, length = donors[generator.integers(DONORS)], int(generator.integers(*RUN))
            start = int(generator.integers(0, max(1, len(donor) - length)))
            runs.append(donor[start : start + length])
        patches = np.concatenate(runs)[: len(donors[0])].astype(np.float32)
        noise = unit(generator.standard_normal(patches.shape, np.float32) @ self._colour)
        return unit(patches + NOISE * noise)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Row:
    """One line of the table; times in milliseconds, `ratio` to the peer's queries a second in one call."""

    corpus: str
    pages: int
    patches: int
    candidates: str
    recall: float
    p50: float
    p95: float
    queries_a_second: float
    ratio: float
    ratio_one_by_one: float
    disk_bytes_a_page: float
    disk_share: float
    memory_bytes_a_page: float
    build_seconds: float


@dataclass(frozen=True)
class Corpus:
    """Pages to index, queries to ask, and sample query tokens (n, dim) that the build may see."""

    name: str
    count: int
    page: Callable[[int], np.ndarray]
    queries: list[np.ndarray]
    sample: Callable[[], np.ndarray]


def synthetic(pages: int, options: argparse.Namespace) -> Corpus:
    world = World(pages, options.patches, options.seed)
    return Corpus(
        "synthetic", pages, world.page, world.queries(options.queries, 0), lambda: np.concatenate(world.queries(60, 1))
    )


def indexed(kind: str, pages: int, options: argparse.Namespace) -> Corpus | None:
    """The profile's pages and questions, as they are or perturbed to so many; None where its index is not there."""
    profile = load_profile(options.profile)
    try:
        stored, embedder = open_index(profile.index_folder), profile.load_embedder()
    except FileNotFoundError:
        return None
    if not isinstance(stored, VectorIndex) or isinstance(stored, CompactIndex) or stored.manifest.dim != DIM:
        return None
    texts = [page.text for page in read_pages(profile.corpus_folder)]
    asked = embedder.embed_queries([question.query for question in sample(profile.questions(), options.queries)])
    # one view of a page: these are pages under plain MaxSim, as the peers score them
    own = [np.split(stored.vectors(row), stored.manifest.views)[0] for row in range(len(stored.page_ids))]
    count, page = pages or len(own), Perturbed(own, options.seed).page
    return Corpus(f"{profile.name}, {kind}", count, page, asked, lambda: sample_queries(embedder, texts))


def corpora(options: argparse.Namespace) -> Iterator[Corpus]:
    """Those that the options ask for, one after another; a line says which cannot be had."""
    for kind, pages in [(one, n) for one in options.kinds for n in ([0] if one == "real" else options.pages)]:
        corpus = synthetic(pages, options) if kind == "synthetic" else indexed(kind, pages, options)
        if corpus is None:
            print(f"profile {options.profile}: no float16 index of dimension {DIM}; no {kind} pages")
        else:
            yield corpus


def exact_top(corpus: Corpus) -> tuple[list[set[int]], int]:
    """The rows of the TOP pages of every query by exact MaxSim in float32, and the number of patches."""
    scores, patches = [], 0
    for start in range(0, corpus.count, CHUNK):
        pages = [corpus.page(row) for row in range(start, min(start + CHUNK, corpus.count))]
        lengths = [len(page) for page in pages]
        patches += sum(lengths)
        scores.append(maxsim(corpus.queries, np.concatenate(pages), lengths))
    rows = np.arange(corpus.count)
    return [set(best(rows, row, TOP)[0].tolist()) for row in np.concatenate(scores, axis=1)], patches


def build(corpus: Corpus, folder: Path, compression: Compression) -> tuple[CompactIndex, float]:
    """The compact index of the corpus as `build_index` writes it, and the seconds it took without embedding."""
    started = time.perf_counter()
    listed = [IndexedPage(page_id=f"page_{row}", document="benchmark", key=str(row)) for row in range(corpus.count)]
    parts = write_compact(
        folder, folder / ".building", listed, lambda key: corpus.page(int(key)), corpus.sample, compression, 64
    )
    common: dict[str, Any] = {"kind": "multi_vector", "embedder": corpus.name, "fingerprint": "", "dim": DIM}
    commit(folder, Manifest(**common, shard_pages=64, page_count=corpus.count, pages=listed, **parts))
    seconds = time.perf_counter() - started
    index = open_index(folder, verify=False)
    assert isinstance(index, CompactIndex)
    return index, seconds


def peer_seconds(corpus: Corpus, pages: int) -> tuple[float, float]:
    """Seconds a query of colpali-engine over the whole corpus: all queries in one call, and one query a call."""
    chosen = np.linspace(0, corpus.count - 1, min(pages, corpus.count)).astype(int)
    drawn = [torch.from_numpy(corpus.page(int(row))) for row in chosen]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        stored = [page.to(dtype) for page in drawn]
        asked = [torch.from_numpy(query).to(dtype) for query in corpus.queries]

        def timed(queries: Sequence[torch.Tensor], stored: list[torch.Tensor] = stored) -> float:
            started = time.perf_counter()
            BaseVisualRetrieverProcessor.score_multi_vector(list(queries), stored, device="cpu")
            return (time.perf_counter() - started) / len(queries) * corpus.count / len(stored)

        timed(asked[:1])
        found.append((timed(asked), float(np.median([timed([query]) for query in asked[:3]]))))
    return min(together for together, _ in found), min(singly for _, singly in found)


def measure(corpus: Corpus, folder: Path, options: argparse.Namespace) -> list[Row]:
    index, build_seconds = build(corpus, folder, Compression(keep=options.keep, vector_bytes=options.vector_bytes))
    wanted, patches = exact_top(corpus)
    peer, peer_single = peer_seconds(corpus, options.peer_pages)
    disk = sum(stored.bytes for stored in index.manifest.files.values())
    rows = []
    for candidates in [*options.candidates, 0]:
        index.exact, index.candidates = candidates == 0, candidates
        asked = [[query] for query in corpus.queries] if candidates else [corpus.queries]
        for _ in range(2 if candidates else 1):  # the first round warms the files
            seconds, found = [], []
            for queries in asked:
                started = time.perf_counter()
                ranked = index.search(queries, TOP)
                seconds.append((time.perf_counter() - started) / len(queries))
                found += [{index.row_of[hit.page_id] for hit in hits} for hits in ranked]
        mean = float(np.mean(seconds))
        rows.append(
            Row(
                corpus=corpus.name,
                pages=corpus.count,
                patches=patches,
                candidates=str(candidates or ALL),
                recall=float(np.mean([len(a & b) / len(a) for a, b in zip(wanted, found, strict=True)])),
                p50=float(np.median(seconds)) * 1000,
                p95=float(np.quantile(seconds, 0.95)) * 1000,
                queries_a_second=1 / mean,
                ratio=peer / mean,
                ratio_one_by_one=peer_single / mean,
                disk_bytes_a_page=disk / corpus.count,
                disk_share=disk / (2 * DIM * patches),
                memory_bytes_a_page=index.memory_bytes / corpus.count,
                build_seconds=build_seconds,
            )
        )
    return rows


def measured(folder: Path | None, settings: Mapping[str, Any]) -> list[Row]:
    """The rows in the folder's file, if they were measured with these settings."""
    if folder is None or not (folder / FILE).is_file():
        return []
    stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return [Row(**row) for row in stored["rows"]] if stored["settings"] == settings else []


def print_table(rows: Sequence[Row]) -> None:
    table = Table(
        "corpus", "pages", "candidates", "recall@10", "p50, ms", "p95, ms", "queries/s", "x peer", "x peer, singly",
        "disk/page", "of bf16", "memory/page", "build, s",
        title="compact index against colpali-engine's score_multi_vector",
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.corpus, f"{row.pages:,}", row.candidates, f"{row.recall:.3f}",
            *("–" if row.candidates == ALL else f"{one:.1f}" for one in (row.p50, row.p95)),
            f"{row.queries_a_second:.1f}", f"{row.ratio:.1f}", f"{row.ratio_one_by_one:.1f}",
            f"{row.disk_bytes_a_page:,.0f}", f"1/{1 / row.disk_share:.1f}", f"{row.memory_bytes_a_page:,.0f}",
            f"{row.build_seconds:.0f}",
        )  # fmt: skip
    Console(width=160).print(table)


def draw(rows: Sequence[Row], title: str) -> figures.Picture:
    """How speed, recall, latency, bytes and build time grow with the pages; one line for each count of candidates."""
    figure = figures.new_figure(13.5, 6.4)
    drawn: list[tuple[str, list[tuple[str, str, float]], float | None, bool]] = [
        ("Queries a second, times the peer's", [("ratio", "-", 1)], PEER_TARGET, True),
        ("Recall@10 against exact MaxSim", [("recall", "-", 1)], RECALL_TARGET, False),
        ("Latency, ms: p50, and p95 dotted", [("p50", "-", 1), ("p95", ":", 1)], None, True),
        (
            "Bytes a page: on disk, and in memory dotted",
            [("disk_bytes_a_page", "-", 1), ("memory_bytes_a_page", ":", 1)],
            None,
            True,
        ),
        ("Build without embedding, minutes", [("build_seconds", "-", 1 / 60)], None, True),
    ]
    for place, (name, fields, target, log) in enumerate(drawn):
        axes = figures.axes_at(figure, 0.7 + 4.4 * (place % 3), 0.5 + 3.2 * (place // 3), 3.5, 2.0)
        figures.chart(axes, name, x=f"pages, {title}")
        axes.set_xscale("log")
        alike = place > 2  # whatever is searched, the index is the same
        for colour, candidates in zip(figures.SERIES, dict.fromkeys(row.candidates for row in rows), strict=False):
            line = [row for row in rows if row.candidates == candidates]
            if name.startswith("Latency"):
                line = [row for row in line if row.candidates != ALL]
            for field, style, factor in fields:
                values = [getattr(row, field) * factor for row in line]
                label = candidates if style == "-" else None
                axes.plot([row.pages for row in line], values, f"o{style}", color=colour, label=label)
            if alike:
                break
        if target is not None:
            axes.axhline(target, color=figures.MUTED, linestyle="--", linewidth=1)
        if log:
            axes.set_yscale("log")
        if name.startswith("Recall"):
            figures.share_ticks(axes.yaxis)
        if place == 0:
            handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title="candidates", frameon=False, loc="upper left", bbox_to_anchor=(0.7, 0.43))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--pages", type=int, nargs="*", default=[1000, 10_000], help="sizes of corpora that are drawn")
    parser.add_argument("--patches", type=int, default=750, help="of a synthetic page, about")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--candidates", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--keep", type=float, default=Compression().keep)
    parser.add_argument("--vector-bytes", type=int, default=Compression().vector_bytes)
    parser.add_argument("--profile", default="nano", help="whose index is measured too, where it is there")
    parser.add_argument("--peer-pages", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, default=None, help="where the indexes are written (default: temporary)")
    parser.add_argument("--out", type=Path, default=None, help="folder for search.json and a figure a kind")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    settings = {name: getattr(options, name) for name in SETTINGS}
    settings["index"] = digest(load_profile(options.profile).index_folder / "manifest.json")
    settings["cpu"] = hardware()["cpu"]
    rows = measured(options.out, settings)
    with threadpool_limits(options.threads):
        for corpus in corpora(options):
            if any((row.corpus, row.pages) == (corpus.name, corpus.count) for row in rows):
                continue
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                rows += measure(corpus, Path(folder), options)
            rows.sort(key=lambda row: (row.corpus, row.pages))
            if options.out:
                write_json(options.out / FILE, {"settings": settings, "rows": [asdict(row) for row in rows]})
    print_table(rows)
    if options.out:
        for drawn in [kind for kind in options.kinds if kind != "real"]:
            figures.save(draw([row for row in rows if row.corpus.endswith(drawn)], drawn), options.out / f"{drawn}.png")


if __name__ == "__main__":
    main()
