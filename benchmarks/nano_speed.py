"""Questions and pages a second of the nano models on this machine.

    python benchmarks/nano_speed.py [--questions 48] [--pages 96] [--threads 2]

The agent works through questions of the test split in batches, and one question at a time beside it; the retriever
embeds pages of the corpus in batches and one at a time. Needs the prepared corpus and index (`make run`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.rollout import World, rollout
from vrag_nb.profiles import load_profile, sample
from vrag_nb.records import read_pages


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--pages", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    profile = load_profile(options.profile)
    agent, embedder = profile.load_agent(), profile.load_embedder()
    environment: World[Any] = agent.environment
    questions = sample(profile.questions(), options.questions)
    store = PageStore(profile.corpus_folder)
    ids = [page.page_id for page in read_pages(profile.corpus_folder)[: options.pages]]
    images = [store.image(page_id) for page_id in ids]

    def ask(concurrency: int) -> Callable[[], object]:
        return lambda: rollout(agent.policy, environment, questions, concurrency=concurrency, progress=False)

    def embed(batch: int) -> Callable[[], object]:
        return lambda: [embedder.embed_pages(images[i : i + batch], [""] * batch) for i in range(0, len(images), batch)]

    embed(2)()  # the first call of a model is slower than the rest
    table = Table("what", "n", "batched, a second", "one at a time, a second", title=f"{options.threads} threads")
    for name, count, work, batch in (
        ("agent, questions", len(questions), ask, profile.evaluation.concurrency),
        ("retriever, pages", len(images), embed, 2),
    ):
        table.add_row(name, str(count), f"{count / seconds(work(batch)):.2f}", f"{count / seconds(work(1)):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
