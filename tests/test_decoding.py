"""The decode loop: what transformers' `generate` gives, without computing anything twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as PILImage

from vrag_nb.agent.policy import Conversation, Generation, Image, Message, Text
from vrag_nb.agent.transformers_policy import TransformersPolicy


def seen(colour: str, size: tuple[int, int] = (84, 56)) -> Message:
    return Message("user", (Text("look "), Image(size, PILImage.new("RGB", size, colour), "alpha_1")))


def said(generation: Generation) -> Message:
    return Message("assistant", (Text(generation.text),), tuple(generation.token_ids))


ASKED: list[Conversation] = [
    [Message("user", (Text("What?"),))],
    [Message("user", (Text("A longer question, about something else."),)), seen("red")],
    [seen("blue", (140, 56)), seen("green")],
    [Message("user", (Text("What was the total in 2019?"),))],
]
SHOWN = [seen("white"), seen("black", (56, 112)), Message("user", (Text("Go on."),)), seen("red", (112, 56))]

GROUP = [(ASKED[1], 1), (ASKED[0], 2), (ASKED[1], 3), (ASKED[0], 4), (ASKED[1], 5)]


def conversations_of(policy: TransformersPolicy, turns: int = 3) -> list[list[Generation]]:
    """Each turn of the conversations in ASKED, continued with what is in SHOWN."""
    conversations, found = [list(one) for one in ASKED], []
    for turn in range(turns):
        generations = policy.generate(conversations, seeds=[10 * turn + row for row in range(len(conversations))])
        found.append(generations)
        for conversation, generation, shown in zip(conversations, generations, SHOWN, strict=True):
            conversation += [said(generation), shown]
    return found


def read_tokens(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, tokens) of every pass of the language model from now on."""
    shapes: list[tuple[int, int]] = []
    tower = policy.model.model.language_model
    original = tower.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(kwargs["inputs_embeds"].shape[:2]))
        return original(*args, **kwargs)

    monkeypatch.setattr(tower, "forward", forward)
    return shapes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prefix_bytes", [None, 0])
def test_the_same_as_generate(tiny_vlm_folder: Path, temperature: float, prefix_bytes: int | None) -> None:
    options: dict[str, Any] = {"device": "cpu", "max_new_tokens": 10, "temperature": temperature}
    own = TransformersPolicy(tiny_vlm_folder, loop="own", prefix_cache_bytes=prefix_bytes, batch_size=4, **options)
    reference = TransformersPolicy(tiny_vlm_folder, loop="generate", batch_size=3, **options)
    for ours, theirs in zip(conversations_of(own), conversations_of(reference), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
            assert one.prompt_tokens == other.prompt_tokens
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_later_turn_reads_only_what_is_new(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=5, guesses=0)
    conversation = list(ASKED[1])
    [first] = policy.generate([conversation])
    before = len(policy.encoder.encode(conversation).input_ids) + len(first.token_ids)
    conversation += [said(first), SHOWN[0]]
    whole = len(policy.encoder.encode(conversation).input_ids)
    shapes = read_tokens(policy, monkeypatch)
    policy.generate([conversation])
    assert shapes[0] == (1, whole - before + 1)  # the last token written had not been read
    assert set(shapes[1:]) <= {(1, 1)}


def test_other_pixels_are_another_conversation(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=5)
    [first] = policy.generate([[*ASKED[0], seen("red")]])
    other = [*ASKED[0], seen("blue"), said(first), SHOWN[0]]  # the same tokens as if red had been seen
    shapes = read_tokens(policy, monkeypatch)
    policy.generate([other])
    assert shapes[0] == (1, len(policy.encoder.encode(other).input_ids))


@pytest.mark.parametrize("how", ["forget", "memory"])
def test_what_is_forgotten_is_read_again(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    limit = 1 if how == "memory" else None
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=5, prefix_cache_bytes=limit)
    [first] = policy.generate([ASKED[0]])
    if how == "forget":
        policy.forget()
    conversation = [*ASKED[0], said(first), SHOWN[0]]
    shapes = read_tokens(policy, monkeypatch)
    policy.generate([conversation])
    assert shapes[0] == (1, len(policy.encoder.encode(conversation).input_ids))


def test_rows_that_say_the_same_are_kept_and_counted_once(tiny_vlm_folder: Path) -> None:
    """Memory that is counted and not held would crowd out what is."""
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=5)
    policy.generate([ASKED[0]] * 4)
    assert policy._decoder is not None
    kept = list(policy._decoder._kept.values())
    assert len(kept) == 1
    assert policy._decoder._held == kept[0].nbytes
    [first] = policy.generate([ASKED[0]])
    policy.generate([[*ASKED[0], said(first), SHOWN[0]]])
    assert policy._decoder._held == sum(one.nbytes for one in policy._decoder._kept.values())


def test_a_group_reads_its_question_once(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=8, batch_size=5, temperature=1.0)
    alone = [policy.generate([conversation], seeds=[seed])[0] for conversation, seed in GROUP]
    policy.forget()
    shapes = read_tokens(policy, monkeypatch)
    together = policy.generate([conversation for conversation, _ in GROUP], seeds=[seed for _, seed in GROUP])
    assert shapes[0][0] == 2  # two questions
    assert shapes[1][0] == 5
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len({tuple(one.token_ids) for one in together}) > 2


def test_rows_that_are_done_leave_the_batch(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=12, batch_size=4, temperature=1.0)
    alone = policy.generate(ASKED, seeds=range(4))
    ends = ends_after({tuple(one.token_ids[:3]) for one in alone[:3]}, 3)
    monkeypatch.setattr(policy, "_ends", ends)
    shapes = read_tokens(policy, monkeypatch)
    again = policy.generate(ASKED, seeds=range(4))
    assert again[3].token_ids == alone[3].token_ids
    rows = [count for count, _ in shapes]
    assert rows[0] == 4
    assert rows[-1] == 1
    assert rows == sorted(rows, reverse=True)


def ends_after(starts: set[tuple[int, ...]], length: int) -> Any:
    """Turns with one of these beginnings end after `length` tokens."""

    def ends(ids: Sequence[int]) -> bool:
        return tuple(ids[:length]) in starts

    return ends


def test_new_weights_are_used_at_once(tiny_vlm_folder: Path) -> None:
    policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=4, loop="own")
    [before] = policy.generate([ASKED[1]])
    with torch.no_grad():
        policy.model.model.visual.merger.mlp[2].weight.mul_(-3)
    policy.forget()
    [after] = policy.generate([ASKED[1]])
    assert after.logprobs != pytest.approx(before.logprobs, abs=1e-6)
