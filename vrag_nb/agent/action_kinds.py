"""An action of one's own as one class: its tag, how its argument is read, what it shows, how a model is told of it.

    class NextPage(ActionKind):
        tag = "next"
        usage = "<next></next> shows the page that follows the one shown last."

        def observe(self, session, action, hits):
            ...

    Environment(engine, corpus, settings, actions=[NextPage])        # or in a profile, for everything that acts in it:
    agent: {actions: ["my_module:NextPage"]}

The parser then reads `<next>...</next>`, policies end a turn at `</next>`, and trajectories record the action under its
tag. The prompt and the notices about wrong formats end with `usage`, unless they name the tag themselves.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from vrag_nb.agent.actions import Action, Grammar
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.trajectory import Observation
from vrag_nb.loading import load_object
from vrag_nb.records import Hit

if TYPE_CHECKING:  # which names the kinds of a task
    from vrag_nb.agent.observers import Session
    from vrag_nb.agent.task_settings import Settings


class ActionKind(ABC):
    """A kind of action. tag: what stands in the angle brackets (`actions.Grammar` says which tags can be). usage: a
    sentence for the model. searches: whether its `query` is to be searched for before it is carried out.

    An environment makes one object for all its sessions, so what belongs to a question is in the session.
    """

    tag: ClassVar[str]
    usage: ClassVar[str] = ""
    searches: ClassVar[bool] = False

    def __init__(self, pages: Pages, settings: Settings) -> None:
        self.pages, self.settings = pages, settings

    @classmethod
    def read(cls, argument: str) -> Action:
        """What stands between the tags, stripped, as an action of this kind. Raises InvalidAction to tell the model."""
        return Action(kind=cls.tag, argument=argument or None)

    @abstractmethod
    def observe(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        """Carry the action out: what is shown, at least one observation. `hits`: of its search, where it has one.

        Raises InvalidAction to tell the model what is wrong.
        """


def load_kinds(names: Sequence[str]) -> list[type[ActionKind]]:
    """The classes at `module:Class`. Raises ValueError that names the one which is not there or is no such class."""
    found = []
    for name in names:
        cls = load_object(name, "the action")
        if not (isinstance(cls, type) and issubclass(cls, ActionKind)):
            raise ValueError(f"action {name!r} is no subclass of ActionKind")
        if not hasattr(cls, "tag"):
            raise ValueError(f"action {name!r} has no tag: set what stands in its angle brackets")
        if inspect.isabstract(cls):
            raise ValueError(f"action {name!r} has no method {', '.join(sorted(cls.__abstractmethods__))}: define it")
        found.append(cls)
    return found


def name_of(kind: type[ActionKind]) -> str:
    """Where it is found: `module:Class`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def grammar_with(kinds: Sequence[type[ActionKind]]) -> Grammar:
    """The grammar of the built-in actions and these. Raises ValueError for a tag that cannot be, or that two have."""
    readers = {kind.tag: kind.read for kind in kinds}
    if len(readers) < len(kinds):
        raise ValueError(f"two actions have one tag: {', '.join(map(name_of, kinds))}")
    return Grammar(readers)


def telling_of(text: str, kinds: Sequence[type[ActionKind]], between: str) -> str:
    """A text for the model with the usage of every kind whose tag it does not name."""
    told = [kind.usage for kind in kinds if kind.usage and f"<{kind.tag}>" not in text]
    return between.join([text, " ".join(told)]) if told else text
