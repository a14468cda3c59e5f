"""Putting text into boxes: measuring, wrapping, shrinking, and knowing afterwards where a given phrase stands.

A no-break space (U+00A0) inside an answer keeps it on one line; it is drawn, and read back, as an ordinary space.
"""

from __future__ import annotations

from dataclasses import dataclass

from vrag_nb.documents.decks.canvas import Box, Canvas, Colour, Face

LEADING = 1.28  # line distance in units of the font size


def hold(text: str) -> str:
    """`text` with its spaces made unbreakable."""
    return text.replace(" ", "\u00a0")


def loosen(text: str) -> str:
    """`text` as a reader copies it from the page."""
    return text.replace("\u00a0", " ")


def union(boxes: list[Box]) -> Box:
    """The smallest box around `boxes`."""
    return min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes)


def inset(box: Box, dx: float, dy: float | None = None) -> Box:
    """`box` made smaller by dx, dy points on each side."""
    dy = dx if dy is None else dy
    return box[0] + dx, box[1] + dy, box[2] - dx, box[3] - dy


def wrap(text: str, font: Face, size: float, width: float) -> list[str]:
    """Greedy lines no wider than `width`; a single word that is wider gets a line of its own."""
    lines: list[str] = []
    space, used = font.width(" ", size), 0.0
    for word in text.split(" "):
        wide = font.width(word, size)
        if lines and used + space + wide <= width:
            lines[-1] += f" {word}"
            used += space + wide
        else:
            lines.append(word)
            used = wide
    return lines


def fits(text: str, font: Face, size: float, width: float, height: float) -> bool:
    """Whether the wrapped text stays inside `width` x `height`."""
    lines = wrap(text, font, size, width)
    return len(lines) * size * LEADING <= height + 0.1 and all(font.width(line, size) <= width for line in lines)


def fitting_size(text: str, font: Face, width: float, height: float, largest: float, smallest: float) -> float | None:
    """The largest size in half points at which the wrapped text fits, or None."""
    size = largest
    while size >= smallest:
        if fits(text, font, size, width, height):
            return size
        size -= 0.5
    return None


def shorten(text: str, font: Face, size: float, width: float) -> str:
    """`text`, cut with an ellipsis where it is wider than `width`."""
    if font.width(text, size) <= width:
        return text
    while text and font.width(text + "...", size) > width:
        text = text[:-1]
    return text.rstrip(" ,-(") + "..."


@dataclass
class Lines:
    """Text as drawn: its lines with their boxes."""

    lines: list[str]
    boxes: list[Box]
    font: Face
    size: float

    @property
    def box(self) -> Box:
        return union(self.boxes)

    def part(self, start: int, length: int) -> Box | None:
        """The box of so many characters of the text that was wrapped, or None where they run over the end of a line."""
        for line, box in zip(self.lines, self.boxes, strict=True):
            if 0 <= start <= len(line) - length:
                left = box[0] + self.font.width(line[:start], self.size)
                return left, box[1], left + self.font.width(line[start : start + length], self.size), box[3]
            start -= len(line) + 1
        return None


def draw_lines(
    canvas: Canvas,
    box: Box,
    text: str,
    font: Face,
    size: float,
    colour: Colour,
    align: str = "left",
    valign: str = "top",
) -> Lines:
    """Wrap `text` into `box` and draw it. The caller has checked that it fits."""
    x0, y0, x1, y1 = box
    lines = wrap(text, font, size, x1 - x0)
    slack = (y1 - y0) - len(lines) * size * LEADING
    top = y0 + (slack * {"top": 0.0, "middle": 0.5, "bottom": 1.0}[valign] if slack > 0 else 0.0)
    boxes = []
    for number, line in enumerate(lines):
        width = font.width(line, size)
        x = {"left": x0, "center": (x0 + x1 - width) / 2, "right": x1 - width}[align]
        baseline = top + number * size * LEADING + size * 0.98
        boxes.append(canvas.text(x, baseline, line, font, size, colour))
    return Lines(lines, boxes, font, size)


def draw_line(
    canvas: Canvas, x: float, baseline: float, text: str, font: Face, size: float, colour: Colour, align: str = "left"
) -> Box:
    """One line whose left end, centre or right end stands at `x`."""
    width = font.width(text, size)
    return canvas.text(
        x - width * {"left": 0.0, "center": 0.5, "right": 1.0}[align], baseline, text, font, size, colour
    )
