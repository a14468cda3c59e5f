"""What a profile says of its evaluation: the arguments of `evaluate`, and of `compare_policies`, that it settles.

told = evaluation_of(profile, limit=limit)
metrics = evaluate(questions=questions, engine=engine, policy=policy, systems=systems, out=out, **told)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.paths import shown_path
from vrag_nb.profiles import Profile


class Told(TypedDict):
    """As the arguments of `evaluate` by these names."""

    corpus: Path
    settings: Settings | MemorySettings
    prompt: str
    seed: int
    concurrency: int
    run_info: dict[str, Any]


def evaluation_of(profile: Profile, seed: int | None = None, **run_info: Any) -> Told:
    """Corpus, task, prompt, seed and concurrency, and what `run` says of the profile.

    seed: by default the profile's. run_info: further entries, such as how many questions were drawn.
    """
    about = {"profile": profile.name, "retriever": profile.retriever.kind, "corpus": shown_path(profile.corpus_folder)}
    return {
        "corpus": profile.corpus_folder,
        "settings": profile.task(),
        "prompt": profile.agent.prompt,
        "seed": profile.evaluation.seed if seed is None else seed,
        "concurrency": profile.evaluation.concurrency,
        "run_info": {**about, **run_info},
    }
