"""An expert of VimRAG's protocol that is told the gold: what a good agent's memory looks like, without a model.

It is to `agent.memory_environment` what the privileged planner of expert sampling is to VRAG's environment: a policy,
so that the ordinary environment and rollout driver run it.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrag_nb.agent.memory_actions import TOOLS
from vrag_nb.agent.memory_context import GRAPH_HEAD, SUMMARY_HEAD
from vrag_nb.agent.memory_graph import ROOT
from vrag_nb.agent.policy import Conversation, Generation, Image
from vrag_nb.learning.privileged import PrivilegedPolicy
from vrag_nb.records import Question

NO_ANSWER = "not answerable"  # what VimRAG's prompt asks for where the pages do not hold it


@dataclass(frozen=True)
class _Clue:
    """One gold page: how it is searched for, one way after another, and what is written down once it is seen."""

    page_id: str
    queries: tuple[str, ...]
    finding: str
    read: str = ""  # the value that is read off it, where the question asks for that one alone


class MemoryPlanner(PrivilegedPolicy):
    """Acts as a good VimRAG agent should, because it is told the gold pages of the questions it may be asked.

    It searches with the question (first with a hint for each page, where facts of several pages are needed), keeps the
    gold pages with priority 5 and no others, writes down what they say, and answers; the answer follows from the
    searches that found something. A search that missed its page leads to the next attempt, and when there is none left
    the answer is NO_ANSWER. What has been found it reads off the context, so it plays by the rules of any model, with
    every kind of memory; it needs pages to be shown as images, or chunks of videos as frames: of those it keeps the
    seconds at which the gold span is on screen. Facts, values and hints come from `needed_facts`, where a corpus has
    them: `search_hint`, then `other_hints`, then the question's own words, until the page is found.

    follow_misses: whether the search after a miss is a child of it; else it starts from the question again, and the
    miss is a dead end of the graph.
    asked_only: a search that was for one page and brought the page of another fact as well is written down for what
    it was asked, as by a model that can read one thing at a time.
    vague: the share of searches that are made with the first half of their words only, drawn anew for each. They mostly
    miss, and teach a habit that reinforcement learning can then unlearn.

    Of a question that is a list of questions (`parts` in its record) findings and searches have their numbers.
    """

    name = "privileged-memory-planner"

    def __init__(
        self,
        questions: Sequence[Question],
        follow_misses: bool = True,
        asked_only: bool = False,
        vague: float = 0.0,
    ) -> None:
        super().__init__(questions)
        self.follow_misses, self.asked_only, self.vague = follow_misses, asked_only, vague
        if vague:
            self.name = f"vague-memory-planner-{vague:g}"

    def turn(self, question: Question, conversation: Conversation, rng: random.Random) -> Generation:
        """See `PrivilegedPolicy.turn`. Only whether a search is vague is drawn."""
        opening = next(message.text for message in conversation if message.role == "user")
        clues, memory = _clues(question), _Memory(opening)
        if any(message.role == "assistant" for message in conversation):
            searched = [clue for clue in clues if not memory.holds(clue.finding)]
            told = searched[:1] if self.asked_only else searched
            return Generation(_written_down(conversation, clues, told, memory, _span(question)))
        missing = [clue for clue in clues if not memory.holds(clue.finding)]
        if clues and not missing:
            return Generation(_answer(question.reference_answer, clues, memory))
        attempts = missing[0].queries if missing else (_plain(question.query),)
        open_ones = [query for query in attempts if not memory.tried(query)]
        if not open_ones:
            return Generation(_answer(NO_ANSWER if clues else question.reference_answer, clues, memory))
        made = attempts[: attempts.index(open_ones[0])]
        number = clues.index(missing[0]) + 1 if _listed(question) else 0
        words = _first_half(open_ones[0]) if rng.random() < self.vague else open_ones[0]
        return Generation(_search(words, made, memory, self.follow_misses, number))


class _Memory:
    """What the context says has been done: the graph's nodes, or the running summary in their place."""

    def __init__(self, opening: str) -> None:
        self.running = SUMMARY_HEAD in opening
        self._text = opening.rpartition(SUMMARY_HEAD if self.running else GRAPH_HEAD)[2]
        lines = [] if self.running else self._text.splitlines()
        self.nodes: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith('{"id": ')]

    def holds(self, sentence: str) -> bool:
        """Whether a sentence was written down."""
        return sentence in self._text if self.running else bool(self.naming([sentence]))

    def tried(self, query: str) -> bool:
        """Whether it was searched for. A running summary names what missed, so does the environment's note."""
        if self.running:
            return _missed(query) in self._text or f"({query})" in self._text
        return bool(self.asking([query]))

    def naming(self, sentences: Sequence[str]) -> list[str]:
        """Names of the searches whose summary has one of the sentences."""
        return [node["id"] for node in self.nodes[1:] if any(one in node.get("summary", "") for one in sentences)]

    def asking(self, queries: Sequence[str]) -> list[str]:
        """Names of the searches with one of these queries."""
        return [node["id"] for node in self.nodes[1:] if node["query"] in queries]

    def next_name(self) -> str:
        """A name that no node has: the searches are numbered."""
        return f"search_{len(self.nodes)}"


def _clues(question: Question) -> list[_Clue]:
    pages = list(dict.fromkeys(map(question.fact_page_id, question.needed_facts))) or question.gold_page_ids
    clues = []
    for number, name in enumerate(pages, start=1):
        facts = [fact for fact in question.needed_facts if question.fact_page_id(fact) == name]
        hints = [_plain(hint) for fact in facts for hint in (fact["search_hint"], *fact.get("other_hints", []))]
        whole = _plain(question.query)
        queries = [*hints, whole] if len(pages) > 1 else [whole, *hints]
        told = ", ".join(f"{fact['description'].strip()}: {fact['value']}" for fact in facts if fact.get("value"))
        alone = len(question.needed_facts) == 1 or (_listed(question) and len(facts) == 1)
        value = str(facts[0].get("value") or "") if alone else ""
        read = _plain(question.reference_answer if _span(question) else value)
        known = f"({number}) {read}." if _listed(question) else f"It is {read}."
        finding = known if read else f"{told}." if told else f"{name} is about it."
        clues.append(_Clue(name, tuple(dict.fromkeys(queries)), _plain(finding), read))
    return clues


def _listed(question: Question) -> bool:
    """Whether it is a list of questions, which its record then names."""
    return bool((question.meta_info.model_extra or {}).get("parts"))


def _span(question: Question) -> tuple[float, float] | None:
    """From which second to which a video shows the answer; None for other questions."""
    span = (question.meta_info.model_extra or {}).get("reference_span")
    return (float(span[0]), float(span[1])) if span is not None else None


def _plain(text: str) -> str:
    return " ".join(text.split())


def _first_half(query: str) -> str:
    words = query.split()
    return " ".join(words[: (len(words) + 1) // 2])


def _missed(query: str) -> str:
    return f"Nothing yet with the words {query!r}."


def _search(query: str, made: Sequence[str], memory: _Memory, follow_misses: bool, number: int) -> str:
    """A search, and what it follows from: the question, or the miss before it. number: of the part it is for, or 0."""
    parents = (memory.asking(made)[-1:] if follow_misses else []) or [ROOT]
    first = f"I need ({number})." if number else "I need to find the page."
    thought = "Not the right page: in other words." if made else first
    return _call(thought, "retrieve", {"id": memory.next_name(), "parent_ids": parents, "query": query})


def _written_down(
    conversation: Conversation,
    clues: Sequence[_Clue],
    missing: Sequence[_Clue],
    memory: _Memory,
    span: tuple[float, float] | None,
) -> str:
    """What the search brought: gold pages of what is `missing` are kept, once each, all else is dropped; a running
    summary is told again."""
    query, items = _last_search(conversation)
    shown = [item.page_id for item in items]
    seen = [clue for clue in missing if clue.page_id in shown]
    told = [clue.finding for clue in seen]
    if not missing or missing[0] not in seen:
        told.append(_missed(query) if memory.running else "It is not there.")  # a node has its query
    if memory.running:
        known = [clue.finding for clue in clues if memory.holds(clue.finding)]
        tried = [_missed(one) for clue in clues for one in clue.queries if memory.tried(one)]
        told = [*known, *dict.fromkeys(tried), *told]
    new = {clue.page_id for clue in seen}
    judged = [_judged(item, item.page_id in new, span) for item in items]
    read = seen[0].read if seen else ""
    thought = f"I read {read}." if read else "That is it." if seen else "It is not there."
    return _call(thought, "memorise", {"summarize": " ".join(told), "memorize": judged})


def _answer(text: str, clues: Sequence[_Clue], memory: _Memory) -> str:
    found = memory.naming([clue.finding for clue in clues])
    parents = found or [node["id"] for node in memory.nodes[1:]] or [ROOT]
    held = found or any(memory.holds(clue.finding) for clue in clues)
    thought = "I have all of it." if held else "The pages do not hold it."
    return _call(thought, "answer", {"parent_ids": parents, "answer": text})


@dataclass
class _Item:
    """What a search showed under one label; the seconds of its frames, where it is a chunk of a video."""

    label: str
    page_id: str
    seconds: list[float]


def _judged(item: _Item, useful: bool, span: tuple[float, float] | None) -> dict[str, Any]:
    """Whether an item is kept, and at which seconds: a frame shows what was on screen at its own."""
    judged: dict[str, Any] = {"information_id": item.label, "is_useful": useful, "priority_score": 5 if useful else 1}
    if useful and item.seconds and span is not None:
        judged["key_timestamp"] = [second for second in item.seconds if span[0] <= second < span[1]]
    return judged


# What stands before an item: words of the settings, its label, the second of a frame.
_HEAD = re.compile(r"[^\n]*(?:\n(?P<label>[A-Z][a-z]+ \d+)(?:, [^\n]*)?:\n)?(?:\n(?P<second>\d+\.\d) s:\n)?")


def _last_search(conversation: Conversation) -> tuple[str, list[_Item]]:
    """This cycle's query, in the planner's own words, and what it showed, in the order of the labels."""
    place = next(number for number, message in enumerate(conversation) if message.role == "assistant")
    call = json.loads(conversation[place].text.partition("<tool_call>")[2].partition("</tool_call>")[0])
    items: list[_Item] = []
    for part in conversation[place + 1].parts:
        if isinstance(part, Image):
            items[-1].page_id = part.page_id or ""
        elif head := _HEAD.fullmatch(part.text):
            items += [_Item(head["label"], "", [])] if head["label"] else []
            items[-1].seconds += [float(head["second"])] if head["second"] else []
    return str(call["arguments"]["query"]), [item for item in items if item.page_id]


def _call(thought: str, kind: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": TOOLS[kind], "arguments": arguments}, ensure_ascii=False)
    return f"<think>{thought}</think>\n<tool_call>{call}</tool_call>"
