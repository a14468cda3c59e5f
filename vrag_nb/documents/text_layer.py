"""A page's text layer in reading order, laid out with blanks as on the page.

    text_layer(page.get_text("words"))

The rules and the result are those of PyMuPDF's `get_text("text", sort=True)`, which makes rectangle objects of every
word many times over and takes twice as long as rendering the page; here they are plain numbers. Print that is tiny or
squeezed sideways would have millions of blanks before it: a line has no more than MOST_BLANKS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 3.0  # points that tops or bottoms of the words of one line may lie apart
MOST_BREAKS = 5  # empty lines between two lines, at most
MOST_BLANKS = 1000  # laid out in a line, at most; a poster (A0) of 8-point print has room for 600 letters

Word = tuple[float, float, float, float, str]  # x0, y0, x1, y1 in points, and what it says


@dataclass
class _Line:
    """Words beside each other; y0 and y1 of all of them together."""

    y0: float
    y1: float
    words: list[Word] = field(default_factory=list)

    def takes(self, word: Word) -> bool:
        return abs(word[1] - self.y0) <= TOLERANCE or abs(word[3] - self.y1) <= TOLERANCE

    def add(self, word: Word) -> None:
        self.words.append(word)
        self.y0, self.y1 = min(self.y0, word[1]), max(self.y1, word[3])

    def text(self, left: float) -> str:
        """The line, with as many blanks between words as fit; `left`: where the page's text begins."""
        text, end, room = "", left, MOST_BLANKS
        for x0, _, x1, _, said in sorted(self.words, key=lambda word: word[0]):
            blanks = round(min((x0 - end) / (x1 - x0) * len(said), room)) if x1 > x0 else 0
            room -= max(blanks, 0)
            text += " " * max(blanks, 0 if end == left or x0 <= end else 1) + said
            end = x1
        return text


def text_layer(words: Iterable[Sequence[Any]]) -> str:
    """The text of words (x0, y0, x1, y1, text, ...) in points; "" where there are none."""
    found: list[Word] = [(word[0], word[1], word[2], word[3], word[4]) for word in words]
    if not found:
        return ""
    rows = _lines(sorted(found, key=lambda word: (word[3], word[0])))
    lines = _lines([word for row in rows for word in sorted(row.words, key=lambda word: word[0])])
    lines.sort(key=lambda line: line.y1)
    left = min(word[0] for word in found)
    text, bottom = lines[0].text(left), lines[0].y1
    for line in lines[1:]:
        apart = round((line.y0 - bottom) / (line.y1 - line.y0)) if line.y1 > line.y0 else 0
        text += "\n" * (min(apart, MOST_BREAKS) + 1) + line.text(left)
        bottom = line.y1
    return text


def _lines(words: Iterable[Word]) -> list[_Line]:
    """Words that follow one another, in lines."""
    lines: list[_Line] = []
    for word in words:
        if not lines or not lines[-1].takes(word):
            lines.append(_Line(word[1], word[3]))
        lines[-1].add(word)
    return lines
