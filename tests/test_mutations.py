"""Damaged documents: each is accounted for, none ends or holds up the run, and the good ones are unharmed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from vrag_nb.documents import pages
from vrag_nb.documents.rendering import start_worker
from vrag_nb.documents.workers import TaskPool, TaskRaised, TimedOut, WorkerDied

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "mutations.py"
ENDLESS = "sum(iter(int, 1))"  # one call of C that never gives the interpreter back


@pytest.fixture(scope="module")
def mutations():
    specification = importlib.util.spec_from_file_location("mutations", BENCHMARK)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["mutations"] = module  # dataclasses look their module up there
    specification.loader.exec_module(module)
    return module


def start_warm() -> None:
    """A worker whose imports do not count as a document's time."""
    import pymupdf  # noqa: F401

    start_worker()


def test_damaged_files_are_named_and_the_good_unharmed(mutations, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "start_worker", start_warm)
    result = mutations.run(tmp_path, 30, 0, endless=1, workers=1, time_limit=6.0, max_page_pixels=1_000_000)
    assert result.problems == []
    assert sum(sum(counts.values()) for counts in result.outcomes.values()) == 30
    assert set(result.outcomes) == {*mutations.MUTATIONS, mutations.ENDLESS}
    assert result.outcomes[mutations.ENDLESS] == {"given up": 1}
    assert result.outcomes["empty"].keys() == {"refused"}


def test_the_same_seed_damages_the_same_way(mutations, tmp_path):
    good = mutations.good_documents()
    made = [mutations.write_mutations(tmp_path / name, good, 30, seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    seeded = [file for file in made[0] if made[0][file] != "encrypted"]
    content = [[(tmp_path / name / file).read_bytes() for file in seeded] for name in "ab"]
    assert made[0] == made[1]
    assert content[0] == content[1]
    assert made[2] != made[0], "another seed takes other documents"


def test_a_lost_or_harmed_document_is_a_problem(mutations):
    made = {"1-flipped.pdf": "flipped", "2-flipped.pdf": "flipped"}
    report = pages.PrepReport(pages=0, documents=0, skipped=[pages.Skipped(file="bad/1-flipped.pdf", reason="broken")])
    result = mutations.judge(made, report, [])
    assert result.outcomes["flipped"] == {"refused": 1, "LOST": 1}
    assert result.problems == ["bad/2-flipped.pdf: LOST, []"]


def test_a_task_that_never_ends_is_given_up_and_those_beside_it_are_done():
    tasks = ["1 + 1", ENDLESS, "2 + 1", "3 + 1", "4 + 1", "5 + 1"]
    with TaskPool(2, time_limit=1.0) as pool:
        results = dict(pool.run(eval, tasks))
        slow = results.pop(ENDLESS)
        assert isinstance(slow, TimedOut)
        assert "longer than 1 s" in str(slow)
        assert sorted(results.values()) == [2, 3, 4, 5, 6]  # type: ignore[type-var]


def test_what_is_known_to_be_slow_is_not_tried():
    known = TimedOut("no")
    tasks = ["1 + 1", ENDLESS, "2 + 1"]
    with TaskPool(1) as pool:
        results = dict(pool.run(eval, tasks, lambda task: known if task == ENDLESS else None))
    assert results == {"1 + 1": 2, ENDLESS: known, "2 + 1": 3}


@pytest.mark.parametrize("limit", [None, 60.0])
def test_an_exception_stays_with_its_task(limit):
    tasks = ["1 + 1", "1 / 0", "__import__('os')._exit(9)"]
    with TaskPool(1, time_limit=limit) as pool:
        results = dict(pool.run(eval, tasks))
    assert results["1 + 1"] == 2
    assert results["1 / 0"] == TaskRaised("cannot be read: ZeroDivisionError: division by zero")
    assert results[tasks[2]] == WorkerDied()


def test_a_time_limit_is_above_zero(tmp_path):
    with pytest.raises(ValueError, match="time_limit 0"):
        pages.prepare_corpus(tmp_path, tmp_path / "corpus", time_limit=0)
