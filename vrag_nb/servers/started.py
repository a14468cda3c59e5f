"""Servers that a run needs: started before the notebooks that ask them, waited for, watched, stopped.

    runs:
      7b:
        profile: 7b
        servers:
          policy:
            command: [vllm, serve, "{policy}", --port, "{port}", --tensor-parallel-size, "4"]
            notebooks: [03_agent_rollout, 07_evaluation]

A server listens on this machine, on a free port unless it names one. While it runs, its address is in the environment
as VRAG_SERVER_POLICY_URL, and a profile says `base_url: "{servers.policy.url}/v1"`: the port is no part of a profile,
so nothing becomes out of date when it changes. **One's own server**, perhaps on another machine: set that variable, and
the run starts none.

Servers start one after the other, in the order in which they are declared, each when the one before is healthy: what
others allocate on its card while vLLM starts, it counts as its own, and has so much less of a cache for keys and
values. What shares a card with it is therefore declared before it.

A server runs while notebooks that need it are executed, one after the other, and is stopped when one follows that does
not: a model that is served and a model that is trained need not share a GPU. What it prints goes to
`{results}/servers/NAME.log`; that of the start before stays as `NAME.previous.log`. When it ends too early or does not
become healthy, ServerError has the command, the exit code and its last words.

Nothing stays behind: each server has a guard (`servers.guard`) that ends all of its processes when this one stops it,
fails, is interrupted or is killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from vrag_nb.servers.addresses import address_variable
from vrag_nb.servers.declared import ServerPart, needs
from vrag_nb.servers.process import Server, ServerError


class Servers:
    """The servers of a run, as a context that leaves none behind. `places`: what placeholders mean (`ServerPart`)."""

    def __init__(
        self, parts: Mapping[str, ServerPart], places: Mapping[str, Any], folder: Path, console: Console | None = None
    ) -> None:
        own = {name for name in parts if os.environ.get(address_variable(name))}
        self._servers = {name: Server(name, part, places, folder) for name, part in parts.items() if name not in own}
        self._console = console or Console()
        for name in sorted(own):
            self._console.print(f"server {name}: your own, as {address_variable(name)} is set", highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop(list(self._servers.values()))

    def provide(self, notebook: str) -> None:
        """Stop the servers that `notebook` does not need and have those running that it does.

        Raises ServerError for one that ended or does not become healthy; those after it are then not started.
        """
        needed = [one for one in self._servers.values() if needs(one.part, notebook)]
        self._stop([one for one in self._servers.values() if one.running and one not in needed])
        if problem := self.problem():
            raise ServerError(problem)
        new = [one for one in needed if not one.running]
        for one in new:
            one.start()
            one.wait(self._console)
            os.environ[address_variable(one.name)] = one.url
        if new:
            _ask_directly()

    def problem(self) -> str | None:
        """How a running server ended, and with what last words; None while all run."""
        return next((problem for one in self._servers.values() if (problem := one.problem())), None)

    def _stop(self, servers: Sequence[Server]) -> None:
        for one in servers:  # all are told before one is waited for, so a second Ctrl-C leaves none
            one.release()
        for one in servers:
            if one.running:
                os.environ.pop(address_variable(one.name), None)
                one.stop()


def _ask_directly() -> None:
    """Have clients ask this machine's servers themselves, where the environment names a proxy for everything else."""
    for name in ("NO_PROXY", "no_proxy"):
        known = [host for host in os.environ.get(name, "").split(",") if host]
        if "127.0.0.1" not in known:
            os.environ[name] = ",".join([*known, "127.0.0.1"])
