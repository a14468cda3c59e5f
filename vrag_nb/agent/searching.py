"""What an environment asks of a search engine, and how a failing search stays with the session that asked for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from vrag_nb.records import Hit, without_surrogates

LONGEST_QUERY = 2000  # characters


class Engine(Protocol):
    """Anything that can search: one ranked list of hits per query. fingerprint: what the rankings depend on; answers
    found with one are not taken for those found with another."""

    @property
    def fingerprint(self) -> str: ...

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]: ...


def search_each(engine: Engine | None, queries: Sequence[str], top_k: int) -> list[list[Hit] | Exception]:
    """Each query's hits, or why there are none. One call for all; where it fails, one by one.

    A query is searched once, however many ask it: the trajectories of a group often do. One that is longer than
    LONGEST_QUERY, as a model that repeats itself writes it, is cut.
    """
    queries = [query[:LONGEST_QUERY] for query in queries]
    different = list(dict.fromkeys(queries))
    found = dict(zip(different, _search_different(engine, different, top_k), strict=True))
    return [found[query] for query in queries]


def _search_different(engine: Engine | None, queries: list[str], top_k: int) -> list[list[Hit] | Exception]:
    if not queries:
        return []
    try:
        if engine is None:
            raise RuntimeError("this environment has no search engine")
        return _checked(engine.search(queries, top_k), len(queries))
    except Exception as error:
        if len(queries) == 1:
            return [error]
        return [_search_different(engine, [query], top_k)[0] for query in queries]


def _checked(found: Any, queries: int) -> list[list[Hit] | Exception]:
    """What an engine gave, a list for each query. One with a score that no record can hold is that query's error.

    Raises ValueError for another number of lists.
    """
    lists = [list(hits) for hits in found]
    if len(lists) != queries:
        raise ValueError(f"the search engine gave {len(lists)} lists of hits for {queries} queries")
    return [_finite(hits) for hits in lists]


def _finite(hits: list[Hit]) -> list[Hit] | Exception:
    odd = next((hit for hit in hits if not math.isfinite(hit.score)), None)
    return hits if odd is None else ValueError(f"the search engine gave {odd.page_id} the score {odd.score}")


def in_words(error: Exception) -> str:
    """An exception as a record tells it: its kind and what it says."""
    told = error.args[0] if isinstance(error, KeyError) and error.args else error
    return without_surrogates(f"{type(error).__name__}: {told}")
