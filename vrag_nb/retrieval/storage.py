"""What an index is on disk: content-named files and a manifest that commits them.

    index/
      manifest.json                what the index is of, and the checksum of every other file; written last
      vectors-00000-1f2e3d4c.npy   token vectors of the first 64 pages, float16, (tokens, dim), one page after another
      faiss-9a8b7c6d.index         stage one of the search
      bm25-5e6f7a8b/               (text index only) what bm25s saves
  codec-0c1d2e3f.npz           (compact index only, `retrieval.compact`) how the vectors became codes; the shards then
  cells-4a5b6c7d.npy           hold codes, uint8, and the pages' cells are stage one in the FAISS file's place
  faiss-rows-2b3c4d5e.npy      (HNSW and IVF-PQ only, `retrieval.single_vector`) the page of every id in the FAISS file

A file's name carries the start of its checksum, so a new build never overwrites a file that the old manifest names;
replacing the manifest is the one moment at which the index changes. What a manifest does not name is swept.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vrag_nb.retrieval.structure import Structure

if TYPE_CHECKING:
    from vrag_nb.retrieval.embedders import Embedder

FORMAT = 1
COMPACT_FORMAT = 2  # an index that versions without `retrieval.compact` or `single_vector` must not read
MANIFEST = "manifest.json"
OURS = ("vectors-", "faiss-", "bm25-", "codec-", "cells-", ".partial-")  # a sweep touches nothing but these names
VECTOR_TYPE = np.dtype("float16")

IndexKind = Literal["multi_vector", "single_vector", "text"]


class Compression(BaseModel):
    """How a compact index is made smaller than the vectors; see `retrieval.compact`.

    `keep`: the share of a page's vectors that is kept. `vector_bytes`: of a kept vector's code. `cells`: k-means cells
    of stage one, 0 for as many as the corpus's size asks for. The index takes about `keep * vector_bytes` bytes a
    patch; bfloat16 takes 2 a dimension, 256 for 128 dimensions.
    """

    model_config = ConfigDict(extra="forbid")
    keep: float = Field(default=0.5, gt=0, le=1)
    vector_bytes: int = Field(default=62, ge=1)
    cells: int = Field(default=0, ge=0, le=65_535)


class IndexedPage(BaseModel):
    """One page of the index, in search order. `key` is the checksum of what was embedded; `vectors`: those stored;
    `hubness`: see `retrieval.hubness`."""

    page_id: str
    document: str
    key: str
    vectors: int = 0
    hubness: float = 0.0


class StoredFile(BaseModel):
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What an index is of. The first block must fit the embedder that opens it."""

    format: int = FORMAT
    kind: IndexKind
    embedder: str
    fingerprint: str
    dim: int

    views: int = 1  # of a page, whose vectors lie one view after another (`Embedder.views`)
    dtype: str = VECTOR_TYPE.name
    checkpoint: str = ""
    options: dict[str, Any] = {}
    shard_pages: int = 0
    page_count: int
    pages: list[IndexedPage]
    shards: list[str] = []
    faiss: str | None = None
    structure: Structure | None = None  # of a single-vector index; None, from before there were several: flat
    bm25: str | None = None
    compression: Compression | None = None  # None: the vectors are stored as they are
    code_bytes: int = 0  # of a stored code
    codec: str | None = None
    cells: str | None = None
    files: dict[str, StoredFile]

    @property
    def width(self) -> int:
        """Columns of a shard: dimensions, or the bytes of a code."""
        return self.code_bytes if self.compression else self.dim


class IndexMismatchError(ValueError):
    """An index that does not belong to the embedder, the corpus or the version that opens it."""


class IndexCorruptError(ValueError):
    """An index whose files are not what its manifest says."""


REBUILD = (
    "build it again (`python -m vrag_nb index` with the --profile, --file and --corpus in use, notebook 02_indexing, "
    "or build_index)"
)


def index_kind(embedder: Embedder) -> IndexKind:
    if embedder.dim == 0:
        return "text"
    return "multi_vector" if embedder.multi_vector else "single_vector"


def read_manifest(folder: Path) -> Manifest:
    """The index's manifest. Raises FileNotFoundError, IndexCorruptError, or IndexMismatchError (another format)."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"no index at {folder} ({MANIFEST} is missing): {REBUILD}")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "file"
        raise IndexCorruptError(f"{path}: {field}: {first['msg']}; {REBUILD}") from None
    if manifest.format not in (FORMAT, COMPACT_FORMAT):
        raise IndexMismatchError(
            f"{path}: format {manifest.format}, this version reads {FORMAT} and {COMPACT_FORMAT}; {REBUILD}"
        )
    if manifest.page_count != len(manifest.pages):
        raise IndexCorruptError(f"{path}: page_count {manifest.page_count}, but {len(manifest.pages)} pages; {REBUILD}")
    return manifest


def check_embedder(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    """Raise IndexMismatchError naming the first field in which index and embedder differ."""
    wanted = {
        "embedder": embedder.name,
        "kind": index_kind(embedder),
        "dim": embedder.dim,
        "fingerprint": embedder.fingerprint,
    }
    for field, value in wanted.items():
        stored = getattr(manifest, field)
        if stored != value:
            raise IndexMismatchError(
                f"{folder}: the index was built with {field} {stored!r}, the embedder has {value!r}; "
                f"open it with the embedder that made it, or {REBUILD}"
            )


def check_files(folder: Path, manifest: Manifest, read_all: bool = True) -> None:
    """Raise IndexCorruptError naming the first missing or altered file; `read_all` False compares sizes only."""
    for name, stored in manifest.files.items():
        path = Path(folder) / name
        if not path.is_file():
            raise IndexCorruptError(f"{path} is missing; {REBUILD}")
        if path.stat().st_size != stored.bytes:
            raise IndexCorruptError(f"{path} has {path.stat().st_size} bytes, not {stored.bytes}; {REBUILD}")
        if read_all and _file_sha256(path) != stored.sha256:
            raise IndexCorruptError(f"{path}: its checksum is not the manifest's; {REBUILD}")


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def store(folder: Path, stem: str, suffix: str, content: bytes) -> tuple[str, StoredFile]:
    """Write `{stem}-{checksum}{suffix}` unless it is there already; its name and its manifest entry."""
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:8]}{suffix}"
    path = folder / name
    if not (path.is_file() and path.stat().st_size == len(content) and _file_sha256(path) == digest):
        temporary = folder / f".partial-{os.getpid()}"
        temporary.write_bytes(content)
        temporary.replace(path)
    return name, StoredFile(sha256=digest, bytes=len(content))


def store_file(folder: Path, stem: str, suffix: str, made: Path) -> tuple[str, StoredFile]:
    """Move the file `made` (inside `folder`) to `{stem}-{checksum}{suffix}`; its name and its manifest entry."""
    digest = _file_sha256(made)
    name = f"{stem}-{digest[:8]}{suffix}"
    made.replace(folder / name)
    return name, StoredFile(sha256=digest, bytes=(folder / name).stat().st_size)


def store_folder(folder: Path, stem: str, made: Path) -> tuple[str, dict[str, StoredFile]]:
    """Move the folder `made` (inside `folder`) to `{stem}-{checksum}`; its name and its files' manifest entries."""
    files = {
        path.name: StoredFile(sha256=_file_sha256(path), bytes=path.stat().st_size) for path in sorted(made.iterdir())
    }
    digest = hashlib.sha256("".join(name + entry.sha256 for name, entry in files.items()).encode()).hexdigest()
    name = f"{stem}-{digest[:8]}"
    target = folder / name
    if target.is_dir() and all(
        (target / file).is_file() and _file_sha256(target / file) == files[file].sha256 for file in files
    ):
        shutil.rmtree(made)
    else:
        shutil.rmtree(target, ignore_errors=True)  # a damaged copy
        made.replace(target)
    return name, {f"{name}/{file}": entry for file, entry in files.items()}


def commit(folder: Path, manifest: Manifest) -> None:
    """Make the manifest the index's, then sweep what it does not name."""
    temporary = folder / f".partial-{os.getpid()}"
    temporary.write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    temporary.replace(folder / MANIFEST)
    sweep(folder, manifest)


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove files of earlier builds and of killed ones."""
    wanted = {Path(name).parts[0] for name in manifest.files}
    for path in folder.iterdir():
        if path.name.startswith(OURS) and path.name not in wanted:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def array_bytes(array: np.ndarray) -> bytes:
    """The array as the bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
