"""Guesses at what a turn says next, looked up and not computed: prompt lookup decoding (Saxena, 2023).

An agent's turns repeat a lot: the frame of a call is the same every time, a search has the words of the question, an
answer those of a thought. What followed the last few tokens where they stood before, in the same conversation or in a
turn of another one, is a guess at what follows now. The model reads a whole guess in one pass, and of it is kept what
it would have said in any case (speculative decoding, arXiv 2211.17192, with a draft that costs nothing).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

DEFAULT_GUESSES = 4
LENGTHS = (6, 4, 3, 2)  # tokens that have to have stood there before, the longest first
SHORT = 3  # what follows so few tokens, or fewer, is seldom the same for long: half of a guess
REMEMBERED = 200_000  # places in turns of other conversations; then they are forgotten

Places = dict[tuple[int, ...], tuple[Sequence[int], int]]  # tokens -> where they ended last: a turn, a place in it


class Drafter:
    """Knows what was written, and begins a `Line` for every turn.

    most: tokens of a guess; 0 for none. closed: ids that no guess holds, such as those of images.
    """

    def __init__(self, most: int, closed: Collection[int] = ()) -> None:
        self.most, self.closed, self.places = most, frozenset(closed), Places()

    def line(self, prompt: Sequence[int]) -> Line:
        """A turn that begins behind this prompt."""
        return Line(self, prompt)

    def remember(self, turn: Sequence[int]) -> None:
        """A turn that others may repeat."""
        if not self.most:
            return
        if len(self.places) > REMEMBERED:
            self.places.clear()
        kept = list(turn)
        for end in range(1, len(kept)):
            _note(self.places, kept, end)


class Line:
    """The tokens of one conversation as they are written, and what followed where."""

    def __init__(self, drafter: Drafter, prompt: Sequence[int]) -> None:
        self.drafter, self.ids, self._places = drafter, list(prompt), Places()
        if drafter.most:
            for end in range(1, len(self.ids)):
                _note(self._places, self.ids, end)

    def write(self, token: int) -> None:
        """The turn goes on with a token."""
        self.ids.append(token)
        if self.drafter.most:
            _note(self._places, self.ids, len(self.ids) - 1)

    def guess(self) -> list[int]:
        """What may follow, at most `most` tokens; none where nothing like it was written before."""
        if not self.drafter.most:
            return []
        for length in LENGTHS:
            last = tuple(self.ids[-length:])
            for places in (self._places, self.drafter.places):
                if last in places:
                    ids, end = places[last]
                    most = self.drafter.most if length > SHORT else self.drafter.most // 2
                    return self._open(ids[end : end + most])
        return []

    def _open(self, ids: Sequence[int]) -> list[int]:
        """As far as no token is closed."""
        closed = (place for place, token in enumerate(ids) if token in self.drafter.closed)
        return list(ids[: next(closed, len(ids))])


def _note(places: Places, ids: Sequence[int], end: int) -> None:
    """The tokens before `end` are followed by the one there."""
    for length in LENGTHS:
        if end >= length:
            places[tuple(ids[end - length : end])] = (ids, end)
