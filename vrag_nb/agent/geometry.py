"""Pixels: how large the model sees an image, and where its boxes lie on the page.

Two frames. *Page pixels* count on the page image as it lies on disk. *Shown pixels* count on an image as the model saw
it: the page, or a crop of it, resized to a pixel budget with sides that are multiples of 28 (patch 14 x merge 2).

Upstream formulates a crop (VRAG-RL, arXiv 2505.22019, eq. 2) as a scaling from shown to page pixels. That is right for
a box on a whole page and wrong for a box on a crop, and the released training code applies the crop's scale to the
whole page after two crops in a row. Here every shown image is a `View`: it knows which rectangle of the page it shows,
so a crop of a crop of a crop composes, and every crop is taken from the page at full resolution.

    view = View.whole(page_size, budget)
    view = view.crop((x1, y1, x2, y2), padding=8)      # box and padding in shown pixels of `view`
    image = render(page_image, view.crop_box, view.shown_size)

Qwen3-VL counts on a [0, 1000] scale; policies convert at their edge with `from_thousandths` / `to_thousandths`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image

Box = tuple[float, float, float, float]
PixelBox = tuple[int, int, int, int]
Size = tuple[int, int]

MIN_CROP = 4  # page pixels, both ways: below this there is nothing to see
_MAX_RATIO = 200  # smart_resize refuses longer strips


class CropError(ValueError):
    """A box that cannot be cropped; its text is told to the model."""


@dataclass(frozen=True)
class Budget:
    """How many pixels one image may have when shown: `min_pixels <= width * height <= max_pixels`.

    Sides are multiples of `factor`; one image token covers factor x factor pixels. Raises ValueError when no such size
    exists.
    """

    min_pixels: int
    max_pixels: int
    factor: int = 28

    def __post_init__(self) -> None:
        if self.factor < 1 or self.min_pixels < 0 or self.least_tokens > self.most_tokens:
            raise ValueError(
                f"no image size of {self.factor}-pixel squares has between {self.min_pixels} and {self.max_pixels} "
                f"pixels; min_pixels and max_pixels should be multiples of {self.factor**2}"
            )

    @property
    def least_tokens(self) -> int:
        return max(1, math.ceil(self.min_pixels / self.factor**2))

    @property
    def most_tokens(self) -> int:
        return self.max_pixels // self.factor**2

    def size(self, width: int, height: int) -> Size:
        """The (width, height) at which an image of this size is shown."""
        return shown_size(width, height, self.min_pixels, self.max_pixels, self.factor)

    def tokens(self, size: Size) -> int:
        """Image tokens of an image shown at `size`."""
        return (size[0] // self.factor) * (size[1] // self.factor)


@lru_cache(maxsize=4096)
def shown_size(width: int, height: int, min_pixels: int, max_pixels: int, factor: int = 28) -> Size:
    """(width, height) at which an image is shown: transformers' `smart_resize`, made to keep its promise.

    `smart_resize` refuses strips longer than 200:1 and leaves the pixel budget for strips longer than the budget has
    tokens (it keeps at least one row) and where rounding both sides the same way overshoots. In those cases the size
    is the one inside the budget whose aspect ratio is nearest: very long strips are squeezed along their long side,
    which `View` undoes exactly because each axis has its own scale. A size inside the budget is a fixed point, so a
    server that resizes again changes nothing. Raises ValueError for an empty image or an impossible budget.
    """
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels cannot be shown")
    # Here, not above: reading a trajectory must not cost the seconds that importing transformers takes.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    budget = Budget(min_pixels, max_pixels, factor)
    if max(width, height) <= _MAX_RATIO * min(width, height):
        rows, columns = (
            side // factor for side in smart_resize(height, width, factor, budget.min_pixels, budget.max_pixels)
        )
        stretched = max(rows, columns) >= MOST_STRETCHED * min(rows, columns)  # as the image itself need not be
        if not stretched and budget.least_tokens <= rows * columns <= budget.most_tokens:
            return columns * factor, rows * factor
    rows, columns = _nearest_grid(width / height, budget.least_tokens, budget.most_tokens)
    return columns * factor, rows * factor


MOST_STRETCHED = 200  # times as wide as high, or as high as wide, an image may not be for Qwen's image processors


def _nearest_grid(ratio: float, least: int, most: int) -> tuple[int, int]:
    """(rows, columns) with least <= rows * columns <= most, columns / rows nearest `ratio`, then the largest."""
    candidates = []
    for rows in range(1, most + 1):
        low, high = math.ceil(least / rows), most // rows
        if low > high:
            continue
        for columns in {min(max(side, low), high) for side in (math.floor(ratio * rows), math.ceil(ratio * rows))}:
            candidates.append((abs(math.log(columns / rows / ratio)), -rows * columns, rows, columns))
    taken = [one for one in candidates if max(one[2:]) < MOST_STRETCHED * min(one[2:])]
    _, _, rows, columns = min(taken or candidates)
    return rows, columns


@dataclass(frozen=True)
class View:
    """One image as the model saw it: the rectangle `crop_box` of a page (page pixels, None = all), at `shown_size`."""

    page_size: Size
    crop_box: PixelBox | None
    shown_size: Size
    budget: Budget

    @classmethod
    def whole(cls, page_size: Size, budget: Budget) -> View:
        """The whole page."""
        return cls(page_size, None, budget.size(*page_size), budget)

    @property
    def rectangle(self) -> PixelBox:
        """The rectangle shown, in page pixels, also when it is the whole page."""
        return self.crop_box or (0, 0, *self.page_size)

    @property
    def tokens(self) -> int:
        return self.budget.tokens(self.shown_size)

    def to_page(self, box: Box) -> Box:
        """A box in shown pixels of this view, in page pixels (not rounded, not clipped)."""
        (x0, y0, x1, y1), (width, height) = self.rectangle, self.shown_size
        sx, sy = (x1 - x0) / width, (y1 - y0) / height
        return x0 + box[0] * sx, y0 + box[1] * sy, x0 + box[2] * sx, y0 + box[3] * sy

    def from_page(self, box: Box) -> Box:
        """A box in page pixels, in shown pixels of this view (not rounded, not clipped)."""
        (x0, y0, x1, y1), (width, height) = self.rectangle, self.shown_size
        sx, sy = width / (x1 - x0), height / (y1 - y0)
        return (box[0] - x0) * sx, (box[1] - y0) * sy, (box[2] - x0) * sx, (box[3] - y0) * sy

    def crop(self, box: Box, padding: float = 0, min_crop: int = MIN_CROP) -> View:
        """The view of `box` (shown pixels of this view), `padding` shown pixels wider on every side.

        The box is clipped to this view; its padding may reach past the view, never past the page. The rectangle grows
        to whole page pixels. Raises CropError when less than `min_crop` page pixels remain in one direction.
        """
        width, height = self.shown_size
        clipped = (_clip(box[0], width), _clip(box[1], height), _clip(box[2], width), _clip(box[3], height))
        if any(map(_misses, box[:2], box[2:], self.shown_size)):
            raise CropError("the box lies outside the last image.")
        x0, y0, x1, y1 = self.to_page(clipped)
        if x1 - x0 < min_crop - 1e-6 or y1 - y0 < min_crop - 1e-6:
            raise CropError("the box is too small to show anything; choose a larger region.")
        padded = (clipped[0] - padding, clipped[1] - padding, clipped[2] + padding, clipped[3] + padding)
        return self._of_page_box(self.to_page(padded))

    def _of_page_box(self, box: Box) -> View:
        page_width, page_height = self.page_size
        # A hair's breadth of rounding error must not cost a whole page pixel.
        x0, y0 = math.floor(_clip(box[0], page_width) + 1e-6), math.floor(_clip(box[1], page_height) + 1e-6)
        x1, y1 = math.ceil(_clip(box[2], page_width) - 1e-6), math.ceil(_clip(box[3], page_height) - 1e-6)
        return View(self.page_size, (x0, y0, x1, y1), self.budget.size(x1 - x0, y1 - y0), self.budget)


def _clip(value: float, upper: float) -> float:
    return min(max(value, 0.0), float(upper))


def _misses(low: float, high: float, upper: float) -> bool:
    """Whether nothing of low..high lies in 0..upper; a side without extent lies where its point does."""
    return high < 0 or low > upper or (low < high and (high == 0 or low == upper))


def render(page_image: Image.Image, crop_box: PixelBox | None, size: Size) -> Image.Image:
    """The RGB image the model saw: `crop_box` (page pixels, None = all) of the page, resized to `size`.

    Reproduces an observation from its record. Raises ValueError when the crop box does not lie on the page.
    """
    if crop_box is not None:
        x0, y0, x1, y1 = crop_box
        if not (0 <= x0 < x1 <= page_image.width and 0 <= y0 < y1 <= page_image.height):
            raise ValueError(f"crop box {crop_box} does not lie on a page of {page_image.width} x {page_image.height}")
        page_image = page_image.crop(crop_box)
    return page_image.convert("RGB").resize(size, Image.Resampling.BICUBIC)


def show(page_image: Image.Image, crop_box: PixelBox | None, budget: Budget) -> Image.Image:
    """`crop_box` of the page (page pixels, None = all) as the model would see it under `budget`."""
    x0, y0, x1, y1 = crop_box or (0, 0, *page_image.size)
    return render(page_image, crop_box, budget.size(x1 - x0, y1 - y0))


def from_thousandths(box: Box, size: Size) -> Box:
    """A box on the [0, 1000] scale, in shown pixels of an image of `size` (width, height)."""
    width, height = size
    return box[0] * width / 1000, box[1] * height / 1000, box[2] * width / 1000, box[3] * height / 1000


def to_thousandths(box: Box, size: Size) -> Box:
    """A box in shown pixels of an image of `size`, as whole numbers on the [0, 1000] scale."""
    width, height = size
    scaled = (box[0] * 1000 / width, box[1] * 1000 / height, box[2] * 1000 / width, box[3] * 1000 / height)
    return tuple(float(round(value)) for value in scaled)  # type: ignore[return-value]


def iou(one: Box, other: Box) -> float:
    """Intersection over union of two boxes of one frame."""
    across = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    down = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return across * down / max(sum(areas) - across * down, 1e-12)


def jittered(rng: random.Random, box: Box, size: Size, amount: float = 0.05, margin: float = 4.0) -> Box:
    """`box` (page pixels) with each side moved out by up to `amount` of its extent and `margin`, inside the page."""
    x0, y0, x1, y1 = box
    dx, dy = (x1 - x0) * amount + margin, (y1 - y0) * amount + margin
    return (
        max(0.0, x0 - rng.uniform(0, dx)),
        max(0.0, y0 - rng.uniform(0, dy)),
        min(float(size[0]), x1 + rng.uniform(0, dx)),
        min(float(size[1]), y1 + rng.uniform(0, dy)),
    )


def snapped(box: Box, size: Size, grid: int = 28) -> Box:
    """`box` (pixels of an image of `size`) widened to multiples of `grid` pixels, by default one visual token."""
    x0, y0, x1, y1 = box
    right, down = (min(float(edge), -(-end // grid) * grid) for end, edge in ((x1, size[0]), (y1, size[1])))
    return x0 // grid * grid, y0 // grid * grid, right, down
