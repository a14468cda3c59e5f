"""Pages of a PDF filmed: one after another on screen, now and then with a box over a corner."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import pymupdf
from PIL import Image, ImageDraw, ImageFont, ImageOps

SIZE = (960, 540)  # pixels of the video
RATE = 4  # frames a second


@dataclass(frozen=True)
class Overlay:
    """A box over the page: what it says, in which corner (0..3), and from which second to which."""

    label: str
    value: str
    corner: int
    start: int
    end: int


@dataclass(frozen=True)
class Shot:
    """A page (1-based) on screen from second `start` to `end`, maybe with an overlay for a part of that."""

    page: int
    start: int
    end: int
    overlay: Overlay | None = None


def film_pages(pdf: bytes, shots: Sequence[Shot]) -> bytes:
    """The video (MP4, H.264) in which the PDF's pages are on screen as the shots say."""
    with pymupdf.open(stream=pdf, filetype="pdf") as document:
        return _encode([_page(page) for page in document], shots)


def _page(page: pymupdf.Page) -> Image.Image:
    zoom = min(SIZE[0] / page.rect.width, SIZE[1] / page.rect.height)
    pixels = page.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), colorspace=pymupdf.csRGB, alpha=False)
    return framed(Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples))


def framed(page: Image.Image) -> Image.Image:
    """The picture of a page in the middle of the video's frame."""
    return ImageOps.pad(page, SIZE, Image.Resampling.LANCZOS, "black")


def with_box(image: Image.Image, overlay: Overlay) -> Image.Image:
    """The frame with the overlay's box over a corner of it."""
    image = image.copy()
    draw = ImageDraw.Draw(image)
    small, large = ImageFont.load_default(26), ImageFont.load_default(44)
    width = int(max(draw.textlength(overlay.label, small), draw.textlength(overlay.value, large))) + 48
    height, margin = 124, 24
    x = margin if overlay.corner % 2 == 0 else SIZE[0] - margin - width
    y = margin if overlay.corner < 2 else SIZE[1] - margin - height
    draw.rectangle((x, y, x + width, y + height), fill="#ffe14d", outline="black", width=4)
    draw.text((x + 24, y + 16), overlay.label, "black", small)
    draw.text((x + 24, y + 54), overlay.value, "black", large)
    return image


def _encode(pages: Sequence[Image.Image], shots: Sequence[Shot]) -> bytes:
    """The shots as an MP4. One thread and no dates or versions in the file: the same shots give the same pictures."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        options = {"crf": "20", "preset": "veryfast", "tune": "stillimage", "threads": "1", "g": str(10 * RATE)}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.thread_count = 1
        for shot in shots:
            plain = _frame(pages[shot.page - 1])
            boxed = _frame(with_box(pages[shot.page - 1], shot.overlay)) if shot.overlay else plain
            for number in range(shot.start * RATE, shot.end * RATE):
                over = shot.overlay and shot.overlay.start * RATE <= number < shot.overlay.end * RATE
                frame = boxed if over else plain
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def _frame(image: Image.Image) -> av.VideoFrame:
    return av.VideoFrame.from_image(image).reformat(format="yuv420p", threads=1)
