"""What a result says of the code it was made with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vrag_nb.provenance import git_commit


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def test_changed_code_is_said_and_changed_results_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # in a hook they name the repository that is being committed to
    for name in ("code.py", "results/metrics.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-m", "one")
    clean = git_commit(tmp_path)
    assert clean
    assert len(clean) == 40
    (tmp_path / "results/metrics.json").write_text("2")
    assert git_commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("2")
    assert git_commit(tmp_path) == f"{clean}+changes"
    assert git_commit(tmp_path / "nowhere") is None
