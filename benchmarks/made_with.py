"""What a benchmark keeps between two calls, and what it was made with; work made with something else is put aside."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from vrag_nb.agent.prompting import load_prompt
from vrag_nb.learning.stages import claim
from vrag_nb.loading import fingerprint_folder
from vrag_nb.profiles import Profile


def keep_rollouts(folder: Path, profile: Profile, engine: Any) -> None:
    """Make `folder` that of rollouts of the profile's agent as it is now; views of an image are told by the files.

    Raises FolderInUseError where another process is at work there.
    """
    options = {name: value for name, value in profile.policy.options.items() if name != "views"}
    weights = profile.checkpoint_folders.get("policy")
    about = {
        "policy": fingerprint_folder(weights) if weights else profile.policy.checkpoint,
        "options": options,
        "task": profile.task(),
        "prompt": load_prompt(profile.agent.prompt),
        "engine": engine.fingerprint,
        "pages": digest(profile.corpus_folder / "pages.parquet"),
    }
    claim(folder, about)


def digest(file: Path) -> str:
    """sha256 of a file; "" where it is not there."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
