"""Guesses save passes of the model and change nothing that is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_decoding import conversations_of, read_tokens
from test_views import asked, picture

from vrag_nb.agent.decoding import GrowingLayer
from vrag_nb.agent.drafting import LENGTHS, REMEMBERED, Drafter
from vrag_nb.agent.transformers_policy import TransformersPolicy


def test_what_followed_before_may_follow_again() -> None:
    line = Drafter(4).line([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert line.guess() == []
    for token in (50, 3, 4):
        line.write(token)
    assert line.guess() == [5, 6]  # two tokens stood there before: half a guess
    line.write(5)
    line.write(6)
    assert line.guess() == [7, 8, 9, 10]


def test_the_last_place_counts_and_the_longest_match_comes_first() -> None:
    line = Drafter(4).line([1, 2, 3, 4, 30, 9, 2, 3, 4, 40, 8, 1, 2, 3, 4])
    assert line.guess()[:1] == [30]  # after 1, 2, 3, 4; the last place of 3, 4 is followed by 40
    line = Drafter(4).line([1, 2, 30, 1, 2, 40, 1, 2])
    assert line.guess() == [40, 1]


def test_other_turns_are_repeated_and_own_words_come_first() -> None:
    drafter = Drafter(4)
    drafter.remember([7, 8, 9, 10, 11, 12, 13])
    line = drafter.line([1, 2])
    for token in (7, 8, 9, 10):
        line.write(token)
    assert line.guess() == [11, 12, 13]
    assert drafter.line([7, 8, 9, 10, 99, 7, 8, 9, 10]).guess()[:1] == [99]
    drafter.remember(range(100, 100 + REMEMBERED // len(LENGTHS) + 10))
    drafter.remember([5, 6, 7])  # too many places: what was known is forgotten
    assert drafter.line([7, 8, 9, 10]).guess() == []


def test_no_guess_holds_a_closed_token_and_none_is_made_of_none() -> None:
    seen = [1, 2, 3, 4, 60, 5, 1, 2, 3, 4]
    assert Drafter(4, closed=[60]).line(seen).guess() == []
    assert Drafter(4, closed=[5]).line(seen).guess() == [60]
    drafter = Drafter(0)
    drafter.remember(seen)
    assert (drafter.line(seen).guess(), drafter.places) == ([], {})


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("views", [1, 3])
def test_what_is_written_is_the_same_in_fewer_passes(
    tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch, temperature: float, views: int
) -> None:
    options: dict[str, Any] = {"device": "cpu", "max_new_tokens": 40, "temperature": temperature, "views": views}
    found, passes = [], []
    for guesses in (0, 4):
        policy = TransformersPolicy(tiny_vlm_folder, batch_size=4, guesses=guesses, **options)
        monkeypatch.setattr(policy, "_reads", lambda ids: True)  # all is read off the views
        shapes = read_tokens(policy, monkeypatch)
        turns = [one for turn in conversations_of(policy) for one in turn]
        found.append([*turns, *policy.generate([asked(picture((84, 56)))] * 2, seeds=[1, 1])])
        passes.append(len(shapes))
    for one, other in zip(*found, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert passes[1] < passes[0]


def test_a_layer_grows_beyond_its_room_and_forgets_what_was_guessed_wrong() -> None:
    start, more, other = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 6, 4), torch.randn(2, 1, 2, 4)
    layer = GrowingLayer(start, -start, room=1)
    keys, values = layer.update(more, -more)
    torch.testing.assert_close(keys, torch.cat([start, more], 2))
    layer.cut(5)
    assert layer.get_seq_length() == 5
    keys, values = layer.update(other, -other)
    torch.testing.assert_close(keys, torch.cat([start, more[:, :, :2], other], 2))
    torch.testing.assert_close(values, -keys)
