"""A decode loop that computes nothing twice, for models of the Qwen2-VL and Qwen2.5-VL families.

`generate` of transformers reads a conversation's whole prompt anew at every turn, and copies the keys and values of
all tokens at every step. Here the keys and values of a conversation are kept when its turn ends, so the next turn reads
only what was shown since; they grow in place; rows that are done leave the batch; and what can be guessed is read
several tokens at a time (`agent.drafting`). What comes of it is the same, which tests/test_decoding.py compares with
`generate`, ids and log-probabilities.

Keys and values are kept by what they were made from: the tokens and the pixels. They are good for one set of weights
only: whoever changes the weights calls `forget`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from vrag_nb.agent.drafting import Drafter, Line
from vrag_nb.agent.encoding import ChatEncoder, Encoded
from vrag_nb.agent.vision_cache import VisionCache, image_key

DEFAULT_PREFIX_BYTES = 512 * 2**20
Pick = Callable[[Sequence[int], torch.Tensor], tuple[list[int], list[float]]]


class GrowingLayer(DynamicLayer):
    """Keys and values (batch, heads, tokens, width) of one layer in buffers with room to grow."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, room: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._length, shape = keys.shape[2], (*keys.shape[:2], keys.shape[2] + room, keys.shape[3])
        self._keys, self._values = keys.new_empty(shape), values.new_empty(shape)
        self._write(0, keys, values)

    def _write(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self._length = start + keys.shape[2]
        if self._length > self._keys.shape[2]:
            self._keys, self._values = (_widened(old, start, self._length) for old in (self._keys, self._values))
        self._keys[:, :, start : self._length], self._values[:, :, start : self._length] = keys, values
        self.keys, self.values = self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._write(self._length, key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self._length

    def cut(self, length: int) -> None:
        """Forget all tokens but so many."""
        self._length = length
        self.keys, self.values = self._keys[:, :, :length], self._values[:, :, :length]

    def keep_rows(self, rows: torch.Tensor) -> None:
        self._keys, self._values = self._keys[rows], self._values[rows]
        self.keys, self.values = self._keys[:, :, : self._length], self._values[:, :, : self._length]


def _widened(old: torch.Tensor, filled: int, length: int) -> torch.Tensor:
    """A buffer with room for more than `length` tokens, and what the first `filled` places of `old` hold."""
    new = old.new_empty(*old.shape[:2], length + length // 4, old.shape[3])
    new[:, :, :filled] = old[:, :, :filled]
    return new


class _Turn:
    """A row that is being written: its number, its new ids and their log-probabilities, a guess at what comes next.

    first: the position of its first new token.
    """

    def __init__(self, row: int, line: Line, first: int) -> None:
        self.row, self.line, self.first = row, line, first
        self.ids, self.logprobs, self.guess = list[int](), list[float](), list[int]()
        self.done = self.kept = False

    def write(self, token: int, logprob: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.line.write(token)


class _Written(NamedTuple):
    """Turns that are written together, in the order of the rows of their cache and of its mask, (rows, tokens)."""

    turns: list[_Turn]
    cache: Any
    mask: torch.Tensor

    def without_done(self) -> _Written:
        """Less the rows that are done, once these are many: to leave them out costs a copy of the cache."""
        staying = [place for place, turn in enumerate(self.turns) if not turn.done]
        if len(staying) > 0.7 * len(self.turns):
            return self
        rows = torch.tensor(staying, device=self.mask.device)
        for layer in self.cache.layers:
            layer.keep_rows(rows)
        return self._replace(turns=[self.turns[place] for place in staying], mask=self.mask[rows])

    def settled(self, right: Sequence[int]) -> _Written:
        """Of what the last pass read, each row keeps its first token and so many guesses, those that were right."""
        longest, before = 1 + max(right), self.mask.shape[1]
        for layer in self.cache.layers:
            layer.cut(before + longest)
        device = self.mask.device
        kept = torch.arange(longest, device=device) <= torch.tensor(right, device=device)[:, None]
        return self._replace(mask=torch.cat([self.mask, kept.to(self.mask.dtype)], 1))


@dataclass(frozen=True)
class _Start:
    """What is known of a row before it is read: its kept keys and values, and what of it is new.

    past: (layers, 2, heads, tokens, width), or None. positions: (3, all tokens), M-RoPE. new: the ids after the past.
    images: the row's images that lie in `new`.
    """

    past: torch.Tensor | None
    positions: torch.Tensor
    new: list[int]
    images: list[Any]

    @property
    def known(self) -> int:
        return 0 if self.past is None else self.past.shape[3]


class Decoder:
    """Runs batches of conversations. Not thread-safe.

    model: `Qwen2VLForConditionalGeneration` or its 2.5 sibling, adapters inside it or not. drafter: who guesses.
    prefix_bytes: memory for the keys and values of conversations whose next turn has not come yet; the oldest are
    dropped beyond it.
    """

    def __init__(
        self,
        model: Any,
        encoder: ChatEncoder,
        vision: VisionCache,
        drafter: Drafter,
        prefix_bytes: int = DEFAULT_PREFIX_BYTES,
    ) -> None:
        self.model, self.encoder, self.vision, self.drafter = model, encoder, vision, drafter
        self.prefix_bytes = prefix_bytes
        self._kept: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._held = 0

    def forget(self) -> None:
        """Drop everything kept."""
        self.vision.forget()
        self._kept.clear()
        self._held = 0

    @torch.inference_mode()
    def run(
        self,
        batch: Sequence[Encoded],
        pick: Pick,
        stopped: Callable[[list[int]], bool],
        max_new_tokens: int,
        keep: bool = True,
        together: int = 1,
    ) -> list[tuple[list[int], list[float]]]:
        """The ids that each row continues with, and their log-probabilities.

        pick: the next tokens of some rows, given their numbers and logits (rows, vocabulary), as `agent.picking.Picker`
        does. stopped: whether a row's new ids end its turn. keep: whether a next turn may come. together: so many rows,
        side by side, for which the same is picked.
        """
        if self.prefix_bytes:
            self._read_shared(batch)
        cache, mask, logits, following = self._read_different(batch, max_new_tokens)
        lines = (self.drafter.line(encoded.input_ids) for encoded in batch)
        turns = [_Turn(row, line, int(first)) for row, (line, first) in enumerate(zip(lines, following, strict=True))]
        written, ended = _Written(turns, cache, mask), partial(_ended, stopped=stopped, most=max_new_tokens)
        _pick(turns, logits[:, None], pick, ended)
        self._finish(written, batch, keep)
        while not all(turn.done for turn in turns):
            written = written.without_done()
            for place in range(0, len(written.turns), together):
                guess = [] if written.turns[place].done else written.turns[place].line.guess()
                for turn in written.turns[place : place + together]:
                    turn.guess = guess
            right = _pick(written.turns, self._read_guesses(written), pick, ended)
            written = written.settled(right)
            self._finish(written, batch, keep)
        return [(turn.ids, turn.logprobs) for turn in turns]

    def _read_guesses(self, written: _Written) -> torch.Tensor:
        """The logits (rows, tokens, vocabulary) after the last token of each row, and after each token of its guess."""
        turns, device = written.turns, written.mask.device
        count = 1 + max(len(turn.guess) for turn in turns if not turn.done)
        offered = [[turn.ids[-1], *turn.guess][:count] for turn in turns]
        padded = [ids + [self.encoder.pad_id] * (count - len(ids)) for ids in offered]
        first = torch.tensor([turn.first + len(turn.ids) - 1 for turn in turns], device=device)
        positions = (first[:, None] + torch.arange(count, device=device)).expand(3, -1, -1)
        mask = torch.cat([written.mask, written.mask.new_ones(len(turns), count)], 1)
        embedded = self._embedding(torch.tensor(padded, device=device))
        return self._logits(self._forward(embedded, mask, positions, written.cache))

    def _finish(self, written: _Written, batch: Sequence[Encoded], keep: bool) -> None:
        """Keep what was read of the rows that have just ended, and remember what they say."""
        for place, turn in enumerate(written.turns):
            if turn.done and not turn.kept:
                turn.kept = True
                self.drafter.remember(turn.ids)
                if keep:
                    self._keep(batch[turn.row], turn.ids, written.cache, written.mask[place], place)

    # reading

    def _read_shared(self, batch: Sequence[Encoded]) -> None:
        """Read what rows share with others of their batch, once, and keep it for all of them."""
        heads = {}
        for encoded in batch:
            if end := encoded.shared:
                images = self.encoder.images_in(encoded, 0, end)
                head = Encoded(encoded.input_ids[:end], encoded.model_mask[:end], images)
                heads[_digest(head.input_ids, images)] = head
        for key, head in heads.items():
            if self._known(key) is None:
                cache, mask, _ = self._read([self._start(head)], 0)
                self._keep(head, [], cache, mask[0], 0)

    def _read_different(
        self, batch: Sequence[Encoded], room: int
    ) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
        """`_read`, and each row's next position. Rows that are the same, as a group's often are, are read once."""
        keys = [_digest(encoded.input_ids, encoded.images) for encoded in batch]
        places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        starts = [self._start(batch[keys.index(key)]) for key in places]
        cache, mask, logits = self._read(starts, room)
        following = torch.stack([start.positions.max() + 1 for start in starts])
        if len(starts) < len(batch):
            rows = torch.tensor([places[key] for key in keys], device=mask.device)
            for layer in cache.layers:
                layer.keep_rows(rows)
            mask, logits, following = mask[rows], logits[rows], following[rows]
        return cache, mask, logits, following

    def _start(self, encoded: Encoded) -> _Start:
        ids, images_in, past = encoded.input_ids, self.encoder.images_in, None
        for end in (encoded.shared, encoded.written):
            past = self._known(_digest(ids[:end], images_in(encoded, 0, end))) if past is None else past
        known = 0 if past is None else past.shape[3]
        return _Start(past, self._positions(encoded), ids[known:], images_in(encoded, known, len(ids)))

    def _positions(self, encoded: Encoded) -> torch.Tensor:
        """(3, tokens): the model's own M-RoPE positions of the whole conversation."""
        ids = torch.tensor([encoded.input_ids], device=self.model.device)
        if not encoded.images:
            return torch.arange(ids.shape[1], device=ids.device).expand(3, -1)
        types = (ids == self.encoder.image_pad).int()
        grid = self.encoder.grid(encoded.images).to(ids.device)
        mask = torch.ones_like(ids)
        return self.model.model.get_rope_index(ids, types, image_grid_thw=grid, attention_mask=mask)[0][:, 0]

    def _read(self, starts: Sequence[_Start], room: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """The cache and mask after reading what is new, and the logits (batch, vocabulary) of the next tokens.

        Pasts and new tokens are both padded on the left, so a row may have a gap between them, which the mask hides.
        """
        known, new = max(start.known for start in starts), max(len(start.new) for start in starts)
        device = self.model.device
        mask = torch.zeros(len(starts), known + new, dtype=torch.long, device=device)
        ids = torch.full((len(starts), new), self.encoder.pad_id, device=device)
        positions = torch.zeros(3, len(starts), new, dtype=torch.long, device=device)
        for row, start in enumerate(starts):
            count = len(start.new)
            mask[row, known - start.known : known] = 1
            mask[row, known + new - count :] = 1
            ids[row, new - count :] = torch.tensor(start.new, device=device)
            positions[:, row, new - count :] = start.positions[:, start.known :]
        embedded = self._embedding(ids)
        if images := [image for start in starts for image in start.images]:
            features = torch.cat(list(self.vision.features(images)))
            embedded = embedded.index_put(((ids == self.encoder.image_pad).nonzero(as_tuple=True)), features)
        cache = self._cache(starts, known, new + room)
        hidden = self._forward(embedded, mask, positions, cache)
        return cache, mask, self._logits(hidden[:, -1])

    def _cache(self, starts: Sequence[_Start], known: int, room: int) -> Any:
        config = self.model.config.get_text_config()
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        past = torch.zeros(
            (config.num_hidden_layers, 2, len(starts), heads, known, width),
            dtype=self._embedding.weight.dtype,
            device=self.model.device,
        )
        for row, start in enumerate(starts):
            if start.past is not None:
                past[:, :, row, :, known - start.known :] = start.past
        cache = DynamicCache()
        cache.layers = [GrowingLayer(keys, values, room) for keys, values in past]
        return cache

    @property
    def _embedding(self) -> Any:
        return self.model.get_input_embeddings()

    def _forward(self, embedded: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Hidden states (batch, tokens, width)."""
        found = self.model.model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return found.last_hidden_state

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(hidden).float()

    # keeping

    def _keep(self, encoded: Encoded, written: list[int], cache: Any, mask: torch.Tensor, row: int) -> None:
        """Remember what has been read of a row; the last token of a turn that ended has not, and is left out."""
        where = mask.bool().nonzero().flatten()
        kept = torch.stack(
            [torch.stack([layer.keys[row][:, where], layer.values[row][:, where]]) for layer in cache.layers]
        )
        key = _digest([*encoded.input_ids, *written], encoded.images)
        same = self._kept.pop(key, None)  # of a row that said the same
        self._held -= same.nbytes if same is not None else 0
        self._kept[key] = kept
        self._held += kept.nbytes
        while self._held > self.prefix_bytes and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self._held -= dropped.nbytes

    def _known(self, key: bytes) -> torch.Tensor | None:
        """What is kept under a key; it stays until others need the room, since the same turn may be read again."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)


def _pick(turns: Sequence[_Turn], logits: torch.Tensor, pick: Pick, ended: Callable[[list[int]], bool]) -> list[int]:
    """Write on in each row as far as its guess was right, and one token more: how many guesses were right.

    logits: (rows, tokens, vocabulary), those after a row's last token first. Each token is picked as if nothing had
    been guessed; a guess that is picked saves the pass for what comes after it.
    """
    right, places = [0] * len(turns), [place for place, turn in enumerate(turns) if not turn.done]
    for step in range(logits.shape[1]):
        tokens, logprobs = pick([turns[place].row for place in places], logits[places, step])
        going = []
        for place, token, logprob in zip(places, tokens, logprobs, strict=True):
            turn = turns[place]
            turn.write(token, logprob)
            turn.done = ended(turn.ids)
            if not turn.done and turn.guess[step : step + 1] == [token]:
                right[place] += 1
                going.append(place)
        if not (places := going):
            break
    return right


def _ended(ids: list[int], stopped: Callable[[list[int]], bool], most: int) -> bool:
    return len(ids) >= most or stopped(ids)


def to_read(encoded: Encoded) -> int:
    """How many tokens of a conversation come after the model's last turn."""
    return len(encoded.input_ids) - encoded.written


def _digest(ids: Sequence[int], images: Sequence[Any]) -> bytes:
    return hashlib.sha256(repr((list(ids), [image_key(image) for image in images])).encode()).digest()
