"""A run of training steps: what the stages of the nano recipe share, whatever they teach.

    training = Training(folder, {"model": model}, Schedule(seconds=600))
    for _ in training:
        loss, right = ...
        loss.backward()
        training.tell(loss=loss.item())
        training.blend(accuracy=right)
    training.step, training.means  # where it stands

Before the loop whatever an earlier run left under the folder is put in place. Behind its body, in every round, the
optimisers step, the log gets a line now and then, and the state is saved, as often as the schedule says and every
minute: more a kill does not lose.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from vrag_nb.cpu_memory import bound_memory, give_back
from vrag_nb.learning.curves import RunLog
from vrag_nb.nano import replicas
from vrag_nb.nano.optimisation import Optimisers, Schedule, load_state, save_state
from vrag_nb.nano.replay import Replay

Batch = TypeVar("Batch")
SAVE_AFTER = 60.0  # seconds: a step may take a fifth of them


class Training:
    """Yields the number of steps taken before each, until the budget of the schedule is spent.

    Of several processes (`replicas`) each has samples of its own; the first one's clock, log and state count.

    step, spent: steps and seconds so far, those of earlier runs included. means: running means of what was `blend`ed.
    done: the share of the budget that is spent. kept: whatever else is to be saved and found again.
    """

    def __init__(self, folder: Path, parts: Mapping[str, nn.Module], schedule: Schedule) -> None:
        """parts: what learns, whatever of it requires gradients; saved under these names of `state.pt`."""
        self.folder, self.parts, self.schedule = Path(folder), dict(parts), schedule
        named = (one for part in self.parts.values() for one in part.named_parameters())
        self.optimisers = Optimisers(named, schedule)
        self.step, self.spent, self.means, self.kept = 0, 0.0, dict[str, float](), dict[str, Any]()
        self._waited: float | None = None
        self._told: dict[str, float] = {}
        if state := load_state(self.folder / "state.pt"):
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.optimisers.load_state_dict(state["optimisers"])
            self.step, self.spent = state["step"], state["spent"]
            self.means, self.kept = state["means"], state.get("kept", {})
        self.done = self._progress()
        self._log = RunLog(self.folder / "log.jsonl", self.step) if replicas.rank() == 0 else None

    def __iter__(self) -> Iterator[int]:
        bound_memory()
        saved = time.perf_counter()
        started = saved - self.spent
        while self.done < 1:
            yield self.step
            self.optimisers.step(self.done)
            self.step, self.spent = self.step + 1, time.perf_counter() - started
            self.done = self._progress()
            if self._log and (self.step % self.schedule.log_every == 0 or self.step == 1):
                self._log.write(step=self.step, seconds=self.spent, **self._waiting(), **self._told, **self.means)
            give_back()
            due = self.step % self.schedule.save_every == 0 or time.perf_counter() - saved > SAVE_AFTER
            if self._log and (due or self.done >= 1):
                self._save()
                saved = time.perf_counter()

    def tell(self, **values: float) -> None:
        """Figures of this step, for the log as they are."""
        self._told |= values

    def blend(self, share: float = 0.05, /, **values: float) -> None:
        """Figures of this step, for running means to which each new one gives `share`."""
        for name, value in values.items():
            self.means[name] = (1 - share) * self.means.get(name, 0.0) + share * value

    def next(self, batches: Iterator[Batch]) -> Batch:
        """The next batch; the log says for which share of the time it was waited, and how many were `fresh`."""
        before = time.perf_counter()
        batch = next(batches)
        self._waited = (self._waited or 0.0) + time.perf_counter() - before
        if isinstance(batches, Replay):
            self.tell(fresh=batches.fresh)
        return batch

    def _progress(self) -> float:
        return replicas.of_the_first(self.schedule.progress(self.spent, self.step))

    def _waiting(self) -> dict[str, float]:
        return {} if self._waited is None else {"waiting": self._waited / max(self.spent, 1e-9)}

    def _save(self) -> None:
        state: dict[str, Any] = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"optimisers": self.optimisers.state_dict(), "step": self.step, "spent": self.spent}
        save_state(self.folder / "state.pt", state | {"means": self.means, "kept": self.kept})
