"""Single steps of VimRAG's expert as training samples, on pages drawn a moment ago.

The expert (`agent.memory_expert.MemoryPlanner`) plays in the real environment (`agent.memory_environment`), over the
pages of one deck held in memory and a search that is wrong now and then. Sampled trajectories of a corpus show a model
a few hundred pages, which it comes to know by heart; here every one is new, so what is written down has to be read.
"""

from __future__ import annotations

import random
from typing import Literal

from PIL import Image as PILImage

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_expert import MemoryPlanner
from vrag_nb.agent.memory_session import MemorySettings
from vrag_nb.agent.policy import Conversation, Generation, Image
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DrawnPage, look_for
from vrag_nb.nano.expert import DeckPages, FlawedSearch
from vrag_nb.nano.samples import Sample
from vrag_nb.records import Question, page_id

Kind = Literal["search", "found", "missed", "answer"]
WEIGHTS: dict[Kind, float] = {"search": 1.0, "found": 5.0, "missed": 2.5, "answer": 1.5}  # of the kinds of steps
SETTINGS = MemorySettings(top_k=2, max_steps=12, min_pixels=BUDGET.min_pixels, max_pixels=BUDGET.max_pixels)


class MemorySteps:
    """Draws single steps of the expert: the context of a cycle, and what it says there.

    Mostly of a question whose answer can be read when its page is shown whole (`legible`: this share), for nothing can
    be cropped here; of the others the steps are learned, not the reading. Any kind of memory, multimodal half the time.
    """

    def __init__(self, pool: DeckPool, prompt: str = "vimrag_nano", legible: float = 0.85, recall: float = 0.5) -> None:
        self.pool, self.prompt, self.legible, self.recall = pool, prompt, legible, recall

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        pages, questions = self.pool.pick(rng)
        plain = [one for one in questions if not one.needs_crop and len(one.needed_facts) <= 1]
        question = rng.choice(plain if plain and rng.random() < self.legible else questions)
        steps = self._played(question, pages, rng)
        if not steps:
            return []
        kinds = [_kind(question, said) for _, said in steps]
        chosen = rng.choices(range(len(steps)), [WEIGHTS[kind] for kind in kinds])[0]
        return [_sample(kinds[chosen], question, pages, *steps[chosen])]

    def _played(self, question: Question, pages: list[DrawnPage], rng: random.Random) -> list[tuple[Conversation, str]]:
        """What the expert read and said in each of its steps; nothing where it did not get to the right answer."""
        memory = rng.choice(["multimodal", "multimodal", "graph", "summary"])
        store = DeckPages(question.document, pages)
        gold = {
            " ".join(words.split()): page_id(question.document, fact["page"])
            for fact in question.needed_facts
            for words in (question.query, fact["search_hint"], *fact.get("other_hints", []))
        }
        engine = FlawedSearch(store.names, gold, rng, self.recall)
        settings = SETTINGS.model_copy(update={"memory": memory})
        environment = MemoryEnvironment(engine, store, settings, self.prompt)
        expert, session, steps = MemoryPlanner([question]), environment.start(question), []
        while not session.done:
            said: Generation = expert.generate([session.conversation])[0]
            steps.append((session.conversation, said.text))
            environment.advance([session], [said])
        return steps if session.error is None and session.answer == question.reference_answer else []


def _kind(question: Question, said: str) -> Kind:
    if '"add_answer_node"' in said:
        return "answer"
    if '"add_search_node"' in said:
        return "search"
    return "found" if '"is_useful": true' in said else "missed"


def _sample(kind: Kind, question: Question, pages: list[DrawnPage], read: Conversation, said: str) -> Sample:
    """One step; where to look on the gold page and what stands on all of them, if none is a remembered, smaller one."""
    turns: list[tuple[str, list[str | PILImage.Image]]] = [
        (one.role, [p.resolved() if isinstance(p, Image) else p.text for p in one.parts]) for one in read
    ]
    numbers = [[_number(p.page_id) for p in one.parts if isinstance(p, Image)] for one in read]
    turns.append(("assistant", [said]))
    learned = len(turns) - 1
    if len(numbers) < 2 or any(numbers[:-1]):
        return Sample(kind, turns, learn_from=learned)
    shown = numbers[-1]
    looks = [look_for(question, pages[number - 1], number, learned, place) for place, number in enumerate(shown)]
    words, glyphs = zip(
        *((pages[number - 1].words_in(), pages[number - 1].glyphs_in()) for number in shown), strict=True
    )
    return Sample(kind, turns, learned, words=words, looks=[look for look in looks if look], glyphs=glyphs)


def _number(name: str | None) -> int:
    return int((name or "").rpartition("_")[2])
