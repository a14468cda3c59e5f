"""Reading aloud: of an image that was looked at anyway, what stands after a word, asked a few times more.

Most of what a sample costs is its image, and one short answer is all that is learned from it. Behind it, further turns
name a word that is printed once and ask what stands after it in its row: to find a word, to go along its row and to
spell out what is there is what cells of tables and labels of charts ask for. Nothing of it is in a rollout, where no
question begins so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from PIL import Image

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.looking import Look
from vrag_nb.nano.samples import Sample

LEGIBLE = (11.0, 80.0)  # pixels: how high the lines are that are read
LEAST, MOST = 3, 18  # characters of an answer
FIGURES_FIRST = 0.6
Word = tuple[str, Box]


def aloud(draw: Callable[[random.Random, float], Sample], count: int) -> Callable[[random.Random, float], Sample]:
    """The same samples with up to `count` turns of reading behind each."""

    def drawn(rng: random.Random, difficulty: float) -> Sample:
        return reading_on(draw(rng, difficulty), rng, count)

    return drawn


def reading_on(sample: Sample, rng: random.Random, count: int) -> Sample:
    """A sample with one image, and up to `count` turns of reading behind it. Raises ValueError where it has others."""
    if len(sample.images) != 1 or not sample.words:
        raise ValueError(f"a sample of kind {sample.kind} has {len(sample.images)} images; one with its words is read")
    words = [word for word in sample.words[0] if _is_legible(word)]
    times = Counter(text.lower() for text, _ in words)
    once = [word for word in words if times[word[0].lower()] == 1]
    runs = [(first, _after(first, words, rng.randint(1, 3))) for first in rng.sample(once, len(once))]
    runs = [(first, after) for first, after in runs if sum(len(text) for text, _ in after) >= LEAST]
    if rng.random() < FIGURES_FIRST:  # prose can be guessed, figures must be read
        runs.sort(key=lambda run: not any(letter.isdigit() for text, _ in run[1] for letter in text))
    turns, looks = list(sample.turns), list(sample.looks)
    for first, after in runs[:count]:
        said = " ".join(text for text, _ in after)
        asked: list[str | Image.Image] = [f"After {first[0]}?"]
        turns += [("user", asked), ("assistant", [said])]
        looks.append(_look(len(turns) - 1, after, said, sample.glyphs[0] if sample.glyphs else ()))
    return replace(sample, turns=turns, looks=looks, aloud=(len(turns) - len(sample.turns)) // 2)


def _is_legible(word: Word) -> bool:
    """Whether a word is large enough, and written from left to right."""
    text, (x0, y0, x1, y1) = word
    return LEGIBLE[0] <= y1 - y0 <= LEGIBLE[1] and (len(text) < 3 or x1 - x0 > 0.8 * (y1 - y0))


def _after(first: Word, words: Sequence[Word], count: int) -> list[Word]:
    """The next words to the right in the row of `first`, at most `count` and MOST characters."""
    _, (_, top, right, bottom) = first
    row = [one for one in words if top < (one[1][1] + one[1][3]) / 2 < bottom and one[1][0] > right - 1]
    taken: list[Word] = []
    for one in sorted(row, key=lambda word: word[1][0])[:count]:
        if sum(len(text) + 1 for text, _ in [*taken, one]) <= MOST + 1:
            taken.append(one)
        else:
            break
    return taken


def _look(turn: int, words: Sequence[Word], said: str, glyphs: Sequence[Glyph]) -> Look:
    """Where these words are printed; with the centres of their letters where all are known."""
    boxes = [box for _, box in words]
    letters: list[Glyph] = []
    for x0, y0, x1, y1 in boxes:
        letters += sorted((g for g in glyphs if x0 <= g.x <= x1 and y0 <= g.y <= y1), key=lambda g: g.x)
    letters = [glyph for glyph in letters if not glyph.character.isspace()]
    known = "".join(glyph.character for glyph in letters) == "".join(said.split())
    return Look(turn, 0, boxes, said if known else "", [(g.x, g.y) for g in letters] if known else ())
