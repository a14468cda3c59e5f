"""The search engine over HTTP.

    POST /search  {"queries": ["revenue by region"], "top_k": 3}
      -> {"results": [[{"page_id": "report_3", "score": 14.2, "rank": 1, "image_url": "/pages/report_3"}, ...], ...]}
    GET  /search?queries=...&queries=...&top_k=3      the same
    GET  /pages/{page_id}                             the page's image; 409 where it is not the one that was indexed
    GET  /health                                      what is being served; needs no token
    GET  /metrics                                     counters for Prometheus; needs the token where there is one
    POST /reload                                      open the index anew (only where it is allowed); so does SIGHUP

Queries of concurrent requests are searched together (`retrieval.serving`). A request that does not fit is answered 422
with `{"detail": [{"field": ..., "problem": ...}], "request_id": ...}`; one for which there is no room, 503 with
Retry-After. A page id is looked up in the corpus, never made into a path. `python -m vrag_nb serve` starts it.
"""

from __future__ import annotations

import hashlib
import logging
import socket
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from vrag_nb.documents.pages import page_path
from vrag_nb.records import Hit
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.serving.api import (
    Health,
    Reloaded,
    SearchHit,
    SearchRequest,
    SearchResponse,
    UpstreamHit,
    refusals,
    search_request,
)
from vrag_nb.retrieval.serving.errors import add_error_handlers
from vrag_nb.retrieval.serving.guards import BodyGuard, Gate, TokenGuard
from vrag_nb.retrieval.serving.log import GONE, RequestLog
from vrag_nb.retrieval.serving.options import ServingOptions
from vrag_nb.retrieval.serving.reload import OpenedIndex, ReloadError, Reopen
from vrag_nb.retrieval.serving.state import ServerState

logger = logging.getLogger("vrag_nb.server")
Answer = SearchResponse | list[list[UpstreamHit]]


def create_app(
    engine: SearchEngine,
    corpus: Path | None = None,
    options: ServingOptions | None = None,
    reopen: Reopen | None = None,
) -> FastAPI:
    """The application. `corpus` is where page images lie (the engine's own corpus unless given).

    `reopen`: how a reload makes the new engine of the old one (see `serving.reload.reopened`).
    """
    options = options or ServingOptions()
    server = ServerState(engine, Path(corpus) if corpus is not None else engine.corpus, options, reopen)
    checks: list[Any] = [Depends(HTTPBearer(auto_error=False))] if options.token else []  # only for the document
    app = FastAPI(title="vrag_nb search engine", description=__doc__, lifespan=server.lifespan)
    add_error_handlers(app)
    _add_layers(app, server)
    _add_search(app, server, checks)
    _add_pages(app, server, checks)
    _add_operations(app, server, checks)
    return app


def _add_layers(app: FastAPI, server: ServerState) -> None:
    """The layers a request passes; the last one added is the first one passed."""
    app.add_middleware(BodyGuard, most=server.options.max_body, seconds=server.options.body_timeout)
    app.add_middleware(Gate, places=server.options.max_requests)
    if server.options.token:
        app.add_middleware(TokenGuard, token=server.options.token)
    app.add_middleware(RequestLog, metrics=server.metrics)


def _add_search(app: FastAPI, server: ServerState, checks: list[Any]) -> None:
    codes = refusals(*_codes(server, 400, 408, 413, 422, 500, 503))

    async def answer(request: Request, wanted: SearchRequest, upstream: bool) -> Answer | Response:
        index = server.index.current
        found = await server.search(request, wanted.queries, index)
        if found is None:
            return Response(status_code=GONE)
        hits = [one[: wanted.top_k] for one in found]
        return _for_upstream(index, hits) if upstream else _with_urls(hits)

    async def search(request: Request, wanted: Any) -> Any:
        return await answer(request, wanted, wanted.vrag_ret)

    async def search_by_url(request: Request, wanted: Any) -> Any:
        return await answer(request, wanted, server.options.upstream)

    # The limits are the server's own, so the types are made here, and a type that is made cannot be written above.
    search.__annotations__["wanted"] = search_request(server.options)
    search_by_url.__annotations__["wanted"] = Annotated[search_request(server.options, by_url=True), Query()]
    model = Answer if server.options.upstream else SearchResponse
    app.post("/search", responses=codes, dependencies=checks, response_model=model)(search)
    app.get("/search", responses=codes, dependencies=checks, response_model=model)(search_by_url)


def _with_urls(hits: list[list[Hit]]) -> SearchResponse:
    return SearchResponse(
        results=[
            [SearchHit(**hit.model_dump(), image_url=f"/pages/{quote(hit.page_id, safe='')}") for hit in one]
            for one in hits
        ]
    )


def _for_upstream(index: OpenedIndex, hits: list[list[Hit]]) -> list[list[UpstreamHit]]:
    return [
        [UpstreamHit(idx=hit.rank - 1, image_file=path) for hit in one if (path := _image_path(index, hit.page_id))]
        for one in hits
    ]


def _image_path(index: OpenedIndex, page_id: str) -> str | None:
    """Where a page's image lies; None when that is outside the corpus."""
    try:
        return str(page_path(index.corpus, index.engine.page(page_id)))
    except ValueError:
        return None


def _add_pages(app: FastAPI, server: ServerState, checks: list[Any]) -> None:
    codes = refusals(*_codes(server, 404, 408, 409, 413, 422, 500, 503))
    codes[200] = {"description": "The page's image.", "content": {"image/*": {}}}

    # A plain function: FastAPI runs it in a thread, and a slow disk does not hold the searches up.
    @app.get("/pages/{page_id}", responses=codes, dependencies=checks, response_class=FileResponse)
    def page(page_id: str) -> FileResponse:
        index = server.index.current
        if page_id not in index.engine.pages:
            raise HTTPException(404, f"no page {page_id!r} in this corpus")
        path = _image_path(index, page_id)
        if path is None:
            raise HTTPException(404, f"page {page_id!r} has no image in this corpus")
        if not Path(path).is_file():
            raise HTTPException(404, f"the image of page {page_id!r} is missing; prepare the corpus again")
        if not _as_indexed(Path(path), index.engine.page(page_id).sha256):
            raise HTTPException(409, f"page {page_id!r} was prepared anew since: build the index and reload")
        server.metrics.count_image()
        return FileResponse(path)


def _as_indexed(image: Path, sha256: str) -> bool:
    """Whether a page's image is still the file that was indexed; a page without a checksum is taken to be."""
    if not sha256:
        return True
    about = image.stat()
    return _sha256(image, about.st_mtime_ns, about.st_size) == sha256


@lru_cache(maxsize=65_536)
def _sha256(path: Path, changed: int, size: int) -> str:
    """A file's checksum, read again when its time (`changed`, ns) or its size (bytes) is another."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _add_operations(app: FastAPI, server: ServerState, checks: list[Any]) -> None:
    @app.get("/health", responses=refusals(408, 413, 500))
    async def health() -> Health:
        index = server.index.current
        return Health(
            status="ok",
            embedder=index.engine.embedder.name,
            pages=len(index.engine.pages),
            documents=index.documents,
            dim=index.engine.embedder.dim,
            fingerprint=index.engine.fingerprint,
        )

    codes = refusals(*_codes(server, 408, 413, 500))
    codes[200] = {"description": "Prometheus's text form.", "content": {"text/plain": {}}}

    @app.get("/metrics", responses=codes, dependencies=checks, response_class=Response)
    async def metrics() -> Response:
        return Response(server.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    if not server.options.allow_reload:
        return

    @app.post("/reload", responses=refusals(*_codes(server, 408, 409, 413, 500, 503)), dependencies=checks)
    def reload() -> Reloaded:
        try:
            index = server.reload()
        except ReloadError as error:
            raise HTTPException(409, f"the old index is still served: {error}") from None
        return Reloaded(number=index.number, pages=len(index.engine.pages), documents=index.documents)


def _codes(server: ServerState, *codes: int) -> list[int]:
    return sorted([*codes, 401] if server.options.token else codes)


def check_address(host: str, port: int) -> None:
    """Raise OSError naming host and port where nothing can listen there: to be known before a model is loaded."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server sets it
                probe.bind(address)
    except OSError as error:
        words = f"cannot listen on {host}, port {port} ({error.strerror})"
        raise OSError(f"{words}: name another --port or --host") from None


def run_server(
    engine: SearchEngine,
    corpus: Path,
    host: str = "127.0.0.1",
    port: int = 8001,
    options: ServingOptions | None = None,
    reopen: Reopen | None = None,
) -> None:
    """Serve an engine until SIGTERM or SIGINT, then finish what is under way; SIGHUP opens the index anew."""
    options = options or ServingOptions()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.token is None and host not in ("127.0.0.1", "::1", "localhost"):
        logger.warning("listening on %s without a token: whoever reaches it may search (see --token-env)", host)
    uvicorn.run(
        create_app(engine, corpus, options, reopen),
        host=host,
        port=port,
        access_log=False,  # it has the query strings; ours has not
        server_header=False,
        timeout_graceful_shutdown=options.shutdown_timeout,
    )
