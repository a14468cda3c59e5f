"""The part of the skill sheet that is about the agent's loop: valid actions, and how well a model searches.

Whether the answers are right is not asked here; that is `evaluation`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

from vrag_nb.agent.environment import Environment
from vrag_nb.agent.policy import Policy
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.searching import search_each
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.metrics import recall_at_k
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
    gold = {question.uid: question.gold_page_ids for question, _ in kept if len(question.gold_page_ids) == 1}
    asked = [question.query for question, _ in kept if question.uid in gold]
    ranked = {
        "search": {question.uid: _pages(_first_hits(one)) for question, one in kept},
        "question": dict(zip(gold, map(_pages, search_each(environment.engine, asked, max(CUTS))), strict=True)),
    }
    for cut in CUTS:
        for words, pages in ranked.items():
            found[f"{words}, recall@{cut}"] = list(recall_at_k(pages, gold, cut).values())
    return found


def _first_hits(trajectory: Trajectory) -> list[Hit]:
    return next((turn.hits for turn in trajectory.turns if turn.action.kind == "search"), [])


def _pages(hits: list[Hit] | Exception) -> list[str]:
    """The pages of a ranking, none of a search that failed."""
    return [] if isinstance(hits, Exception) else [hit.page_id for hit in sorted(hits, key=lambda hit: hit.rank)]
