"""The skill sheet of a nano model: what it can do, measured one skill at a time.

    python -m vrag_nb.nano.skills [--model data/models/nano-base] [--out results/skills/nano-base]

- reading: character error rate of a strip of text, by print size and by font;
- look-up: a cell of a drawn table, by the table's number of columns;
- pages: answering from the gold crop, from a whole page whose print is large enough, saying where to look (IoU with the
  gold region), saying whether this is the page - on test decks of our own and on foreign ones;
- legibility: answering the same questions from the whole page and from the gold crop, by how large the print of the
  answer comes out when the page is shown whole. That the two curves part is why an agent crops.

Every model here is asked as it was in pretraining, not in the agent's format. Scores come with bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rapidfuzz.distance import Levenshtein
from tqdm.auto import tqdm

from vrag_nb.agent import actions
from vrag_nb.agent.geometry import Box, iou, jittered
from vrag_nb.agent.policy import Conversation, Image, Message, Policy, Text, generate_safely
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.display import figures
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.metrics import Interval, bootstrap, share_interval
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DeckTasks, DrawnPage
from vrag_nb.nano.lookups import drawn_table, reading_strip
from vrag_nb.nano.samples import Sample
from vrag_nb.records import Question, read_questions

SIZES = (8, 10, 12, 14, 16, 20)
FONTS = {"DejaVu Sans": 0, "DejaVu Sans Bold": 1, "DejaVu Serif": 2, "DejaVu Mono": 3, "STIX": 4, "STIX Bold": 5}
PRINT_BINS = (0.0, 5.0, 6.5, 8.0, 10.0, 13.0, 60.0)  # shown pixels of the answer's print on a whole page
Scores = dict[str, list[float]]


def ask(policy: Policy, samples: Sequence[Sample]) -> list[str]:
    """What a model says to the last question of each sample."""
    said: list[str] = []
    for start in tqdm(range(0, len(samples), 16), desc="asking", unit="batch", leave=False):
        conversations = [_conversation(sample) for sample in samples[start : start + 16]]
        said += [generation.text for generation in generate_safely(policy, conversations)]
    return said


def _conversation(sample: Sample) -> Conversation:
    """A sample's turns up to its last answer."""
    messages = []
    for role, parts in sample.turns[:-1]:
        shown = tuple(Text(part) if isinstance(part, str) else Image(part.size, part) for part in parts)
        messages.append(Message("user" if role == "user" else "assistant", shown))
    return messages


def _wanted(sample: Sample) -> str:
    return "".join(str(part) for part in sample.turns[-1][1])


def character_errors(policy: Policy, count: int, seed: int) -> dict[str, Scores]:
    """Edit distance over length, by print size and by font; 1 at most."""
    rng = random.Random(f"{seed}/reading")
    groups: dict[tuple[str, str], list[Sample]] = {}
    for size in SIZES:
        groups["by size", f"{size} px"] = [reading_strip(rng, 0.3, size, 0) for _ in range(count)]
    for name, number in FONTS.items():
        groups["by font", name] = [reading_strip(rng, 0.3, 15, number) for _ in range(count)]
    found: dict[str, Scores] = {"by size": {}, "by font": {}}
    for (kind, name), samples in groups.items():
        pairs = zip(ask(policy, samples), map(_wanted, samples), strict=True)
        found[kind][name] = [min(1.0, Levenshtein.normalized_distance(said, wanted)) for said, wanted in pairs]
    return found


def cell_lookup(policy: Policy, count: int, seed: int) -> Scores:
    """Exact answers about drawn tables, by number of columns."""
    rng, groups = random.Random(f"{seed}/tables"), {}
    for columns in (1, 2, 3):
        samples: list[Sample] = []
        while len(samples) < count:
            sample = drawn_table(rng, 0.8)
            samples += [sample] if sample.kind == f"table{columns}" else []
        groups[f"{columns} columns" if columns > 1 else "1 column"] = samples
    return {name: _right(policy, samples) for name, samples in groups.items()}


def _right(policy: Policy, samples: Sequence[Sample]) -> list[float]:
    return [float(is_correct(s, _wanted(sample))) for s, sample in zip(ask(policy, samples), samples, strict=True)]


def box_iou(said: str, wanted: str) -> float:
    """Intersection over union of two written boxes; 0 where one is no box."""
    one, other = (actions.parse(f"<bbox>{text}</bbox>")[1].box for text in (said, wanted))
    if one is None or other is None:
        return 0.0
    return iou(one, other)


class Decks:
    """Rendered decks and their questions, as the pretraining tasks draw from them."""

    def __init__(self, documents: Path, questions: Sequence[Question], limit: int, seed: int) -> None:
        names = sorted({question.document for question in questions})
        chosen = random.Random(seed).sample(names, min(limit, len(names)))
        by_name = {name: [q for q in questions if q.document == name] for name in chosen}
        self.pool = DeckPool(lambda number: self._deck(number), size=len(chosen), draws_per_deck=10**9)
        self._made = [((documents / f"{name}.pdf").read_bytes(), asked) for name, asked in by_name.items()]
        self._next = 0

    def _deck(self, number: int) -> tuple[bytes, list[Question]]:
        self._next += 1
        return self._made[self._next - 1]

    def samples(self, wanted: int, seed: int) -> dict[str, list[Sample]]:
        """`wanted` samples of each kind of `DeckTasks`."""
        rng, tasks = random.Random(f"{seed}/pages"), DeckTasks(self.pool)
        found: dict[str, list[Sample]] = {"crop": [], "page": [], "point": []}
        for _ in range(wanted * 60):
            if all(len(samples) >= wanted for samples in found.values()):
                break
            sample = tasks.lookups(rng, 1.0)
            if len(found[sample.kind]) < wanted:
                found[sample.kind].append(sample)
        return found | {"match": [tasks.matches(rng, 1.0) for _ in range(wanted)]}

    def printed_facts(self, wanted: int, seed: int) -> list[tuple[DrawnPage, Question, dict[str, Any]]]:
        """Questions with one fact that is printed on a page."""
        rng = random.Random(f"{seed}/legibility")
        found: dict[str, tuple[DrawnPage, Question, dict[str, Any]]] = {}
        for _ in range(wanted * 20):
            pages, questions = self.pool.pick(rng)
            question = rng.choice(questions)
            facts = question.needed_facts
            if len(facts) == 1 and facts[0]["printed"] and len(found) < wanted:
                found[question.uid] = (pages[facts[0]["page"] - 1], question, facts[0])
        return list(found.values())


def page_skills(policy: Policy, decks: Decks, count: int, seed: int) -> Scores:
    """Answers from crops and pages, boxes (IoU), page or not, on one set of decks."""
    samples = decks.samples(count, seed)
    scores = {name: _right(policy, samples[name]) for name in ("crop", "page", "match")}
    boxes = zip(ask(policy, samples["point"]), map(_wanted, samples["point"]), strict=True)
    scores["box IoU"] = [box_iou(said, wanted) for said, wanted in boxes]
    return scores


def legibility(policy: Policy, decks: Decks, count: int, seed: int) -> dict[str, Scores]:
    """Right answers from the whole page and from the gold crop, by the print size the page is shown at."""
    facts = decks.printed_facts(count, seed)
    views: dict[str, Callable[[DrawnPage, dict[str, Any]], Box | None]] = {
        "whole page": lambda page, fact: None,
        "gold crop": lambda page, fact: jittered(random.Random(0), page.box(tuple(fact["box"])), page.image.size, 0.02),
    }
    found: dict[str, Scores] = {}
    for name, view in views.items():
        samples = [
            Sample("", [("user", [q.query, page.window(view(page, fact))[0]]), ("assistant", [q.reference_answer])])
            for page, q, fact in facts
        ]
        scores: Scores = {}
        for (page, _, fact), right in zip(facts, _right(policy, samples), strict=True):
            scores.setdefault(_bin(shown_print(page, fact)), []).append(right)
        found[name] = {label: scores[label] for label in map(_label, range(len(PRINT_BINS) - 1)) if label in scores}
    return found


def shown_print(page: DrawnPage, fact: dict[str, Any]) -> float:
    """Height in pixels of the print of a fact when its page is shown whole: that of its line of text."""
    height = page.box(tuple(fact["answer_box"]))
    return (height[3] - height[1]) * BUDGET.size(*page.image.size)[1] / page.image.height


def _label(number: int) -> str:
    low, high = PRINT_BINS[number], PRINT_BINS[number + 1]
    return (
        f"under {high:g}" if not number else f"{low:g} on" if number == len(PRINT_BINS) - 2 else f"{low:g} to {high:g}"
    )


def _bin(size: float) -> str:
    return _label(max(i for i in range(len(PRINT_BINS) - 1) if size >= PRINT_BINS[i]))


def skill_sheet(policy: Policy, decks: dict[str, Decks], count: int, seed: int = 0) -> dict[str, Any]:
    """All skills: {skill: {group: {value, low, high, n}}}."""
    reading = character_errors(policy, count, seed)
    sheet: dict[str, dict[str, Scores]] = {
        "character error rate by size": {"": reading["by size"]},
        "character error rate by font": {"": reading["by font"]},
        "cell look-up": {"": cell_lookup(policy, count, seed)},
    }
    for name, one in decks.items():
        sheet[f"pages, {name} decks"] = {"": page_skills(policy, one, count, seed)}
        sheet[f"legibility, {name} decks"] = legibility(policy, one, 4 * count, seed)
    return {
        skill: {view: {group: interval(values, seed).model_dump() for group, values in scores.items()}
                for view, scores in views.items()}
        for skill, views in sheet.items()
        for interval in [bootstrap if skill.startswith("character error") else share_interval]
    }  # fmt: skip


def as_markdown(sheet: dict[str, Any]) -> str:
    """The sheet as tables."""
    parts = []
    for skill, views in sheet.items():
        lines = [f"### {skill[0].upper()}{skill[1:]}", "", "| | value [95%] | n |", "|---|---:|---:|"]
        for view, scores in views.items():
            for group, score in scores.items():
                one = Interval(**score)
                shown = "–" if one.value is None else f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]"
                lines.append(f"| {', '.join(filter(None, (view, group)))} | {shown} | {one.n} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def legibility_figure(sheet: dict[str, Any]) -> Figure:
    """Accuracy against print size on the whole page, with and without the crop, a panel for each set of decks."""
    panels = {skill: views for skill, views in sheet.items() if skill.startswith("legibility")}
    figure = figures.new_figure(6.4 * len(panels), 4.2)
    for number, (skill, views) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        labels = [_label(i) for i in range(len(PRINT_BINS) - 1)]
        for (view, scores), colour in zip(views.items(), figures.SERIES, strict=False):
            places = [labels.index(group) for group in scores]
            values = [score["value"] for score in scores.values()]
            spread = [
                [v - score["low"] for v, score in zip(values, scores.values(), strict=True)],
                [score["high"] - v for v, score in zip(values, scores.values(), strict=True)],
            ]
            axes.errorbar(places, values, yerr=spread, marker="o", capsize=3, color=colour, label=view)
        axes.set_xticks(range(len(labels)), labels)
        title = f"{skill.removeprefix('legibility, ').capitalize()}: reading the page whole, or its crop"
        figures.chart(axes, title, "height of the print on the page as shown, pixels", "right answers")
        axes.set_ylim(-0.02, 1.02)
        axes.legend(frameon=False)
    figure.set_layout_engine("constrained", w_pad=0.1)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/nano-base"))
    parser.add_argument("--out", type=Path, default=Path("results/skills/nano-base"))
    parser.add_argument("--own", type=Path, default=Path("data/corpora/decks"), help="the generated corpus")
    parser.add_argument("--foreign", type=Path, default=Path("data/foreign"))
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--count", type=int, default=60, help="samples of each skill and group")
    parser.add_argument("--decks", type=int, default=8, help="decks of each kind held in memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = TransformersPolicy(options.model, max_new_tokens=80, temperature=0.0, batch_size=8)
    load = partial(Decks, limit=options.decks, seed=options.seed)
    sheet = skill_sheet(
        policy,
        {
            "own": load(options.own / "documents", read_questions(options.own / f"questions.{options.split}.json")),
            "foreign": load(
                options.foreign / "documents", read_questions(options.foreign / f"questions.{options.split}.json")
            ),
        },
        options.count,
        options.seed,
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "skills.json").write_text(json.dumps(sheet, indent=1) + "\n", encoding="utf-8")
    (options.out / "skills.md").write_text(as_markdown(sheet), encoding="utf-8")
    figures.save(legibility_figure(sheet), options.out / "legibility.png")
    print(as_markdown(sheet))


if __name__ == "__main__":
    main()
