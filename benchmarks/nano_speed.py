"""Questions and pages a second of the nano models on this machine.

    python benchmarks/nano_speed.py [--questions 48] [--pages 48] [--threads 2] [--out results/benchmarks]

The agent works through questions of the test split in batches, and one question at a time, each with a policy of its
own. The retriever
indexes all pages of the corpus anew as `vrag_nb index` does it, images read and files written, and embeds `--pages` of
them one at a time. Needs the prepared corpus and index (`make run`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tables import tell

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.rollout import World, rollout
from vrag_nb.profiles import Profile, load_profile, sample
from vrag_nb.provenance import hardware
from vrag_nb.records import read_pages
from vrag_nb.retrieval.building import build_index

HEAD = ["what", "n", "together, a second", "one at a time, n", "a second"]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def agent_row(profile: Profile, count: int) -> list[str]:
    environment: World[Any] = profile.load_environment()
    questions = sample(profile.questions(), count)

    def ask(concurrency: int) -> float:
        policy = profile.load_policy()  # its own, or the second one would find what the first one has seen
        try:
            return seconds(lambda: rollout(policy, environment, questions, concurrency=concurrency, progress=False))
        finally:
            policy.close()

    together, single = ask(profile.evaluation.concurrency), ask(1)
    return ["agent, questions", f"{count}", f"{count / together:.2f}", f"{count}", f"{count / single:.2f}"]


def retriever_row(profile: Profile, count: int) -> list[str]:
    embedder, store = profile.load_embedder(), PageStore(profile.corpus_folder)
    listed = read_pages(profile.corpus_folder)
    images = [store.image(page.page_id) for page in listed[:count]]
    embedder.embed_pages(images[:1], [""])  # the first call of a model is slower than the rest
    with tempfile.TemporaryDirectory() as folder:
        together = seconds(lambda: build_index(profile.corpus_folder, Path(folder), embedder, progress=False))
    single = seconds(lambda: [embedder.embed_pages([image], [""]) for image in images])
    label = f"retriever ({embedder.options['dtype']}), pages"
    return [label, f"{len(listed)}", f"{len(listed) / together:.2f}", f"{count}", f"{count / single:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--pages", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for the table as nano_speed.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    profile = load_profile(options.profile)
    rows = [agent_row(profile, options.questions), retriever_row(profile, options.pages)]
    title = f"Questions and pages a second, profile {profile.name}, {hardware()['cpu']}, {options.threads} threads"
    tell(title, HEAD, rows, out=options.out)


if __name__ == "__main__":
    main()
