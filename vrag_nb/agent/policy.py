"""What the environment and every model agree on: conversations in, generations out.

A `Conversation` is a list of `Message`s whose parts are text and images. An image part knows the size at which it is
shown; its pixels are attached only where a policy needs them. An assistant message carries the exact token ids that
were generated, so that a policy which works on ids continues from precisely what it wrote and never from a
re-tokenisation of it.

A new policy is one class with one method, `Policy.generate`. Everything about how a model wants its input - chat
format, coordinate frame, image encoding - is settled inside the policy; the environment only sees text whose boxes
are in shown pixels.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

from PIL import Image as PILImage

from vrag_nb.agent import actions, geometry
from vrag_nb.loading import fingerprint_file, fingerprint_folder
from vrag_nb.records import without_surrogates

FinishReason = Literal["action", "stop", "length", "error"]
Frame = Literal["absolute", "normalised-1000", "raw"]  # shown pixels, 0 to 1000, page pixels of what is shown


@dataclass(frozen=True)
class Text:
    """A piece of text."""

    text: str


@dataclass(frozen=True)
class Image:
    """An image as the model sees it: `size` is (width, height) in shown pixels; `pixels` may be left unresolved."""

    size: tuple[int, int]
    pixels: PILImage.Image | None = field(default=None, repr=False, compare=False)
    page_id: str | None = None
    crop_box: tuple[int, int, int, int] | None = None  # page pixels; None = the whole page
    page_size: tuple[int, int] | None = None  # page pixels, where known

    @property
    def raw_size(self) -> tuple[int, int]:
        """(width, height) of what is shown, in page pixels. Raises ValueError where that is not known."""
        if self.crop_box is not None:
            return self.crop_box[2] - self.crop_box[0], self.crop_box[3] - self.crop_box[1]
        if self.page_size is None:
            raise ValueError(f"the size of page {self.page_id} is not known, so raw pixels cannot be converted")
        return self.page_size

    def resolved(self) -> PILImage.Image:
        """The pixels; raises ValueError when they were not attached."""
        if self.pixels is None:
            raise ValueError(f"the image of page {self.page_id} has no pixels; rebuild the messages with a page store")
        return self.pixels


@dataclass(frozen=True)
class Message:
    """One turn of the chat. `token_ids`: the exact generated ids of an assistant message, where they are known.

    grammar: of the actions that may follow, in the message that opens a conversation with actions of one's own.
    """

    role: Literal["system", "user", "assistant"]
    parts: tuple[Text | Image, ...]
    token_ids: tuple[int, ...] = ()
    grammar: actions.Grammar | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def images(self) -> list[Image]:
        return [part for part in self.parts if isinstance(part, Image)]


Conversation = list[Message]


def grammar_of(conversation: Sequence[Message]) -> actions.Grammar:
    """Whose closing tags end the turns of a conversation."""
    return next((message.grammar for message in conversation if message.grammar is not None), actions.BUILT_IN)


@dataclass
class Generation:
    """What a policy wrote for one conversation.

    text: up to and including the first closing action tag, boxes in shown pixels.
    token_ids: the generated ids, from the first to the one that completed that tag (or the end-of-turn token, which is
        then included); decoded they begin with what the model wrote. Empty for policies that work on text.
    logprobs: for each id, the model's log-probability at temperature 1, before any truncation of the distribution;
        empty where these are not known.
    finish_reason: "action" (a closing action tag), "stop" (end of turn), "length" (token limit), "error".
    prompt_tokens: length of the prompt in tokens, image tokens included; 0 where unknown.
    redrawn: whether its box was drawn by another model, which was asked; None where none was.
    error: why there is no generation; errors stay with their sample.
    """

    text: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason = "stop"
    prompt_tokens: int = 0
    redrawn: bool | None = None
    error: str | None = None

    @classmethod
    def failed(cls, error: str) -> Generation:
        return cls(text="", finish_reason="error", error=without_surrogates(error))

    def storable(self) -> Generation:
        """This generation without lone surrogates, which no file can hold; an error where its log-probabilities are no
        numbers, as those of a model that has diverged."""
        if not all(map(math.isfinite, self.logprobs)):
            return Generation.failed("the model's log-probabilities are not finite: have its weights diverged?")
        error = None if self.error is None else without_surrogates(self.error)
        return replace(self, text=without_surrogates(self.text), error=error)


def check_sampling(temperature: float, top_p: float, max_new_tokens: int) -> None:
    """Raises ValueError, naming the option, for one that no distribution or reply can have."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature}: a number from 0 (greedy) on")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}: a share above 0, 1 at most")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}: at least 1")


def check_frame(frame: str) -> None:
    """Raises ValueError for one that is none of `Frame`."""
    if frame not in get_args(Frame):
        raise ValueError(f"frame is {frame!r}: one of {', '.join(get_args(Frame))}")


def check_factor(policy: Policy, factor: int) -> None:
    """Raises ValueError where an agent's `factor`, the side of an image token in pixels, is not its model's.

    The model's is known of a policy with a `ChatEncoder` as `encoder`; an endpoint's nobody can ask.
    """
    own = getattr(getattr(policy, "encoder", None), "factor", None)
    if isinstance(own, int) and own != factor:
        raise ValueError(
            f"the agent's factor is {factor}, and an image token of {policy.name} is {own} pixels wide: "
            f"set factor to {own}, and min_pixels and max_pixels to multiples of {own**2}"
        )


class Policy(ABC):
    """A model that continues conversations.

    name: what is written into trajectories.
    batched: True when `generate` is fastest on many conversations at once; the rollout driver then gathers all waiting
        sessions into one call. False for a remote endpoint, where each session runs in a thread of its own.
    declared: for a class of somebody's own, the kind, checkpoint and options of the profile that it was made from.
    """

    name: str = "policy"
    batched: bool = True
    declared: Mapping[str, Any] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """What its turns depend on, JSON-able: the answers of one policy are never taken for those of another.

        By default what a profile declares, else a checksum of all attributes. Where one of these is no plain value,
        such as a model or a client, nothing can be said of another object, and the identity is this object's alone.
        """
        return {"name": self.name} if self.declared else {"name": self.name, "attributes": _checksum(vars(self))}

    @abstractmethod
    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """Continue every conversation with one assistant turn; results in the order of the input.

        seeds: one per conversation; the same seed on the same conversation samples the same turn, whatever else is in
        the batch (up to floating-point noise). Ignored by a policy that decodes greedily. A failure that concerns one
        sample is reported in its `Generation.error`; only a failure of the whole policy raises.
        """

    def close(self) -> None:  # noqa: B027 - most policies hold nothing
        """Free what the policy holds. Safe to call twice."""


def weights_identity(checkpoint: str | Path) -> dict[str, str]:
    """`{"weights": checksum}` of a checkpoint that is a folder or a file; empty for any other, which its name
    identifies."""
    place = Path(checkpoint)
    if str(checkpoint) and place.is_dir():
        return {"weights": fingerprint_folder(place)}
    return {"weights": fingerprint_file(place)} if place.is_file() else {}


def _checksum(attributes: dict[str, Any]) -> str:
    """Of an object's attributes, which are given one that no other object has where they are not all plain values."""
    try:
        text = json.dumps(attributes, sort_keys=True)
    except (TypeError, ValueError):
        text = attributes.setdefault("_unlike_any_other", uuid4().hex)
    return hashlib.sha256(text.encode()).hexdigest()


def generate_safely(
    policy: Policy, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None
) -> list[Generation]:
    """`policy.generate`, where a failing call is repeated one conversation at a time, so that a bad one fails alone.

    One that does not return a generation for each conversation fails as well.
    """
    try:
        return _one_each(policy.generate(conversations, seeds), len(conversations))
    except Exception as error:
        if len(conversations) == 1:
            return [Generation.failed(f"{type(error).__name__}: {error}")]
        alone = [None] * len(conversations) if seeds is None else [[seed] for seed in seeds]
        pairs = zip(conversations, alone, strict=True)
        return [generate_safely(policy, [conversation], seed)[0] for conversation, seed in pairs]


def _one_each(made: Any, count: int) -> list[Generation]:
    """What `generate` returned for so many conversations. Raises TypeError or ValueError where it is something else."""
    found = list(made) if isinstance(made, Iterable) else [made]
    for one in found:
        if not isinstance(one, Generation):
            raise TypeError(f"generate should return a list of Generation, and there is {one!r:.80} in it")
        if not isinstance(one.text, str):
            raise TypeError(f"the text of a Generation is {one.text!r:.80}: it should be a string")
    if len(found) != count:
        raise ValueError(f"generate returned {len(found)} generations for {count} conversations")
    return found


def turn_seed(seed: int, uid: str, turn: int) -> int:
    """The sampling seed of one turn of one session: the same in every order, batch and resumed run."""
    digest = hashlib.sha256(f"{seed}/{uid}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def last_image(messages: Sequence[Message]) -> Image | None:
    """The last image in `messages`: the one that the next box is about."""
    return next((image for message in reversed(messages) for image in reversed(message.images)), None)


def _box_between(frame: Frame, image: Image, box: geometry.Box, *, to_shown: bool) -> geometry.Box:
    """A box on `image` converted from a model's frame to shown pixels, or the other way."""
    if frame == "normalised-1000":
        return (geometry.from_thousandths if to_shown else geometry.to_thousandths)(box, image.size)
    (width, height), (raw_width, raw_height) = image.size, image.raw_size
    across, down = width / raw_width, height / raw_height
    if to_shown:
        return box[0] * across, box[1] * down, box[2] * across, box[3] * down
    x0, y0, x1, y1 = box[0] / across, box[1] / down, box[2] / across, box[3] / down
    return float(round(x0)), float(round(y0)), float(round(x1)), float(round(y1))


def boxes_to_shown(text: str, conversation: Conversation, frame: Frame) -> str:
    """A model's turn with its box converted from the model's `frame` to shown pixels of the last image."""
    image = last_image(conversation)
    if frame == "absolute" or image is None:
        return text
    to_shown = partial(_box_between, frame, image, to_shown=True)
    return actions.rewrite_box(text, to_shown, grammar_of(conversation))


def boxes_to_model(conversation: Conversation, index: int, frame: Frame) -> str:
    """The text of message `index` with its box in the model's `frame`: what the model itself once wrote."""
    text = conversation[index].text
    image = last_image(conversation[:index])
    if frame == "absolute" or image is None or conversation[index].role != "assistant":
        return text
    to_model = partial(_box_between, frame, image, to_shown=False)
    return actions.rewrite_box(text, to_model, grammar_of(conversation))


def in_frame(conversation: Conversation, frame: Frame) -> Conversation:
    """The conversation with every box that is known by its text alone in the model's `frame`.

    What a model wrote is taken by its ids, and these are in its frame as they are.
    """
    if frame == "absolute":
        return conversation
    return [
        message
        if message.token_ids or message.role != "assistant"
        else replace(message, parts=(Text(boxes_to_model(conversation, index, frame)),))
        for index, message in enumerate(conversation)
    ]
