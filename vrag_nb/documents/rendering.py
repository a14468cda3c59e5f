"""Rendering in a worker process: blocks of a source file's pages become image files, and what was made is told.

start_worker()                                  # once, in every worker
count_pages(source, settings)                   # or the reason why the file cannot be used
render_block(Block(source, "report", 1, 16, pages, settings))
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from dataclasses import dataclass
from multiprocessing import parent_process
from pathlib import Path

from PIL import Image

from vrag_nb.documents.rendered import Rendered, SourceError, in_words
from vrag_nb.documents.settings import FORMATS, RenderSettings
from vrag_nb.documents.sources import source_for
from vrag_nb.files import replacing
from vrag_nb.records import Clip, Frame


@dataclass(frozen=True)
class Block:
    """Pages `first`..`last` of one source file, to be written as `{pages}/{document}_{page}.{format}`."""

    source: Path
    document: str
    first: int
    last: int
    pages: Path
    settings: RenderSettings


@dataclass(frozen=True)
class Written:
    """One page of a block: its image on disk, or (`error`) why there is none."""

    page: int
    width: int = 0
    height: int = 0
    sha256: str = ""  # of the image file
    text: str = ""
    note: str = ""
    error: str = ""
    retry: bool = False  # the machine may be at fault, and another run is to try again
    video: Clip | None = None


def start_worker() -> None:
    """Let a worker end with its parent: a killed parent would otherwise leave it waiting for work for ever."""
    Image.MAX_IMAGE_PIXELS = None  # our own limit is checked before decoding
    sys.modules.setdefault("pymupdf.layout", None)  # type: ignore[arg-type]  # its models take seconds to load
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def count_pages(source: Path, settings: RenderSettings) -> int | str:
    """The number of pages of a source file, or the reason why it cannot be used. Raises where the machine failed."""
    try:
        return source_for(source).count(source, settings)
    except (SourceError, OSError, MemoryError) as error:
        if _of_the_machine(error):
            raise
        return in_words(error)


def _of_the_machine(error: Exception) -> bool:
    """Whether the disk or the memory failed and not the file; an image that ends early is an OSError without errno."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def render_block(block: Block) -> list[Written]:
    """Render and write a block of pages. Never raises for a bad file: a page that fails comes back with its error."""
    written = []
    numbers = range(block.first, block.last + 1)
    try:
        rendered = source_for(block.source).render(block.source, block.first, block.last, block.settings)
        for number, page in zip(numbers, rendered, strict=True):
            written.append(_write_page(block, number, page))
    except (SourceError, OSError, MemoryError) as error:
        lost, retry = numbers[len(written) :], _of_the_machine(error)
        written += [Written(number, error=in_words(error), retry=retry) for number in lost]
    return written


def _write_page(block: Block, number: int, page: Rendered | SourceError) -> Written:
    if isinstance(page, SourceError):
        return Written(number, error=str(page))
    name, suffix = f"{block.document}_{number}", block.settings.image_format
    frames = []
    for count, still in enumerate(page.stills, start=1):
        file = f"{name}.{count:03d}.{suffix}"  # no page's name: that ends in `_` and a number
        digest = _save(still.image, block.pages / file, block.settings)
        width, height = still.image.size
        image = f"{block.pages.name}/{file}"
        frames.append(
            Frame(seconds=still.seconds, image=image, width=width, height=height, box=still.box, sha256=digest)
        )
    digest = _save(page.image, block.pages / f"{name}.{suffix}", block.settings)
    clip = Clip(start=page.span[0], end=page.span[1], frames=frames) if frames else None
    return Written(number, page.image.width, page.image.height, digest, page.text, page.note, video=clip)


def _save(image: Image.Image, path: Path, settings: RenderSettings) -> str:
    """Write an image; the sha256 of the file."""
    with replacing(path) as temporary:
        if settings.image_format == "png":
            from vrag_nb.documents.png import png_bytes  # here: only workers write pages

            temporary.write_bytes(png_bytes(image))
        else:
            image.save(temporary, format=FORMATS[settings.image_format], quality=settings.quality, subsampling=0)
        return hashlib.sha256(temporary.read_bytes()).hexdigest()
