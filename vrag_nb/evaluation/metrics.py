"""Retrieval metrics per question, and intervals by bootstrap.

`recall_at_k` and `ndcg_at_k` go through ir-measures (MacAvaney et al., ECIR 2022), which hands them to pytrec_eval, so
they are the trec_eval definitions: with several gold pages recall@k is the share of them in the first k, so recall@1 of
a two-page question is at most 1/2, and nDCG@k has gain 1 for a gold page, discount 1 / log2(rank + 1) and the
ideal ranking of min(k, gold pages) gold pages as its denominator. Ranks, not scores, order the hits: equal scores stay
as the engine ordered them.

    per_question = recall_at_k(ranked, gold, k=3)          # {uid: 0..1}, questions without gold pages left out
    share_interval(list(per_question.values()))            # Interval(value=..., low=..., high=..., n=...)
    bootstrap(turns)                                       # the same of what is no share
    paired_bootstrap(agent, baseline)                      # of the difference, question by question

Intervals are percentile bootstrap intervals (Efron & Tibshirani 1993, chapter 13) over questions, 95% by default; of a
share that is 0 or 1 throughout, where no resample differs, they are the exact binomial ones (Clopper & Pearson 1934).
They say how far the figure depends on which questions were drawn; they know nothing of other seeds or other corpora.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ir_measures
import numpy as np
from ir_measures import R, nDCG
from pydantic import BaseModel

Ranked = Mapping[str, Sequence[str]]  # uid -> page ids, best first
Gold = Mapping[str, Sequence[str]]  # uid -> gold page ids
ALIKE = 1e-9  # means over seeds that are the same differ by the last bits
_CHUNK_CELLS = 4_000_000  # how many resampled values are held at once


class Interval(BaseModel):
    """A mean over `n` questions and its interval; value, low and high are None when n is 0."""

    value: float | None
    low: float | None
    high: float | None
    n: int


def recall_at_k(ranked: Ranked, gold: Gold, k: int) -> dict[str, float]:
    """Share of each question's gold pages among its first `k` results, by uid in `gold`'s order.

    Questions without gold pages are left out; one that is missing from `ranked`, or found nothing, counts 0.
    Raises ValueError for `k` below 1 or a page ranked twice.
    """
    return _per_question(R @ _positive(k), ranked, gold)


def ndcg_at_k(ranked: Ranked, gold: Gold, k: int) -> dict[str, float]:
    """nDCG of each question's first `k` results with binary gains; as `recall_at_k` otherwise."""
    return _per_question(nDCG @ _positive(k), ranked, gold)


def bootstrap(values: Sequence[float], seed: int = 0, samples: int = 2000, level: float = 0.95) -> Interval:
    """The mean of `values` and its percentile interval; the same values and seed give the same interval.

    Raises ValueError for `samples` below 1 or a `level` outside (0, 1).
    """
    if samples < 1 or not 0 < level < 1:
        raise ValueError(f"samples {samples} must be 1 or more and level {level} between 0 and 1")
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return Interval(value=None, low=None, high=None, n=0)
    means = np.concatenate(list(_resampled_means(array, seed, samples)))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value=_rounded(array.mean()), low=_rounded(low), high=_rounded(high), n=len(array))


def share_interval(values: Sequence[float], seed: int = 0, samples: int = 2000, level: float = 0.95) -> Interval:
    """As `bootstrap`, for shares in 0..1: none right of n is no proof that none can be."""
    found = bootstrap(values, seed, samples, level)
    reach = 1 - ((1 - level) / 2) ** (1 / found.n) if found.n else 0.0  # the exact bound for 0 of n
    if found.n and not any(values):
        return found.model_copy(update={"high": _rounded(reach)})
    if found.n and all(value == 1 for value in values):
        return found.model_copy(update={"low": _rounded(1 - reach)})
    return found


def paired_bootstrap(
    a: Mapping[str, float] | Sequence[float],
    b: Mapping[str, float] | Sequence[float],
    seed: int = 0,
    samples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """The mean of `a - b`, question by question, and its interval: one that excludes 0 tells the two apart.

    Where all differences are the same, which resampling takes for certain, the interval is that of a sign test: of n
    alike, so many might have been as large the other way.

    a, b: by uid, or in the same order. Raises ValueError when they are not of the same questions.
    """
    if isinstance(a, Mapping) != isinstance(b, Mapping):
        raise ValueError("give both by uid, or both in the same order")
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        odd = sorted(a.keys() ^ b.keys())
        if odd:
            raise ValueError(f"the two are not of the same questions: {len(odd)} in one only, such as {odd[0]!r}")
        first, second = [a[uid] for uid in a], [b[uid] for uid in a]
    else:
        first, second = [float(value) for value in a], [float(value) for value in b]  # type: ignore[arg-type]
    if len(first) != len(second):
        raise ValueError(f"the two are not of the same questions: {len(first)} values against {len(second)}")
    differences = [one - other for one, other in zip(first, second, strict=True)]
    found = bootstrap(differences, seed, samples, level)
    if not differences or max(differences) - min(differences) > ALIKE:
        return found
    reach = 2 * differences[0] * (1 - ((1 - level) / 2) ** (1 / len(differences)))
    ends = sorted((differences[0] - reach, differences[0]))
    return found.model_copy(update={"low": _rounded(ends[0]), "high": _rounded(ends[1])})


def _per_question(measure: Any, ranked: Ranked, gold: Gold) -> dict[str, float]:
    with_gold = {uid: pages for uid, pages in gold.items() if pages}
    if not with_gold:
        return {}
    qrels = {uid: dict.fromkeys(pages, 1) for uid, pages in with_gold.items()}
    run: dict[str, dict[str, float]] = {}
    for uid in with_gold:
        pages = list(ranked.get(uid, ()))
        if len(set(pages)) < len(pages):
            raise ValueError(f"question {uid!r}: a page is ranked twice")
        run[uid] = {page: float(len(pages) - place) for place, page in enumerate(pages)}
    found = dict.fromkeys(with_gold, 0.0)
    found.update({one.query_id: float(one.value) for one in ir_measures.iter_calc([measure], qrels, run)})
    return found


def _positive(k: int) -> int:
    if k < 1:
        raise ValueError(f"k {k} must be 1 or more")
    return k


def _resampled_means(values: np.ndarray, seed: int, samples: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK_CELLS // len(values))
    for start in range(0, samples, rows):
        picked = rng.integers(0, len(values), (min(rows, samples - start), len(values)))
        yield values[picked].mean(axis=1)


def _rounded(value: Any) -> float:
    return round(float(value), 6)  # the last bits differ between machines; nobody reads them
