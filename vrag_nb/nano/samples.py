"""Training samples for the language side: a conversation with images in, batches of token ids out.

The chat format is the policy's own (`<|im_start|>role`, an image as vision_start, pads, vision_end), so that what is
learned here is what is asked for in a rollout. The loss covers the assistant's turns only, `<|im_end|>` included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from PIL import Image
from transformers import PreTrainedTokenizerBase, Qwen2_5_VLProcessor

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.glyphs import SLOTS, Glyph, slot_targets
from vrag_nb.nano.looking import DEPTHS, UNASKED, Look, Pointers, Targets, covered_squares, square_part
from vrag_nb.nano.model import FACTOR
from vrag_nb.nano.tokenizer import token_id

IGNORE = -100
WORD = re.compile(r"[^\W_]+")
BOX = re.compile(r"\[(\d+), (\d+), (\d+), (\d+)\]")  # as written: pixels of the image, its lower right corner outside
COMMON_WORDS = frozenset(WORD.findall("the and what which how much many was were for from with deck page slide"))


@dataclass
class Sample:
    """One conversation: turns of (role, parts), a part being a string or an image already at its shown size.

    `kind` names the task, for the log. Assistant turns before `learn_from` are context: no loss covers them. `words`:
    per image, the words printed on it and their boxes (image pixels). `looks`: where answers are to be looked for.
    `glyphs`: per image, the characters drawn on it; where there are none, its squares are not asked for theirs.
    `about`: the question that it is a step of, where several samples may be of one.
    """

    kind: str
    turns: list[tuple[str, list[str | Image.Image]]]
    learn_from: int = 0
    words: Sequence[Sequence[tuple[str, Box]]] = ()
    looks: Sequence[Look] = ()
    glyphs: Sequence[Sequence[Glyph]] = ()
    about: str = ""
    images: list[Image.Image] = field(init=False)

    def __post_init__(self) -> None:
        self.images = [part for _, parts in self.turns for part in parts if isinstance(part, Image.Image)]


def telling_words(text: str) -> set[str]:
    """The words of a text that could be looked for on a page: lower case, numbers and words of three letters on."""
    return {word for word in WORD.findall(text.lower()) if is_telling(word)}


def is_telling(word: str) -> bool:
    return len(word) > (1 if word.isdigit() else 2) and word.lower() not in COMMON_WORDS


@dataclass(frozen=True)
class _Text:
    """A string of a conversation: where its first token stands, its turn, and how many images come before it."""

    start: int
    text: str
    turn: int
    images: int
    learned: bool


def encode(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Token ids and labels (IGNORE outside the assistant's words) of one sample."""
    ids, labels, _ = _encode(sample, tokenizer)
    return ids, labels


def _encode(sample: Sample, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int], list[_Text]]:
    ids: list[int] = []
    labels: list[int] = []
    texts: list[_Text] = []
    images = 0

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
                texts.append(_Text(len(ids), part, number, images, learned))
                add(tokenizer.encode(part), learned)
            else:
                images += 1
                add([start, *[pad] * (part.width // FACTOR * (part.height // FACTOR)), end], False)
        add(tokenizer.encode("<|im_end|>"), learned)
        add(tokenizer.encode("\n"), False)
    return ids, labels, texts


def collate(samples: Sequence[Sample], processor: Qwen2_5_VLProcessor) -> dict[str, torch.Tensor]:
    """`collate_texts` and the pixels: a batch as the model takes it."""
    batch = collate_texts(samples, processor.tokenizer)
    images = [image for sample in samples for image in sample.images]
    if images:
        batch |= processor.image_processor(images=images, do_resize=False, return_tensors="pt")
    return batch


def collate_texts(samples: Sequence[Sample], tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """A right-padded batch: input_ids, attention_mask, labels and mm_token_type_ids, (batch, length) each."""
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
    return {
        "input_ids": input_ids,
        "attention_mask": attention,
        "labels": labels,
        "mm_token_type_ids": (input_ids == image_token).int(),
    }


def looking_targets(samples: Sequence[Sample], input_ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> Targets:
    """What `looking` should say about a collated batch."""
    is_square = input_ids == token_id(tokenizer, "<|image_pad|>")
    cues = torch.full(input_ids.shape, UNASKED)
    places = torch.full((*input_ids.shape, 2), UNASKED)
    found: dict[str, list[tuple[int, int, torch.Tensor, int]]] = {name: [] for name in DEPTHS}
    for row, sample in enumerate(samples):
        squares = _image_squares(sample, is_square[row])
        for image, here in zip(sample.images, squares, strict=True):
            order, columns = torch.arange(len(here)), image.width // FACTOR
            places[row, here] = torch.stack([order % columns, order // columns], -1)
        if sample.words or sample.looks:
            _, _, texts = _encode(sample, tokenizer)
            printed = [_printed(words) for words in sample.words]
            for number, page in enumerate(printed):
                said = set().union(*(telling_words(text.text) for text in texts if text.images <= number))
                boxes = [box for word in said for box in page.get(word, ())]
                cues[row, squares[number]] = _covering(sample.images[number], boxes)
            for name, position, right, part in _pointed(sample, texts, squares, printed, tokenizer):
                mask = torch.zeros(input_ids.shape[1], dtype=torch.bool)
                mask[right] = True
                found[name].append((row, position, mask, part))
    pointers = {name: _stacked(rows, input_ids.shape[1]) for name, rows in found.items()}
    return Targets(is_square, cues, places, pointers, _glyph_targets(samples))


def _glyph_targets(samples: Sequence[Sample]) -> torch.Tensor:
    """(squares of all images, SLOTS) class ids, as `slot_targets`; IGNORE where a sample does not tell its glyphs."""
    told = [torch.zeros(0, SLOTS, dtype=torch.long)]
    for sample in samples:
        for number, image in enumerate(sample.images):
            columns, rows = image.width // FACTOR, image.height // FACTOR
            known = slot_targets(sample.glyphs[number], columns, rows) if sample.glyphs else None
            told.append(torch.full((rows * columns, SLOTS), IGNORE) if known is None else known)
    return torch.cat(told)


def _stacked(found: Sequence[tuple[int, int, torch.Tensor, int]], length: int) -> Pointers:
    rows, positions, parts = (torch.tensor([one[column] for one in found], dtype=torch.long) for column in (0, 1, 3))
    masks = torch.stack([one[2] for one in found]) if found else torch.zeros(0, length, dtype=torch.bool)
    return Pointers(rows, positions, masks, parts)


def _image_squares(sample: Sample, is_square: torch.Tensor) -> list[torch.Tensor]:
    """Per image, the positions of its squares."""
    sizes = [image.width // FACTOR * (image.height // FACTOR) for image in sample.images]
    return list(is_square.nonzero().flatten()[: sum(sizes)].split(sizes))


def _printed(words: Sequence[tuple[str, Box]]) -> dict[str, list[Box]]:
    """Where each telling word stands."""
    places: dict[str, list[Box]] = {}
    for said, box in words:
        for word in telling_words(said):
            places.setdefault(word, []).append(box)
    return places


def _pointed(
    sample: Sample,
    texts: Sequence[_Text],
    squares: Sequence[torch.Tensor],
    printed: Sequence[dict[str, list[Box]]],
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[tuple[str, int, torch.Tensor, int]]:
    """(head, position of the token, positions of the right squares, part of the square) of one sample."""
    for text in texts:
        offsets = tokenizer(text.text, return_offsets_mapping=True)["offset_mapping"]
        ends = {end: number for number, (_, end) in enumerate(offsets)}
        for match in WORD.finditer(text.text) if text.images else ():
            word = match.group().lower()
            boxes = [(image, page.get(word, [])) for image, page in enumerate(printed[: text.images])]
            right = [squares[image][_covered(sample.images[image], places)] for image, places in boxes if places]
            if is_telling(word) and match.end() in ends and right and sum(map(len, right)):
                yield "word", text.start + ends[match.end()], torch.cat(right), 0
        for look in sample.looks:
            if look.turn == text.turn and text.learned:
                yield from _looked(sample.images[look.image], look, text, offsets, squares[look.image])


def _looked(
    image: Image.Image, look: Look, text: _Text, offsets: Sequence[tuple[int, int]], squares: torch.Tensor
) -> Iterator[tuple[str, int, torch.Tensor, int]]:
    """The pointers of one answer: where it stands, where each of its tokens is read (by its first letter), and the
    corners of a box it writes.
    """
    columns = image.width // FACTOR
    right = squares[_covered(image, look.boxes)]
    if len(right):
        yield "answer", text.start - 1, right, 0
    for place, square in _corners(text.text, offsets, columns, image.height // FACTOR):
        yield "corner", text.start + place - 1, squares[square : square + 1], 0
    if not look.letters or len(look.letters) != len("".join(look.printed.split())):
        return
    for begin in places(look.printed, text.text):
        for number, (left, end) in enumerate(offsets):
            token = text.text[left:end]
            first = left + len(token) - len(token.lstrip()) - begin
            if token.strip() and 0 <= first < len(look.printed):
                x, y = look.letters[len("".join(look.printed[:first].split()))]
                square = min(int(y // FACTOR) * columns + int(x // FACTOR), len(squares) - 1)
                yield "letter", text.start + number - 1, squares[square : square + 1], square_part(x, y)


def places(printed: str, text: str) -> Iterator[int]:
    """Where in a text something stands by itself: "20" is not in 2010, nor "7" in 1.75 or "search_7"."""
    alone = re.compile(rf"(?<!\w)(?<!\d[.,]){re.escape(printed)}(?!\w)(?![.,]\d)")
    return (found.start() for found in alone.finditer(text))


def _corners(text: str, offsets: Sequence[tuple[int, int]], columns: int, rows: int) -> Iterator[tuple[int, int]]:
    """(token, square) of every token of the numbers of a box written in `text`: the square in the number's corner."""
    if not (written := BOX.search(text)):
        return
    x0, y0, x1, y1 = (int(number) // FACTOR for number in written.groups())
    corners = [(x0, y0), (x0, y0), (x1 - 1, y1 - 1), (x1 - 1, y1 - 1)]
    for group, (column, row) in enumerate(corners, start=1):
        begin, end = written.span(group)
        square = min(max(row, 0), rows - 1) * columns + min(max(column, 0), columns - 1)
        yield from ((token, square) for token, (left, right) in enumerate(offsets) if left < end and right > begin)


def _covering(image: Image.Image, boxes: Sequence[Box]) -> torch.Tensor:
    return covered_squares(boxes, image.width // FACTOR, image.height // FACTOR)


def _covered(image: Image.Image, boxes: Sequence[Box]) -> torch.Tensor:
    return _covering(image, boxes).nonzero().flatten()


def exact_match(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per learned answer (a run of learned tokens): its row, and whether every token is the argmax given the truth.

    Both (answers,): with the true prefix given, an exact match is what greedy decoding would have written.
    """
    wanted = labels[:, 1:]
    learned = wanted != IGNORE
    agrees = (logits[:, :-1].argmax(-1) == wanted) | ~learned
    starts = learned & ~torch.nn.functional.pad(learned, (1, 0))[:, :-1]
    answer = starts.flatten().cumsum(0) - 1  # of each learned token, over the whole batch: which answer it belongs to
    matches = torch.ones(int(starts.sum()), dtype=torch.bool, device=labels.device)
    matches[answer[(learned & ~agrees).flatten()]] = False
    return starts.nonzero()[:, 0], matches


def thought_loss(logits: torch.Tensor, labels: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """The mean cross-entropy of the tokens of learned thoughts, their end included; 0 where there is none."""
    opened = (labels == token_id(tokenizer, "<think>")).cumsum(1)
    closed = (labels == token_id(tokenizer, "</think>")).cumsum(1)
    inside = (opened > closed)[:, :-1]  # the tokens that are followed by one of a thought, or by its end
    if not inside.any():
        return logits.new_zeros(())
    return torch.nn.functional.cross_entropy(logits[:, :-1][inside].float(), labels[:, 1:][inside])


def decisions(
    logits: torch.Tensor, labels: torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the agent decides about what it sees, at the first word of each learned thought: read, enlarge or go on.

    Returns the mean cross-entropy of those words, 0 where there is none; and of each its row and whether the likeliest
    word is the right one, (decisions,) both.
    """
    rows, at = (labels[:, :-1] == token_id(tokenizer, "<think>")).nonzero().unbind(1)
    asked, wanted = logits[rows, at].float(), labels[rows, at + 1]
    if not len(wanted):
        return logits.new_zeros(()), rows, rows.bool()
    return torch.nn.functional.cross_entropy(asked, wanted), rows, asked.detach().argmax(-1) == wanted
