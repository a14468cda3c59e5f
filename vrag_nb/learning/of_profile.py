"""What a profile names of learning, made: its experts, its reward, its judge.

expert = expert_of(profile, "planner", questions)
reward = reward_of(profile)
judge = judge_of(profile, cache=out / "verdicts.jsonl")

All raise ProfileError naming the field that cannot be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vrag_nb.agent.policy import Policy
from vrag_nb.learning.experts import GroundedPolicy, PrivilegedPlanner
from vrag_nb.learning.judge import Judge
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.learning.rewards import Reward, load_reward
from vrag_nb.profile_files import ProfileError
from vrag_nb.profile_models import policy_of
from vrag_nb.profile_parts import ExpertPart, VRAGPart
from vrag_nb.profiles import Profile
from vrag_nb.records import Question
from vrag_nb.servers.addresses import with_addresses


def expert_of(profile: Profile, name: str, questions: Sequence[Question]) -> Policy:
    """An expert of the sampling part; the privileged planner is told the gold of `questions`.

    Raises ProfileError for a grounder, for `crops` or for `vague` where the profile's kind of agent, or the expert, has
    no use for it.
    """
    part, field = profile.taught.sampling.experts[name], f"learning.sampling.experts.{name}"
    crops = isinstance(profile.agent, VRAGPart)
    _check_expert(profile, part, field, crops)
    if part.policy:
        planner = policy_of(profile.name, f"{field}.policy", part.policy, profile.agent.factor)
    elif crops:
        planner = PrivilegedPlanner(questions, crops=part.crops)
    else:  # a miss is a dead end of the graph where what is to be unlearned is missing
        planner = MemoryPlanner(questions, follow_misses=not part.vague, vague=part.vague)
    if part.grounder is None:
        return planner
    return GroundedPolicy(planner, policy_of(profile.name, f"{field}.grounder", part.grounder, profile.agent.factor))


def _check_expert(profile: Profile, part: ExpertPart, field: str, crops: bool) -> None:
    if part.grounder and not crops:
        raise profile.other_agent(f"{field}.grounder redraws the boxes of VRAG's crops")
    if not part.crops and (part.policy or not crops):
        where = f"profile {profile.name}, field {field}.crops"
        raise ProfileError(f"{where}: this is the planner's of an agent that crops")
    if part.vague and (part.policy or crops):
        where = f"profile {profile.name}, field {field}.vague"
        raise ProfileError(f"{where}: this is the planner's of an agent with a memory graph")


def reward_of(profile: Profile, reward: str | dict[str, Any] | None = None) -> Reward:
    """The profile's reward, or another one."""
    part = profile.taught
    try:
        judges = {"judge": Judge(**with_addresses(part.judge))} if part.judge else None
        return load_reward(reward or part.reward, judges)
    except (ValueError, TypeError) as error:
        raise ProfileError(f"profile {profile.name}, field learning.reward or learning.judge: {error}") from error


def judge_of(profile: Profile, cache: Path) -> Judge:
    """The model that judges the evaluation's answers, whose verdicts are kept in the file `cache`, unless the profile
    names another. Raises ProfileError where it names no judge."""
    part = profile.evaluation.judge or (profile.learning.judge if profile.learning else None)
    if part is None:
        raise ProfileError(f"profile {profile.name} names no judge: say in evaluation.judge which model, and where")
    try:
        return Judge(**{"cache": cache, **with_addresses(part)})
    except (ValueError, TypeError) as error:
        raise ProfileError(f"profile {profile.name}, field evaluation.judge or learning.judge: {error}") from error
