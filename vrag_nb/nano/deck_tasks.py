"""Pretraining tasks on drawn pages: the same windows of the same page images that the agent will be shown.

Each worker keeps a pool of decks in memory (page pixels at the corpus' dpi, character positions, questions), replaces
them one by one, and draws samples from them:

- `glyphs`: a window of a page and its characters (`benchmarks/sizes.py`);
- `crop`: the gold region, jittered, and its question;
- `page`: a whole page and a question that its large print answers;
- `point`: a whole page, and where on it the answer stands (a box in shown pixels, as the agent writes it);
- `match`: is this the page that the question is about?
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pymupdf
from PIL import Image

from vrag_nb.agent.geometry import Box, Budget, jittered, render, snapped
from vrag_nb.documents.filming import framed
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.looking import Look
from vrag_nb.nano.model import MAX_PIXELS, MIN_PIXELS
from vrag_nb.nano.samples import Sample
from vrag_nb.records import Question

DPI = 150
BUDGET = Budget(MIN_PIXELS, MAX_PIXELS)
MakeDeck = Callable[[int], tuple[bytes, list[Question]]]


@dataclass
class DrawnPage:
    """A page image at DPI, its characters (centres in page pixels) and its words (boxes in page pixels).

    title: of its document.
    """

    image: Image.Image
    glyphs: list[Glyph]
    words: list[tuple[str, Box]]
    title: str = ""

    @classmethod
    def render(cls, page: pymupdf.Page) -> DrawnPage:
        scale = DPI / 72
        pixmap = page.get_pixmap(matrix=pymupdf.Matrix(scale, scale), alpha=False)
        image = Image.frombytes("RGB", (pixmap.width, pixmap.height), pixmap.samples)
        glyphs, line_number = [], 0
        for block in page.get_text("rawdict", flags=0)["blocks"]:
            for line in block.get("lines", ()):
                line_number += 1
                for span in line["spans"]:
                    for char in span["chars"]:
                        x0, y0, x1, y1 = (value * scale for value in char["bbox"])
                        glyphs.append(Glyph(char["c"], (x0 + x1) / 2, (y0 + y1) / 2, line_number))
        words = [(word[4], tuple(value * scale for value in word[:4])) for word in page.get_text("words")]
        return cls(image, glyphs, words, ((page.parent.metadata or {}) if page.parent else {}).get("title") or "")

    def box(self, fractions: Box) -> Box:
        """Page fractions to page pixels."""
        width, height = self.image.size
        x0, y0, x1, y1 = fractions
        return x0 * width, y0 * height, x1 * width, y1 * height

    def window(self, box: Box | None = None, budget: Budget = BUDGET) -> tuple[Image.Image, list[Glyph]]:
        """The crop `box` (page pixels; None: the page) at the size a model is shown, and its glyphs there."""
        if box is None and budget == BUDGET:
            return self._whole
        return self._window(box, budget)

    @cached_property
    def _whole(self) -> tuple[Image.Image, list[Glyph]]:
        """The whole page as an agent sees it, time and again."""
        return self._window(None, BUDGET)

    @cached_property
    def frame(self) -> Image.Image:
        """The page in a video's frame."""
        return framed(self.image)

    def _window(self, box: Box | None, budget: Budget) -> tuple[Image.Image, list[Glyph]]:
        x0, y0, x1, y1 = (round(v) for v in (box or (0, 0, *self.image.size)))
        size = budget.size(x1 - x0, y1 - y0)
        return render(self.image, (x0, y0, x1, y1), size), self.glyphs_in(box, budget)

    def glyphs_in(self, box: Box | None = None, budget: Budget = BUDGET) -> list[Glyph]:
        """The characters of `window`, in shown pixels."""
        x0, y0, x1, y1 = (round(v) for v in (box or (0, 0, *self.image.size)))
        width, height = budget.size(x1 - x0, y1 - y0)
        across, down = width / (x1 - x0), height / (y1 - y0)
        return [
            Glyph(g.character, (g.x - x0) * across, (g.y - y0) * down, g.line)
            for g in self.glyphs
            if x0 <= g.x < x1 and y0 <= g.y < y1
        ]

    def part(self, box: Box | None = None, budget: Budget = BUDGET) -> DrawnPage:
        """The crop `box` (page pixels; None: the page) as a page of its own, at the size a model is shown it."""
        x0, y0, x1, y1 = (round(v) for v in (box or (0, 0, *self.image.size)))
        image, glyphs = self.window((x0, y0, x1, y1), budget)
        across, down = image.width / (x1 - x0), image.height / (y1 - y0)
        inside = [(word, place) for word, place in self.words if _contains((x0, y0, x1, y1), place)]
        words = [
            (word, ((a - x0) * across, (b - y0) * down, (c - x0) * across, (d - y0) * down))
            for word, (a, b, c, d) in inside
        ]
        return DrawnPage(image, glyphs, words)

    def shown(self, boxes: Sequence[Box], box: Box | None = None, budget: Budget = BUDGET) -> list[Box]:
        """Boxes in page pixels as they lie in the window on `box`, in shown pixels."""
        x0, y0, across, down = self._scale(box, budget)
        return [((a - x0) * across, (b - y0) * down, (c - x0) * across, (d - y0) * down) for a, b, c, d in boxes]

    def words_in(self, box: Box | None = None, budget: Budget = BUDGET) -> list[tuple[str, Box]]:
        """The words of the window on `box`, in shown pixels."""
        inside = [(word, place) for word, place in self.words if box is None or _contains(box, place)]
        places = self.shown([place for _, place in inside], box, budget)
        return list(zip([word for word, _ in inside], places, strict=True))

    def look(
        self,
        turn: int,
        image: int,
        places: Sequence[Box],
        box: Box | None = None,
        printed: str = "",
        budget: Budget = BUDGET,
    ) -> Look:
        """Where the answer of a turn stands: `places` (page pixels) in the window on `box`, shown as that image.

        printed: what is printed in the first of the places, if it is to be read.
        """
        x0, y0, across, down = self._scale(box, budget)
        centres = self._letters(places[0], printed) if printed and places else []
        letters = [((x - x0) * across, (y - y0) * down) for x, y in centres]
        return Look(turn, image, self.shown(places, box, budget), printed if letters else "", letters)

    def _scale(self, box: Box | None, budget: Budget) -> tuple[int, int, float, float]:
        x0, y0, x1, y1 = (round(v) for v in (box or (0, 0, *self.image.size)))
        width, height = budget.size(x1 - x0, y1 - y0)
        return x0, y0, width / (x1 - x0), height / (y1 - y0)

    def _letters(self, box: Box, printed: str) -> list[tuple[float, float]]:
        """Centres (page pixels) of the letters of `printed` in a box, without spaces; none if it reads otherwise."""
        x0, y0, x1, y1 = box
        inside = [g for g in self.glyphs if x0 <= g.x <= x1 and y0 <= g.y <= y1 and not g.character.isspace()]
        inside.sort(key=lambda g: (g.line, g.x))
        wanted = "".join(printed.split())
        start = "".join(g.character for g in inside).find(wanted)
        return [(g.x, g.y) for g in inside[start : start + len(wanted)]] if start >= 0 else []


def _contains(box: Box, place: Box) -> bool:
    return box[0] <= place[0] and box[1] <= place[1] and place[2] <= box[2] and place[3] <= box[3]


def words_of(glyphs: Sequence[Glyph], half: float = 4.0) -> list[tuple[str, Box]]:
    """Runs of characters of a line as words, their boxes reaching `half` pixels beyond the outer centres."""
    words: list[tuple[str, Box]] = []
    run: list[Glyph] = []
    for glyph in [*sorted(glyphs, key=lambda g: (g.line, g.x)), Glyph(" ", 0.0, 0.0, -1)]:
        if run and (glyph.character.isspace() or glyph.line != run[-1].line):
            box = (run[0].x - half, run[0].y - half, run[-1].x + half, run[-1].y + half)
            words.append(("".join(g.character for g in run), box))
            run = []
        if not glyph.character.isspace():
            run.append(glyph)
    return words


def repainted(rng: random.Random, image: Image.Image) -> Image.Image:
    """The image in other colours: all of it or a strip along one side inverted, and everything tinted a little."""
    pixels = np.asarray(image, dtype=np.float32)
    if rng.random() < 0.6:
        region = [slice(None), slice(None)]
        if rng.random() < 0.7:
            axis = rng.randrange(2)
            cut = round(rng.uniform(0.1, 0.5) * pixels.shape[axis])
            region[axis] = slice(None, cut) if rng.random() < 0.5 else slice(-cut, None)
        pixels = pixels.copy()
        pixels[tuple(region)] = 255 - pixels[tuple(region)]
    strength = rng.uniform(0, 0.25)
    tint = np.array([rng.uniform(0, 255) for _ in range(3)], dtype=np.float32)
    return Image.fromarray((pixels * (1 - strength) + tint * strength).astype(np.uint8))


def look_for(
    question: Question, page: DrawnPage, number: int, turn: int, image: int, box: Box | None = None
) -> Look | None:
    """Where to look on page `number` or its crop `box`: at printed answers, or on a whole page, the part to enlarge."""
    enlarge = box is None and question.needs_crop
    facts = [fact for fact in question.needed_facts if fact["page"] == number and (enlarge or fact["printed"])]
    boxes = [page.box(tuple(fact["box" if enlarge else "answer_box"])) for fact in facts]
    printed = str(facts[0]["value"]) if facts and not enlarge else ""
    return page.look(turn, image, boxes, box, printed) if boxes else None


def written_box(box: Box, page: Image.Image, shown: Image.Image) -> str:
    """A box in page pixels as the agent writes it: `[x1, y1, x2, y2]` in pixels of the shown page, whole squares."""
    across, down = shown.width / page.width, shown.height / page.height
    x0, y0, x1, y1 = box
    shown_box = snapped((x0 * across, y0 * down, x1 * across, y1 * down), shown.size)
    return f"[{', '.join(str(round(value)) for value in shown_box)}]"


class DeckPool:
    """A rotating pool of rendered decks: so many at a time, one is replaced every so many draws.

    `make_deck(seed)` draws one: (PDF bytes, questions).
    """

    def __init__(self, make_deck: MakeDeck, size: int = 12, draws_per_deck: int = 60) -> None:
        self.make_deck, self.size, self.draws_per_deck = make_deck, size, draws_per_deck
        self.decks: list[tuple[list[DrawnPage], list[Question]]] = []
        self.draws = 0

    def pick(self, rng: random.Random) -> tuple[list[DrawnPage], list[Question]]:
        """A deck of the pool, after adding or replacing one when it is time."""
        self.draws += 1
        if len(self.decks) < self.size or self.draws % self.draws_per_deck == 0:
            deck = rendered_deck(*self.make_deck(rng.randrange(2**31)))
            if len(self.decks) < self.size:
                self.decks.append(deck)
            else:
                self.decks[rng.randrange(self.size)] = deck
        return rng.choice(self.decks)


def rendered_deck(pdf: bytes, questions: list[Question]) -> tuple[list[DrawnPage], list[Question]]:
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        return [DrawnPage.render(page) for page in document], questions


class DeckTasks:
    """Draws samples of these tasks from a pool."""

    def __init__(self, pool: DeckPool) -> None:
        self.pool = pool

    def glyphs(self, rng: random.Random, difficulty: float) -> tuple[Image.Image, list[Glyph]]:
        """What an agent might look at: mostly the region of a question, jittered; else a page or any part of one."""
        pages, questions = self.pool.pick(rng)
        facts = rng.choice(questions).needed_facts
        if facts and rng.random() < 0.75:
            page = pages[facts[0]["page"] - 1]
            return page.window(jittered(rng, page.box(tuple(facts[0]["box"])), page.image.size))
        page = rng.choice(pages)
        if rng.random() < 0.2:
            return page.window()
        width, height = page.image.size
        across, down = rng.uniform(0.25, 0.8), rng.uniform(0.12, 0.8)
        x, y = rng.uniform(0, 1 - across) * width, rng.uniform(0, 1 - down) * height
        return page.window((x, y, x + across * width, y + down * height))

    def lookups(self, rng: random.Random, difficulty: float) -> Sample:
        """A question and one view of its page, of a kind chosen at random.

        The question comes first, so that every square can look for its words; asked after the image, the same
        model learned to look up far more slowly, however many questions shared an image.
        """
        pages, questions = self.pool.pick(rng)
        question = rng.choice([question for question in questions if len(question.needed_facts) == 1])
        fact = question.needed_facts[0]
        number, page = fact["page"], pages[fact["page"] - 1]
        if rng.random() < 0.6:
            box = jittered(rng, page.box(tuple(fact["box"])), page.image.size)
            return self._asked("crop", pages, number, question, question.query, question.reference_answer, box)
        if not question.needs_crop:
            return self._asked("page", pages, number, question, question.query, question.reference_answer)
        return self._pointed(pages, question)

    def points(self, rng: random.Random, difficulty: float) -> Sample:
        """The part of `lookups` that asks where the answer stands, of questions whose page is too small to read."""
        while True:
            pages, questions = self.pool.pick(rng)
            if asked := [one for one in questions if len(one.needed_facts) == 1 and one.needs_crop]:
                return self._pointed(pages, rng.choice(asked))

    def _pointed(self, pages: list[DrawnPage], question: Question) -> Sample:
        fact = question.needed_facts[0]
        page = pages[fact["page"] - 1]
        written = written_box(page.box(tuple(fact["box"])), page.image, page.window()[0])
        return self._asked("point", pages, fact["page"], question, f"Where: {question.query}", written)

    def matches(self, rng: random.Random, difficulty: float) -> Sample:
        """A question and a page, the right one or another of its deck: is this the page that the question is about?

        A task of its own, because one word is learned in it and the other tasks' many would drown its loss.
        """
        pages, questions = self.pool.pick(rng)
        question = rng.choice([question for question in questions if len(question.needed_facts) == 1])
        right = question.needed_facts[0]["page"]
        wrong = [number for number in range(1, len(pages) + 1) if number != right]
        number = right if rng.random() < 0.5 or not wrong else rng.choice(wrong)
        answer = "yes" if number == right else "no"
        return self._asked("match", pages, number, question, f"Match: {question.query}", answer)

    def _asked(
        self,
        kind: str,
        pages: list[DrawnPage],
        number: int,
        question: Question,
        words: str,
        answer: str,
        box: Box | None = None,
    ) -> Sample:
        page = pages[number - 1]
        image, glyphs = page.window(box)
        turns: list[tuple[str, list[str | Image.Image]]] = [("user", [words, image]), ("assistant", [answer])]
        look = look_for(question, page, number, 1, 0, box)
        return Sample(kind, turns, words=[page.words_in(box)], looks=[look] if look else [], glyphs=[glyphs])
