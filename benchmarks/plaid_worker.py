"""Run by `benchmarks/plaid.py` in fast-plaid's own environment: builds its index, asks it, prints JSON.

FOLDER/corpus.npz holds `tokens` (n, dim) float16, page after page, with `lengths`; `queries` and `query_lengths` alike.
The last line printed: build_seconds, disk_bytes, and for each number of pages scored in full and of cells probed the
rows found and the seconds of every query.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nbits", type=int, required=True)
    parser.add_argument("--top", type=int, required=True)
    parser.add_argument("--full", type=int, nargs="+", required=True)
    parser.add_argument("--probes", type=int, nargs="+", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    from fast_plaid import search  # type: ignore[import-not-found]  # only in its own environment

    torch.set_num_threads(options.threads)
    stored = np.load(options.folder / "corpus.npz")
    tokens, queries = torch.from_numpy(stored["tokens"]), torch.from_numpy(stored["queries"])
    pages = [page.float() for page in tokens.split(stored["lengths"].tolist())]
    asked = queries.split(stored["query_lengths"].tolist())
    place = options.folder / f"plaid-{options.nbits}"
    index = search.FastPlaid(index=str(place), device="cpu")
    started = time.perf_counter()
    # 0: keep no copy of the vectors for the rebuilding of a small index, which would count as the index's bytes
    index.create(documents_embeddings=pages, nbits=options.nbits, start_from_scratch=0)
    built = time.perf_counter() - started
    runs = []
    for full, probes in itertools.product(options.full, options.probes):
        settings = {"top_k": options.top, "n_full_scores": full, "n_ivf_probe": probes, "show_progress": False}
        for _ in range(2):  # the first round warms the files
            seconds, found = [], []
            for query in asked:
                started = time.perf_counter()
                [hits] = index.search(query[None], **settings)
                seconds.append(time.perf_counter() - started)
                found.append([int(page) for page, _ in hits])
        runs.append({"full": full, "probes": probes, "seconds": seconds, "found": found})
    disk = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    print(json.dumps({"build_seconds": built, "disk_bytes": disk, "runs": runs}))


if __name__ == "__main__":
    main()
