"""What turns pages and queries into vectors: the base class, the registry, and what every checkpoint shares.

An embedder is one class in one file, named in a profile as `module:Class`, or by a name of its own under `@register`:

    class MyEmbedder(Embedder): ...

    embedder = load_embedder("my_module:MyEmbedder", "path/or/hub-id", batch_size=8)

Page and query embeddings are lists of float32 arrays (n_tokens, dim), one per item, holding real tokens only: padding
never leaves an embedder. A single-vector embedder returns (1, dim). Vectors have length 1: a dot product is a cosine.
The one exception is a page without anything to embed (a text embedder, a page without text): its vector may be zero.

`fingerprint` says which weights and which options made the vectors; an index stores it, and opening the index with
another one is an error.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from PIL import Image

from vrag_nb.loading import load_object

LENGTH_TOLERANCE = 0.02  # by which a vector's length may differ from 1, as it does in bfloat16
BUILT_IN = tuple(  # modules that register a class on import
    f"vrag_nb.retrieval.{name}" for name in ("colpali", "nano_embedders", "qwen_embedding", "sentences", "bm25")
)


@dataclass(frozen=True)
class SimilarityMap:
    """Which part of a page each token of a query sees.

    `tokens`: the query's tokens as the tokenizer spells them, the embedder's own augmentation tokens included.
    `scores`: (n_query_tokens, grid_h, grid_w) cosines; cell (y, x) covers the page's fraction x/grid_w..(x+1)/grid_w
    from the left and y/grid_h..(y+1)/grid_h from the top.
    `weights`: (n_query_tokens,), by which tokens count in MaxSim; None: all 1.
    """

    tokens: list[str]
    scores: np.ndarray
    weights: np.ndarray | None = None


class Embedder(ABC):
    """Turns page images (and their text) and queries into vectors. Subclasses set the attributes when they load."""

    name: ClassVar[str] = ""  # the registry's name, set by `register`
    multi_vector: bool = True
    takes_videos: bool = False  # whether chunks of videos are embedded by their frames, not as their sheets
    dim: int
    checkpoint: str = ""
    fingerprint: str
    options: dict[str, Any]  # what `load_embedder` must be given again to get the same vectors
    batch_size: int = 1
    query_bank: tuple[str, ...] = ()  # sample queries by which the hubness of a page is told (`retrieval.hubness`)
    hubness_weight: float = 0.0  # how much of it is taken off a score
    views: int = 1  # a page's vectors are those of so many views of it, equally many each; its score is their mean

    @property
    def query_fingerprint(self) -> str:
        """What rankings depend on besides the vectors of pages; empty where that is nothing."""
        return ""

    @property
    def weighs_tokens(self) -> bool:
        """Whether a query's vectors are as long as their tokens are worth; otherwise all have length 1."""
        return False

    @property
    def batches_at_once(self) -> bool:
        """Whether pages are embedded faster by a batch on each of the processor's threads than by one batch on all.

        True for small models on a CPU only; `embed_pages` and `embed_videos` are then called from several threads.
        """
        return False

    @cached_property
    def bank_vectors(self) -> list[np.ndarray]:
        """The embedded query bank."""
        return self.embed_queries(list(self.query_bank)) if self.query_bank else []

    @abstractmethod
    def embed_pages(self, images: list[Image.Image], texts: list[str]) -> list[np.ndarray]:
        """One (n_tokens, dim) float32 array a page; `texts` are the text layers, which a visual embedder ignores."""

    @abstractmethod
    def embed_queries(self, queries: list[str]) -> list[np.ndarray]:
        """One (n_tokens, dim) float32 array a query."""

    def embed_videos(self, clips: Sequence[Sequence[Image.Image]], seconds: float = 1.0) -> list[np.ndarray]:
        """One (n_tokens, dim) float32 array a clip: its frames in order, all of one size, `seconds` apart.

        Raises TypeError where an embedder takes no videos.
        """
        raise TypeError(f"{self.name} takes no videos: embed the sheet of a chunk as a page")

    def similarity_map(self, query: str, image: Image.Image) -> SimilarityMap:
        """Token-by-patch similarity, for display. Raises TypeError where an embedder has no patches to show."""
        raise TypeError(f"{self.name} has no similarity map: it does not keep one vector per patch of the page")


REGISTRY: dict[str, type[Embedder]] = {}
Class = TypeVar("Class", bound=type[Embedder])


def register(name: str) -> Callable[[Class], Class]:
    """Make an Embedder class loadable under this name."""

    def add(cls: Class) -> Class:
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return add


def embedder_kinds() -> list[str]:
    """The names `load_embedder` knows."""
    for module in BUILT_IN:
        importlib.import_module(module)
    return sorted(REGISTRY)


def load_embedder(kind: str, checkpoint: str | Path | None = None, **options: Any) -> Embedder:
    """Load an embedder by its registered name, or a class of one's own as `module:Class`.

    `checkpoint`: a folder (absolute, or relative to the working directory or the repository) or a hub id; None takes
    the kind's own default. `options` are the class's (`batch_size`, `device`, `dtype`, `max_visual_tokens`, ...).
    Raises ValueError for an unknown kind or option, or an embedder that lacks one of its attributes, FileNotFoundError
    when the checkpoint is not there.
    """
    if ":" in kind and kind not in REGISTRY:
        _register_at(kind)
    if kind not in embedder_kinds():
        raise ValueError(
            f"unknown embedder {kind!r}; known: {', '.join(sorted(REGISTRY))}, or your own as module:Class"
        )
    arguments = {} if checkpoint is None else {"checkpoint": str(checkpoint)}
    try:
        embedder = REGISTRY[kind](**arguments, **options)
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ValueError(f"embedder {kind!r}: {error}") from None
        raise
    if missing := [name for name in ("dim", "fingerprint", "options") if not hasattr(embedder, name)]:
        raise ValueError(f"embedder {kind!r} has no {', '.join(missing)}: set it in __init__")
    return embedder


def _register_at(path: str) -> None:
    """Make the class at `module:Class` loadable under that path, which an index then names. Raises ValueError."""
    cls = load_object(path, "embedder")
    if not (isinstance(cls, type) and issubclass(cls, Embedder)):
        raise ValueError(f"embedder {path!r} is not a subclass of {Embedder.__module__}.Embedder")
    if vars(cls).get("name") in REGISTRY:  # it has a name of its own, which is not that of a class it extends
        REGISTRY[path] = cls
    else:
        register(path)(cls)


def batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """The items in consecutive groups of `size`, the last one shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]
