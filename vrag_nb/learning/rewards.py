"""Rewards of a trajectory: small named parts, weighed together.

    reward = load_reward({"parts": {"outcome": 0.7, "pattern": 0.1, "retrieval": 0.2}, "gate": "pattern"})
    scored = reward.score(trajectories)          # one `Scored` each, in their order

A part is a function `(Trajectory) -> float`. To use one of your own, name it in a profile as `module:function`. A part
that must see many trajectories at once (a judge behind an endpoint) is a `BatchPart`, named likewise.

A part that fails on a trajectory gives that trajectory an error and no reward; the others keep theirs. Nothing here
turns a failure into a silent 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import linear_sum_assignment

from vrag_nb.agent.geometry import Box, iou
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import answered_right
from vrag_nb.loading import load_object

Part = Callable[[Trajectory], float]


class RewardError(ValueError):
    """A reward that cannot be worked out; the message says for which trajectory and why."""


@runtime_checkable
class BatchPart(Protocol):
    """A part that scores many trajectories at once; an exception in a trajectory's place is its error.

    identity: what the scores follow from, JSON-able; a model is not trained on under another.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def many(self, trajectories: Sequence[Trajectory]) -> Sequence[float | Exception]: ...


# --------------------------------------------------------------------------------------------------------------- parts


def outcome(trajectory: Trajectory) -> float:
    """1 for the right answer by rule (`evaluation.answers.answered_right`), else 0; no answer is wrong."""
    return float(bool(answered_right(trajectory, _reference(trajectory))))


def pattern(trajectory: Trajectory) -> float:
    """Pattern consistency: 1 when the model's own turns hold both a search and an answer, else 0.

    Upstream looks for the tags in the whole text, where its own messages to the model can satisfy the check; here only
    actions that were parsed from assistant turns count.
    """
    kinds = {turn.action.kind for turn in trajectory.turns}
    return float({"search", "answer"} <= kinds)


def retrieval(trajectory: Trajectory) -> float:
    """Retrieval efficiency, VRAG-RL equations 7 to 9: nDCG of the pages shown, in the order shown, gains 0 or 1.

    DCG = sum_i (2^s_i - 1) / log2(i + 1) over all pages shown; the ideal one has the gold pages first. A question
    without gold pages (unanswerable) has no ideal: 1 when no page was shown, else 0.
    """
    gold = set(_reference(trajectory).gold_page_ids)
    shown = trajectory.retrieved_page_ids
    if not gold:
        return float(not shown)
    gained = sum(1 / math.log2(rank + 1) for rank, page in enumerate(shown, start=1) if page in gold)
    return gained / sum(1 / math.log2(rank + 1) for rank in range(1, len(gold) + 1))


def region(trajectory: Trajectory) -> float:
    """UniDoc-RL's visual reward: F1 of crops and gold regions, matched where they overlap by an IoU of 0.5 or more.

    0 where there are gold regions and no crop. A question without gold regions gives 1 when nothing was cropped.
    """
    gold = [(page, box) for page, box in _gold_boxes(trajectory)]
    crops = _crop_boxes(trajectory)
    if not gold or not crops:
        return float(not gold and not crops)
    fits = [[iou(box, own) >= 0.5 and page == own_page for own_page, own in gold] for page, box in crops]
    matched = sum(fits[row][column] for row, column in zip(*linear_sum_assignment(fits, maximize=True), strict=True))
    return 2 * matched / (len(gold) + len(crops))


def selection(trajectory: Trajectory) -> float:
    """The share of gold pages among the pages that searches showed, each counted once: what UniDoc-RL rewards of its
    action of choosing a page, which the agent here does not have."""
    gold = set(_reference(trajectory).gold_page_ids)
    shown = trajectory.retrieved_page_ids
    return sum(page in gold for page in shown) / len(shown) if shown else 0.0


def brevity(trajectory: Trajectory) -> float:
    """1 for the shortest complete trajectory (a search and an answer), less with every further turn: 2 / turns."""
    return min(1.0, 2 / len(trajectory.turns)) if trajectory.turns else 0.0


def validity(trajectory: Trajectory) -> float:
    """The share of generations that are valid actions; upstream lets an invalid one cost its turn and nothing more."""
    written = sum(turn.generations for turn in trajectory.turns)
    return 1 - sum(turn.invalid for turn in trajectory.turns) / written if written else 0.0


def finish(trajectory: Trajectory) -> float:
    """1 for an answer given unasked, 0 for one that had to be asked for on the extra turn (`Turn.forced`), or none."""
    return float(any(turn.action.kind == "answer" and not turn.forced for turn in trajectory.turns))


PARTS: dict[str, Part] = {
    "outcome": outcome,
    "pattern": pattern,
    "retrieval": retrieval,
    "region": region,
    "selection": selection,
    "brevity": brevity,
    "validity": validity,
    "finish": finish,
}


def _reference(trajectory: Trajectory) -> Any:
    if trajectory.reference is None:
        raise RewardError(f"trajectory {trajectory.uid} has no reference question, so there is nothing to reward")
    return trajectory.reference


def _gold_boxes(trajectory: Trajectory) -> list[tuple[str, Box]]:
    """Gold regions as (page id, box in page fractions)."""
    question = _reference(trajectory)
    return [(f"{question.document}_{one.page}", one.box) for one in question.meta_info.reference_regions]


def _crop_boxes(trajectory: Trajectory) -> list[tuple[str, Box]]:
    """What was cropped, as (page id, box in page fractions); crops of pages of unknown size are left out."""
    found = []
    for seen in trajectory.observations:
        if seen.kind == "crop" and seen.crop_box is not None and seen.page_size is not None:
            width, height = seen.page_size
            x0, y0, x1, y1 = seen.crop_box
            found.append((str(seen.page_id), (x0 / width, y0 / height, x1 / width, y1 / height)))
    return found


# ----------------------------------------------------------------------------------------------------------- composite


class RewardConfig(BaseModel):
    """What a profile says of its reward.

    parts: weight by name of a part, or by `module:function`. gate: a part that must be above 0, or the whole reward is
    0 (upstream's format gate); none for "".
    """

    model_config = ConfigDict(extra="forbid")
    parts: dict[str, float] = Field(default_factory=lambda: {"outcome": 0.7, "pattern": 0.1, "retrieval": 0.2})
    gate: str = "pattern"


PRESETS: dict[str, RewardConfig] = {
    # upstream's released code: 0.7 judge + 0.1 format + 0.2 nDCG, nothing for a wrong format
    "vrag": RewardConfig(),
    # the paper's setting after SFT: no pattern part (gamma = 0); alpha and beta as in upstream's alternative
    "vrag-after-sft": RewardConfig(parts={"outcome": 0.8, "retrieval": 0.2}, gate=""),
    "outcome": RewardConfig(parts={"outcome": 1.0}, gate=""),
    "unidoc": RewardConfig(
        parts={"outcome": 0.6, "retrieval": 0.1, "selection": 0.1, "region": 0.1, "pattern": 0.1}, gate=""
    ),
    # for a policy that seldom crops and is seldom right: what is left is whether it looked where the answer stands
    "look": RewardConfig(parts={"outcome": 0.5, "region": 0.4, "pattern": 0.1}),
    # and for one that hardly keeps to the format, or to the turns it has
    "look-conduct": RewardConfig(
        parts={"outcome": 0.3, "region": 0.3, "validity": 0.15, "finish": 0.15, "pattern": 0.1}
    ),
}


@dataclass(frozen=True)
class Scored:
    """A trajectory's reward: the total and each part, or the error that kept it from being worked out."""

    total: float | None
    parts: Mapping[str, float]
    error: str | None = None


class Reward:
    """A weighted sum of parts behind a gate."""

    def __init__(self, parts: Mapping[str, tuple[Part | BatchPart, float]], gate: str = "") -> None:
        if gate and gate not in parts:
            raise ValueError(f"the gate {gate!r} is not a part of the reward; there are {', '.join(parts)}")
        self.parts, self.gate = dict(parts), gate

    def score(self, trajectories: Sequence[Trajectory]) -> list[Scored]:
        """One result per trajectory, in order."""
        whole = [trajectory for trajectory in trajectories if trajectory.status != "error"]
        columns = {name: _values(part, whole) for name, (part, _) in self.parts.items()}
        rows = iter([self._weigh({name: column[row] for name, column in columns.items()}) for row in range(len(whole))])
        return [
            Scored(None, {}, f"the trajectory ended in an error: {one.error}") if one.status == "error" else next(rows)
            for one in trajectories
        ]

    def _weigh(self, values: Mapping[str, float | Exception]) -> Scored:
        known = {name: value for name, value in values.items() if not isinstance(value, Exception)}
        problems = [f"{name}: {value}" for name, value in values.items() if isinstance(value, Exception)]
        if problems:
            return Scored(None, known, "; ".join(problems))
        closed = bool(self.gate) and known[self.gate] <= 0
        total = 0.0 if closed else sum(self.parts[name][1] * value for name, value in known.items())
        return Scored(total, known)


def _values(part: Part | BatchPart, trajectories: Sequence[Trajectory]) -> list[float | Exception]:
    if isinstance(part, BatchPart):
        return _values_together(part, trajectories)
    return [_value(part, trajectory) for trajectory in trajectories]


def _values_together(part: BatchPart, trajectories: Sequence[Trajectory]) -> list[float | Exception]:
    try:
        given = list(part.many(trajectories))
    except Exception as error:  # the other trajectories, and parts, are not lost for it
        return [error] * len(trajectories)
    if len(given) != len(trajectories):
        return [RewardError(f"the part gave {len(given)} values for {len(trajectories)} trajectories")] * len(
            trajectories
        )
    return [value if isinstance(value, Exception) else _finite(value) for value in given]


def _value(part: Part, trajectory: Trajectory) -> float | Exception:
    try:
        return _finite(part(trajectory))
    except Exception as error:  # one broken trajectory must not lose the others
        return error


def _finite(given: Any) -> float | RewardError:
    try:
        value = float(given)
    except (TypeError, ValueError):
        return RewardError(f"the part gave {given!r}, which is no number")
    return value if math.isfinite(value) else RewardError(f"the part gave {value}")


def load_reward(
    config: str | Mapping[str, Any] | RewardConfig, others: Mapping[str, Part | BatchPart] | None = None
) -> Reward:
    """The reward a profile names: a preset, or parts and weights.

    others: further parts by name, such as {"judge": Judge(...)}. Raises ValueError for an unknown preset or part.
    """
    if isinstance(config, str):
        if config not in PRESETS:
            raise ValueError(f"no reward preset {config!r}; there are {', '.join(PRESETS)}")
        config = PRESETS[config]
    config = RewardConfig.model_validate(config)
    known: dict[str, Part | BatchPart] = {**PARTS, **(others or {})}
    parts = {name: (known[name] if name in known else _imported(name), w) for name, w in config.parts.items()}
    return Reward(parts, config.gate)


def _imported(name: str) -> Part | BatchPart:
    """A part named `module:function`, or a `BatchPart`, or its class, which is given nothing, at `module:name`."""
    if ":" not in name:
        raise ValueError(f"no reward part {name!r}; there are {', '.join(PARTS)}, or name one as module:function")
    found = load_object(name, "the reward part")
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise ValueError(f"the reward part {name!r} cannot be made: {error}") from error
    if not (callable(found) or isinstance(found, BatchPart)):
        raise ValueError(f"the reward part {name!r} is neither a function nor a BatchPart")
    return found
