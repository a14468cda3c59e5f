"""The systems an evaluation compares: one class each, by name in `SYSTEMS`.

    no_retrieval    the question alone; the model must answer in its first turn
    vanilla_top1    one search with the question itself; its best page is shown; the model must answer
    vanilla_top3    the same with the best three pages, side by side in one user turn
    agent_no_crop   the whole loop, but a <bbox> is an invalid action that shows nothing
    agent           the whole loop

All get the same policy, prompt, search engine, pixel budget, sampling seed and parser; they differ in the environment
only. "Must answer" is the environment's forced turn: the model is told that no action is left (`Settings.forced_text`),
and whatever else than an answer it writes is no answer, which counts as wrong. That is part of what is measured: a
model that was only ever trained to search first says so here, and `behaviour.finish_rate` shows how often it did.

Vanilla retrieval is written into the trajectory as a search turn of its own (the first turn, without token ids, which
no model generated), so that its record is drawn, replayed and counted like every other.

The papers' baselines - Search-R1, ReAct, text retrieval, UniDoc-RL's select, an evidence ledger - are in
`evaluation.systems`, one file each, and are found by name like these. A further system is a subclass of `System` with a
name: a class in a file of that package and nothing else, or, outside of it, under `@register` or as "module:Class".
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from vrag_nb.agent.actions import Action
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import Observer, Session, refuse_crop
from vrag_nb.agent.pages import Pages, PageStore
from vrag_nb.agent.policy import Generation, Policy
from vrag_nb.agent.rollout import World, rollout
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory, Turn, assistant_message, opening
from vrag_nb.loading import load_object
from vrag_nb.records import Question


@dataclass(frozen=True)
class Context:
    """What all systems of one evaluation share. `prompt`: a template's name or path; `seed`: of the sampling.

    memory: VimRAG's task where the evaluation is of that agent. `settings` and `prompt` are then what is left for
    VRAG's systems beside it (`evaluate.context_of`), and `memory_prompt` is VimRAG's, "" for each system's own.
    """

    policy: Policy
    engine: Engine
    pages: PageStore
    settings: Settings
    prompt: str | Path = "vrag"
    seed: int = 0
    concurrency: int = 16
    progress: bool = True
    memory: MemorySettings | None = None
    memory_prompt: str | Path = ""


class System(ABC):
    """A way of answering questions with a policy: an environment of its own, driven by `agent.rollout`."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""  # a few words, for tables
    prompt: ClassVar[str] = ""  # a template of its own; by default the evaluation's
    told_gold: ClassVar[bool] = False  # whether what it does depends on a question's gold, as an upper bound's does
    ready_made_turns: ClassVar[int] = 0  # turns at the beginning of its trajectories that no model generated

    @abstractmethod
    def environment(self, context: Context) -> World[Any]:
        """The environment its sessions run in."""

    def template(self, context: Context) -> str | Path:
        """The name or path of the prompt template its sessions open with."""
        return self.prompt or context.prompt

    def run(self, context: Context, questions: Sequence[Question], out: Path) -> list[Trajectory]:
        """Answer `questions`, appending to the JSON lines file `out` and going on from what it holds.

        Trajectories come in the order of the questions. A failure ends its own question with status "error".
        """
        return rollout(
            context.policy,
            self.environment(context),
            questions,
            out,
            concurrency=context.concurrency,
            seed=context.seed,
            progress=context.progress,
        )


SYSTEMS: dict[str, type[System]] = {}


def agent_system(settings: Settings | MemorySettings) -> str:
    """The name of the system that plays the loop of the agent whose task this is."""
    if not isinstance(settings, MemorySettings):
        return "agent"
    return "vimrag" if settings.memory == "energy" else f"vimrag_{settings.memory}"


def register(cls: type[System]) -> type[System]:
    """Enter a system under its `name`. Raises ValueError for an empty name or one that is taken."""
    if not cls.name or cls.name in SYSTEMS:
        raise ValueError(f"{cls.__name__}: the name {cls.name!r} is empty or taken")
    SYSTEMS[cls.name] = cls
    return cls


def known_systems() -> dict[str, type[System]]:
    """Every system by name: those registered, then those of the files in `evaluation.systems`.

    Raises ValueError when two have one name.
    """
    from vrag_nb.evaluation import systems

    found = dict(SYSTEMS)
    for file in sorted(pkgutil.iter_modules(systems.__path__), key=lambda file: file.name):
        module = importlib.import_module(f"{systems.__name__}.{file.name}")
        for cls in _systems_of(module):
            if found.setdefault(cls.name, cls) is not cls:
                raise ValueError(f"{module.__name__}: the name {cls.name!r} is taken by {found[cls.name].__module__}")
    return found


def find_system(name: str) -> System:
    """A system by name, or a class of one's own as "module:Class". Raises ValueError that lists the names there are."""
    if name in SYSTEMS:
        return SYSTEMS[name]()
    if ":" in name:
        return _class_at(name)()
    known = known_systems()
    if name not in known:
        raise ValueError(f"unknown system {name!r}; known: {', '.join(known)}")
    return known[name]()


def _systems_of(module: ModuleType) -> list[type[System]]:
    """The systems a module defines itself, in its order."""
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, System)]
    return [cls for cls in classes if cls.__module__ == module.__name__ and cls.name]


def _class_at(path: str) -> type[System]:
    cls = load_object(path, "system")
    if not (isinstance(cls, type) and issubclass(cls, System) and cls.name):
        raise ValueError(f"system {path!r} is no subclass of System with a name")
    if inspect.isabstract(cls):
        raise ValueError(f"system {path!r} has no method {', '.join(sorted(cls.__abstractmethods__))}: define it")
    return cls


class _OneTurnEnvironment(Environment, ABC):
    """Prepares a session so that its next turn is the forced one. Failing to prepare ends that session only."""

    @abstractmethod
    def prepare(self, session: Session) -> None:
        """Show the session what it may see, and make its next turn the forced one."""

    def start(self, question: Question | str, uid: str | None = None) -> Session:
        session = super().start(question, uid)
        try:
            self.prepare(session)
        except Exception as error:
            self.fail(session, f"opening: {type(error).__name__}: {error}")
        return session

    def accept(self, session: Session, generation: Generation) -> Action | None:
        """As always, but a session that ended before its first turn takes none."""
        return None if session.done else super().accept(session, generation)


class NoRetrievalEnvironment(_OneTurnEnvironment):
    """The model is told at the end of the prompt that it must answer. Settings: `max_turns` is taken as 0."""

    def prepare(self, session: Session) -> None:
        session.prompt = f"{session.prompt}\n\n{self.settings.forced_text}"
        session.conversation = opening(session.prompt, self.settings.system, self.grammar)
        session.forced = True


class VanillaEnvironment(_OneTurnEnvironment):
    """Shows the best `images_per_search` pages for the question before the first turn, which must answer."""

    def prepare(self, session: Session) -> None:
        query = session.question.query
        action = Action(kind="search", query=query)
        turn = Turn(index=0, text=f"<search>{query}</search>", thought="", action=action)
        session.turns.append(turn)
        session.conversation.append(assistant_message(turn))
        self.observe(session, self.search(session))  # max_turns is 1: what it shows ends with the forced text


def no_crop_environment(
    engine: Engine | None,
    corpus: Path | Pages,
    settings: Settings,
    prompt: str | Path,
    observers: Mapping[str, Observer] | None = None,
) -> Environment:
    """The loop of search and answer, in which a <bbox> is an invalid action that shows nothing; as `Environment`."""
    settings = settings.model_copy(update={"formats": "Use <search>query</search> or <answer>answer</answer>."})
    return Environment(engine, corpus, settings, prompt, observers={"bbox": refuse_crop, **(observers or {})})


@register
class NoRetrieval(System):
    name = "no_retrieval"
    title = "the question alone"

    def environment(self, context: Context) -> Environment:
        settings = context.settings.model_copy(update={"max_turns": 0})
        return NoRetrievalEnvironment(None, context.pages, settings, context.prompt)


@register
class VanillaTop1(System):
    name = "vanilla_top1"
    title = "best page, answer at once"
    ready_made_turns = 1
    images: ClassVar[int] = 1

    def environment(self, context: Context) -> Environment:
        changed = {
            "max_turns": 1,
            "images_per_search": self.images,
            "top_k": max(context.settings.top_k, self.images),
        }
        settings = context.settings.model_copy(update=changed)
        return VanillaEnvironment(context.engine, context.pages, settings, context.prompt)


@register
class VanillaTop3(VanillaTop1):
    name = "vanilla_top3"
    title = "best three pages, answer at once"
    images = 3


@register
class AgentNoCrop(System):
    name = "agent_no_crop"
    title = "search, no crop"

    def environment(self, context: Context) -> Environment:
        return no_crop_environment(context.engine, context.pages, context.settings, context.prompt)


@register
class Agent(System):
    name = "agent"
    title = "search and crop"

    def environment(self, context: Context) -> Environment:
        return Environment(context.engine, context.pages, context.settings, context.prompt)
