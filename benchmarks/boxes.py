"""Where nano models crop: the gold page of a question is shown, and what the crop they ask for holds.

    python benchmarks/boxes.py [--models DIR ...] [--sources dev drawn foreign] [--questions 60] [--out DIR]

Single-fact questions whose answer is too small on the whole page, after the first search, greedily. The sources are
layouts that nothing is trained on (dev: the corpus' own development split; foreign: development slides of another
engine) and drawn ones: pages of freshly drawn pretraining decks, arranged in many ways. Printed, for each model and
source: how often a crop is asked for, holds the printed answer whole, and lies elsewhere (none of the answer), and the
mean IoU with the gold region, no crop counting as zero; with 95% bootstrap intervals over questions.

Needs the prepared corpus (`make run`).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tables import bracketed, tell
from tqdm import tqdm

from vrag_nb.agent.actions import parse
from vrag_nb.agent.geometry import Box, View, iou
from vrag_nb.agent.policy import Conversation, Image, Message, Text
from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.documents.decks.generate import pretraining_deck
from vrag_nb.evaluation.metrics import bootstrap, share_interval
from vrag_nb.learning.experts import first_turn
from vrag_nb.nano.deck_tasks import BUDGET, DrawnPage, rendered_deck
from vrag_nb.nano.plan import Recipe, split_questions
from vrag_nb.paths import project_path
from vrag_nb.records import Question, read_questions

Deck = tuple[list[DrawnPage], list[Question]]


class Asked(NamedTuple):
    """A conversation before the crop, the view that it shows, and the fact's region and answer in page pixels."""

    conversation: Conversation
    view: View
    region: Box
    answer: Box


def decks(source: str, count: int, rng: random.Random) -> list[Deck]:
    """So many decks of a source, rendered. Raises ValueError for an unknown source."""
    if source == "drawn":
        return [rendered_deck(*pretraining_deck(rng.randrange(2**31), questions=(60, 90))) for _ in range(count)]
    if source == "dev":
        by_document, folder = split_questions(Recipe(), "dev"), Recipe().corpus / "documents"
    elif source == "foreign":
        folder, by_document = project_path("data/foreign/documents"), {}
        for question in read_questions(project_path("data/foreign/questions.dev.json")):
            by_document.setdefault(question.document, []).append(question)
    else:
        raise ValueError(f"unknown source {source}; there are dev, drawn and foreign")
    chosen = rng.sample(sorted(by_document), min(count, len(by_document)))
    return [rendered_deck((folder / f"{name}.pdf").read_bytes(), by_document[name]) for name in chosen]


def asked(source: str, count: int, seed: int = 0) -> list[Asked]:
    """The same questions for every model, evenly from the source's decks."""
    rng, found = random.Random(f"{seed}/{source}"), []
    for pages, questions in decks(source, 12, rng):
        small = [one for one in questions if one.needs_crop and len(one.needed_facts) == 1]
        found += [_asked(question, pages) for question in rng.sample(small, min(len(small), -(-count // 8)))]
    return rng.sample(found, min(count, len(found)))


def _asked(question: Question, pages: Sequence[DrawnPage]) -> Asked:
    fact = question.needed_facts[0]
    page = pages[fact["page"] - 1]
    view = View.whole(page.image.size, BUDGET)
    shown = Image(view.shown_size, page.window()[0], "page", None, page.image.size)
    conversation = [
        Message("user", (Text(fill_prompt(load_prompt("nano"), question.query)),)),
        Message("assistant", (Text(first_turn(question)),)),
        Message("user", (Text(question.query), shown)),
    ]
    return Asked(conversation, view, page.box(tuple(fact["box"])), page.box(tuple(fact["answer_box"])))


class Crop(NamedTuple):
    """What became of a question: the share of the answer that the crop holds, its IoU with the region, if any."""

    made: bool
    held: float
    overlap: float


def cropped(policy: TransformersPolicy, question: Asked) -> Crop:
    """What the policy asks for."""
    _, action = parse(policy.generate([question.conversation], [0])[0].text)
    if action.kind != "bbox" or action.box is None:
        return Crop(False, 0.0, 0.0)
    x0, y0, x1, y1 = question.view.to_page(action.box)
    a, b, c, d = question.answer
    inside = max(0.0, min(x1, c) - max(x0, a)) * max(0.0, min(y1, d) - max(y0, b))
    return Crop(True, inside / ((c - a) * (d - b)), iou((x0, y0, x1, y1), question.region))


def row(name: str, source: str, crops: Sequence[Crop]) -> list[str]:
    shares = ([c.made for c in crops], [c.held > 0.98 for c in crops], [c.made and c.held < 0.02 for c in crops])
    told = [*map(share_interval, shares), bootstrap([crop.overlap for crop in crops])]
    return [name, source, str(len(crops)), *map(bracketed, told)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["data/models/nano-agent"])
    parser.add_argument("--sources", nargs="+", default=["dev", "drawn", "foreign"])
    parser.add_argument("--questions", type=int, default=60, help="of each source")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    questions = {source: asked(source, options.questions) for source in options.sources}
    rows = []
    for folder in options.models:
        policy = TransformersPolicy(folder, dtype="float32", max_new_tokens=64)
        for source, some in questions.items():
            crops = [cropped(policy, one) for one in tqdm(some, desc=f"{Path(folder).name}, {source}", unit="question")]
            rows.append(row(Path(folder).name, source, crops))
    head = ["model", "layouts", "questions", "crops", "holds the answer", "lies elsewhere", "IoU"]
    tell("Where models crop, shown the gold page", head, rows, out=options.out)


if __name__ == "__main__":
    main()
