"""Where a run's servers are to be found: the environment holds their addresses, a profile names them.

    base_url: "{servers.policy.url}/v1"       # in a profile; VRAG_SERVER_POLICY_URL has the address

`started.Servers` sets the variable while a server runs; whoever has one of their own sets it by hand. Addresses are
filled in when a policy, a judge or an engine is made, so a profile is the same whatever port a server got.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_REFERENCE = re.compile(r"\{servers\.([^{}]*)\}")


def address_variable(name: str) -> str:
    """The environment variable that holds the address of the server `name`."""
    return f"VRAG_SERVER_{name.upper()}_URL"


def named_servers(value: Any) -> set[str]:
    """The servers whose addresses a profile's fields name. Raises ValueError for `{servers...}` that is no address."""
    if isinstance(value, Mapping):
        return set().union(*map(named_servers, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(named_servers, value))
    return {_named(found[1]) for found in _REFERENCE.finditer(value)} if isinstance(value, str) else set()


def with_addresses(value: Any) -> Any:
    """`value` with every `{servers.NAME.url}` in its texts filled in. Raises ValueError for a server not running."""
    if isinstance(value, Mapping):
        return {key: with_addresses(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_addresses(one) for one in value]
    return _REFERENCE.sub(lambda found: _address(_named(found[1])), value) if isinstance(value, str) else value


def _named(reference: str) -> str:
    name, _, what = reference.partition(".")
    if what != "url":
        raise ValueError(f"{{servers.{reference}}} is not known; a server has an address: {{servers.{name}.url}}")
    return name


def _address(name: str) -> str:
    variable = address_variable(name)
    if not (address := os.environ.get(variable)):
        raise ValueError(
            f"no server {name!r} is running: a run that declares it starts it for the notebooks it names; for one of "
            f"your own, set {variable} to its address"
        )
    return address.rstrip("/")
