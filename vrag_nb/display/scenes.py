"""What a turn of a trajectory looked at, ready to be drawn: by the inspector in a browser, by its static twin on paper.

A `Scene` joins one turn with the images around it: the image its action refers to (`before`) and the images that came
back (`shown`). `page_marks` and `seen_marks` turn crops, boxes and gold regions into `Mark`s: labelled rectangles in
*fractions of the image they are drawn on*, which is all that a front end has to know. Every conversion between page
pixels and shown pixels is done by `agent.geometry`; nothing here scales a box by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from vrag_nb.agent import geometry
from vrag_nb.agent.environment import Settings
from vrag_nb.agent.geometry import Box, Budget, Size, View
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.trajectory import Observation, Trajectory, Turn
from vrag_nb.records import Page, Question

MarkKind = Literal["model", "written", "before", "gold", "yours"]


@dataclass(frozen=True)
class Mark:
    """A labelled rectangle. `box` is [x0, y0, x1, y1] in fractions (0..1) of the image it is drawn on."""

    kind: MarkKind
    label: str
    box: Box


@dataclass(frozen=True)
class Shown:
    """One image the model saw: of which page, which part of it, at which size."""

    page: Page
    view: View
    observation: Observation

    @property
    def zoom(self) -> float:
        """Shown pixels per page pixel, across."""
        return zoom(self.view)

    def render(self, pages: PageStore) -> Image.Image:
        """The pixels exactly as the model saw them."""
        return geometry.render(pages.image(self.page.page_id), self.view.crop_box, self.view.shown_size)


@dataclass(frozen=True)
class Scene:
    """One turn, the image its action refers to (None before the first page), and the images that came back."""

    turn: Turn
    before: Shown | None
    shown: tuple[Shown, ...]

    @property
    def page(self) -> Page | None:
        """The page to look at: the one that came back, or else the one before the model's eyes."""
        if self.shown:
            return self.shown[0].page
        return self.before.page if self.before else None

    @property
    def written_box(self) -> Box | None:
        """The model's own box in page pixels, as written: neither padded nor clipped."""
        if self.turn.action.box is None or self.before is None:
            return None
        return self.before.view.to_page(self.turn.action.box)


def scenes(trajectory: Trajectory, pages: PageStore) -> list[Scene]:
    """One scene per turn. Raises KeyError when the corpus lacks a page of the trajectory."""
    budget, before, result = budget_of(trajectory), None, []
    for turn in trajectory.turns:
        shown = tuple(_shown(seen, pages, budget) for seen in turn.observations if seen.page_id and seen.shown_size)
        result.append(Scene(turn, before, shown))
        before = shown[-1] if shown else before
    return result


def _shown(observation: Observation, pages: PageStore, budget: Budget) -> Shown:
    assert observation.page_id is not None
    assert observation.shown_size is not None
    page = pages.page(observation.page_id)
    view = View((page.width, page.height), observation.crop_box, observation.shown_size, budget)
    return Shown(page, view, observation)


def budget_of(trajectory: Trajectory | None) -> Budget:
    """The pixel budget a trajectory ran with; the environment's default where its settings do not say."""
    settings = trajectory.settings if trajectory else {}
    known = {key: settings[key] for key in ("min_pixels", "max_pixels", "factor") if key in settings}
    return Settings(**known).budget


def page_store(corpus: Path | str | PageStore) -> PageStore:
    """An open page store for a corpus folder; an open one passes through."""
    return corpus if isinstance(corpus, PageStore) else PageStore(Path(corpus))


def zoom(view: View) -> float:
    """Shown pixels per page pixel, across: below 1 small print is lost, above 1 it is magnified."""
    x0, _, x1, _ = view.rectangle
    return view.shown_size[0] / (x1 - x0)


def gold_regions(question: Question | None, page: Page) -> list[Box]:
    """The question's gold regions on this page, in page pixels."""
    if question is None or question.document != page.document:
        return []
    boxes = [region.box for region in question.meta_info.reference_regions if region.page == page.page]
    return [(x0 * page.width, y0 * page.height, x1 * page.width, y1 * page.height) for x0, y0, x1, y1 in boxes]


def is_gold(question: Question | None, page_id: str) -> bool:
    """Whether the page is one of the question's gold pages."""
    return question is not None and page_id in question.gold_page_ids


def page_marks(page: Page, scene: Scene | None, question: Question | None) -> list[Mark]:
    """What to draw on the whole page: gold regions, and where it is the scene's page, the model's boxes."""
    size = (page.width, page.height)
    marks = [mark("gold", "gold", box, size) for box in gold_regions(question, page)]
    if scene is not None and scene.page is not None and scene.page.page_id == page.page_id:
        marks += [mark(kind, label, box, size) for kind, label, box in _model_boxes(scene, page)]
    return [one for one in marks if one is not None]


def _model_boxes(scene: Scene, page: Page) -> list[tuple[MarkKind, str, Box]]:
    boxes: list[tuple[MarkKind, str, Box]] = []
    before = scene.before
    if before is not None and before.page.page_id == page.page_id and before.view.crop_box is not None:
        boxes.append(("before", "seen before", _floats(before.view.crop_box)))
    crops = [shown.view.crop_box for shown in scene.shown if shown.page.page_id == page.page_id]
    for crop in crops:
        if crop is not None:
            boxes.append(("model", "model's crop", _floats(crop)))
    if scene.written_box is not None and not _near(scene.written_box, crops):
        boxes.append(("written", "box as written", scene.written_box))
    return boxes


def _near(box: Box, crops: list[tuple[int, int, int, int] | None]) -> bool:
    """Whether a crop is this box but for rounding to whole page pixels; then one rectangle is enough."""
    return any(crop is not None and all(abs(a - b) <= 1 for a, b in zip(box, crop, strict=True)) for crop in crops)


def seen_marks(view: View, page: Page, question: Question | None) -> list[Mark]:
    """What to draw on an image as the model saw it: the gold regions that lie in it."""
    boxes = [view.from_page(box) for box in gold_regions(question, page)]
    marks = [mark("gold", "gold", box, view.shown_size) for box in boxes]
    return [one for one in marks if one is not None]


def mark(kind: MarkKind, label: str, box: Box, size: Size) -> Mark | None:
    """A mark for `box` in pixels of an image of `size`, clipped to it; None when nothing of it is left."""
    width, height = size
    x0, x1 = (min(max(value / width, 0.0), 1.0) for value in (box[0], box[2]))
    y0, y1 = (min(max(value / height, 0.0), 1.0) for value in (box[1], box[3]))
    return Mark(kind, label, (x0, y0, x1, y1)) if x0 < x1 and y0 < y1 else None


def _floats(box: tuple[int, int, int, int]) -> Box:
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])
