"""VimRAG's loop: search, write down, and start again from the memory graph (arXiv 2602.12735, section 3).

    environment = MemoryEnvironment(engine, corpus, MemorySettings(memory="energy"))
    rollout(policy, environment, questions, out)            # the driver that runs VRAG's environment

A cycle begins with a context made of the memory alone (`agent.memory_context`). A search opens a node and shows its
best pages; the model judges them and sums them up, which fills the node; then everything shown is dropped and the next
cycle begins. Every generation is a step. A malformed call, one that does not fit the graph, or one out of turn costs
its step and is answered by a notice: before a search in the next context, after one behind the pages, which stay.
The last of `max_steps` steps asks for the answer.

Choices of ours where the public sources do not say:

- a page that was shown before is shown again: the model may have dropped it;
- a search that finds nothing is written down by the environment and costs no second step;
- a search without a name gets one, and one whose name is taken gets that name with a number behind it;
- parents that are no nodes are passed over; a search that has none left follows from the root, an answer from every
  search that nothing follows from, so that GGPO's mask leaves nothing out;
- labels that no item has are passed over, unless nothing else was to be kept;
- with `memory="summary"` there is one chain of nodes, whatever the model names, and each summary replaces the last one.

As with VRAG, the environment holds no state of a question, and one bad page or reply ends only its own session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.agent import memory_actions
from vrag_nb.agent.actions import Action, InvalidAction
from vrag_nb.agent.memory_context import context, remembered
from vrag_nb.agent.memory_graph import ROOT, GraphError, Item, MemoryGraph
from vrag_nb.agent.memory_items import kinds_of, labelled, observations
from vrag_nb.agent.memory_records import Judgement, MemoryAction, Offered
from vrag_nb.agent.memory_session import MemorySession, new_reply, new_turn
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Generation, Message, Text
from vrag_nb.agent.searching import Engine, in_words
from vrag_nb.agent.task_settings import MemoryKind, MemorySettings
from vrag_nb.agent.trajectory import Observation, Turn, observation_message, said_of_end
from vrag_nb.agent.turn_taking import TurnTaking
from vrag_nb.records import Hit, Question

Parser = Callable[[str], tuple[str, MemoryAction]]
PROMPTS: dict[MemoryKind, str] = {
    "summary": "vimrag_summary",
    "graph": "vimrag_graph",
    "multimodal": "vimrag",
    "energy": "vimrag",
}


def default_prompt(settings: MemorySettings) -> str:
    """The template of a kind of memory; where items are kept that have to be told of, such as videos, theirs."""
    told = [kind.prompt for kind in kinds_of(settings) if kind.prompt and settings.keeps_items]
    return told[0] if told else PROMPTS[settings.memory]


class MemoryEnvironment(TurnTaking[MemorySession]):
    """Search, memorise and answer over one corpus (`TurnTaking` has the arguments that all environments take).

    prompt: by default the template of the settings' kind of memory. parse: the call grammar. Raises ValueError for a
    kind of item that is not there.
    """

    settings: MemorySettings

    def __init__(
        self,
        engine: Engine | None,
        corpus: Path | str | Pages,
        settings: MemorySettings | None = None,
        prompt: str | Path | None = None,
        *,
        parse: Parser = memory_actions.parse,
    ) -> None:
        settings = settings or MemorySettings()
        super().__init__(engine, corpus, settings, prompt or default_prompt(settings))
        self.kinds, self.parse = kinds_of(settings), parse

    def begin(self, uid: str, question: Question, prompt: str) -> MemorySession:
        """See `TurnTaking.begin`."""
        session = MemorySession(uid, question, prompt, MemoryGraph(question.query))
        self._new_cycle(session)
        return session

    def take(self, session: MemorySession, generation: Generation) -> MemoryAction:
        """See `TurnTaking.take`. A search is opened in the graph here, so that one which does not fit is not searched
        for."""
        thought, action = self.parse(generation.text)
        if session.memorising:
            memory = session.turns[-1].memory
            assert memory is not None
            memory.replies.append(new_reply(generation, thought, action))
        else:
            if action.kind == "retrieve" and not session.forced:
                action = self._open(session, action)
            session.turns.append(new_turn(session, generation, thought, action))
        session.pending = action
        return action

    def wants_search(self, session: MemorySession) -> bool:
        """Whether the session's pending action has to be searched for."""
        retrieves = session.pending is not None and session.pending.kind == "retrieve"
        return retrieves and not (session.done or session.memorising or session.forced)

    def observe(self, session: MemorySession, hits: list[Hit] | Exception) -> None:
        """Carry the pending action out and decide whether it goes on. `hits`: the search's result or failure."""
        if session.done or session.pending is None:
            return
        if isinstance(hits, Exception):
            return self.fail(session, f"search: {in_words(hits)}")
        action, session.pending = session.pending, None
        turn = session.turns[-1]
        step = turn.memory.replies[-1] if session.memorising and turn.memory else turn
        try:
            if session.forced:
                self._last(session, action)
            elif session.memorising:
                self._memorise(session, action)
            else:
                self._act(session, turn, action, hits)
        except Exception as error:  # a broken page file must not end the other sessions
            return self.fail(session, f"observation: {in_words(error)}")
        finally:
            now = time.perf_counter()
            step.seconds, session.step_started = now - session.step_started, now

    def memory_of(self, session: MemorySession) -> list[dict[str, Any]]:
        """See `TurnTaking.memory_of`."""
        return session.graph.dump()

    def query_of(self, session: MemorySession) -> str:
        return (session.pending.query if session.pending else None) or ""

    # what the actions do

    def _open(self, session: MemorySession, action: MemoryAction) -> MemoryAction:
        """Open the node of a search; the action with the name and parents it got, or why it does not fit."""
        graph = session.graph
        wanted = f"node_{len(graph.nodes)}"
        name, parents = graph.free_name(action.node or wanted), graph.known(action.parents or []) or [ROOT]
        if not self.settings.keeps_graph:
            name, parents = wanted, [graph.nodes[-1].name]
        try:
            graph.open(name, parents, action.query or "")
        except GraphError as error:
            return action.model_copy(update={"kind": "invalid", "problem": f"{error}."})
        session.node = name
        return action.model_copy(update={"node": name, "parents": parents})

    def _act(self, session: MemorySession, turn: Turn, action: MemoryAction, hits: list[Hit]) -> None:
        """An action at the start of a cycle."""
        try:
            if action.kind == "retrieve":
                return self._show(session, turn, hits)
            if action.kind == "answer":
                return self._answer(session, action)
            if action.kind == "memorise":
                raise InvalidAction("there is no search to write down.")
            raise InvalidAction(action.problem or "it cannot be read.")
        except InvalidAction as error:
            turn.action = Action(kind="invalid", query=action.query, problem=str(error))
            notice = f"{said_of_end(turn)}Invalid call: {error} {self.settings.formats}"
        turn.observation = Observation(kind="notice", text=notice)
        self._new_cycle(session, notice)

    def _show(self, session: MemorySession, turn: Turn, hits: list[Hit]) -> None:
        """Offer what a search found, each item under its label, and ask for it to be written down."""
        assert turn.memory is not None
        ranked = sorted(hits, key=lambda hit: hit.rank)
        turn.hits, names = hits, list(dict.fromkeys(hit.page_id for hit in ranked))[: self.settings.top_k]
        shown: list[Observation] = []
        caption = self.settings.caption.replace("{query}", session.graph[session.node].query)
        for kind in self.kinds:
            number = 0
            for name in names:
                seen = observations(kind, self.pages.page(name), f"{kind.word} {number + 1}", self.settings)
                if seen:
                    number += 1
                    shown += _captioned(caption, seen)
                    turn.memory.offered.append(Offered(label=f"{kind.word} {number}", name=name, kind=kind.name))
        if not shown:
            kinds = " or ".join(self.settings.items)
            nothing = f"What the search found holds no {kinds}." if names else self.settings.nothing_found_text
            return self._nothing(session, turn, nothing)
        session.forced = self._last_is_next(session)
        asked = self.settings.forced_text if session.forced else self.settings.memorise_text
        session.memorising, session.offered = not session.forced, turn.memory.offered
        asking = Observation(kind="notice", text=f"\n\n{asked}")
        turn.observation, turn.also_shown = shown[0], shown[1:]
        said = Message("assistant", (Text(turn.text),), tuple(turn.token_ids))
        answer = observation_message([*shown, asking], self.pages)
        session.conversation = [*session.conversation, said, answer]

    def _nothing(self, session: MemorySession, turn: Turn, nothing: str) -> None:
        """Write an empty search down; a running summary goes on."""
        notice, before = nothing, ""
        if not self.settings.keeps_graph:
            before = session.graph[session.graph[session.node].parents[0]].summary
            notice = f"{notice} ({session.graph[session.node].query})"
        session.graph.memorise(session.node, f"{before} {notice}".strip())
        turn.observation = Observation(kind="notice", text=nothing)
        self._new_cycle(session, nothing)

    def _memorise(self, session: MemorySession, action: MemoryAction) -> None:
        """An action after a search."""
        memory = session.turns[-1].memory
        assert memory is not None
        reply = memory.replies[-1]
        try:
            if action.kind != "memorise":
                raise InvalidAction(action.problem or "write down first what the search brought.")
            if not (action.summary or self.settings.keeps_items):
                raise InvalidAction("there is no summary.")
            session.graph.memorise(session.node, action.summary or "", self._items(session, action.judgements))
            return self._new_cycle(session)
        except InvalidAction as error:
            reply.notice = f"{said_of_end(reply)}Invalid call: {error} {self.settings.formats}"
        session.forced = self._last_is_next(session)
        session.memorising = not session.forced
        asked = f" {self.settings.forced_text}" if session.forced else ""
        said = Message("assistant", (Text(reply.text),), tuple(reply.token_ids))
        told = Message("user", (Text(reply.notice + asked),))
        session.conversation = [*session.conversation, said, told]

    def _items(self, session: MemorySession, judgements: Sequence[Judgement]) -> list[Item]:
        """What is to be kept, each item once. Raises InvalidAction where only labels that no item has were named."""
        if not self.settings.keeps_items:
            return []
        useful = [one for one in judgements if one.useful]
        kept: dict[int, Item] = {}
        for one in useful:
            place = labelled(one.label, session.offered)
            if place is not None:
                offered, times, priority = session.offered[place], tuple(one.timestamps), one.priority
                if place in kept:  # a video is judged frame by frame
                    times, priority = (*kept[place].timestamps, *times), max(priority, kept[place].priority)
                kept[place] = Item(name=offered.name, priority=priority, kind=offered.kind, timestamps=times)
        if useful and not kept:
            labels = ", ".join(one.label for one in session.offered)
            raise InvalidAction(f"there is no {useful[0].label[:60]}; the items are {labels}.")
        return [kept[place] for place in sorted(kept)]

    def _answer(self, session: MemorySession, action: MemoryAction) -> None:
        parents = session.graph.known(action.parents or []) if self.settings.keeps_graph else []
        session.graph.answer(parents or session.graph.dead_ends() or [ROOT], action.answer or "")
        session.answer, session.done = action.answer, True

    def _last(self, session: MemorySession, action: MemoryAction) -> None:
        """The last step: its answer, if it is one."""
        if action.kind == "answer":
            self._answer(session, action)
        session.done = True

    def _last_is_next(self, session: MemorySession) -> bool:
        return session.steps >= self.settings.max_steps - 1

    def _new_cycle(self, session: MemorySession, notice: str = "") -> None:
        """Drop what was shown and build the next context from the graph."""
        session.memorising, session.offered, session.node = False, [], ""
        session.forced = self._last_is_next(session)
        left = self.settings.max_steps - session.steps
        asked = self.settings.forced_text if session.forced else f"{left} steps are left. Make your next call."
        session.remembered = remembered(session.graph, self.settings, self.pages)
        words = f"{notice} {asked}".strip()
        session.conversation = context(
            session.prompt, session.graph, session.remembered, self.settings, self.pages, words
        )


def _captioned(caption: str, seen: Sequence[Observation]) -> list[Observation]:
    """An item's observations, the caption before all they say."""
    return [seen[0].model_copy(update={"caption": caption + seen[0].caption}), *seen[1:]]
