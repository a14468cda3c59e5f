"""Why a page was found: the similarity map of a query and a page taken apart by words and by patches.

    matches = Matches.of(engine.similarity_map(query, page_id), query)
    matches.contributions                      # (grid_h, grid_w): MaxSim's sum, put where it was won
    [(word.text, matches.part(word)) for word in matches.telling(6)]

MaxSim adds up, for every query token, its greatest cosine with any patch, weighed where the retriever weighs tokens.
Each token thus has one winning patch and one part of the score; a patch may win for many tokens, most win for none.
Tokenizers cut words into pieces, so tokens are put together to words again. Tokens that the retriever adds to every
query (a prefix, augmentation tokens) are one word of their own, `added`: they count in the score, but stand for no word
of the query.

A page may have vectors that lie on no patch (the retriever's own prompt). A similarity map knows nothing of them, so
the parts add up to slightly less than MaxSim where these win a maximum; a hit's score may be lower than that by what
its page loses as a hub (`retrieval.hubness`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from tokenizers.decoders import ByteFallback, ByteLevel, Decoder, Fuse, Replace, Sequence

from vrag_nb.retrieval.embedders import SimilarityMap

ADDED = "added tokens"
_MARKUP = re.compile(r"<(?!0x)[^<>\s]+>")  # how tokenizers spell tokens that are no text
_STARTS = ("Ġ", "▁")  # a space before a piece, as byte-level and SentencePiece tokenizers spell it
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")  # Chinese and Japanese: every piece is a word
_BYTES, _PIECES = ByteLevel(), Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
_PUNCTUATION = ".,:;?!()[]{}\"'“”‘’„«»。，？！"


@dataclass(frozen=True)
class Word:
    """Consecutive query tokens that make a word; `added`: the retriever's own. `tokens` are rows of the map."""

    text: str
    tokens: tuple[int, ...]
    added: bool = False


@dataclass(frozen=True)
class Matches:
    """A similarity map with its words; see the module's docstring.

    `scores`: (n_tokens, grid_h, grid_w) cosines. `weights`: (n_tokens,), by which they count in MaxSim.
    """

    words: tuple[Word, ...]
    scores: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, similarity: SimilarityMap, query: str) -> Matches:
        """Raises ValueError when tokens and scores differ in number or there are none."""
        scores = np.asarray(similarity.scores, np.float32)
        if scores.ndim != 3 or len(scores) != len(similarity.tokens) or not scores.size:
            found = f"a similarity map of shape {scores.shape} for {len(similarity.tokens)} tokens"
            raise ValueError(f"{found}: expected (n_tokens, h, w)")
        weights = np.ones(len(scores)) if similarity.weights is None else similarity.weights
        return cls(tuple(words_of(similarity.tokens, query)), scores, np.asarray(weights, np.float32))

    @property
    def grid(self) -> tuple[int, int]:
        """(grid_h, grid_w) of the page's patches."""
        return self.scores.shape[1], self.scores.shape[2]

    @property
    def parts(self) -> np.ndarray:
        """What every token adds to the score: its greatest cosine, weighed, (n_tokens,)."""
        return self.weights * self.scores.max(axis=(1, 2))

    @property
    def winners(self) -> np.ndarray:
        """Every token's best patch, (n_tokens, 2) as (row from the top, column from the left)."""
        places = self.scores.reshape(len(self.scores), -1).argmax(axis=1)
        return np.stack(np.unravel_index(places, self.grid), axis=1)

    @property
    def contributions(self) -> np.ndarray:
        """What every patch adds to the score: the parts of the tokens it won, (grid_h, grid_w)."""
        total = np.zeros(self.grid, np.float32)
        np.add.at(total, tuple(self.winners.T), self.parts)
        return total

    def part(self, word: Word) -> float:
        """What a word adds to the score: the sum of its tokens' parts."""
        return float(self.parts[list(word.tokens)].sum())

    def heat(self, word: Word) -> np.ndarray:
        """The mean cosine of a word's tokens with every patch, (grid_h, grid_w)."""
        return self.scores[list(word.tokens)].mean(axis=0)

    def cells(self, word: Word) -> dict[tuple[int, int], float]:
        """The patches that won a token of the word, (row, column), with what they add to its part, greatest first."""
        won: dict[tuple[int, int], float] = {}
        for token in word.tokens:
            y, x = (int(place) for place in self.winners[token])
            won[y, x] = won.get((y, x), 0.0) + float(self.parts[token])
        return dict(sorted(won.items(), key=lambda item: -item[1]))

    def telling(self, count: int) -> list[Word]:
        """The `count` words of the query whose parts rise most over what any patch of the page gives, in query order.

        The mean over the page is taken off every part: "the" resembles every page everywhere, and tells nothing.
        """
        rise = self.parts - self.weights * self.scores.mean(axis=(1, 2))
        own = [place for place, word in enumerate(self.words) if not word.added]
        best = sorted(own, key=lambda place: (-float(rise[list(self.words[place].tokens)].sum()), place))[:count]
        return [self.words[place] for place in sorted(best)]


def words_of(tokens: list[str], query: str) -> list[Word]:
    """The query's words in order, then what the retriever added to them, if anything, as one word."""
    decoder = _PIECES if any("▁" in token for token in tokens) else _BYTES
    groups = _groups(tokens, decoder)
    texts = [_text(decoder, [tokens[at] for at in group]) for group in groups]
    ends = np.cumsum([len(text) for text in texts])
    asked = "".join(query.split())
    first = "".join(texts).rfind(asked)  # a prefix such as "Query:" stands before it
    inside = (0, int(ends[-1])) if first < 0 else (first, first + len(asked))
    words: list[Word] = []
    added: list[int] = []
    for group, text, end in zip(groups, texts, ends.tolist(), strict=True):
        if text and inside[0] <= end - len(text) and end <= inside[1]:
            words.append(Word(text.strip(_PUNCTUATION) or text, tuple(group)))
        else:
            added += group
    return [*words, *([Word(ADDED, tuple(added), added=True)] if added else [])]


def _groups(tokens: list[str], decoder: Decoder) -> list[list[int]]:
    """The places of the tokens, those of one word together; markup stands alone."""
    groups: list[list[int]] = []
    alone = True
    for place, token in enumerate(tokens):
        markup = bool(_MARKUP.fullmatch(token))
        if alone or markup or token.startswith(_STARTS) or _UNSPACED.match(_text(decoder, [token])):
            groups.append([])
        groups[-1].append(place)
        alone = markup
    return groups


def _text(decoder: Decoder, pieces: list[str]) -> str:
    """Pieces of one word as a reader knows it, without spaces; nothing of markup."""
    return "" if _MARKUP.fullmatch(pieces[0]) else "".join(decoder.decode(pieces).split())
