"""The agent in one object: ask a question, get a trajectory, or watch it happen.

agent = VRAG(policy, engine, "data/corpora/decks", prompt="nano", max_turns=6)
agent.ask("What was revenue in 2019?").answer
for event in agent.run("What was revenue in 2019?"):
    print(event.kind, event.text)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image as PILImage

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.observers import Session
from vrag_nb.agent.pages import Pages, PageStore
from vrag_nb.agent.policy import Policy, check_factor, generate_safely, turn_seed
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation, Trajectory, Turn
from vrag_nb.records import Hit, Question, as_question


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    kind: think, search, bbox, answer, invalid, or the tag of an action of one's own - what the model did (`text`,
    `turn`); page, crop, notice - what it was shown (`observation`, `image` as it saw it, `hits` behind a page); error;
    end, with the whole `trajectory`.
    """

    kind: str
    turn: int
    text: str = ""
    box: tuple[float, float, float, float] | None = None  # shown pixels of the last image
    hits: list[Hit] = field(default_factory=list, repr=False)
    observation: Observation | None = None
    image: PILImage.Image | None = field(default=None, repr=False, compare=False)
    trajectory: Trajectory | None = field(default=None, repr=False)


class VRAG:
    """A policy, a search engine and a corpus, ready to be asked.

    corpus: a prepared folder. prompt: a template's name or path. Options are those of `observers.Settings`
    (max_turns, top_k, padding, min_pixels, max_pixels, ...). Raises what `Environment` raises, and ValueError for a
    factor that is not the policy's.
    """

    def __init__(
        self,
        policy: Policy,
        engine: Engine | None,
        corpus: Path | str | Pages,
        prompt: str | Path = "vrag",
        *,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        pages = PageStore(Path(corpus)) if isinstance(corpus, str | Path) else corpus
        self.policy, self.seed = policy, seed
        self.environment = Environment(engine, pages, Settings(**settings), prompt)
        check_factor(policy, self.environment.settings.factor)

    def run(self, question: str | Mapping[str, Any] | Question) -> Iterator[Event]:
        """The events of one question as they happen; the last one is `end`.

        question: its text, `{"query": text}`, or a `Question`. Raises ValueError for one without text; whatever fails
        later is an event.
        """
        return self._events(self.environment.start(as_question(question)))

    def ask(self, question: str | Mapping[str, Any] | Question) -> Trajectory:
        """Work a question through. Failures are in the trajectory's status and error, not raised."""
        *_, last = self.run(question)
        assert last.trajectory is not None
        return last.trajectory

    def _events(self, session: Session) -> Iterator[Event]:
        while not session.done:
            yield from self._turn(session)
        trajectory = self.environment.finish(session, self.policy.name)
        if trajectory.error is not None:
            yield Event("error", len(session.turns), trajectory.error)
        yield Event("end", len(session.turns), trajectory.answer or "", trajectory=trajectory)

    def _turn(self, session: Session) -> Iterator[Event]:
        environment = self.environment
        seeds = [turn_seed(self.seed, session.uid, len(session.turns))]
        [generation] = generate_safely(self.policy, [session.conversation], seeds)
        environment.receive(session, generation)
        if session.done:
            return
        turn = session.turns[-1]
        if turn.thought:
            yield Event("think", turn.index, turn.thought)
        yield _acted(turn)
        environment.carry_out(session, environment.search(session) if environment.wants_search(session) else [])
        if turn.observation is not None:
            yield from _shown(turn, session)


def _acted(turn: Turn) -> Event:
    action = turn.action
    return Event(action.kind, turn.index, action.words, action.box)


def _shown(turn: Turn, session: Session) -> Iterator[Event]:
    images = {(image.page_id, image.crop_box): image.pixels for image in session.conversation[-1].images}
    for seen in turn.observations:
        image = images.get((seen.page_id, seen.crop_box))
        yield Event(seen.kind, turn.index, seen.text, hits=turn.hits, observation=seen, image=image)
