"""What decides the bytes of a corpus: how pages are rendered and videos cut and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vrag_nb.document_names import VIDEO_SUFFIXES

FORMATS = {"png": "PNG", "jpg": "JPEG"}  # file suffix -> Pillow's name


@dataclass(frozen=True)
class VideoSettings:
    """How a video becomes chunks and frames.

    chunk_seconds: length of a chunk; the last one may be shorter. frame_rate: frames sampled a second; max_frames: at
    most so many in a chunk, then further apart. max_frame_pixels: a larger frame is scaled down to fit (the official
    VimRAG demo's bound). max_sheet_pixels: of a chunk's sheet without its labels.
    """

    chunk_seconds: float = 10.0
    frame_rate: float = 1.0
    max_frames: int = 16
    max_frame_pixels: int = 401_408
    max_sheet_pixels: int = 1280 * 28 * 28

    def __post_init__(self) -> None:
        for name in ("max_frames", "max_frame_pixels", "max_sheet_pixels"):
            if not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} {getattr(self, name)} is not a whole number")
        if not 0.1 <= self.chunk_seconds <= 86_400:
            raise ValueError(f"chunk_seconds {self.chunk_seconds} is not in 0.1..86400")
        if not 0.001 <= self.frame_rate <= 240:
            raise ValueError(f"frame_rate {self.frame_rate} is not in 0.001..240")
        if not 1 <= self.max_frames <= 1000:
            raise ValueError(f"max_frames {self.max_frames} is not in 1..1000")
        if min(self.max_frame_pixels, self.max_sheet_pixels) < 1000:
            raise ValueError("max_frame_pixels and max_sheet_pixels must be 1000 or more")


@dataclass(frozen=True)
class RenderSettings:
    """What decides the bytes of a page image. A document rendered with other settings is rendered anew.

    `max_pages`: a longer document (a video of more chunks) is skipped. `max_page_pixels`: a larger page is rendered at
    a lower dpi (an image is scaled down) so that it fits; a video of larger frames is skipped. `quality` is JPEG's and
    ignored for PNG. `video` is videos' and counts for nothing else.
    """

    dpi: int = 150
    image_format: str = "png"
    quality: int = 90
    max_pages: int = 2000
    max_page_pixels: int = 16_000_000
    video: VideoSettings = VideoSettings()

    def __post_init__(self) -> None:
        if self.image_format not in FORMATS:
            raise ValueError(f"image_format {self.image_format!r} is not one of {', '.join(FORMATS)}")
        if not 18 <= self.dpi <= 1200:
            raise ValueError(f"dpi {self.dpi} is not in 18..1200")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality {self.quality} is not in 1..100")
        if self.max_pages < 1 or self.max_page_pixels < 10_000:
            raise ValueError("max_pages must be 1 or more, max_page_pixels 10000 or more")

    def for_files(self, files: Sequence[Path]) -> dict[str, int | float | str]:
        """The settings that decide the bytes of these files' pages, as they are recorded."""
        settings = asdict(self)
        video = settings.pop("video")
        return settings | (video if any(file.suffix.lower() in VIDEO_SUFFIXES for file in files) else {})
