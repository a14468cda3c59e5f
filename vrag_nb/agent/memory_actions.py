"""VimRAG's tool calls: what a model wrote, read as one action (arXiv 2602.12735; names as in the official demo).

A model's turn is free text that should hold a thought and one call:

    <think>...</think>
    <tool_call>{"name": "add_search_node", "arguments": {"id": "a", "parent_ids": ["root"], "query": "..."}}</tool_call>
    <tool_call>{"name": "summarize_and_memorize", "arguments": {"summarize": "...", "memorize": [
        {"information_id": "Picture 1", "is_useful": true, "priority_score": 4, "key_timestamp": []}]}}</tool_call>
    <tool_call>{"name": "add_answer_node", "arguments": {"parent_ids": ["a"], "answer": "..."}}</tool_call>

`parse` reads what models really emit: a missing closing tag, no tags at all, code fences, JSON with small faults
(`agent.loose_json`), the tool named in several ways, misspelt or only known by its fields, fields under near names,
numbers and booleans as words, times as 1:05, and the XML that Qwen3.5 puts into its tags:

    <tool_call><function=add_search_node><parameter=query>...</parameter></function></tool_call>

Rules, some of them ours where the public sources do not say:

- the first call wins and the rest of the text is ignored, so a model that dreams up an answer to its own call and goes
  on from it has done the one call only; what follows a mark of another's turn is never
  read (`agent.thinking`);
- a call inside `<think>` counts only when there is none outside;
- an item that is not mentioned is not kept; one whose usefulness is not said is kept; a kept one without a priority has
  the middle one, 3; other priorities are cut to 1 and 5;
- a missing name or missing parents are left to the environment, a missing query, answer or summary is a fault;
- `parse` never raises. What cannot be read becomes an invalid action whose `problem` is told to the model.

Only a model's own words are ever parsed: observations never pass through here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from vrag_nb.agent import thinking
from vrag_nb.agent.loose_json import first_object
from vrag_nb.agent.memory_graph import LONGEST_NAME
from vrag_nb.agent.memory_records import Judgement, MemoryAction
from vrag_nb.agent.thinking import Span, inside

TOOLS = {"retrieve": "add_search_node", "memorise": "summarize_and_memorize", "answer": "add_answer_node"}
MIDDLE = 3  # the priority of what is kept without one
ALIKE = 0.8  # of two names of tools, by difflib's ratio, that are taken for the same one

_KINDS = {
    **{name: "retrieve" for name in ("addsearchnode", "retrieve", "search", "addnode", "searchnode")},
    **{name: "memorise" for name in ("summarizeandmemorize", "summariseandmemorise", "memorize", "memorise")},
    **{name: "memorise" for name in ("summarize", "summarise", "memory")},
    **{name: "answer" for name in ("addanswernode", "answer", "answernode", "finalanswer")},
}
_FIELDS = {
    "name": ("name", "tool", "tool_name", "function", "action", "function_name"),
    "arguments": ("arguments", "parameters", "args", "input", "action_input"),
    "node": ("id", "node_id", "node"),
    "parents": ("parent_ids", "parents", "parent_id", "parent", "parent_nodes"),
    "query": ("query", "sub_query", "search_query", "queries", "q"),
    "summary": ("summarize", "summary", "summarise", "summarization"),
    "items": ("memorize", "memorise", "memory", "items"),
    "answer": ("answer", "final_answer", "text"),
    "label": ("information_id", "id", "label", "item", "name"),
    "useful": ("is_useful", "useful", "keep"),
    "priority": ("priority_score", "priority", "score"),
    "timestamps": ("key_timestamp", "key_timestamps", "timestamps", "timestamp"),
}
_CALL = re.compile(r"<\s?tool_?call\s?>", re.IGNORECASE)
_CLOSE = re.compile(r"<\s?/\s?tool_?call\s?>", re.IGNORECASE)
_FUNCTION = re.compile(r"<function=([^<>]{1,99})>", re.IGNORECASE)
_PARAMETER = re.compile(r"<parameter=([^<>]{1,99})>(.*?)(?=</?parameter\b|\Z)", re.IGNORECASE | re.DOTALL)
_FUNCTION_END = re.compile(r"</function>|<\s?/\s?tool_?call\s?>", re.IGNORECASE)
# A minus between two numbers is a range; m:ss and h:mm:ss are times.
_NUMBER = re.compile(r"(?:(?<![\w.])(?<!\d\s)-)?\d+(?::[0-5]\d(?!\d)){0,2}(?:\.\d+)?")
_BETWEEN, _LABEL = re.compile(r"[,;]|\band\b"), re.compile(r"[A-Za-z]*[\W_]*\d+")
_REASON = re.compile(r"[,.;:!(\u2013\u2014]|\s-\s")
_NO = {"false", "no", "0", "drop", "dropped", "discard", "discarded", "none", "null", "low", "useless", "not useful"}
_NO |= {"irrelevant", "not relevant", "unimportant", "not important", "unneeded", "not needed", "unrelated"}


def parse(text: str) -> tuple[str, MemoryAction]:
    """Read (thought, action) from a model's turn. Never raises; see the module's docstring for the rules."""
    text = thinking.own_turn(text)
    thoughts = thinking.spans(text)
    opening = _first_call(text, thoughts)
    thought = thinking.thought(text, thoughts, len(text) if opening is None else opening)
    if opening is None:
        return thought, _invalid("no tool call was found.")
    call = _CALL.sub("", text[opening:], count=1)
    found = _function(call) or _object(call)
    if found is None:
        return thought, _invalid("the tool call is no JSON object that can be read.")
    try:
        return thought, _action(found)
    except (ValueError, OverflowError):  # a number of thousands of digits, which Python does not write out
        return thought, _invalid("the tool call holds a number that is too long.")


def _first_call(text: str, thoughts: list[Span]) -> int | None:
    """Where the first call begins: at its tag, or without any tag as XML or at its brace; outside of the thinking."""
    tags, functions = ([match.start() for match in sign.finditer(text)] for sign in (_CALL, _FUNCTION))
    braces = [place for place, sign in enumerate(text) if sign == "{"]
    for places in (tags, functions, braces):
        outside = [place for place in places if not inside(place, thoughts)]
        if outside:
            return outside[0]
    return next(iter(tags or functions or braces), None)


def _object(text: str) -> dict[str, Any] | None:
    """The object of the call that `text` begins with. Its end is the closing tag, unless a string quotes that."""
    closings = list(_CLOSE.finditer(text))
    inner = text[: closings[0].start()] if closings else text
    if "{" not in inner:
        return None
    quoted = len(closings) > 1 and not inner.rstrip(" \n`").endswith("}")
    return (first_object(text) if quoted else None) or first_object(inner)


def _function(text: str) -> dict[str, Any] | None:
    """The object of a call as XML that `text` begins with, or None. All its values are texts, but for the items."""
    text = text.lstrip()
    opening = _FUNCTION.match(text)
    if opening is None:
        return None
    inner = _FUNCTION_END.split(text[opening.end() :], maxsplit=1)[0]
    fields: dict[str, Any] = {name.strip(): value.strip() for name, value in _PARAMETER.findall(inner)}
    for name in _FIELDS["items"]:
        listed = first_object(f'{{"items": {fields[name]}}}') if name in fields else None
        if listed and "items" in listed:
            fields[name] = listed["items"]
    return {"name": opening[1].strip(), "arguments": fields}


def _action(call: dict[str, Any]) -> MemoryAction:
    kind, arguments = _tool(call)
    if kind == "retrieve":
        return _retrieve(arguments)
    if kind == "memorise":
        return _memorise(arguments)
    if kind == "answer":
        return _answer(arguments)
    return _invalid(f"the tool {kind[:60]!r} is not there." if kind else "the call does not name its tool.")


def _tool(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The kind of call and its arguments; the unknown name, or an empty one, where it is no tool."""
    name, arguments = _get(call, "name"), _get(call, "arguments")
    if isinstance(name, dict):  # {"function": {"name": ..., "arguments": ...}}
        return _tool({str(key): value for key, value in name.items()})
    if isinstance(arguments, str):
        arguments = first_object(arguments)
    fields = {str(key): value for key, value in arguments.items()} if isinstance(arguments, dict) else call
    kind = _named(name)
    if kind is not None:
        return kind, fields
    for key, value in call.items():  # {"add_search_node": {...}}
        if isinstance(value, dict) and (kind := _named(key)):
            return kind, {str(one): other for one, other in value.items()}
    if isinstance(name, str) and name and fields is not call:
        return name, fields
    for kind, field in (("answer", "answer"), ("memorise", "summary"), ("memorise", "items"), ("retrieve", "query")):
        if _get(fields, field) is not None:
            return kind, fields
    return (name if isinstance(name, str) else ""), fields


def _named(name: Any) -> str | None:
    """The kind of call a name stands for, exactly or all but a few letters; None where it is no tool's."""
    near = get_close_matches(_letters(name), _KINDS, n=1, cutoff=ALIKE)
    return _KINDS[near[0]] if near else None


def _retrieve(fields: Mapping[str, Any]) -> MemoryAction:
    query = _text(_get(fields, "query"))
    if not query:
        return _invalid("the search has no query.")
    node = _name(_get(fields, "node"))
    return MemoryAction(kind="retrieve", node=node or None, parents=_names(_get(fields, "parents")), query=query)


def _memorise(fields: Mapping[str, Any]) -> MemoryAction:
    judgements = _judgements(_get(fields, "items"))
    summary = _text(_get(fields, "summary"))
    if not summary and not any(one.useful for one in judgements):
        return _invalid("there is no summary, and no item to keep.")
    return MemoryAction(kind="memorise", summary=summary, judgements=judgements)


def _answer(fields: Mapping[str, Any]) -> MemoryAction:
    answer = _get(fields, "answer")
    text = answer.strip() if isinstance(answer, str) else _text(answer)
    if not text:
        return _invalid("the answer is empty.")
    return MemoryAction(kind="answer", parents=_names(_get(fields, "parents")), answer=text)


def _judgements(items: Any) -> list[Judgement]:
    """A list of objects; also one object, labels alone, labels with their priorities, or any of these as a text."""
    if isinstance(items, str) and items.lstrip()[:1] in ("[", "{"):
        items = (first_object(f'{{"items": {items}}}') or {}).get("items", items)
    if isinstance(items, Mapping):
        if _get(items, "label") is None:
            items = [{"label": key, **_said_of(value)} for key, value in items.items()]
        else:
            items = [items]
    if isinstance(items, str | int):
        items = [items]
    return [one for item in items for one in _judged(item)] if isinstance(items, list | tuple) else []


def _said_of(value: Any) -> Mapping[Any, Any]:
    """What stands behind a label: all of the judgement, its priority, or in words whether it is useful."""
    if isinstance(value, Mapping):
        return value
    return {"priority" if _numbers(value) else "is_useful": value}


def _judged(item: Any) -> list[Judgement]:
    """What is said of an item, or of each of several that are named together."""
    fields = item if isinstance(item, Mapping) else {"label": item}
    useful = _get(fields, "useful")
    keep = True if useful is None else not _declines(_text(useful)) and bool(useful)
    numbers = _numbers(_get(fields, "priority"))
    priority = min(5, max(1, round(numbers[0]))) if numbers else MIDDLE
    said: dict[str, Any] = {"useful": keep, "priority": priority, "timestamps": _numbers(_get(fields, "timestamps"))}
    return [Judgement(label=label, **said) for label in _labels(_get(fields, "label"))]


def _labels(value: Any) -> list[str]:
    """The labels in a text or a list: "Picture 1, Picture 3" names two, a page's name with a comma in it one."""
    if isinstance(value, list | tuple):
        return [label for one in value for label in _labels(one)]
    text = _text(value)
    several = [part.strip() for part in _BETWEEN.split(text)]
    return several if all(map(_LABEL.fullmatch, several)) else [text] if text else []


def _declines(words: str) -> bool:
    """Whether these words say no, alone or before a reason: "No, it is a cover page"."""
    plain = words.lower()
    return any(said.strip(" .,!;:'\"") in _NO for said in (plain, _REASON.split(plain)[0]))


def _get(fields: Mapping[Any, Any], field: str) -> Any:
    """The value of a field under the first of its names that is there, however it is spelt."""
    spelt = {str(key).strip().lower().replace("-", "_").replace(" ", "_"): value for key, value in fields.items()}
    return next((spelt[name] for name in _FIELDS[field] if spelt.get(name) is not None), None)


def _text(value: Any) -> str:
    """A value as one line of words: numbers and lists become text, anything else nothing."""
    if isinstance(value, list | tuple):
        return " ".join(filter(None, (_text(one) for one in value)))
    if isinstance(value, str | int | float):
        return " ".join(str(value).split())
    return ""


def _names(value: Any) -> list[str] | None:
    """Names of nodes, as a list or with commas between; None where there are none."""
    if isinstance(value, str):
        value = value.strip("[]() ").split(",")
    values = value if isinstance(value, list | tuple) else [value]
    return [name for name in map(_name, values) if name] or None


def _name(value: Any) -> str:
    """A node's name as it is known, whether it is given or referred to."""
    return _text(value).strip("'\" ")[:LONGEST_NAME].strip("'\" ")


def _numbers(value: Any) -> list[float]:
    """The finite numbers in a number, a text or a list of them; a time as its seconds."""
    if isinstance(value, list | tuple):
        return [number for one in value for number in _numbers(one)]
    if isinstance(value, bool) or value is None or isinstance(value, Mapping):
        return []
    found = [_seconds(number) for number in _NUMBER.findall(str(value)[:200])]
    return [number for number in found if math.isfinite(number)]


def _seconds(number: str) -> float:
    """A number as it is, m:ss and h:mm:ss as seconds."""
    parts = reversed(number.split(":"))
    return sum((float(part) * 60**power for power, part in enumerate(parts)), 0.0)


def _letters(name: Any) -> str:
    return re.sub(r"[^a-z]", "", name.lower()) if isinstance(name, str) else ""


def _invalid(problem: str) -> MemoryAction:
    return MemoryAction(kind="invalid", problem=problem)
