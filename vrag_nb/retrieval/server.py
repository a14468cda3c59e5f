"""The search engine over HTTP.

    POST /search  {"queries": ["revenue by region"], "top_k": 3}
      -> {"results": [[{"page_id": "report_3", "score": 14.2, "rank": 1, "image_url": "/pages/report_3"}, ...], ...]}
    GET  /search?queries=...&queries=...&top_k=3      the same
    GET  /pages/{page_id}                             the page's image
    GET  /health                                      what is being served

A request that does not fit is answered 422 with `{"detail": [{"field": ..., "problem": ...}]}`. A page id is looked up
in the corpus, never made into a path.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from vrag_nb.documents.pages import page_path
from vrag_nb.records import Hit
from vrag_nb.retrieval.engine import SearchEngine

MAX_QUERIES = 64
MAX_QUERY_LENGTH = 2000  # characters
MAX_TOP_K = 100


def _not_blank(query: str) -> str:
    if not query.strip():
        raise ValueError("the query is empty")
    return query


QueryText = Annotated[str, Field(max_length=MAX_QUERY_LENGTH), AfterValidator(_not_blank)]
Queries = Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K)]


class SearchRequest(BaseModel):
    """Up to MAX_QUERIES queries; `top_k` pages are wanted for each."""

    model_config = ConfigDict(extra="forbid")
    queries: Queries
    top_k: TopK = 3


class SearchHit(Hit):
    """A hit and where its page image can be fetched (relative to the server)."""

    image_url: str


class SearchResponse(BaseModel):
    results: list[list[SearchHit]]


class Health(BaseModel):
    status: str
    embedder: str
    pages: int
    documents: int
    dim: int


def create_app(engine: SearchEngine, corpus: Path | None = None) -> FastAPI:
    """The application. `corpus` is where page images lie (the engine's own corpus unless given)."""
    folder = Path(corpus) if corpus is not None else engine.corpus
    app = FastAPI(title="vrag_nb search engine", description=__doc__)
    app.add_exception_handler(RequestValidationError, _explain)

    def answer(queries: list[str], top_k: int) -> SearchResponse:
        results = engine.search(queries, top_k)
        return SearchResponse(
            results=[
                [SearchHit(**hit.model_dump(), image_url=f"/pages/{quote(hit.page_id, safe='')}") for hit in hits]
                for hits in results
            ]
        )

    # Plain functions, not coroutines: FastAPI runs them in threads, and a search does not block the health check.
    @app.post("/search")
    def search(request: SearchRequest) -> SearchResponse:
        return answer(request.queries, request.top_k)

    @app.get("/search")
    def search_by_url(queries: Annotated[Queries, Query()], top_k: Annotated[TopK, Query()] = 3) -> SearchResponse:
        return answer(queries, top_k)

    @app.get("/health")
    def health() -> Health:
        documents = {page.document for page in engine.pages.values()}
        return Health(
            status="ok",
            embedder=engine.embedder.name,
            pages=len(engine.pages),
            documents=len(documents),
            dim=engine.embedder.dim,
        )

    @app.get("/pages/{page_id}")
    def page(page_id: str) -> FileResponse:
        if page_id not in engine.pages:
            raise HTTPException(404, f"no page {page_id!r} in this corpus")
        try:
            path = page_path(folder, engine.pages[page_id])
        except ValueError:
            raise HTTPException(404, f"page {page_id!r} has no image in this corpus") from None
        if not path.is_file():
            raise HTTPException(404, f"the image of page {page_id!r} is missing; prepare the corpus again")
        return FileResponse(path)

    return app


def _explain(request: Request, error: Exception) -> JSONResponse:
    """422 in words: which field, and what is wrong with it."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": [_in_words(entry) for entry in error.errors()]}, status_code=422)


def _in_words(entry: Any) -> dict[str, str]:
    location = [str(part) for part in entry["loc"] if part not in ("body", "query")]
    problem = str(entry["msg"]).removeprefix("Value error, ")
    return {"field": ".".join(location) or "body", "problem": problem}


def serve(
    corpus: Path,
    index: Path,
    embedder: str | None = None,
    checkpoint: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8001,
    **options: Any,
) -> None:
    """Open the engine and serve it until interrupted. Raises what `SearchEngine.open` raises, before listening."""
    engine = SearchEngine.open(Path(corpus), Path(index), embedder, checkpoint, **options)
    uvicorn.run(create_app(engine, Path(corpus)), host=host, port=port)


def main() -> None:
    """`python -m vrag_nb.retrieval.server CORPUS INDEX`."""
    parser = argparse.ArgumentParser(description="Serve a corpus's search engine over HTTP.")
    parser.add_argument("corpus", type=Path, help="a prepared corpus folder")
    parser.add_argument("index", type=Path, help="its index folder")
    parser.add_argument("--embedder", help="a registered embedder; the index's own unless given")
    parser.add_argument("--checkpoint", help="its checkpoint; the index's own unless given")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    serve(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
