"""Page images as PNG: of pages about as small as Pillow's, in a third of its time.

Pillow tries every filter on every row. One filter a page is enough: none where the page has few colours (text and
drawings repeat themselves, which the compression finds by itself), "up" where it has many (photographs); then a light
compression does. FFmpeg's encoder, through PyAV, can be told so. `benchmarks/pages.py` prints time and size.
"""

from __future__ import annotations

from fractions import Fraction

import av
from PIL import Image

FEW_COLOURS = 4000
LEVEL = 3  # of zlib, 1 to 9; from 4 on it takes twice as long for some hundredths of the size


def png_bytes(image: Image.Image) -> bytes:
    """An RGB image as the bytes of a PNG file. The same image gives the same bytes."""
    flat = image.getcolors(FEW_COLOURS) is not None
    encoder = av.CodecContext.create("png", "w")
    encoder.width, encoder.height = image.size
    encoder.pix_fmt, encoder.time_base = "rgb24", Fraction(1)
    encoder.thread_count = 1  # the cores are busy with other pages
    encoder.options = {"pred": "none" if flat else "up", "compression_level": str(LEVEL)}
    frame = av.VideoFrame.from_image(image)
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])
