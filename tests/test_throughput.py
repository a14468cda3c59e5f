"""How fast a logged stage ran."""

from __future__ import annotations

import pytest

from vrag_nb.learning.curves import RunLog
from vrag_nb.nano.throughput import throughput, throughput_table


def test_tokens_a_second_and_their_share_of_the_peak(tmp_path):
    log = RunLog(tmp_path / "log.jsonl", 0)
    log.write(step=1, seconds=10.0, tokens=1_000, fresh=1.0)
    log.write(step=11, seconds=20.0, tokens=21_000, fresh=0.5)
    found = throughput(tmp_path / "log.jsonl", text=100.0, vision=50.0, peak=36e6)
    assert (found.tokens, found.fresh, found.steps) == (2000.0, 0.5, 11)
    assert found.share == pytest.approx(2000 * 6 * 300 / 36e6)
    assert "| find | 11 | 20 | 2,000 | 10.00% | 0.50 |" in throughput_table({"find": found})


def test_a_log_without_tokens_is_refused(tmp_path):
    log = RunLog(tmp_path / "log.jsonl", 0)
    for step in (1, 2):
        log.write(step=step, seconds=float(step), loss=1.0)
    with pytest.raises(ValueError, match="does not count tokens"):
        throughput(tmp_path / "log.jsonl", 1.0, 1.0)
