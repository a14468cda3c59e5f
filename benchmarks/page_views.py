"""What it brings the nano retriever to see a page several times or in halves, and to leave out bare squares.

    python benchmarks/page_views.py [--profile nano] [--ways 640x1 640x2 ...] [--out results/page_views]

A way SxV sees every page V times at up to S squares, and as often at a smaller size
(`retrieval.nano_embedders.NanoColQwen25`); its score is the mean over the views. The second view is the page's halves,
with `+moved` the page moved a little. `+bare` embeds the squares without anything on them too. Each way embeds all
pages of the profile's corpus anew, one way after the other, and ranks them for the development questions. Printed:
recall@1, 3 and 5 with 95% bootstrap intervals over questions, the vectors of a page, and the seconds that embedding and
writing it takes, summed over the processor's cores. The shipped way was chosen by these questions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tables import tell

from vrag_nb.evaluation.evaluate import rank_pages, retrieval_metrics
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.records import Question
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index
from vrag_nb.retrieval.index import VectorIndex

CUTS = (1, 3, 5)
WAYS = ["640x1+bare", "640x1", "640x2+moved", "640x3+moved", "640x2", "640x3"]
HEAD = ["squares x views", *(f"recall@{cut}" for cut in CUTS), "vectors a page", "CPU seconds a page"]


def measure(profile: Profile, way: str, questions: list[Question], folder: Path) -> list[str]:
    """A row of the table."""
    size, *changes = way.split("+")
    squares, views = (int(part) for part in size.split("x"))
    retriever = profile.retriever
    options = retriever.options | {"max_visual_tokens": squares, "views": views}
    options |= {"bare": "bare" in changes, "halves": "moved" not in changes}
    embedder = load_embedder(retriever.kind, retriever.checkpoint, **options)
    embedder.embed_queries(["warm up"])
    started = time.process_time()
    built = build_index(profile.corpus_folder, folder, embedder)
    seconds = (time.process_time() - started) / built.embedded
    engine = SearchEngine.open(profile.corpus_folder, folder, embedder)
    assert isinstance(engine.index, VectorIndex)
    found = retrieval_metrics(questions, rank_pages(engine, questions), profile.evaluation.seed)
    recalls = [found[f"recall@{cut}"] for cut in CUTS]
    cells = [f"{one['value']:.3f} [{one['low']:.2f}, {one['high']:.2f}]" for one in recalls]
    return [way, *cells, f"{engine.index.lengths.mean():.0f}", f"{seconds:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--ways", nargs="+", default=WAYS, metavar="SxV")
    parser.add_argument("--out", type=Path, help="folder for the table as dev.md")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    questions = [question for question in profile.dev_questions(limit=100_000) if question.gold_page_ids]
    rows = []
    for way in options.ways:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(profile, way, questions, Path(folder)))
    told = f"{len(questions)} development questions, all pages of the corpus, profile {profile.name}"
    tell(f"Pages seen several times, {told}", HEAD, rows, out=options.out, name="dev")


if __name__ == "__main__":
    main()
