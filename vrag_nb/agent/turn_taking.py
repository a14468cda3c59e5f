"""What environments of any kind of agent share: how a session begins and ends, and how many go one turn further.

An environment holds no state of any question: that lives in its sessions, so one serves any number of them and of
threads. Whatever fails stays with the session it concerns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from vrag_nb.agent.pages import Pages, PageStore
from vrag_nb.agent.policy import Generation
from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.agent.searching import Engine, in_words, search_each
from vrag_nb.agent.trajectory import Played, Trajectory, recorded
from vrag_nb.records import Hit, Question, without_surrogates


class Going(Played, Protocol):
    """A session, which may be over."""

    done: bool
    error: str | None


S = TypeVar("S", bound=Going)


class TurnTaking(ABC, Generic[S]):
    """An environment over one corpus. Stateless and thread-safe as long as its engine is.

    engine: searches the corpus; None for one that only replays. corpus: a prepared folder, or other `Pages`. settings:
    what the task is; of all they have a pixel `budget` and `top_k`, how far down the ranked list a search looks.
    prompt: a template's name or path. Raises FileNotFoundError / ValueError for a corpus or prompt that is not there.
    """

    settings: Any

    def __init__(self, engine: Engine | None, corpus: Path | str | Pages, settings: Any, prompt: str | Path) -> None:
        self.engine = engine
        self.pages: Pages = PageStore(Path(corpus)) if isinstance(corpus, str | Path) else corpus
        self.settings = settings
        self.template = load_prompt(prompt)

    def start(self, question: Question | str, uid: str | None = None) -> S:
        """A new session. A bare string gets a uid made from its text; `uid` names one of several samples."""
        question = Question.asked(question) if isinstance(question, str) else question
        return self.begin(uid or question.uid, question, fill_prompt(self.template, question.query))

    @abstractmethod
    def begin(self, uid: str, question: Question, prompt: str) -> S:
        """A session before its first turn; `prompt` is filled in."""

    def accept(self, session: S, generation: Generation) -> Any:
        """Parse a generation into the session's next turn; None when the policy failed, which ends the session."""
        generation = generation.storable()
        if generation.error is not None:
            return self.fail(session, f"policy: {generation.error}")
        return self.take(session, generation)

    @abstractmethod
    def take(self, session: S, generation: Generation) -> Any:
        """Parse what a policy wrote into the session's next turn, and its action."""

    @abstractmethod
    def wants_search(self, session: S) -> bool:
        """Whether what the session did last has to be searched for."""

    @abstractmethod
    def query_of(self, session: S) -> str:
        """What a session that wants a search asks for."""

    @abstractmethod
    def observe(self, session: S, hits: list[Hit] | Exception) -> None:
        """Carry out what the session did last. `hits`: the search's result or failure."""

    def fail(self, session: S, error: str) -> None:
        """End a session with an error."""
        session.error, session.done = without_surrogates(error), True

    def finish(self, session: S, policy: str = "") -> Trajectory:
        """The record of a session."""
        return recorded(session, self.settings.model_dump(mode="json"), policy, self.memory_of(session))

    def memory_of(self, session: S) -> list[dict[str, Any]] | None:
        """The memory graph of a session, for its record; None where the agent keeps none."""
        return None

    def advance(self, sessions: Sequence[S], generations: Sequence[Generation]) -> None:
        """Take every session one turn further, searching for all of them at once. Errors stay with their session."""
        for session, generation in zip(sessions, generations, strict=True):
            self.receive(session, generation)
        searching = [session for session in sessions if self.wants_search(session)]
        hits = search_each(self.engine, list(map(self.query_of, searching)), self.settings.top_k)
        found = dict(zip(map(id, searching), hits, strict=True))
        for session in sessions:
            self.carry_out(session, found.get(id(session), []))

    def receive(self, session: S, generation: Generation) -> None:
        """`accept`, whose errors end the session."""
        try:
            self.accept(session, generation)
        except Exception as error:  # a parser of the user's own, a generation that holds anything
            self.fail(session, f"parser: {in_words(error)}")

    def carry_out(self, session: S, hits: list[Hit] | Exception) -> None:
        """`observe`, whose errors end the session."""
        if session.done:  # one that failed may not even have a turn to look at
            return
        try:
            self.observe(session, hits)
        except Exception as error:  # an environment of the user's own
            self.fail(session, f"observation: {in_words(error)}")

    def search(self, session: S) -> list[Hit] | Exception:
        """The hits of what one session asks for, or why there are none."""
        return search_each(self.engine, [self.query_of(session)], self.settings.top_k)[0]
