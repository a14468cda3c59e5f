"""UniDoc-RL's select action (arXiv 2604.14967): a search shows three small pages, the agent selects one to see.

    <search>query</search>                three unseen pages side by side, each at a quarter of the pixel budget
    <select>2</select>                    the second of the last search's pages, at the whole budget
    <bbox>[x1, y1, x2, y2]</bbox>         a region of what was selected; before a selection it is invalid
    <answer>answer</answer>

The three small pages count as retrieved, the selected one is a crop that shows nothing new. UniDoc-RL's dense rewards
and its checkpoints are not part of this: it is the action space, for any policy.
"""

from __future__ import annotations

import re

from vrag_nb.agent.action_kinds import ActionKind
from vrag_nb.agent.actions import Action, InvalidAction
from vrag_nb.agent.environment import Environment
from vrag_nb.agent.geometry import View
from vrag_nb.agent.observers import CropObserver, Observer, SearchObserver, Session
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation
from vrag_nb.evaluation.baselines import Context, System
from vrag_nb.records import Hit

CANDIDATES = 3
SHARE = 4  # a small page gets the pixel budget divided by this


class SmallPagesObserver:
    """Shows the best unseen pages small, numbered from 1; afterwards nothing is selected."""

    def __init__(self, pages: Pages, settings: Settings) -> None:
        smaller = {
            "images_per_search": CANDIDATES,
            "max_pixels": max(settings.factor**2, settings.max_pixels // SHARE),
            "min_pixels": max(settings.factor**2, settings.min_pixels // SHARE),
        }
        self.search = SearchObserver(pages, settings.model_copy(update=smaller))

    def __call__(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        found = self.search(session, action, hits)
        session.last_page = session.last_view = None
        numbered = enumerate(found, start=1)
        return [
            seen.model_copy(update={"caption": f"{seen.caption}[{number}] "}) if seen.kind == "page" else seen
            for number, seen in numbered
        ]


class SelectedCropObserver:
    """As `CropObserver`, but only of a page that was selected."""

    def __init__(self, pages: Pages, settings: Settings) -> None:
        self.crop = CropObserver(pages, settings)

    def __call__(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        if session.last_view is None:
            raise InvalidAction("no page is selected; search, then select one of the pages by its number.")
        return self.crop(session, action, hits)


class Select(ActionKind):
    """Enlarges the n-th of the small pages shown last."""

    tag = "select"
    usage = "<select>number</select> shows a page of your last search large enough to read."

    def observe(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        small = next((pages for turn in reversed(session.turns) if (pages := _small_pages(turn.observations))), [])
        number = action.argument or ""
        if not small:
            raise InvalidAction("there are no pages to select from yet; search first.")
        if not re.fullmatch(r"[0-9]{1,3}", number) or not 1 <= int(number) <= len(small):
            raise InvalidAction(f"{number!r} is none of the pages 1 to {len(small)}.")
        page = small[int(number) - 1]
        assert page.page_size is not None
        assert page.shown_size is not None
        session.last_page = page.page_id
        session.last_view = View(page.page_size, None, page.shown_size, self.settings.budget)
        whole = (0.0, 0.0, float(page.shown_size[0]), float(page.shown_size[1]))
        return CropObserver(self.pages, self.settings)(session, Action(kind="bbox", box=whole), hits)


def _small_pages(observations: list[Observation]) -> list[Observation]:
    return [seen for seen in observations if seen.kind == "page"]


class SelectPage(System):
    name = "select_page"
    title = "search three small pages, select, crop"
    prompt = "select_page"

    def environment(self, context: Context) -> Environment:
        settings = context.settings.model_copy(update={"top_k": max(context.settings.top_k, CANDIDATES)})
        observers: dict[str, Observer] = {
            "search": SmallPagesObserver(context.pages, settings),
            "bbox": SelectedCropObserver(context.pages, settings),
        }
        return Environment(context.engine, context.pages, settings, self.prompt, actions=[Select], observers=observers)
