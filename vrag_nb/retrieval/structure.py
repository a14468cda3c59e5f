"""Which FAISS structure holds a single-vector index, what it costs, and when it has to be built anew.

Bytes in memory for n pages of d dimensions (`memory_bytes`):

    flat     4 d n                                       every vector is compared: exact, nothing to learn
    hnsw     (2 d + 8 m + 4 m / (m - 1) + 16) n          float16 vectors and a graph of 2 m links a vector, m on the
                                                         levels above, of which a vector has 1 / (m - 1) on average
                                                         (Malkov and Yashunin, arXiv 1603.09320)
    ivfpq    (code_bytes + 12) n + 4 d (lists + 256)     codes in lists by nearest centre, the centres and the codebooks
                                                         (Jegou, Douze and Schmid 2011); candidates are scored again
                                                         on the stored float16 vectors, which stay on disk

`auto` goes by the number of pages. For 2048 dimensions: at 20,000 pages flat takes 164 MB, all of which every query
reads, some 20 ms on one core; below that nothing is gained by being approximate. A graph reads a few thousand vectors
whatever the corpus's size, but holds them all: 4.4 GB at a million pages, and about a millisecond a page to build. Past
that memory is what runs out: 10 million pages are 44 GB as a graph and 0.9 GB as codes.

The settings are of two kinds. Those of `BUILT_BY` are fixed in the index; another value means building it anew from
the stored vectors, without embedding. The others say how to search and may change at any time.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["flat", "hnsw", "ivfpq"]

CODEWORDS = 256  # of a code's byte; as many vectors are the least to learn them from
MOST_CODE_BYTES = 64  # unless told otherwise
VECTORS_A_LIST = 39  # at least, to learn a list's centre from; what FAISS's k-means asks for
BUILT_BY: dict[Kind, tuple[str, ...]] = {
    "flat": ("kind",),
    "hnsw": ("kind", "m", "ef_construction"),
    "ivfpq": ("kind", "lists", "code_bytes", "seed"),
}


class SingleVectorSettings(BaseModel):
    """How a single-vector index is built and searched.

    `structure`: `auto` is flat up to `flat_up_to` pages, hnsw up to `hnsw_up_to`, ivfpq above.
    hnsw: `m` links a vector, chosen among `ef_construction` when it joins, `ef_search` kept in view by a search.
    ivfpq: `lists` (0: about 4 sqrt(n)) and codes of `code_bytes`, which must divide the dimension (0: the greatest
    divisor up to 64), learned with `seed`; a search opens `nprobe` lists (0: about 2 sqrt(lists)) and scores `refine`
    candidates on their vectors for every page that is asked for.
    `device`: `gpu` is an error where there is none, `auto` takes one where FAISS was built for it; hnsw stays on the
    CPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    structure: Literal["auto", "flat", "hnsw", "ivfpq"] = "auto"
    flat_up_to: int = Field(default=20_000, ge=0)
    hnsw_up_to: int = Field(default=1_000_000, ge=0)
    m: int = Field(default=32, ge=2, le=256)
    ef_construction: int = Field(default=200, ge=1)
    ef_search: int = Field(default=128, ge=1)
    lists: int = Field(default=0, ge=0)
    code_bytes: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0, lt=2**31)
    nprobe: int = Field(default=0, ge=0)
    refine: int = Field(default=10, ge=1)
    device: Literal["auto", "cpu", "gpu"] = "auto"

    def probes(self, lists: int) -> int:
        """How many of so many lists a search opens."""
        return min(lists, self.nprobe or max(8, math.ceil(2 * math.sqrt(lists))))


class Structure(BaseModel):
    """What an index is, as its manifest has it: every number filled in, those of other kinds 0.

    `trained_on`: pages of the corpus that lists and codes were learned from. `rows`: the file that says which page
    every FAISS id is (int32, -1 for one that is gone); None for flat, whose ids are the pages' rows.
    """

    kind: Kind = "flat"
    m: int = 0
    ef_construction: int = 0
    lists: int = 0
    code_bytes: int = 0
    seed: int = 0
    trained_on: int = 0
    rows: str | None = None


def choose(settings: SingleVectorSettings, count: int, dim: int) -> Structure:
    """The structure for `count` pages of `dim` dimensions.

    Raises ValueError for code bytes that do not divide the dimension.
    """
    kind = _kind(settings, count)
    if kind == "flat":
        return Structure()
    if kind == "hnsw":
        return Structure(kind=kind, m=settings.m, ef_construction=settings.ef_construction)
    lists = settings.lists or max(1, min(round(4 * math.sqrt(count)), count // VECTORS_A_LIST))
    return Structure(
        kind=kind,
        lists=min(lists, count),
        code_bytes=_code_bytes(settings.code_bytes, dim),
        seed=settings.seed,
        trained_on=count,
    )


def _kind(settings: SingleVectorSettings, count: int) -> Kind:
    if settings.structure == "flat" or (settings.structure == "auto" and count <= settings.flat_up_to):
        return "flat"
    if settings.structure == "hnsw" or (settings.structure == "auto" and count <= settings.hnsw_up_to):
        return "hnsw"
    return "ivfpq" if count >= CODEWORDS else "flat"


def _code_bytes(asked: int, dim: int) -> int:
    if asked and dim % asked:
        fitting = ", ".join(str(size) for size in range(1, dim + 1) if dim % size == 0)
        raise ValueError(f"code_bytes {asked} does not divide the embedder's dimension {dim}; choose one of {fitting}")
    return asked or max(size for size in range(1, min(dim, MOST_CODE_BYTES) + 1) if dim % size == 0)


def memory_bytes(structure: Structure, count: int, dim: int) -> int:
    """About how many bytes the structure takes in memory; see the module's docstring for the formulas."""
    if structure.kind == "flat":
        return 4 * dim * count
    if structure.kind == "hnsw":
        m = structure.m
        return round((2 * dim + 8 * m + 4 * m / (m - 1) + 16) * count)
    return (structure.code_bytes + 12) * count + 4 * dim * (structure.lists + CODEWORDS)


def misfit(
    stored: Structure, settings: SingleVectorSettings, count: int, dim: int
) -> tuple[str, object, object] | None:
    """The first field in which an index is not what the settings ask for, with both values; None where it fits.

    Lists that were left to the corpus's size fit whatever their number: an index that grows keeps those it learned.
    """
    wanted = choose(settings, count, dim)
    for field in BUILT_BY[wanted.kind]:
        has, asked = getattr(stored, field), getattr(wanted, field)
        if field == "lists":
            asked = min(settings.lists, stored.trained_on) or has
        if has != asked:
            return "structure" if field == "kind" else field, has, asked
    return None


def description(structure: Structure, count: int, dim: int) -> str:
    """One line: what an index is and what it takes in memory."""
    megabytes = memory_bytes(structure, count, dim) / 1e6
    return f"{structure.kind} for {count:,} pages x {dim:,} dimensions, about {megabytes:,.1f} MB in memory"


def announcement(structure: Structure, settings: SingleVectorSettings, count: int, dim: int) -> str:
    """One line: what was chosen, what it takes, and why it was chosen."""
    line, why = description(structure, count, dim), _reason(structure, settings, count)
    return f"single-vector index: {line} ({why})"


def _reason(structure: Structure, settings: SingleVectorSettings, count: int) -> str:
    if settings.structure == structure.kind:
        return "as the settings say"
    if structure.kind == "flat" and (settings.structure == "ivfpq" or count > settings.flat_up_to):
        return f"codes are learned from {CODEWORDS} pages or more"
    return {
        "flat": f"auto: up to {settings.flat_up_to:,} pages every vector is compared, which is exact",
        "hnsw": f"auto: above {settings.flat_up_to:,} pages a graph, which reads a part of the vectors",
        "ivfpq": f"auto: above {settings.hnsw_up_to:,} pages codes in memory, and the vectors on disk",
    }[structure.kind]
