"""What GGPO's mask is worth where all there is to learn is what to search for: GGPO against GSPO, many seeds.

    python benchmarks/credit.py --out results/credit [--pages 4] [--seeds 24] [--steps 16]

The environment, the retriever, the memory graph, the mask and the loss are those of a training run (VimRAG,
arXiv 2602.12735, equations 11 and 12). The policy is not a model but a table of logits, so that a run takes seconds and
no misread number hides what credit assignment does. Asked a long question (`vrag_nb/evaluation/long_questions.py`), it
draws, at every search, one of four things, with a distribution of its own for every number of searches made so far:

needed      the next page that is still missing, as the planner searches for it (`learning/memory_expert.py`)
elsewhere   a page of the same document that the question does not need
again       what was searched for last
give up     an answer, though pages are missing

What a search brings is written down by the planner, and once all pages are found it answers; a trajectory is right or
wrong, and nothing else is rewarded. Both algorithms start from one table (`give up` rarer, all else alike) and draw
from the same seeds, `--questions-per-step` questions a step, `--samples` trajectories each. Printed and written: the
share of development questions right before and after, and over all steps, with 95% bootstrap intervals over seeds; the
share of decisions without a gradient; and after how many steps each algorithm had come half and nine tenths of the way
that GSPO goes, read off the mean of the seeds. Interrupted, it goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from made_with import digest
from PIL.Image import Image
from PIL.Image import new as new_image
from tables import bracketed, tell
from tqdm.auto import tqdm

from vrag_nb.agent.memory_actions import TOOLS
from vrag_nb.agent.memory_context import GRAPH_HEAD
from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.memory_graph import ANSWER, ROOT
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Generation, Policy
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.evaluation.long_questions import long_questions
from vrag_nb.evaluation.metrics import bootstrap
from vrag_nb.files import write_json
from vrag_nb.learning.advantages import group_advantages
from vrag_nb.learning.curves import over_seeds
from vrag_nb.learning.ggpo import ggpo_loss
from vrag_nb.learning.memory_expert import NO_ANSWER, MemoryPlanner
from vrag_nb.learning.segments import node_masks
from vrag_nb.paths import project_path
from vrag_nb.plotting import figures, plots
from vrag_nb.profiles import load_profile, sample
from vrag_nb.records import Hit, Question

BLANK = new_image("RGB", (28, 28), "white")
NEEDED, ELSEWHERE, AGAIN, GIVE_UP = range(4)
START = (0.0, 0.0, 0.0, -2.0)  # logits
ALGORITHMS = ("gspo", "ggpo")
HEADER = ["algorithm", "dev right, start", "end", "over all steps", "without a gradient", "half way", "nine tenths"]
WAY = (0.5, 0.9)  # of what GSPO gains
RIGHT, MASKED = "right", "masked"


class Remembering:
    """A search engine that is asked each query once."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.known = engine, dict[str, list[Hit]]()
        self.fingerprint = engine.fingerprint

    def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
        """The best `top_k` pages of every query; the first search settles how many there are."""
        new = [query for query in dict.fromkeys(queries) if query not in self.known]
        self.known |= dict(zip(new, self.engine.search(new, top_k), strict=True)) if new else {}
        return [self.known[query][:top_k] for query in queries]


class Unseen(PageStore):
    """The pages of a corpus for a policy that looks at none: all are blank, and none is decoded."""

    def image(self, page_id: str) -> Image:
        """A blank square in place of the page."""
        return BLANK


class Searcher(Policy):
    """Decides what to search for by `logits`, (searches made so far, options), and does all else as the planner.

    A generation's only token is the option drawn, so that trajectories hold what was decided; where nothing was, none.
    elsewhere: by question, what could be searched for in vain.
    """

    name = "searcher"

    def __init__(self, questions: Sequence[Question], elsewhere: Mapping[str, Sequence[str]], searches: int) -> None:
        self.planner = MemoryPlanner(questions, follow_misses=False)
        self.elsewhere = elsewhere
        self.logits = torch.nn.Parameter(torch.tensor(START).repeat(searches, 1))

    def generate(self, conversations: Sequence[Conversation], seeds: Sequence[int] | None = None) -> list[Generation]:
        """See `Policy.generate`."""
        assert seeds is not None, "decisions are drawn"
        planned = self.planner.generate(conversations)
        return [self._decided(*one) for one in zip(conversations, planned, seeds, strict=True)]

    def logps(self, made: torch.Tensor) -> torch.Tensor:
        """(n, options) log-probabilities where so many searches (n,) were made; none is repeated before the first."""
        logits = self.logits[made.clamp(max=len(self.logits) - 1)]
        impossible = (made == 0)[:, None] & (torch.arange(len(START)) == AGAIN)
        return logits.masked_fill(impossible, -torch.inf).log_softmax(1)

    def _decided(self, conversation: Conversation, planned: Generation, seed: int) -> Generation:
        call = json.loads(planned.text.partition("<tool_call>")[2].partition("</tool_call>")[0])
        if call["name"] != TOOLS["retrieve"]:
            return planned
        opening, rng = conversation[0].text, random.Random(seed)
        nodes = [json.loads(line) for line in opening.rpartition(GRAPH_HEAD)[2].splitlines() if line[:6] == '{"id":']
        made = [node["query"] for node in nodes if node["id"] != ROOT]
        with torch.no_grad():
            logps = self.logps(torch.tensor([len(made)]))[0].tolist()
        option = rng.choices(range(len(logps)), [math.exp(value) for value in logps])[0]
        if option == GIVE_UP:
            call = {
                "name": TOOLS["answer"],
                "arguments": {"parent_ids": [node["id"] for node in nodes][1:] or [ROOT], "answer": NO_ANSWER},
            }
        elif option == AGAIN:
            call["arguments"]["query"] = made[-1]
        elif option == ELSEWHERE:
            asked = max((query for query in self.elsewhere if query in opening), key=len)
            call["arguments"]["query"] = rng.choice(self.elsewhere[asked])
        text = f"<think>Option {option}.</think>\n<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"
        return Generation(text, token_ids=[option], logprobs=[logps[option]])


@dataclass(frozen=True)
class Decisions:
    """What trajectories decided, (n,) each: the trajectory's row, searches made before, option, its log-probability
    when it was drawn, and mu."""

    rows: torch.Tensor
    made: torch.Tensor
    options: torch.Tensor
    logps: torch.Tensor
    masked: torch.Tensor


def decisions(trajectories: Sequence[Trajectory], right: Sequence[bool]) -> Decisions:
    """The decisions of trajectories, with GGPO's mask."""
    found = []
    for row, (one, was_right) in enumerate(zip(trajectories, right, strict=True)):
        masks = node_masks(one, was_right)
        made = 0
        for turn in one.turns:
            if turn.token_ids and not turn.forced and turn.memory is not None:
                mu = masks.get(turn.memory.node or ANSWER, was_right)
                found.append((row, made, turn.token_ids[0], turn.logprobs[0], mu))
            made += turn.action.kind == "search"
    rows, made_so_far, options, logps, masked = zip(*found, strict=True)
    return Decisions(
        torch.tensor(rows), torch.tensor(made_so_far), torch.tensor(options), torch.tensor(logps), torch.tensor(masked)
    )


def loss_of(policy: Searcher, made: Decisions, advantages: torch.Tensor, algorithm: str) -> torch.Tensor:
    """Equation 12 over the decisions, each a segment of one token; GSPO masks none."""
    now = policy.logps(made.made).gather(1, made.options[:, None])
    masked = made.masked if algorithm == "ggpo" else torch.zeros_like(made.masked)
    written = torch.ones_like(now, dtype=torch.bool)
    return ggpo_loss(now, made.logps[:, None], written, advantages[made.rows], masked)


def judged(trajectories: Sequence[Trajectory], questions: Sequence[Question]) -> list[bool]:
    """Which are right; the samples of a question lie side by side."""
    samples = len(trajectories) // len(questions)
    asked = [question for question in questions for _ in range(samples)]
    return [
        is_correct(one.answer, question.reference_answer) for one, question in zip(trajectories, asked, strict=True)
    ]


def trained(
    world: MemoryEnvironment,
    questions: Mapping[str, Sequence[Question]],
    elsewhere: Mapping[str, Sequence[str]],
    algorithm: str,
    seed: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The log of one run: development questions right at every step, and what of the decisions was masked."""
    policy = Searcher([*questions["train"], *questions["dev"]], elsewhere, world.settings.max_steps // 2)
    optimiser = torch.optim.Adam([policy.logits], lr=options.rate)
    order, log = random.Random(seed), list[dict[str, Any]]()
    played = partial(rollout, policy, world, concurrency=64, progress=False)
    for step in range(options.steps + 1):
        right = judged(played(questions["dev"], seed=seed * 1009 + step), questions["dev"])
        log.append({"step": step, RIGHT: statistics.mean(right)})
        if step == options.steps:
            break
        asked = order.sample(questions["train"], options.questions_per_step)
        groups = played(asked, samples=options.samples, seed=seed * 1009 + step)
        right = judged(groups, asked)
        made = decisions(groups, right)
        advantages = group_advantages(torch.tensor(right, dtype=torch.float32), options.samples)
        optimiser.zero_grad()
        loss_of(policy, made, advantages, algorithm).backward()
        optimiser.step()
        if algorithm == "ggpo":
            log[-1][MASKED] = made.masked.float().mean().item()
    return log


def in_vain(long: Sequence[Question], single: Sequence[Question]) -> dict[str, list[str]]:
    """By long question, hints at pages of its document that it does not need."""
    by_document: dict[str, list[tuple[set[str], list[str]]]] = {}
    for one in single:
        hints = [fact["search_hint"] for fact in one.needed_facts]
        by_document.setdefault(one.document, []).append((set(one.gold_page_ids), hints))
    found = {}
    for question in long:
        gold = set(question.gold_page_ids)
        hints = [hint for pages, own in by_document[question.document] if not pages & gold for hint in own]
        found[question.query] = list(dict.fromkeys(hints))[:3]
    return {query: hints for query, hints in found.items() if hints}


def steps_to(curve: Sequence[float], goal: float) -> float | None:
    """After how many steps a curve, a value a step from the start on, first meets `goal`; between two steps it is a
    straight line. None where it never does."""
    for step, (before, after) in enumerate(pairwise(curve)):
        if before < goal <= after:
            return step + (goal - before) / (after - before)
    return None


def rows(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[list[str]]:
    """A row an algorithm, and their difference, seed by seed."""
    found, areas = [], {}
    curves = {name: [statistics.mean(values) for _, values in over_seeds(logs, RIGHT)] for name, logs in runs.items()}
    first, last = curves["gspo"][0], curves["gspo"][-1]
    for name, logs in runs.items():
        ends = [[log[place][RIGHT] for log in logs] for place in (0, -1)]
        areas[name] = [statistics.mean(row[RIGHT] for row in log) for log in logs]
        masked = [row[MASKED] for log in logs for row in log if MASKED in row]
        cells = [bracketed(bootstrap(values)) for values in (*ends, areas[name])]
        met = [steps_to(curves[name], first + way * (last - first)) for way in WAY]
        share = f"{statistics.mean(masked):.2f}" if masked else "–"
        found.append([name, *cells, share, *("never" if steps is None else f"{steps:.1f} steps" for steps in met)])
    gained = bootstrap([a - b for a, b in zip(areas["ggpo"], areas["gspo"], strict=True)])
    return [*found, ["ggpo less gspo", "", "", bracketed(gained), "", "", ""]]


def kept(path: Path, settings: Mapping[str, Any]) -> dict[str, list[list[dict[str, Any]]]]:
    """The logs of runs with these settings that a file holds, by algorithm."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return held["runs"] if held.get("settings") == settings else {name: [] for name in ALGORITHMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="nano", help="whose corpus, retriever and questions")
    parser.add_argument("--pages", type=int, default=4, help="pages, and so searches, that a question needs at least")
    parser.add_argument("--questions", type=int, default=40, help="long questions, of each split at most")
    parser.add_argument("--generations", type=int, default=20, help="at most, two a search")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--questions-per-step", type=int, default=8)
    parser.add_argument("--samples", type=int, default=5, help="trajectories of a question: the group")
    parser.add_argument("--rate", type=float, default=0.2, help="of Adam")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("results/credit"))
    options = parser.parse_args()
    out, profile = project_path(options.out), load_profile(options.profile)
    single = {"train": profile.training_questions()[1], "dev": profile.dev_questions(100_000)}
    questions, elsewhere = {}, dict[str, list[str]]()
    for split, asked in single.items():
        joined = long_questions(asked, options.pages)
        elsewhere |= in_vain(joined, asked)
        questions[split] = sample([one for one in joined if one.query in elsewhere], options.questions, 0)
    settings = MemorySettings(memory="graph", max_steps=options.generations, top_k=1, min_pixels=784, max_pixels=3136)
    engine: Any = profile.search_engine()
    world = MemoryEnvironment(Remembering(engine), Unseen(profile.corpus_folder), settings)
    told = {name: value for name, value in vars(options).items() if name not in ("out", "seeds")}
    told |= {"engine": engine.fingerprint, "pages_of": digest(profile.corpus_folder / "pages.parquet")}
    runs = kept(out / "credit.json", told)
    for seed in tqdm(range(min(map(len, runs.values())), options.seeds), desc="seeds"):
        logs = {name: trained(world, questions, elsewhere, name, seed, options) for name in runs}
        runs = {name: [*before, logs[name]] for name, before in runs.items()}
        write_json(out / "credit.json", {"settings": told, "runs": runs})
    runs = {name: logs[: options.seeds] for name, logs in runs.items()}
    about = (
        f"{len(questions['dev'])} development questions of {options.pages} pages each, {len(questions['train'])} to "
        f"learn from; {options.seeds} seeds, {options.steps} steps of {options.questions_per_step} groups of "
        f"{options.samples}, {options.generations} generations at most. Brackets: 95% bootstrap over seeds."
    )
    tell("GGPO and GSPO on a table of logits", HEADER, rows(runs), about, out)
    curves = {"Right development answers": {name: over_seeds(logs, RIGHT) for name, logs in runs.items()}}
    figures.save(plots.seed_bands(curves, shares=curves), out / "credit.png")


if __name__ == "__main__":
    main()
