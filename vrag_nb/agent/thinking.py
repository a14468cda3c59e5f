"""What of a model's turn is thinking, and where the turn ends: the same for every protocol.

A thought stands in `<think>...</think>`, in any case, with spaces in the tags or full-width brackets. A leading
`</think>` closes a thought from the beginning on, for some chat templates write the opening tag themselves; one that is
never closed runs to the end. A turn is over at the first mark that begins another's (`<|im_end|>`, `<tool_response>`):
what a model dreams up behind it is never read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vrag_nb.records import without_surrogates

Span = tuple[int, int]  # from, to: positions in the text

# Same length before and after, so that a position in the translated text is a position in the original.
_ASCII_TAGS = str.maketrans({"\uff1c": "<", "\uff1e": ">", "\uff0f": "/", "\u3008": "<", "\u3009": ">"})
_THINK = re.compile(r"<\s{0,3}(/?)\s{0,3}think\s{0,3}>", re.IGNORECASE)
_QUOTED_TAG = re.compile(r"[<\uff1c\u3008](?=\s{0,3}[/\uff0f]?\s{0,3}[|A-Za-z])")
_OTHERS_TURN = re.compile(r"<\|im_(?:start|end)\|>|<\|endoftext\|>|</?tool_response>", re.IGNORECASE)


def own_turn(text: str) -> str:
    """The text up to where another's turn begins, without lone surrogates, which are no text."""
    text = without_surrogates(text)
    match = _OTHERS_TURN.search(text)
    return text[: match.start()] if match else text


def in_ascii(text: str) -> str:
    """The text with ASCII brackets and slashes in the place of full-width ones, all else in its place."""
    return text if text.isascii() else text.translate(_ASCII_TAGS)


def closed_spans(text: str) -> list[Span]:
    """Spans of the thoughts that are over, tags included."""
    return _spans(text)[0]


def spans(text: str) -> list[Span]:
    """Spans of all thoughts, tags included."""
    closed, still = _spans(text)
    return closed if still is None else [*closed, (still, len(text))]


def inside(place: int, thinking: Sequence[Span]) -> bool:
    """Whether a position lies in one of the spans."""
    return any(start <= place < end for start, end in thinking)


def thought(text: str, thinking: Sequence[Span], end: int) -> str:
    """The thinking before position `end`, without its tags; where there is none, whatever stands before it."""
    pieces = [(start, min(stop, end)) for start, stop in thinking if start < end] or [(0, end)]
    words = [_without_tags(text[start:stop]).strip() for start, stop in pieces]
    return "\n".join(one for one in words if one)


def outside(text: str) -> str:
    """The text with every thought blanked out, all else in its place: there something of one's own is found."""
    signs = list(text)
    for start, end in spans(text):
        signs[start:end] = " " * (end - start)
    return "".join(signs)


def quoted(thought: str) -> str:
    """A thought, known to be one, with every tag and brace that it quotes in signs that no parser reads."""
    return _QUOTED_TAG.sub("\u2039", thought).replace("{", "\uff5b")


def _spans(text: str) -> tuple[list[Span], int | None]:
    """The closed spans, and where a thought begins that is still going on."""
    closed: list[Span] = []
    start: int | None = None
    for tag in _THINK.finditer(in_ascii(text)):
        if not tag[1]:
            start = tag.start() if start is None else start
        elif start is not None or not closed:
            closed.append((start or 0, tag.end()))
            start = None
    return closed, start


def _without_tags(text: str) -> str:
    for tag in reversed(list(_THINK.finditer(in_ascii(text)))):
        text = text[: tag.start()] + text[tag.end() :]
    return text
