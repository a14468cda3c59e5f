"""What a source file becomes: pages, the frames of a chunk of a video, or the reason why it cannot be used."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image


class SourceError(Exception):
    """A source file, or one page of it, that cannot be used; the message says why."""


@dataclass(frozen=True)
class Still:
    """One frame of a chunk: an RGB image, its second, and its box on the sheet, (x0, y0, x1, y1) in pixels."""

    image: Image.Image
    seconds: float
    box: tuple[int, int, int, int]


@dataclass(frozen=True)
class Rendered:
    """One page: an RGB image, its text layer, and what was done to it that a reader should know ("" if nothing).

    A chunk of a video has its span in seconds and its frames; its image is their sheet.
    """

    image: Image.Image
    text: str = ""
    note: str = ""
    span: tuple[float, float] = (0.0, 0.0)
    stills: tuple[Still, ...] = ()


def in_words(error: Exception) -> str:
    """The first line of what an error says, or its kind."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
