"""Batches that are seen again while new ones are drawn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

import pytest

from vrag_nb.nano.replay import Replay


def test_groups_that_come_in_runs_do_not_block_one_another():
    batches = ((name, number) for number in count() for name in "a" * 9 + "b" * 9)
    replay = Replay(batches, "ab", lambda batch: batch[0], ahead=2, enough=10**6)
    taken = [next(replay) for _ in range(80)]
    assert [group for group, _ in taken] == list("ab" * 40)
    assert replay.fresh == 1


def test_what_is_not_drawn_yet_is_seen_again():
    gate = threading.Event()

    def drawn() -> Iterator[int]:
        yield from range(3)
        gate.wait(10)
        yield 3

    replay = Replay(drawn(), ["one"], lambda _: "one", enough=3)
    assert [next(replay) for _ in range(3)] == [0, 1, 2]
    assert {next(replay) for _ in range(40)} == {0, 1, 2}
    assert replay.fresh == 3 / 43
    gate.set()
    while next(replay) != 3:
        pass


def test_a_failed_draw_is_told():
    def drawn() -> Iterator[int]:
        yield 1
        raise ValueError("no such font")

    replay = Replay(drawn(), ["one"], lambda _: "one", enough=1)
    assert next(replay) == 1
    with pytest.raises(RuntimeError, match="could not be drawn"):
        [next(replay) for _ in range(10**6)]


def test_new_batches_are_prepared_once_and_repeats_varied_each_time():
    gate = threading.Event()

    def drawn() -> Iterator[int]:
        yield from (1, 2)
        gate.wait(10)

    variations = count(1)
    replay = Replay(
        drawn(),
        ["one"],
        lambda _: "one",
        prepare=lambda batch: 10 * batch,
        vary=lambda batch: batch + next(variations) / 100,
        enough=2,
    )
    assert [next(replay), next(replay)] == [10, 20]
    again = [next(replay) for _ in range(6)]
    gate.set()
    assert [round(100 * (batch % 1)) for batch in again] == [1, 2, 3, 4, 5, 6], "of the batch as it came, every time"
    assert {int(batch) for batch in again} <= {10, 20}
