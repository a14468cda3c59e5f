"""The text layer: what PyMuPDF makes of the same words, where it makes anything."""

from __future__ import annotations

from pathlib import Path

import pymupdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag_nb.documents.rendered import Rendered
from vrag_nb.documents.settings import RenderSettings
from vrag_nb.documents.sources import PdfSource
from vrag_nb.documents.text_layer import text_layer

PLACED = st.tuples(
    st.floats(0, 300), st.floats(20, 190), st.sampled_from([5, 8, 11, 24]), st.sampled_from(["a", "two words", "12.5%"])
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PLACED, max_size=25))
def test_the_order_and_the_blanks_are_pymupdfs(placed: list[tuple[float, float, int, str]]) -> None:
    with pymupdf.open() as document:
        page = document.new_page(width=360, height=203)
        for x, y, size, text in placed:
            page.insert_text((x, y), text, fontsize=size)
        assert text_layer(page.get_text("words")) == page.get_text("text", sort=True)


def test_words_without_extent_are_kept() -> None:
    assert text_layer([(5, 5, 5, 5, "point"), (9, 40, 9, 40, "below")]) == "point\nbelow"
    assert text_layer([]) == ""


@pytest.mark.parametrize("width", [1e-3, 1e-300])
def test_the_blanks_of_a_line_are_limited(width: float) -> None:
    words = [(50.0 * n, 5, 50 * n + width, 9, "word") for n in range(1, 21)]
    said = text_layer([(0, 5, 20, 9, "plain"), *words])
    assert said.split() == ["plain"] + ["word"] * 20
    assert len(said) < 1200


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_a_rotated_page_reads_as_it_is_shown(rotation: int, tmp_path: Path) -> None:
    with pymupdf.open() as document:
        width, height = (360, 203) if rotation in (0, 180) else (203, 360)  # before it is rotated
        page = document.new_page(width=width, height=height)
        page.set_rotation(rotation)
        for place, text in [((36, 40), "North pier"), ((200, 40), "131 ferries"), ((36, 60), "South pier")]:
            page.insert_text(pymupdf.Point(place) * page.derotation_matrix, text, fontsize=11, rotate=rotation)
        document.save(tmp_path / "rotated.pdf")
    [shown] = PdfSource().render(tmp_path / "rotated.pdf", 1, 1, RenderSettings(dpi=72))
    assert isinstance(shown, Rendered)
    assert shown.image.size == (360, 203)
    north, south = shown.text.splitlines()
    assert (north.split(), south) == (["North", "pier", "131", "ferries"], "South pier")
    assert north.index("131") > 20, "set apart as on the page"
