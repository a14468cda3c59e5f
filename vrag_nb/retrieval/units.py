"""The units of a build: which pages are embedded together, and their vectors on disk until the index is put together.

    index/.building/{embedder}/
      plan.json          the cut of the work, written before the first page is embedded
      unit-{pages}.npz   a finished unit: its pages, what embedded them, their vectors; there as a whole or not at all

Whoever embeds a unit, this process (`retrieval.building`) or one of many workers (`retrieval.cluster`), writes the same
file. So either goes on with what the other has begun, and one merge serves both.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from vrag_nb.files import write_bytes
from vrag_nb.records import Page
from vrag_nb.retrieval.embedders import Embedder, batches
from vrag_nb.retrieval.index import VectorIndex
from vrag_nb.retrieval.storage import IndexedPage

BUILDING = ".building"


class Unit(BaseModel):
    """Pages that are embedded together and their keys (`building.page_key`), in one order."""

    keys: list[str]
    pages: list[Page]


class Plan(BaseModel):
    """The fixed cut of the work: `target` says for which result, `units` which page keys are embedded together."""

    target: str
    units: list[list[str]]


def identity(embedder: Embedder) -> str:
    """What two embedders must share for their vectors to be the same."""
    return json.dumps([embedder.name, embedder.fingerprint, embedder.dim, embedder.batch_size])


def building_folder(index_dir: Path, embedder: Embedder) -> Path:
    """Where the units of a build lie: apart for every embedder, whose vectors must not mix."""
    return index_dir / BUILDING / hashlib.sha256(identity(embedder).encode()).hexdigest()[:12]


def unit_path(folder: Path, keys: Iterable[str]) -> Path:
    """The file of the unit that holds the pages of these keys."""
    return folder / f"unit-{hashlib.sha256(chr(10).join(keys).encode()).hexdigest()[:16]}.npz"


def write_unit(folder: Path, unit: Unit, made_by: str, arrays: Sequence[np.ndarray], hubness: Sequence[float]) -> None:
    """Write a unit's file. `made_by`: the embedder's `identity`; `arrays`: its pages' vectors, float16; their hubness
    (`retrieval.hubness`)."""
    temporary = folder / f".{uuid.uuid4().hex}.partial"  # two machines may write here under the same process id
    with temporary.open("wb") as file:
        np.savez(
            file,
            made_by=np.array(made_by),
            page_ids=np.array([page.page_id for page in unit.pages]),
            keys=np.array(unit.keys),
            lengths=np.array([len(array) for array in arrays]),
            vectors=np.concatenate(arrays),
            hubness=np.array(hubness),
        )
    temporary.replace(unit_path(folder, unit.keys))


class PageVectors:
    """Page vectors by key, from the index before and from the finished units of a build.

    `made_by`: the `identity` whose units are taken. `known`: the row of every key of the index `before`.
    """

    def __init__(self, folder: Path, made_by: str, before: VectorIndex | None, known: dict[str, int]) -> None:
        self.folder = folder
        self._made_by, self._before, self._known = made_by, before, known
        self._units: dict[str, tuple[Path, slice]] = {}
        self._hubness: dict[str, float] = {}
        self._finished: set[Path] = set()
        self._open: tuple[Path, np.ndarray] | None = None
        for path in sorted(self.folder.glob("unit-*.npz")):
            self._take(path)

    def __contains__(self, key: str) -> bool:
        return key in self._known or key in self._units

    def __getitem__(self, key: str) -> np.ndarray:
        """(n_tokens, dim) float16."""
        if key in self._known and self._before is not None:
            return self._before.vectors(self._known[key])
        path, part = self._units[key]
        if self._open is None or self._open[0] != path:
            with np.load(path) as unit:
                self._open = (path, unit["vectors"])
        return self._open[1][part]

    def hubness(self, key: str) -> float:
        """What was stored with the vectors."""
        if key in self._known and self._before is not None:
            return self._before.manifest.pages[self._known[key]].hubness
        return self._hubness[key]

    def has_unit(self, keys: Sequence[str]) -> bool:
        """Whether the unit of these pages is finished; a damaged file, or another embedder's, does not count."""
        path = unit_path(self.folder, keys)
        return path in self._finished or self._take(path)

    def _take(self, path: Path) -> bool:
        """Take a unit's file in; False when it is not there or not whole."""
        try:
            with np.load(path) as unit:  # reading an array compares its checksum
                keys, ends = [str(key) for key in unit["keys"]], np.cumsum(unit["lengths"]).tolist()
                hubness = unit["hubness"].tolist()
                whole = str(unit["made_by"]) == self._made_by and len(unit["vectors"]) == ends[-1]
        except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
            return False
        if not whole:
            return False
        for key, start, end in zip(keys, [0, *ends[:-1]], ends, strict=True):
            self._units[key] = (path, slice(start, end))
        self._hubness |= dict(zip(keys, hubness, strict=True))
        self._finished.add(path)
        return True


def make_plan(vectors: PageVectors, listed: Sequence[IndexedPage], shard_pages: int) -> Plan:
    """The plan of a killed build for the same result, or a new one, written down before anything is embedded."""
    pages = [(entry.page_id, entry.key) for entry in listed]
    target = hashlib.sha256(json.dumps([shard_pages, pages]).encode()).hexdigest()
    path = vectors.folder / "plan.json"
    plan = _plan_before(path)
    if plan and plan.target == target:
        planned = {key for unit in plan.units for key in unit}
        if all(entry.key in planned or entry.key in vectors for entry in listed):
            return plan
    # Where another corpus was being indexed, its units serve as far as they go.
    missing = list(dict.fromkeys(entry.key for entry in listed if entry.key not in vectors))
    plan = Plan(target=target, units=[list(unit) for unit in batches(missing, shard_pages)])
    vectors.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, plan.model_dump_json().encode())
    return plan


def _plan_before(path: Path) -> Plan | None:
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
