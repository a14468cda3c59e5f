"""What a result says of the code it was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from vrag_nb.provenance import git_commit


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


def test_changed_code_is_said_and_changed_results_are_not(tmp_path: Path) -> None:
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
