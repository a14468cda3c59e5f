"""Conversations as token ids: the Qwen chat format, token-exact, with a mask of what the model wrote.

    <|im_start|>role\\n ... <|im_end|>\\n          an image is <|vision_start|><|image_pad|> x n<|vision_end|>

Ids are concatenated piece by piece instead of rendering the chat as text and tokenising that: an assistant message
that carries its generated ids contributes exactly those, so the prompt of turn n + 1 begins with the prompt and the
ids of turn n. (Upstream finds the model's tokens by decoding and encoding again, which is fragile.) Text is encoded
with special tokens split, so a question that quotes `<|image_pad|>` cannot pose as an image. Where the checkpoint's own
template puts a system message before a chat without one, as Qwen2.5-VL's does, so does the encoder: the prompts are
those of the checkpoint behind a server.

Images arrive at the size they are shown and are not resized again; the number of their tokens is known from that size,
so ids and masks can be made without pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from PIL import Image as PILImage

from vrag_nb.agent.policy import Conversation, Image, Message, Text

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")


@dataclass(frozen=True)
class Encoded:
    """One conversation. `model_mask` is True where the model wrote the token; `images` are in reading order.

    shared: with so many tokens other conversations of the same batch begin too.
    """

    input_ids: list[int]
    model_mask: list[bool]
    images: list[Image]
    shared: int = 0

    def pixels(self) -> list[PILImage.Image]:
        """The images' pixels; raises ValueError when one was left unresolved."""
        return [image.resolved() for image in self.images]

    @property
    def written(self) -> int:
        """Where the model's last turn ends; 0 before its first."""
        return next((n for n in range(len(self.model_mask), 0, -1) if self.model_mask[n - 1]), 0)


class ChatEncoder:
    """Encodes conversations for a processor of the Qwen-VL family (a tokenizer and an image processor).

    Raises ValueError when the tokenizer lacks one of the format's special tokens.
    """

    def __init__(self, processor: Any) -> None:
        self.tokenizer = processor.tokenizer
        self.image_processor = processor.image_processor
        self.factor = int(self.image_processor.patch_size) * int(self.image_processor.merge_size)
        self.im_start = self._special("<|im_start|>")
        self.im_end = self._special("<|im_end|>")
        self.vision_start = self._special("<|vision_start|>")
        self.vision_end = self._special("<|vision_end|>")
        self.image_pad = self._special("<|image_pad|>")
        self.pad_id = self.tokenizer.pad_token_id
        if self.pad_id is None:
            self.pad_id = self._special("<|endoftext|>")
        self.prefix = list(self.tokenizer(_before_user(processor), add_special_tokens=False)["input_ids"])

    def encode(self, conversation: Conversation, *, reply: bool = True, collapse_images: bool = False) -> Encoded:
        """Token ids of a conversation.

        reply: end with the opening of an assistant turn. collapse_images: one `<|image_pad|>` per image whatever its
        size, as vLLM wants it. The model mask covers the generated ids of assistant messages; a message without ids
        (an expert's, to be imitated) is masked with its end-of-turn token. Raises ValueError for an image whose size
        is not a multiple of the patch grid.
        """
        own_system = bool(conversation) and conversation[0].role == "system"
        ids: list[int] = [] if own_system else list(self.prefix)
        mask: list[bool] = [False] * len(ids)
        for message in conversation:
            piece, written = self._message(message, collapse_images)
            ids += piece
            mask += written
        if reply:
            opening = [self.im_start, *self._text("assistant\n")]
            ids += opening
            mask += [False] * len(opening)
        return Encoded(ids, mask, [image for message in conversation for image in message.images])

    def runs(self, encoded: Encoded) -> list[tuple[str, int, str]]:
        """A conversation as runs of tokens that the model wrote ("learn") or did not (""): (mark, tokens, text).

        An image's tokens are written as their number.
        """
        found: list[tuple[str, int, str]] = []
        for written, group in groupby(zip(encoded.input_ids, encoded.model_mask, strict=True), key=lambda one: one[1]):
            ids = [token for token, _ in group]
            pieces = [
                f"[{len(list(same))} image tokens]" if is_pad else self.tokenizer.decode(list(same))
                for is_pad, same in groupby(ids, key=lambda token: token == self.image_pad)
            ]
            found.append(("learn" if written else "", len(ids), "".join(pieces)))
        return found

    def with_images(self, encoded: Encoded, images: Sequence[Image]) -> Encoded:
        """The same conversation with other images, of any size, in the places of its own."""
        ids: list[int] = []
        mask: list[bool] = []
        remaining = iter(images)
        for is_pad, run in groupby(
            zip(encoded.input_ids, encoded.model_mask, strict=True), key=lambda one: one[0] == self.image_pad
        ):
            tokens = list(run)
            if is_pad:
                tokens = [(self.image_pad, False)] * self.image_tokens(next(remaining))
            ids += [token for token, _ in tokens]
            mask += [written for _, written in tokens]
        return Encoded(ids, mask, list(images))

    def before_images(self, encoded: Encoded, newest: int) -> int:
        """How many tokens come before the `newest` last images of a conversation."""
        starts = [place for place, token in enumerate(encoded.input_ids) if token == self.vision_start]
        return starts[-newest] if newest else len(encoded.input_ids)

    def images_in(self, encoded: Encoded, start: int, end: int) -> list[Image]:
        """The images that lie between two places of a conversation."""
        before = encoded.input_ids[:start].count(self.vision_start)
        return encoded.images[before : before + encoded.input_ids[start:end].count(self.vision_start)]

    def newest_images(self, encoded: Encoded) -> int:
        """How many images the last turn of observations that shows any has; notices may have come after it."""
        starts = [place for place, token in enumerate(encoded.input_ids) if token == self.vision_start]
        if not starts:
            return 0
        written = next((place for place in range(starts[-1], -1, -1) if encoded.model_mask[place]), -1)
        return sum(place > written for place in starts)

    def image_tokens(self, image: Image) -> int:
        """Number of `<|image_pad|>` tokens of an image at its shown size."""
        width, height = image.size
        if width % self.factor or height % self.factor:
            raise ValueError(f"an image shown at {width} x {height} does not fit a grid of {self.factor} pixels")
        return (width // self.factor) * (height // self.factor)

    def _message(self, message: Message, collapse_images: bool) -> tuple[list[int], list[bool]]:
        if message.role == "assistant":
            return self._assistant(message)
        ids = [self.im_start]
        text = f"{message.role}\n"
        for part in message.parts:
            if isinstance(part, Text):
                text += part.text
                continue
            tokens = self.image_tokens(part)
            count = 1 if collapse_images else tokens
            ids += [*self._text(text), self.vision_start, *[self.image_pad] * count, self.vision_end]
            text = ""
        ids += [*self._text(text), self.im_end, *self._text("\n")]
        return ids, [False] * len(ids)

    def _assistant(self, message: Message) -> tuple[list[int], list[bool]]:
        before = [self.im_start, *self._text("assistant\n")]
        newline = self._text("\n")
        if message.token_ids:
            written = list(message.token_ids)
            after = newline if written[-1] == self.im_end else [self.im_end, *newline]
        else:
            written, after = [*self._text(message.text), self.im_end], newline
        mask = [False] * len(before) + [True] * len(written) + [False] * len(after)
        return [*before, *written, *after], mask

    def _text(self, text: str) -> list[int]:
        if not text:
            return []
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def _special(self, token: str) -> int:
        token_id = self.tokenizer.convert_tokens_to_ids(token)
        if token_id is None or token_id == self.tokenizer.unk_token_id:
            raise ValueError(f"the tokenizer has no {token}: this is not a checkpoint with the Qwen chat format")
        return int(token_id)

    def collate(self, batch: Sequence[Encoded], padding_side: str = "left") -> dict[str, torch.Tensor]:
        """Padded model inputs: input_ids, attention_mask, mm_token_type_ids, model_mask, each (batch, length), and
        pixel_values (patches, patch_dim) and image_grid_thw (images, 3) when there are images.

        Raises ValueError when the image processor's grid does not match the image tokens.
        """
        length = max(len(encoded.input_ids) for encoded in batch)
        input_ids = torch.full((len(batch), length), self.pad_id, dtype=torch.long)
        attention_mask = torch.zeros((len(batch), length), dtype=torch.long)
        model_mask = torch.zeros((len(batch), length), dtype=torch.bool)
        for row, encoded in enumerate(batch):
            count = len(encoded.input_ids)
            where = slice(length - count, length) if padding_side == "left" else slice(0, count)
            input_ids[row, where] = torch.tensor(encoded.input_ids, dtype=torch.long)
            attention_mask[row, where] = 1
            model_mask[row, where] = torch.tensor(encoded.model_mask, dtype=torch.bool)
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "mm_token_type_ids": (input_ids == self.image_pad).int(),  # M-RoPE positions are made from it
            "model_mask": model_mask,
        }
        images = [image for encoded in batch for image in encoded.images]
        return {**inputs, **self.pixel_inputs(images)} if images else inputs

    def grid(self, images: Sequence[Image]) -> torch.Tensor:
        """Patches in time, height and width of images at their shown sizes, (images, 3)."""
        patch = int(self.image_processor.patch_size)
        return torch.tensor([[1, image.size[1] // patch, image.size[0] // patch] for image in images])

    def pixel_inputs(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """pixel_values (patches, patch_dim) and image_grid_thw (images, 3), without any resizing."""
        pixels = [image.resolved() for image in images]
        features = self.image_processor(images=pixels, do_resize=False, return_tensors="pt")
        grid, expected = features["image_grid_thw"], self.grid(images)
        if not torch.equal(grid, expected):
            raise ValueError(f"image grids {grid.tolist()} do not match the sizes shown {expected.tolist()}")
        return {"pixel_values": features["pixel_values"], "image_grid_thw": grid}


def _before_user(processor: Any) -> str:
    """What the checkpoint's chat template puts before a chat that has no system message; mostly nothing."""
    holder = processor if getattr(processor, "chat_template", None) else processor.tokenizer
    try:
        rendered = holder.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False)
    except Exception:  # there is no template, or it wants another chat: it may raise anything
        return ""
    before, user, _ = rendered.partition("<|im_start|>user")
    return before if user else ""
