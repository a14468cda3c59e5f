"""What the nano retriever's searches gain beside its training: no augmentation tokens, hubs held down, tokens weighed.

    python benchmarks/hubness.py [--profile nano] [--split dev] [--weights 0.25 0.5 0.75 1] [--out results/hubness]

Every row ranks all pages of the profile's index for the questions of a split, with the same page vectors:

- `as trained`: MaxSim over a query's tokens and the augmentation tokens that colpali-engine adds to a query;
- `no augmentation`: without these;
- `hubness w`: of a page's hubness (`retrieval.hubness`), w taken off;
- `weighed`: tokens by what they are worth (`retrieval.query_weights`), learned on the training split.

Printed: recall@1, 3 and 5, and recall@1 among the pages of the question's own document, each with a 95% bootstrap
interval over questions. The shipped weight was chosen on the development split.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tables import bracketed, tell

from vrag_nb.evaluation.metrics import recall_at_k, share_interval
from vrag_nb.profiles import load_profile
from vrag_nb.records import Question
from vrag_nb.retrieval.colpali import ColpaliEngineEmbedder
from vrag_nb.retrieval.engine import SearchEngine
from vrag_nb.retrieval.index import MultiVectorIndex

CUTS = (1, 3, 5)
HEAD = ["scores", *(f"recall@{cut}" for cut in CUTS), "recall@1 in document"]


def measure(engine: SearchEngine, questions: Sequence[Question]) -> list[str]:
    """A row of the table."""
    gold = {question.uid: question.gold_page_ids for question in questions}
    everywhere, inside = {}, {}
    for question, hits in zip(questions, engine.search([q.query for q in questions], len(engine.pages)), strict=True):
        everywhere[question.uid] = [hit.page_id for hit in hits]
        inside[question.uid] = [n for n in everywhere[question.uid] if engine.page(n).document == question.document]
    found = [recall_at_k(everywhere, gold, cut) for cut in CUTS] + [recall_at_k(inside, gold, 1)]
    return [bracketed(share_interval(list(recall.values()))) for recall in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano")
    parser.add_argument("--split", choices=("dev", "test"), default="dev")
    parser.add_argument("--weights", type=float, nargs="*", default=[0.25, 0.5, 0.75, 1.0])
    parser.add_argument("--out", type=Path, help="folder for the table as SPLIT.md")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    profile.build_index()
    engine = profile.open_engine()
    embedder, index = engine.embedder, engine.index
    if not (isinstance(embedder, ColpaliEngineEmbedder) and isinstance(index, MultiVectorIndex)):
        raise SystemExit(
            f"profile {options.profile}: {embedder.name} is no late-interaction embedder of colpali-engine"
        )
    asked = profile.questions() if options.split == "test" else profile.dev_questions(limit=100_000)
    questions = [question for question in asked if question.gold_page_ids]
    suffix, embedder.query_suffix = embedder.query_suffix, None
    worth, embedder.query_weights = embedder.query_weights, None
    index.hubness_weight = 0
    rows = [["as trained", *measure(engine, questions)]]
    embedder.query_suffix = suffix
    ways = [("no augmentation" if suffix == "" else "as searched", None), *([("weighed", worth)] if worth else [])]
    for name, embedder.query_weights in ways:
        for weight in (0.0, *options.weights):
            index.hubness_weight = weight
            rows.append([f"{name}, hubness {weight:g}", *measure(engine, questions)])
    told = f"{len(questions)} {options.split} questions, {len(index.page_ids)} pages, profile {profile.name}"
    tell(f"Hubs, and what tokens are worth, {told}", HEAD, rows, out=options.out, name=options.split)


if __name__ == "__main__":
    main()
