"""Do two judges agree? Two-by-two tables and Cohen's kappa between verdicts on the same predictions.

    found = agreement(by_rules, by_judge, (RULES, judge.model))            # verdicts by uid
    print(agreement_markdown([found]))
    print(judges_markdown({RULES: by_rules, judge.model: by_judge}))       # the accuracy that each would report

`evaluation.judged` has an evaluation judged.

Published accuracies differ more by judge than by method (one set of predictions: 37.9 and 80.1 under two judges, arXiv
2609.37349), so every table here names the judge of every figure.

Kappa (Cohen 1960) is (p_o - p_e) / (1 - p_e): p_o the share of predictions with the same verdict, p_e what two judges
with these shares of "right" would agree on by chance. 1 is full agreement, 0 chance, below 0 less than chance. It is
undefined, None, where both judges give one and the same verdict throughout. Intervals are 95% percentile bootstrap
intervals over predictions (pairs of verdicts), or over questions where several predictions are of one; resamples in
which kappa is undefined are left out of its interval.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from pydantic import BaseModel

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.metrics import Interval, share_interval
from vrag_nb.evaluation.report import estimate_text, markdown_table

RULES = "rules (answers.is_correct)"
Verdicts = Mapping[str, bool | None]  # by uid; None: the judge gave no verdict
QuestionOf = Callable[[str], str]  # the question that a prediction answers, of its uid
CELLS = ((True, True), (True, False), (False, True), (False, False))
Many = Callable[[Sequence[Trajectory]], Sequence[float | Exception]]


class Agreement(BaseModel):
    """Two judges on `n` predictions. `unjudged`: predictions that at least one of them gave no verdict on."""

    first: str
    second: str
    n: int
    both_right: int
    only_first_right: int
    only_second_right: int
    both_wrong: int
    same: Interval  # share of equal verdicts
    kappa: Interval
    unjudged: int = 0


def agreement(
    first: Verdicts,
    second: Verdicts,
    names: tuple[str, str],
    seed: int = 0,
    samples: int = 2000,
    question_of: QuestionOf = str,
) -> Agreement:
    """The agreement of two judges, named `names`, on the predictions that both know, by uid.

    question_of: where several predictions answer one question, as over seeds; they are resampled together.

    Raises ValueError when the two are not verdicts on the same predictions, or have one name.
    """
    odd = sorted(first.keys() ^ second.keys())
    if odd:
        raise ValueError(f"{names[0]} and {names[1]} judged different predictions: {len(odd)}, such as {odd[0]!r}")
    if names[0] == names[1]:
        raise ValueError(f"both judges are named {names[0]!r}: give each a name of its own")
    tables: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(CELLS), int))  # of every question
    for uid, one in first.items():
        if one is not None and second[uid] is not None:
            tables[question_of(uid)][CELLS.index((one, bool(second[uid])))] += 1
    each = np.array([*tables.values()]).reshape(-1, len(CELLS))
    cells = each.sum(0)
    same, kappa = _intervals(each, seed, samples)
    return Agreement(
        first=names[0],
        second=names[1],
        n=int(cells.sum()),
        both_right=int(cells[0]),
        only_first_right=int(cells[1]),
        only_second_right=int(cells[2]),
        both_wrong=int(cells[3]),
        same=same,
        kappa=kappa,
        unjudged=len(first) - int(cells.sum()),
    )


def kappa_of(cells: np.ndarray) -> np.ndarray:
    """Cohen's kappa of tables (..., 4): both right, only first, only second, both wrong; NaN where undefined."""
    counts = np.asarray(cells, dtype=float)
    total = counts.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b, c, d = (counts[..., place] / total for place in range(4))
        by_chance = (a + b) * (a + c) + (c + d) * (b + d)
        kappa: np.ndarray = np.where(by_chance < 1 - 1e-12, (a + d - by_chance) / (1 - by_chance), np.nan)
    return kappa


def accuracy_by(verdicts: Verdicts, seed: int = 0, question_of: QuestionOf = str) -> Interval:
    """The share of right answers among those that the judge gave a verdict on: the mean over questions, `n` of them."""
    said: defaultdict[str, list[bool]] = defaultdict(list)
    for uid, right in verdicts.items():
        if right is not None:
            said[question_of(uid)].append(right)
    return share_interval([sum(of_one) / len(of_one) for of_one in said.values()], seed)


def agreement_markdown(found: Sequence[Agreement]) -> str:
    """One row a pair of judges; a row names both."""
    head = ["judges", "same verdict [95%]", "kappa [95%]", "both right", "only first", "only second", "both wrong", "n"]
    rows = []
    for one in found:
        kappa = estimate_text(one.kappa.model_dump())
        counts = [one.both_right, one.only_first_right, one.only_second_right, one.both_wrong, one.n]
        same = estimate_text(one.same.model_dump())
        rows.append([f"{one.first} / {one.second}", same, kappa, *map(str, counts)])
    missing = [f"{one.first} / {one.second}: {one.unjudged} without a verdict." for one in found if one.unjudged]
    return "\n\n".join([markdown_table(head, rows), *missing]) + "\n"


def judges_markdown(verdicts: Mapping[str, Verdicts], seed: int = 0) -> str:
    """One row a judge: the accuracy it would report, on how many predictions, and how many it left unjudged."""
    rows = []
    for name, said in verdicts.items():
        accuracy = accuracy_by(said, seed)
        rows.append([name, estimate_text(accuracy.model_dump()), str(accuracy.n), str(len(said) - accuracy.n)])
    return markdown_table(["judge", "accuracy [95%]", "predictions", "no verdict"], rows) + "\n"


def _intervals(tables: np.ndarray, seed: int, samples: int) -> tuple[Interval, Interval]:
    """Of the share of equal verdicts and of kappa, from a table of every question, (questions, 4)."""
    if not len(tables):
        nothing = Interval(value=None, low=None, high=None, n=0)
        return nothing, nothing
    kinds, counts = np.unique(tables, axis=0, return_counts=True)  # questions alike are drawn together
    drawn = np.random.default_rng(seed).multinomial(len(tables), counts / len(tables), samples) @ kinds  # (samples, 4)
    cells = tables.sum(0)
    n = int(cells.sum())
    same = _interval((cells[0] + cells[3]) / n, (drawn[:, 0] + drawn[:, 3]) / drawn.sum(1), n)
    return same, _interval(float(kappa_of(cells)), kappa_of(drawn), n)


def _interval(value: float, drawn: np.ndarray, n: int) -> Interval:
    defined = drawn[~np.isnan(drawn)]
    if np.isnan(value) or not len(defined):
        return Interval(value=None, low=None, high=None, n=n)
    low, high = np.quantile(defined, [0.025, 0.975])
    return Interval(value=round(float(value), 6), low=round(float(low), 6), high=round(float(high), 6), n=n)
