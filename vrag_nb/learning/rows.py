"""Rows of a training step: conversations as ids, split where the model began to write, and parts of a batch of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image as PILImage
from trl.trainer.utils import pad, split_pixel_values_by_grid, unsplit_pixel_values_by_grid

from vrag_nb.agent.encoding import ChatEncoder, Encoded
from vrag_nb.agent.policy import Conversation, Image, Message, Text


@dataclass(frozen=True)
class SampledRow:
    """A segment as the loss needs it: ids up to the model's first token, the rest, and which of that is learned."""

    prompt: list[int]
    completion: list[int]
    written: list[bool]
    encoded: Encoded

    def unlearned(self) -> SampledRow:
        """The same without a learned token."""
        return replace(self, written=[False] * len(self.written))


def as_sample(conversation: Conversation, encoder: ChatEncoder, max_length: int, start: int = 0) -> SampledRow:
    """A conversation cut to `max_length` tokens after a whole turn, then split before the first token to be learned.

    start: messages before this one are context, also those that the model wrote; where the cut leaves only them, no
    token is learned. Raises ValueError when not even the first turn fits, or the model wrote nothing.
    """
    context = len(encoder.encode(conversation[:start], reply=False).input_ids) if start else 0
    for end in range(len(conversation), 0, -1):
        if conversation[end - 1].role != "assistant":
            continue
        encoded = encoder.encode(conversation[:end], reply=False)
        if len(encoded.input_ids) <= max_length:
            return _split(encoded, context)
    raise ValueError(f"no turn of the trajectory fits into {max_length} tokens")


def _split(encoded: Encoded, context: int) -> SampledRow:
    """Split before the model's first token behind the first `context` ones; unlearned where there is none."""
    own = [written and place >= context for place, written in enumerate(encoded.model_mask)]
    mask = own if any(own) else encoded.model_mask
    first, last = mask.index(True), len(mask) - mask[::-1].index(True)
    sample = SampledRow(encoded.input_ids[:first], encoded.input_ids[first:last], mask[first:last], encoded)
    return sample if any(own) else sample.unlearned()


def with_blank_image(sample: SampledRow, encoder: ChatEncoder) -> SampledRow:
    """The row with an image of one square behind its last token, where it has none; nothing before it changes.

    Where weights lie in parts on several cards (ZeRO-3), or several processes train some of the vision tower, all must
    go through the same modules at once: one whose rows lack an image would pass over the tower, and the others wait.
    """
    if sample.encoded.images:
        return sample
    behind, images = _blank(encoder)
    return replace(
        sample,
        completion=[*sample.completion, *behind],
        written=[*sample.written, *[False] * len(behind)],
        encoded=replace(sample.encoded, images=images),
    )


def with_blank_behind(encoded: Encoded, encoder: ChatEncoder) -> Encoded:
    """As `with_blank_image`, of a conversation that was not sampled."""
    if encoded.images:
        return encoded
    behind, images = _blank(encoder)
    return Encoded([*encoded.input_ids, *behind], [*encoded.model_mask, *[False] * len(behind)], images)


def _blank(encoder: ChatEncoder) -> tuple[list[int], list[Image]]:
    """The ids of an image of one white square, and the image."""
    blank = Image((encoder.factor, encoder.factor), PILImage.new("RGB", (encoder.factor, encoder.factor), "white"))
    seen = encoder.encode([Message("user", (blank,))], reply=False)
    return seen.input_ids[seen.input_ids.index(encoder.vision_start) :], seen.images


def nothing(prompt: str, encoder: ChatEncoder) -> SampledRow:
    """A row without a learned token."""
    ids = encoder.encode([Message("user", (Text(prompt),))]).input_ids
    return SampledRow(ids, [encoder.im_end], [False], Encoded([], [], []))


def row_tensors(samples: Sequence[SampledRow], encoder: ChatEncoder, device: torch.device) -> dict[str, Any]:
    """Rows as TRL names them, (rows, tokens) each: prompts padded on the left, completions on the right; and their
    images."""

    def padded(rows: list[list[int]], value: int, side: str) -> torch.Tensor:
        return pad([torch.tensor(row) for row in rows], padding_value=value, padding_side=side).to(device)

    prompts, completions = [one.prompt for one in samples], [one.completion for one in samples]
    batch: dict[str, Any] = {
        "prompt_ids": padded(prompts, encoder.pad_id, "left"),
        "prompt_mask": padded([[1] * len(row) for row in prompts], 0, "left"),
        "completion_ids": padded(completions, encoder.pad_id, "right"),
        "completion_mask": padded([[1] * len(row) for row in completions], 0, "right"),
        "tool_mask": padded([[int(own) for own in one.written] for one in samples], 0, "right"),
    }
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    batch["mm_token_type_ids"] = (ids == encoder.image_pad).int()
    images = [image for one in samples for image in one.encoded.images]
    if images:
        batch |= {name: value.to(device) for name, value in encoder.pixel_inputs(images).items()}
        batch["num_images"] = [len(one.encoded.images) for one in samples]
    return batch


def micro_batches(batch: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Rows of a batch, `size` at a time, each with its own images."""
    rows = len(batch["prompt_ids"])
    split = split_pixel_values_by_grid(batch)
    for start in range(0, rows, size):
        part = {
            name: value[start : start + size]
            for name, value in split.items()
            if isinstance(value, list) or (isinstance(value, torch.Tensor) and value.ndim)
        }
        yield unsplit_pixel_values_by_grid(part)


def used_columns(attention_mask: torch.Tensor) -> tuple[int, int]:
    """The first column of (rows, length) that is not padding in every row, and the one after the last."""
    used = attention_mask.any(0).nonzero().flatten()
    return int(used[0]), int(used[-1]) + 1
