"""Building the FAISS structure of a single-vector index, and keeping it in step with a corpus that changes.

**Updates.** Pages come and go anywhere in the corpus while FAISS only appends; so ids of HNSW and IVF-PQ are not rows,
and a file beside them says which page an id is. New pages join under new ids, coded as the index learned it. A page
that is gone leaves IVF-PQ's lists; from HNSW nothing can be taken: it keeps linking its neighbours and is left out of
what is found. When more than a fifth of all ids are gone, or the corpus is more than four times the one that lists and
codes were learned from, the structure is built anew from the stored vectors. Flat always is. A replaced page is one
that goes and one that comes.

**Kills.** The structure grows in fixed steps and is saved after each in the build's folder. A rerun goes on there and
ends with the same bytes as an undisturbed build. For HNSW this holds with one FAISS thread: with more, a graph's links
depend on which thread comes first, and so do its bytes, though not what it is good for.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from tqdm.auto import tqdm

from vrag_nb.retrieval.index import VectorIndex
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import COMPACT_FORMAT, Manifest, array_bytes, store, store_file
from vrag_nb.retrieval.structure import SingleVectorSettings, Structure, announcement, choose, misfit

logger = logging.getLogger(__name__)

STEP = 100_000  # vectors added between two saves
TRAINING_VECTORS = 262_144  # at most, to learn lists and codes from
MOST_GONE = 0.2  # of all ids
MOST_GROWTH = 4  # times the corpus that lists and codes were learned from


def write_structure(
    index_dir: Path,
    work: Path,
    manifest: Manifest,
    settings: SingleVectorSettings | None = None,
    before: SingleVectorIndex | None = None,
    progress: bool = False,
) -> Manifest:
    """Write the FAISS file of an index whose shards are there; the manifest that names it, for `storage.commit`.

    `before`: the index to go on from, where it was built by these settings and enough of it is left. `work`: where
    steps are saved for the rerun after a kill. Says what was chosen, why and what it costs: on the screen with
    `progress`, else in the log. Raises ValueError for settings that do not fit the dimension.
    """
    settings = settings or SingleVectorSettings()
    plan = _taken_over(before, manifest, settings) if before else None
    if plan is None:
        rows = np.arange(manifest.page_count, dtype=np.int32)
        plan = _Plan(choose(settings, manifest.page_count, manifest.dim), rows)
    line = announcement(plan.structure, settings, manifest.page_count, manifest.dim)
    if progress:
        tqdm.write(line)
    else:
        logger.info("%s", line)
    work.mkdir(parents=True, exist_ok=True)
    bare = manifest.model_copy(update={"faiss": None, "structure": None})
    made = _grown(work, plan, SingleVectorIndex(index_dir, bare), progress)
    return _stored(index_dir, manifest, plan, made)


def structured_as(index: VectorIndex | None, settings: SingleVectorSettings | None, count: int, dim: int) -> bool:
    """Whether the index is what the settings ask for. Raises ValueError for settings that do not fit the dimension."""
    settings = settings or SingleVectorSettings()
    choose(settings, count, dim)
    return isinstance(index, SingleVectorIndex) and misfit(index.structure, settings, count, dim) is None


@dataclass(frozen=True)
class _Plan:
    """What to build. `page_of`: the row of every id, those to come included, -1 for one that is gone. The first `known`
    ids are in the FAISS file `before`."""

    structure: Structure
    page_of: np.ndarray
    known: int = 0
    before: Path | None = None

    def name(self, keys: list[str]) -> str:
        """The start of its saved steps' names."""
        parts = [self.structure.model_dump_json(), str(self.before), self.page_of.tobytes().hex(), *keys]
        return f"structure-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"


def _taken_over(before: SingleVectorIndex, manifest: Manifest, settings: SingleVectorSettings) -> _Plan | None:
    """How to go on from the index before; None where its structure must be built anew."""
    old, count = before.structure, manifest.page_count
    if old.kind == "flat" or misfit(old, settings, count, manifest.dim) or before.manifest.faiss is None:
        return None
    if old.kind == "ivfpq" and count > MOST_GROWTH * old.trained_on:
        return None
    rows_of = defaultdict(list)
    for row in reversed(range(count)):
        rows_of[manifest.pages[row].key].append(row)
    page_of = np.full(len(before.page_of), -1, np.int32)
    for number, row in enumerate(before.page_of.tolist()):
        if row >= 0 and (rows := rows_of[before.manifest.pages[row].key]):
            page_of[number] = rows.pop()
    if (page_of < 0).sum() > MOST_GONE * len(page_of):
        return None
    new = np.sort(np.array([row for rows in rows_of.values() for row in rows], np.int32))
    return _Plan(old, np.concatenate([page_of, new]), len(page_of), before.folder / before.manifest.faiss)


def _grown(work: Path, plan: _Plan, stored: SingleVectorIndex, progress: bool) -> faiss.Index:
    """The structure with every vector added, from the last saved step on."""
    kind, total = plan.structure.kind, len(plan.page_of)
    name = plan.name([page.key for page in stored.manifest.pages])
    index, held = _saved(work, name)
    if index is None:
        index, held = _begun(plan, stored), plan.known
        if kind == "ivfpq":
            _save(work, name, index, held)
    hidden = not progress or kind == "flat"  # which takes no time
    with tqdm(total=total, initial=held, unit="page", desc=f"indexing, {kind}", disable=hidden) as bar:
        for start in range(held, total, STEP):
            ids = np.arange(start, min(start + STEP, total))
            _add(index, plan.structure, stored.vectors_of(plan.page_of[ids]), ids)
            bar.update(len(ids))
            if kind != "flat" and start + STEP < total:
                _save(work, name, index, start + STEP)
    return index


def _begun(plan: _Plan, stored: SingleVectorIndex) -> faiss.Index:
    """The structure to add to: without vectors, or that of the index before without the pages that are gone."""
    structure, dim = plan.structure, stored.manifest.dim
    if plan.before:
        index = faiss.read_index(str(plan.before))
        if structure.kind == "ivfpq":
            gone = np.flatnonzero(plan.page_of < 0)
            index.remove_ids(faiss.IDSelectorBatch(gone))
        return index
    if structure.kind == "flat":
        return faiss.IndexFlatIP(dim)
    if structure.kind == "hnsw":
        half: Any = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexHNSWSQ(dim, half, structure.m, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = structure.ef_construction
        return index
    return _trained(structure, stored)


def _trained(structure: Structure, stored: SingleVectorIndex) -> faiss.Index:
    """IVF-PQ with its lists and codes learned from a sample of the corpus, the same for the same seed."""
    dim, count = stored.manifest.dim, stored.manifest.page_count
    centres = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(centres, dim, structure.lists, structure.code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = structure.seed
        clustering.min_points_per_centroid = 1  # few are no reason to warn: candidates are scored on their vectors
    chosen = np.random.default_rng(structure.seed).permutation(count)[:TRAINING_VECTORS]
    index.train(stored.vectors_of(np.sort(chosen)))
    return index


def _add(index: faiss.Index, structure: Structure, vectors: np.ndarray, ids: np.ndarray) -> None:
    if structure.kind == "ivfpq":
        index.add_with_ids(vectors, ids)
        return
    if structure.kind == "hnsw":  # levels are drawn alike whether the graph was saved and read before, or not
        index.hnsw.rng = faiss.RandomGenerator(int(ids[0]))  # type: ignore[attr-defined]
    index.add(vectors)


def _save(work: Path, name: str, index: faiss.Index, held: int) -> None:
    """Keep the structure as it is with the first `held` ids."""
    temporary = work / f".{os.getpid()}.partial"
    faiss.write_index(index, str(temporary))
    path = work / f"{name}-{held:012d}.index"
    temporary.replace(path)
    for earlier in work.glob(f"{name}-*.index"):
        if earlier != path:
            earlier.unlink()


def _saved(work: Path, name: str) -> tuple[faiss.Index | None, int]:
    """The last step that was saved whole, and how many ids it holds."""
    for path in sorted(work.glob(f"{name}-*.index"), reverse=True):
        try:
            return faiss.read_index(str(path)), int(path.stem.rpartition("-")[2])
        except RuntimeError:  # damaged since
            continue
    return None, 0


def _stored(index_dir: Path, manifest: Manifest, plan: _Plan, index: faiss.Index) -> Manifest:
    """The FAISS file and the rows of its ids in their places, and the manifest with them."""
    partial = index_dir / f".partial-{os.getpid()}"
    faiss.write_index(index, str(partial))
    name, entry = store_file(index_dir, "faiss", ".index", partial)
    files, rows = {**manifest.files, name: entry}, None
    if plan.structure.kind != "flat":
        rows, entry = store(index_dir, "faiss-rows", ".npy", array_bytes(plan.page_of))
        files[rows] = entry
    structure = plan.structure.model_copy(update={"rows": rows})
    update = {"format": COMPACT_FORMAT if rows else manifest.format, "structure": structure}
    return manifest.model_copy(update={**update, "faiss": name, "files": files})
