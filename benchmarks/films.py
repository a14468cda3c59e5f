"""Films found by their frames or by their sheets: the nano retriever's two ways to embed a chunk of a video.

    python benchmarks/films.py [--profile nano-vimrag-video] [--questions dev train test] [--out results/films]

A film's questions are asked of all pages and chunks of the corpus, those about a box that is on screen for three
seconds apart from those about the pages filmed. Printed: the share of questions whose chunk is among the first 1, 2, 3
and 5, with a 95% interval (bootstrap over questions, exact where none or all are found), and the size of a chunk in the
index. Frames were the one change tried; all splits were counted before it was kept. An index that is missing is built
first.

Needs the corpus of films (`python -m vrag_nb prep --profile nano-vimrag-video`, or `run nano-video`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tables import tell

from vrag_nb.evaluation.metrics import share_interval
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.records import Question, read_questions
from vrag_nb.retrieval.embedders import load_embedder
from vrag_nb.retrieval.engine import SearchEngine, build_index

DEPTHS = (1, 2, 3, 5)
WAYS = {"frames": True, "sheet": False}
KINDS = {"a box": True, "a page": False}
HEAD = ["questions about", "split", "embedded as", *(f"recall@{k}" for k in DEPTHS), "KB a chunk"]


def opened(profile: Profile, frames: bool) -> SearchEngine:
    """The engine of the profile's retriever with this way of taking chunks, its index beside the profile's own."""
    spec = profile.retriever
    embedder = load_embedder(spec.kind, spec.checkpoint, **{**spec.options, "frames": frames})
    folder = profile.corpus_folder / "indexes" / f"{spec.kind}-{'frames' if frames else 'sheets'}"
    build_index(profile.corpus_folder, folder, embedder)
    return SearchEngine.open(profile.corpus_folder, folder, embedder)


def chunk_kilobytes(engine: SearchEngine) -> float:
    chunks = [page.page_id for page in engine.pages.values() if page.video]
    sizes = [engine.index.vectors(engine.index.row_of[name]).nbytes for name in chunks]  # type: ignore[attr-defined]
    return sum(sizes) / len(sizes) / 1e3


def asked(profile: Profile, split: str) -> dict[str, list[Question]]:
    questions = read_questions(profile.corpus_folder / f"questions.video-{split}.parquet")
    return {
        name: [one for one in questions if (one.meta_info.source_type == "overlay") is box]
        for name, box in KINDS.items()
    }


def rows_of(
    way: str, engine: SearchEngine, size: float, split: str, questions: dict[str, list[Question]]
) -> Iterator[list[str]]:
    for name, some in questions.items():
        hits = engine.search([one.query for one in some], top_k=max(DEPTHS))
        found = [[hit.page_id in one.gold_page_ids for hit in ranked] for one, ranked in zip(some, hits, strict=True)]
        shares = [share_interval([float(any(ranks[:depth])) for ranks in found]) for depth in DEPTHS]
        told = [f"{share.value:.2f} [{share.low:.2f}, {share.high:.2f}]" for share in shares]
        yield [f"{name} ({len(some)})", split, way, *told, f"{size:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano-vimrag-video")
    parser.add_argument("--questions", nargs="+", choices=["train", "dev", "test"], default=["dev", "train", "test"])
    parser.add_argument("--out", type=Path, help="folder for the table as films.md")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    engines = {way: opened(profile, frames) for way, frames in WAYS.items()}
    sizes = {way: chunk_kilobytes(engine) for way, engine in engines.items()}
    rows = [
        row
        for split in options.questions
        for way, engine in engines.items()
        for row in rows_of(way, engine, sizes[way], split, asked(profile, split))
    ]
    rows.sort(key=lambda row: (row[0].split(" (")[0], options.questions.index(row[1])))
    tell(f"Chunks of films among {len(engines['frames'].pages)} pages and chunks", HEAD, rows, out=options.out)


if __name__ == "__main__":
    main()
