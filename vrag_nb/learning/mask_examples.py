"""One right and one wrong trajectory to show GGPO's mask on (VimRAG, arXiv 2602.12735, equation 11).

The privileged planner plays, so that there is a right one whatever a model can do; for the wrong one it is told a wrong
answer. Searches, pages and graphs are those of the real environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vrag_nb.agent.memory_environment import MemoryEnvironment
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.searching import Engine
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.evaluation.answers import is_correct
from vrag_nb.learning.memory_expert import MemoryPlanner
from vrag_nb.learning.segments import node_masks
from vrag_nb.records import Question

WRONG = "none of these"


def mask_examples(
    engine: Engine, corpus: Path, questions: Sequence[Question], settings: MemorySettings | None = None
) -> tuple[Trajectory, Trajectory] | None:
    """A right and a wrong trajectory, each with a masked node where one of the questions gives one; None where the
    planner answers none of them, as no search brings a gold page.

    Questions are tried in their order, until a search on the way to a right answer has missed.
    """
    environment = MemoryEnvironment(engine, corpus, settings or MemorySettings(top_k=1))  # so that some searches miss
    right: Trajectory | None = None
    for question in questions:
        [played] = rollout(MemoryPlanner([question], follow_misses=False), environment, [question], progress=False)
        if is_correct(played.answer, question.reference_answer):
            masked = any(node_masks(played, True).values())
            right = played if masked or right is None else right
            if masked:
                break
    if right is None or right.reference is None:
        return None
    misled = right.reference.model_copy(update={"reference_answer": WRONG})
    [wrong] = rollout(MemoryPlanner([misled], follow_misses=False), environment, [right.reference], progress=False)
    return right, wrong
