"""How many image tokens stood before the model each time it was asked: what a history costs, and what a memory does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Protocol

from PIL import Image as PILImage

from vrag_nb.agent.memory_replay import contexts
from vrag_nb.agent.policy import Conversation
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.records import Page

FACTOR = 28  # pixels of a token's side, where a trajectory's settings do not say


class Pages(Protocol):
    """Page records and their images, such as a `PageStore`."""

    def page(self, page_id: str) -> Page: ...

    def image(self, page_id: str) -> PILImage.Image: ...


def visual_tokens(trajectory: Trajectory, pages: Pages) -> list[int]:
    """Image tokens in the context of each generation, in order.

    VRAG's context is its whole history; VimRAG's is rebuilt from its memory, with what a search showed while it is
    memorised. Raises KeyError / OSError for a page that is not there.
    """
    side = int(trajectory.settings.get("factor", FACTOR))
    if trajectory.graph is not None:
        return [_tokens(conversation, side) for conversation in contexts(trajectory, pages)]
    messages = trajectory.messages()
    asked = [place for place, message in enumerate(messages) if message.role == "assistant"]
    return [_tokens(messages[:place], side) for place in asked]


def mean_by_step(rows: Iterable[Sequence[float]]) -> list[tuple[float, int]]:
    """(mean, how many) at each step, over the rows that came so far."""
    steps = [[value for value in values if value is not None] for values in zip_longest(*rows)]
    return [(sum(values) / len(values), len(values)) for values in steps]


def _tokens(conversation: Conversation, side: int) -> int:
    return sum(image.size[0] * image.size[1] // side**2 for message in conversation for image in message.images)
