"""The records of the search server's API: what may be asked, and what is answered."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from vrag_nb.records import Hit
from vrag_nb.retrieval.serving.errors import FieldRefusal, Refusal
from vrag_nb.retrieval.serving.options import ServingOptions

TOP_K = 3
UPSTREAM_TOP_K = 10  # what upstream's GET returned; it had no parameter for it
NOT_BLANK = r"[^\s\x1c-\x1f\x85]"  # what str.strip leaves; JSON Schema's \s knows fewer blanks than Python


class SearchRequest(BaseModel):
    """Queries, and how many pages are wanted for each."""

    queries: list[str]
    top_k: int = TOP_K
    vrag_ret: bool = False


class SearchHit(Hit):
    """A hit and where its page image can be fetched (relative to the server)."""

    image_url: str


class SearchResponse(BaseModel):
    results: list[list[SearchHit]]


class UpstreamHit(BaseModel):
    """A hit as VRAG's own clients read it: its 0-based place, and the page image's path on the server's machine."""

    idx: int
    image_file: str


class Health(BaseModel):
    status: str
    embedder: str
    pages: int
    documents: int
    dim: int
    fingerprint: str = ""


class Reloaded(BaseModel):
    """The index that is served now. `number` grows by one with each reload."""

    number: int
    pages: int
    documents: int


def search_request(options: ServingOptions, by_url: bool = False) -> type[SearchRequest]:
    """The request with a server's limits. In a URL everything is text and unknown parameters are left alone."""
    wanted = UPSTREAM_TOP_K if by_url and options.upstream else TOP_K
    text = Annotated[
        str,
        Field(max_length=options.max_query_length, json_schema_extra={"pattern": NOT_BLANK}),
        AfterValidator(_not_blank),
    ]
    many = Field(min_length=1, max_length=options.max_queries, description="what to search for")
    pages = Field(default=min(wanted, options.max_top_k), ge=1, le=options.max_top_k)
    number = int if by_url else Annotated[int, BeforeValidator(_number)]
    switch = Field(
        default=False,
        strict=not by_url,
        description="answer lists of {idx, image_file}; only a server started with --upstream does",
        json_schema_extra=None if options.upstream else {"enum": [False]},
    )
    fields: dict[str, Any] = {
        "queries": (list[text], many),  # type: ignore[valid-type]
        "top_k": (number, pages),
        "vrag_ret": (bool if options.upstream else Annotated[bool, AfterValidator(_not_offered)], switch),
    }
    base = type("Limits", (SearchRequest,), {"model_config": ConfigDict(extra="ignore" if by_url else "forbid")})
    return create_model("SearchByUrl" if by_url else "SearchRequest", __base__=base, **fields)


def _not_blank(query: str) -> str:
    if not query.strip():
        raise ValueError("the query is empty")
    return query


def _number(value: Any) -> Any:
    """JSON's 3 and 3.0 are numbers; "3" and true are not."""
    if isinstance(value, bool | str):
        raise ValueError("Input should be a valid integer")
    return value


def _not_offered(switch: bool) -> bool:
    if switch:
        raise ValueError("this server was not started with --upstream")
    return switch


# Why each request may be refused, for the OpenAPI document.
_WORDS = {
    400: "The body is no text that could be JSON.",
    401: "The bearer token is missing or wrong.",
    404: "There is no such page, or it has no image.",
    408: "The body did not come in time.",
    409: "The index was not replaced; the old one is still served.",
    413: "The body is too long.",
    422: "The request does not fit, field by field.",
    500: "The server failed; its log says why.",
    503: "Too many requests or queries are waiting; Retry-After says when to come again.",
}


def refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for the status codes a route may refuse with."""
    return {code: {"description": _WORDS[code], "model": FieldRefusal if code == 422 else Refusal} for code in codes}
