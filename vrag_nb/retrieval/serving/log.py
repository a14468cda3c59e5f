"""A request's id, its line in the log, its place in the metrics; and a failure that nobody caught becomes a 500.

The id is the client's X-Request-ID where that is sane (letters, digits, `._:-`, at most 64), else a new one; it is
returned in the header, in error bodies and in the log. The log has neither query strings nor headers nor bodies: what
people search for, and tokens, stay out of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vrag_nb.retrieval.serving.errors import refusal
from vrag_nb.retrieval.serving.metrics import ServerMetrics

SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
GONE = 499  # the client left before its answer: never sent, only logged and counted
LONGEST_PATH = 200
logger = logging.getLogger("vrag_nb.server")


class RequestLog:
    """The outermost layer of a server."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = _identity(scope)
        scope.setdefault("state", {})["request_id"] = identity
        started, status = time.perf_counter(), 0
        self.metrics.under_way.inc()

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = identity
            await send(message)

        try:
            await self.app(scope, receive, tell)
        except asyncio.CancelledError:  # the server is being stopped and the time for it is over
            status = status or GONE
            raise
        except Exception:
            logger.exception("%s failed", identity)
            if status:  # half an answer is out: closing the connection is all that is left
                raise
            await refusal(scope, 500, "the server failed on this request; its log says why")(scope, receive, tell)
        finally:
            self._finish(scope, identity, status or GONE, time.perf_counter() - started)

    def _finish(self, scope: Scope, identity: str, status: int, seconds: float) -> None:
        self.metrics.under_way.dec()
        self.metrics.count_request(_route(scope), scope["method"], status, seconds)
        client = scope["client"][0] if scope.get("client") else "-"
        path = quote(scope["path"], errors="replace")[:LONGEST_PATH]
        method = quote(scope["method"])[:16]
        logger.info("%s %s %s %s %d %.1f ms", identity, client, method, path, status, seconds * 1000)


def _route(scope: Scope) -> str:
    """The template of the request's path, also for one that was refused before it came to its route."""
    for route in scope["app"].routes:
        if route.matches(scope)[0] != Match.NONE:
            return route.path
    return "(none)"


def _identity(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if SANE_ID.fullmatch(given) else uuid.uuid4().hex
