"""Building an index: only what is new is embedded, and a killed build goes on where it stopped.

    report = build_index(Path("data/corpora/decks"), Path("data/corpora/decks/index"), load_embedder("nano-colqwen2_5"))

The work is cut into units of `shard_pages` pages, and the cut is written down (`retrieval.units`) before the first
page is embedded. A rerun after `kill -9` follows the same plan and skips the units that are there. This matters because
the last bits of a vector depend on what shares its batch: with the cut fixed, the rerun ends with the same bytes as an
undisturbed build (on the same machine with the same thread count). Vectors of pages that did not change are taken from
the index that is there; equal pages are embedded once. The new index becomes the index in one rename
(`retrieval.storage`). Who embeds the units may be exchanged (`retrieval.cluster`).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel
from tqdm.auto import tqdm

from vrag_nb.documents.pages import page_image, page_path
from vrag_nb.folder_lock import alone_in
from vrag_nb.records import Page, read_pages
from vrag_nb.retrieval.compact import CompactIndex, sample_queries, write_compact
from vrag_nb.retrieval.embedders import LENGTH_TOLERANCE, Embedder, batches
from vrag_nb.retrieval.growing import structured_as, write_structure
from vrag_nb.retrieval.hubness import page_hubness
from vrag_nb.retrieval.index import VectorIndex, pool_tokens
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.single_vector import SingleVectorIndex
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
    store,
    sweep,
)
from vrag_nb.retrieval.structure import SingleVectorSettings
from vrag_nb.retrieval.token_budget import squeezed
from vrag_nb.retrieval.units import (
    BUILDING,
    PageVectors,
    Unit,
    building_folder,
    identity,
    make_plan,
    unit_path,
    write_unit,
)

SHARD_PAGES = 64


class BuildReport(BaseModel):
    """What a build did, in pages: embedded, taken from the index before, dropped because the corpus lost them.

    `resumed`: of those embedded, how many a killed build had left.
    """

    pages: int
    embedded: int
    reused: int
    dropped: int
    resumed: int = 0


class EmbedUnits(Protocol):
    """Who embeds: `embed_here`, or many workers."""

    def __call__(
        self, corpus: Path, folder: Path, embedder: Embedder, units: Sequence[Unit], done: Callable[[int], object]
    ) -> None:
        """Leave every unit's file in `folder` (`units.write_unit`); `done` is told of so many pages as they are."""


def build_index(
    corpus: Path,
    index_dir: Path,
    embedder: Embedder,
    *,
    shard_pages: int | None = None,
    compression: Compression | None = None,
    single_vector: SingleVectorSettings | None = None,
    progress: bool = True,
    embed_units: EmbedUnits | None = None,
) -> BuildReport:
    """Bring the index in `index_dir` in step with the corpus; see the module's docstring.

    An index of the same kind of embedder is updated, or rebuilt when its weights or options changed, or `shard_pages`
    (None: as in the index that is there, else SHARD_PAGES). `embed_units`: who embeds; None for this process.
    `compression`: None stores float16 vectors; otherwise see `retrieval.compact`. A float16 index is compressed without
    embedding; the way back, and to another compression, embeds anew. A compressed index keeps its codec when pages are
    added: remove it to learn from a corpus that has become another. `single_vector`: the FAISS structure of an embedder
    of one vector a page, by default chosen by the corpus's size (`retrieval.structure`); another is built without
    embedding. Raises ValueError for a corpus without pages, an embedder that gives wrong shapes or one that the
    settings are not for, IndexMismatchError when `index_dir` holds another kind of embedder's index, FolderInUseError
    while another process builds it, and names the page whose image cannot be read.
    """
    corpus, index_dir = Path(corpus), Path(index_dir)
    shard_pages = _shard_pages_before(index_dir) if shard_pages is None else shard_pages
    _check_settings(embedder, shard_pages, compression, single_vector)
    pages = read_pages(corpus)
    if not pages:
        raise ValueError(f"{corpus} holds no page to index; see its prep_report.json for what was skipped")
    index_dir.mkdir(parents=True, exist_ok=True)
    before = _index_before(index_dir, embedder, shard_pages, compression)
    listed = [IndexedPage(page_id=page.page_id, document=page.document, key=page_key(corpus, page)) for page in pages]
    build = _Build(corpus, index_dir, embedder, pages, listed, before, shard_pages, compression, single_vector)
    report = build.report
    if index_kind(embedder) == "text":
        build.write_text()
    elif before is None or not build.in_step:
        with alone_in(index_dir):
            report.resumed = build.write_vectors(embed_units or embed_here, progress)
    else:
        sweep(index_dir, before.manifest)
    shutil.rmtree(index_dir / BUILDING, ignore_errors=True)
    return report


def _check_settings(
    embedder: Embedder,
    shard_pages: int,
    compression: Compression | None,
    single_vector: SingleVectorSettings | None,
) -> None:
    kind = index_kind(embedder)
    if shard_pages < 1:
        raise ValueError(f"shard_pages {shard_pages} must be 1 or more")
    if compression and kind != "multi_vector":
        raise ValueError(f"compression is for multi-vector embedders, {embedder.name} is {kind}")
    if single_vector and kind != "single_vector":
        raise ValueError(f"single_vector is for single-vector embedders, {embedder.name} is {kind}")


@dataclass(frozen=True)
class _Build:
    """One call of `build_index`: its arguments, the corpus's pages as they will be listed, and the index before."""

    corpus: Path
    index_dir: Path
    embedder: Embedder
    pages: Sequence[Page]
    listed: Sequence[IndexedPage]
    before: VectorIndex | None
    shard_pages: int
    compression: Compression | None
    single_vector: SingleVectorSettings | None

    @cached_property
    def listed_before(self) -> list[IndexedPage]:
        return self.before.manifest.pages if self.before else []

    @cached_property
    def known(self) -> dict[str, int]:
        """The rows of pages in the index before, by key."""
        return {entry.key: row for row, entry in enumerate(self.listed_before)}

    @property
    def report(self) -> BuildReport:
        """What is to be done; of a text index nothing is taken over."""
        new = sum(entry.key not in self.known for entry in self.listed)
        dropped = {entry.page_id for entry in self.listed_before} - {page.page_id for page in self.pages}
        count = len(self.listed)
        return BuildReport(pages=count, embedded=new, reused=count - new, dropped=len(dropped))

    @property
    def in_step(self) -> bool:
        """Whether the index before is already what is asked for."""
        if self.before is None or self.before.manifest.compression != self.compression:
            return False
        if [(one.page_id, one.key) for one in self.listed] != [(one.page_id, one.key) for one in self.listed_before]:
            return False
        single = index_kind(self.embedder) == "single_vector"
        return not single or structured_as(self.before, self.single_vector, len(self.pages), self.embedder.dim)

    def write_vectors(self, embed_units: EmbedUnits, progress: bool) -> int:
        """Embed what is missing and commit the index; how many of the new pages a killed build had left."""
        vectors = PageVectors(
            building_folder(self.index_dir, self.embedder), identity(self.embedder), self.before, self.known
        )
        resumed = sum(entry.key not in self.known and entry.key in vectors for entry in self.listed)
        _embed_missing(
            self.corpus, self.embedder, self.pages, self.listed, vectors, self.shard_pages, progress, embed_units
        )
        for entry in self.listed:
            entry.hubness = vectors.hubness(entry.key)
        if self.compression:
            made = self._compressed(vectors, self.compression)
        else:
            made = _assemble(self.index_dir, self.embedder, self.listed, vectors, self.shard_pages)
        if index_kind(self.embedder) == "single_vector":
            old = self.before if isinstance(self.before, SingleVectorIndex) else None
            made = write_structure(self.index_dir, vectors.folder, made, self.single_vector, old, progress)
        commit(self.index_dir, made)
        return resumed

    def _compressed(self, vectors: PageVectors, compression: Compression) -> Manifest:
        texts = [page.text for page in self.pages]
        parts = write_compact(
            self.index_dir,
            vectors.folder,
            self.listed,
            vectors.__getitem__,
            lambda: sample_queries(self.embedder, texts),
            compression,
            self.shard_pages,
            self.before if isinstance(self.before, CompactIndex) else None,
            self.embedder.views,
        )
        return _manifest(self.embedder, self.listed, shard_pages=self.shard_pages, **parts)

    def write_text(self) -> None:
        """A text index is rebuilt as a whole: its statistics are the corpus's, and it takes seconds (OCR apart, kept).

        Raises ValueError for an embedder without vectors that is not BM25.
        """
        from vrag_nb.retrieval.bm25 import Bm25

        if not isinstance(self.embedder, Bm25):
            raise ValueError(f"{self.embedder.name} has dimension 0 and is no text index")
        name, files = self.embedder.build(
            self.index_dir, [page.text for page in self.pages], lambda row: page_image(self.corpus, self.pages[row])
        )
        commit(self.index_dir, _manifest(self.embedder, self.listed, files, bm25=name))


def page_key(corpus: Path, page: Page) -> str:
    """The checksum of everything an embedder may look at: the page's image and its text."""
    image = page.sha256 or hashlib.sha256(page_path(corpus, page).read_bytes()).hexdigest()
    return hashlib.sha256(f"{image}\0{page.text}".encode()).hexdigest()


def _shard_pages_before(index_dir: Path) -> int:
    """The cut of the index that is there, lest another default embed it anew."""
    try:
        return read_manifest(index_dir).shard_pages or SHARD_PAGES
    except (FileNotFoundError, IndexCorruptError):
        return SHARD_PAGES


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


# --- embedding what is missing ----------------------------------------------------------------------------------------


def _embed_missing(
    corpus: Path,
    embedder: Embedder,
    pages: Sequence[Page],
    listed: Sequence[IndexedPage],
    vectors: PageVectors,
    shard_pages: int,
    progress: bool,
    embed_units: EmbedUnits,
) -> None:
    """Have every page embedded whose vectors are not there yet."""
    page_of = {entry.key: page for entry, page in zip(reversed(listed), reversed(pages), strict=True)}
    plan = make_plan(vectors, listed, shard_pages)
    todo = [Unit(keys=keys, pages=[page_of[key] for key in keys]) for keys in plan.units if not vectors.has_unit(keys)]
    total = sum(map(len, plan.units))
    done = total - sum(len(unit.keys) for unit in todo)
    with tqdm(total=total, initial=done, unit="page", desc=f"embedding, {embedder.name}", disable=not progress) as bar:
        if todo:
            embed_units(corpus, vectors.folder, embedder, todo, bar.update)
    for unit in todo:
        if not vectors.has_unit(unit.keys):
            raise FileNotFoundError(
                f"{unit_path(vectors.folder, unit.keys)} is not there or not whole, though its pages "
                f"({unit.pages[0].page_id}, ...) were embedded: is the index folder one that all workers share?"
            )


def embed_here(
    corpus: Path, folder: Path, embedder: Embedder, units: Sequence[Unit], done: Callable[[int], object]
) -> None:
    """Embed in this process, unit by unit; stops at the first page that cannot be read."""
    for unit in units:
        embed_unit(corpus, folder, embedder, unit, done)


def embed_unit(
    corpus: Path, folder: Path, embedder: Embedder, unit: Unit, done: Callable[[int], object] = lambda pages: None
) -> None:
    """Embed a unit's pages in the embedder's own batches, several at once where it says so, and write the unit's file.

    `done` is told of every batch's pages. Raises FileNotFoundError or ValueError naming the page that cannot be read or
    whose vectors are wrong.
    """
    arrays: list[np.ndarray] = []
    hubness: list[float] = []
    _ = embedder.bank_vectors  # embedded here, before each thread asks for it
    for made, hubs in _embed_batches(corpus, embedder, list(batches(unit.pages, embedder.batch_size))):
        arrays, hubness = arrays + made, hubness + hubs
        done(len(made))
    write_unit(folder, unit, identity(embedder), arrays, hubness)


_Embedded = tuple[list[np.ndarray], list[float]]  # the vectors of pages as they are stored, and their hubness


def _embed_batches(corpus: Path, embedder: Embedder, cut: Sequence[Sequence[Page]]) -> Iterator[_Embedded]:
    """What there is to store of every batch, in order."""
    threads = torch.get_num_threads()
    if threads == 1 or not embedder.batches_at_once:
        yield from (_embed_batch(corpus, embedder, batch) for batch in cut)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(lambda batch: _embed_batch(corpus, embedder, batch), cut)
    finally:
        torch.set_num_threads(threads)  # threads that are begun later take over what was set last


def _embed_batch(corpus: Path, embedder: Embedder, batch: Sequence[Page]) -> _Embedded:
    stored = [array.astype(VECTOR_TYPE) for array in _vectors(corpus, embedder, batch)]
    return stored, page_hubness(embedder, stored)


def _vectors(corpus: Path, embedder: Embedder, batch: Sequence[Page]) -> list[np.ndarray]:
    """Pages by their images; chunks of videos by their frames, where the embedder takes these."""
    pages = [page for page in batch if not (embedder.takes_videos and _has_clip(page))]
    images = [squeezed(page_image(corpus, page)) for page in pages]
    made = _embedded(embedder, pages, images) if pages else []
    _check_shapes(embedder, pages, made)
    vectors = {page.page_id: array for page, array in zip(pages, made, strict=True)}
    for page in batch:
        if page.page_id not in vectors and page.video:
            frames = [page_image(corpus, page.model_copy(update={"image": frame.image})) for frame in page.video.frames]
            # as if evenly spaced: a picture that stands still is there once
            seconds = (page.video.end - page.video.start) / len(frames)
            made = embedder.embed_videos([frames], max(seconds, 0.001))
            _check_shapes(embedder, [page], made)
            vectors[page.page_id] = made[0]
    return [vectors[page.page_id] for page in batch]


def _embedded(embedder: Embedder, pages: Sequence[Page], images: list[Image.Image]) -> list[np.ndarray]:
    """The pages' vectors. An error of the embedder's own says which pages it was given."""
    try:
        return embedder.embed_pages(images, [page.text for page in pages])
    except Exception as error:
        error.add_note(f"({embedder.name}, embedding {', '.join(page.page_id for page in pages)})")
        raise


def _has_clip(page: Page) -> bool:
    """Whether the page's frames are a clip; where a stream changed its size, they are not, and their sheet serves."""
    return page.video is not None and len({(frame.width, frame.height) for frame in page.video.frames}) == 1


def _check_shapes(embedder: Embedder, batch: Sequence[Page], made: Sequence[np.ndarray]) -> None:
    if not hasattr(made, "__len__") or len(made) != len(batch):
        given = len(made) if hasattr(made, "__len__") else repr(made)
        raise ValueError(f"{embedder.name} gave {given} embeddings for {len(batch)} pages")
    for page, array in zip(batch, made, strict=True):
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{embedder.name}: page {page.page_id}: a {type(array).__name__}, not a NumPy array")
        if array.ndim != 2 or array.shape[1] != embedder.dim or not len(array):
            raise ValueError(f"{embedder.name}: page {page.page_id}: shape {array.shape}, not (tokens, {embedder.dim})")
        if not embedder.multi_vector and len(array) != 1:
            raise ValueError(
                f"{embedder.name}: page {page.page_id}: {len(array)} vectors from a single-vector embedder"
            )
        if len(array) % embedder.views:
            raise ValueError(
                f"{embedder.name}: page {page.page_id}: {len(array)} vectors are not those of {embedder.views} views"
            )
        if not (np.abs(array) <= np.finfo(VECTOR_TYPE).max).all():  # an index would hold infinity for what is larger
            raise ValueError(
                f"{embedder.name}: page {page.page_id}: the vectors hold NaN or infinity, or are too long for "
                f"{VECTOR_TYPE}: their length should be 1"
            )
        lengths = np.linalg.norm(array.astype(np.float32), axis=1)
        odd = np.flatnonzero((lengths > 0) & (np.abs(lengths - 1) > LENGTH_TOLERANCE))
        if len(odd):
            raise ValueError(
                f"{embedder.name}: page {page.page_id}: vector {odd[0]} of {len(array)} has length "
                f"{lengths[odd[0]]:.3g}, and should have length 1, or 0 where there is nothing: divide it by its length"
            )


# --- putting the index together ---------------------------------------------------------------------------------------


def _assemble(
    index_dir: Path, embedder: Embedder, listed: Sequence[IndexedPage], vectors: PageVectors, shard_pages: int
) -> Manifest:
    """Write the shards and, for a multi-vector index, the FAISS file of stage one; the manifest that names them."""
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
        if embedder.multi_vector:
            stage_one.add(pool_tokens(tokens, [len(array) for array in arrays])[0])
    if not embedder.multi_vector:
        return _manifest(embedder, listed, files, shard_pages=shard_pages, shards=shards)
    name, files_entry = store(index_dir, "faiss", ".index", faiss.serialize_index(stage_one).tobytes())
    files[name] = files_entry
    return _manifest(embedder, listed, files, shard_pages=shard_pages, shards=shards, faiss=name)


def _manifest(
    embedder: Embedder, listed: Sequence[IndexedPage], files: dict[str, StoredFile], **parts: Any
) -> Manifest:
    return Manifest(
        kind=index_kind(embedder),
        embedder=embedder.name,
        fingerprint=embedder.fingerprint,
        dim=embedder.dim,
        views=embedder.views,
        checkpoint=embedder.checkpoint,
        options=embedder.options,
        page_count=len(listed),
        pages=list(listed),
        files=files,
        **parts,
    )
