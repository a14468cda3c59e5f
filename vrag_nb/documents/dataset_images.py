"""Images of a data set as page images: as they are where that will do, else laid on white, upright and in size.

Everything here runs inside worker processes, so the module imports nothing heavy and keeps no state.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import ExifTags, Image, UnidentifiedImageError

from vrag_nb.documents.png import png_bytes
from vrag_nb.documents.rendered import SourceError, in_words
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.sources import picture_page
from vrag_nb.files import write_bytes

SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp"}  # what browsers show


@dataclass(frozen=True)
class Picture:
    """A row's image as the data set has it, to become the file `{name}` and a suffix."""

    row: int
    name: str
    content: bytes


@dataclass(frozen=True)
class PictureTask:
    """Pictures of block `number` to be written into the folder `pages`."""

    number: int
    pictures: tuple[Picture, ...]
    pages: Path
    settings: RenderSettings


@dataclass(frozen=True)
class Kept:
    """One picture on disk, width x height pixels, or (`error`) why there is none."""

    row: int
    file: str = ""
    width: int = 0
    height: int = 0
    size: int = 0  # of the file, in bytes
    sha256: str = ""
    note: str = ""
    error: str = ""


def write_pictures(task: PictureTask) -> list[Kept]:
    """Write a task's pictures. Never raises for a bad one: it comes back with its error."""
    return [_written(picture, task.pages, task.settings) for picture in task.pictures]


def _written(picture: Picture, pages: Path, settings: RenderSettings) -> Kept:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(picture.content)) as image:
                return _kept(picture, image, pages, settings)
    except UnidentifiedImageError:  # whose message is an address in memory
        return Kept(picture.row, error="broken image: of no kind that is known")
    except SourceError as error:
        return Kept(picture.row, error=str(error))
    except Exception as error:  # Pillow raises many kinds for damage
        return Kept(picture.row, error=f"broken image: {in_words(error)}")


def _kept(picture: Picture, image: Image.Image, pages: Path, settings: RenderSettings) -> Kept:
    why = _why_changed(image, settings)
    if not why:
        image.load()
        file = picture.name + SUFFIXES[str(image.format)]
        digest = _write(pages / file, picture.content)
        return Kept(picture.row, file, image.width, image.height, len(picture.content), digest)
    page = picture_page(image, settings)
    file = f"{picture.name}.png"
    content = png_bytes(page.image)
    digest, note = _write(pages / file, content), page.note or f"{why}: kept as PNG"
    return Kept(picture.row, file, page.image.width, page.image.height, len(content), digest, note)


def _why_changed(image: Image.Image, settings: RenderSettings) -> str:
    """Why the image cannot stay as it is; "" where it can."""
    if image.width * image.height > settings.max_page_pixels:
        return "too large"
    if image.format not in SUFFIXES:
        return f"an image of kind {image.format}"
    if getattr(image, "n_frames", 1) > 1:
        return "the first of several frames"
    if image.mode not in ("RGB", "L", "1", "P", "RGBA", "LA", "PA"):
        return f"an image of mode {image.mode}"
    if image.has_transparency_data:
        return "transparent, laid on white"
    if image.getexif().get(ExifTags.Base.Orientation, 1) not in (0, 1):
        return "turned upright"
    return ""


def _write(path: Path, content: bytes) -> str:
    """Write a file; its sha256."""
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()
