"""Turns of the expert that enlarge, wherever on an image the region lies.

Drawn pages have the margins and columns of drawn pages, and a model of this size learns their few boxes by heart rather
than how to write one. Parts of pages, shown at all sizes, have their regions anywhere.
"""

from __future__ import annotations

import random

from PIL import Image

from vrag_nb.agent.geometry import Box, Budget, Size, snapped
from vrag_nb.learning.experts import SMALL_PRINT
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.samples import Sample

WHOLE = 0.4  # the share of whole pages, shown as an agent sees them
SQUARES = (90, 224)  # of the others
LEAST = 0.35  # of a page's side, that a part has


class BoxTurns:
    """Draws a question, its page or a part of it that holds the region, and the expert's box: kind `box`."""

    def __init__(self, pool: DeckPool) -> None:
        self.pool = pool

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        while True:
            pages, questions = self.pool.pick(rng)
            if small := [one for one in questions if len(one.needed_facts) == 1 and one.needs_crop]:
                break
        question = rng.choice(small)
        fact = question.needed_facts[0]
        page = pages[fact["page"] - 1]
        region = page.box(tuple(fact["box"]))
        whole = rng.random() < WHOLE
        part = None if whole else part_around(rng, region, page.image.size)
        squares = rng.randint(*SQUARES)
        budget = BUDGET if whole else Budget(squares * 4 // 5 * FACTOR**2, squares * FACTOR**2)
        image, glyphs = page.window(part, budget)
        written = snapped(page.shown([region], part, budget)[0], image.size)
        said = f"<think>{SMALL_PRINT}</think>\n<bbox>[{', '.join(str(round(value)) for value in written)}]</bbox>"
        turns: list[tuple[str, list[str | Image.Image]]] = [
            ("user", [question.query, image]),
            ("assistant", [said]),
        ]
        look = page.look(1, 0, [region], part, budget=budget)
        return Sample("box", turns, words=[page.words_in(part, budget)], looks=[look], glyphs=[glyphs])


def part_around(rng: random.Random, region: Box, size: Size) -> Box:
    """A part of a page of that size, in its pixels, that holds the region: LEAST of each side at least, anywhere."""
    (x0, x1), (y0, y1) = (
        _span(rng, *edges, side) for edges, side in zip((region[::2], region[1::2]), size, strict=True)
    )
    return x0, y0, x1, y1


def _span(rng: random.Random, low: float, high: float, side: float) -> tuple[float, float]:
    low, high = max(0.0, low), min(high, side)
    first, last = rng.uniform(0, low), rng.uniform(high, side)
    if (missing := LEAST * side - (last - first)) > 0:
        first = max(0.0, first - rng.uniform(0, missing))
        last = min(side, first + LEAST * side) if first + LEAST * side > last else last
        first = max(0.0, min(first, last - LEAST * side))
    return first, last
