"""Videos as chunks of sampled frames: what a page is to a document.

    for chunk in render_chunks(path, 1, 3, settings):
        chunk.image                                 # the sheet: a grid of the chunk's frames, each under its second
        chunk.stills                                # the frames

A chunk is `VideoSettings.chunk_seconds` long, the last one maybe shorter. Its frames are what is on screen at evenly
spaced moments; a picture that stands still over several of them is there once, at the first. Packets that cannot be
decoded cost the frames that need them, and the chunk's note says so; a chunk without any frame is an error of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from av.error import FFmpegError
from av.video.frame import VideoFrame
from PIL import Image, ImageDraw, ImageFont, ImageOps

from vrag_nb.documents.film import Film, decode, probe
from vrag_nb.documents.rendered import Rendered, SourceError, Still
from vrag_nb.documents.settings import RenderSettings, VideoSettings
from vrag_nb.records import timed

Box = tuple[int, int, int, int]
GAP = 4  # pixels between the frames of a sheet


def count_chunks(path: Path, settings: RenderSettings) -> int:
    """How many chunks the video has. Raises SourceError when not one frame of it can be used."""
    film = probe(path)
    if film.width * film.height > settings.max_page_pixels:
        raise SourceError(f"frames of {film.width} x {film.height} pixels, more than max_page_pixels; raise the limit")
    chunks = math.ceil(round(film.seconds / settings.video.chunk_seconds, 6))
    if chunks > settings.max_pages:
        raise SourceError(f"{chunks} chunks, more than the limit of {settings.max_pages}; raise max_pages to take it")
    if next(decode(path, film, film.stamps[0], settings.max_page_pixels), None) is None:
        raise SourceError("not one frame can be decoded")
    return max(1, chunks)


def render_chunks(path: Path, first: int, last: int, settings: RenderSettings) -> Iterator[Rendered | SourceError]:
    """Chunks `first`..`last` (1-based, inclusive) in order; one without a frame is yielded as its error."""
    film = probe(path)
    spans = [_span(film, number, settings.video) for number in range(first, last + 1)]
    sampled = [sample(film, start, end, settings.video) for start, end in spans]
    wanted = sorted({stamp for some in sampled for _, stamp in some})
    decoded = _wanted_frames(path, film, wanted, settings)
    pictures: dict[int, tuple[Image.Image, str]] = {}
    reached = -math.inf
    for span, some in zip(spans, sampled, strict=True):
        while reached < some[-1][1] and (found := next(decoded, None)) is not None:
            reached = found[0]
            pictures[found[0]] = found[1:]
        note = film.note if math.isclose(span[1], film.seconds) else ""
        yield _chunk(span, some, pictures, note, settings.video)
        pictures = {stamp: picture for stamp, picture in pictures.items() if stamp >= some[-1][1]}


def sample(film: Film, start: float, end: float, settings: VideoSettings) -> list[tuple[float, int]]:
    """(seconds, stamp) of the frames that stand for `start`..`end`, each picture once."""
    found: dict[int, float] = {}
    for seconds in moments(start, end, settings):
        found.setdefault(film.on_screen(seconds), seconds)
    return [(seconds, stamp) for stamp, seconds in sorted(found.items())]


def moments(start: float, end: float, settings: VideoSettings) -> list[float]:
    """The evenly spaced seconds that stand for `start`..`end`."""
    length = end - start
    count, step = max(1, math.ceil(length * settings.frame_rate - 1e-6)), 1 / settings.frame_rate
    if count > settings.max_frames:
        count, step = settings.max_frames, length / settings.max_frames
    return [round(start + number * step, 3) for number in range(count)]


def sheet(pictures: Sequence[Image.Image], seconds: Sequence[float], max_pixels: int) -> tuple[Image.Image, list[Box]]:
    """The pictures in a grid, left to right and down, each under its second; and their boxes on it, in pixels.

    The grid is the one nearest 4:3. All pictures together have at most `max_pixels`, and none is magnified.
    """
    width, height = pictures[0].size
    columns = _columns(len(pictures), width, height)
    rows = -(-len(pictures) // columns)
    scale = min(1.0, math.sqrt(max_pixels / (columns * rows * width * height)))
    width, height = max(1, int(width * scale)), max(1, int(height * scale))
    strip = max(14, height // 10)
    font = ImageFont.load_default(0.8 * strip)
    image = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + strip + GAP) + GAP), "white")
    draw, boxes = ImageDraw.Draw(image), []
    for number, (picture, second) in enumerate(zip(pictures, seconds, strict=True)):
        x, y = GAP + number % columns * (width + GAP), GAP + number // columns * (height + strip + GAP)
        draw.text((x, y + strip / 2), timed(second), "black", font, anchor="lm")
        small = ImageOps.contain(picture, (width, height), Image.Resampling.LANCZOS) if scale < 1 else picture
        small = small if small.width <= width and small.height <= height else ImageOps.contain(small, (width, height))
        image.paste(small, (x, y + strip))
        boxes.append((x, y + strip, x + small.width, y + strip + small.height))
    return image, boxes


def _columns(count: int, width: int, height: int) -> int:
    def strangeness(columns: int) -> float:
        return abs(math.log(columns * width / (-(-count // columns) * height) * 3 / 4))

    return min(range(1, count + 1), key=strangeness)


def _span(film: Film, number: int, settings: VideoSettings) -> tuple[float, float]:
    start = (number - 1) * settings.chunk_seconds
    return round(start, 3), round(min(start + settings.chunk_seconds, film.seconds), 3)


def _chunk(
    span: tuple[float, float],
    moments: Sequence[tuple[float, int]],
    pictures: dict[int, tuple[Image.Image, str]],
    note: str,
    settings: VideoSettings,
) -> Rendered | SourceError:
    there = [(seconds, *pictures[stamp]) for seconds, stamp in moments if stamp in pictures]
    where = f"{timed(span[0])} to {timed(span[1])}"
    if not there:
        return SourceError(f"{where}: no frame of it can be decoded" + (f" ({note})" if note else ""))
    notes = dict.fromkeys([note, *(odd for _, _, odd in there)])
    if len(there) < len(moments):
        notes[f"{len(moments) - len(there)} of {len(moments)} frames cannot be decoded"] = None
    image, boxes = sheet([picture for _, picture, _ in there], [one[0] for one in there], settings.max_sheet_pixels)
    stills = tuple(Still(picture, seconds, box) for (seconds, picture, _), box in zip(there, boxes, strict=True))
    said = "; ".join(filter(None, notes))
    return Rendered(image, note=f"{where}: {said}" if said else "", span=span, stills=stills)


def _wanted_frames(
    path: Path, film: Film, wanted: Sequence[int], settings: RenderSettings
) -> Iterator[tuple[int, Image.Image, str]]:
    """(stamp, picture, note) of the wanted frames that can be decoded, in order."""
    left = set(wanted)
    for stamp, frame in decode(path, film, wanted[0], settings.max_page_pixels):
        if stamp in left and not frame.is_corrupt:
            left.discard(stamp)
            try:
                yield stamp, *_picture(frame, film, settings.video.max_frame_pixels)
            except (FFmpegError, ValueError, MemoryError):
                continue  # counted among the frames that cannot be decoded
        if stamp >= wanted[-1]:
            return


def _picture(frame: VideoFrame, film: Film, max_pixels: int) -> tuple[Image.Image, str]:
    """The frame upright, with square pixels, as RGB, at most `max_pixels` of it; and what is odd about it."""
    wide = frame.width * film.aspect
    scale = min(1.0, math.sqrt(max_pixels / (wide * frame.height)))
    width, height = max(1, int(wide * scale)), max(1, int(frame.height * scale))
    method = "AREA" if scale < 1 else "BICUBIC"
    image = frame.reformat(width, height, "rgb24", interpolation=method, threads=1).to_image()
    if any(component.is_alpha for component in frame.format.components):
        cover = Image.fromarray(frame.reformat(width, height, "rgba", interpolation=method, threads=1).to_ndarray())
        if cover.getchannel("A").getextrema() != (255, 255):  # what is transparent becomes paper, as in pictures
            image = Image.alpha_composite(Image.new("RGBA", cover.size, "white"), cover).convert("RGB")
    turns, rest = divmod(round(frame.rotation), 90)
    if rest:
        return image, f"turned by {frame.rotation} degrees, which is left as it is"
    return image.rotate(90 * (turns % 4), expand=True) if turns % 4 else image, ""
