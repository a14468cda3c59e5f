"""What a new shape of a product costs on this CPU in bfloat16, and what it brings the retriever that shapes recur.

    python benchmarks/recurring_shapes.py [--pages 64] [--rounds 3] [--out results/benchmarks]

First the products of the retriever's layers: a number of rows that had not been met before, and the same again, in
milliseconds on one thread, the medians of 15 such numbers. Then pages a second on two threads, a page at a time, as an
index is built: rows as they come, and blank ones added up to the next multiple (`vrag_nb/recurring_shapes.py`), the
best of `--rounds` that alternate, each on pages of its own. Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from tables import tell

from vrag_nb.agent.pages import PageStore
from vrag_nb.profiles import load_profile
from vrag_nb.provenance import hardware
from vrag_nb.records import read_pages
from vrag_nb.retrieval import written_squares
from vrag_nb.retrieval.embedders import Embedder

LAYERS = ((192, 576), (192, 512), (512, 192), (256, 672), (672, 256))  # values in and out
ROWS = range(4001, 5501, 100)
THREADS = 2


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@torch.inference_mode()
def product_row(inside: int, outside: int) -> list[str]:
    weight = torch.randn(outside, inside, dtype=torch.bfloat16)
    met: list[tuple[float, ...]] = []
    for rows in ROWS:
        values = torch.randn(rows, inside, dtype=torch.bfloat16)
        met.append(tuple(seconds(partial(torch.nn.functional.linear, values, weight)) for _ in range(3)))
    first, *_, again = (f"{1e3 * statistics.median(times):.1f} ms" for times in zip(*met, strict=True))
    return [f"{inside} to {outside}, some 5,000 rows", first, again]


def pages_a_second(embedder: Embedder, images: list[Image.Image], multiple: int) -> float:
    written_squares.RECURRING = multiple
    with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return len(images) / seconds(lambda: list(pool.map(lambda one: embedder.embed_pages([one], [""]), images)))


def pages_row(profile_name: str, count: int, rounds: int) -> list[str]:
    profile = load_profile(profile_name)
    embedder, store = profile.load_embedder(), PageStore(profile.corpus_folder)
    listed = [page.page_id for page in read_pages(profile.corpus_folder)]
    recurring = written_squares.RECURRING
    embedder.embed_pages([store.image(listed[-1])], [""])  # the first call of a model is slower than the rest
    best = {1: 0.0, recurring: 0.0}
    for start in range(0, rounds * count, count):
        images = [store.image(page) for page in listed[start : start + count]]
        best = {multiple: max(most, pages_a_second(embedder, images, multiple)) for multiple, most in best.items()}
    return [f"pages a second ({embedder.options['dtype']})", f"{best[1]:.1f}", f"{best[recurring]:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--pages", type=int, default=64, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for recurring_shapes.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [product_row(*layer) for layer in LAYERS]
    rows.append(pages_row(options.profile, options.pages, options.rounds))
    title = f"A product of a new shape, and of one that was met before, {hardware()['cpu']}"
    tell(title, ["what", "new", "met before"], rows, out=options.out)


if __name__ == "__main__":
    main()
