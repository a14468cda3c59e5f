"""A process pool that outlives its workers.

A renderer is C code fed with strangers' files: one file can end the process that reads it (a crash, the kernel's
out-of-memory killer), and a broken `ProcessPoolExecutor` takes every queued task down with it. Here the tasks that
were under way when a worker died are run again, each alone in a process of its own, so that only the guilty one fails;
the rest goes on in a new pool.

Workers are spawned, never forked: a notebook's kernel has threads (torch, tqdm, the kernel's own), and a forked child
can inherit a lock that nobody will ever open. A script calling this needs the usual `if __name__ == "__main__":`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkerDied:
    """Stands where a result should be: the process that worked on the task ended without an answer."""

    reason: str = "the process reading it died (a crash in the renderer, or out of memory)"

    def __str__(self) -> str:
        return self.reason


def available_cores() -> int:
    """The cores this process may use, which in a container or under taskset is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class TaskPool:
    """Spawned worker processes, kept from one `run` to the next; a context manager.

    `start` runs once in every worker. Processes start with the first task.
    """

    def __init__(self, workers: int, start: Callable[[], None] | None = None) -> None:
        self._workers, self._start = workers, start
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def run(
        self, function: Callable[[Task], Result], tasks: Iterable[Task]
    ) -> Iterator[tuple[Task, Result | WorkerDied]]:
        """`(task, function(task))` in order of completion.

        `function`, tasks and results must be picklable. An exception raised by `function` is raised here; a worker's
        death is a WorkerDied in the place of the result.
        """
        waiting = deque(tasks)
        while waiting:
            suspects = yield from self._run_until_crash(function, waiting)
            for task in suspects:
                yield task, self._run_alone(function, task)

    def _run_until_crash(
        self, function: Callable[[Task], Result], waiting: deque[Task]
    ) -> Generator[tuple[Task, Result | WorkerDied], None, list[Task]]:
        """Work `waiting` off; on a crash, stop and return the tasks that were under way."""
        pool = self._open()
        running: dict[Future[Result], Task] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self._workers:  # few under way, so few suspects
                    running[pool.submit(function, waiting[0])] = waiting[0]
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool:
            self._close()
            return list(running.values())
        return []

    def _run_alone(self, function: Callable[[Task], Result], task: Task) -> Result | WorkerDied:
        with _new_pool(1, self._start) as pool:
            try:
                return pool.submit(function, task).result()
            except BrokenProcessPool:
                return WorkerDied()

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = _new_pool(self._workers, self._start)
        return self._pool

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _new_pool(workers: int, start: Callable[[], None] | None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=start)
