"""What a search server can be told: limits, batching, the token. Standard library only, so that `--help` is quick.

    options = ServingOptions(max_batch=16, token="...")
    add_serving_arguments(parser); options = serving_options(parser.parse_args())

A token is never an argument: a process's arguments can be read by everyone on the machine. `--token-env NAME` names the
environment variable that holds it.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field, fields
from typing import Any


def _number(default: float, words: str, least: float = 1) -> Any:
    return field(default=default, metadata={"words": words, "least": least})


def _switch(words: str) -> Any:
    return field(default=False, metadata={"words": words})


@dataclass(frozen=True)
class ServingOptions:
    """Every limit of a search server. Raises ValueError naming the field for a value that does not fit.

    `token`: what a client sends as `Authorization: Bearer TOKEN`; None serves everybody.
    """

    max_queries: int = _number(64, "queries a request")
    max_query_length: int = _number(2000, "characters a query")
    max_top_k: int = _number(100, "pages wanted for a query")
    max_body: int = _number(2 * 2**20, "bytes of a request's body; the greatest request with every character escaped")
    body_timeout: float = _number(30.0, "seconds a client has for sending its request's body", 0.01)
    max_requests: int = _number(256, "requests under way at once; more are refused with 503")
    max_queue: int = _number(1024, "queries waiting for a search; a request that does not fit is refused with 503")
    max_batch: int = _number(32, "queries embedded and searched at once; 1 switches batching off")
    max_wait_ms: float = _number(5.0, "milliseconds a query waits for others to share its search", 0)
    shutdown_timeout: int = _number(30, "seconds that requests under way have to finish when the server is stopped")
    allow_reload: bool = _switch("offer POST /reload: opens the index anew without dropping a request")
    upstream: bool = _switch(
        "answer GET /search, and POST with vrag_ret, as VRAG's own clients read it: lists of {idx, image_file}, "
        "where image_file is a path on this machine"
    )
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least = getattr(self, one.name), one.metadata.get("least")
            if least is not None and not value >= least:
                raise ValueError(f"{one.name} {value} must be {least} or more")
        if self.max_queue < self.max_queries:
            raise ValueError(
                f"max_queue {self.max_queue} is less than max_queries {self.max_queries}: such a request never fits"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ValueError("token must be printable ASCII and not blank: it is sent in a header")
        if self.token is not None and self.token != self.token.strip():
            raise ValueError("token begins or ends with a blank: a header cannot carry that")


def add_serving_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--max-batch`, `--token-env` and the others to a parser."""
    group = parser.add_argument_group("limits and batching")
    for one in fields(ServingOptions):
        flag = "--" + one.name.replace("_", "-")
        if "least" in one.metadata:
            kind = float if isinstance(one.default, float) else int
            words = f"{one.metadata['words']} (default: {one.default})"
            group.add_argument(flag, type=kind, default=one.default, metavar="N", help=words)
        elif "words" in one.metadata:
            group.add_argument(flag, action="store_true", help=one.metadata["words"])
    words = "the environment variable that holds the bearer token clients must send; everything but /health needs it"
    group.add_argument("--token-env", metavar="NAME", help=words)


def serving_options(arguments: argparse.Namespace) -> ServingOptions:
    """The options of parsed arguments. Raises ValueError naming the option or the environment variable."""
    given = {one.name: getattr(arguments, one.name) for one in fields(ServingOptions) if one.name != "token"}
    return ServingOptions(**given, token=_token(arguments.token_env))


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token:
        raise ValueError(f"--token-env: the environment variable {variable} is not set: set it, or leave this out")
    return token
