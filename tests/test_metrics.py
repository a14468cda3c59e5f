"""Retrieval metrics and intervals against figures worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vrag_nb.evaluation.metrics import Interval, bootstrap, ndcg_at_k, paired_bootstrap, recall_at_k, share_interval

GOLD = {"one": ["a"], "two": ["a", "b"], "none": [], "missing": ["a"], "empty": ["a"]}
RANKED = {"one": ["x", "a", "y"], "two": ["b", "x", "a"], "none": ["a"], "empty": []}


def test_recall_is_the_share_of_gold_pages_found():
    assert recall_at_k(RANKED, GOLD, 1) == {"one": 0, "two": 0.5, "missing": 0, "empty": 0}
    assert recall_at_k(RANKED, GOLD, 2) == {"one": 1, "two": 0.5, "missing": 0, "empty": 0}
    assert recall_at_k(RANKED, GOLD, 3) == {"one": 1, "two": 1, "missing": 0, "empty": 0}


def test_ndcg_with_one_and_two_gold_pages():
    found = ndcg_at_k(RANKED, GOLD, 5)
    assert found["one"] == pytest.approx(1 / math.log2(3))
    assert found["two"] == pytest.approx((1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3)))
    assert found["missing"] == found["empty"] == 0


def test_ndcg_ideal_is_cut_too():
    gold, ranked = {"q": list("abcdef")}, {"q": list("abc")}
    assert ndcg_at_k(ranked, gold, 3)["q"] == pytest.approx(1)


def test_order_is_the_engines_whatever_the_names():
    """trec_eval breaks ties of scores by name; ranks have none."""
    ranked = {"q": ["zeta", "alpha"], "r": ["alpha", "zeta"]}
    assert recall_at_k(ranked, {"q": ["zeta"], "r": ["zeta"]}, 1) == {"q": 1, "r": 0}


def test_no_gold_pages_at_all_and_bad_input():
    assert recall_at_k({}, {"q": []}, 1) == {}
    with pytest.raises(ValueError, match="k 0"):
        recall_at_k(RANKED, GOLD, 0)
    with pytest.raises(ValueError, match=r"'q': a page is ranked twice"):
        recall_at_k({"q": ["a", "a"]}, {"q": ["a"]}, 3)


def test_bootstrap_is_seeded_and_holds_the_mean():
    values = [1.0] * 30 + [0.0] * 70
    first = bootstrap(values)
    assert first == bootstrap(values)
    spread = [number / 7 for number in range(50)]
    assert bootstrap(spread) != bootstrap(spread, seed=1)
    assert first.value == pytest.approx(0.3)
    assert first.n == 100
    # the normal approximation says 0.3 +- 1.96 * sqrt(.3 * .7 / 100) = 0.210 .. 0.390
    assert first.low == pytest.approx(0.21, abs=0.02)
    assert first.high == pytest.approx(0.39, abs=0.02)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = 0
    for seed in range(200):
        interval = bootstrap(rng.random(80) < 0.4, seed=seed, samples=400)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.4 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_bootstrap_of_little():
    assert bootstrap([]) == Interval(value=None, low=None, high=None, n=0)
    assert bootstrap([1.0, 1.0]) == Interval(value=1, low=1, high=1, n=2)
    with pytest.raises(ValueError, match="level"):
        bootstrap([1.0], level=1.5)


def test_none_of_a_few_is_no_proof_that_none_can_be():
    none, some, full = share_interval([0.0] * 12), share_interval([1.0, 0.0, 1.0]), share_interval([1.0] * 12)
    assert (none.value, none.low) == (0, 0)
    assert none.high == pytest.approx(0.265, abs=1e-3)  # the exact interval of 0 of 12, from a table
    assert (full.value, full.high) == (1, 1)
    assert full.low == pytest.approx(1 - none.high)
    assert some == bootstrap([1.0, 0.0, 1.0])
    assert share_interval([]) == bootstrap([])
    assert share_interval([0.5, 0.5]) == bootstrap([0.5, 0.5])


def test_a_narrower_level_is_inside_a_wider_one():
    values = list(np.random.default_rng(0).random(50))
    wide, narrow = bootstrap(values, level=0.99), bootstrap(values, level=0.5)
    assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator]


def test_paired_bootstrap_goes_by_question():
    a = {"p": 1.0, "q": 1.0, "r": 0.0}
    b = {"r": 0.0, "p": 0.0, "q": 1.0}
    difference = paired_bootstrap(a, b)
    assert (difference.value, difference.n) == (pytest.approx(1 / 3, abs=1e-6), 3)
    assert paired_bootstrap(a, a) == Interval(value=0, low=0, high=0, n=3)
    assert paired_bootstrap([1, 1, 0], [0, 1, 0]) == difference


def test_pairing_is_narrower_than_the_sum_of_two_intervals():
    hard = np.random.default_rng(0).random(200)  # questions differ a lot, the systems always by a little
    little = 0.05 + 0.001 * np.random.default_rng(1).random(200)
    difference = paired_bootstrap(list(hard + little), list(hard))
    assert 0.05 < difference.low < difference.high < 0.051


def test_paired_bootstrap_refuses_different_questions():
    with pytest.raises(ValueError, match=r"1 in one only, such as 'q'"):
        paired_bootstrap({"p": 1.0, "q": 1.0}, {"p": 1.0})
    with pytest.raises(ValueError, match="2 values against 1"):
        paired_bootstrap([1, 2], [1])
    with pytest.raises(ValueError, match="both by uid"):
        paired_bootstrap({"p": 1.0}, [1])


def test_differences_that_are_all_alike_are_not_certain():
    assert paired_bootstrap([1], [0]) == Interval(value=1, low=-0.95, high=1, n=1)
    assert paired_bootstrap([0] * 3, [1] * 3).high > 0  # type: ignore[operator]
    assert paired_bootstrap([1] * 6, [0] * 6).low > 0, "as a sign test: one in 32"  # type: ignore[operator]
    assert paired_bootstrap([1] * 5, [0] * 5).low < 0  # type: ignore[operator]
    assert paired_bootstrap([1, 2 / 3], [2 / 3, 1 / 3]).low < 0  # type: ignore[operator]  # alike but for the last bit
