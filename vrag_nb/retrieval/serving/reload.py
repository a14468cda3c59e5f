"""Which index is served, and replacing it while requests are being answered.

A request takes `ServedIndex.current` once and keeps it to its end, so everything it is told is of one index. A reload
opens the new index beside the old one and then swaps one reference; the old one is freed when its last request lets go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vrag_nb.records import Hit
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.index import MultiVectorIndex
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import IndexMismatchError, check_embedder, read_manifest

Reopen = Callable[[SearchEngine], SearchEngine]


class ReloadError(RuntimeError):
    """The index could not be replaced; the text says why, and the old one is still served."""


class ReloadRunningError(ReloadError):
    """Another reload is under way."""


@dataclass(frozen=True, eq=False)
class OpenedIndex:
    """One opened index. `number` counts from 1, one more for every reload; `depth` is the greatest top_k."""

    engine: SearchEngine
    corpus: Path
    depth: int
    number: int = 1

    @property
    def documents(self) -> int:
        return len({page.document for page in self.engine.pages.values()})

    def search(self, queries: list[str]) -> list[list[Hit]]:
        """`depth` pages a query, whoever asks: a request cuts its own `top_k` off, and no request changes another's."""
        return self.engine.search(queries, self.depth)


class ServedIndex:
    """The index in use. `reopen` makes a new engine from the old one; None where the index cannot be replaced."""

    def __init__(self, engine: SearchEngine, corpus: Path, depth: int, reopen: Reopen | None = None) -> None:
        self.current = OpenedIndex(engine, corpus, depth)
        self._reopen = reopen
        self._reloading = threading.Lock()

    def reload(self) -> OpenedIndex:
        """Open the index anew and serve it. Takes as long as opening does; call it in a thread.

        Raises ReloadRunningError, or ReloadError saying what is wrong with the new index.
        """
        if self._reopen is None:
            raise ReloadError("this server was not told where its index lies, and cannot open it again")
        if not self._reloading.acquire(blocking=False):
            raise ReloadRunningError("another reload is under way")
        try:
            old = self.current
            engine = self._reopen(old.engine)
            self.current = OpenedIndex(engine, old.corpus, old.depth, old.number + 1)
            return self.current
        except Exception as error:  # whatever it is, there is an index that works
            raise ReloadError(f"{type(error).__name__}: {error}") from error
        finally:
            self._reloading.release()


def reopened(engine: SearchEngine, open_anew: Callable[[], SearchEngine]) -> SearchEngine:
    """The engine's index as it lies on disk now, verified, with the embedder that is loaded already.

    It is searched by the settings that the engine was opened with. `open_anew` opens everything again; it is called
    when the index was built with another embedder. Raises what `SearchEngine.open` raises.
    """
    index, folder = engine.index, engine.index.folder
    try:
        check_embedder(folder, read_manifest(folder), engine.embedder)
    except IndexMismatchError:
        return open_anew()
    exact = index.exact if isinstance(index, MultiVectorIndex) else None
    asked = index.asked if isinstance(index, SingleVectorIndex) else None
    return SearchEngine.open(engine.corpus, folder, engine.embedder, exact=exact, single_vector=asked)
