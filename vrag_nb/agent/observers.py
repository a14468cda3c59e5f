"""Sessions and observers: what one question's state is, and how each kind of action is answered.

An observer is a callable (session, action, hits) -> observations. It raises `InvalidAction` for what the model should
be told, and returns at least one observation otherwise. Another way to answer a search or a box is an observer in
`Environment(observers={"search": observer})`; another action is a class (`agent.action_kinds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from vrag_nb.agent.actions import Action, InvalidAction
from vrag_nb.agent.geometry import CropError, View
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Conversation
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation, Turn
from vrag_nb.records import Hit, Question


@dataclass
class Session:
    """One question being worked on: its conversation, its turns, what has been seen, and the last image shown."""

    uid: str
    question: Question
    prompt: str
    conversation: Conversation
    turns: list[Turn] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)  # page ids, in the order shown
    last_page: str | None = None
    last_view: View | None = None  # of either kind: a crop can be cropped again
    done: bool = False
    forced: bool = False  # the next turn is the extra one
    answer: str | None = None
    error: str | None = None
    started: float = field(default_factory=time.perf_counter)
    turn_started: float = field(default_factory=time.perf_counter)


# Carries an action out: (session, action, hits of a search) -> what is shown. Raises InvalidAction to tell the model.
Observer = Callable[[Session, Action, list[Hit]], list[Observation]]


class SearchObserver:
    """Shows the best-ranked pages this session has not seen; when there are none it says so and shows nothing old."""

    def __init__(self, pages: Pages, settings: Settings) -> None:
        self.pages, self.settings = pages, settings

    def __call__(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        ranked = sorted(hits, key=lambda hit: hit.rank)
        if not ranked:
            return [Observation(kind="notice", text=self.settings.nothing_found_text)]
        unseen = [hit.page_id for hit in ranked if hit.page_id not in session.seen]
        unseen = list(dict.fromkeys(unseen))[: self.settings.images_per_search]
        if not unseen:
            return [Observation(kind="notice", text=self.settings.nothing_new_text)]
        return [self._show(session, page_id) for page_id in unseen]

    def _show(self, session: Session, page_id: str) -> Observation:
        page = self.pages.page(page_id)
        view = View.whole((page.width, page.height), self.settings.budget)
        session.seen.append(page_id)
        session.last_page, session.last_view = page_id, view
        caption = filled_caption(self.settings, session.question)
        return _image_observation("page", page_id, page.image, view, caption)


class CropObserver:
    """Crops the last image shown, at the page's full resolution."""

    def __init__(self, pages: Pages, settings: Settings) -> None:
        self.pages, self.settings = pages, settings

    def __call__(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        if session.last_view is None or session.last_page is None:
            raise InvalidAction("there is no image to crop yet; search first.")
        assert action.box is not None
        try:
            view = session.last_view.crop(action.box, self.settings.padding, self.settings.min_crop)
        except CropError as error:
            raise InvalidAction(str(error)) from None
        session.last_view = view
        page = self.pages.page(session.last_page)
        caption = filled_caption(self.settings, session.question)
        return [_image_observation("crop", page.page_id, page.image, view, caption)]


def filled_caption(settings: Settings, question: Question) -> str:
    """What is said before an image to one who works on this question."""
    return settings.caption.replace("{question}", question.query)


def _image_observation(
    kind: Literal["page", "crop"], page_id: str, image: str, view: View, caption: str
) -> Observation:
    return Observation(
        kind=kind,
        caption=caption,
        page_id=page_id,
        image=image,
        page_size=view.page_size,
        crop_box=view.crop_box,
        shown_size=view.shown_size,
        image_tokens=view.tokens,
    )


def refuse_crop(session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
    """An observer for `bbox` that shows nothing: how an environment without crops answers a box."""
    raise InvalidAction("images cannot be enlarged here; search for another page, or answer.")
