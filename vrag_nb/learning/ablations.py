"""The paper's ablation of rewards and actions (VRAG-RL, arXiv 2505.22019, table 2), a training run a cell and seed.

    found = ablate(profile, "data/runs/ablations", "results/ablations", seeds=[0, 1, 2])
    found["search and crop, vrag"]      # the figures of every seed; "search and crop, start": of the start

Every cell is GRPO from the same checkpoint on the same questions, under its own actions and reward, and is then
evaluated on the profile's test questions under these actions:

| reward | a preset of `learning.rewards`: `outcome`: right answers alone; `vrag`: with pattern and retrieval, gated |
| actions | search alone (boxes are refused), search and crop |

`ablations.json` in the results folder holds what is returned, the evaluations lie below `{actions}/`, and
`evaluation.ablation_table` makes a table of both. Interrupted, it goes on: trained cells are not trained again, and no
question is asked twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.trajectory import read_trajectories
from vrag_nb.evaluation.ablation_table import FIGURES, actions_folder
from vrag_nb.evaluation.baselines import no_crop_environment
from vrag_nb.evaluation.evaluate import evaluate
from vrag_nb.evaluation.of_profile import evaluation_of
from vrag_nb.files import write_json
from vrag_nb.learning.curves import read_log
from vrag_nb.learning.of_profile import reward_of
from vrag_nb.learning.stages import reinforcement
from vrag_nb.learning.trainers import train
from vrag_nb.paths import project_path
from vrag_nb.profiles import Profile

REWARDS = ("outcome", "vrag")
SYSTEMS = {"search": "agent_no_crop", "search and crop": "agent"}  # actions, and the system that evaluates them


@dataclass(frozen=True)
class Cell:
    """One training run. Raises ValueError for actions that are none of SYSTEMS."""

    actions: str
    reward: str
    seed: int

    def __post_init__(self) -> None:
        if self.actions not in SYSTEMS:
            raise ValueError(f"there are no actions {self.actions!r}; choose of {', '.join(map(repr, SYSTEMS))}")

    @property
    def row(self) -> str:
        """The name of its row, which its seeds share."""
        return f"{self.actions}, {self.reward}"

    def folder(self, run: Path) -> Path:
        """Where it is trained."""
        return Path(run) / f"{actions_folder(self.actions)}-{self.reward}-{self.seed}"


def cells(
    actions: Sequence[str] = tuple(SYSTEMS), rewards: Sequence[str] = REWARDS, seeds: Sequence[int] = (0, 1, 2)
) -> list[Cell]:
    """All of them, the seeds of a row one after the other."""
    return [Cell(one, reward, seed) for one in actions for reward in rewards for seed in seeds]


def environment(profile: Profile, engine: Any, actions: str) -> Environment:
    """The agent's environment with these actions."""
    if actions == "search and crop":
        return Environment(engine, profile.corpus_folder, profile.settings(), profile.agent.prompt)
    return no_crop_environment(engine, profile.corpus_folder, profile.settings(), profile.agent.prompt)


def train_cell(profile: Profile, engine: Any, start: Path, run: Path, cell: Cell, **changes: Any) -> Path:
    """Train one cell from the checkpoint `start`; its own checkpoint. `changes`: of GRPOSettings."""
    _, questions = profile.training_questions()
    world, reward = environment(profile, engine, cell.actions), reward_of(profile, cell.reward)
    return train(
        reinforcement(profile, start, cell.folder(run), questions, (), world, reward, seed=cell.seed, **changes)
    )


def ablate(
    profile: Profile,
    run: Path | str,
    out: Path | str,
    chosen: Sequence[Cell] = (),
    start: Path | str = "",
    limit: int | None = None,
    **changes: Any,
) -> dict[str, list[dict[str, float]]]:
    """Train and evaluate cells; {row: `seed` and FIGURES of every run}, with the start's under each of the actions.

    chosen: by default all `cells()`. start: the checkpoint to start from, by default the profile's base. limit: test
    questions, by default as many as the profile says. changes: of GRPOSettings.
    """
    run, out = Path(run), Path(out)
    start = project_path(start) if start else Path(profile.base_checkpoint)
    engine = profile.search_engine()
    found: dict[str, list[dict[str, float]]] = {}
    for cell in chosen or cells():
        measure = partial(_evaluated, profile, engine, cell.actions, out, limit)
        if (before := f"{cell.actions}, start") not in found:
            found[before] = [measure("start", start)]
        final = train_cell(profile, engine, start, run, cell, **changes)
        figures = measure(f"{cell.reward}-{cell.seed}", final)
        found.setdefault(cell.row, []).append({"seed": cell.seed, **figures})
        write_json(out / "ablations.json", found)
    return found


def _evaluated(
    profile: Profile, engine: Any, actions: str, out: Path, limit: int | None, label: str, checkpoint: Path
) -> dict[str, float]:
    policy, system = profile.load_policy(checkpoint), SYSTEMS[actions]
    metrics = evaluate(
        policy=policy,
        systems=[system],
        out=out / actions_folder(actions) / label,
        questions=profile.questions(limit),
        engine=engine,
        **evaluation_of(profile, limit=limit or profile.evaluation.limit),
    )
    policy.close()
    answers = metrics["answers"][system]
    measured = {"accuracy": answers["accuracy"], **answers["behaviour"]}
    return {name: measured[name]["value"] for name in FIGURES if name in measured}


def logs(run: Path | str, chosen: Sequence[Cell]) -> Mapping[str, list[list[dict[str, Any]]]]:
    """What the cells logged while they learned, by row: a list of steps for each seed."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for cell in chosen:
        found.setdefault(cell.row, []).append(read_log(cell.folder(Path(run)) / "log.jsonl"))
    return found


def groups(run: Path | str, chosen: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """What GRPO could learn from, by row, over all steps and seeds: shares of the groups of one question.

    `right`: with a right answer in it; `telling`: whose rewards differ, for the advantages of the others are all 0.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for cell in chosen:
        for file in sorted((cell.folder(Path(run)) / "trajectories").glob("step-*.jsonl")):
            found.setdefault(cell.row, []).extend(_told(group) for group in _by_question(file))
    return {
        row: {
            "groups": len(told),
            "right": statistics.mean(right for right, _ in told),
            "telling": statistics.mean(telling for _, telling in told),
        }
        for row, told in found.items()
    }


def _by_question(file: Path) -> list[list[Mapping[str, float]]]:
    """The rewards of every group in a step's trajectories; those that could not be scored have none."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for one in read_trajectories(file):
        if one.rewards:
            found.setdefault(one.question_uid, []).append(one.rewards)
    return list(found.values())


def _told(group: Sequence[Mapping[str, float]]) -> tuple[bool, bool]:
    right = any(one["outcome"] > 0 for one in group)
    return right, len({one["total"] for one in group}) > 1
