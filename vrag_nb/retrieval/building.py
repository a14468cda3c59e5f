"""Building an index: only what is new is embedded, and a killed build goes on where it stopped.

    report = build_index(Path("data/corpora/decks"), Path("data/corpora/decks/index"), load_embedder("nano-colqwen2_5"))

The work is cut into units of `shard_pages` pages, and the cut is written down (`.building/*/plan.json`) before the
first page is embedded. A rerun after `kill -9` follows the same plan and skips the units that are there. This matters
because the last bits of a vector depend on what shares its batch: with the cut fixed, the rerun ends with the same
bytes as an undisturbed build (on the same machine with the same thread count). Vectors of pages that did not change are
taken from the index that is there; equal pages are embedded once. The new index becomes the index in one rename
(`retrieval.storage`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from pydantic import BaseModel
from tqdm.auto import tqdm

from vrag_nb.documents.pages import page_image, page_path
from vrag_nb.records import Page, read_pages
from vrag_nb.retrieval.compact import CompactIndex, sample_queries, write_compact
from vrag_nb.retrieval.embedders import Embedder, batches
from vrag_nb.retrieval.index import VectorIndex, open_index, pool_tokens
from vrag_nb.retrieval.storage import (
    MANIFEST,
    VECTOR_TYPE,
    Compression,
    IndexCorruptError,
    IndexedPage,
    IndexMismatchError,
    Manifest,
    StoredFile,
    array_bytes,
    commit,
    index_kind,
    read_manifest,
    replace_file,
    store,
    sweep,
)

BUILDING = ".building"


class BuildReport(BaseModel):
    """What a build did, in pages: embedded now, taken from before, dropped because the corpus lost them."""

    pages: int
    embedded: int
    reused: int
    dropped: int


class Plan(BaseModel):
    """The fixed cut of the work: `target` says for which result, `units` which page keys are embedded together."""

    target: str
    units: list[list[str]]


def build_index(
    corpus: Path,
    index_dir: Path,
    embedder: Embedder,
    *,
    shard_pages: int = 64,
    compression: Compression | None = None,
    progress: bool = True,
) -> BuildReport:
    """Bring the index in `index_dir` in step with the corpus; see the module's docstring.

    An index of the same kind of embedder is updated, or rebuilt when its weights or options changed. `compression`:
    None stores float16 vectors; otherwise see `retrieval.compact`. A float16 index is compressed without embedding; the
    way back, and to another compression, embeds anew. A compressed index keeps its codec when pages are added: remove
    it to learn from a corpus that has become another. Raises ValueError for a corpus without pages, an embedder that
    gives wrong shapes or one that cannot be compressed, IndexMismatchError when `index_dir` holds another kind of
    embedder's index, and names the page whose image cannot be read.
    """
    corpus, index_dir = Path(corpus), Path(index_dir)
    if shard_pages < 1:
        raise ValueError(f"shard_pages {shard_pages} must be 1 or more")
    if compression and index_kind(embedder) != "multi_vector":
        raise ValueError(f"compression is for multi-vector embedders, {embedder.name} is {index_kind(embedder)}")
    pages = read_pages(corpus)
    if not pages:
        raise ValueError(f"{corpus} holds no page to index; see its prep_report.json for what was skipped")
    index_dir.mkdir(parents=True, exist_ok=True)
    before = _index_before(index_dir, embedder, shard_pages, compression)
    listed = [IndexedPage(page_id=page.page_id, document=page.document, key=page_key(corpus, page)) for page in pages]
    had = {entry.page_id for entry in before.manifest.pages} if before else set()
    dropped = len(had - {page.page_id for page in pages})
    if index_kind(embedder) == "text":
        _build_text(index_dir, embedder, pages, listed)
        return BuildReport(pages=len(pages), embedded=len(pages), reused=0, dropped=dropped)
    known = {entry.key: row for row, entry in enumerate(before.manifest.pages)} if before else {}
    new = sum(entry.key not in known for entry in listed)
    unchanged = [(entry.page_id, entry.key) for entry in listed] == [
        (entry.page_id, entry.key) for entry in (before.manifest.pages if before else [])
    ]
    if before is None or not unchanged or before.manifest.compression != compression:
        vectors = _Vectors(_building_folder(index_dir, embedder), before, known)
        _embed_missing(corpus, embedder, pages, listed, vectors, shard_pages, progress)
        if compression:
            texts = [page.text for page in pages]
            parts = write_compact(
                index_dir,
                vectors.folder,
                listed,
                vectors.__getitem__,
                lambda: sample_queries(embedder, texts),
                compression,
                shard_pages,
                before if isinstance(before, CompactIndex) else None,
            )
            commit(index_dir, _manifest(embedder, listed, shard_pages=shard_pages, **parts))
        else:
            commit(index_dir, _assemble(index_dir, embedder, listed, vectors, shard_pages))
    else:
        sweep(index_dir, before.manifest)
    shutil.rmtree(index_dir / BUILDING, ignore_errors=True)
    return BuildReport(pages=len(pages), embedded=new, reused=len(pages) - new, dropped=dropped)


def page_key(corpus: Path, page: Page) -> str:
    """The checksum of everything an embedder may look at: the page's image and its text."""
    image = page.sha256 or hashlib.sha256(page_path(corpus, page).read_bytes()).hexdigest()
    return hashlib.sha256(f"{image}\0{page.text}".encode()).hexdigest()


def _index_before(
    index_dir: Path, embedder: Embedder, shard_pages: int, compression: Compression | None
) -> VectorIndex | None:
    """The index whose vectors can be taken over; None when there is none, it is damaged, or its weights were others."""
    if not (index_dir / MANIFEST).is_file():
        return None
    try:
        manifest = read_manifest(index_dir)
        if manifest.embedder != embedder.name:
            raise IndexMismatchError(
                f"{index_dir} holds an index of {manifest.embedder!r}, not of {embedder.name!r}: "
                "choose another index folder, or remove this one"
            )
        same = (manifest.fingerprint, manifest.dim, manifest.shard_pages)
        if same != (embedder.fingerprint, embedder.dim, shard_pages):
            return None
        if manifest.compression != compression if manifest.compression else manifest.dtype != VECTOR_TYPE.name:
            return None  # codes serve only the compression that made them; float16 vectors serve any
        index = open_index(index_dir)
    except IndexCorruptError:
        return None
    return index if isinstance(index, VectorIndex) else None


# --- vectors that exist, and those to be made -------------------------------------------------------------------------


class _Vectors:
    """Page vectors by key, from the index before and from the units of this build."""

    def __init__(self, folder: Path, before: VectorIndex | None, known: dict[str, int]) -> None:
        self.folder = folder
        self._before, self._known = before, known
        self._units: dict[str, tuple[Path, slice]] = {}
        self._open: tuple[Path, np.ndarray] | None = None
        for path in sorted(self.folder.glob("unit-*.npz")):
            self.add_unit(path)

    def __contains__(self, key: str) -> bool:
        return key in self._known or key in self._units

    def add_unit(self, path: Path) -> bool:
        """Take a unit file in; False when it cannot be read."""
        try:
            with np.load(path) as unit:
                keys, ends = [str(key) for key in unit["keys"]], np.cumsum(unit["lengths"]).tolist()
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return False
        for key, start, end in zip(keys, [0, *ends[:-1]], ends, strict=True):
            self._units[key] = (path, slice(start, end))
        return True

    def __getitem__(self, key: str) -> np.ndarray:
        """(n_tokens, dim) float16."""
        if key in self._known and self._before is not None:
            return self._before.vectors(self._known[key])
        path, part = self._units[key]
        if self._open is None or self._open[0] != path:
            with np.load(path) as unit:
                self._open = (path, unit["vectors"])
        return self._open[1][part]


def _embed_missing(
    corpus: Path,
    embedder: Embedder,
    pages: Sequence[Page],
    listed: Sequence[IndexedPage],
    vectors: _Vectors,
    shard_pages: int,
    progress: bool,
) -> None:
    """Embed, unit by unit, every page whose vectors are not there yet."""
    page_of = {entry.key: page for entry, page in zip(reversed(listed), reversed(pages), strict=True)}
    plan = _plan(embedder, listed, vectors, shard_pages)
    todo = [unit for unit in plan.units if not vectors.add_unit(_unit_path(vectors.folder, unit))]
    done = sum(map(len, plan.units)) - sum(map(len, todo))
    total = sum(map(len, plan.units))
    with tqdm(total=total, initial=done, unit="page", desc=f"embedding, {embedder.name}", disable=not progress) as bar:
        for keys in todo:
            _embed_unit(corpus, embedder, [(key, page_of[key]) for key in keys], vectors.folder, bar)
            vectors.add_unit(_unit_path(vectors.folder, keys))


def _plan(embedder: Embedder, listed: Sequence[IndexedPage], vectors: _Vectors, shard_pages: int) -> Plan:
    """The plan of a killed build for the same result, or a new one, written down before anything is embedded."""
    pages = [(entry.page_id, entry.key) for entry in listed]
    target = hashlib.sha256(json.dumps([shard_pages, pages]).encode()).hexdigest()
    path = vectors.folder / "plan.json"
    if path.is_file():
        plan = Plan.model_validate_json(path.read_bytes())
        planned = {key for unit in plan.units for key in unit}
        if plan.target == target and all(entry.key in planned or entry.key in vectors for entry in listed):
            return plan
        # Another corpus was being indexed: its units serve as far as they go.
    missing = list(dict.fromkeys(entry.key for entry in listed if entry.key not in vectors))
    plan = Plan(target=target, units=[list(unit) for unit in batches(missing, shard_pages)])
    vectors.folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, plan.model_dump_json().encode())
    return plan


def _embed_unit(
    corpus: Path, embedder: Embedder, unit: Sequence[tuple[str, Page]], folder: Path, bar: tqdm[Any]
) -> None:
    """Embed a unit's pages in the embedder's own batches and write them as one file."""
    arrays: list[np.ndarray] = []
    for batch in batches([page for _, page in unit], embedder.batch_size):
        made = embedder.embed_pages([page_image(corpus, page) for page in batch], [page.text for page in batch])
        _check_shapes(embedder, batch, made)
        arrays += [array.astype(VECTOR_TYPE) for array in made]
        bar.update(len(batch))
    path = _unit_path(folder, [key for key, _ in unit])
    temporary = folder / f".{os.getpid()}.partial"
    with temporary.open("wb") as file:
        np.savez(
            file,
            keys=np.array([key for key, _ in unit]),
            lengths=np.array([len(array) for array in arrays]),
            vectors=np.concatenate(arrays),
        )
    temporary.replace(path)


def _check_shapes(embedder: Embedder, batch: Sequence[Page], made: Sequence[np.ndarray]) -> None:
    if len(made) != len(batch):
        raise ValueError(f"{embedder.name} gave {len(made)} embeddings for {len(batch)} pages")
    for page, array in zip(batch, made, strict=True):
        if array.ndim != 2 or array.shape[1] != embedder.dim or not len(array):
            raise ValueError(f"{embedder.name}: page {page.page_id}: shape {array.shape}, not (tokens, {embedder.dim})")
        if not embedder.multi_vector and len(array) != 1:
            raise ValueError(
                f"{embedder.name}: page {page.page_id}: {len(array)} vectors from a single-vector embedder"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{embedder.name}: page {page.page_id}: the vectors hold NaN or infinity")


def _building_folder(index_dir: Path, embedder: Embedder) -> Path:
    """Where the units of a build lie: apart for every embedder, whose vectors must not mix."""
    identity = json.dumps([embedder.name, embedder.fingerprint, embedder.dim, embedder.batch_size])
    return index_dir / BUILDING / hashlib.sha256(identity.encode()).hexdigest()[:12]


def _unit_path(folder: Path, keys: Iterable[str]) -> Path:
    return folder / f"unit-{hashlib.sha256(chr(10).join(keys).encode()).hexdigest()[:16]}.npz"


# --- putting the index together ---------------------------------------------------------------------------------------


def _assemble(
    index_dir: Path, embedder: Embedder, listed: Sequence[IndexedPage], vectors: _Vectors, shard_pages: int
) -> Manifest:
    """Write the shards and the FAISS file; the manifest that names them."""
    files: dict[str, StoredFile] = {}
    shards: list[str] = []
    stage_one = faiss.IndexFlatIP(embedder.dim)
    for number, entries in enumerate(batches(listed, shard_pages)):
        arrays = [vectors[entry.key] for entry in entries]
        for entry, array in zip(entries, arrays, strict=True):
            entry.vectors = len(array)
        tokens = np.concatenate(arrays)  # (tokens of the shard, dim) float16
        name, files_entry = store(index_dir, f"vectors-{number:05d}", ".npy", array_bytes(tokens))
        files[name] = files_entry
        shards.append(name)
        stage_one.add(pool_tokens(tokens, [len(array) for array in arrays])[0])
    name, files_entry = store(index_dir, "faiss", ".index", faiss.serialize_index(stage_one).tobytes())
    files[name] = files_entry
    return _manifest(embedder, listed, files, shard_pages=shard_pages, shards=shards, faiss=name)


def _build_text(index_dir: Path, embedder: Embedder, pages: Sequence[Page], listed: Sequence[IndexedPage]) -> None:
    """A text index is rebuilt as a whole: its statistics are the corpus's, and it takes seconds."""
    from vrag_nb.retrieval.bm25 import Bm25

    if not isinstance(embedder, Bm25):
        raise ValueError(f"{embedder.name} has dimension 0 and is no text index")
    name, files = embedder.build(index_dir, [page.text for page in pages])
    commit(index_dir, _manifest(embedder, listed, files, bm25=name))


def _manifest(
    embedder: Embedder, listed: Sequence[IndexedPage], files: dict[str, StoredFile], **parts: Any
) -> Manifest:
    return Manifest(
        kind=index_kind(embedder),
        embedder=embedder.name,
        fingerprint=embedder.fingerprint,
        dim=embedder.dim,
        checkpoint=embedder.checkpoint,
        options=embedder.options,
        page_count=len(listed),
        pages=list(listed),
        files=files,
        **parts,
    )
