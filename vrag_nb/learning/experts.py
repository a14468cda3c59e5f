"""Experts whose trajectories are sampled: a privileged planner, and a planner whose boxes another model redraws.

Both are policies, so the ordinary environment and rollout driver run them (VRAG-RL, arXiv 2505.22019, section 3.3: a
planner writes thought and action, a grounding expert re-locates the box). Each model converts boxes from its own
coordinate frame at its edge (`agent.policy.Frame`), so that planner and grounder may count in different ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vrag_nb.agent import actions
from vrag_nb.agent.geometry import Box, Budget, View, jittered, snapped
from vrag_nb.agent.policy import Conversation, Generation, Image, Message, Policy, Text, generate_safely, last_image
from vrag_nb.learning.privileged import PrivilegedPolicy
from vrag_nb.records import Question, page_id

GROUND = (
    "Which part of the last image is this thought about? "
    "Answer <bbox>[x1, y1, x2, y2]</bbox>, a little larger than needed.\n{thought}"
)

FIND_PAGE, WRONG_PAGE, SMALL_PRINT = "I need to find the page.", "Not the right page.", "Right page, small print."
WHOLE_PAGE = (0.0, 0.0, 1.0, 1.0)  # page fractions
GIVE_UP = 3  # pages seen in vain before a question without an answer is given up


@dataclass(frozen=True)
class Fact:
    """One of the facts a question needs: a generated one says them (`needed_facts`), of others the gold says where.

    name: what tells it from the question's other facts, such as the label of its row. number: the value, to compare.
    """

    value: str
    name: str = ""
    number: float | None = None
    page_id: str = ""
    box: Box = WHOLE_PAGE  # page fractions


class PrivilegedPlanner(PrivilegedPolicy):
    """Acts as a good agent should, because it is told the gold pages and regions of the questions it may be asked.

    It searches with the question (with a hint per page, where facts of several pages are needed) until the gold page is
    shown, crops the gold region where the print is too small, keeps what it read in its thoughts, and answers. A
    question that nothing answers it gives up after GIVE_UP pages. What it knows of the state it reads off the
    conversation, so it plays under the same rules as any model. The facts are the `needed_facts` of the meta_info (the
    generated corpora have them), else its gold regions and gold pages: a region is then cropped, unless `needs_crop`
    is false, and a page without one is looked at whole.

    slack: how far a box may reach beyond the gold region, as a share of its extent; drawn anew for each turn's seed.
    grid: boxes are then widened to multiples of so many shown pixels. One visual token by default: a model cannot see
    finer, and would be taught digits that it can only guess.
    crops: whether small print is enlarged. A planner that does not has the answer from the gold, and says it at the
    sight of the page: its trajectories are right, and teach to answer what cannot be read.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        slack: float = 0.04,
        seed: int = 0,
        grid: int = 28,
        crops: bool = True,
    ) -> None:
        super().__init__(questions, seed)
        self.slack, self.grid, self.crops = slack, grid, crops
        self.name = "privileged-planner" if crops else "glancing-planner"

    def turn(self, question: Question, conversation: Conversation, rng: random.Random) -> Generation:
        """See `PrivilegedPolicy.turn`."""
        facts, small = _facts(question)
        small, read = small and self.crops, 0
        for end, message in enumerate(conversation):
            if message.role == "assistant":
                read = self._read_so_far(conversation[:end], question, facts, small, read)
        read = self._read_so_far(conversation, question, facts, small, read)
        pages_seen = sum(image.crop_box is None for message in conversation for image in message.images)
        if read == len(facts) and (facts or pages_seen >= GIVE_UP):
            return _said(told(facts, question.reference_answer), f"<answer>{question.reference_answer}</answer>")
        image = last_image(conversation)
        if image is None or not facts or image.page_id != facts[read].page_id:
            return self._search(conversation, question, facts, read)
        here = [fact for fact in facts[read:] if fact.page_id == facts[read].page_id]
        return _said(SMALL_PRINT, f"<bbox>{self._box(image, here, rng)}</bbox>")

    def _read_so_far(
        self, conversation: Conversation, question: Question, facts: Sequence[Fact], small: bool, read: int
    ) -> int:
        """How many facts have been read once this much has been shown: those of the page in sight, when legible."""
        image = last_image(conversation)
        refused = not conversation[-1].images  # the last thing shown was a notice: no crop is to be had here
        while image is not None and read < len(facts):
            if image.page_id != facts[read].page_id:
                break
            if small and image.crop_box is None and not refused:
                break
            read += 1
        return read

    def _search(self, conversation: Conversation, question: Question, facts: Sequence[Fact], read: int) -> Generation:
        words = search_words(question, read)
        written = [message.text for message in conversation if message.role == "assistant"]
        again = bool(written) and actions.parse(written[-1])[1].query == words
        thought = WRONG_PAGE if again else FIND_PAGE
        if read and not again:
            thought = f"{told(facts[:read])} {thought}"
        return _said(thought, f"<search>{words}</search>")

    def _box(self, image: Image, facts: Sequence[Fact], rng: random.Random) -> str:
        """The facts' regions in one box, a little larger, in shown pixels of the image."""
        size = image.page_size or image.size
        view = View(size, image.crop_box, image.size, Budget(0, image.size[0] * image.size[1], 1))
        union = (
            min(fact.box[0] for fact in facts) * size[0],
            min(fact.box[1] for fact in facts) * size[1],
            max(fact.box[2] for fact in facts) * size[0],
            max(fact.box[3] for fact in facts) * size[1],
        )
        grown = jittered(rng, union, size, self.slack) if self.slack else union
        return f"[{', '.join(str(round(value)) for value in snapped(view.from_page(grown), image.size, self.grid))}]"


def _said(thought: str, action: str) -> Generation:
    return Generation(f"<think>{thought}</think>\n{action}")


def first_turn(question: Question) -> str:
    """What the planner writes first."""
    return f"<think>{FIND_PAGE}</think>\n<search>{search_words(question)}</search>"


def search_words(question: Question, read: int = 0) -> str:
    """What the planner searches for once it has read so many facts of a question."""
    facts = question.needed_facts
    several = len(set(map(question.fact_page_id, facts))) > 1
    return facts[read]["search_hint"] if several else question.query


def facts_of(question: Question) -> list[Fact]:
    """The `needed_facts` of a generated question, in the order in which they are looked for; with names if several."""
    several = len(question.needed_facts) > 1
    return [
        Fact(
            str(one.get("value") or ""),
            one.get("name", "") if several else "",
            one.get("number"),
            question.fact_page_id(one),
            tuple(one["box"]),
        )
        for one in question.needed_facts
    ]


def _facts(question: Question) -> tuple[list[Fact], bool]:
    """The facts in the order in which they are looked for, and whether each has to be cropped."""
    return (facts_of(question), question.needs_crop) if question.needed_facts else _gold_facts(question)


def _gold_facts(question: Question) -> tuple[list[Fact], bool]:
    """The facts of a question that people wrote: its gold regions, and the gold pages that have none, whole."""
    meta = question.meta_info
    regions = [Fact("", page_id=page_id(question.document, one.page), box=one.box) for one in meta.reference_regions]
    known = {one.page_id for one in regions}
    whole = [Fact("", page_id=page) for page in question.gold_page_ids if page not in known]
    facts = regions + whole
    if len(facts) == 1:
        facts = [replace(facts[0], value=question.reference_answer)]
    small = bool((meta.model_extra or {}).get("needs_crop", True))
    return facts, small and bool(regions) and not whole


def told(facts: Sequence[Fact], answer: str = "") -> str:
    """What the planner thinks once it has read these facts: their values, and of two whose names are to choose from
    (`answer` is one of them) which is higher.

    Which value is whose is said, and which is higher before the answer is: a small model learns to compare in such
    steps and not in one (`docs/nano_models.md`, "Two facts").
    """
    values = [f"{fact.name}: {fact.value}" if fact.name else fact.value for fact in facts if fact.value]
    if not values:
        return "I have seen what I need." if facts else "It is not there."
    read = f"I read {', '.join(values)}."
    if len(facts) != 2 or answer not in [fact.name for fact in facts if fact.name]:
        return read
    one, other = (fact.number for fact in facts)
    if one is None or other is None or one == other:
        return read
    return f"{read} The {'first' if one > other else 'second'} is higher."


class GroundedPolicy(Policy):
    """A planner's turns, their boxes redrawn by a grounding expert that is shown the thought.

    Where the grounder gives no box that lies on the image, the planner's own is kept; its turn says which (`redrawn`).
    A grounder that fails is the turn's error: the boxes would be the planner's, under the name of both.
    """

    def __init__(self, planner: Policy, grounder: Policy, ask: str = GROUND) -> None:
        self.planner, self.grounder, self.ask = planner, grounder, ask
        self.name = f"{planner.name}+{grounder.name}"
        self.batched = planner.batched and grounder.batched

    @property
    def identity(self) -> dict[str, Any]:
        """Of both, and what the grounder is asked."""
        both = {"planner": self.planner, "grounder": self.grounder}
        return {"name": self.name, "ask": self.ask, **{one: {**p.identity, **p.declared} for one, p in both.items()}}

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`."""
        planned = generate_safely(self.planner, conversations, seeds)
        boxed = [n for n, one in enumerate(planned) if one.error is None and actions.parse(one.text)[1].kind == "bbox"]
        asked = [self._question(conversations[n], planned[n].text) for n in boxed]
        drawn = generate_safely(self.grounder, asked, [seeds[n] for n in boxed] if seeds is not None else None)
        for number, answer in zip(boxed, drawn, strict=True):
            planned[number] = self._redrawn(planned[number], answer, conversations[number])
        return planned

    def close(self) -> None:
        self.planner.close()
        self.grounder.close()

    def _question(self, conversation: Conversation, text: str) -> Conversation:
        """The conversation, its last message ending with what the grounder is asked."""
        thought, _ = actions.parse(text)
        last = conversation[-1]
        words = Text(self.ask.replace("{thought}", thought))
        return [*conversation[:-1], Message(last.role, (*last.parts, words))]

    def _redrawn(self, planned: Generation, answer: Generation, conversation: Conversation) -> Generation:
        if answer.error is not None:
            return Generation.failed(f"grounder {self.grounder.name}: {answer.error}")
        box, image = actions.parse(answer.text)[1].box, last_image(conversation)
        if box is None or image is None or not _on(box, image.size):
            return replace(planned, redrawn=False)
        text = actions.rewrite_box(planned.text, lambda _: box)
        # what was generated is no longer what stands there, so its ids and log-probabilities go
        return replace(planned, text=text, token_ids=[], logprobs=[], redrawn=True)


def _on(box: Box, size: tuple[int, int]) -> bool:
    """Whether a box, ordered, lies on an image of this size."""
    return 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]
