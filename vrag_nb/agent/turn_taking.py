"""How an environment takes many sessions one turn further at once, each one's errors staying with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from vrag_nb.agent.policy import Generation
from vrag_nb.agent.searching import Engine, in_words, search_each
from vrag_nb.records import Hit


class Going(Protocol):
    """A session."""

    done: bool


S = TypeVar("S", bound=Going)


class TurnTaking(ABC, Generic[S]):
    """An environment whose sessions may have to be searched for; `settings` say how far down the ranked list."""

    engine: Engine | None
    settings: Any

    @abstractmethod
    def accept(self, session: S, generation: Generation) -> Any:
        """Parse a generation into the session's next turn; None when the policy failed, which ends the session."""

    @abstractmethod
    def wants_search(self, session: S) -> bool:
        """Whether what the session did last has to be searched for."""

    @abstractmethod
    def query_of(self, session: S) -> str:
        """What a session that wants a search asks for."""

    @abstractmethod
    def observe(self, session: S, hits: list[Hit] | Exception) -> None:
        """Carry out what the session did last. `hits`: the search's result or failure."""

    @abstractmethod
    def fail(self, session: S, error: str) -> None:
        """End a session with an error."""

    def advance(self, sessions: Sequence[S], generations: Sequence[Generation]) -> None:
        """Take every session one turn further, searching for all of them at once. Errors stay with their session."""
        for session, generation in zip(sessions, generations, strict=True):
            try:
                self.accept(session, generation)
            except Exception as error:  # a parser of the user's own
                self.fail(session, f"parser: {in_words(error)}")
        searching = [session for session in sessions if self.wants_search(session)]
        hits = search_each(self.engine, list(map(self.query_of, searching)), self.settings.top_k)
        found = dict(zip(map(id, searching), hits, strict=True))
        for session in sessions:
            if session.done:  # one that failed may not even have a turn to look at
                continue
            try:
                self.observe(session, found.get(id(session), []))
            except Exception as error:  # an environment of the user's own
                self.fail(session, f"observation: {in_words(error)}")

    def search(self, session: S) -> list[Hit] | Exception:
        """The hits of what one session asks for, or why there are none."""
        return search_each(self.engine, [self.query_of(session)], self.settings.top_k)[0]
