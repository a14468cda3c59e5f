"""Policies that are told the gold: the base of the experts whose trajectories are learned from."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.records import Question, by_words

NOT_TOLD = "the planner was not told the gold of this question, or was told that of several in the same words"


class PrivilegedPolicy(Policy):
    """Is told questions with their gold, and finds in each conversation which of them it is about.

    What else it knows it reads off the conversation, so it plays under the same rules as any model. seed: of the
    sampling, used when `generate` gets none.
    """

    def __init__(self, questions: Sequence[Question], seed: int = 0) -> None:
        self.seed = seed
        self._questions = by_words(questions)
        self._longest_first = sorted(self._questions, key=len, reverse=True)

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`. A conversation about a question it was not told of gets an error."""
        wanted = seeds if seeds is not None else [self.seed] * len(conversations)
        return [self._generation(one, seed) for one, seed in zip(conversations, wanted, strict=True)]

    @property
    def identity(self) -> dict[str, Any]:
        """Its name alone: what it says follows from it and the questions."""
        return {"name": self.name}

    @abstractmethod
    def turn(self, question: Question, conversation: Conversation, rng: random.Random) -> Generation:
        """The next turn of a conversation about a question it was told of."""

    def _generation(self, conversation: Conversation, seed: int) -> Generation:
        opening = next((message.text for message in conversation if message.role == "user"), "")
        asked = next((query for query in self._longest_first if query in opening), None)
        if asked is None:
            return Generation.failed(NOT_TOLD)
        return self.turn(self._questions[asked], conversation, random.Random(seed))
