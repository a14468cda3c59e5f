"""Texts of figures: every row fits its width, whatever its weight, and no word is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.plotting.figures import _inches, wrap

WORDS = st.lists(st.text("abcdefgijlmnopqrsWM0123.,%", min_size=1, max_size=14), min_size=1, max_size=40).map(" ".join)


@given(WORDS, st.sampled_from(["normal", "bold"]), st.sampled_from([8.5, 15.0]))
def test_rows_fit_and_hold_every_letter(text: str, weight: str, size: float) -> None:
    rows = wrap(text, 3.0, size, lines=1000, weight=weight).splitlines()
    assert all(_inches(row, size, weight) <= 3.0 for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_what_is_too_long_ends_with_an_ellipsis() -> None:
    rows = wrap("one two three " * 40, 3.0, lines=2).splitlines()
    assert len(rows) == 2
    assert rows[1].endswith(" …")
    assert _inches(rows[1], 9, "normal") <= 3.0
    assert wrap("a\n\nb", 3.0) == "a\n\nb"
    assert wrap("", 3.0) == ""


def test_a_word_without_an_end_is_cut_without_measuring_all_of_it() -> None:
    _inches.cache_clear()
    assert len(wrap("0" * 20_000, 3.0, lines=3).splitlines()) == 3
    assert _inches.cache_info().misses < 300
