"""Training samples for the language side: a conversation with images in, batches of token ids out.

The chat format is the policy's own (`<|im_start|>role`, an image as vision_start, pads, vision_end), so that what is
learned here is what is asked for in a rollout. The loss covers the assistant's turns only, `<|im_end|>` included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLProcessor

from vrag_nb.nano.looking import UNCOUNTED, Marks, Targets, covered_squares, square_part
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.tokenizer import token_id

IGNORE = -100


@dataclass
class Sample:
    """One conversation: turns of (role, parts), a part being a string or an image already at its shown size.

    `kind` names the task, for the log. Assistant turns before `learn_from` are context: no loss covers them. `marks`
    says where to look, one entry per image (None: not known); no entries at all if nothing is known.
    """

    kind: str
    turns: list[tuple[str, list[str | Image.Image]]]
    learn_from: int = 0
    marks: Sequence[Marks | None] = ()
    images: list[Image.Image] = field(init=False)

    def __post_init__(self) -> None:
        self.images = [part for _, parts in self.turns for part in parts if isinstance(part, Image.Image)]


def ask(kind: str, question: str, image: Image.Image | None, answer: str, marks: Marks | None = None) -> Sample:
    """A single exchange: the question first, so that every image token is read in its light; then the image."""
    parts: list[str | Image.Image] = [question] if image is None else [question, image]
    return Sample(kind, [("user", parts), ("assistant", [answer])], marks=[marks] if image else [])


def encode(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Token ids and labels (IGNORE outside the assistant's words) of one sample."""
    ids, labels, _ = _encode(sample, tokenizer)
    return ids, labels


def _encode(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[tuple[int, str]]]:
    """`encode`, and the learned texts with the position of their first token."""
    ids: list[int] = []
    labels: list[int] = []
    learned_texts: list[tuple[int, str]] = []

    def add(tokens: list[int], learned: bool) -> None:
        ids.extend(tokens)
        labels.extend(tokens if learned else [IGNORE] * len(tokens))

    pad = token_id(tokenizer, "<|image_pad|>")
    start, end = (token_id(tokenizer, f"<|vision_{edge}|>") for edge in ("start", "end"))
    for number, (role, parts) in enumerate(sample.turns):
        learned = role == "assistant" and number >= sample.learn_from
        add(tokenizer.encode(f"<|im_start|>{role}\n"), False)
        for part in parts:
            if isinstance(part, str):
                if learned:
                    learned_texts.append((len(ids), part))
                add(tokenizer.encode(part), learned)
            else:
                add([start, *[pad] * (part.width // FACTOR * (part.height // FACTOR)), end], False)
        add(tokenizer.encode("<|im_end|>"), learned)
        add(tokenizer.encode("\n"), False)
    return ids, labels, learned_texts


def collate(samples: Sequence[Sample], processor: Qwen2_5_VLProcessor) -> dict[str, torch.Tensor]:
    """A right-padded batch: input_ids, attention_mask, labels, mm_token_type_ids (batch, length) and the pixels."""
    tokenizer = processor.tokenizer
    encoded = [encode(sample, tokenizer) for sample in samples]
    length = max(len(ids) for ids, _ in encoded)
    input_ids = torch.full((len(samples), length), tokenizer.pad_token_id)
    labels = torch.full((len(samples), length), IGNORE)
    attention = torch.zeros((len(samples), length), dtype=torch.long)
    for row, (ids, wanted) in enumerate(encoded):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(ids)] = torch.tensor(wanted)
        attention[row, : len(ids)] = 1
    image_token = token_id(tokenizer, "<|image_pad|>")
    batch = {
        "input_ids": input_ids,
        "attention_mask": attention,
        "labels": labels,
        "mm_token_type_ids": (input_ids == image_token).int(),
    }
    images = [image for sample in samples for image in sample.images]
    if images:
        batch |= processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    return batch


def looking_targets(samples: Sequence[Sample], input_ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> Targets:
    """What `looking` should say about a collated batch."""
    targets = Targets(*(torch.full(input_ids.shape, UNCOUNTED) for _ in range(4)))
    pad = token_id(tokenizer, "<|image_pad|>")
    for row, sample in enumerate(samples):
        places = (input_ids[row] == pad).nonzero().flatten()
        for image, marks in zip(sample.images, sample.marks, strict=False):
            columns, rows = image.width // FACTOR, image.height // FACTOR
            here, places = places[: rows * columns], places[rows * columns :]
            if marks is not None:
                targets.answers[row, here] = covered_squares(marks.answer, columns, rows)
                targets.cues[row, here] = covered_squares(marks.cues, columns, rows)
                for before, (x, y) in _letters_read(sample, marks, tokenizer, int(here[-1])):
                    square = int(y // FACTOR) * columns + int(x // FACTOR)
                    targets.pointers[row, before] = here[min(square, rows * columns - 1)]
                    targets.parts[row, before] = square_part(x, y)
    return targets


def _letters_read(
    sample: Sample, marks: Marks, tokenizer: PreTrainedTokenizerBase, after: int
) -> list[tuple[int, tuple[float, float]]]:
    """Where the assistant writes what is printed on an image that it has seen: (position of the token before, centre).

    A token of several letters is read where its first one stands.
    """
    read = []
    if len(marks.letters) != len("".join(marks.printed.split())):
        return []
    for start, text in _encode(sample, tokenizer)[2]:
        begin = text.find(marks.printed) if marks.printed and start > after else -1
        while begin >= 0:
            for number, (left, right) in enumerate(tokenizer(text, return_offsets_mapping=True)["offset_mapping"]):
                token = text[left:right]
                first = left + len(token) - len(token.lstrip()) - begin
                if token.strip() and 0 <= first < len(marks.printed):
                    letter = len("".join(marks.printed[:first].split()))
                    read.append((start + number - 1, marks.letters[letter]))
            begin = text.find(marks.printed, begin + 1)
    return read


def exact_match(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(batch,) bool: is every learned token the argmax given the true prefix - that is, would greedy decoding agree?"""
    wanted = labels[:, 1:]
    agrees = (logits[:, :-1].argmax(-1) == wanted) | (wanted == IGNORE)
    return agrees.all(-1)
