"""Small drawn tables with a question, and strips of text to read: the cheap half of the language side's diet.

An image here has 10 to 60 squares where a page has 150, so the circuit that matters - find the words of the question
in the picture, go along the row, spell out what stands there - is learned on many more examples an hour than pages
would allow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from vrag_nb.agent.geometry import Box
from vrag_nb.learning.experts import WRONG_PAGE
from vrag_nb.nano.glyphs import Glyph
from vrag_nb.nano.looking import Look
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.scribbles import font_sources, random_colours, random_line, random_number, random_word, sized_font

QUESTIONS_ROW = ("{row}?", "What is {row}?", "How much is {row}?", "Find the value of {row}.")
QUESTIONS_CELL = (
    "{column} of {row}?",
    "What is the {column} of {row}?",
    "For {row}, what is {column}?",
    "{row}, {column}?",
)
SOUGHT = (
    "In the deck, what is the {cell}?",
    "According to the deck, what was the {cell}?",
    "What does the deck report for {cell}?",
)


def reading_strip(
    rng: random.Random, difficulty: float, size: int | None = None, font_number: int | None = None
) -> Sample:
    """One or two lines of text, to be written out whole; `size` (pixels) and `font_number` fix the print."""
    columns, rows = rng.randint(5, 11), 1 + (rng.random() < 0.4 * difficulty)
    paper, ink = random_colours(rng, difficulty)
    image = Image.new("RGB", (columns * 28, rows * 28), paper)
    draw = ImageDraw.Draw(image)
    lines: list[str] = []
    letters: list[tuple[float, float]] = []
    glyphs: list[Glyph] = []
    for row in range(rows):
        high = size or round(rng.uniform(13 - 3 * difficulty, 17 + 3 * difficulty))
        face = rng.randrange(max(1, round(len(font_sources()) * difficulty))) if font_number is None else font_number
        font = sized_font(face, high)
        text = random_line(rng, 0.2 + difficulty, rng.randint(1, 5))
        while font.getlength(text) > image.width - 4:
            text = text[:-1].rstrip()
        x, y = rng.uniform(1, 4), row * 28 + rng.uniform(1, max(1, 26 - high * 1.15))
        draw.text((x, y), text, font=font, fill=ink)
        lines.append(text)
        drawn = _glyphs(text, x, y, font, row)
        letters += [(glyph.x, glyph.y) for glyph in drawn]
        glyphs += drawn
    printed = "\n".join(lines)
    turns: list[tuple[str, list[str | Image.Image]]] = [("user", [image, "Read."]), ("assistant", [printed])]
    return Sample("read", turns, looks=[Look(1, 0, (), printed, letters)], glyphs=[glyphs])


def loose_lines(rng: random.Random, difficulty: float) -> Sample:
    """Lines to be written out that keep to no row of squares, in print mostly below 20 pixels and up to 40.

    So lie the lines of crops, large where the crop was small: a letter may take four squares, a square parts of two
    lines.
    """
    paper, ink = random_colours(rng, difficulty)
    size = round(11 * 3.6 ** (rng.random() ** 1.5))
    font = sized_font(rng.randrange(max(1, round(len(font_sources()) * difficulty))), size)
    pitch = size * rng.uniform(1.25, 2.2)
    count = rng.randint(1, max(1, min(4, int(112 / pitch))))
    width = 28 * rng.randint(6, 14 if count * pitch < 84 else 9)
    left, top = rng.uniform(1, 28), rng.uniform(1, 16)
    image = Image.new("RGB", (width, 28 * -(-int(top + count * pitch) // 28)), paper)
    draw = ImageDraw.Draw(image)
    lines: list[str] = []
    glyphs: list[Glyph] = []
    for row in range(count):
        text = random_line(rng, 0.2 + difficulty, rng.randint(1, 4))
        while font.getlength(text) > width - left - 2:
            text = text[:-1].rstrip()
        y = top + row * pitch
        draw.text((left, y), text, font=font, fill=ink)
        lines.append(text)
        glyphs += _glyphs(text, left, y, font, row)
    printed = "\n".join(lines)
    turns: list[tuple[str, list[str | Image.Image]]] = [("user", [image, "Read."]), ("assistant", [printed])]
    letters = [(glyph.x, glyph.y) for glyph in glyphs]
    return Sample("lines", turns, looks=[Look(1, 0, (), printed, letters)], glyphs=[glyphs])


def _glyphs(text: str, x: float, y: float, font: ImageFont.FreeTypeFont, line: int = 0) -> list[Glyph]:
    """The letters, spaces left out, of a line of text drawn at (x, y)."""
    ends = [font.getlength(text[:count]) for count in range(len(text) + 1)]
    middle = y + font.size * 0.6
    return [
        Glyph(letter, x + (ends[i] + ends[i + 1]) / 2, middle, line)
        for i, letter in enumerate(text)
        if not letter.isspace()
    ]


def _label(rng: random.Random) -> str:
    """A row or column label: one or two words, or a year."""
    if rng.random() < 0.2:
        return str(rng.randint(1950, 2030))
    word = random_word(rng)
    return f"{word} {random_word(rng)}" if rng.random() < 0.25 else word


def _labels(rng: random.Random, count: int) -> list[str]:
    labels: dict[str, None] = {}
    while len(labels) < count:
        labels[_label(rng)] = None
    return list(labels)


@dataclass(frozen=True)
class Table:
    """A drawn table: labels of rows, headers of columns ("" where there is none), and cells with their places.

    words: every text on the image and its box. letter_places: the centres of a cell's letters, by row and column.
    """

    image: Image.Image
    labels: list[str]
    headers: list[str]
    cells: list[list[str]]
    places: dict[tuple[int, int], Box]
    letter_places: dict[tuple[int, int], list[tuple[float, float]]]
    words: list[tuple[str, Box]]
    glyphs: list[Glyph]

    def look(self, row: int, column: int) -> Look:
        """Where the cell is printed, for the answer of the first turn."""
        place = row, column
        return Look(1, 0, [self.places[place]], self.cells[row][column], self.letter_places[place])


def draw_table(rng: random.Random, difficulty: float) -> Table:
    """2..7 rows and 1..3 columns of numbers."""
    rows = rng.randint(2, 2 + round(5 * difficulty))
    columns = 1 if difficulty < 0.25 else rng.randint(1, 3 if difficulty > 0.5 else 2)
    with_header = columns > 1 or rng.random() < 0.3
    labels, headers = _labels(rng, rows), _labels(rng, columns)
    cells = [[random_number(rng) for _ in range(columns)] for _ in range(rows)]
    size = round(rng.uniform(12 - 2 * difficulty, 16 + 3 * difficulty))
    font = sized_font(rng.randrange(max(1, round(len(font_sources()) * difficulty))), size)
    grid = ([["", *headers]] if with_header else []) + [
        [label, *values] for label, values in zip(labels, cells, strict=True)
    ]
    gap = 24 if rng.random() < 0.75 else 120 * difficulty + 24
    widths = [max(font.getlength(row[column]) for row in grid) + rng.uniform(8, gap) for column in range(columns + 1)]
    pitch = size * rng.uniform(1.35, 1.9)
    squares = (-(-int(sum(widths) + 8) // 28), -(-int(pitch * len(grid) + 6) // 28))
    paper, ink = random_colours(rng, difficulty)
    image = Image.new("RGB", (squares[0] * 28, squares[1] * 28), paper)
    draw = ImageDraw.Draw(image)
    left, top = rng.uniform(2, 6), rng.uniform(1, 5)
    right_aligned = rng.random() < 0.5
    if rng.random() < difficulty * 0.6:
        for number in range(len(grid) + 1):
            draw.line([(0, top + number * pitch - 2), (image.width, top + number * pitch - 2)], fill=ink)
    places: dict[tuple[int, int], Box] = {}
    letter_places: dict[tuple[int, int], list[tuple[float, float]]] = {}
    words: list[tuple[str, Box]] = []
    glyphs: list[Glyph] = []
    for number, row in enumerate(grid):
        x, y = left, top + number * pitch
        for column, text in enumerate(row):
            length = font.getlength(text)
            start = x + (widths[column] - 8 - length if column and right_aligned else 0)
            draw.text((start, y), text, font=font, fill=ink)
            drawn, box = _glyphs(text, start, y, font, number), (start, y + 1, start + length, y + size * 1.15)
            glyphs += drawn
            words += [(text, box)] if text else []
            cell = number - with_header, column - 1
            places[cell], letter_places[cell] = box, [(glyph.x, glyph.y) for glyph in drawn]
            x += widths[column]
    shown = headers if with_header else [""] * columns
    return Table(image, labels, shown, cells, places, letter_places, words, glyphs)


def drawn_table(rng: random.Random, difficulty: float) -> Sample:
    """A question for a cell, and a table of 2..7 rows and 1..3 columns of numbers."""
    table = draw_table(rng, difficulty)
    row, column = rng.randrange(len(table.labels)), rng.randrange(len(table.headers))
    question = _question(rng, table.labels[row], table.headers[column] if len(table.headers) > 1 else "")
    turns: list[tuple[str, list[str | Image.Image]]] = [
        ("user", [question, table.image]),
        ("assistant", [table.cells[row][column]]),
    ]
    kind, looks = f"table{len(table.headers)}", [table.look(row, column)]
    return Sample(kind, turns, words=[table.words], looks=looks, glyphs=[table.glyphs])


def sought_table(rng: random.Random, difficulty: float) -> Sample:
    """A table shown where a page would be, and the agent's turn on it: half the time it lacks what is asked for.

    A row or a column of that name is not there then, and the other may be: whether a page is the one that was sought
    hangs on each word of the question. Kinds `present` and `absent`.
    """
    table = draw_table(rng, difficulty)
    row, column = rng.randrange(len(table.labels)), rng.randrange(len(table.headers))
    label, header = table.labels[row], table.headers[column] if len(table.headers) > 1 else ""
    absent = rng.random() < 0.5
    if absent and header and rng.random() < 0.5:
        header = _other(rng, table)
    elif absent:
        label = _other(rng, table)
    # As decks are asked: drawn_table's own questions are answered without a thought.
    question, value = (
        rng.choice(SOUGHT).format(cell=f"{header} of {label}" if header else label),
        table.cells[row][column],
    )
    found = f"<think>I read {value}.</think>\n<answer>{value}</answer>"
    said = f"<think>{WRONG_PAGE}</think>\n<search>{question}</search>" if absent else found
    turns: list[tuple[str, list[str | Image.Image]]] = [("user", [question, table.image]), ("assistant", [said])]
    looks = [] if absent else [table.look(row, column)]
    return Sample("absent" if absent else "present", turns, words=[table.words], looks=looks, glyphs=[table.glyphs])


def _question(rng: random.Random, row: str, column: str) -> str:
    """Asks for a cell; `column` is empty where the table has one alone."""
    return rng.choice(QUESTIONS_CELL if column else QUESTIONS_ROW).format(row=row, column=column)


def _other(rng: random.Random, table: Table) -> str:
    """A label that is not in a table."""
    taken = {text.lower() for text, _ in table.words}
    while (label := _label(rng)).lower() in taken:
        pass
    return label
