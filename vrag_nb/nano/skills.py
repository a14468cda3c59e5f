"""The skill sheet of a nano model: what it can do, measured one skill at a time.

    python -m vrag_nb.nano.skills [--model data/models/nano-base] [--out results/skills/nano-base]
    python -m vrag_nb.nano.skills --acting --model data/models/nano-agent --out results/skills/nano-agent

- reading: character error rate of a strip of text, by print size and by font;
- look-up: a cell of a drawn table, by the table's number of columns;
- reckoning: which of two values told in words is higher, their sum or difference, told beside others;
- pages: answering from the gold crop, from a whole page whose print is large enough, saying where to look (IoU with the
  gold region), saying whether this is the page - on test decks of our own and on foreign ones;
- gold crops, by what is asked: a table's cell, the value of a chart's label, a word of the text, which of two values is
  higher, their sum or difference;
- the loop (`nano.loop_skills`): valid actions, answers given unasked, and how well the model's searches find the page;
- legibility: answering the same questions from the whole page and from the gold crop, by how large the print of the
  answer comes out when the page is shown whole. That the two curves part is why an agent crops.

A base is asked as it was in pretraining, not in the agent's format; `--acting` asks as the agent is asked, and takes
the answer, the box or the decision from its action. Scores come with bootstrap intervals. Needs the prepared corpus and
its index (`make run`); the foreign slides are prepared once, below data/corpora.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rapidfuzz.distance import Levenshtein
from tqdm.auto import tqdm

from vrag_nb.agent import actions
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.geometry import Box, iou, jittered
from vrag_nb.agent.policy import Conversation, Image, Message, Policy, Text, generate_safely
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.evaluate import question_type
from vrag_nb.evaluation.metrics import Interval, bootstrap, share_interval
from vrag_nb.nano.deck_tasks import BUDGET, DeckPool, DeckTasks, DrawnPage
from vrag_nb.nano.lookups import drawn_table, reading_strip
from vrag_nb.nano.loop_skills import loop_skills
from vrag_nb.nano.samples import Sample
from vrag_nb.nano.several_facts import reason
from vrag_nb.plotting import figures
from vrag_nb.profiles import Profile, load_profile
from vrag_nb.profiles import sample as drawn
from vrag_nb.records import Question, read_questions

SIZES = (8, 10, 12, 14, 16, 20)
FONTS = {"DejaVu Sans": 0, "DejaVu Sans Bold": 1, "DejaVu Serif": 2, "DejaVu Mono": 3, "STIX": 4, "STIX Bold": 5}
PRINT_BINS = (0.0, 5.0, 6.5, 8.0, 10.0, 13.0)  # shown pixels of the answer's print, from this on
PRINT_LABELS = (
    f"under {PRINT_BINS[1]:g}",
    *(f"{low:g} to {high:g}" for low, high in pairwise(PRINT_BINS[1:])),
    f"{PRINT_BINS[-1]:g} on",
)
ASKED_OF_CROPS = {
    "table": "cell of a table",
    "chart": "value of a chart's label",
    "text": "words of the text",
    "comparison": "which of two is higher",
    "arithmetic": "sum or difference",
}  # kind of question: what it asks
TASK_WORDS = ("Where: ", "Match: ")  # what a base is told before the question (`deck_tasks.DeckTasks`)
Scores = dict[str, list[float]]


class Asker:
    """Asks a model, and takes from what it says what is to be compared.

    acting: it is asked without the words that tell a base its task, and answers with an action: its answer or box is
    taken, and of a decision about a page, "no" where it goes on searching and "yes" where it stays.
    """

    def __init__(self, policy: Policy, acting: bool = False) -> None:
        self.policy, self.acting = policy, acting

    def ask(self, samples: Sequence[Sample]) -> list[str]:
        """What is said to the last question of each sample."""
        said: list[str] = []
        for start in tqdm(range(0, len(samples), 16), desc="asking", unit="batch", leave=False):
            batch = samples[start : start + 16]
            generations = generate_safely(self.policy, [self._conversation(sample) for sample in batch])
            said += [self._taken(s, one.text) for s, one in zip(batch, generations, strict=True)]
        return said

    def right(self, samples: Sequence[Sample]) -> list[float]:
        """1 for each sample that is answered rightly, else 0."""
        return [float(is_correct(s, wanted(one))) for s, one in zip(self.ask(samples), samples, strict=True)]

    def _conversation(self, sample: Sample) -> Conversation:
        """A sample's turns up to its last answer."""
        messages = []
        for role, parts in sample.turns[:-1]:
            shown = [Text(self._put(part)) if isinstance(part, str) else Image(part.size, part) for part in parts]
            messages.append(Message("user" if role == "user" else "assistant", tuple(shown)))
        return messages

    def _put(self, text: str) -> str:
        for words in TASK_WORDS if self.acting else ():
            text = text.removeprefix(words)
        return text

    def _taken(self, sample: Sample, said: str) -> str:
        if not self.acting:
            return said
        action = actions.parse(said)[1]
        if sample.kind == "match":
            return "no" if action.kind == "search" else "yes"
        if action.kind == "bbox" and action.box:
            return f"[{', '.join(f'{edge:g}' for edge in action.box)}]"
        return action.answer or said


def wanted(sample: Sample) -> str:
    """The right answer of a sample."""
    return "".join(str(part) for part in sample.turns[-1][1])


def character_errors(asker: Asker, count: int, seed: int) -> dict[str, Scores]:
    """Edit distance over the length of what is printed, by print size and by font; 1 at most."""
    rng = random.Random(f"{seed}/reading")
    groups: dict[tuple[str, str], list[Sample]] = {}
    for size in SIZES:
        groups["by size", f"{size} px"] = [reading_strip(rng, 0.3, size, 0) for _ in range(count)]
    for name, number in FONTS.items():
        groups["by font", name] = [reading_strip(rng, 0.3, 15, number) for _ in range(count)]
    found: dict[str, Scores] = {"by size": {}, "by font": {}}
    for (kind, name), samples in groups.items():
        pairs = zip(asker.ask(samples), map(wanted, samples), strict=True)
        found[kind][name] = [min(1.0, Levenshtein.distance(said, right) / max(1, len(right))) for said, right in pairs]
    return found


def cell_lookup(asker: Asker, count: int, seed: int) -> Scores:
    """Exact answers about drawn tables, by number of columns."""
    rng, groups = random.Random(f"{seed}/tables"), {}
    for columns in (1, 2, 3):
        samples: list[Sample] = []
        while len(samples) < count:
            sample = drawn_table(rng, 0.8)
            samples += [sample] if sample.kind == f"table{columns}" else []
        groups[f"{columns} columns" if columns > 1 else "1 column"] = samples
    return {name: asker.right(samples) for name, samples in groups.items()}


def reckoning(asker: Asker, count: int, seed: int) -> Scores:
    """What is made of two values that are told in words."""
    rng = random.Random(f"{seed}/reckoning")
    groups: dict[str, list[Sample]] = {"compared": [], "reckoned": []}
    while min(map(len, groups.values())) < count:
        drawn = reason(rng, 0.5)
        answer = actions.parse(wanted(drawn))[1].answer or ""
        groups[drawn.kind].append(Sample("", [drawn.turns[0], ("assistant", [answer])]))
    names = {"compared": "which of two is higher", "reckoned": "sum or difference"}
    return {names[kind]: asker.right(samples[:count]) for kind, samples in groups.items()}


def box_iou(said: str, right: str) -> float:
    """Intersection over union of two written boxes; 0 where one is no box."""
    one, other = (actions.parse(f"<bbox>{text}</bbox>")[1].box for text in (said, right))
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
        """Up to `wanted` samples of each kind of `DeckTasks`, each of another question."""
        rng, tasks = random.Random(f"{seed}/pages"), DeckTasks(self.pool)
        found: dict[str, dict[str, Sample]] = {"crop": {}, "page": {}, "point": {}, "match": {}}
        for _ in range(wanted * 60):
            if all(len(samples) >= wanted for samples in found.values()):
                break
            for sample in (tasks.lookups(rng, 1.0), tasks.matches(rng, 1.0)):
                if len(found[sample.kind]) < wanted:
                    found[sample.kind].setdefault(str(sample.turns[0][1][0]), sample)
        return {kind: list(samples.values()) for kind, samples in found.items()}

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

    def in_one_crop(self, wanted: int, seed: int) -> dict[str, list[Sample]]:
        """Up to `wanted` questions of each of ASKED_OF_CROPS whose facts all stand in one region, with its crop."""
        found: dict[str, list[Sample]] = {name: [] for name in ASKED_OF_CROPS.values()}
        rng = random.Random(f"{seed}/crops")
        while len(self.pool.decks) < self.pool.size:
            self.pool.pick(rng)
        for pages, questions in self.pool.decks:
            for question in questions:
                regions = {(fact["page"], tuple(fact["box"])) for fact in question.needed_facts}
                name = ASKED_OF_CROPS.get(question_type(question))
                if name and len(regions) == 1:
                    number, box = regions.pop()
                    found[name].append(_gold_crop(pages[number - 1], question, box))
        return {name: rng.sample(samples, min(wanted, len(samples))) for name, samples in found.items() if samples}


def _gold_crop(page: DrawnPage, question: Question, box: Box) -> Sample:
    crop = jittered(random.Random(0), page.box(box), page.image.size, 0.02)
    return Sample(
        "crop", [("user", [question.query, page.window(crop)[0]]), ("assistant", [question.reference_answer])]
    )


def page_skills(asker: Asker, decks: Decks, count: int, seed: int) -> Scores:
    """Answers from crops and pages, boxes (IoU), page or not, on one set of decks."""
    samples = decks.samples(count, seed)
    scores = {name: asker.right(samples[name]) for name in ("crop", "page", "match")}
    boxes = zip(asker.ask(samples["point"]), map(wanted, samples["point"]), strict=True)
    scores["box IoU"] = [box_iou(said, right) for said, right in boxes]
    return scores


def legibility(asker: Asker, decks: Decks, count: int, seed: int) -> dict[str, Scores]:
    """Right answers from the whole page and from the gold crop, by the print size the page is shown at."""
    facts = decks.printed_facts(count, seed)
    views: dict[str, list[Sample]] = {
        "whole page": [
            Sample("page", [("user", [q.query, page.window()[0]]), ("assistant", [q.reference_answer])])
            for page, q, _ in facts
        ],
        "gold crop": [_gold_crop(page, q, tuple(fact["box"])) for page, q, fact in facts],
    }
    found: dict[str, Scores] = {}
    for name, samples in views.items():
        scores: Scores = {}
        for (page, _, fact), right in zip(facts, asker.right(samples), strict=True):
            scores.setdefault(print_bin(shown_print(page, fact)), []).append(right)
        found[name] = {label: scores[label] for label in PRINT_LABELS if label in scores}
    return found


def shown_print(page: DrawnPage, fact: dict[str, Any]) -> float:
    """Height in pixels of the print of a fact when its page is shown whole: that of its line of text."""
    height = page.box(tuple(fact["answer_box"]))
    return (height[3] - height[1]) * BUDGET.size(*page.image.size)[1] / page.image.height


def print_bin(size: float) -> str:
    """Which of PRINT_LABELS print of so many pixels has."""
    return PRINT_LABELS[bisect_right(PRINT_BINS, size) - 1]


def skill_sheet(
    asker: Asker,
    decks: Mapping[str, Decks],
    count: int,
    seed: int = 0,
    loops: Mapping[str, tuple[Environment, Sequence[Question]]] | None = None,
) -> dict[str, Any]:
    """All skills: {skill: {view: {group: {value, low, high, n}}}}; `loops`: what is rolled out, by the same names."""
    reading = character_errors(asker, count, seed)
    sheet: dict[str, dict[str, Scores]] = {
        "character error rate by size": {"": reading["by size"]},
        "character error rate by font": {"": reading["by font"]},
        "cell look-up": {"": cell_lookup(asker, count, seed)},
        "reckoning, told in words": {"": reckoning(asker, count, seed)},
    }
    for name, one in decks.items():
        crops = {asked: asker.right(samples) for asked, samples in one.in_one_crop(count, seed).items()}
        sheet[f"pages, {name} decks"] = {"": page_skills(asker, one, count, seed)}
        sheet[f"gold crops by what is asked, {name} decks"] = {"": crops}
        if loops and name in loops:
            sheet[f"the loop, {name} decks"] = {"": loop_skills(asker.policy, *loops[name])}
        sheet[f"legibility, {name} decks"] = legibility(asker, one, 4 * count, seed)
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


def write_sheet(sheet: dict[str, Any], folder: Path, module: str) -> None:
    """The sheet as JSON and as tables, under the command that this process was started with."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "skills.json").write_text(json.dumps(sheet, indent=1) + "\n", encoding="utf-8")
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    (folder / "skills.md").write_text(f"`{command}`\n\n{as_markdown(sheet)}", encoding="utf-8")


def legibility_figure(sheet: dict[str, Any]) -> Figure:
    """Accuracy against print size on the whole page, with and without the crop, a panel for each set of decks."""
    panels = {skill: views for skill, views in sheet.items() if skill.startswith("legibility")}
    figure = figures.new_figure(6.4 * len(panels), 4.2)
    for number, (skill, views) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for (view, scores), colour in zip(views.items(), figures.SERIES, strict=False):
            places = [PRINT_LABELS.index(group) for group in scores]
            values = [score["value"] for score in scores.values()]
            spread = [
                [v - score["low"] for v, score in zip(values, scores.values(), strict=True)],
                [score["high"] - v for v, score in zip(values, scores.values(), strict=True)],
            ]
            axes.errorbar(places, values, yerr=spread, marker="o", capsize=3, color=colour, label=view)
        axes.set_xticks(range(len(PRINT_LABELS)), PRINT_LABELS)
        title = f"{skill.removeprefix('legibility, ').capitalize()}: reading the page whole, or its crop"
        figures.chart(axes, title, "height of the print on the page as shown, pixels", "right answers")
        axes.set_ylim(-0.02, 1.02)
        figures.share_ticks(axes.yaxis)
        axes.legend(frameon=False)
    figure.set_layout_engine("constrained", w_pad=0.1)
    return figure


def on_foreign(profile: Profile, foreign: Path) -> Profile:
    """The profile on the foreign slides, prepared and indexed first."""
    work = profile.corpus_folder.with_name(f"{profile.corpus_folder.name}-foreign")  # for an index of its own
    elsewhere = profile.on_documents(foreign / "documents", work)
    elsewhere.prepare_corpus()
    elsewhere.build_index()
    return elsewhere


def both_decks(own: Path, foreign: Path, split: str, limit: int, seed: int) -> dict[str, Decks]:
    """Up to `limit` decks of a split, of our own corpus and foreign ones."""
    return {
        name: Decks(folder / "documents", read_questions(folder / f"questions.{split}.json"), limit, seed)
        for name, folder in (("own", own), ("foreign", foreign))
    }


def loops(profile: Profile, foreign: Path, split: str, count: int) -> dict[str, tuple[Environment, list[Question]]]:
    """Where the agent's loop is played: the profile's corpus, and the foreign slides, prepared and indexed first."""
    found = {}
    for name, one, folder in (
        ("own", profile, profile.corpus_folder),
        ("foreign", on_foreign(profile, foreign), foreign),
    ):
        environment = one.load_environment(one.search_engine())
        assert isinstance(environment, Environment), f"profile {profile.name} is not VRAG's"
        questions = read_questions(folder / f"questions.{split}.json")
        found[name] = (environment, drawn(questions, count, profile.evaluation.seed))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("data/models/nano-base"))
    parser.add_argument("--out", type=Path, default=Path("results/skills/nano-base"))
    parser.add_argument("--acting", action="store_true", help="the model is an agent: it answers with actions")
    parser.add_argument("--profile", default="nano", help="whose corpus, retriever and prompt the loop has")
    parser.add_argument("--foreign", type=Path, default=Path("data/foreign"))
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument("--count", type=int, default=60, help="samples of each skill and group")
    parser.add_argument("--decks", type=int, default=8, help="decks of each kind held in memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = TransformersPolicy(options.model, max_new_tokens=80, temperature=0.0, batch_size=8)
    profile = load_profile(options.profile)
    decks = both_decks(profile.corpus_folder, options.foreign, options.split, options.decks, options.seed)
    played = loops(profile, options.foreign, options.split, options.count)
    sheet = skill_sheet(Asker(policy, options.acting), decks, options.count, options.seed, played)
    write_sheet(sheet, options.out, "vrag_nb.nano.skills")
    figures.save(legibility_figure(sheet), options.out / "legibility.png")
    print(as_markdown(sheet))


if __name__ == "__main__":
    main()
