"""One server's process: started, waited for until it is healthy, watched, stopped with all that it started."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from vrag_nb.paths import shown_path
from vrag_nb.servers import guard
from vrag_nb.servers.declared import ServerPart

LAST_WORDS = 20  # lines of a log
_POLL = 0.2  # seconds
_PATIENCE = 10.0  # seconds for one answer to a question after health, and for a guard beyond its server's stop_limit
_SECRET = re.compile(r"(?:^|_)(?:API)?(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)S?(?:_|$)", re.IGNORECASE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ServerError(RuntimeError):
    """A server that cannot be had; the text has its command, its exit code and the end of its log."""


class Server:
    """One declared server: its process, from `start` to `stop`. Its log goes to `folder`."""

    def __init__(self, name: str, part: ServerPart, places: Mapping[str, Any], folder: Path) -> None:
        self.name, self.part, self.folder, self._places = name, part, folder, places
        self.url = ""
        self._command: list[str] = []
        self._health = ""
        self._guard: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped; it may have ended by itself since (`problem`)."""
        return self._guard is not None

    def start(self) -> None:
        """Start its process, without waiting. Raises ServerError for a port that is taken or a variable not set."""
        port = self.part.port or _free_port()
        if not _is_free(port):
            raise ServerError(
                f"server {self.name}: port {port} is taken on this machine; stop what listens there, or take `port` "
                "out of its declaration for a free one"
            )
        self.url = f"http://127.0.0.1:{port}"
        self._command, self._health = self.part.filled(self._places, port)
        environment = self._environment()
        _prepare(self.folder)
        if self.log.is_file():
            self.log.replace(self.log.with_name(f"{self.name}.previous.log"))
        guarded = [sys.executable, "-I", "-S", guard.__file__, str(self.part.stop_limit), *self._command]
        with self.log.open("wb") as log:
            self._guard = subprocess.Popen(
                guarded,
                stdin=subprocess.PIPE,  # held open: it closes when this process ends, however that is
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C in a terminal is for us to pass on
            )
        self._started = time.monotonic()

    def wait(self, console: Console) -> None:
        """Wait until it is healthy, with a line that says so. Raises ServerError when it ends or the limit is over."""
        head, limit = f"server {self.name}", self.part.start_limit
        console.print(f"{head}: starting; its log: {shown_path(self.log)}", markup=False, highlight=False)
        with console.status(f"{head}: waiting") as status:
            while (answer := _answer(self._health)) != "200":
                if problem := self.problem():
                    raise ServerError(problem)
                seconds = time.monotonic() - self._started
                if seconds > limit:
                    raise ServerError(
                        f"{head} was not healthy within {limit:g} s (start_limit): {self._health} answers {answer}; "
                        f"{self._account()}"
                    )
                status.update(f"{head}: {answer} after {seconds:.0f} of at most {limit:g} s")
                time.sleep(_POLL)
        if problem := self.problem():  # then it was another that answered
            raise ServerError(problem)
        seconds = time.monotonic() - self._started
        console.print(f"{head}: healthy after {seconds:.0f} s, {self.url}", markup=False, highlight=False)

    def problem(self) -> str | None:
        """How it ended although it should run; None while it does."""
        code = self._guard.poll() if self._guard else None
        if code is None:
            return None
        return f"server {self.name} ended with exit code {code}{_by_signal(code)}; {self._account()}"

    def release(self) -> None:
        """Tell it to stop, without waiting."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()

    def stop(self) -> None:
        """Stop it and wait until all of its processes are gone."""
        self.release()
        if self._guard is None:
            return
        try:
            self._guard.wait(self.part.stop_limit + _PATIENCE)
        except subprocess.TimeoutExpired:  # a process that not even SIGKILL ends waits for the kernel
            self._guard.kill()
            self._guard.wait()
        self._guard = None

    def _account(self) -> str:
        words = "\n".join(f"    {line}" for line in last_words(self.log)) or "    (nothing)"
        return f"command: {' '.join(self._command)}\nlast words, of {shown_path(self.log)}:\n{words}"

    def _environment(self) -> dict[str, str]:
        missing = [name for name in self.part.pass_on if name not in os.environ]
        if missing:
            raise ServerError(f"server {self.name} needs the environment variable {missing[0]}, which is not set")
        passed = {
            name: value for name, value in os.environ.items() if name in self.part.pass_on or not _SECRET.search(name)
        }
        beside = str(Path(sys.executable).parent)  # programs of this Python's environment are found by their names
        passed["PATH"] = f"{beside}{os.pathsep}{passed.get('PATH', os.defpath)}"
        return {**passed, **self.part.variables}


def last_words(log: Path, lines: int = LAST_WORDS) -> list[str]:
    """The last lines of a log that are not empty, without colours and what a progress bar wrote over; none where there
    is no log."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 64 * 1024))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    cleaned = (_COLOURS.sub("", line).rstrip().rpartition("\r")[2] for line in text.split("\n"))
    return [line for line in cleaned if line][-lines:]


def _answer(address: str) -> str:
    """The status that the address answers with, as text, or why there is none."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=_PATIENCE) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"nothing ({getattr(reason, 'strerror', None) or reason})"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    """Whether nothing listens on the port; connections that just ended do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _by_signal(code: int) -> str:
    """The signal in an exit code of a shell's kind, or of `subprocess`'s."""
    number = -code if code < 0 else code - 128
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return " (there is no such command)" if code == guard.NOT_STARTED else ""


def _prepare(folder: Path) -> None:
    """Logs hold this machine's paths: git is told to leave them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")
