"""What the routes of one search server share: the index, the batcher, the metrics, and how they begin and end."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from vrag_nb.records import Hit
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.serving.batching import Batcher, ClosedError, QueueFullError
from vrag_nb.retrieval.serving.guards import RETRY_SECONDS
from vrag_nb.retrieval.serving.metrics import ServerMetrics
from vrag_nb.retrieval.serving.options import ServingOptions
from vrag_nb.retrieval.serving.reload import OpenedIndex, ReloadError, ReloadRunningError, Reopen, ServedIndex

CLOSING_SECONDS = 1.0  # for a search that nobody waits for any more
logger = logging.getLogger("vrag_nb.server")


class ServerState:
    """The index, the batcher, the metrics of one application, and how they begin and end."""

    def __init__(self, engine: SearchEngine, corpus: Path, options: ServingOptions, reopen: Reopen | None) -> None:
        self.options, self.metrics = options, ServerMetrics()
        self.index = ServedIndex(engine, corpus, options.max_top_k, reopen)
        self.batcher = Batcher(options.max_batch, options.max_wait_ms, options.max_queue, self.metrics.count_batch)
        self.metrics.watch("vrag_queue_queries", "Queries waiting for a search.", lambda: self.batcher.waiting)
        self.metrics.watch(
            "vrag_index_pages", "Pages of the index served.", lambda: len(self.index.current.engine.pages)
        )
        self.metrics.watch("vrag_index_number", "1, and one more for each reload.", lambda: self.index.current.number)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """SIGHUP reloads; where a terminal is listened to, it tells that this was closed, and ends the server. By the
        time this ends the server has finished its requests, or has given them up."""
        loop, main = asyncio.get_running_loop(), threading.current_thread() is threading.main_thread()
        if main and hasattr(signal, "SIGHUP") and not sys.stderr.isatty():
            loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, self.reload_quietly))
        yield
        if not await asyncio.to_thread(self.batcher.close, CLOSING_SECONDS):
            logger.warning("a search is still running, and nobody waits for it any more; leaving it")

    async def search(self, request: Request, queries: list[str], index: OpenedIndex) -> list[list[Hit]] | None:
        """The answers of one index; None when the client has left. Raises 503 when there is no room."""
        try:
            futures = self.batcher.submit(queries, index.search)
        except (QueueFullError, ClosedError) as error:
            raise HTTPException(503, f"{error}; come again", {"Retry-After": RETRY_SECONDS}) from None
        return await _unless_gone(request, futures)

    def reload(self) -> OpenedIndex:
        """Replace the index, log and count it. Raises ReloadError."""
        try:
            index = self.index.reload()
        except ReloadError as error:
            logger.error("reload: the old index is still served: %s", error)
            self.metrics.count_reload("refused" if isinstance(error, ReloadRunningError) else "failed")
            raise
        logger.info("reload: index number %d, %d pages", index.number, len(index.engine.pages))
        self.metrics.count_reload("done")
        return index

    def reload_quietly(self) -> None:
        """The reload of a signal, which nobody waits for."""
        with suppress(ReloadError):  # it is logged
            self.reload()


async def _unless_gone(request: Request, futures: Sequence[Future[list[Hit]]]) -> list[list[Hit]] | None:
    """The futures' results, or None as soon as the client has left: what it still waits for is not searched."""
    answers = asyncio.ensure_future(_all(futures))
    leaving = asyncio.ensure_future(_gone(request))
    both: set[asyncio.Future[Any]] = {answers, leaving}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return answers.result() if answers.done() else None
    finally:
        leaving.cancel()
        answers.cancel()
        for future in futures:
            future.cancel()


async def _all(futures: Sequence[Future[list[Hit]]]) -> list[list[Hit]]:
    return await asyncio.gather(*map(asyncio.wrap_future, futures))


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
