"""Batches of similar lengths: every row once, the same order for the same seed and epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.learning.length_groups import LengthGroups

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=200)


@given(LENGTHS, st.integers(1, 16), st.integers(0, 5), st.integers(0, 3))
def test_every_row_comes_once_and_the_order_follows_from_seed_and_epoch(lengths, batch, seed, epoch) -> None:
    begun = [0]
    one, other = (LengthGroups(lengths, batch, seed, lambda: begun[0]) for _ in range(2))
    list(one)  # what was drawn before plays no part
    begun[0] = epoch
    assert list(one) == list(other)
    assert sorted(one) == list(range(len(lengths)))


def test_batches_hold_similar_lengths_in_mixed_order() -> None:
    lengths = [number * 37 % 1000 for number in range(1000)]
    groups = LengthGroups(lengths, 10, seed=3, epoch=lambda: 0)
    order = list(groups)
    batches = [[lengths[row] for row in order[start : start + 10]] for start in range(0, 1000, 10)]
    padded = sum(max(batch) * len(batch) for batch in batches)
    assert padded < 1.2 * sum(lengths)  # in random order about twice the sum
    means = [sum(batch) / 10 for batch in batches]
    assert means != sorted(means)
    assert list(LengthGroups(lengths, 10, seed=3, epoch=lambda: 1)) != order
