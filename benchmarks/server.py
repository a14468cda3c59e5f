"""Requests a second of the search server under many clients, with batching and without, and of one client alone.

    python benchmarks/server.py --clients 64 --seconds 60 [--out results/benchmarks]

Starts the real server (`python -m vrag_nb serve`) on this machine, on the profile's index, and sends it the profile's
questions, one a request. Every client waits for its answer before it asks again. Three rows of one run: many clients
on the batching server, the same clients on a server with batching switched off, one client on the batching server.
Throughput is answers over the time until the last one. Whatever the load, a question must find the same pages: the
answers of all rows are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from tables import tell

from vrag_nb.profiles import load_profile

Pages = list[tuple[str, float]]  # page ids and scores, best first


@dataclass
class Load:
    """What one row saw. `answers`: what each question found; `differing`: questions that found two things."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Pages] = field(default_factory=dict)
    queries_a_batch: float = 0.0

    def row(self, name: str, clients: int) -> list[str]:
        p50, p95 = np.percentile(self.latencies, [50, 95]) if self.latencies else (float("nan"), float("nan"))
        count = len(self.latencies)
        return [
            name,
            str(clients),
            str(count),
            str(sum(self.errors.values())),
            f"{count / self.seconds:.2f}",
            f"{p50:.2f}",
            f"{p95:.2f}",
            f"{self.queries_a_batch:.1f}",
        ]


@contextmanager
def server(profile: str, *options: str) -> Iterator[str]:
    """A server of its own; its address. Raises RuntimeError with the end of its log when it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vrag_nb", "serve", "--profile", profile, "--port", str(port), *options]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _healthy(url):
                if process.poll() is not None:
                    raise RuntimeError(f"the server did not start:\n{Path(log.name).read_text()[-2000:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def put_under_load(url: str, questions: list[str], clients: int, seconds: float, top_k: int) -> Load:
    """So many clients ask for so many seconds, each one question after another; what has begun is finished."""
    before = _batches(url)
    load = asyncio.run(_ask_all(url, questions, clients, seconds, top_k))
    queries, batches = (after - first for after, first in zip(_batches(url), before, strict=True))
    load.queries_a_batch = queries / max(batches, 1)
    return load


async def _ask_all(url: str, questions: list[str], clients: int, seconds: float, top_k: int) -> Load:
    load, following = Load(), itertools.cycle(questions)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as browser:
        started = time.perf_counter()

        async def ask() -> None:
            while time.perf_counter() - started < seconds:
                await _ask(browser, next(following), top_k, load)

        await asyncio.gather(*(ask() for _ in range(clients)))
        load.seconds = time.perf_counter() - started
    return load


async def _ask(browser: httpx.AsyncClient, question: str, top_k: int, load: Load) -> None:
    began = time.perf_counter()
    try:
        answer = await browser.post("/search", json={"queries": [question], "top_k": top_k})
    except httpx.HTTPError as error:
        load.errors[type(error).__name__] += 1
        return
    if answer.status_code != 200:
        load.errors[str(answer.status_code)] += 1
        return
    load.latencies.append(time.perf_counter() - began)
    found = [(hit["page_id"], hit["score"]) for hit in answer.json()["results"][0]]
    if len(found) != top_k:
        load.errors["short answer"] += 1
    load.answers[question] = found


def _batches(url: str) -> tuple[float, float]:
    """Queries searched so far, and searches."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(values["vrag_batch_queries_sum"]), float(values["vrag_batch_queries_count"])


def compare(loads: list[Load]) -> str:
    """How the rows' answers to the same questions differ."""
    shared = differing = 0
    furthest = 0.0
    for one, other in itertools.combinations(loads, 2):
        for question in one.answers.keys() & other.answers.keys():
            first, second = one.answers[question], other.answers[question]
            shared += 1
            differing += [page for page, _ in first] != [page for page, _ in second]
            furthest = max([furthest, *(abs(a - b) for (_, a), (_, b) in zip(first, second, strict=False))])
    return f"{shared} answers compared between rows: {differing} with other pages, scores at most {furthest:.1e} apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60, help="of asking, for each row")
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None, help="folder for server.md")
    arguments = parser.parse_args()
    questions = [question.query for question in load_profile(arguments.profile).questions()]
    room = ["--max-requests", str(2 * arguments.clients), "--max-queue", str(max(1024, 2 * arguments.clients))]
    size = (arguments.seconds, arguments.top_k)
    with server(arguments.profile, "--max-batch", str(arguments.max_batch), *room) as url:
        put_under_load(url, questions, 1, 0.01, arguments.top_k)  # the first search pays for reading the index
        together = put_under_load(url, questions, arguments.clients, *size)
        alone = put_under_load(url, questions, 1, *size)
    with server(arguments.profile, "--max-batch", "1", "--max-wait-ms", "0", *room) as url:
        put_under_load(url, questions, 1, 0.01, arguments.top_k)
        apart = put_under_load(url, questions, arguments.clients, *size)
    rows = [
        together.row(f"batches of up to {arguments.max_batch}", arguments.clients),
        apart.row("batching off", arguments.clients),
        alone.row("one request at a time", 1),
    ]
    head = ["server", "clients", "answers", "errors", "answers/s", "p50 s", "p95 s", "queries/search"]
    errors = sum((load.errors for load in (together, apart, alone)), Counter())
    notes = f"errors: {dict(errors) or 'none'}; {compare([together, apart, alone])}"
    tell(f"Search server, {arguments.seconds:g} s each, profile {arguments.profile}", head, rows, notes, arguments.out)


if __name__ == "__main__":
    main()
