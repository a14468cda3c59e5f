"""A compact index for large corpora: fewer vectors a page, fewer bits a vector, and candidates by cells.

Three reductions, all learned from a sample of the corpus at build time and stored beside the index (`Codec`):

1. **Patches that queries reach.** Most patches of a page never win a maximum of MaxSim: blank paper, repeated texture.
   Sample queries, made of the pages' own text, are matched with a page's patches; those that win are kept, then those
   that win once the winners are gone, until `keep` of the page is reached. What is not kept is lost.
2. **Transform code.** Kept vectors are rotated to their principal axes; leading axes are stored in 8 bits, the next in
   4, the rest not at all, so that a vector takes `vector_bytes` and the expected squared error is least. Codes are
   never decoded in a search: step and offset of every axis are folded into the query.
3. **Cells.** Kept vectors fall into k-means cells; a page is the set of its cells. A query token opens the `probes`
   nearest cells and credits their pages (the imputation of `index.MultiVectorIndex.nearest`); the pages of greatest
   credit are scored by all their cells (as in PLAID, Santhanam et al., arXiv 2205.09707), and the best of those by
   MaxSim on their codes, memory-mapped.

Scores are approximate and are comparable within one index only. Opened as exact, every page is scored by its codes; the
float16 index stays the reference.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vrag_nb.files import write_bytes
from vrag_nb.retrieval.codec import Codec, encode_page, train_codec
from vrag_nb.retrieval.embedders import Embedder, batches
from vrag_nb.retrieval.index import MultiVectorIndex, best, maxsim
from vrag_nb.retrieval.storage import (
    COMPACT_FORMAT,
    REBUILD,
    Compression,
    IndexCorruptError,
    IndexedPage,
    Manifest,
    StoredFile,
    array_bytes,
    store,
)

CANDIDATES = (256, 2048)
SCORED_TOGETHER = 64  # pages whose codes are unpacked at once
SAMPLE_PAGES = 512  # a codec is trained on
SAMPLE_QUERIES, SAMPLE_TOKENS = 256, 1024  # made of the pages' text to find the patches that queries reach
QUERY_WORDS = 12

# --- searching --------------------------------------------------------------------------------------------------------


class CompactIndex(MultiVectorIndex):
    """Late interaction on codes; see the module's docstring.

    `probes`: cells a query token opens. `shortlist`: pages scored by their cells, for every page that is scored by its
    codes (`candidates` of them: a tenth of the pages, within CANDIDATES, until set).
    """

    exact_up_to = 256
    probes: int = 32
    shortlist: int = 4

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.candidates = min(max(CANDIDATES[0], len(self.page_ids) // 10), CANDIDATES[1])
        assert manifest.codec is not None
        assert manifest.cells is not None
        self.codec = Codec.load(self.folder / manifest.codec)
        stored = np.load(self.folder / manifest.cells)
        pages = len(self.page_ids)
        counts = stored[:pages].astype(np.int64)
        if len(stored) != pages + counts.sum() or counts.min() < 1 or stored[pages:].max() >= len(self.codec.cells):
            raise IndexCorruptError(f"{folder}/{manifest.cells}: not the cells of {pages} pages; {REBUILD}")
        self._cells = stored[pages:]
        self._first_cell = np.concatenate([[0], np.cumsum(counts)])
        order = np.argsort(self._cells, kind="stable")
        self._page_of = np.repeat(np.arange(pages, dtype=np.int32), counts)[order]  # pages, cell after cell
        self._first_page = np.searchsorted(self._cells[order], np.arange(len(self.codec.cells) + 1))

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arrays held in memory; codes are memory-mapped and not among them."""
        loaded = (self._cells, self._first_cell, self._page_of, self._first_page)
        pages = (self.lengths, self._start, self._hubness)
        learned = (self.codec.queries, self.codec.axes, self.codec.cells)
        return sum(array.nbytes for array in (*loaded, *pages, *learned))

    def codes(self, row: int) -> np.ndarray:
        """A page's stored codes, (n, vector_bytes) uint8."""
        return super().vectors(row)

    def cells_of(self, row: int) -> np.ndarray:
        """The cells a page has vectors in, ascending, uint16."""
        return self._cells[self._first_cell[row] : self._first_cell[row + 1]]

    def vectors(self, row: int) -> np.ndarray:
        """What is left of a page's vectors, (n, dim) float32."""
        return self.codec.decode(self.codes(row))

    def score_rows(
        self, queries: Sequence[np.ndarray], rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """MaxSim on the codes: the rows in page order, and (n_queries, n_rows) scores."""
        rows = np.arange(len(self.page_ids)) if rows is None else np.sort(rows)
        folded = [self.codec.fold(np.asarray(query, np.float32)) for query in queries]
        parts = [
            maxsim([weights for weights, _ in folded], levels, self.lengths[block], self.manifest.views)
            for block in (rows[start : start + SCORED_TOGETHER] for start in range(0, len(rows), SCORED_TOGETHER))
            for levels in [self.codec.levels(np.concatenate([self.codes(int(row)) for row in block]))]
        ]
        offsets = np.array([[offset.sum()] for _, offset in folded], np.float32)
        return rows, (np.concatenate(parts, axis=1) if parts else np.zeros((len(queries), 0), np.float32)) + offsets

    def nearest(self, query: np.ndarray, count: int, rows: np.ndarray | None = None) -> np.ndarray:
        """The rows of about `count` pages that look best by their cells."""
        similar = self.codec.cells @ np.asarray(query, np.float32).T  # (n_cells, n_tokens)
        credit = self._credit(similar) - self._penalty(query, np.arange(len(self.page_ids)))
        allowed = np.arange(len(credit)) if rows is None else np.sort(rows)
        wanted = min(self.shortlist * count, len(allowed))
        likely = np.sort(allowed[np.argpartition(-credit[allowed], wanted - 1)[:wanted]])
        starts, ends = self._first_cell[likely], self._first_cell[likely + 1]
        cells = self._cells[_ranges(starts, ends)]
        return best(likely, maxsim_table(similar, cells, ends - starts) - self._penalty(query, likely), count)[0]

    def _credit(self, similar: np.ndarray) -> np.ndarray:
        """What the probed cells give every page: (n_pages,)."""
        probes = min(self.probes, len(similar))
        opened = np.argpartition(-similar, probes - 1, axis=0)[:probes]  # (probes, n_tokens)
        total = np.zeros(len(self.page_ids), np.float32)
        for token in range(similar.shape[1]):
            of_token = similar[:, token]
            cells = opened[np.argsort(of_token[opened[:, token]]), token]  # the nearest last
            starts, ends = self._first_page[cells], self._first_page[cells + 1]
            credit = np.full(len(total), of_token[cells[0]], np.float32)
            credit[self._page_of[_ranges(starts, ends)]] = np.repeat(of_token[cells], ends - starts)
            total += credit  # a page in several cells keeps the last, which is the nearest
        return total


def maxsim_table(similar: np.ndarray, cells: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """MaxSim of pages that are sets of cells: (n_pages,).

    `similar`: (n_cells, n_tokens); `cells`: the pages' cells one page after another; `lengths`: each page's count.
    """
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    reached = torch.nn.functional.embedding_bag(  # gathers and takes maxima in one pass, without the gathered table
        torch.from_numpy(cells.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(similar)),
        torch.from_numpy(starts),
        mode="max",
    )
    return reached.sum(dim=1).numpy()


def _ranges(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """start..end-1 of every pair, one after another."""
    lengths = ends - starts
    shifts = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return shifts + np.arange(lengths.sum())


# --- building ---------------------------------------------------------------------------------------------------------


def write_compact(
    index_dir: Path,
    work: Path,
    listed: Sequence[IndexedPage],
    vectors: Callable[[str], np.ndarray],
    queries: Callable[[], np.ndarray],
    settings: Compression,
    shard_pages: int,
    before: CompactIndex | None = None,
    views: int = 1,
) -> dict[str, Any]:
    """Write codec, codes and cells into `index_dir`, the counts into `listed`; the manifest's fields that name them.

    `vectors`: a page's (n_tokens, dim) by its key. `queries`: sample query tokens (n, dim), asked for when a codec has
    to be trained. `before`: an index of the same settings, whose codec goes on serving and whose codes are taken over.
    `work`: where codec and finished shards are kept for the rerun after a kill. `views`: of a page (`Embedder.views`),
    each of which keeps its share.
    """
    work.mkdir(parents=True, exist_ok=True)
    codec = before.codec if before else _trained_codec(work, listed, vectors, queries, settings)
    row_of = {entry.key: row for row, entry in enumerate(before.manifest.pages)} if before else {}

    def encoded(key: str) -> tuple[np.ndarray, np.ndarray]:
        if before and key in row_of:
            return before.codes(row_of[key]), before.cells_of(row_of[key])
        return encode_page(codec, vectors(key), settings.keep, views)

    files: dict[str, StoredFile] = {}
    codec_name, files_entry = store(index_dir, "codec", ".npz", codec.to_bytes())
    files[codec_name] = files_entry
    shards, counts, cells = [], [], []
    for number, entries in enumerate(batches(listed, shard_pages)):
        part = _shard(work, codec_name, [entry.key for entry in entries], encoded)
        for entry, length in zip(entries, part["lengths"], strict=True):
            entry.vectors = int(length)
        counts.append(part["counts"])
        cells.append(part["cells"])
        name, files_entry = store(index_dir, f"vectors-{number:05d}", ".npy", array_bytes(part["codes"]))
        files[name] = files_entry
        shards.append(name)
    cells_name, files_entry = store(index_dir, "cells", ".npy", array_bytes(np.concatenate([*counts, *cells])))
    files[cells_name] = files_entry
    return {
        "format": COMPACT_FORMAT,
        "dtype": "uint8",
        "compression": settings,
        "code_bytes": codec.code_bytes,
        "codec": codec_name,
        "cells": cells_name,
        "shards": shards,
        "files": files,
    }


def _trained_codec(
    work: Path,
    listed: Sequence[IndexedPage],
    vectors: Callable[[str], np.ndarray],
    queries: Callable[[], np.ndarray],
    settings: Compression,
) -> Codec:
    """The codec a killed build has trained for the same pages, or a new one from a sample of them."""
    keys = [entry.key for entry in listed]
    path = work / f"codec-{_digest([settings.model_dump_json(), *keys])}.npz"
    if not path.is_file():
        generator = np.random.default_rng(0)
        chosen = np.sort(generator.permutation(len(keys))[:SAMPLE_PAGES])
        pages = [np.asarray(vectors(keys[place]), np.float32) for place in chosen]
        tokens = queries()
        if not len(tokens):  # no page has text: patches stand in for query tokens
            tokens = np.concatenate(pages)
        tokens = tokens[np.sort(generator.permutation(len(tokens))[:SAMPLE_TOKENS])]
        write_bytes(path, train_codec(pages, tokens, len(keys), settings).to_bytes())
    return Codec.load(path)


def _shard(
    work: Path, codec_name: str, keys: list[str], encoded: Callable[[str], tuple[np.ndarray, np.ndarray]]
) -> dict[str, np.ndarray]:
    """A shard's `codes` and `cells`, pages one after another, their `lengths` and `counts`; kept in `work`."""
    path = work / f"codes-{_digest([codec_name, *keys])}.npz"
    if not path.is_file():
        made = [encoded(key) for key in keys]
        buffer = io.BytesIO()
        np.savez(
            buffer,
            codes=np.concatenate([codes for codes, _ in made]),
            lengths=np.array([len(codes) for codes, _ in made]),
            cells=np.concatenate([cells for _, cells in made]),
            counts=np.array([len(cells) for _, cells in made], np.uint16),
        )
        write_bytes(path, buffer.getvalue())
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def sample_queries(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Tokens (n, dim) of queries made of QUERY_WORDS consecutive words from pages spread over the corpus."""
    generator = np.random.default_rng(0)
    words = [found for text in texts if len(found := re.findall(r"\S*\w\S*", text)) > 2]
    made = []
    for place in generator.permutation(len(words))[:SAMPLE_QUERIES]:
        start = generator.integers(0, max(1, len(words[place]) - QUERY_WORDS))
        made.append(" ".join(words[place][start : start + QUERY_WORDS]))
    parts = [vectors for batch in batches(made, embedder.batch_size) for vectors in embedder.embed_queries(list(batch))]
    return np.concatenate(parts) if parts else np.zeros((0, embedder.dim), np.float32)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
