"""Trajectories while an agent is trained: files to inspect, and a table with images in wandb."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from transformers import TrainerCallback

from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Image
from vrag_nb.agent.trajectory import Trajectory, write_trajectories
from vrag_nb.learning.segments import conversations

COLUMNS = ["step", "question", "reference", "answer", "reward", "turns", "images"]


class HasTrajectories(Protocol):
    """A trainer that keeps the trajectories of its last step and of its last validation."""

    trajectories: list[Trajectory]
    dev_trajectories: list[Trajectory]


class TrajectoryTables(TrainerCallback):
    """Writes `step-000010.jsonl` (a step's trajectories) and `dev-000010.jsonl` (a validation's) into a folder.

    Where a wandb run is open, `rows` of each go into a table there, their images as the model saw them.
    """

    def __init__(self, trainer: HasTrajectories, folder: Path, pages: Pages, rows: int = 4) -> None:
        self.trainer, self.folder, self.pages, self.rows = trainer, Path(folder), pages, rows

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write("step", state, self.trainer.trajectories)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._write("dev", state, self.trainer.dev_trajectories)

    def _write(self, name: str, state: Any, trajectories: Sequence[Trajectory]) -> None:
        if not state.is_world_process_zero or not trajectories:
            return
        write_trajectories(self.folder / f"{name}-{state.global_step:06d}.jsonl", trajectories)
        if open_run() is not None:
            whole = [one for one in trajectories if one.status != "error"]  # a page of the others may not be readable
            open_run().log({f"trajectories/{name}": wandb_table(whole[: self.rows], state.global_step, self.pages)})


def open_run() -> Any:
    """The wandb run that is open in this process, or None."""
    import sys

    wandb = sys.modules.get("wandb")  # importing it takes a second, and a run that is open has done so
    return wandb.run if wandb is not None else None


def wandb_table(trajectories: Sequence[Trajectory], step: int, pages: Pages) -> Any:
    """A wandb table of trajectories: what was asked and said, and all images as the model saw them."""
    import wandb

    table = wandb.Table(columns=[*COLUMNS])
    for one in trajectories:
        messages = [message for conversation in conversations(one, pages) for message in conversation]
        shown = [part for message in messages for part in message.parts if isinstance(part, Image)]
        reference = one.reference.reference_answer if one.reference is not None else ""
        said = "\n\n".join(turn.text for turn in one.turns)
        images = [wandb.Image(image.resolved(), caption=image.page_id) for image in shown]
        table.add_data(step, one.question, reference, one.answer or "", one.rewards.get("total"), said, images)
    return table
