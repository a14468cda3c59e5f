"""An expert of VimRAG's protocol that is told the gold: what a good agent's memory looks like, without a model.

It is to `agent.memory_environment` what the privileged planner of expert sampling is to VRAG's environment: a policy,
so that the ordinary environment and rollout driver run it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrag_nb.agent.memory_actions import TOOLS
from vrag_nb.agent.memory_context import GRAPH_HEAD, SUMMARY_HEAD
from vrag_nb.agent.memory_graph import ROOT
from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.records import Question, page_id

NO_ANSWER = "not answerable"  # what VimRAG's prompt asks for where the pages do not hold it


@dataclass(frozen=True)
class _Clue:
    """One gold page: how it is searched for, one way after another, and what is written down once it is seen."""

    page_id: str
    queries: tuple[str, ...]
    finding: str


class MemoryPlanner(Policy):
    """Acts as a good VimRAG agent should, because it is told the gold pages of the questions it may be asked.

    It searches with the question (first with a hint for each page, where facts of several pages are needed), keeps the
    gold pages with priority 5 and no others, writes down what they say, and answers; the answer follows from the
    searches that found something. A search that missed its page leads to the next attempt, and when there is none left
    the answer is NO_ANSWER. What has been found it reads off the context, so it plays by the rules of any model, with
    every kind of memory; it needs pages to be shown as images. Facts, values and hints come from `needed_facts`,
    where a corpus has them.

    follow_misses: whether the search after a miss is a child of it; else it starts from the question again, and the
    miss is a dead end of the graph.
    """

    name = "privileged-memory-planner"

    def __init__(self, questions: Sequence[Question], follow_misses: bool = True) -> None:
        self.follow_misses = follow_misses
        self._questions = {question.query: question for question in questions}
        self._longest_first = sorted(self._questions, key=len, reverse=True)

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. A conversation about a question it was not told of gets an error."""
        return [self._step(conversation) for conversation in conversations]

    def _step(self, conversation: Conversation) -> Generation:
        opening = next(message.text for message in conversation if message.role == "user")
        question = next((self._questions[query] for query in self._longest_first if query in opening), None)
        if question is None:
            return Generation.failed("the planner was not told the gold of this question")
        clues, memory = _clues(question), _Memory(opening)
        if any(message.role == "assistant" for message in conversation):
            return Generation(_written_down(conversation, clues, memory))
        missing = [clue for clue in clues if not memory.holds(clue.finding)]
        if clues and not missing:
            return Generation(_answer(question.reference_answer, clues, memory))
        attempts = missing[0].queries if missing else (_plain(question.query),)
        open_ones = [query for query in attempts if not memory.tried(query)]
        if not open_ones:
            return Generation(_answer(NO_ANSWER if clues else question.reference_answer, clues, memory))
        made = attempts[: attempts.index(open_ones[0])]
        return Generation(_search(open_ones[0], made, memory, self.follow_misses))


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
    pages = list(dict.fromkeys(fact["page"] for fact in question.needed_facts)) or question.meta_info.reference_page
    clues = []
    for page in pages:
        facts = [fact for fact in question.needed_facts if fact["page"] == page]
        hints = [_plain(fact["search_hint"]) for fact in facts]
        whole = _plain(question.query)
        queries = [*hints, whole] if len(pages) > 1 else [whole, *hints]
        told = ", ".join(f"{fact['description'].strip()}: {fact['value']}" for fact in facts if fact.get("value"))
        name = page_id(question.document, page)
        finding = f"{name} says {told}." if told else f"{name} is about it."
        clues.append(_Clue(name, tuple(dict.fromkeys(queries)), _plain(finding)))
    return clues


def _plain(text: str) -> str:
    return " ".join(text.split())


def _missed(query: str) -> str:
    return f"Nothing yet with the words {query!r}."


def _search(query: str, made: Sequence[str], memory: _Memory, follow_misses: bool) -> str:
    """A search, and what it follows from: the question, or the miss before it."""
    parents = (memory.asking(made)[-1:] if follow_misses else []) or [ROOT]
    thought = "Not the right page: in other words." if made else "I need to find the page."
    return _call(thought, "retrieve", {"id": memory.next_name(), "parent_ids": parents, "query": query})


def _written_down(conversation: Conversation, clues: Sequence[_Clue], memory: _Memory) -> str:
    """What the search brought: gold pages are kept, once each, all else is dropped; a running summary is told again."""
    query, shown = _last_search(conversation)
    missing = [clue for clue in clues if not memory.holds(clue.finding)]
    seen = [clue for clue in missing if clue.page_id in shown]
    told = [clue.finding for clue in seen]
    if not missing or missing[0] not in seen:
        told.append(_missed(query))
    if memory.running:
        known = [clue.finding for clue in clues if memory.holds(clue.finding)]
        tried = [_missed(one) for clue in clues for one in clue.queries if memory.tried(one)]
        told = [*known, *dict.fromkeys(tried), *told]
    new = {clue.page_id for clue in seen}
    judged = [
        {"information_id": f"Picture {place}", "is_useful": name in new, "priority_score": 5 if name in new else 1}
        for place, name in enumerate(shown, 1)
    ]
    thought = "That is it." if seen else "It is not there."
    return _call(thought, "memorise", {"summarize": " ".join(told), "memorize": judged})


def _answer(text: str, clues: Sequence[_Clue], memory: _Memory) -> str:
    found = memory.naming([clue.finding for clue in clues])
    parents = found or [node["id"] for node in memory.nodes[1:]] or [ROOT]
    thought = "I have all of it." if found else "The pages do not hold it."
    return _call(thought, "answer", {"parent_ids": parents, "answer": text})


def _last_search(conversation: Conversation) -> tuple[str, list[str]]:
    """This cycle's query, in the planner's own words, and the pages it showed, in the order of their labels."""
    place = next(number for number, message in enumerate(conversation) if message.role == "assistant")
    call = json.loads(conversation[place].text.partition("<tool_call>")[2].partition("</tool_call>")[0])
    shown = [image.page_id or "" for image in conversation[place + 1].images]
    return str(call["arguments"]["query"]), shown


def _call(thought: str, kind: str, arguments: Mapping[str, Any]) -> str:
    call = json.dumps({"name": TOOLS[kind], "arguments": arguments}, ensure_ascii=False)
    return f"<think>{thought}</think>\n<tool_call>{call}</tool_call>"
