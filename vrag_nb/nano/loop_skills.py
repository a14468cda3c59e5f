"""The part of the skill sheet that is about the agent's loop: valid actions, and how well a model searches.

Whether the answers are right is not asked here; that is `evaluation`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.records import Hit, Question

CUTS = (1, 3)


def loop_skills(policy: Policy, environment: Environment, questions: Sequence[Question]) -> dict[str, list[float]]:
    """Rollouts of the questions, looked at for three things; values by question, of the first one by turn.

    `valid action`: turns that could be carried out. `answered unasked`: questions that were answered before the extra
    turn. `search, recall@k` and `question, recall@k`: of questions with one gold page, whether it is among the first k
    pages of the first search the model writes (0 where it writes none), and of the question itself. Trajectories that
    ended in an error count for nothing. Raises ValueError for an environment without an engine.
    """
    if environment.engine is None:
        raise ValueError("the environment has no search engine, which the recall of a question needs")
    played = rollout(policy, environment, questions, concurrency=16)
    kept = [(q, one) for q, one in zip(questions, played, strict=True) if one.status != "error"]
    found = {
        "valid action": [float(turn.action.kind != "invalid") for _, one in kept for turn in one.turns],
        "answered unasked": [float(one.status == "answered" and not one.turns[-1].forced) for _, one in kept],
    }
    asked = [(question, one) for question, one in kept if len(question.gold_page_ids) == 1]
    ranked = environment.engine.search([question.query for question, _ in asked], max(CUTS)) if asked else []
    for cut in CUTS:
        found[f"search, recall@{cut}"] = [_found(question, _first_hits(one), cut) for question, one in asked]
        found[f"question, recall@{cut}"] = [
            _found(question, hits, cut) for (question, _), hits in zip(asked, ranked, strict=True)
        ]
    return found


def _first_hits(trajectory: Trajectory) -> list[Hit]:
    return next((turn.hits for turn in trajectory.turns if turn.action.kind == "search"), [])


def _found(question: Question, hits: Sequence[Hit], cut: int) -> float:
    return float(any(hit.page_id in question.gold_page_ids for hit in hits if hit.rank <= cut))
