"""How a compact index makes vectors small: which are kept, their codes, their cells; and how that is learned.

See `retrieval.compact` for what it is for. Everything here is learned from a sample of the corpus's pages and of query
tokens, and is the same for the same sample (on the same machine with the same thread count).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from vrag_nb.retrieval.storage import REBUILD, Compression, IndexCorruptError

TRAINING_VECTORS = 262_144  # at most, kept vectors a codec is trained on
MOST_CELLS = 4096
ERROR_4, ERROR_8 = 0.0115, 0.00008  # squared error of a Gaussian of variance 1 in 16 and in 256 even steps
HALVED = ("queries", "cells")
ENOUGH = 32  # training vectors a dimension; fewer say little of the range that a new page will need
CLIPS = (0.0, 0.0005, 0.002, 0.01)  # shares of an axis' values that its range may leave out at either end


@dataclass(frozen=True)
class Codec:
    """What turns a page's vectors into codes, cells and back. All arrays are float32 unless said otherwise;
    `queries` and `cells` hold float16 values, and are stored as such.

    `queries` (n, dim): the sample that decides which patches stay. `mean` (dim,), `axes` (dim, n_axes): the rotation.
    `low`, `step` (n_axes,): the range of an axis. `wide` (1,) int64: how many leading axes have 8 bits; the other have
    4. `cells` (n_cells, dim): the cells' centres.
    """

    queries: np.ndarray
    mean: np.ndarray
    axes: np.ndarray
    low: np.ndarray
    step: np.ndarray
    wide: np.ndarray
    cells: np.ndarray

    @property
    def code_bytes(self) -> int:
        """Bytes of a code: an axis of 8 bits takes one, two of 4 bits take one."""
        return int(self.wide[0] + (len(self.low) - self.wide[0]) // 2)

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Codes (n, code_bytes) uint8 of vectors (n, dim)."""
        levels = np.where(np.arange(len(self.low)) < self.wide[0], 255, 15)
        steps = ((np.asarray(vectors, np.float32) - self.mean) @ self.axes - self.low) / self.step
        whole = np.clip(np.rint(steps), 0, levels).astype(np.uint8)
        wide, narrow = whole[:, : self.wide[0]], whole[:, self.wide[0] :]
        return np.concatenate([wide, narrow[:, ::2] | narrow[:, 1::2] << 4], axis=1)

    def levels(self, codes: np.ndarray) -> np.ndarray:
        """The steps of every axis, (n, n_axes) float32, of codes (n, code_bytes)."""
        wide, narrow = codes[:, : self.wide[0]], codes[:, self.wide[0] :]
        levels = np.empty((len(codes), len(self.low)), np.float32)
        levels[:, : self.wide[0]] = wide
        levels[:, self.wide[0] :: 2] = narrow & 15
        levels[:, self.wide[0] + 1 :: 2] = narrow >> 4
        return levels

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """What is left of the vectors, (n, dim) float32."""
        return (self.levels(codes) * self.step + self.low) @ self.axes.T + self.mean

    def fold(self, query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(weights (n_tokens, n_axes), offsets (n_tokens,)): a token's product with `decode(codes)` is
        `weights @ levels(codes).T + offsets`."""
        turned = query @ self.axes
        return turned * self.step, turned @ self.low + query @ self.mean

    def cells_of(self, vectors: np.ndarray) -> np.ndarray:
        """The cells a page's vectors fall into, ascending, each once: (n,) uint16."""
        index = faiss.IndexFlatL2(self.cells.shape[1])
        index.add(self.cells)
        return np.unique(index.search(np.ascontiguousarray(vectors, np.float32), 1)[1]).astype(np.uint16)

    def to_bytes(self) -> bytes:
        """The codec as the bytes of a .npz file, equal for equal codecs."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez(
            buffer, **{name: array.astype(np.float16) if name in HALVED else array for name, array in arrays.items()}
        )
        return buffer.getvalue()

    @classmethod
    def load(cls, path: Path) -> Codec:
        """Raises IndexCorruptError naming the file when an array is missing."""
        with np.load(path) as arrays:
            missing = [field.name for field in fields(cls) if field.name not in arrays]
            if missing:
                raise IndexCorruptError(f"{path}: {missing[0]} is missing; {REBUILD}")
            stored = {field.name: arrays[field.name] for field in fields(cls)}
        return cls(**stored | {name: stored[name].astype(np.float32) for name in HALVED})


# --- learning the codec -----------------------------------------------------------------------------------------------


def kept_count(length: int, keep: float) -> int:
    """How many of a page's `length` vectors are kept: at least one."""
    return max(1, int(length * keep))


def select(vectors: np.ndarray, queries: np.ndarray, keep: float) -> np.ndarray:
    """The 0-based places, ascending, of the page's vectors that the sample queries reach best: (kept_count,).

    Rounds: the vectors that win the maximum of a query, most wins first, then the same among the rest.
    """
    count = kept_count(len(vectors), keep)
    similarity = queries @ np.asarray(vectors, np.float32).T  # (n_queries, n_vectors)
    chosen = np.zeros(0, np.int64)
    while len(chosen) < count:
        wins = np.bincount(similarity.argmax(axis=1), minlength=len(vectors))
        won = np.flatnonzero(wins)
        chosen = np.concatenate([chosen, won[np.lexsort((won, -wins[won]))]])
        similarity[:, won] = -np.inf
    return np.sort(chosen[:count])


def train_codec(
    pages: Sequence[np.ndarray], queries: np.ndarray, page_count: int, settings: Compression, seed: int = 0
) -> Codec:
    """A codec from a sample of pages, (n_tokens, dim) each, and of query tokens (n, dim).

    `page_count`: the pages of the whole corpus, on which the number of cells depends.
    """
    queries = _halved(queries)
    kept = [np.asarray(page, np.float32)[select(page, queries, settings.keep)] for page in pages]
    per_page = float(np.mean([len(page) for page in kept]))
    vectors = np.concatenate(kept)
    if len(vectors) > TRAINING_VECTORS:
        vectors = vectors[np.sort(np.random.default_rng(seed).permutation(len(vectors))[:TRAINING_VECTORS])]
    mean = vectors.mean(axis=0)
    centred = vectors - mean
    variance, axes = np.linalg.eigh(centred.T @ centred / len(vectors))
    variance, axes = np.maximum(variance[::-1], 0), axes[:, ::-1]
    wide, narrow = split_axes(variance, settings.vector_bytes)
    axes = np.ascontiguousarray(axes[:, : wide + narrow], np.float32)
    turned = centred @ axes
    levels = [255 if axis < wide else 15 for axis in range(wide + narrow)]
    if len(vectors) < ENOUGH * len(mean):  # any vector of length 1 or less fits
        ranges = [(-1 - float(middle), 2 / steps) for middle, steps in zip(mean @ axes, levels, strict=True)]
    else:
        ranges = [axis_range(turned[:, axis], steps) for axis, steps in enumerate(levels)]
    return Codec(
        queries=queries,
        mean=mean,
        axes=axes,
        low=np.array([low for low, _ in ranges], np.float32),
        step=np.array([step for _, step in ranges], np.float32),
        wide=np.array([wide]),
        cells=_halved(_train_cells(vectors, settings.cells or usual_cells(page_count * per_page), seed)),
    )


def split_axes(variance: np.ndarray, vector_bytes: int) -> tuple[int, int]:
    """(axes of 8 bits, axes of 4 bits) with the least expected error in `vector_bytes`; `variance` falls.

    The 4-bit axes are even in number. Fewer bytes are used where 8 bits for every axis need no more.
    """
    dim = len(variance)
    if vector_bytes >= dim:
        return dim, 0
    left = np.concatenate([np.cumsum(variance[::-1])[::-1], [0.0]])  # variance from an axis on

    def error(wide: int) -> float:
        end = wide + narrow(wide)
        return ERROR_8 * (left[0] - left[wide]) + ERROR_4 * (left[wide] - left[end]) + left[end]

    def narrow(wide: int) -> int:
        return min(2 * (vector_bytes - wide), (dim - wide) // 2 * 2)

    wide = min(range(vector_bytes + 1), key=error)
    return wide, narrow(wide)


def axis_range(values: np.ndarray, levels: int) -> tuple[float, float]:
    """(low, step) of `levels` even steps, clipped at either end where that lessens the squared error."""
    found = []
    for clip in CLIPS:
        low, high = np.quantile(values, [clip, 1 - clip])
        step = max(float(high - low) / levels, 1e-9)
        back = low + step * np.clip(np.rint((values - low) / step), 0, levels)
        found.append((float(np.square(back - values).mean()), float(low), step))
    return min(found)[1:]


def usual_cells(vectors: float) -> int:
    """A power of two near 4 times the root of the vectors, at most MOST_CELLS."""
    return int(min(MOST_CELLS, 2 ** round(np.log2(max(1.0, 4 * vectors**0.5)))))


def _halved(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float16).astype(np.float32)


def _train_cells(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    distinct = np.unique(vectors, axis=0)
    if len(distinct) <= count:
        return distinct
    # Not faiss.Kmeans: it reads its centroids through a type that pymupdf, imported later, replaces by its own.
    clustering, cells = faiss.Clustering(vectors.shape[1], count), faiss.IndexFlatL2(vectors.shape[1])
    clustering.niter, clustering.seed = 8, seed
    clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, 48
    clustering.train(np.ascontiguousarray(distinct, np.float32), cells)
    return np.asarray(cells.reconstruct_n(0, count), np.float32)


def encode_page(codec: Codec, vectors: np.ndarray, keep: float, views: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(codes (kept_count, code_bytes) uint8, cells (n,) uint16) of a page's vectors (n_tokens, dim), view by view."""
    parts = np.split(np.asarray(vectors, np.float32), views)
    kept = np.concatenate([part[select(part, codec.queries, keep)] for part in parts])
    return codec.encode(kept), codec.cells_of(kept)
