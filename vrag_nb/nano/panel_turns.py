"""Turns of the expert on charts and tables alone: what crops show, at a half of a crop's squares.

Of a crop of 128 to 224 squares the agent reads one number. A chart with a few bars asks the same of it - find the
words of the question, go from there to the value that belongs to them, spell it out - in some 30 to 130 squares, and
in print of any size that a closer crop may have.
"""

from __future__ import annotations

import random

from PIL import Image

from vrag_nb.agent.geometry import Budget
from vrag_nb.nano.deck_tasks import DPI, DeckPool
from vrag_nb.nano.expert import going_on, likest, rivals, told_answer
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.samples import Sample

ABSENT = 0.35  # the share of panels that do not hold what is asked for
PRINT = (13.0, 19.0)  # shown pixels, most of the time; up to twice the larger, one time in five
SQUARES = (30, 130)


class PanelTurns:
    """Draws panels from a pool of `pretraining_panels` with the expert's turn on them: kinds `panel` and `elsewhere`.

    Where the panel does not hold the answer, it is the one of four others that has most of the question's words.
    """

    def __init__(self, pool: DeckPool) -> None:
        self.pool = pool

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        pages, questions = self.pool.pick(rng)
        question = rng.choice(questions)
        fact = question.needed_facts[0]
        others = [number for number in range(1, len(pages) + 1) if number != fact["page"]]
        absent = bool(others) and rng.random() < ABSENT
        number = likest(question, pages, rivals(rng, others)) if absent else fact["page"]
        page = pages[number - 1]
        budget = shown_budget(page.image.size, fact["font_size"], drawn_print(rng))
        image, glyphs = page.window(budget=budget)
        answer = [page.box(tuple(fact["answer_box"]))]
        looks = [] if absent else [page.look(1, 0, answer, printed=str(fact["value"]), budget=budget)]
        said = going_on(question) if absent else told_answer(question)
        turns: list[tuple[str, list[str | Image.Image]]] = [
            ("user", [question.query, image]),
            ("assistant", [said]),
        ]
        return Sample(
            "elsewhere" if absent else "panel",
            turns,
            words=[page.words_in(budget=budget)],
            looks=looks,
            glyphs=[glyphs],
        )


def drawn_print(rng: random.Random) -> float:
    """How high print is to be shown, in pixels."""
    low, high = PRINT
    return rng.uniform(high, 2 * high) if rng.random() < 0.2 else rng.uniform(low, high)


def shown_budget(size: tuple[int, int], points: float, wanted: float) -> Budget:
    """The budget at which an image of DPI with print of so many points has it `wanted` pixels high, within SQUARES."""
    scale = wanted / (points * DPI / 72)
    squares = min(SQUARES[1], max(SQUARES[0], round(size[0] * size[1] * scale**2 / FACTOR**2)))
    return Budget(squares * 4 // 5 * FACTOR**2, squares * FACTOR**2)
