"""Answers read off several views of an image: the views, their mixture, and when a policy uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from vrag_nb.agent.picking import Picker
from vrag_nb.agent.policy import Conversation, Image, Message, Text
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.agent.views import VIEWS, as_views, mixture, view

ANSWER = "<think>I read it.</think><answer>42</answer>"
SEARCH = "<search>total</search>"
RETRIEVE = '<tool_call>{"name": "add_search_node", "arguments": {"id": "a", "query": "total"}}</tool_call>'
MEMORISE = '<tool_call>{"name": "summarize_and_memorize", "arguments": {"summarize": "42"}}</tool_call>'
CALLED = '<tool_call>{"name": "add_answer_node", "arguments": {"answer": "42"}}</tool_call>'


def picture(size: tuple[int, int], seed: int = 0) -> Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image(size, PILImage.fromarray(pixels), "alpha_1")


def asked(*images: Image) -> Conversation:
    return [
        Message("user", (Text("What was the total?"), picture((56, 56), 7))),
        Message("assistant", (Text(SEARCH),)),
        Message("user", (Text("look "), *images)),
    ]


class Script(Picker):
    """Makes every row write the given ids."""

    def __init__(self, ids: Sequence[int], views: int) -> None:
        super().__init__([], [], torch.device("cpu"), views=views)
        self.ids, self.steps = ids, Counter[int]()

    def __call__(self, rows: Sequence[int], logits: torch.Tensor) -> tuple[list[int], list[float]]:
        step = min(self.steps[rows[0]], len(self.ids) - 1)
        self.steps.update(rows)
        mixed = mixture(logits, self.views) if self.views > 1 else logits.log_softmax(-1)
        return [self.ids[step]] * len(rows), mixed[:, self.ids[step]].tolist()


@pytest.fixture
def scripted(tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TransformersPolicy]:
    """A policy that writes `texts`, one after the other, at each call of its model, and the last one ever after."""

    def make(*texts: str, views: int = 3, **options: Any) -> TransformersPolicy:
        policy = TransformersPolicy(tiny_vlm_folder, device="cpu", max_new_tokens=60, views=views, **options)
        remaining = list(texts)

        def picker(seeds: Sequence[int], views: int) -> Script:
            text = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
            return Script(ids, views)

        monkeypatch.setattr(policy, "_picker", picker)
        return policy

    return make


def test_a_view_is_the_image_moved_or_resized() -> None:
    image = picture((112, 84))
    assert view(image, 0, 28) is image
    pixels = np.asarray(image.resolved())
    moved = np.asarray(view(image, VIEWS.index((1, -1, 0)), 28).resolved())
    assert moved.shape == pixels.shape
    np.testing.assert_array_equal(moved[:-7, 7:], pixels[7:, :-7])  # right and up by a quarter of a square
    np.testing.assert_array_equal(moved[:, 0], moved[:, 7])  # the edge is repeated
    larger = view(image, VIEWS.index((0, 0, 1)), 28)
    assert larger.size == larger.resolved().size == (140, 112)
    assert view(picture((28, 56)), VIEWS.index((0, 0, -2)), 28).size == (28, 28)
    assert larger.page_id == image.page_id


def test_every_view_is_another_one() -> None:
    image = picture((140, 112))
    seen = [view(image, number, 28) for number in range(len(VIEWS))]
    assert len({(one.size, one.resolved().tobytes()) for one in seen}) == len(VIEWS)


def test_the_mixture_is_the_mean_of_the_probabilities() -> None:
    scores = torch.randn(6, 11)
    mixed = mixture(scores, 3)
    probabilities = scores.softmax(-1)
    for row in range(6):
        group = probabilities[row // 3 * 3 : row // 3 * 3 + 3]
        torch.testing.assert_close(mixed[row].exp(), group.mean(0))


def test_other_images_take_the_places_of_the_old(tiny_vlm_folder: Path) -> None:
    encoder = TransformersPolicy(tiny_vlm_folder, device="cpu").encoder
    first, second = picture((56, 84), 1), picture((140, 56), 2)
    encoded = encoder.encode(asked(first, second))
    shown = as_views(encoded, 2, 3, encoder)
    assert [one.images[0] for one in shown] == encoded.images[:1] * 3
    for number, one in enumerate(shown):
        assert replace(one, shared=0) == encoder.encode(asked(view(first, number, 28), view(second, number, 28)))
        assert one.input_ids[: one.shared] == encoded.input_ids[: one.shared]
        assert one.input_ids[one.shared] == encoder.vision_start
        assert encoder.images_in(one, 0, one.shared) == encoded.images[:1]


@pytest.mark.parametrize("loop", ["own", "generate"])
def test_an_answer_goes_by_the_mixture_over_views(scripted: Any, loop: str) -> None:
    policy, conversation = scripted(ANSWER, loop=loop), asked(picture((84, 56)))
    [found] = policy.generate([conversation])
    assert found.text == ANSWER
    encoder, new = policy.encoder, len(found.token_ids)
    seen = []
    for one in as_views(encoder.encode(conversation), 1, 3, encoder):
        inputs = encoder.collate([one])
        inputs.pop("model_mask")
        ids = torch.tensor([found.token_ids])
        inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], 1)
        for name in ("attention_mask", "mm_token_type_ids"):
            filler = torch.full_like(ids, int(name == "attention_mask"))
            inputs[name] = torch.cat([inputs[name], filler.to(inputs[name].dtype)], 1)
        with torch.no_grad():
            logits = policy.model(**inputs).logits[0, -new - 1 : -1].float()
        seen.append(logits.softmax(-1).gather(1, ids.T)[:, 0])
    expected = torch.stack(seen).mean(0).log()
    torch.testing.assert_close(torch.tensor(found.logprobs), expected, atol=1e-4, rtol=1e-4)


def calls_of(policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each call of the decoder from now on."""
    rows: list[int] = []
    decoder: Any = policy._decoder
    original = decoder.run
    monkeypatch.setattr(decoder, "run", lambda batch, *a, **k: (rows.append(len(batch)), original(batch, *a, **k))[1])
    return rows


def test_only_answers_are_read_again_off_what_was_shown_last(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    searching = scripted(SEARCH)
    rows = calls_of(searching, monkeypatch)
    searching.generate([asked(picture((84, 56)))])
    assert rows == [1]
    answering = scripted(ANSWER)
    rows = calls_of(answering, monkeypatch)
    noticed = [*asked(picture((84, 56), 1)), Message("assistant", (Text(SEARCH),)), Message("user", (Text("No."),))]
    answering.generate([noticed, asked(picture((84, 56)))])
    assert rows == [2, 6], "a notice does not hide the image before it"
    rows.clear()
    answering.generate([[Message("user", (Text("What?"),)), *noticed[-2:]]])
    assert rows == [1], "nothing was shown"


def test_the_images_shown_last_are_those_of_one_turn(tiny_vlm_folder: Path) -> None:
    encoder = TransformersPolicy(tiny_vlm_folder, device="cpu").encoder
    said, notice = Message("assistant", (Text(SEARCH),)), Message("user", (Text("No."),))
    first, two = Message("user", (picture((84, 56), 1),)), Message("user", (picture((56, 56), 2), picture((56, 56), 3)))
    counts = [
        encoder.newest_images(encoder.encode(conversation))
        for conversation in ([first], [first, said, two], [first, said, two, said, notice], [notice, said, notice], [])
    ]
    assert counts == [1, 2, 2, 0, 0]


@pytest.mark.parametrize(("said", "read"), [(RETRIEVE, [1]), (MEMORISE, [1, 3]), (CALLED, [1, 3])])
def test_what_is_written_into_a_memory_is_read_again_too(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, said: str, read: list[int]
) -> None:
    policy = scripted(said)
    policy.max_new_tokens = 200
    rows = calls_of(policy, monkeypatch)
    [found] = policy.generate([[Message("user", (Text("look "), picture((84, 56))))]])
    assert found.text == said
    assert rows == read


def test_a_second_reading_that_is_no_answer_is_dropped(scripted: Any) -> None:
    [kept] = scripted(ANSWER, SEARCH).generate([asked(picture((84, 56)))])
    assert kept.text == ANSWER


def test_the_second_reading_shares_what_was_read_before(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = scripted(SEARCH, ANSWER, guesses=0)
    start = asked()[:1]
    [first] = policy.generate([start])
    said = Message("assistant", (Text(first.text),), tuple(first.token_ids))
    shapes: list[tuple[int, int]] = []
    tower = policy.model.model.language_model
    original = tower.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(kwargs["inputs_embeds"].shape[:2]))
        return original(*args, **kwargs)

    monkeypatch.setattr(tower, "forward", forward)
    policy.generate([[*start, said, Message("user", (picture((140, 112)),))]])
    read = [shape for shape in shapes if shape[1] > 1]
    assert [rows for rows, _ in read] == [1, 1, 3]  # the turn, what its views share, the views
    longest = 6 * 5 - 5 * 4  # squares that the largest of three views has more than the image
    assert read[1][1] + read[2][1] == read[0][1] + longest


def test_a_number_of_views_that_is_not_there_is_refused(tiny_vlm_folder: Path) -> None:
    for views in (0, len(VIEWS) + 1):
        with pytest.raises(ValueError, match="a number from 1 to 9"):
            TransformersPolicy(tiny_vlm_folder, views=views)


@pytest.mark.parametrize("count", [1, 2])
def test_views_say_the_same_whether_what_stands_before_them_is_shared_or_not(
    tiny_vlm_folder: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    found = []
    for prefix_bytes in (0, 1, None):  # no memory, too little of it, enough
        options: dict[str, Any] = {"max_new_tokens": 6, "views": 3, "prefix_cache_bytes": prefix_bytes}
        policy = TransformersPolicy(tiny_vlm_folder, device="cpu", **options)
        monkeypatch.setattr(policy, "_reads", lambda ids: True)
        found += policy.generate([asked(*(picture((84, 56), seed) for seed in range(count)))])
    first, *others = found
    for one in others:
        assert one.token_ids == first.token_ids
        assert one.logprobs == pytest.approx(first.logprobs, abs=1e-4)
