"""What a client reads when a request is refused: `{"detail": ..., "request_id": ...}`, whatever refused it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

LONGEST_FIELD = 200  # characters of a field's name that are said back


class Refusal(BaseModel):
    """Why a request was refused. `request_id` is that of the X-Request-ID header and of the server's log."""

    detail: str
    request_id: str


class FieldProblem(BaseModel):
    field: str
    problem: str


class FieldRefusal(BaseModel):
    """A request that does not fit, field by field."""

    detail: list[FieldProblem]
    request_id: str


def refusal(scope: Scope, status: int, detail: Any, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a refused request. ASCII only, so that half a character in a field's name can be said back."""
    body = json.dumps({"detail": detail, "request_id": request_id(scope)})
    return Response(body, status, headers, media_type="application/json")


def request_id(scope: Scope) -> str:
    """The id that `serving.log` gave the request; empty outside of it."""
    return scope.get("state", {}).get("request_id", "")


def add_error_handlers(app: FastAPI) -> None:
    """Make everything that FastAPI refuses read like the rest."""
    app.add_exception_handler(RequestValidationError, _explain)
    app.add_exception_handler(HTTPException, _pass_on)


def _explain(request: Request, error: Exception) -> Response:
    """422 in words: which field, and what is wrong with it."""
    assert isinstance(error, RequestValidationError)
    return refusal(request.scope, 422, [_in_words(entry) for entry in error.errors()])


def _in_words(entry: Any) -> dict[str, str]:
    location = [str(part) for part in entry["loc"] if part not in ("body", "query")]
    problem = str(entry["msg"]).removeprefix("Value error, ")
    return {"field": ".".join(location)[:LONGEST_FIELD] or "body", "problem": problem}


def _pass_on(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the path's first route only
        headers["Allow"] = ", ".join(sorted(_methods(request.scope)))
    return refusal(request.scope, error.status_code, error.detail, headers)


def _methods(scope: Scope) -> set[str]:
    """The methods that a request's path can be asked with."""
    fitting = [route for route in scope["app"].routes if route.matches(scope)[0] != Match.NONE]
    return {method for route in fitting for method in route.methods}
