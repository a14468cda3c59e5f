"""Is this the page? The expert's first word about a page whose title is given, without the page: text alone.

Whether to go on from a page is one word of a turn on four hundred tokens, most of them squares; the agent meets some
thousands of such words in an hour, too few to learn what the words of a question have to do with those of a title.
Here the title is given and nothing is shown, at a fourth of the price, and a title is asked about with many questions.
The agent will misread some letters, so some of the given ones are wrong.
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

import pymupdf
from PIL import Image

from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.learning.experts import SMALL_PRINT, WRONG_PAGE, search_words
from vrag_nb.nano.deck_tasks import MakeDeck, page_titles
from vrag_nb.nano.samples import Sample, telling_words
from vrag_nb.records import Question

WRONG = 0.5  # the share of titles that are another page's
RIVALS = 4  # of so many wrong titles the likest is taken
MISREAD = 0.06  # of the letters of a title, in half of the titles


class TitleTurns:
    """Draws (question, title, first word of the thought) from a rotating pool of decks: `titled` and `untitled`."""

    def __init__(self, make_deck: MakeDeck, size: int = 40, draws_per_deck: int = 120) -> None:
        self.make_deck, self.size, self.draws_per_deck = make_deck, size, draws_per_deck
        self.prompt = load_prompt("nano")
        self.decks: list[tuple[dict[int, str], list[Question]]] = []
        self.draws = 0

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        titles, questions = self._pick(rng)
        question = rng.choice(questions)
        gold = question.needed_facts[0]["page"]
        others = [title for page, title in titles.items() if page != gold and title != titles[gold]]
        wrong = bool(others) and rng.random() < WRONG
        title = likest_title(question, rng.sample(others, min(RIVALS, len(others)))) if wrong else titles[gold]
        said = WRONG_PAGE if wrong else SMALL_PRINT if question.needs_crop else "I read"
        turns: list[tuple[str, list[str | Image.Image]]] = [("user", [fill_prompt(self.prompt, question.query)])]
        if rng.random() < 0.25:
            found = f"<think>I need to find the page.</think>\n<search>{search_words(question)}</search>"
            turns += [("assistant", [found]), ("user", [question.query])]
        turns.append(("assistant", [f"<think>{misread(rng, title)}\n", said]))
        kind = "wrong title" if wrong else "title"
        return Sample(kind, turns, learn_from=len(turns) - 1, given=1, unfinished=True)

    def _pick(self, rng: random.Random) -> tuple[dict[int, str], list[Question]]:
        self.draws += 1
        if len(self.decks) < self.size or self.draws % self.draws_per_deck == 0:
            deck = self._drawn(rng)
            if len(self.decks) < self.size:
                self.decks.append(deck)
            else:
                self.decks[rng.randrange(self.size)] = deck
        return rng.choice(self.decks)

    def _drawn(self, rng: random.Random) -> tuple[dict[int, str], list[Question]]:
        """A deck whose titles and one-fact questions are known; drawn again where it has none."""
        while True:
            pdf, questions = self.make_deck(rng.randrange(2**31))
            with pymupdf.open(stream=pdf, filetype="pdf") as document:
                titles = page_titles(document)
            asked = [q for q in questions if len(q.needed_facts) == 1 and q.needed_facts[0]["page"] in titles]
            if asked:
                return titles, asked


def likest_title(question: Question, titles: Sequence[str]) -> str:
    """Of these titles the one with most of the question's words."""
    asked = telling_words(question.query)
    return max(titles, key=lambda title: len(asked & telling_words(title)))


def misread(rng: random.Random, title: str) -> str:
    """The title with letters and digits mistaken, half of the time."""
    if rng.random() < 0.5:
        return title
    kinds = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    shares = [next((kind for kind in kinds if letter in kind), letter) for letter in title]
    return "".join(
        rng.choice(kind) if rng.random() < MISREAD else letter for letter, kind in zip(title, shares, strict=True)
    )
