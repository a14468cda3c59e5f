"""The environment: what happens between two turns of a model.

The loop has four parts, and each can be swapped without touching the others:

    generate   a `Policy` continues the conversation                             (agent.policy)
    parse      its text becomes a thought and an action                          (agent.actions.parse)
    observe    the action is carried out: one observer per kind of action        (agent.observers, agent.action_kinds)
    stop       decides whether the session goes on                               (stop_after_answer_or_turns)

`Environment` holds no state of any question: that lives in a `Session`, so one environment serves any number of
sessions and threads. As in VRAG-RL (arXiv 2505.22019, algorithm 1) observations come back in user turns; a search
shows the best-ranked page not seen before; a box crops the last image shown, page or crop, at the page's full
resolution; an invalid action costs a turn and is answered by a notice; after `max_turns` actions one more turn asks
for the answer.

    session = environment.start(question)
    while not session.done:
        [generation] = policy.generate([session.conversation])
        environment.advance([session], [generation])
    trajectory = environment.finish(session)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vrag_nb.agent import actions as grammars
from vrag_nb.agent.action_kinds import ActionKind, grammar_with, load_kinds, name_of, telling_of
from vrag_nb.agent.actions import BUILT_IN, Action, InvalidAction
from vrag_nb.agent.observers import CropObserver, Observer, SearchObserver, Session
from vrag_nb.agent.pages import Pages, PageStore
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.searching import Engine, in_words
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import (
    Observation,
    Trajectory,
    Turn,
    assistant_message,
    observation_message,
    opening,
    said_of_end,
)
from vrag_nb.agent.turn_taking import TurnTaking
from vrag_nb.records import Hit, Question, without_surrogates

Parser = Callable[[str], tuple[str, Action]]
StopRule = Callable[[Session, Settings], bool]


def stop_after_answer_or_turns(session: Session, settings: Settings) -> bool:
    """Stop at an answer, and after the forced turn whatever it holds."""
    last = session.turns[-1]
    return last.action.kind == "answer" or last.forced


class Environment(TurnTaking[Session]):
    """Search, crop and answer over one corpus (`TurnTaking` has the arguments that all environments take).

    actions: kinds of one's own, beside those that the settings name. parse, observers, stop: the swappable parts;
    `observers` replaces others by kind of action. Raises ValueError for an action that is not there, or a tag that
    cannot be.
    """

    settings: Settings

    def __init__(
        self,
        engine: Engine | None,
        corpus: Path | str | Pages,
        settings: Settings | None = None,
        prompt: str | Path = "vrag",
        *,
        actions: Sequence[type[ActionKind]] = (),
        parse: Parser | None = None,
        observers: Mapping[str, Observer] | None = None,
        stop: StopRule = stop_after_answer_or_turns,
    ) -> None:
        settings = settings or Settings()
        kinds = list(dict.fromkeys([*load_kinds(settings.actions), *actions]))
        changes = {"actions": tuple(map(name_of, kinds)), "formats": telling_of(settings.formats, kinds, " ")}
        super().__init__(engine, corpus, settings.model_copy(update=changes), prompt)
        self.template = telling_of(self.template, kinds, "\n\n")
        self.grammar = grammar_with(kinds) if kinds else BUILT_IN
        self.actions = {kind.tag: kind(self.pages, self.settings) for kind in kinds}
        self.parse = parse or partial(grammars.parse, grammar=self.grammar)
        self.stop = stop
        self.observers: dict[str, Observer] = {
            "search": SearchObserver(self.pages, self.settings),
            "bbox": CropObserver(self.pages, self.settings),
            **{tag: kind.observe for tag, kind in self.actions.items()},
            **(observers or {}),
        }

    def begin(self, uid: str, question: Question, prompt: str) -> Session:
        """See `TurnTaking.begin`."""
        conversation = opening(prompt, self.settings.system, self.grammar)
        return Session(uid, question, prompt, conversation, forced=self.settings.max_turns == 0)

    def take(self, session: Session, generation: Generation) -> Action:
        """See `TurnTaking.take`."""
        thought, action = self.parse(generation.text)
        own = self.actions.get(action.kind)
        if own and own.searches and not (action.query or "").strip():
            action = action.refused("the search query is empty.")
        turn = Turn(
            index=len(session.turns),
            text=generation.text,
            thought=thought,
            action=action,
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            prompt_tokens=generation.prompt_tokens,
            finish_reason=generation.finish_reason,
            redrawn=generation.redrawn,
            forced=session.forced,
        )
        session.turns.append(turn)
        session.conversation.append(assistant_message(turn))
        return action

    def wants_search(self, session: Session) -> bool:
        """Whether the session's last turn has to be searched for."""
        if session.done or session.turns[-1].forced:
            return False
        kind = session.turns[-1].action.kind
        return kind == "search" or (kind in self.actions and self.actions[kind].searches)

    def observe(self, session: Session, hits: list[Hit] | Exception) -> None:
        """Carry the session's last action out and decide whether it goes on. `hits`: the search's result or failure."""
        if session.done:
            return
        if isinstance(hits, Exception):
            return self.fail(session, f"search: {in_words(hits)}")
        turn = session.turns[-1]
        try:
            turn.hits = hits
            if turn.action.kind == "answer":
                session.answer = turn.action.answer
            session.done = self.stop(session, self.settings)
            if not session.done:
                self._show(session, turn)
        except Exception as error:  # a broken page file must not end the other sessions
            return self.fail(session, f"observation: {in_words(error)}")
        finally:
            now = time.perf_counter()
            turn.seconds, session.turn_started = now - session.turn_started, now

    def query_of(self, session: Session) -> str:
        return session.turns[-1].action.query or ""

    def _show(self, session: Session, turn: Turn) -> None:
        observer = self.observers.get(turn.action.kind)
        try:
            if turn.action.kind == "invalid" or observer is None:
                raise InvalidAction(turn.action.problem or f"{turn.action.kind} is not an action here.")
            seen = _checked(turn.action.kind, observer(session, turn.action, turn.hits))
        except InvalidAction as invalid:
            turn.action = turn.action.refused(str(invalid))
            seen = [
                Observation(kind="notice", text=f"{said_of_end(turn)}Invalid action: {invalid} {self.settings.formats}")
            ]
        session.forced = len(session.turns) >= self.settings.max_turns
        if session.forced:
            last = seen[-1]
            seen[-1] = last.model_copy(update={"text": f"{last.text} {self.settings.forced_text}".strip()})
        turn.observation, turn.also_shown = seen[0], seen[1:]
        session.conversation.append(observation_message(seen, self.pages))


def _checked(kind: str, seen: Any) -> list[Observation]:
    """What an action showed, in words that a file can hold. Raises TypeError where that is no list of observations."""
    if not (isinstance(seen, list | tuple) and seen and all(isinstance(one, Observation) for one in seen)):
        raise TypeError(f"the action {kind} should show a list of at least one Observation, and gave {seen!r:.80}")
    clean = without_surrogates
    return [one.model_copy(update={"caption": clean(one.caption), "text": clean(one.text)}) for one in seen]


def replay(trajectory: Trajectory, pages: PageStore) -> list[str]:
    """Run a trajectory's texts and hits through the environment again; every difference in words, none when it holds.

    Finds records made by other rules: another parser, another geometry, changed page images. A trajectory that ended
    in an error is replayed as far as it came. Raises ValueError for VimRAG's, and for an action that is not there.
    """
    if trajectory.graph is not None:
        raise ValueError(f"trajectory {trajectory.uid} is VimRAG's: memory_replay.contexts replays it")
    known = {name: value for name, value in trajectory.settings.items() if name in Settings.model_fields}
    environment = Environment(None, pages, Settings.model_validate(known))
    session = environment.start(trajectory.reference or trajectory.question, trajectory.uid)
    differences: list[str] = []
    for turn in trajectory.turns:
        if session.done:
            differences.append(f"turn {turn.index}: the session had ended before it")
            break
        environment.accept(session, Generation(turn.text, finish_reason=turn.finish_reason or "stop"))
        environment.observe(session, turn.hits)
        again = session.turns[-1]
        if session.error is not None and trajectory.status == "error":
            continue
        for name in ("thought", "action", "observation", "also_shown", "forced"):
            new, old = getattr(again, name), getattr(turn, name)
            if new != old:
                differences.append(f"turn {turn.index}: {name} is {new!r}, not {old!r}")
    if session.answer != trajectory.answer:
        differences.append(f"the answer is {session.answer!r}, not {trajectory.answer!r}")
    return differences
