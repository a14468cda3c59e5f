"""A server as a run declares it, and whether the declaration fits the run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints

from vrag_nb.profile_parts import Part
from vrag_nb.servers.addresses import address_variable, named_servers

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")  # the braces of JSON in a command are none
ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


class ServerPart(Part):
    """A server of a run. In `command` and `health`, {port}, {url}, {python} (this one), {profile}, {profiles_file},
    {policy} (a folder or hub id), {model} (the name the policy asks for), {max_pixels} (of an image that the agent
    shows), {base}, {index}, {corpus}, {retriever} and {results} are filled in.

    health: the address that answers 200 when it is ready. port: a free one unless given. start_limit, stop_limit:
    seconds until it must be healthy, and between SIGTERM and SIGKILL. variables: set for it. pass_on: variables with
    keys or tokens that it may see; of others it sees all whose names do not look like a secret. notebooks: those that
    need it; by default all of the run.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)

    command: list[str] = Field(min_length=1)
    health: str = "{url}/health"
    port: int | None = Field(default=None, ge=1, le=65535)
    start_limit: float = Field(default=600, gt=0)
    stop_limit: float = Field(default=20, gt=0)
    variables: dict[str, str] = Field(default_factory=dict)
    pass_on: list[str] = Field(default_factory=list)
    notebooks: list[str] | None = None

    def filled(self, places: Mapping[str, Any], port: int) -> tuple[list[str], str]:
        """The command and the health address on `port`. Raises ValueError naming a placeholder that is none."""
        known = {**places, "port": port, "url": f"http://127.0.0.1:{port}", "python": sys.executable}

        def value(found: re.Match[str]) -> str:
            if found[1] not in known:
                raise ValueError(f"there is no {found[0]} to fill in; known: {', '.join(known)}")
            return str(known[found[1]])

        return [_PLACEHOLDER.sub(value, word) for word in self.command], _PLACEHOLDER.sub(value, self.health)


def needs(part: ServerPart, notebook: str) -> bool:
    """Whether a notebook needs the server."""
    return part.notebooks is None or notebook in part.notebooks


def check_servers(
    parts: Mapping[str, ServerPart], notebooks: Iterable[str], places: Mapping[str, Any], fields: Any
) -> None:
    """Raise ValueError, naming the field, where declarations do not fit a run's notebooks and placeholders, or where
    the profile's `fields` ask a server that is neither declared nor anybody's own."""
    known = list(notebooks)
    for name, part in parts.items():
        unknown = [notebook for notebook in part.notebooks or [] if notebook not in known]
        if unknown:
            raise ValueError(
                f"field servers.{name}.notebooks: {unknown[0]!r} is none of the run's; known: {', '.join(known)}"
            )
        try:
            part.filled(places, port=1)
        except ValueError as error:
            raise ValueError(f"field servers.{name}: {error}") from None
    for name in sorted(named_servers(fields) - set(parts)):
        if not os.environ.get(address_variable(name)):
            raise ValueError(
                f"its profile asks the server {name!r}, which the run does not declare; "
                f"declared: {', '.join(parts) or 'none'}; for one of your own set {address_variable(name)}"
            )
