"""Text-only lessons, which cost little beside a page: copying words, and searching for a question.

A search repeats the question's words. To repeat words a model must have learned to copy, which pages alone teach it
very slowly.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from vrag_nb.agent.prompting import fill_prompt, load_prompt
from vrag_nb.learning.experts import first_turn
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.scribbles import random_number, random_word


def copied_words(rng: random.Random, difficulty: float) -> Sample:
    """Words in the user's turn, some of them quoted, and the quoted ones to be repeated."""
    words = [random_number(rng) if rng.random() < 0.25 else random_word(rng) for _ in range(rng.randint(4, 16))]
    start = rng.randrange(len(words))
    end = min(len(words), start + rng.randint(1, 6))
    quoted = " ".join(words[start:end])
    text = " ".join([*words[:start], f'"{quoted}"', *words[end:]])
    return Sample("copy", [("user", [text]), ("assistant", [f"<search>{quoted}</search>"])])


def searches(pool: DeckPool) -> Callable[[random.Random, float], Sample]:
    """The first turn of the expert: a question in the agent's prompt, and its search."""
    prompt = load_prompt("nano")

    def draw(rng: random.Random, difficulty: float) -> Sample:
        while True:
            _, questions = pool.pick(rng)
            question = rng.choice(questions)
            if question.needed_facts:
                turn = first_turn(question)
                return Sample("search", [("user", [fill_prompt(prompt, question.query)]), ("assistant", [turn])])

    return draw
