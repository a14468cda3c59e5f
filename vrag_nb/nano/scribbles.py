"""Scribbles: small images of random text lines, the first thing a vision tower reads.

Words come from English prose (the topics of Python's own manual), numbers from every format a page may hold. Fonts are
those that matplotlib, pymupdf-fonts and `packaged_fonts` carry, so that a bare machine draws the same images.
`difficulty` in 0..1 widens fonts, sizes, colours and alphabet; the trainer raises it when the measured accuracy allows.
"""

from __future__ import annotations

import io
import random
import re
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib
import pymupdf_fonts
from PIL import Image, ImageDraw, ImageFont

from vrag_nb.documents.packaged_fonts import PACKAGED, font_file
from vrag_nb.nano.glyphs import Glyph


@cache
def font_sources() -> list[bytes]:
    """Latin text fonts, the plainest first (DejaVu Sans), as TTF/OTF bytes."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    names = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "STIXGeneralBol"]
    sources = [(folder / f"{name}.ttf").read_bytes() for name in [*names, "DejaVuSans-Oblique", "DejaVuSerif-Bold"]]
    for name in sorted(pymupdf_fonts.fontdescriptors):
        if not any(part in name for part in ("math", "symbol", "emoji", "music")):
            sources.append(pymupdf_fonts.fontbuffers[name]())
    faces = dict.fromkeys(face for pair in PACKAGED.values() for face in pair)
    return sources + [font_file(face).read_bytes() for face in faces]


@cache
def sized_font(index: int, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(io.BytesIO(font_sources()[index]), size)


@cache
def vocabulary() -> list[str]:
    """English words in first-seen order."""
    return list(dict.fromkeys(re.findall(r"[A-Za-z]{2,11}", " ".join(topics.values()))))


def random_number(rng: random.Random) -> str:
    """A number as pages print them: years, decimals, thousands separators, units."""
    kind = rng.randrange(8)
    if kind == 0:
        return str(rng.randint(1900, 2030))
    if kind == 1:
        return f"{rng.uniform(0, 100):.{rng.randint(1, 2)}f}"
    if kind == 2:
        return f"{rng.randint(1000, 9_999_999):,}"
    if kind == 3:
        return f"{rng.randint(0, 100)}%"
    if kind == 4:
        return f"{rng.choice('$€£')}{rng.uniform(1, 999):,.{rng.choice([0, 2])}f}"
    if kind == 5:
        return f"-{rng.uniform(0, 50):.1f}"
    if kind == 6:
        return f"{rng.uniform(0, 200):.{rng.randint(0, 2)}f}{rng.choice(['°C', '°F', '°', 'kg', 'km', 'k', 'M', 'h'])}"
    return str(rng.randint(0, 99_999))


def random_word(rng: random.Random) -> str:
    """A word of English, or letters that make none, in some capitalisation."""
    if rng.random() < 0.75:
        word = rng.choice(vocabulary())
    else:
        word = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 9)))
    return rng.choice([str.lower, str.lower, str.capitalize, str.capitalize, str.upper])(word)


def random_line(rng: random.Random, difficulty: float, words: int) -> str:
    """A line of `words` words and numbers; digits alone at difficulty 0."""
    parts = []
    for _ in range(words):
        if rng.random() > 0.15 + 0.5 * min(difficulty * 3, 1):
            parts.append(random_number(rng) if difficulty > 0.05 else str(rng.randint(0, 999_999)))
        else:
            parts.append(random_word(rng) + (rng.choice(",.:;)") if rng.random() < 0.15 else ""))
    return " ".join(parts)


def random_colours(rng: random.Random, difficulty: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if rng.random() > difficulty:
        return (255, 255, 255), (0, 0, 0)
    while True:
        paper, ink = (tuple(rng.randint(0, 255) for _ in range(3)) for _ in range(2))
        if rng.random() < 0.6:
            paper = tuple(255 - c // 8 for c in paper)
        if abs(sum(paper) - sum(ink)) > 240:
            return paper, ink


def scribble(rng: random.Random, columns: int, rows: int, difficulty: float) -> tuple[Image.Image, list[Glyph]]:
    """An image of columns x rows squares of 28 px full of text, and its glyphs in shown pixels.

    The text is drawn larger and scaled down, as the agent's own resizing does to a page.
    """
    width, height = columns * 28, rows * 28
    scale = rng.choice([1.0, 1.3, 1.7, 2.3]) if difficulty > 0.1 else 1.0
    paper, ink = random_colours(rng, difficulty)
    image = Image.new("RGB", (round(width * scale), round(height * scale)), paper)
    draw = ImageDraw.Draw(image)
    fonts = font_sources()
    glyphs: list[Glyph] = []
    y, line = rng.uniform(0, 10), 0
    while True:
        choice = rng.randrange(max(1, round(len(fonts) * difficulty)))
        low = 13 - 4.5 * min(1.0, difficulty * 1.5)
        size = max(6, round(rng.uniform(low, 20 + 6 * difficulty) * scale))
        font = sized_font(choice, size)
        if y * scale + size * 1.2 > image.height:
            break
        x = rng.uniform(0, width / 3 if difficulty > 0.1 else 12) * scale
        text = random_line(rng, difficulty, rng.randint(1, 9))
        while text and x + font.getlength(text) > image.width:
            text = text[:-1]
        draw.text((x, y * scale), text, font=font, fill=ink)
        edges = [x + font.getlength(text[:n]) for n in range(len(text) + 1)]
        centre = y + size / scale * 0.62
        glyphs += [Glyph(c, (a + b) / 2 / scale, centre, line) for c, a, b in zip(text, edges, edges[1:], strict=False)]
        y += size / scale * rng.uniform(1.2, 1.9)
        line += 1
    if scale != 1.0:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return image, glyphs
