"""The contexts of a VimRAG trajectory, rebuilt from its record: what training needs and no record holds."""

from __future__ import annotations

from vrag_nb.agent.memory_environment import MemoryEnvironment, Parser
from vrag_nb.agent.memory_records import MemoryAction, Reply
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Conversation, Generation
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory, Turn


def _recorded(action: MemoryAction) -> Parser:
    return lambda text: ("", action)


def contexts(trajectory: Trajectory, pages: Pages) -> list[Conversation]:
    """What the model read before each of its generations, in order: rebuilt from the record by the same rules.

    Those of a turn are its context and, for its replies, that context with what the search showed. The actions, hits
    and settings of the record go through the environment again, so that a parser of one's own changes nothing; a
    trajectory that ended in an error comes as far as it got. Raises ValueError for a trajectory without a graph,
    KeyError / OSError for a page that is not there.
    """
    if trajectory.graph is None:
        raise ValueError(f"trajectory {trajectory.uid} has no memory graph: it is not VimRAG's")
    environment = MemoryEnvironment(None, pages, MemorySettings.model_validate(trajectory.settings))
    environment.template = trajectory.prompt  # filled already
    session = environment.start(trajectory.reference or trajectory.question, trajectory.uid)
    read: list[Conversation] = []
    for turn in trajectory.turns:
        replies = turn.memory.replies if turn.memory else []
        said: list[tuple[Turn | Reply, MemoryAction]] = [(turn, turn.memory.action)] if turn.memory else []
        for one, action in [*said, *((reply, reply.action) for reply in replies)]:
            read.append(session.conversation)
            environment.parse = _recorded(action)
            again = Generation(one.text, one.token_ids, finish_reason=one.finish_reason or "stop")
            environment.accept(session, again)
            environment.observe(session, turn.hits)
    return read
