"""Pages as PNG files: every pixel as it was, the same bytes again, and not much larger than Pillow's."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from vrag_nb.documents.png import png_bytes


def page(photo: bool) -> Image.Image:
    image = Image.new("RGB", (300, 200), "white")
    draw = ImageDraw.Draw(image)
    for row in range(10):
        draw.text((10, 18 * row), f"Row {row} of a page with words and {row * 37} figures", fill=(20, 20, 20 + row))
    if photo:
        noise = np.random.default_rng(0).normal(0, 3, (200, 300, 3)).cumsum(axis=0)
        image = Image.fromarray((128 + noise).clip(0, 255).astype("uint8"))
    return image


@given(width=st.integers(1, 90), height=st.integers(1, 60), colours=st.integers(1, 256), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_every_pixel_is_kept(width, height, colours, seed):
    pixels = np.random.default_rng(seed).integers(0, colours, (height, width, 3)).astype("uint8")
    written = png_bytes(Image.fromarray(pixels))
    with Image.open(io.BytesIO(written)) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        assert np.array_equal(np.asarray(image), pixels)
    assert png_bytes(Image.fromarray(pixels)) == written


@pytest.mark.parametrize("photo", [False, True])
def test_files_are_not_much_larger_than_pillows(photo):
    stream = io.BytesIO()
    page(photo).save(stream, "PNG")
    assert len(png_bytes(page(photo))) < 1.2 * len(stream.getvalue())
