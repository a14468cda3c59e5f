"""Is this the page? The expert's first word about a page whose title is given, without the page: text alone.

Whether to go on from a page is one word of a turn on four hundred tokens, most of them squares; the agent meets some
thousands of such words in an hour, too few to learn what the words of a question have to do with those of a title.
Here the title is given and nothing is shown, at a fourth of the price, and a title is asked about with many questions.
The agent will misread some letters, so some of the given ones are wrong.
"""

from __future__ import annotations

import random
import string
from functools import partial

import pymupdf
from PIL import Image

from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.learning.experts import SMALL_PRINT, WRONG_PAGE, first_turn
from vrag_nb.nano.deck_tasks import MakeDeck, Rotation, page_titles
from vrag_nb.nano.expert import most_shared, rivals
from vrag_nb.nano.samples import Sample
from vrag_nb.records import Question

WRONG = 0.5  # the share of titles that are another page's
MISREAD = 0.06  # of the letters of a title, in half of the titles


class TitleTurns:
    """Draws a question, a title, and the first word of the thought that follows: kinds `title` and `wrong title`."""

    def __init__(self, make_deck: MakeDeck, size: int = 40, draws_per_deck: int = 120) -> None:
        self.pool = Rotation(partial(told_titles, make_deck), size, draws_per_deck)
        self.prompt = load_prompt("nano")

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        titles, questions = self.pool.pick(rng)
        question = rng.choice(questions)
        gold = titles[question.needed_facts[0]["page"]]
        others = [title for title in titles.values() if title != gold]
        wrong = bool(others) and rng.random() < WRONG
        shown = rivals(rng, others) if wrong else [gold]
        title = shown[most_shared(question, shown)]
        said = WRONG_PAGE if wrong else SMALL_PRINT if question.needs_crop else "I read"
        turns: list[tuple[str, list[str | Image.Image]]] = [("user", [fill_prompt(self.prompt, question.query)])]
        if rng.random() < 0.25:
            turns += [("assistant", [first_turn(question)]), ("user", [question.query])]
        turns.append(("assistant", [f"<think>{misread(rng, title)}\n", said]))
        kind = "wrong title" if wrong else "title"
        return Sample(kind, turns, learn_from=len(turns) - 1, given=1, unfinished=True)


def told_titles(make_deck: MakeDeck, seed: int) -> tuple[dict[int, str], list[Question]]:
    """A deck's titles by page, and its questions with one fact on such a page; drawn again where it has none."""
    rng = random.Random(seed)
    while True:
        pdf, questions = make_deck(rng.randrange(2**31))
        with pymupdf.open(stream=pdf, filetype="pdf") as document:
            titles = page_titles(document)
        asked = [q for q in questions if len(q.needed_facts) == 1 and q.needed_facts[0]["page"] in titles]
        if asked:
            return titles, asked


def misread(rng: random.Random, title: str) -> str:
    """The title with letters and digits mistaken, half of the time."""
    if rng.random() < 0.5:
        return title
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    shares = [next((kind for kind in kinds if letter in kind), letter) for letter in title]
    return "".join(
        rng.choice(kind) if rng.random() < MISREAD else letter for letter, kind in zip(title, shares, strict=True)
    )
