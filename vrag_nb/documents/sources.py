"""The kinds of files a corpus can be made of, and how each becomes page images.

A source kind is one class with two methods, registered by file suffix:

    @source_kind(".pdf")
    class PdfSource(Source): ...

`count` looks at the file without rendering it and raises `SourceError` with a reason a person can act on (empty,
encrypted, too many pages); `render` yields one page at a time. Everything here runs inside worker processes
(`documents.rendering`), so the module imports nothing heavy and keeps no state.

A page of a video is a chunk of it (`documents.video`): a sheet of its frames, with the frames beside it.
"""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from PIL import Image, ImageOps

from vrag_nb.document_names import PICTURE_SUFFIXES, VIDEO_SUFFIXES
from vrag_nb.documents.rendered import Rendered, SourceError, in_words
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.text_layer import text_layer

if TYPE_CHECKING:  # imported where a PDF is opened: it takes two seconds, and only workers need it
    import pymupdf

POINTS_PER_INCH = 72
HARMLESS = re.compile(  # MuPDF's warnings of PDFs in good order, about what is not drawn or not of this page
    r"parent|structure t|outline (node|tree)|\bICC\b|transfer function|output intent|one to many mapping|"
    r"codespace range|ascent|page tree|^\.\.\. repeated",
    re.IGNORECASE,
)


class Source(ABC):
    """A kind of source file. Instances hold nothing; a path comes with every call."""

    @abstractmethod
    def count(self, path: Path, settings: RenderSettings) -> int:
        """The number of pages, at least 1. Raises SourceError when the file cannot be used at all."""

    @abstractmethod
    def render(self, path: Path, first: int, last: int, settings: RenderSettings) -> Iterator[Rendered | SourceError]:
        """Pages `first`..`last` (1-based, inclusive) in order; a page that fails is yielded as its error."""


SOURCE_KINDS: dict[str, Source] = {}
Kind = TypeVar("Kind", bound=type[Source])


def source_kind(*suffixes: str) -> Callable[[Kind], Kind]:
    """Register a Source class for these lower-case suffixes."""

    def register(cls: Kind) -> Kind:
        SOURCE_KINDS.update(dict.fromkeys(suffixes, cls()))
        return cls

    return register


def source_for(path: Path) -> Source:
    """The kind of this file by its suffix. Raises SourceError when there is none."""
    suffix = path.suffix.lower()
    if suffix not in SOURCE_KINDS:
        raise SourceError(f"{suffix or 'no suffix'}: unsupported kind; supported: {', '.join(sorted(SOURCE_KINDS))}")
    return SOURCE_KINDS[suffix]


@source_kind(".pdf")
class PdfSource(Source):
    """PDF through PyMuPDF, which repairs slightly damaged files by itself."""

    def count(self, path: Path, settings: RenderSettings) -> int:
        with _open_pdf(path) as document:
            try:
                pages = document.page_count
            except Exception as error:  # a page tree that leads nowhere
                raise SourceError(f"broken PDF: {in_words(error)}") from None
        if pages == 0:
            raise SourceError("holds no page")
        if pages > settings.max_pages:
            raise SourceError(f"{pages} pages, more than the limit of {settings.max_pages}; raise max_pages to take it")
        return pages

    def render(self, path: Path, first: int, last: int, settings: RenderSettings) -> Iterator[Rendered | SourceError]:
        import pymupdf

        with _open_pdf(path) as document:
            for number in range(first, last + 1):
                try:
                    pymupdf.TOOLS.reset_mupdf_warnings()
                    yield self._page(document[number - 1], settings)
                except Exception as error:  # MuPDF raises a class of its own for every kind of damage
                    yield SourceError(f"cannot be rendered: {in_words(error)}")

    def _page(self, page: pymupdf.Page, settings: RenderSettings) -> Rendered:
        import pymupdf

        width, height = page.rect.width / POINTS_PER_INCH, page.rect.height / POINTS_PER_INCH  # inches
        if not (math.isfinite(width * height) and width > 0 and height > 0):
            raise SourceError("the page has no area")
        fitting = math.floor(math.sqrt(settings.max_page_pixels / (width * height)))
        dpi, note = settings.dpi, ""
        if fitting < dpi:
            if fitting < 1:
                raise SourceError(f"the page is {width:.0f} x {height:.0f} inches, too large at any resolution")
            dpi, note = fitting, f"{width:.0f} x {height:.0f} inches: rendered at {fitting} dpi to fit max_page_pixels"
        # A matrix, not get_pixmap(dpi=...): the latter also writes the dpi into the pixmap, which is of no use here.
        zoom = dpi / POINTS_PER_INCH
        pixels = page.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), colorspace=pymupdf.csRGB, alpha=False)
        image = Image.frombytes("RGB", (pixels.width, pixels.height), pixels.samples)
        text = clean_text(text_layer(_words(page)))
        return Rendered(image, text, "; ".join(filter(None, [note, _damage(page)])))


@source_kind(*PICTURE_SUFFIXES)
class ImageSource(Source):
    """A picture of a page, at its own resolution. A multi-page TIFF is a document of its frames, a GIF its first."""

    def count(self, path: Path, settings: RenderSettings) -> int:
        with _open_image(path) as image:
            try:
                frames = getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
            except Exception as error:  # its directories lead nowhere
                raise SourceError(f"broken image: {in_words(error)}") from None
        if frames > settings.max_pages:
            raise SourceError(f"{frames} frames, more than the limit of {settings.max_pages}; raise max_pages")
        return frames

    def render(self, path: Path, first: int, last: int, settings: RenderSettings) -> Iterator[Rendered | SourceError]:
        with _open_image(path) as image:
            for number in range(first, last + 1):
                try:
                    image.seek(number - 1)
                    yield picture_page(image, settings)
                except Exception as error:
                    yield SourceError(f"cannot be read: {in_words(error)}")


@source_kind(*VIDEO_SUFFIXES)
class VideoSource(Source):
    """Video through PyAV; a page is a chunk."""

    def count(self, path: Path, settings: RenderSettings) -> int:
        from vrag_nb.documents import video  # here: only workers open videos

        try:
            return video.count_chunks(path, settings)
        except SourceError:
            raise
        except Exception as error:  # damage that FFmpeg took for a video
            raise SourceError(f"broken video: {in_words(error)}") from None

    def render(self, path: Path, first: int, last: int, settings: RenderSettings) -> Iterator[Rendered | SourceError]:
        from vrag_nb.documents import video

        try:
            yield from video.render_chunks(path, first, last, settings)
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"cannot be read: {in_words(error)}") from None


def picture_page(image: Image.Image, settings: RenderSettings) -> Rendered:
    """An opened picture as a page: upright, RGB on white, scaled down where it is too large.

    Pictures of 32-bit numbers, whose black and white no format fixes, are stretched from their least value to their
    largest.

    Raises SourceError for one too large to be decoded, and Pillow's errors for one that is broken.
    """
    width, height = image.size
    # Decoding needs all of it in memory at once: a bomb is refused by its header, before any pixel is read.
    if width * height > 16 * settings.max_page_pixels:
        raise SourceError(f"{width} x {height} pixels, far over max_page_pixels; scale it down or raise the limit")
    flat, note = _on_white(ImageOps.exif_transpose(image)), ""
    if image.mode in ("I", "F"):
        note = "32-bit values: stretched to shades from black to white"
    if width * height <= settings.max_page_pixels:
        return Rendered(flat, note=note)
    scale = math.sqrt(settings.max_page_pixels / (width * height))
    size = (max(1, int(flat.width * scale)), max(1, int(flat.height * scale)))
    scaled = f"{width} x {height} pixels: scaled to {size[0]} x {size[1]} to fit max_page_pixels"
    return Rendered(flat.resize(size, Image.Resampling.LANCZOS), note="; ".join(filter(None, [note, scaled])))


@contextmanager
def _open_pdf(path: Path) -> Iterator[pymupdf.Document]:
    import pymupdf

    pymupdf.TOOLS.mupdf_display_errors(False)  # its complaints go to the report, not to stderr
    pymupdf.TOOLS.mupdf_display_warnings(False)
    if path.stat().st_size == 0:
        raise SourceError("the file is empty (zero bytes)")
    try:
        document = pymupdf.open(path, filetype="pdf")
    except Exception as error:
        raise SourceError(f"broken PDF: {in_words(error).replace(str(path), path.name)}") from None
    with document:
        if document.needs_pass:
            raise SourceError("encrypted: a password is needed; decrypt it first")
        if not document.is_pdf:  # MuPDF goes by the content: it lays out web pages and opens pictures
            kind = (document.metadata or {}).get("format") or "another kind of file"
            raise SourceError(f"no PDF but {kind}: get the PDF itself, or name the file by its own kind")
        yield document


def _words(page: pymupdf.Page) -> list[tuple]:
    """The page's words, (x0, y0, x1, y1, text, ...) in points of the page as it is shown."""
    import pymupdf

    words = page.get_text("words")
    if not page.rotation:
        return words
    shown = page.rotation_matrix  # the boxes are those of the page before its /Rotate
    return [(*(pymupdf.Rect(word[:4]) * shown), *word[4:]) for word in words]


def _damage(page: pymupdf.Page) -> str:
    """What MuPDF passed over since its warnings were reset, while it drew and read the page; "" for nothing."""
    import pymupdf

    if page.parent.is_repaired:
        return "of a damaged PDF that was repaired: something may be missing"
    if page.parent.xref_object(page.xref) == "null":
        return "damaged: the PDF counts a page here and lacks it"
    said = [line for line in pymupdf.TOOLS.mupdf_warnings().splitlines() if not HARMLESS.search(line)]
    return f"damaged ({said[0]}): something may be missing" if said else ""


@contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    if path.stat().st_size == 0:
        raise SourceError("the file is empty (zero bytes)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(path)
        except Exception as error:
            with path.open("rb") as file:
                if file.read(5) == b"%PDF-":
                    raise SourceError("no image but a PDF: name it .pdf") from None
            raise SourceError(f"broken image: {in_words(error).replace(str(path), path.name)}") from None
        with image:
            yield image


def _on_white(image: Image.Image) -> Image.Image:
    """An RGB copy; what is transparent becomes paper."""
    if image.mode in ("I", "F"):
        image = _stretched(image)
    elif image.mode.startswith("I;16"):  # 16-bit scans: Pillow's own conversion would clip them
        image = image.convert("F").point(lambda value: value / 257.0).convert("L")
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(paper, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _stretched(image: Image.Image) -> Image.Image:
    """32-bit numbers as shades; one value everywhere, and what is no number, is white."""
    import numpy as np

    values = np.asarray(image, dtype=np.float64)
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    shades = (values - low) / (high - low) if high > low else np.ones_like(values)
    return Image.fromarray(np.round(255 * np.nan_to_num(shades, nan=1.0, posinf=1.0, neginf=1.0)).astype(np.uint8))


def clean_text(text: str) -> str:
    """The text layer without NULs and lone surrogates (parquet and JSON refuse them) and without trailing blanks."""
    text = text.replace("\x00", "").encode("utf-8", "ignore").decode("utf-8")
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
