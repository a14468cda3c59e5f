"""A search server as an engine and as a source of pages: the other side of `retrieval.server`.

    client = SearchClient("http://127.0.0.1:8001")
    client.search(["revenue by region"], top_k=3)      # POST /search, as SearchEngine.search
    client.image("report_3")                           # GET /pages/report_3, as PageStore.image

With it an agent needs neither index nor corpus of its own. The server hands out no text layers: `page` has none.
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import httpx
from PIL import Image
from pydantic import ValidationError

from vrag_nb.agent.searching import LONGEST_QUERY
from vrag_nb.records import Hit, Page

QUERIES_PER_REQUEST = 64  # what a server takes unless told otherwise
_LONGEST_WAIT = 30.0  # seconds


class SearchClient:
    """Asks the search server at `url` (with or without `/search` at its end). Safe from several threads.

    token: the bearer token of a server that wants one. timeout: seconds for one request. retries: further attempts to
    connect, or to be let in by a server that is busy. cached_pages: images kept in memory.
    Raises ValueError for an address or a token that cannot be. What is asked later raises ConnectionError when the
    server does not answer, ValueError when it refuses or answers something else; no error names the address, which may
    hold a password, or the token.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60.0, retries: int = 2, cached_pages: int = 64
    ) -> None:
        base = url.rstrip("/").removesuffix("/search")
        if not base.startswith(("http://", "https://")):
            raise ValueError("a search server's address begins with http:// or https://")
        token = (token or "").strip()
        if not (token.isascii() and (token.isprintable())):
            raise ValueError("the search server's token holds a line break or a sign that no token has")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.HTTPTransport(retries=retries)
        self._http = httpx.Client(base_url=base, timeout=timeout, transport=transport, headers=headers)
        self._retries = retries
        self._image = lru_cache(maxsize=cached_pages)(self._fetch)

    @property
    def fingerprint(self) -> str:
        """The served index's, as the server tells it; empty where it tells none. Raises what `search` raises."""
        try:
            told = self._ask("GET", "/health").json()
        except ValueError:
            return ""
        return str(told.get("fingerprint", "")) if isinstance(told, dict) else ""

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        """The best `top_k` pages of each query, best first. Queries are cut to the server's longest."""
        found: list[list[Hit]] = []
        for first in range(0, len(queries), QUERIES_PER_REQUEST):
            found += self._post(
                [query[:LONGEST_QUERY] for query in queries[first : first + QUERIES_PER_REQUEST]], top_k
            )
        return found

    def image(self, page_id: str) -> Image.Image:
        """The page as RGB pixels. Shared: callers must not draw on it."""
        return self._image(page_id)

    def page(self, page_id: str) -> Page:
        """The page's record, its size taken from its image; without a text layer."""
        image = self.image(page_id)
        document, _, number = page_id.rpartition("_")
        numbered = bool(document) and number.isdecimal() and int(number) > 0
        return Page(
            page_id=page_id,
            document=document if numbered else page_id,
            page=int(number) if numbered else 1,
            image=_address(page_id),
            width=image.width,
            height=image.height,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _post(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        answer = self._ask("POST", "/search", json={"queries": list(queries), "top_k": top_k})
        try:
            results = [[Hit.model_validate(hit) for hit in hits] for hits in answer.json()["results"]]
        except (ValueError, KeyError, TypeError, ValidationError):
            raise ValueError(
                'the search server does not answer {"results": [[{"page_id", "score", "rank"}]]}'
            ) from None
        if len(results) != len(queries):
            raise ValueError(f"the search server answered {len(results)} lists of hits for {len(queries)} queries")
        return results

    def _fetch(self, page_id: str) -> Image.Image:
        answer = self._ask("GET", _address(page_id))
        with Image.open(io.BytesIO(answer.content)) as file:
            return file.convert("RGB")

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        for attempt in range(self._retries + 1):
            try:
                answer = self._http.request(method, path, **options)
            except httpx.HTTPError as error:
                problem = type(error).__name__
                raise ConnectionError(f"the search server does not answer {method} {path}: {problem}") from None
            if answer.status_code != 503 or attempt == self._retries:
                break
            time.sleep(_wait(answer))
        if answer.is_success:
            return answer
        raise ValueError(f"the search server answers {method} {path} with {answer.status_code}: {answer.text[:300]}")


def _wait(answer: httpx.Response) -> float:
    """Seconds that a busy server asks to wait, one where it does not say."""
    try:
        return min(max(0.0, float(answer.headers.get("retry-after", 1))), _LONGEST_WAIT)
    except ValueError:  # a date
        return 1.0


def _address(page_id: str) -> str:
    return f"/pages/{quote(page_id, safe='')}"
