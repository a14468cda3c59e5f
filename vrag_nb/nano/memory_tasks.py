"""Single steps of VimRAG's expert as training samples, on pages drawn a moment ago.

The expert (`learning.memory_expert.MemoryPlanner`) plays in the real environment (`agent.memory_environment`), over the
pages of one deck held in memory and a search that is wrong now and then. Sampled trajectories of a corpus show a model
a few hundred pages, which it comes to know by heart; here every one is new, so what is written down has to be read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, Literal

from PIL import Image as PILImage

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.policy import Conversation, Generation, Image
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import MemoryKind, MemorySettings
from vrag_nb.evaluation.long_questions import QUERY_TYPE, long_questions
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DrawnPage, look_for
from vrag_nb.nano.expert import DeckPages, FlawedSearch
from vrag_nb.nano.film_tasks import FilmPages
from vrag_nb.nano.samples import Sample, places
from vrag_nb.nano.scribbles import random_word
from vrag_nb.records import Question, page_id

Kind = Literal["search", "found", "missed", "answer"]
Weights = dict[Kind, float]  # of the kinds of steps
WEIGHTS: Weights = {"search": 1.0, "found": 5.0, "missed": 2.5, "answer": 1.5}
WORDED: Weights = {"search": 2.0, "found": 0.0, "missed": 0.0, "answer": 3.0}  # these two show no image
SETTINGS = MemorySettings(
    top_k=1, max_steps=20, min_pixels=BUDGET.min_pixels, max_pixels=BUDGET.max_pixels, caption="{query}"
)
FILM_SETTINGS = SETTINGS.model_copy(update={"items": ("image", "video")})
MEMORIES: list[MemoryKind] = ["multimodal", "multimodal", "graph", "summary"]
PROMPT = "vimrag_nano"
TAKEN = 2  # steps of a trajectory
ABSENT = 0.05  # of the questions that are read on whole pages: those that nothing answers
RENAMED = 0.5  # of the questions in words, and of the words of such a question
WORD = re.compile(r"[A-Za-z]{3,}")
Step = tuple[Conversation, str]  # what the expert read, and what it said then


class MemorySteps:
    """Draws single steps of the expert, two of a trajectory: the context of a cycle, and what it says there.

    `legible`: the share of questions whose answer can be read when its page is shown whole, for nothing can be cropped
    here; of others the steps are learned, not the reading. Any kind of memory, multimodal half the time.
    long: the share of questions that are two to four asked as one, each of which is then searched for.
    in_words: only memories in words, and only steps that show no image: a search and an answer are a sixth of the
    tokens of what is written down about pages, and all there is to learn about long questions. Half of these questions
    are about other words than those of any deck, so that a search has to repeat what is asked.
    """

    def __init__(
        self,
        pool: DeckPool,
        prompt: str = PROMPT,
        legible: float = 1.0,
        recall: float = 0.5,
        long: float = 0.0,
        in_words: bool = False,
    ) -> None:
        self.pool, self.prompt, self.legible, self.recall, self.long = pool, prompt, legible, recall, long
        self.in_words = in_words
        self.memories, self.weights = (MEMORIES[2:], WORDED) if in_words else (MEMORIES, WEIGHTS)

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        pages, questions = self.pool.pick(rng)
        asked = self._legible(questions, rng) if rng.random() < self.legible else questions
        if not asked:
            return []
        if self.in_words and rng.random() < RENAMED:
            asked = renamed(asked, rng)
        question, several = rng.choice(asked), rng.random() < self.long
        if several and (joined := _several(asked, rng)):
            question = joined
        store = DeckPages(question.document, pages)
        gold = {
            " ".join(words.split()): page_id(question.document, fact["page"])
            for fact in question.needed_facts
            for words in (question.query, fact["search_hint"], *fact.get("other_hints", []))
        }
        engine = FlawedSearch(store.names, gold, rng, self.recall)
        settings = SETTINGS.model_copy(update={"memory": rng.choice(self.memories)})
        chosen = _chosen(_played(question, store, engine, settings, self.prompt), rng, self.weights)
        return [_sample(kind, question, pages, *step) for kind, step in chosen]

    def _legible(self, questions: Sequence[Question], rng: random.Random) -> Sequence[Question]:
        """Questions about what can be read on a whole page, now and then those without an answer; none of a report,
        whose print is too small for any."""
        readable = [one for one in questions if len(one.needed_facts) == 1 and not one.needs_crop]
        absent = [one for one in questions if not one.needed_facts]
        return absent if readable and absent and rng.random() < ABSENT else readable


class FilmSteps:
    """Draws single steps of the expert on the film of a deck, among whose pages a search finds the chunks.

    boxes: the share of questions about a box that is on screen for three seconds; the others are about the deck's
    pages, whose print is small in a frame.
    """

    def __init__(self, pool: DeckPool, prompt: str = PROMPT, boxes: float = 0.8, recall: float = 0.5) -> None:
        self.pool, self.prompt, self.boxes, self.recall = pool, prompt, boxes, recall

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        store = FilmPages(*self.pool.pick(rng), seed=rng.randrange(2**31))
        about_boxes = [one for one in store.questions if one.meta_info.source_type == "overlay"]
        question = rng.choice(about_boxes if about_boxes and rng.random() < self.boxes else store.questions)
        question = _with_second_try(question)
        gold = {words: question.gold_page_ids[0] for words in (question.query, _again(question.query))}
        engine = FlawedSearch(store.names, gold, rng, self.recall)
        settings = FILM_SETTINGS.model_copy(update={"memory": rng.choice(MEMORIES)})
        chosen = _chosen(_played(question, store, engine, settings, self.prompt), rng)
        return [
            Sample(f"film {kind}", [*_turns(read), ("assistant", [said])], learn_from=len(read), about=question.uid)
            for kind, (read, said) in chosen
        ]


def _again(query: str) -> str:
    return f"Video: {query}"


def _with_second_try(question: Question) -> Question:
    """A question about a film, with words for a search after one that missed."""
    fact = {"page": question.meta_info.reference_page[0], "search_hint": _again(question.query)}
    return question.model_copy(update={"meta_info": question.meta_info.model_copy(update={"needed_facts": [fact]})})


def renamed(questions: Sequence[Question], rng: random.Random) -> list[Question]:
    """The same questions with half of their words, but no number and nothing of an answer, replaced by random ones:
    each by the same one throughout."""
    others: dict[str, str] = {}

    def other(found: re.Match[str]) -> str:
        word = found[0]
        return others.setdefault(word, random_word(rng) if rng.random() < RENAMED else word)

    def told(fact: dict[str, Any]) -> dict[str, Any]:
        hints = [WORD.sub(other, hint) for hint in fact.get("other_hints", [])]
        return {**fact, "search_hint": WORD.sub(other, fact["search_hint"]), "other_hints": hints}

    return [
        one.model_copy(
            update={
                "query": WORD.sub(other, one.query),
                "meta_info": one.meta_info.model_copy(update={"needed_facts": [told(f) for f in one.needed_facts]}),
            }
        )
        for one in questions
    ]


def _several(questions: Sequence[Question], rng: random.Random) -> Question | None:
    """Two to four of the questions as one, each first searched for in its own words; None for too few pages."""
    try:
        joined = rng.choice(long_questions(questions, rng.choice([2, 3, 4]), rng.randrange(2**31)))
    except ValueError:
        return None
    if not joined.needed_facts:
        return None
    facts = [
        {**fact, "search_hint": fact["other_hints"][0], "other_hints": [fact["search_hint"]]}
        for fact in joined.needed_facts
    ]
    meta = joined.meta_info.model_copy(update={"needed_facts": facts})
    return joined.model_copy(update={"meta_info": meta})


def _played(question: Question, store: DeckPages, engine: Engine, settings: MemorySettings, prompt: str) -> list[Step]:
    """The expert's steps; none where it did not get to the right answer."""
    environment = MemoryEnvironment(engine, store, settings, prompt)
    expert, session, steps = MemoryPlanner([question], asked_only=True), environment.start(question), []
    while not session.done:
        said: Generation = expert.generate([session.conversation])[0]
        steps.append((session.conversation, said.text))
        environment.advance([session], [said])
    return steps if session.error is None and session.answer == question.reference_answer else []


def _chosen(steps: Sequence[Step], rng: random.Random, weights: Weights = WEIGHTS) -> list[tuple[Kind, Step]]:
    """Up to TAKEN of the steps, by their kinds' weights, and their kinds: to play all of them is what costs time."""
    left = [(kind, step) for step in steps if weights[kind := kind_of(step[1])]]
    chosen: list[tuple[Kind, Step]] = []
    while left and len(chosen) < TAKEN:
        number = rng.choices(range(len(left)), [weights[kind] for kind, _ in left])[0]
        chosen.append(left.pop(number))
    return chosen


def kind_of(said: str) -> Kind:
    """What the expert does when it says this."""
    if '"add_answer_node"' in said:
        return "answer"
    if '"add_search_node"' in said:
        return "search"
    return "found" if '"is_useful": true' in said else "missed"


def _sample(kind: Kind, question: Question, pages: list[DrawnPage], read: Conversation, said: str) -> Sample:
    """One step; where to look on the gold page and what stands on all of them, if none is a remembered, smaller one."""
    turns = _turns(read)
    numbers = [[_number(p.page_id) for p in one.parts if isinstance(p, Image)] for one in read]
    turns.append(("assistant", [said]))
    learned = len(turns) - 1
    if len(numbers) < 2 or any(numbers[:-1]):
        return Sample(kind, turns, learn_from=learned, about=question.uid)
    shown = numbers[-1]
    looks = [look_for(question, pages[number - 1], number, learned, place) for place, number in enumerate(shown)]
    words, glyphs = zip(
        *((pages[number - 1].words_in(), pages[number - 1].glyphs_in()) for number in shown), strict=True
    )
    told = [look for look in looks if look and (_tells(said, look.printed) if look.printed else not _long(question))]
    return Sample(kind, turns, learned, words=words, looks=told, glyphs=glyphs, about=question.uid)


def _tells(said: str, printed: str) -> bool:
    return next(places(printed, said), None) is not None


def _long(question: Question) -> bool:
    return question.meta_info.query_type == QUERY_TYPE


def _turns(read: Conversation) -> list[tuple[str, list[str | PILImage.Image]]]:
    return [(one.role, [p.resolved() if isinstance(p, Image) else p.text for p in one.parts]) for one in read]


def _number(name: str | None) -> int:
    return int((name or "").rpartition("_")[2])
