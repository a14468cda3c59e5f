"""Opening an index folder as the kind of index it holds."""

from __future__ import annotations

from pathlib import Path

from vrag_nb.retrieval.bm25 import TextIndex
from vrag_nb.retrieval.compact import CompactIndex
from vrag_nb.retrieval.index import MultiVectorIndex, PageIndex
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import IndexKind, check_files, read_manifest


def open_index(folder: Path, verify: bool = True) -> PageIndex:
    """Open whatever index the folder holds. `verify` reads every file to compare checksums; sizes are always compared.

    Raises FileNotFoundError, IndexCorruptError or IndexMismatchError (`retrieval.storage`), each saying what to do.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest, verify)
    kinds: dict[IndexKind, type[PageIndex]] = {
        "multi_vector": CompactIndex if manifest.compression else MultiVectorIndex,
        "single_vector": SingleVectorIndex,
        "text": TextIndex,
    }
    return kinds[manifest.kind](Path(folder), manifest)
