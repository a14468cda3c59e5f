"""Trajectories of the privileged expert as training samples.

The expert (`learning.experts.PrivilegedPlanner`) plays in the real environment (`agent.environment`), over the pages
of one deck held in memory and a search that is wrong now and then, so its trajectories hold the wrong pages, the page
sizes and the crops that a rollout will meet. Only trajectories that end in the right answer are kept.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from PIL import Image as PILImage

from vrag_nb.agent.environment import Environment, Observer
from vrag_nb.agent.geometry import jittered
from vrag_nb.agent.observers import Session, refuse_crop
from vrag_nb.agent.policy import Image
from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.agent.task_settings import Settings
from vrag_nb.learning.experts import (
    SMALL_PRINT,
    WRONG_PAGE,
    PrivilegedPlanner,
    facts_of,
    first_turn,
    search_words,
    told,
)
from vrag_nb.nano.deck_tasks import BUDGET, Box, DeckPool, DrawnPage, look_for, written_box
from vrag_nb.nano.looking import Look
from vrag_nb.nano.samples import Sample, telling_words
from vrag_nb.records import Hit, Page, Question, page_id

EXPERT_SETTINGS = Settings(
    max_turns=6,
    top_k=10,
    min_pixels=BUDGET.min_pixels,
    max_pixels=BUDGET.max_pixels,
    caption="{question}",
)

RIVALS = 4  # so many wrong pages vie for being shown
Other = TypeVar("Other")


class DeckPages:
    """The drawn pages of one deck as an environment's `Pages`, without files."""

    def __init__(self, document: str, pages: list[DrawnPage]) -> None:
        self._drawn = {page_id(document, number): page.image for number, page in enumerate(pages, start=1)}
        self._records = {
            name: Page(
                page_id=name,
                document=document,
                page=number,
                image=f"{name}.png",
                width=image.width,
                height=image.height,
            )
            for number, (name, image) in enumerate(self._drawn.items(), start=1)
        }

    @property
    def names(self) -> list[str]:
        """The page ids, in page order."""
        return list(self._drawn)

    def page(self, page_id: str) -> Page:
        """The record of a page. Raises KeyError for one that is not of the deck."""
        return self._records[page_id]

    def image(self, page_id: str) -> PILImage.Image:
        """Its pixels. Raises KeyError likewise."""
        return self._drawn[page_id]


class FlawedSearch:
    """A search that knows each search's gold page and ranks it first with probability `recall`, else a bit lower."""

    fingerprint = "flawed"

    def __init__(self, page_ids: list[str], gold: dict[str, str], rng: random.Random, recall: float) -> None:
        self.page_ids, self.gold, self.rng, self.recall = page_ids, gold, rng, recall

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        return [self._ranked(query)[:top_k] for query in queries]

    def _ranked(self, query: str) -> list[Hit]:
        seed = self.rng.random()
        others = [name for name in self.page_ids if name != self.gold.get(query)]
        self.rng.shuffle(others)
        place = 0 if seed < self.recall else self.rng.choice([1, 1, 2])
        ranked = [*others[:place], self.gold[query], *others[place:]] if query in self.gold else others
        return [Hit(page_id=name, score=-float(rank), rank=rank) for rank, name in enumerate(ranked, start=1)]


def play(
    question: Question,
    pages: list[DrawnPage],
    rng: random.Random,
    recall: float = 0.75,
    prompt: str = "nano",
    observers: Mapping[str, Observer] | None = None,
) -> Session:
    """The expert's session on a question, in the real environment over the question's deck."""
    store = DeckPages(question.document, pages)
    expert = PrivilegedPlanner([question], slack=0.0)
    facts = question.needed_facts
    gold = {search_words(question, n): page_id(question.document, fact["page"]) for n, fact in enumerate(facts)}
    engine = FlawedSearch(store.names, gold, rng, recall)
    environment = Environment(engine, store, EXPERT_SETTINGS, prompt, observers=observers)
    session = environment.start(question)
    while not session.done:
        environment.advance([session], expert.generate([session.conversation], [rng.getrandbits(32)]))
    return session


def session_sample(session: Session, pages: list[DrawnPage]) -> Sample:
    """A session as a training sample: the loss will cover the expert's turns."""
    turns: list[tuple[str, list[str | PILImage.Image]]] = []
    views: list[tuple[int, Box | None]] = []
    looks: list[Look] = []
    for number, message in enumerate(session.conversation):
        turns.append((message.role, [p.resolved() if isinstance(p, Image) else p.text for p in message.parts]))
        views += [(_number(part.page_id), part.crop_box) for part in message.parts if isinstance(part, Image)]
        if message.role == "assistant" and views:
            shown, box = views[-1]
            look = look_for(session.question, pages[shown - 1], shown, number, len(views) - 1, box)
            looks += [look] if look else []
    words = [pages[shown - 1].words_in(box) for shown, box in views]
    glyphs = [pages[shown - 1].glyphs_in(box) for shown, box in views]
    return Sample("act", turns, words=words, looks=looks, glyphs=glyphs)


def _number(page_id: str | None) -> int:
    return int((page_id or "").rpartition("_")[2])


def forced_sample(question: Question, pages: list[DrawnPage], rng: random.Random) -> Sample:
    """A conversation that must be answered at once: without a page, with the best page, or with three.

    Baselines put the model there, and a model that never saw it would answer with a search: a flaw of training, not
    of the baseline. Only the answer is learned.
    """
    answer = f"<think>I must answer.</think>\n<answer>{question.reference_answer}</answer>"
    prompt = fill_prompt(load_prompt("nano"), question.query)
    shown = rng.choice([0, 1, 3])
    if not shown:
        return Sample("forced", [("user", [f"{prompt}\n\n{EXPERT_SETTINGS.forced_text}"]), ("assistant", [answer])])
    gold = [page - 1 for page in question.meta_info.reference_page][:shown]
    others = [number for number in range(len(pages)) if number not in gold]
    chosen = gold + rng.sample(others, min(shown - len(gold), len(others)))
    images, glyphs = zip(*(pages[number].window() for number in chosen), strict=True)
    turns: list[tuple[str, list[str | PILImage.Image]]] = [
        ("user", [prompt]),
        ("assistant", [f"<search>{question.query}</search>"]),
        ("user", [part for image in images for part in (question.query, image)] + [EXPERT_SETTINGS.forced_text]),
        ("assistant", [answer]),
    ]
    looks = [look_for(question, pages[number], number + 1, 3, place) for place, number in enumerate(chosen)]
    words = [pages[number].words_in() for number in chosen]
    found = [look for look in looks if look]
    return Sample("forced", turns, learn_from=3, words=words, looks=found, glyphs=glyphs)


class ExpertTurns:
    """Draws single turns of the expert: a question, one view, and what the expert says to it.

    One time in four the first search comes before; no other view does. A fraction of the tokens of a trajectory for
    one of its hard turns: reading a crop (a looser one than the expert's own, as a model's are), enlarging or answering
    on the right page, leaving a wrong one.
    """

    def __init__(self, pool: DeckPool) -> None:
        self.pool, self.prompt = pool, load_prompt("nano")

    def __call__(self, rng: random.Random, difficulty: float) -> Sample:
        pages, questions = self.pool.pick(rng)
        question = rng.choice([question for question in questions if len(question.needed_facts) == 1])
        fact, kind = question.needed_facts[0], rng.random()
        number = fact["page"]
        page = pages[number - 1]
        if kind < 0.4:
            box = jittered(rng, page.box(tuple(fact["box"])), page.image.size, rng.uniform(0, 0.3))
            return self._turn("crop", rng, question, pages, number, told_answer(question), box)
        if kind < 0.78 or len(pages) == 1:
            said = enlarging(question, page) if question.needs_crop else told_answer(question)
            return self._turn("enlarge" if question.needs_crop else "page", rng, question, pages, number, said)
        others = [other for other in range(1, len(pages) + 1) if other != number]
        wrong = likest(question, pages, rivals(rng, others))
        return self._turn("wrong", rng, question, pages, wrong, going_on(question))

    def _turn(
        self,
        kind: str,
        rng: random.Random,
        question: Question,
        pages: list[DrawnPage],
        number: int,
        said: str,
        box: Box | None = None,
    ) -> Sample:
        page = pages[number - 1]
        before: list[tuple[str, list[str | PILImage.Image]]] = [
            ("user", [fill_prompt(self.prompt, question.query)]),
            ("assistant", [first_turn(question)]),
        ]
        image, glyphs = page.window(box)
        turns = before if rng.random() < 0.25 else []
        turns = [*turns, ("user", [question.query, image]), ("assistant", [said])]
        look, words = look_for(question, page, number, len(turns) - 1, 0, box), [page.words_in(box)]
        looks = [look] if look else []
        return Sample(kind, turns, learn_from=len(turns) - 1, words=words, looks=looks, glyphs=[glyphs])


def rivals(rng: random.Random, others: Sequence[Other]) -> list[Other]:
    """The wrong pages that vie for being shown."""
    return rng.sample(others, min(RIVALS, len(others)))


def likest(question: Question, pages: list[DrawnPage], numbers: list[int]) -> int:
    """Of these pages the first with most of the question's words: what a search ranks first when it errs."""
    asked = telling_words(question.query)
    shared = {n: len(asked & telling_words(" ".join(word for word, _ in pages[n - 1].words))) for n in numbers}
    return max(numbers, key=shared.__getitem__)


def told_answer(question: Question) -> str:
    """The expert's last turn."""
    read = told(facts_of(question), question.reference_answer)
    return f"<think>{read}</think>\n<answer>{question.reference_answer}</answer>"


def going_on(question: Question) -> str:
    """The expert's turn on a page that is not the right one."""
    return f"<think>{WRONG_PAGE}</think>\n<search>{search_words(question)}</search>"


def enlarging(question: Question, page: DrawnPage, fact: int = 0) -> str:
    """The expert's turn on the page of one of the facts, where the print is small."""
    written = written_box(page.box(tuple(question.needed_facts[fact]["box"])), page.image, page.window()[0])
    return f"<think>{SMALL_PRINT}</think>\n<bbox>{written}</bbox>"


class ExpertSamples:
    """Draws expert trajectories from a pool of decks, right answers only, at most `max_turns` turns of the model.

    One in eight is played where crops are refused, and one in eight is a question to be answered at once.
    """

    def __init__(self, pool: DeckPool, max_turns: int = 6) -> None:
        self.pool, self.max_turns = pool, max_turns

    def __call__(self, rng: random.Random, difficulty: float) -> list[Sample]:
        pages, questions = self.pool.pick(rng)
        question, kind = rng.choice(questions), rng.random()
        if kind < 0.125:
            return [forced_sample(question, pages, rng)]
        session = play(question, pages, rng, observers={"bbox": refuse_crop} if kind > 0.875 else None)
        kept = session.error is None and session.answer == question.reference_answer
        return [session_sample(session, pages)] if kept and len(session.turns) <= self.max_turns else []
