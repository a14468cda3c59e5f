"""The skill sheet of a model that speaks VimRAG's protocol: what it says at each kind of step, its memory being right.

    python -m vrag_nb.nano.memory_skills [--model data/models/nano-vimrag] [--out results/skills/nano-vimrag]

Steps are those of the expert (`nano.memory_tasks`) on test decks of our own and on foreign ones, in the context that
the expert had come to: whether it would have come there by itself is `evaluation`'s. Of every step it is asked whether
the call is the right tool, and then

- search: whether it asks for what the expert asks for, word for word;
- found: the answer is among what is shown; whether it is kept, and whether what is written down is what stands there;
- missed: it is not; whether nothing is kept;
- answer: whether it is what the memory holds.

Long questions are two to four asked as one, films the decks filmed. Scores come with bootstrap intervals.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrag_nb.agent.memory_actions import parse
from vrag_nb.agent.memory_records import MemoryAction
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.metrics import share_interval
from vrag_nb.nano.deck_tasks import DeckPool
from vrag_nb.nano.memory_tasks import FilmSteps, Kind, MemorySteps, kind_of
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.skills import Asker, Decks, Scores, as_markdown, both_decks, wanted, write_sheet
from vrag_nb.profiles import load_profile

KINDS: tuple[Kind, ...] = ("search", "found", "missed", "answer")
DRAWS = 80  # at most so many plays for a sample wanted: not every deck has every kind of step
TOOLS = {"search": "retrieve", "found": "memorise", "missed": "memorise", "answer": "answer"}


def step_makers(pool: DeckPool) -> dict[str, Callable[[random.Random, float], list[Sample]]]:
    """What the sheet has a section for: who draws its steps."""
    return {
        "questions": MemorySteps(pool),
        "long questions": MemorySteps(pool, long=1.0),
        "films": FilmSteps(pool),
    }


def drawn_steps(
    draw: Callable[[random.Random, float], list[Sample]], count: int, seed: str
) -> dict[Kind, list[Sample]]:
    """Up to `count` steps of each kind, one of a question: those of one are no cases of their own."""
    rng, found = random.Random(seed), {kind: list[Sample]() for kind in KINDS}
    for _ in range(count * DRAWS):
        if all(len(samples) >= count for samples in found.values()):
            break
        for sample in draw(rng, 1.0):
            samples = found[kind_of(wanted(sample))]
            if len(samples) < count and sample.about not in {one.about for one in samples}:
                samples.append(sample)
    return found


def judged(kind: Kind, said: MemoryAction, told: MemoryAction, thought: str = "") -> dict[str, bool]:
    """What is right of a call at a step of this kind, beside the expert's. thought: the expert's, which names what it
    has just read."""
    found = {"right tool": said.kind == TOOLS[kind]}
    if kind == "search":
        found["the expert's words"] = _words(said.query) == _words(told.query)
    elif kind == "answer":
        found["what the memory holds"] = is_correct(said.answer or "", told.answer or "")
    elif kind == "missed":
        found["nothing kept"] = found["right tool"] and not _kept(said)
    else:
        found["kept"] = bool(_kept(said) & _kept(told))
        found["read right"] = _holds(said.summary, told.summary, thought)
    return found


def _holds(said: str | None, told: str | None, thought: str) -> bool:
    """Whether what was read now is written down; beside it a running summary tells all that was known before."""
    read = re.fullmatch(r"I read (.*)\.", thought, re.DOTALL)
    return f" {_words(read[1])}." in f" {_words(said)}." if read else _words(said) == _words(told)


def _kept(action: MemoryAction) -> set[str]:
    return {one.label for one in action.judgements if one.useful}


def _words(text: str | None) -> str:
    return " ".join((text or "").split())


def step_skills(asker: Asker, steps: Mapping[Kind, Sequence[Sample]]) -> Scores:
    """Scores of "kind: what is asked of it", of the kinds that there are steps of."""
    scores: Scores = {}
    for kind, samples in steps.items():
        for sample, said in zip(samples, asker.ask(samples), strict=True):
            thought, told = parse(wanted(sample))
            for name, right in judged(kind, parse(said)[1], told, thought).items():
                scores.setdefault(f"{kind}: {name}", []).append(float(right))
    return scores


def memory_sheet(asker: Asker, decks: Mapping[str, Decks], count: int, seed: int = 0) -> dict[str, Any]:
    """{section: {"": {row: {value, low, high, n}}}}, as `skills.as_markdown` takes it."""
    sheet: dict[str, Any] = {}
    for name, one in decks.items():
        for section, draw in step_makers(one.pool).items():
            scores = step_skills(asker, drawn_steps(draw, count, f"{seed}/{section}"))
            rows = {row: share_interval(values, seed).model_dump() for row, values in scores.items()}
            sheet[f"{section}, {name} decks"] = {"": rows}
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/nano-vimrag"))
    parser.add_argument("--out", type=Path, default=Path("results/skills/nano-vimrag"))
    parser.add_argument("--profile", default="nano-vimrag", help="whose corpus the own decks are of")
    parser.add_argument("--foreign", type=Path, default=Path("data/foreign"))
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--count", type=int, default=40, help="steps of each kind")
    parser.add_argument("--decks", type=int, default=8, help="decks of each engine held in memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = TransformersPolicy(options.model, max_new_tokens=220, temperature=0.0, batch_size=8)
    own = load_profile(options.profile).corpus_folder
    decks = both_decks(own, options.foreign, options.split, options.decks, options.seed)
    sheet = memory_sheet(Asker(policy), decks, options.count, options.seed)
    write_sheet(sheet, options.out, "vrag_nb.nano.memory_skills")
    print(as_markdown(sheet))


if __name__ == "__main__":
    main()
