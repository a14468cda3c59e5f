"""Dense supervision of the language side: where a word of the question stands, where the answer, where its next letter.

A loss on the answer's letters alone tells a model of this size very little about *where* it should have looked. We
drew the image, so we know. Heads tap the language model on its way. Two ask every square, after a third of the layers:

- does it hold a word said before the image? The question comes first, so that all squares look for its words at once;
- in which column and row of its image does it stand? A language model knows that of a square only by the turning of
  queries and keys, and needs it to go along a row, to read on, and to write a box.

Four others ask of some text tokens which squares of the images before them they are about, by a query and a key as
attention would:

- after a third of the layers, the last token of each word that is printed on an image: where is it printed?
- after half of them, the token before an answer: where does the answer stand?
- after two thirds, each token before one that is read off an image: in which square does that stand, and in which part
  of the square?
- there too, each token before one of a written box: in which square is the corner that the number belongs to, the upper
  left one or the lower right one? Its column or row is then what is to be written.

A probe that knows where to look does not make the model look there: of the corners of boxes half were told so, and no
head of the model's attention met one of them in a twentieth of the cases; they were written as if by heart. Two heads
of the layer that follows are therefore asked themselves (HEADS): theirs is to be the square that the letter, the column
or the row is read from.

And every square, as the vision tower hands it over, is still asked for its characters (`glyphs`), so that the tower may
go on learning beside the language side.

The heads are used in training only and thrown away. They are for the language model what dense glyph supervision is
for the vision tower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from vrag_nb.agent.geometry import Box
from vrag_nb.nano.glyphs import GlyphHead, glyph_loss
from vrag_nb.nano.model import FACTOR

PARTS = 8
SIDE = 32  # so many columns and rows are told apart
DEPTHS = {"word": 1 / 3, "answer": 1 / 2, "letter": 2 / 3, "corner": 2 / 3}  # of the layers, after which each head taps
HEADS = {"letter": 0, "corner": 1}  # which head of the next layer's attention is to meet the right square
WEIGHTS = {"cue": 1.0, "place": 0.4, "word": 0.25, "answer": 0.25, "letter": 0.3, "corner": 0.6, "glyph": 0.5}
WEIGHTS |= {"letter met": 0.6, "corner met": 0.6}
QUIETLY = {name: 0.3 * weight for name, weight in WEIGHTS.items()}  # beside a model that reads: heads begin with noise
UNASKED = -1


@dataclass(frozen=True)
class Look:
    """What is known about one answer of the assistant.

    turn: its place in the conversation. image: which of the sample's images it is about. boxes: where on it the answer
    stands, in the image's own pixels. printed: the answer as it is printed there, and letters: the centres of its
    letters, spaces left out; both empty where it is not printed.
    """

    turn: int
    image: int
    boxes: Sequence[Box]
    printed: str = ""
    letters: Sequence[tuple[float, float]] = ()


class Pointers(NamedTuple):
    """What one head should say: n tokens by row and position, and the right squares, (n, length) bool.

    parts: (n,) which of PARTS parts of the square, for letters.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    squares: torch.Tensor
    parts: torch.Tensor


@dataclass(frozen=True)
class Targets:
    """What the heads should say about a batch.

    is_square: which tokens are squares, (batch, length) bool. cues: (batch, length), 1 at a square that holds a word
    said before, 0 at one that does not, UNASKED at text and where nothing is known. places: (batch, length, 2), column
    and row of each square in its image, UNASKED at text. glyphs: (squares of the batch, SLOTS), the characters of each.
    """

    is_square: torch.Tensor
    cues: torch.Tensor
    places: torch.Tensor
    pointers: Mapping[str, Pointers]
    glyphs: torch.Tensor

    def to(self, device: torch.device) -> Targets:
        moved = {name: Pointers(*(part.to(device) for part in found)) for name, found in self.pointers.items()}
        squares, cues, places = (tensor.to(device) for tensor in (self.is_square, self.cues, self.places))
        return Targets(squares, cues, places, moved, self.glyphs.to(device))


def covered_squares(boxes: Sequence[Box], columns: int, rows: int, share: float = 0.2) -> torch.Tensor:
    """(rows * columns,) int: 1 where a box and a square overlap by `share` of the smaller of the two, else 0."""
    covered = torch.zeros(rows, columns, dtype=torch.long)
    for x0, y0, x1, y1 in boxes:
        smaller = min(FACTOR**2, max(1.0, (x1 - x0) * (y1 - y0)))
        for row in range(max(0, int(y0 // FACTOR)), min(rows, int(y1 // FACTOR) + 1)):
            for column in range(max(0, int(x0 // FACTOR)), min(columns, int(x1 // FACTOR) + 1)):
                across = min(x1, (column + 1) * FACTOR) - max(x0, column * FACTOR)
                down = min(y1, (row + 1) * FACTOR) - max(y0, row * FACTOR)
                if across * down >= share * smaller:
                    covered[row, column] = 1
    return covered.flatten()


def square_part(x: float, y: float) -> int:
    """In which of a square's PARTS parts, four across and two down, a point of an image lies."""
    return int(x % FACTOR * 4 / FACTOR) + 4 * int(y % FACTOR * 2 / FACTOR)


class Pointer(nn.Module):
    """Scores of squares for tokens: a query and a key, as in attention."""

    def __init__(self, width: int, size: int = 64) -> None:
        super().__init__()
        self.norm, self.query, self.key = nn.LayerNorm(width), nn.Linear(width, size), nn.Linear(width, size)

    def forward(self, hidden: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """(n, length) scores of all tokens of their conversation."""
        hidden = self.norm(hidden)
        queries = self.query(hidden[rows, positions])
        return _scores(queries, self.key(hidden), rows) / queries.shape[-1] ** 0.5


class Looking(nn.Module):
    """The heads, tapping a model's layers while it runs; `loss` is asked right after the model's forward pass."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration, weights: Mapping[str, float] | None = None) -> None:
        """weights: of the heads' losses, where they differ from WEIGHTS."""
        super().__init__()
        self.weights = {**WEIGHTS, **(weights or {})}
        config: Any = model.config.text_config
        layers = model.model.language_model.layers
        self.pointers = nn.ModuleDict({name: Pointer(config.hidden_size) for name in DEPTHS})
        self.part = nn.Linear(config.hidden_size, PARTS)
        self.cue = nn.Linear(config.hidden_size, 1)
        self.place = nn.Linear(config.hidden_size, 2 * SIDE)
        self.glyph = GlyphHead(config.hidden_size)
        self._seen: dict[str, torch.Tensor] = {}
        self._next: dict[str, Any] = {}  # in a dict: no parts of this one
        model.model.visual.register_forward_hook(self._see_squares)
        model.model.language_model.rotary_emb.register_forward_hook(self._see_turns)
        for name, share in DEPTHS.items():
            depth = max(1, int(len(layers) * share))
            layers[depth - 1].register_forward_hook(self._tap(name))
            if name in HEADS and depth < len(layers):
                self._next[name] = layers[depth]

    def _see_squares(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._seen["glyph"] = output.pooler_output

    def _see_turns(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._turns = output

    def _tap(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._seen[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def loss(self, targets: Targets) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The heads' weighted losses, summed; and per head, which of its tokens point right ((n,) bool).

        `letter met` and `corner met`: the share of its attention that the model's own head pays to the right square.
        """
        total, right = self._cue_loss(targets.cues) + self._place_loss(targets.places), {}
        for name, wanted in targets.pointers.items():
            if not len(wanted.rows):
                continue
            scores = self.pointers[name](self._seen[name], wanted.rows, wanted.positions)
            before = torch.arange(scores.shape[1], device=scores.device) < wanted.positions[:, None]
            scores = scores.masked_fill(~(targets.is_square[wanted.rows] & before), -1e4)
            on_squares = scores.logsumexp(-1) - scores.masked_fill(~wanted.squares, -1e4).logsumexp(-1)
            total = total + self.weights[name] * on_squares.mean()
            if name == "letter":
                parts = self.part(self._seen[name][wanted.rows, wanted.positions]).float()
                total = total + self.weights[name] * nn.functional.cross_entropy(parts, wanted.parts)
            right[name] = wanted.squares.gather(1, scores.argmax(-1, keepdim=True)).squeeze(1)
            if name in self._next:
                missed = -self._met(name, wanted)
                total = total + self.weights[f"{name} met"] * missed.mean()
                right[f"{name} met"] = missed.detach().neg().exp()
        if (targets.glyphs > UNASKED).any():
            seen, hits = glyph_loss(self.glyph(self._seen["glyph"]), targets.glyphs)
            total = total + self.weights["glyph"] * seen
            right["glyph"] = torch.tensor([hits])
        return total, right

    def _met(self, name: str, wanted: Pointers) -> torch.Tensor:
        """(n,) log of the share of its attention that the head of HEADS pays to the right squares, for each token.

        Raises ValueError for a model whose keys several heads share.
        """
        layer, head = self._next[name], HEADS[name]
        attention, hidden = layer.self_attn, layer.input_layernorm(self._seen[name])
        if attention.num_key_value_groups > 1:
            raise ValueError("heads that share keys cannot be asked one by one: as many keys as queries are needed")
        part = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
        query, key = (
            nn.functional.linear(tokens, layer.weight[part], layer.bias[part])
            for tokens, layer in ((hidden[wanted.rows, wanted.positions], attention.q_proj), (hidden, attention.k_proj))
        )
        cos, sin = self._turns
        query = _turned(query, cos[wanted.rows, wanted.positions], sin[wanted.rows, wanted.positions])
        scores = _scores(query, _turned(key, cos, sin), wanted.rows) * attention.scaling
        later = torch.arange(scores.shape[1], device=scores.device) > wanted.positions[:, None]
        scores = scores.masked_fill(later, -1e9)
        return scores.masked_fill(~wanted.squares, -1e9).logsumexp(-1) - scores.logsumexp(-1)

    def _cue_loss(self, cues: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy of the squares asked, weighted."""
        scores, asked = self.cue(self._seen["word"]).squeeze(-1).float(), cues != UNASKED
        if not asked.any():
            return scores.sum() * 0
        loss = nn.functional.binary_cross_entropy_with_logits(scores[asked], cues[asked].float())
        return self.weights["cue"] * loss

    def _place_loss(self, places: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the columns and rows of all squares, weighted."""
        logits = self.place(self._seen["word"]).float().unflatten(-1, (2, SIDE))
        if (places == UNASKED).all():
            return logits.sum() * 0
        wanted = places.clamp(max=SIDE - 1).flatten()
        loss = nn.functional.cross_entropy(logits.flatten(0, 2), wanted, ignore_index=UNASKED)
        return self.weights["place"] * loss


def _scores(queries: torch.Tensor, keys: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """(n, length) float32 products of (n, d) queries with the (batch, length, d) keys of their rows, which ascend.

    A product for each row of the batch: to give every query keys of its own would fill a GPU's memory.
    """
    counts = rows.bincount(minlength=len(keys))
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    padded = queries.new_zeros(len(keys), int(counts.max()), queries.shape[-1]).index_put((rows, places), queries)
    return (padded @ keys.transpose(1, 2))[rows, places].float()


def _turned(part: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = part.shape[-1] // 2
    return part * cos + torch.cat([-part[..., half:], part[..., :half]], -1) * sin
