"""Sizes and boxes: budgets always kept, crops of crops land where the model pointed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from vrag_nb.agent.geometry import (
    Budget,
    CropError,
    View,
    from_thousandths,
    iou,
    render,
    show,
    shown_size,
    snapped,
    to_thousandths,
)

NANO = Budget(96 * 784, 168 * 784)
QWEN = Budget(256 * 784, 512 * 784)
SIDES = st.integers(1, 5000)
BUDGETS = st.sampled_from([NANO, QWEN, Budget(784, 784), Budget(97 * 784, 97 * 784), Budget(0, 12_845_056)])


@st.composite
def boxes(draw: st.DrawFn, minimum: float = 0.05) -> tuple[float, float, float, float]:
    """A box in fractions of an image."""
    x, y = draw(st.floats(0, 1 - minimum)), draw(st.floats(0, 1 - minimum))
    return x, y, draw(st.floats(x + minimum, 1)), draw(st.floats(y + minimum, 1))


def scaled(box: tuple[float, ...], size: tuple[int, int]) -> tuple[float, float, float, float]:
    return box[0] * size[0], box[1] * size[1], box[2] * size[0], box[3] * size[1]


@given(SIDES, SIDES, BUDGETS)
@settings(max_examples=500, deadline=None)
def test_sizes_keep_the_budget_and_the_grid(width: int, height: int, budget: Budget) -> None:
    shown = budget.size(width, height)
    assert shown[0] % 28 == 0
    assert shown[1] % 28 == 0
    assert budget.min_pixels <= shown[0] * shown[1] <= budget.max_pixels
    assert budget.size(*shown) == shown  # resizing again changes nothing
    assert budget.tokens(shown) == shown[0] * shown[1] // 784


@given(st.integers(50, 4000), st.floats(0.2, 5), st.sampled_from([NANO, QWEN]))
@settings(max_examples=200, deadline=None)
def test_ordinary_pages_get_what_the_qwen_processor_gives(width: int, ratio: float, budget: Budget) -> None:
    height = max(1, round(width * ratio))
    rows, columns = smart_resize(height, width, 28, budget.min_pixels, budget.max_pixels)
    if budget.min_pixels <= rows * columns <= budget.max_pixels:
        assert budget.size(width, height) == (columns, rows)


def test_known_sizes() -> None:
    assert NANO.size(1500, 844) == (476, 252)
    assert NANO.tokens((476, 252)) == 153
    assert NANO.size(844, 1500) == (252, 476)  # width first, also for a portrait page


def test_a_strip_that_rounding_would_stretch_too_far_is_a_fixed_point() -> None:
    size = Budget(200_704, 401_408).size(8966, 48)  # 187:1; smart_resize makes 8652 x 28 of it, which it refuses itself
    assert max(size) < 200 * min(size)
    assert Budget(200_704, 401_408).size(*size) == size


def test_strips_longer_than_200_to_1() -> None:
    assert NANO.size(10_000, 10) == (168 * 28, 28)
    assert NANO.size(10, 10_000) == (28, 168 * 28)
    view = View.whole((10_000, 10), NANO)
    assert view.to_page(scaled((0.25, 0, 0.5, 1), view.shown_size)) == pytest.approx((2500, 0, 5000, 10))


def test_impossible_requests_are_clear_errors() -> None:
    with pytest.raises(ValueError, match="multiples of 784"):
        Budget(785, 1000)
    with pytest.raises(ValueError, match="multiples of 784"):
        Budget(0, 100)
    with pytest.raises(ValueError, match="cannot be shown"):
        shown_size(0, 10, 784, 784)


@given(st.integers(30, 3000), st.integers(30, 3000), boxes(), st.sampled_from([NANO, QWEN]))
@settings(max_examples=300, deadline=None)
def test_round_trip_between_frames(
    width: int, height: int, fractions: tuple[float, float, float, float], budget: Budget
) -> None:
    view = View.whole((width, height), budget)
    box = scaled(fractions, view.shown_size)
    assert view.from_page(view.to_page(box)) == pytest.approx(box, abs=1e-6)
    assert view.to_page(box) == pytest.approx(scaled(fractions, (width, height)), abs=1e-6)


@given(st.integers(900, 3000), st.integers(900, 3000), st.lists(boxes(0.3), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_crops_of_crops_compose(width: int, height: int, chain: list[tuple[float, float, float, float]]) -> None:
    """However deep, a box lands where the same fractions taken directly on the page land."""
    view = View.whole((width, height), NANO)
    expected = (0.0, 0.0, float(width), float(height))
    slack = 0.0
    for fractions in chain:
        view = view.crop(scaled(fractions, view.shown_size))
        x0, y0, x1, y1 = expected
        w, h = x1 - x0, y1 - y0
        expected = (x0 + fractions[0] * w, y0 + fractions[1] * h, x0 + fractions[2] * w, y0 + fractions[3] * h)
        slack += 1.0  # every crop is rounded outwards to whole page pixels, once
        assert view.rectangle == pytest.approx(expected, abs=slack + 1e-6)
        assert view.budget.min_pixels <= view.shown_size[0] * view.shown_size[1] <= view.budget.max_pixels


def test_second_crop_uses_the_crops_own_frame() -> None:
    """Upstream's training applied the scale of a crop to the whole page after two crops in a row."""
    page = View.whole((1000, 2000), Budget(784, 100 * 784))
    right = page.crop(scaled((0.5, 0.5, 1, 1), page.shown_size))
    assert right.crop_box == (500, 1000, 1000, 2000)
    corner = right.crop(scaled((0.5, 0.5, 1, 1), right.shown_size))
    assert corner.crop_box == (750, 1500, 1000, 2000)
    assert corner.crop(scaled((0, 0, 1, 1), corner.shown_size)).crop_box == corner.crop_box


def test_boxes_out_of_range() -> None:
    view = View.whole((1000, 500), NANO)
    width, height = view.shown_size
    assert view.crop((-50, -50, width * 3, height * 3)).crop_box == (0, 0, 1000, 500)
    assert view.crop((width / 2, -9, width + 9, height + 9)).crop_box == (500, 0, 1000, 500)
    shown = Budget(4 * 784, 1280 * 784).size(1500, 7)
    assert max(shown) < 200 * min(shown), "Qwen's processors take no thinner image"
    with pytest.raises(CropError, match="outside the last image"):
        view.crop((width + 1, 0, width + 50, height))
    with pytest.raises(CropError, match="outside the last image"):
        view.crop((-50, 0, 0, height))
    with pytest.raises(CropError, match="too small"):
        view.crop((10, 10, 11, 11))
    for x, y in ((10, 10), (0, 0), (width, height), (10, -5)):  # without extent, on the image
        with pytest.raises(CropError, match="too small"):
            view.crop((x, y, x, 30))
    with pytest.raises(CropError, match="too small"):
        view.crop((width - 1, 0, width + 500, height))  # what remains after clipping counts


def test_padding_is_in_shown_pixels_and_stays_on_the_page() -> None:
    view = View.whole((1120, 1120), Budget(784 * 100, 784 * 100))  # shown at 280 x 280, scale 4
    assert view.shown_size == (280, 280)
    assert view.crop((100, 100, 200, 200), padding=10).crop_box == (360, 360, 840, 840)
    assert view.crop((0, 0, 100, 100), padding=10).crop_box == (0, 0, 440, 440)
    crop = view.crop((100, 100, 200, 200))  # scale 400 / 280
    assert crop.crop((0, 0, 280, 280), padding=28).crop_box == (360, 360, 840, 840)  # past the view, on the page


@given(st.integers(20, 300), st.integers(20, 300), boxes(0.3))
@settings(max_examples=50, deadline=None)
def test_show_gives_the_recorded_image(width: int, height: int, fractions: tuple[float, float, float, float]) -> None:
    budget = Budget(784, 20 * 784)
    page = Image.new("RGB", (width, height), "white")
    view = View.whole(page.size, budget).crop(scaled(fractions, budget.size(*page.size)))
    image = show(page, view.crop_box, budget)
    assert image.size == view.shown_size
    assert image.tobytes() == render(page, view.crop_box, view.shown_size).tobytes()


def test_a_crop_shows_the_pixels_it_names() -> None:
    page = Image.new("L", (400, 200), 255)
    page.paste(0, (100, 50, 200, 150))
    view = View.whole(page.size, Budget(784, 60 * 784))
    black = view.crop(view.from_page((100, 50, 200, 150)))
    assert black.crop_box == (100, 50, 200, 150)
    assert render(page, black.crop_box, black.shown_size).getextrema() == ((0, 0), (0, 0), (0, 0))


def test_render_refuses_boxes_off_the_page() -> None:
    with pytest.raises(ValueError, match="does not lie on a page of 10 x 10"):
        render(Image.new("RGB", (10, 10)), (0, 0, 11, 10), (28, 28))


@given(st.tuples(*[st.integers(0, 1000)] * 4), st.sampled_from([(476, 252), (28, 4704), (1120, 784)]))
def test_thousandths_round_trip(box: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    assert to_thousandths(from_thousandths(box, size), size) == box


def test_overlap_by_hand() -> None:
    assert iou((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert iou((0, 0, 2, 2), (0, 0, 2, 2)) == 1
    assert iou((0, 0, 2, 2), (2, 0, 4, 2)) == 0


@given(boxes(), SIDES, SIDES, st.sampled_from([1, 14, 28]))
def test_snapping_widens_to_the_grid_and_stays_on_the_image(
    box: tuple[float, ...], width: int, height: int, grid: int
) -> None:
    inside = scaled(box, (width, height))
    x0, y0, x1, y1 = snapped(inside, (width, height), grid)
    assert 0 <= x0 <= inside[0] < x0 + grid
    assert 0 <= y0 <= inside[1] < y0 + grid
    assert inside[2] <= x1 <= width
    assert inside[3] <= y1 <= height
    assert x0 % grid == y0 % grid == 0
    assert all(end % grid == 0 or end == edge for end, edge in ((x1, width), (y1, height)))
