"""Expert sampling: which trajectories of experts are worth learning from (VRAG-RL, section 3.3 and appendix B).

    trajectories = rollout(expert, environment, questions, out / "planner.jsonl", samples=4)   # resumable
    accounts = account("planner", trajectories)
    chosen = choose(trajectories, size=500)

A trajectory is kept when its answer is right, every turn was a valid action, every box lay on the image it was drawn
on, and it took between two and six turns. Of those that are the same but for a few pixels one is kept. What is left is
balanced by the number of turns and by the actions used, so that neither the short nor the long ones dominate.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import answered_right


@dataclass(frozen=True)
class Chosen:
    """What `choose` kept, in the order of the input, and why the others were dropped."""

    trajectories: list[Trajectory]
    dropped: Counter[str]


def fault(trajectory: Trajectory, turns: tuple[int, int] = (2, 6)) -> str | None:
    """Why a trajectory is not to be learned from, or None."""
    kinds = action_kinds(trajectory)
    if trajectory.status == "error":
        return "error"
    if not answered_right(trajectory):
        return "wrong answer"
    replies = [reply for turn in trajectory.turns if turn.memory for reply in turn.memory.replies]
    if "invalid" in kinds or any(reply.notice for reply in replies):
        return "invalid action"
    if any(turn.forced for turn in trajectory.turns):
        return "answer had to be forced"
    if not turns[0] <= len(trajectory.turns) <= turns[1]:
        return f"not {turns[0]} to {turns[1]} turns"
    if not all(_boxes_on_image(trajectory)):
        return "box beyond the image"
    return None


def action_kinds(trajectory: Trajectory) -> tuple[str, ...]:
    """The kind of each turn's action, in order."""
    return tuple(turn.action.kind for turn in trajectory.turns)


def _boxes_on_image(trajectory: Trajectory) -> Iterator[bool]:
    """Of each box, whether it lies on the image shown before it."""
    size: tuple[int, int] | None = None
    for turn in trajectory.turns:
        box = turn.action.box
        if turn.action.kind == "bbox" and box is not None:
            yield size is not None and 0 <= box[0] < box[2] <= size[0] and 0 <= box[1] < box[3] <= size[1]
        for seen in turn.observations:
            size = seen.shown_size or size


def choose(
    trajectories: Sequence[Trajectory], size: int | None = None, turns: tuple[int, int] = (2, 6), seed: int = 0
) -> Chosen:
    """Filter, drop twins, balance down to `size` (None: keep all that pass).

    Balancing takes one trajectory after another, of the number of turns that is rarest so far; among those, of the
    rarest set of actions, and of the question that has fewest.
    """
    dropped: Counter[str] = Counter()
    kept: dict[tuple[Any, ...], Trajectory] = {}
    for trajectory in trajectories:
        if reason := fault(trajectory, turns):
            dropped[reason] += 1
        elif (key := _identity(trajectory)) in kept:
            dropped["twin of another"] += 1
        else:
            kept[key] = trajectory
    passed = list(kept.values())
    picked = passed if size is None or len(passed) <= size else _balanced(passed, size, seed)
    dropped["not needed for balance"] += len(passed) - len(picked)
    return Chosen(picked, +dropped)


def _identity(trajectory: Trajectory, grid: int = 28) -> tuple[Any, ...]:
    """The question and its actions, boxes rounded to whole image squares; of VimRAG what was written down as well."""
    question = trajectory.question_uid
    actions = [
        (one.kind, one.query, one.argument, one.box and tuple(round(value / grid) for value in one.box))
        for one in (turn.action for turn in trajectory.turns)
    ]
    replies = (reply for turn in trajectory.turns if turn.memory for reply in turn.memory.replies)
    memory = [node["parents"] for node in trajectory.graph or []]
    return question, *actions, *(reply.action.model_dump_json() for reply in replies), str(memory)


def _balanced(trajectories: Sequence[Trajectory], size: int, seed: int) -> list[Trajectory]:
    """One after another: of the number of turns that is rarest so far, the rarest actions, the rarest question."""
    waiting = random.Random(seed).sample(range(len(trajectories)), len(trajectories))
    counts: Counter[Any] = Counter()
    taken: set[int] = set()
    while len(taken) < size:
        place = min(waiting, key=lambda one: [counts[trait] for trait in _traits(trajectories[one])])
        waiting.remove(place)
        taken.add(place)
        counts.update(_traits(trajectories[place]))
    return [trajectories[place] for place in sorted(taken)]


def _traits(trajectory: Trajectory) -> tuple[Any, ...]:
    return len(trajectory.turns), frozenset(action_kinds(trajectory)), trajectory.question_uid


def boxes_by(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """How many boxes a grounding expert redrew, and how many it left as the planner drew them; empty where none was."""
    drawn = [turn.redrawn for one in trajectories for turn in one.turns if turn.redrawn is not None]
    return {"redrawn": drawn.count(True), "kept": drawn.count(False)} if drawn else {}


def account(expert: str, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What sampling one expert cost and gave: a row of a table."""
    turns = [turn for one in trajectories for turn in one.turns]
    boxes = boxes_by(trajectories)
    return {
        "expert": expert,
        "trajectories": len(trajectories),
        "turns": len(turns),
        "generated tokens": sum(one.generated_tokens for one in trajectories) or None,  # a policy may not say
        "seconds": round(sum(one.seconds for one in trajectories), 1),
        "errors": sum(one.status == "error" for one in trajectories),
        **({"boxes": ", ".join(f"{count} {what}" for what, count in boxes.items())} if boxes else {}),
        "right and clean": sum(fault(one, (1, 10**6)) is None for one in trajectories),
    }
