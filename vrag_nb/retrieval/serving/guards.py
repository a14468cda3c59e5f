"""What a request must pass before it reaches the search: the token, a free place, a body of bounded size and time.

Each guard is a plain ASGI layer. `/health` needs no token and no place: what watches the server must see it when it is
full. Everything else does, `/metrics` too, once a token is set.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vrag_nb.retrieval.serving.errors import refusal

OPEN = frozenset({"/health"})
ALWAYS_A_PLACE = frozenset({"/health", "/metrics"})
RETRY_SECONDS = "1"


class TokenGuard:
    """401 for a request without `Authorization: Bearer TOKEN`. The comparison takes the same time for every guess."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self._digest = app, _digest(token.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._fits(scope):
            await self.app(scope, receive, send)
            return
        answer = refusal(scope, 401, "this server wants a bearer token", {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        same = hmac.compare_digest(_digest(given.strip().encode("latin-1")), self._digest)
        return same and scheme.lower() == "bearer"


def _digest(token: bytes) -> bytes:
    """Digests have one length, so a comparison does not tell the token's."""
    return hashlib.sha256(token).digest()


class Gate:
    """503 with Retry-After for a request beyond `places` that are under way."""

    def __init__(self, app: ASGIApp, places: int) -> None:
        self.app, self.places, self.under_way = app, places, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ALWAYS_A_PLACE:
            await self.app(scope, receive, send)
            return
        if self.under_way >= self.places:
            words = f"{self.places} requests are under way, and no more may be; come again"
            await refusal(scope, 503, words, {"Retry-After": RETRY_SECONDS})(scope, receive, send)
            return
        self.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.under_way -= 1


class BodyGuard:
    """Reads a request's body: 413 beyond `most` bytes, 408 when it is not there after `seconds`.

    Starlette's own limit answers 413 in plain text, without the request's id, and knows no time.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float) -> None:
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        closing = {"Connection": "close"}  # the rest of the body is not waited for
        try:
            body = None if _declared(scope) > self.most else await asyncio.wait_for(self._read(receive), self.seconds)
        except ClientDisconnect:
            return
        except TimeoutError:
            words = f"the request's body did not come within {self.seconds:g} seconds"
            await refusal(scope, 408, words, closing)(scope, receive, send)
            return
        if body is None:
            words = f"the request's body is over {self.most} bytes"
            await refusal(scope, 413, words, closing)(scope, receive, send)
            return
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self.app(scope, again, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None when it is too long. Raises ClientDisconnect."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self.most:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _declared(scope: Scope) -> int:
    """The Content-Length; 0 when there is none that is a number: then the bytes are counted."""
    length = Headers(scope=scope).get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
