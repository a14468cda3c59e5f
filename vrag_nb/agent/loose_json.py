"""JSON as models write it: the first object in a text, read whatever small faults it has.

What is forgiven: code fences and words around it, single quotes, trailing commas, unquoted keys, comments, Python's
True, False and None, raw line breaks and quotation marks in strings, and brackets that were never closed because the
token limit came.
A strict reading is tried first, so a text that is JSON is read as nothing else.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

import json5

from vrag_nb.records import without_surrogates

LONGEST = 20_000  # characters: json5 is slow, and no tool call is longer
DEEPEST = 64  # brackets within brackets
_CLOSER = {"{": "}", "[": "]"}
_PYTHON = re.compile(r"\b(True|False|None)\b")
_JSON_WORD = {"True": "true", "False": "false", "None": "null"}
_AFTER_STRING = re.compile(r"\s*(?:[,:}\]/<`]|\Z)")
_LINE_BREAKS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def first_object(text: str) -> dict[str, Any] | None:
    """The first object of `text` that can be read, or None. Never raises."""
    text = text[:LONGEST]
    start = text.find("{")
    for _ in range(3):  # a brace in the words before it is no object
        if start < 0:
            return None
        found = _read(_balanced(text[start:]))
        if found is not None:
            return found
        start = text.find("{", start + 1)
    return None


def _read(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    readers: list[Callable[[str], Any]] = [
        lambda one: json.loads(one, strict=False),
        lambda one: json5.loads(_plain(one)),
        ast.literal_eval,
    ]
    for read in readers:
        try:
            found = read(text)
            if isinstance(found, dict):
                return {_encodable(str(key)): _encodable(value) for key, value in found.items()}
        except Exception:  # three parsers, each with errors of its own; what none reads is no object
            continue
    return None


def _encodable(value: Any) -> Any:
    """The value without lone surrogates, which an escape can bring in and no file can hold."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {_encodable(str(key)): _encodable(one) for key, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list | tuple) else value


def _balanced(text: str) -> str | None:
    """From the opening brace at 0 to its own closing one; what is missing at the end is added."""
    waiting: list[str] = []
    quote, escaped = "", False
    for place, sign in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped, quote = sign == "\\", "" if _closes(text, place, quote) else quote
        elif _opens(text, place):
            quote = sign
        elif sign in _CLOSER:
            waiting.append(_CLOSER[sign])
            if len(waiting) > DEEPEST:
                return None
        elif waiting and sign == waiting[-1]:
            waiting.pop()
            if not waiting:
                return text[: place + 1]
        elif sign in "}]":  # closes something that was never opened, or forgets what was
            while waiting and waiting[-1] != sign:
                waiting.pop()
            return text[:place] + "".join(reversed(waiting)) if waiting else None
    return text.rstrip(" \n,:") + quote + "".join(reversed(waiting))


def _opens(text: str, place: int) -> bool:
    """Whether a quotation mark begins a string: an apostrophe within a word does not."""
    return text[place] == '"' or (text[place] == "'" and not text[place - 1 : place].isalnum())


def _closes(text: str, place: int, quote: str) -> bool:
    """Whether the sign at `place` ends the string: the marks of 'the slide "Revenue" shows 45' do not, nor does, in
    single quotes, that of "Norway's"."""
    if text[place] != quote:
        return False
    return bool(_AFTER_STRING.match(text, place + 1)) if quote == '"' else not text[place + 1 : place + 2].isalnum()


def _plain(text: str) -> str:
    """Python's words and raw line breaks as JSON5 has them, outside and inside of strings."""
    pieces: list[str] = []
    piece, quote, escaped = "", "", False
    for place, sign in enumerate(text):
        was_escaped = escaped
        ends = not was_escaped and (_closes(text, place, quote) if quote else _opens(text, place))
        escaped = bool(quote) and sign == "\\" and not was_escaped
        if ends and not quote:
            pieces.append(_PYTHON.sub(lambda match: _JSON_WORD[match[0]], piece))
            piece, quote = sign, sign
        elif ends:
            pieces.append(piece + sign)
            piece, quote = "", ""
        else:
            piece += f"\\{sign}" if sign == quote and not was_escaped else _inside(sign, quote)
    return "".join(pieces) + (piece if quote else _PYTHON.sub(lambda match: _JSON_WORD[match[0]], piece))


def _inside(sign: str, quote: str) -> str:
    """A sign of a string, where a raw line break has to be escaped, or of what stands around."""
    return _LINE_BREAKS.get(sign, sign) if quote else sign
