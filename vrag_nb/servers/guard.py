"""A server's guard: ends it, and all it started, when the process that wanted it is gone.

    python vrag_nb/servers/guard.py SECONDS COMMAND...

Starts COMMAND in a session of its own. The one who wants it holds the other end of this process's standard input: when
that closes, or at SIGTERM or SIGINT, every process of the command is sent SIGTERM and, SECONDS later, SIGKILL. A pipe
closes however its owner ends, so nothing stays behind after `kill -9` of a run. The exit status is the command's, or
128 and a signal's number.

Linux keeps orphans with the guard (PR_SET_CHILD_SUBREAPER), so a process that left its group is found as well, and the
command itself is told when the guard is killed (PR_SET_PDEATHSIG). Elsewhere the command's process group is what ends.
Standard library only, and no import of the package: the guard costs one small process a server.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_POLL = 0.05  # seconds
NOT_STARTED = 127  # as a shell has it: there is no such command


def guard(command: list[str], grace: float) -> int:
    """Run `command` until it ends or its owner does; its exit status as `subprocess` gives it."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wake = _signals_as_bytes()
    try:  # one thread lives here, so a function between fork and exec is safe
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with(os.getpid())
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        return NOT_STARTED
    while child.poll() is None:
        ready, _, _ = select.select([0, wake], [], [])  # nobody ever writes to 0: ready means closed
        if 0 in ready or _ENDING.intersection(os.read(wake, 64)):
            break
    end_family(child, grace)
    return child.wait()


def end_family(child: subprocess.Popen[bytes], grace: float) -> None:
    """SIGTERM to everything the child started and, after `grace` seconds, SIGKILL; returns when all of it is gone."""
    _send(child, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while _alive(child):
        if time.monotonic() > deadline:
            _send(child, signal.SIGKILL)
        time.sleep(_POLL)


def _send(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
    for pid in _descendants():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _alive(child: subprocess.Popen[bytes]) -> bool:
    """Whether anything the child started still runs; orphans that ended are reaped on the way."""
    if child.poll() is None:
        return True
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if Path("/proc/self/stat").exists():
        return bool(_descendants())
    try:
        os.killpg(child.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants() -> list[int]:
    """Every process below this one that has not ended; none where there is no /proc to read."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]  # a name may hold anything
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, looked_at = [], [os.getpid()]
    while looked_at:
        below = children.get(looked_at.pop(), [])
        found += below
        looked_at += below
    return found


def _signals_as_bytes() -> int:
    """A descriptor to read the numbers of arriving signals from: a child's end among them wakes the guard."""
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (*_ENDING, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return wake


def _die_with(guard_pid: int) -> Callable[[], None]:
    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guard_pid:  # it went before this was said
            os._exit(NOT_STARTED)

    return prepare


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main(arguments: list[str]) -> int:
    """`SECONDS COMMAND...`; 128 and its number for a signal that ended the command, as a shell has it."""
    status = guard(arguments[1:], float(arguments[0]))
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
