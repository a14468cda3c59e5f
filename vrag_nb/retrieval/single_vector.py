"""One vector a page, in a FAISS structure that fits the corpus's size: flat, HNSW or IVF-PQ (`retrieval.structure`).

Whatever the structure, scores are inner products with the stored float16 vectors (at length 1, as in flat): HNSW and
IVF-PQ only say which pages to look at. Where they have little to gain (few rows asked for, or most of the corpus), or
find fewer pages than were asked for, every row is scored instead, so that no list comes out shorter than with flat.

Searching is safe from several threads at once. How the structure is built and kept in step: `retrieval.growing`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from vrag_nb.retrieval.gpu import MOST_NEIGHBOURS, gpu_copy, gpu_problem
from vrag_nb.retrieval.index import EXACT_UP_TO, Ranking, VectorIndex, best
from vrag_nb.retrieval.storage import (
    REBUILD,
    IndexCorruptError,
    IndexMismatchError,
    Manifest,
)
from vrag_nb.retrieval.structure import Kind, SingleVectorSettings, Structure, description, misfit

logger = logging.getLogger(__name__)

CLASSES: dict[Kind, type[faiss.Index]] = {"flat": faiss.IndexFlat, "hnsw": faiss.IndexHNSW, "ivfpq": faiss.IndexIVFPQ}


class SingleVectorIndex(VectorIndex):
    """See the module's docstring. `use` sets how it is searched; until then it is by the defaults, on the CPU.

    Opened on a manifest without a FAISS file, it scores every page. Raises IndexCorruptError when the files are not
    what the manifest says.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.structure = manifest.structure or Structure()
        self.settings = SingleVectorSettings()
        self.asked: SingleVectorSettings | None = None  # what `use` was given
        self._gpu: Any = None
        self._gpu_turn = threading.Lock()  # a GPU index serves one caller at a time
        self.page_of = np.arange(len(self.page_ids), dtype=np.int32)  # the row of every FAISS id, -1 for none
        if self.structure.rows:
            try:
                self.page_of = np.load(self.folder / self.structure.rows)
            except (OSError, ValueError, EOFError) as error:
                raise IndexCorruptError(f"{self.folder}/{self.structure.rows}: {error}; {REBUILD}") from None
        if self._faiss is not None:
            self._check()

    def _check(self) -> None:
        assert self._faiss is not None
        kind, where = self.structure.kind, f"{self.folder}/{self.manifest.faiss}"
        if not isinstance(self._faiss, CLASSES[kind]):
            raise IndexCorruptError(f"{where}: {type(self._faiss).__name__}, the manifest says {kind}; {REBUILD}")
        alive = self.page_of[self.page_of >= 0]
        held = len(alive) if kind == "ivfpq" else len(self.page_of)
        if (self._faiss.ntotal, self._faiss.d) != (held, self.manifest.dim):
            shape = (self._faiss.ntotal, self._faiss.d)
            raise IndexCorruptError(f"{where}: vectors {shape}, expected {(held, self.manifest.dim)}; {REBUILD}")
        if not np.array_equal(np.sort(alive), np.arange(len(self.page_ids))):
            raise IndexCorruptError(
                f"{self.folder}/{self.structure.rows}: not the rows of {len(self.page_ids)} pages; {REBUILD}"
            )

    def use(self, settings: SingleVectorSettings | None = None) -> None:
        """Search by these settings, and on a GPU where they and FAISS allow it.

        None: by the defaults, whatever the index is. Raises IndexMismatchError naming the field in which the index was
        built otherwise; ValueError where a GPU is asked for and cannot be used.
        """
        if settings and (found := misfit(self.structure, settings, len(self.page_ids), self.manifest.dim)):
            field, stored, asked = found
            raise IndexMismatchError(
                f"{self.folder}: the index was built with {field} {stored!r}, the settings ask for {asked!r}; "
                f"open it with the settings that made it, or {REBUILD}"
            )
        self.asked, self.settings = settings, settings or SingleVectorSettings()
        self._gpu = self._on_gpu() if self.settings.device != "cpu" else None
        logger.info("single-vector index: %s, searched on the %s", self.description, self.device)

    @property
    def description(self) -> str:
        """One line: the structure and what it takes in memory."""
        return description(self.structure, len(self.page_ids), self.manifest.dim)

    @property
    def device(self) -> str:
        return "cpu" if self._gpu is None else "gpu"

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory: the FAISS file, which is loaded whole, and the ids' rows; shards are memory-mapped."""
        return (self.manifest.files[self.manifest.faiss].bytes if self.manifest.faiss else 0) + self.page_of.nbytes

    def _on_gpu(self) -> Any:
        index: Any = self._faiss
        kind = self.structure.kind
        problem = "hnsw is searched on the CPU" if kind == "hnsw" else gpu_problem()
        if not problem:
            if kind == "ivfpq":
                index.nprobe = self.settings.probes(self.structure.lists)
            try:
                return gpu_copy(index, half=kind == "ivfpq")
            except RuntimeError as error:  # out of memory, or a code size that FAISS's kernels do not have
                problem = f"FAISS could not copy the index to the GPU: {str(error).splitlines()[0]}"
                logger.warning("%s", problem)
        if self.settings.device == "gpu":
            raise ValueError(f"{self.folder}: device gpu: {problem}; use device cpu or auto")
        return None

    def vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """The pages' vectors at length 1, (n_rows, dim) float32."""
        found = np.empty((len(rows), self.manifest.dim), np.float32)
        shards = rows // max(1, self.manifest.shard_pages)
        for shard in np.unique(shards):
            inside = shards == shard
            found[inside] = self._shards[shard][rows[inside] - self._first_row[shard]]
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    def _rank(self, queries: Sequence[np.ndarray], top_k: int, rows: np.ndarray | None) -> list[Ranking]:
        if top_k == 0:
            return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
        stacked = np.ascontiguousarray(np.concatenate(list(queries)), np.float32)
        if self._faiss is None:
            return self._score_all(stacked, top_k, rows)
        if self.structure.kind == "flat":
            scores, found = self._search(stacked, top_k, rows)
            return [best(ids[ids >= 0], row[ids >= 0], top_k) for ids, row in zip(found, scores, strict=True)]
        count = len(self.page_ids) if rows is None else len(rows)
        wanted = min(count, top_k * (self.settings.refine if self.structure.kind == "ivfpq" else 1))
        if 4 * wanted >= count or (rows is not None and count <= EXACT_UP_TO):
            return self._score_all(stacked, top_k, rows)
        _, found = self._search(stacked, wanted, rows)
        return [
            self._score(query, self.page_of[ids[ids >= 0]], top_k, rows)
            for query, ids in zip(stacked, found, strict=True)
        ]

    def _score(self, query: np.ndarray, candidates: np.ndarray, top_k: int, rows: np.ndarray | None) -> Ranking:
        if len(candidates) < top_k:
            return self._score_all(query[None], top_k, rows)[0]
        return best(candidates.astype(np.int64), self.vectors_of(candidates) @ query, top_k)

    def _score_all(self, queries: np.ndarray, top_k: int, rows: np.ndarray | None) -> list[Ranking]:
        """Exact, on the stored vectors."""
        rows = np.arange(len(self.page_ids)) if rows is None else np.sort(rows)
        parts = [
            queries @ self.vectors_of(rows[start : start + EXACT_UP_TO]).T for start in range(0, len(rows), EXACT_UP_TO)
        ]
        return [best(rows, scores, top_k) for scores in np.concatenate(parts, axis=1)]

    def _search(self, queries: np.ndarray, count: int, rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """What FAISS finds: (scores, ids), each (n, count) or narrower; missing neighbours have id -1."""
        assert self._faiss is not None
        if self._gpu is not None and rows is None and count <= MOST_NEIGHBOURS:
            with self._gpu_turn:
                return self._gpu.search(queries, count)
        options: dict[str, Any] = {}
        if rows is not None or (self.structure.kind == "hnsw" and (self.page_of < 0).any()):
            wanted = np.zeros(len(self.page_ids) + 1, bool)  # the last place answers for the id of no page
            wanted[:-1] = rows is None
            wanted[rows if rows is not None else []] = True
            bits: Any = np.packbits(wanted[self.page_of], bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg]  # FAISS's stubs lag behind it
        if self.structure.kind == "hnsw":
            options["efSearch"] = max(self.settings.ef_search, count)
            params = faiss.SearchParametersHNSW(**options)  # type: ignore[attr-defined]
            return self._faiss.search(queries, count, params=params)
        if self.structure.kind == "ivfpq":
            options["nprobe"] = self.settings.probes(self.structure.lists)
            return self._faiss.search(queries, count, params=faiss.SearchParametersIVF(**options))
        return self._faiss.search(queries, count, params=faiss.SearchParameters(**options) if options else None)
