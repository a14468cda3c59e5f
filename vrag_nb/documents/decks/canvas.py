"""Vector drawing on a PDF page, fast enough to make pages by the thousand.

A `Canvas` collects PDF operators for one page; a `Book` turns canvases into one PDF whose bytes depend on nothing but
what was drawn (fixed dates, no file id, fonts cut down to the glyphs used). Operators are written directly and not
through `page.insert_text` because a page then costs about a millisecond, and because we must know exactly where each
word lands.

Frame of every coordinate here: PDF points, origin at the page's top left, y downwards. Fonts come from pip packages
only (PyMuPDF's base fonts, `pymupdf-fonts`, matplotlib's folder, those of `packaged_fonts`), so that a bare machine
draws the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import matplotlib
import pymupdf

from vrag_nb.documents.packaged_fonts import font_file

Box = tuple[float, float, float, float]  # x0, y0, x1, y1
Colour = tuple[float, float, float]  # red, green, blue in 0..1
DATE = "D:20240101000000Z"
_KAPPA = 0.5523  # control point distance that makes a Bezier quarter look like a circle


def rgb(code: str) -> Colour:
    """`"1f77b4"` to a colour."""
    return int(code[0:2], 16) / 255, int(code[2:4], 16) / 255, int(code[4:6], 16) / 255


def mix(a: Colour, b: Colour, share: float) -> Colour:
    """`a` with `share` of `b` stirred in."""
    return tuple(x + (y - x) * share for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


class Face:
    """One font: its glyphs, widths and vertical extent. Get it from `face(name)`, which loads each once."""

    def __init__(self, name: str) -> None:
        self.name = name
        if "/" in name:
            self.font = pymupdf.Font(fontfile=str(font_file(name)))
        elif name.endswith(".ttf"):
            path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
            self.font = pymupdf.Font(fontfile=str(path))
        else:
            self.font = pymupdf.Font(name)
        self._glyphs: dict[str, tuple[str, float]] = {}
        # The extent of ordinary letters, not of the font's tallest accent: line boxes stay close to the ink.
        self.ascent = min(self.font.ascender, 0.93)
        self.descent = max(self.font.descender, -0.24)

    def glyph(self, character: str) -> tuple[str, float]:
        """The glyph's number as four hex digits, and its advance in em. Raises ValueError for a character it lacks."""
        found = self._glyphs.get(character)
        if found is None:
            code = ord(" " if character == "\u00a0" else character)
            number = self.font.has_glyph(code)
            if not number:
                raise ValueError(f"font {self.name} has no glyph for {character!r}; use another font or another text")
            found = self._glyphs[character] = (f"{number:04x}", self.font.glyph_advance(code))
        return found

    def width(self, text: str, size: float) -> float:
        """Width of `text` in points."""
        return size * sum(self.glyph(character)[1] for character in text)

    def has(self, text: str) -> bool:
        """Whether every character of `text` can be drawn."""
        return all(self.font.has_glyph(ord(" " if c == "\u00a0" else c)) for c in text)


@cache
def face(name: str) -> Face:
    """The font called `name`: a PyMuPDF or pymupdf-fonts code ("helv", "notos"), a file in matplotlib's folder, or one
    of `packaged_fonts.PACKAGED`.
    """
    return Face(name)


@dataclass
class Canvas:
    """One page being drawn."""

    width: float
    height: float
    operators: list[str] = field(default_factory=list)
    faces: dict[str, None] = field(default_factory=dict)
    ink: list[Box] = field(default_factory=list)  # boxes of the texts drawn, for collision checks

    def _y(self, y: float) -> float:
        return self.height - y

    def _paint(self, path: str, fill: Colour | None, stroke: Colour | None, width: float, dash: str = "") -> None:
        if fill is None and stroke is None:
            return
        parts = ["q"]
        if fill is not None:
            parts.append("{:.3f} {:.3f} {:.3f} rg".format(*fill))
        if stroke is not None:
            parts.append("{:.3f} {:.3f} {:.3f} RG".format(*stroke))
            parts.append(f"{width:.2f} w 1 J 1 j" + (f" [{dash}] 0 d" if dash else ""))
        operator = "B" if fill is not None and stroke is not None else "f" if fill is not None else "S"
        self.operators.append(" ".join([*parts, path, operator, "Q"]))

    def rect(
        self, box: Box, fill: Colour | None = None, stroke: Colour | None = None, width: float = 0.7, radius: float = 0
    ) -> None:
        """A rectangle, its corners rounded by `radius` points."""
        x0, y0, x1, y1 = box
        if radius <= 0:
            path = f"{x0:.2f} {self._y(y1):.2f} {x1 - x0:.2f} {y1 - y0:.2f} re"
        else:
            path = self._rounded(box, min(radius, (x1 - x0) / 2, (y1 - y0) / 2))
        self._paint(path, fill, stroke, width)

    def _rounded(self, box: Box, r: float) -> str:
        x0, x1 = box[0], box[2]
        y0, y1 = self._y(box[3]), self._y(box[1])
        k = r * (1 - _KAPPA)
        return (
            f"{x0 + r:.2f} {y0:.2f} m {x1 - r:.2f} {y0:.2f} l "
            f"{x1 - k:.2f} {y0:.2f} {x1:.2f} {y0 + k:.2f} {x1:.2f} {y0 + r:.2f} c {x1:.2f} {y1 - r:.2f} l "
            f"{x1:.2f} {y1 - k:.2f} {x1 - k:.2f} {y1:.2f} {x1 - r:.2f} {y1:.2f} c {x0 + r:.2f} {y1:.2f} l "
            f"{x0 + k:.2f} {y1:.2f} {x0:.2f} {y1 - k:.2f} {x0:.2f} {y1 - r:.2f} c {x0:.2f} {y0 + r:.2f} l "
            f"{x0:.2f} {y0 + k:.2f} {x0 + k:.2f} {y0:.2f} {x0 + r:.2f} {y0:.2f} c h"
        )

    def polyline(self, points: list[tuple[float, float]], colour: Colour, width: float = 1.0, dash: str = "") -> None:
        """A line through `points`; `dash` as in PDF ("3 2")."""
        self._paint(self._path(points), None, colour, width, dash)

    def polygon(self, points: list[tuple[float, float]], fill: Colour) -> None:
        """A filled shape."""
        self._paint(self._path(points) + " h", fill, None, 0)

    def _path(self, points: list[tuple[float, float]]) -> str:
        return " ".join(f"{x:.2f} {self._y(y):.2f} {'l' if i else 'm'}" for i, (x, y) in enumerate(points))

    def wedge(
        self, centre: tuple[float, float], radius: float, start: float, end: float, fill: Colour, edge: Colour
    ) -> None:
        """A slice of a pie; angles in radians, clockwise from twelve o'clock."""
        cx, cy = centre
        steps = max(1, math.ceil((end - start) / (math.pi / 2)))
        arc = (end - start) / steps
        pull = 4 / 3 * math.tan(arc / 4) * radius

        def spot(angle: float, along: float = 0.0) -> str:
            x = cx + radius * math.sin(angle) + along * math.cos(angle)
            y = cy - radius * math.cos(angle) + along * math.sin(angle)
            return f"{x:.2f} {self._y(y):.2f}"

        path = [f"{cx:.2f} {self._y(cy):.2f} m {spot(start)} l"]
        for step in range(steps):
            a, b = start + step * arc, start + (step + 1) * arc
            path.append(f"{spot(a, pull)} {spot(b, -pull)} {spot(b)} c")
        self._paint(" ".join(path) + " h", fill, edge, 0.8)

    def circle(self, centre: tuple[float, float], radius: float, fill: Colour) -> None:
        """A disc."""
        x, y = centre
        self.rect((x - radius, y - radius, x + radius, y + radius), fill=fill, radius=radius)

    def text(self, x: float, baseline: float, text: str, font: Face, size: float, colour: Colour) -> Box:
        """Write `text` from `x` on `baseline`; returns its line box."""
        self.faces.setdefault(font.name)
        codes = "".join(font.glyph(character)[0] for character in text)
        ink = "{:.3f} {:.3f} {:.3f} rg".format(*colour)
        place = f"/{_resource(font.name)} {size:.2f} Tf 1 0 0 1 {x:.2f} {self._y(baseline):.2f} Tm"
        self.operators.append(f"BT {ink} {place} <{codes}> Tj ET")
        box = (x, baseline - font.ascent * size, x + font.width(text, size), baseline - font.descent * size)
        self.ink.append(box)
        return box


def _resource(name: str) -> str:
    return "F" + "".join(character for character in name if character.isalnum())


class Book:
    """Pages in order, and the PDF made of them. outline: what each page is called there."""

    def __init__(self, title: str, author: str = "") -> None:
        self.title, self.author = title, author
        self.pages: list[Canvas] = []
        self.outline: list[str] = []

    def page(self, width: float, height: float) -> Canvas:
        """A new page at the end."""
        self.pages.append(Canvas(width, height))
        return self.pages[-1]

    def pdf(self) -> bytes:
        """The PDF. The same drawing always gives the same bytes."""
        with pymupdf.open() as document:
            names = list(dict.fromkeys(name for canvas in self.pages for name in canvas.faces))
            resources = ""
            for canvas in self.pages:
                page = document.new_page(width=canvas.width, height=canvas.height)
                if not resources:
                    # Every font is embedded once, through the first page, and shared by reference.
                    refs = [(n, page.insert_font(_resource(n), fontbuffer=face(n).font.buffer)) for n in names]
                    resources = f"<</Font<<{''.join(f'/{_resource(n)} {ref} 0 R' for n, ref in refs)}>>>>"
                stream = document.get_new_xref()
                document.update_object(stream, "<<>>")
                document.update_stream(stream, "\n".join(canvas.operators).encode("ascii"), compress=True)
                document.xref_set_key(page.xref, "Contents", f"{stream} 0 R")
                document.xref_set_key(page.xref, "Resources", resources)
            document.subset_fonts()
            document.set_toc([[1, title, number] for number, title in enumerate(self.outline, start=1) if title])
            document.set_metadata(
                {"title": self.title, "author": self.author, "creationDate": DATE, "modDate": DATE, "producer": ""}
            )
            return document.tobytes(garbage=3, deflate=True, no_new_id=True)
