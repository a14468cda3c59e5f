"""The action grammar: what a model wrote, read as one action.

A model's turn is free text that should hold a thought and one action:

    <think>...</think>
    <search>query</search>  |  <bbox>[x1, y1, x2, y2]</bbox>  |  <answer>...</answer>

A `Grammar` may know further actions, each by its tag and what reads its argument (`agent.action_kinds`). A conversation
carries its grammar (`agent.policy.grammar_of`), so that a policy ends turns where its environment's actions end.

`parse` reads what models really emit: tags in any case or with full-width brackets, `<region>` for `<bbox>` (the
VRAG-RL paper's prose and its code disagree on the name), a missing closing tag, boxes in parentheses, without brackets
or inside a JSON list, text around the tags. Rules:

- the first action that was closed wins, for a tag may be mentioned in words, and the first one where none was closed;
  the rest of the text is ignored;
- a tag mentioned inside `<think>` counts only when there is no action outside (`agent.thinking`);
- a box is ordered (x1 <= x2, y1 <= y2) but not clipped: it is in *shown pixels*, and only `agent.geometry` knows the
  image. A box without area is invalid;
- `parse` never raises. What cannot be read becomes an invalid action whose `problem` is told to the model.

Only a model's own words are ever parsed: observations never pass through here. A `<tool_call>` is no action of this
grammar (`agent.memory_actions` reads those); its closing tag only ends a turn, so that policies need not know which of
the two protocols they speak.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from pydantic import BaseModel, Field

from vrag_nb.agent import thinking
from vrag_nb.agent.thinking import Span, in_ascii, inside

Box = tuple[float, float, float, float]

_CALL = re.compile(r"<\s{0,3}(/?)\s{0,3}tool_call\s{0,3}>", re.IGNORECASE)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_NUMBER = r"(?<![\w.])[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
_NUMBERS = re.compile(_NUMBER)
_FOUR_IN_BRACKETS = re.compile(r"[\[({]\s*" + r"[\s,;]+".join([_NUMBER] * 4) + r"\s*,?\s*[\])}]")
_KINDS = {"search": "search", "bbox": "bbox", "region": "bbox", "answer": "answer"}  # tag: kind of action
_TAG_NAME = re.compile(r"[a-z][a-z0-9_]{0,11}")
# Of other tags, of actions that cannot be read, and of events that are no actions.
TAKEN = frozenset({*_KINDS, "think", "tool_call", "invalid", "page", "crop", "notice", "error", "end"})


class Action(BaseModel):
    """One parsed action. kind: search, bbox, answer, invalid, or the tag of an action of one's own.

    Exactly one of `query`, `box`, `answer`, `problem` belongs to each of the first four; one's own may set `argument`,
    or the first two, whose meaning is the same. `box` is [x1, y1, x2, y2] in shown pixels of the last shown image, as
    the model wrote it: ordered, not clipped. An invalid action keeps the box and argument it was read from.
    """

    kind: str
    query: str | None = None
    box: Box | None = None
    answer: str | None = None
    problem: str | None = None
    argument: str | None = Field(default=None, exclude_if=lambda value: value is None)

    @property
    def words(self) -> str:
        """What it says, in a line; "" for a box."""
        return self.query or self.answer or self.problem or self.argument or ""

    def refused(self, problem: str) -> Action:
        """It as an invalid action, with what the model is told."""
        return Action(kind="invalid", query=self.query, box=self.box, problem=problem, argument=self.argument)


class InvalidAction(Exception):  # noqa: N818 - an outcome of the game, not an error of the program
    """An action that cannot be read or carried out; the text is told to the model."""


Reader = Callable[[str], Action]  # what stands between the tags, as an action; raises InvalidAction


class Grammar:
    """The actions that are read, and the tags that end a turn.

    own: the readers of actions of one's own by their tags, which are words of up to 12 lower-case letters, digits and
    underscores. Raises ValueError for a tag that is none, or is taken.
    """

    def __init__(self, own: Mapping[str, Reader] | None = None) -> None:
        own = own or {}
        for tag in own:
            if not _TAG_NAME.fullmatch(tag) or tag in TAKEN:
                raise ValueError(f"the tag {tag!r}: a word of a-z, 0-9 and _, 12 at most, that is not taken")
        self.readers: dict[str, Reader] = {"search": _search, "bbox": _box, "answer": _answer, **own}
        self.kinds = {**_KINDS, **{tag: tag for tag in own}}
        # In the order of their importance to an endpoint that takes few; no prompt asks for <region>.
        ends = ["search", "bbox", "answer", *own, "tool_call", "region"]
        self.stops = [f"</{tag}>" for tag in ends]
        self.tags = re.compile(rf"<\s{{0,3}}(/?)\s{{0,3}}(think|{'|'.join(self.kinds)})\s{{0,3}}>", re.IGNORECASE)
        self.closings = re.compile(rf"<\s{{0,3}}/\s{{0,3}}(?:{'|'.join(ends)})\s{{0,3}}>", re.IGNORECASE)
        longest = max(map(len, self.kinds))
        self.partial_close = re.compile(rf"<(/[a-z0-9_]{{0,{longest}}})?\Z", re.IGNORECASE)


class _Tag(NamedTuple):
    start: int
    end: int
    closing: bool
    name: str


def parse(text: str, grammar: Grammar | None = None) -> tuple[str, Action]:
    """Read (thought, action) from a model's turn. Never raises; see the module's docstring for the rules.

    grammar: by default, here and below, that of the built-in actions.
    """
    text, grammar = thinking.own_turn(text), grammar or BUILT_IN
    tags, thoughts = _tags(text, grammar), thinking.spans(text)
    opening = _first_action(tags, thoughts, grammar)
    if opening is None:
        return thinking.thought(text, thoughts, len(text)), _invalid("no action was found.")
    thought = thinking.thought(text, thoughts, opening.start)
    start, end = _content_span(text, tags, opening, grammar)
    try:
        return thought, grammar.readers[grammar.kinds[opening.name]](text[start : max(start, end)].strip())
    except InvalidAction as problem:
        return thought, _invalid(str(problem))


def end_of_action(text: str, grammar: Grammar | None = None) -> int | None:
    """The position just after the first closing tag of an action or a tool call, or None. Policies cut a turn here.

    A tag that is quoted in a thought ends nothing, once the thought is closed.
    """
    return next(_ends_of_actions(text, thinking.closed_spans(text), grammar or BUILT_IN), None)


def close_action(text: str, grammar: Grammar | None = None) -> str:
    """Add the closing tag to an action or call left open: servers that drop the stop string hand over such texts."""
    text, grammar = thinking.own_turn(text), grammar or BUILT_IN
    tags, thoughts, closed = _tags(text, grammar), thinking.spans(text), thinking.closed_spans(text)
    opening = _first_action(tags, closed, grammar)
    if _call_left_open(text, thoughts) and (opening is None or inside(opening.start, thoughts)):
        return f"{text}</tool_call>"
    if opening is None or inside(opening.start, closed):  # a thought that is over left nothing open
        return text
    if any(end > opening.end for end in _ends_of_actions(text, closed, grammar)):
        return text
    return f"{_strip_partial_close(text, grammar)}</{opening.name}>"


def rewrite_box(text: str, convert: Callable[[Box], Box], grammar: Grammar | None = None) -> str:
    """Replace the box of the first action by `convert(box)`; a text whose action has no valid box is returned as is.

    For policies whose model counts pixels in another frame than the environment (see `geometry`).
    """
    grammar = grammar or BUILT_IN
    _, action = parse(text, grammar)
    if action.kind == "invalid" or action.box is None:
        return text
    tags = _tags(text, grammar)
    opening = _first_action(tags, thinking.spans(text), grammar)
    if opening is None:
        return text
    start, end = _content_span(text, tags, opening, grammar)
    numbers = ", ".join(f"{value:.2f}".rstrip("0").rstrip(".") for value in convert(action.box))
    return f"{text[:start]}[{numbers}]{text[end:]}"


def _tags(text: str, grammar: Grammar) -> list[_Tag]:
    return [_Tag(m.start(), m.end(), bool(m[1]), m[2].lower()) for m in grammar.tags.finditer(in_ascii(text))]


def _ends_of_actions(text: str, thoughts: list[Span], grammar: Grammar) -> Iterator[int]:
    """The positions after the closing tags of actions and tool calls that stand outside of the thinking."""
    matches = grammar.closings.finditer(in_ascii(text))
    return (match.end() for match in matches if not inside(match.start(), thoughts))


def _first_action(tags: list[_Tag], thoughts: list[Span], grammar: Grammar) -> _Tag | None:
    """The opening tag of the first action that was closed, or else of the first; outside of the thinking, if any is."""
    openings = [tag for tag in tags if tag.name != "think" and not tag.closing]
    outside = [tag for tag in openings if not inside(tag.start, thoughts)]
    closed = [tag for tag in outside or openings if _is_closed(tag, tags, grammar)]
    return next(iter(closed or outside or openings), None)


def _is_closed(opening: _Tag, tags: list[_Tag], grammar: Grammar) -> bool:
    """Whether its own closing tag comes before an action of another kind begins."""
    kind = grammar.kinds[opening.name]
    later = (tag for tag in tags if tag.start >= opening.end and tag.name != "think")
    ends = next((tag for tag in later if tag.closing or grammar.kinds[tag.name] != kind), None)
    return ends is not None and ends.closing and grammar.kinds[ends.name] == kind


def _call_left_open(text: str, thoughts: list[Span]) -> bool:
    """Whether a tool call was begun outside of the thinking, and not ended."""
    found = list(_CALL.finditer(in_ascii(text)))
    return bool(found) and not found[-1][1] and not inside(found[-1].start(), thoughts)


def _content_span(text: str, tags: list[_Tag], opening: _Tag, grammar: Grammar) -> tuple[int, int]:
    """From the opening tag to its own closing tag; without one, to the next tag of any kind, or the end.

    Of several openings before the closing tag the last one is meant: the others are named in words, as in "I can give
    the <answer>: <answer>42</answer>".
    """
    kinds = grammar.kinds
    alike = [tag for tag in tags if tag.start >= opening.start and kinds.get(tag.name) == kinds[opening.name]]
    own = next((tag for tag in alike if tag.closing), None)
    if own is not None:
        opening = [tag for tag in alike if not tag.closing and tag.start < own.start][-1]
    later = [tag for tag in tags if tag.start >= opening.end]
    stop = own or next(iter(later), None)
    if stop is not None:
        return opening.end, stop.start
    return opening.end, len(_strip_partial_close(text, grammar))


def _strip_partial_close(text: str, grammar: Grammar) -> str:
    """Drop a closing tag that the token limit cut in half, as in `<search>sales</sea`."""
    match = grammar.partial_close.search(text)
    return text[: match.start()] if match else text


def _search(content: str) -> Action:
    query = " ".join(content.split())
    return Action(kind="search", query=query) if query else _invalid("the search query is empty.")


def _answer(content: str) -> Action:
    return Action(kind="answer", answer=content) if content else _invalid("the answer is empty.")


def _box(content: str) -> Action:
    plain = " ".join(unicodedata.normalize("NFKC", content).replace("\u2212", "-").split())
    # The label of {"label": "Q3 2019", "bbox_2d": [...]} holds numbers too; but an apostrophe may also be just that.
    values = _four_numbers(_QUOTED.sub(" ", plain))
    if len(values) != 4:
        values = _four_numbers(plain)
    if len(values) != 4:
        return _invalid(f"a box needs four numbers, [x1, y1, x2, y2], but {len(values)} were given.")
    if not all(math.isfinite(value) and abs(value) < 1e9 for value in values):
        return _invalid("the numbers of the box are too large.")
    x1, y1, x2, y2 = values
    box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
    if box[0] == box[2] or box[1] == box[3]:
        return Action(kind="invalid", box=box, problem="the box has no area; x1 < x2 and y1 < y2 are needed.")
    return Action(kind="bbox", box=box)


def _four_numbers(text: str) -> list[float]:
    """The first bracketed group of four numbers, or else every number there is."""
    group = _FOUR_IN_BRACKETS.search(text)
    return [float(number) for number in _NUMBERS.findall(group[0] if group else text)]


def _invalid(problem: str) -> Action:
    return Action(kind="invalid", problem=problem)


BUILT_IN = Grammar()
