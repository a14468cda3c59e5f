"""A run of training steps: its schedule, log and state."""

from __future__ import annotations

import pytest
import torch

from vrag_nb.learning.curves import read_log
from vrag_nb.nano.optimisation import Schedule
from vrag_nb.nano.training import Training


def begun(folder, steps, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return model, Training(folder, {"model": model}, Schedule(steps=steps, **options))


def take_steps(model, training):
    for step in training:
        model(torch.full((1, 3), 1.0 + step)).sum().backward()
        training.tell(loss=float(step))
        training.blend(0.5, share=1.0)
        training.kept["last"] = step


def test_a_run_goes_on_where_it_was_left(tmp_path):
    whole, training = begun(tmp_path / "whole", 6, log_every=2)
    take_steps(whole, training)
    model, first = begun(tmp_path / "parts", 6, log_every=2, save_every=3)
    for step in first:  # killed in its fifth step, after the save of the third
        if step == 4:
            break
        model(torch.full((1, 3), 1.0 + step)).sum().backward()
        first.tell(loss=float(step))
        first.blend(0.5, share=1.0)
        first.kept["last"] = step
    again, second = begun(tmp_path / "parts", 6, log_every=2)
    assert (second.step, second.kept["last"], second.means) == (3, 2, {"share": 0.875})
    take_steps(again, second)
    assert torch.equal(again.weight, whole.weight)
    logs = [[row["loss"] for row in read_log(tmp_path / name / "log.jsonl")] for name in ("whole", "parts")]
    assert logs == [[0.0, 1.0, 3.0, 5.0], [0.0, 1.0, 3.0, 5.0]]


def test_slow_steps_are_saved_as_minutes_pass(tmp_path, monkeypatch):
    monkeypatch.setattr("vrag_nb.nano.training.SAVE_AFTER", 0.0)
    _, training = begun(tmp_path, 6, save_every=100)
    for step in training:
        if step == 4:  # killed
            break
    assert begun(tmp_path, 6)[1].step == 4


def test_a_run_whose_budget_is_spent_takes_no_step(tmp_path):
    model, training = begun(tmp_path, 2)
    take_steps(model, training)
    before = model.weight.clone()
    again, training = begun(tmp_path, 2)
    assert list(training) == []
    assert torch.equal(again.weight, before)
    assert list(begun(tmp_path, None, seconds=1e-6)[1]) == []


def test_waiting_is_told_of_runs_that_wait(tmp_path):
    model, training = begun(tmp_path, 1)
    batches = iter([torch.ones(1, 3)])
    for _ in training:
        model(training.next(batches)).sum().backward()
    (row,) = read_log(tmp_path / "log.jsonl")
    assert row["step"] == 1
    assert 0 <= row["waiting"] < 1


def test_a_state_of_other_parts_is_an_error(tmp_path):
    model, training = begun(tmp_path, 1)
    take_steps(model, training)
    with pytest.raises(KeyError, match="head"):
        Training(tmp_path, {"head": model}, Schedule(steps=1))


def test_a_run_ends_with_the_budget_that_is_spent_first():
    schedule = Schedule(60.0, steps=100)
    assert schedule.progress(30.0, 25) == schedule.progress(0.0, 50) == 0.5
    assert Schedule(60.0).progress(90.0, 10**6) == 1.5
    assert Schedule(steps=4).progress(1e9, 3) == 0.75
    with pytest.raises(ValueError, match="seconds or steps"):
        Schedule(muon_lr=1e-3)


def test_rates_rise_stay_and_fall():
    schedule = Schedule(steps=1, warmup=0.1, decay=0.4)
    shares = [schedule.share_of_peak(progress) for progress in (0.0, 0.05, 0.2, 0.6, 0.8, 1.0, 1.2)]
    assert shares == pytest.approx([0.001, 0.501, 1.0, 1.0, 0.5, 0.0, 0.0])
