"""A process pool that outlives its workers.

A renderer is C code fed with strangers' files: one file can end the process that reads it (a crash, the kernel's
out-of-memory killer), and a broken `ProcessPoolExecutor` takes every queued task down with it. Here the tasks that
were under way when a worker died are run again, each alone in a process of its own, so that only the guilty one fails;
the rest goes on in a new pool.

A file can also keep its reader busy for ever. With a time limit the worker watches itself: `faulthandler`'s thread is
C and needs no interpreter lock, so it also ends a process that hangs inside a library. It leaves a note first, by which
the guilty task is told from those that ran beside it.

Workers are spawned, never forked: a notebook's kernel has threads (torch, tqdm, the kernel's own), and a forked child
can inherit a lock that nobody will ever open. A script calling this needs the usual `if __name__ == "__main__":`.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkerDied:
    """Stands where a result should be: the process that worked on the task ended without an answer."""

    reason: str = "the process reading it died (a crash in the renderer, or out of memory)"

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class TimedOut(WorkerDied):
    """The process was ended because the task took longer than the pool's time limit."""

    reason: str = "took too long and was given up"


@dataclass(frozen=True)
class TaskRaised(WorkerDied):
    """The task raised an exception that it was not prepared for."""

    reason: str = "cannot be read"


def available_cores() -> int:
    """The cores this process may use, which in a container or under taskset is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TaskPool:
    """Spawned worker processes, kept from one `run` to the next; a context manager.

    `start` runs once in every worker. Processes start with the first task. `time_limit`: seconds that a task may take
    from its start in a worker; None is no limit.
    """

    def __init__(self, workers: int, start: Callable[[], None] | None = None, time_limit: float | None = None) -> None:
        self._workers, self._start, self._time_limit = workers, start, time_limit
        self._pool: ProcessPoolExecutor | None = None
        self._notes: tempfile.TemporaryDirectory[str] | None = None
        self._started = 0  # tasks so far

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()
        if self._notes is not None:
            self._notes.cleanup()
            self._notes = None

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[Task],
        instead: Callable[[Task], WorkerDied | None] | None = None,
    ) -> Iterator[tuple[Task, Result | WorkerDied]]:
        """`(task, function(task))` in order of completion.

        `function`, tasks and results must be picklable. A worker's death is a WorkerDied in the place of the result,
        TimedOut where it was the time limit; an exception raised by `function` is a TaskRaised. `instead` is asked
        before a task begins: what it gives is the result, and the task is not run.
        """
        waiting = deque(tasks)
        while waiting:
            suspects = yield from self._run_until_crash(function, waiting, instead)
            slow = [(task, found) for task, note in suspects if (found := self._given_up(note))]
            yield from slow
            if slow:  # the guilty are known: the others only ran beside them
                waiting.extendleft(task for task, note in suspects if not self._given_up(note))
                continue
            for task, _ in suspects:
                yield task, self._run_alone(function, task)

    def _run_until_crash(
        self,
        function: Callable[[Task], Result],
        waiting: deque[Task],
        instead: Callable[[Task], WorkerDied | None] | None,
    ) -> Generator[tuple[Task, Result | WorkerDied], None, list[tuple[Task, Path | None]]]:
        """Work `waiting` off; on a crash, stop and return the tasks that were under way, and where their notes are."""
        pool = self._open()
        running: dict[Future[Result], tuple[Task, Path | None]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self._workers:  # few under way, so few suspects
                    if instead and (known := instead(waiting[0])):
                        yield waiting.popleft(), known
                        continue
                    note = self._next_note()
                    running[pool.submit(self._limited(function, note), waiting[0])] = waiting[0], note
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    result = _result(future)
                    yield running.pop(future)[0], result
        except BrokenProcessPool:
            self._close()
            return list(running.values())
        return []

    def _run_alone(self, function: Callable[[Task], Result], task: Task) -> Result | WorkerDied:
        note = self._next_note()
        with _new_pool(1, self._start) as pool:
            try:
                return _result(pool.submit(self._limited(function, note), task))
            except BrokenProcessPool:
                return self._given_up(note) or WorkerDied()

    def _next_note(self) -> Path | None:
        """Where a worker says that its task ran out of time."""
        if self._time_limit is None:
            return None
        if self._notes is None:
            self._notes = tempfile.TemporaryDirectory(prefix="vrag-workers-")
        self._started += 1
        return Path(self._notes.name) / str(self._started)

    def _limited(self, function: Callable[[Task], Result], note: Path | None) -> Callable[[Task], Result]:
        if self._time_limit is None or note is None:
            return function
        return partial(_within, function, self._time_limit, note)

    def _given_up(self, note: Path | None) -> TimedOut | None:
        if note is None or not note.is_file() or note.stat().st_size == 0:
            return None
        return TimedOut(f"took longer than {self._time_limit:g} s and was given up")

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = _new_pool(self._workers, self._start)
        return self._pool

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _within(function: Callable[[Task], Result], seconds: float, note: Path, task: Task) -> Result:
    """`function(task)`, in a worker; past the time limit the note is written and the process ends."""
    with note.open("w") as file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            return function(task)
        finally:
            faulthandler.cancel_dump_traceback_later()
            note.unlink()


def _result(future: Future[Result]) -> Result | TaskRaised:
    """Waits for it. Raises BrokenProcessPool when a worker died."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        return TaskRaised(f"cannot be read: {type(error).__name__}{': ' * bool(said)}{said}")


def _new_pool(workers: int, start: Callable[[], None] | None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start)
