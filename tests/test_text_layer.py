"""The text layer: what PyMuPDF makes of the same words, where it makes anything."""

from __future__ import annotations

import pymupdf
from hypothesis import given, settings
from hypothesis import strategies as st

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
