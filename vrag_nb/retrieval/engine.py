"""The search engine: a corpus, its index and the embedder that made it, behind one `search`.

    engine = SearchEngine.open(corpus, index)              # the embedder the index names
    hits = engine.search(["revenue by region"], top_k=3)   # one list of Hits a query
    hits = engine.search_in_document(["revenue"], "report", top_k=3)

Searching is safe from several threads at once. Building lives in `retrieval.building`; `build_index` is importable from
here too.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from vrag_nb.documents.pages import page_image
from vrag_nb.records import Hit, Page, read_pages
from vrag_nb.retrieval.building import BuildReport, build_index, page_key
from vrag_nb.retrieval.embedders import LENGTH_TOLERANCE, Embedder, SimilarityMap, load_embedder
from vrag_nb.retrieval.index import MultiVectorIndex, PageIndex
from vrag_nb.retrieval.opening import open_index
from vrag_nb.retrieval.single_vector import SingleVectorIndex
from vrag_nb.retrieval.storage import REBUILD, IndexMismatchError, check_embedder, index_kind, read_manifest
from vrag_nb.retrieval.structure import SingleVectorSettings

__all__ = ["BuildReport", "PageCheck", "SearchEngine", "SelfCheck", "build_index"]


class PageCheck(BaseModel):
    """A query made from a page's own text, and the 1-based rank of that page (None: not among all results)."""

    page_id: str
    query: str
    rank: int | None


class SelfCheck(BaseModel):
    """What `SearchEngine.self_check` found. `found`: how many of `checks` came first."""

    embedder: str
    kind: str
    dim: int
    query_vectors: tuple[int, int] | None  # shape of one embedded query; None for a text index
    pages: int
    checks: list[PageCheck]
    found: int
    problems: list[str]

    @property
    def ok(self) -> bool:
        return not self.problems


class SearchEngine:
    """Ranks the pages of a corpus for queries. Use `open`."""

    def __init__(self, corpus: Path, pages: Sequence[Page], index: PageIndex, embedder: Embedder) -> None:
        self.corpus, self.index, self.embedder = Path(corpus), index, embedder
        self.pages = {page.page_id: page for page in pages}
        self._rows_of_document: dict[str, np.ndarray] = _group_rows(index)
        self._embedding = threading.Lock()

    @classmethod
    def open(
        cls,
        corpus: Path,
        index: Path,
        embedder: Embedder | str | None = None,
        checkpoint: str | Path | None = None,
        *,
        verify: bool = True,
        exact: bool | None = None,
        single_vector: SingleVectorSettings | None = None,
        **options: Any,
    ) -> SearchEngine:
        """Open a corpus with its index.

        `embedder`: a loaded one, a registered name with its `checkpoint` and `options`, or None for the one the index
        names, with the options it was built with.
        `verify`: compare the checksums of the index's files. `exact`: see `MultiVectorIndex`. `single_vector`: how an
        index of one vector a page is to be searched, and what it must be; None takes it as it is. Raises
        FileNotFoundError when corpus, index or checkpoint is missing; IndexMismatchError naming the field when
        embedder, corpus or settings are not those of the index; IndexCorruptError naming the file.
        """
        pages = read_pages(corpus)
        if not isinstance(embedder, Embedder):
            manifest = read_manifest(index)
            if embedder is None:
                embedder, checkpoint = manifest.embedder, checkpoint or manifest.checkpoint or None
                options = {**manifest.options, **options}
            embedder = load_embedder(embedder, checkpoint, **options)
        opened = open_index(index, verify)
        check_embedder(index, opened.manifest, embedder)
        _check_pages(Path(corpus), pages, Path(index), opened)
        if isinstance(opened, MultiVectorIndex):
            opened.exact, opened.hubness_weight = exact, embedder.hubness_weight
        if isinstance(opened, SingleVectorIndex):
            opened.use(single_vector)
        elif single_vector:
            raise IndexMismatchError(
                f"{index}: single_vector is for single-vector indexes, this is {opened.manifest.kind}"
            )
        return cls(corpus, pages, opened, embedder)

    @property
    def fingerprint(self) -> str:
        """What rankings depend on: what made the vectors, how tokens are weighed, what is taken off for hubness."""
        weight = self.embedder.hubness_weight
        parts = [
            self.index.manifest.fingerprint,
            self.embedder.query_fingerprint,
            f"hubness {weight}" if weight else "",
        ]
        return "/".join(filter(None, parts))

    def search(self, queries: list[str], top_k: int = 3, within: Iterable[str] | None = None) -> list[list[Hit]]:
        """The best `top_k` pages of each query, best first, ranks from 1; only pages of `within` where it is given.

        A list is shorter than `top_k` when there are no more pages (for BM25: none that share a word with the query).
        Raises ValueError for an empty query, a `top_k` below 1 or a page id that is not in the index.
        """
        rows = None if within is None else np.array(sorted({self._row(page_id) for page_id in within}), np.int64)
        return self._search(queries, top_k, rows)

    def search_in_document(self, queries: list[str], document: str, top_k: int = 3) -> list[list[Hit]]:
        """`search` among one document's pages. Raises ValueError for a document that is not in the index."""
        if document not in self._rows_of_document:
            raise ValueError(f"no document {document!r} in the index of {self.corpus}")
        return self._search(queries, top_k, self._rows_of_document[document])

    def similarity_map(self, query: str, page_id: str) -> SimilarityMap:
        """Which patches of the page each token of the query sees: (n_query_tokens, grid_h, grid_w), for display.

        Raises ValueError for an empty query or unknown page, TypeError for an embedder without patch vectors.
        """
        _check_queries([query])
        image = page_image(self.corpus, self.page(page_id))
        with self._embedding:
            return self.embedder.similarity_map(query, image)

    def page(self, page_id: str) -> Page:
        """The page's record. Raises ValueError when the corpus has no such page."""
        if page_id not in self.pages:
            raise ValueError(f"no page {page_id!r} in the corpus {self.corpus}")
        return self.pages[page_id]

    def self_check(self, pages: int = 5) -> SelfCheck:
        """Does the embedder do what it should: right dimension, right lengths, and a query finds its own page?

        Queries are made of the first words of up to `pages` pages with a text layer, spread over the corpus, each
        searched in the whole corpus. Their vectors have length 1 unless the embedder weighs tokens. `problems` is
        empty when all is well; a page that is found, but not first, is no problem.
        """
        problems: list[str] = []
        shape = self._check_vectors(problems)
        with_text = [page for page in self.pages.values() if len(_first_words(page.text)) > 20]
        step = max(1, len(with_text) // pages)
        checks = [self._check_page(page) for page in with_text[::step][:pages]]
        if not checks:
            problems.append("no page has a text layer to make a query of: searching was not checked")
        found = sum(check.rank == 1 for check in checks)
        if checks and not found:
            problems.append(f"none of {len(checks)} queries made from a page's text found its own page first")
        return SelfCheck(
            embedder=self.embedder.name,
            kind=index_kind(self.embedder),
            dim=self.embedder.dim,
            query_vectors=shape,
            pages=len(self.index.page_ids),
            checks=checks,
            found=found,
            problems=problems,
        )

    def _check_vectors(self, problems: list[str]) -> tuple[int, int] | None:
        if index_kind(self.embedder) == "text":
            return None
        vectors = self._encode(["What does the page show?"])[0]
        if vectors.shape[1] != self.index.manifest.dim:
            problems.append(f"queries have dimension {vectors.shape[1]}, the index {self.index.manifest.dim}")
        lengths = np.linalg.norm(vectors, axis=1)
        if self.embedder.weighs_tokens:
            if not (np.isfinite(lengths).all() and lengths.any()):
                problems.append("query vectors have no length")
        elif not np.allclose(lengths, 1, rtol=0, atol=LENGTH_TOLERANCE):
            problems.append("query vectors do not have length 1")
        return vectors.shape[0], vectors.shape[1]

    def _check_page(self, page: Page) -> PageCheck:
        query = _first_words(page.text)
        hits = self.search([query], top_k=len(self.index.page_ids))[0]
        rank = next((hit.rank for hit in hits if hit.page_id == page.page_id), None)
        return PageCheck(page_id=page.page_id, query=query, rank=rank)

    def _search(self, queries: list[str], top_k: int, rows: np.ndarray | None) -> list[list[Hit]]:
        _check_queries(queries)
        if top_k < 1:
            raise ValueError(f"top_k {top_k} must be 1 or more")
        if not queries:
            return []
        vectors = self._encode(queries)
        if index_kind(self.embedder) != "text":
            _check_encoded(self.embedder, queries, vectors)
        return self.index.search(vectors, top_k, rows)

    def _encode(self, queries: list[str]) -> list[Any]:
        if index_kind(self.embedder) == "text":
            return queries
        with self._embedding:  # tokenizers and device memory are shared; one batch at a time is also the fastest
            return self.embedder.embed_queries(queries)

    def _row(self, page_id: str) -> int:
        if page_id not in self.index.row_of:
            raise ValueError(f"no page {page_id!r} in the index of {self.corpus}")
        return self.index.row_of[page_id]


def _check_queries(queries: list[str]) -> None:
    if isinstance(queries, str):
        raise ValueError("queries must be a list of strings, not one string")
    for number, query in enumerate(queries):
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"query {number} is empty: {query!r}")


def _check_encoded(embedder: Embedder, queries: Sequence[str], made: Sequence[np.ndarray]) -> None:
    """Raises ValueError naming the query whose vectors no index can be searched with."""
    if len(made) != len(queries):
        raise ValueError(f"{embedder.name} gave {len(made)} embeddings for {len(queries)} queries")
    for query, vectors in zip(queries, made, strict=True):
        if len(np.shape(vectors)) != 2 or np.shape(vectors)[1] != embedder.dim or not len(vectors):
            shape = tuple(np.shape(vectors))
            raise ValueError(f"{embedder.name}: query {query!r:.80}: shape {shape}, not (tokens, {embedder.dim})")
        if not np.isfinite(vectors).all():
            raise ValueError(f"{embedder.name}: query {query!r:.80}: the vectors hold NaN or infinity")


def _check_pages(corpus: Path, pages: Sequence[Page], folder: Path, index: PageIndex) -> None:
    indexed = {entry.page_id: entry.key for entry in index.manifest.pages}
    wanted = {page.page_id: page_key(corpus, page) for page in pages}
    lists = {
        "new": sorted(wanted.keys() - indexed.keys()),
        "removed": sorted(indexed.keys() - wanted.keys()),
        "changed": sorted(name for name in wanted.keys() & indexed.keys() if wanted[name] != indexed[name]),
    }
    found = [f"{len(names)} {what} (such as {names[0]})" for what, names in lists.items() if names]
    if found:
        raise IndexMismatchError(f"{folder}: field pages: {corpus} has since changed: {', '.join(found)}; {REBUILD}")


def _group_rows(index: PageIndex) -> dict[str, np.ndarray]:
    rows: dict[str, list[int]] = {}
    for row, entry in enumerate(index.manifest.pages):
        rows.setdefault(entry.document, []).append(row)
    return {document: np.array(members, np.int64) for document, members in rows.items()}


def _first_words(text: str, count: int = 12) -> str:
    return " ".join(re.findall(r"\S*\w\S*", text)[:count])
