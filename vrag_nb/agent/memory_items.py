"""The kinds of items a search shows and a memory keeps: page images, texts and chunks of videos.

A kind says how an item of a page is offered after a search and how it is shown again from memory. A further kind is
one more class in `KINDS`.

A chunk of a video is shown as frames, each under its second; frames of one chunk share its pixels equally (official
demo). A search shows some of its frames, evenly spaced; memory only those nearest to the key timestamps, where there
are any. Where frames are not known - a search server gives pages alone - a chunk is offered as its sheet, a picture.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from PIL import Image as PILImage

from vrag_nb.agent import geometry
from vrag_nb.agent.geometry import Budget, Size, View
from vrag_nb.agent.memory_records import Offered, Remembered
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Image, Text
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Observation
from vrag_nb.documents.pages import page_image
from vrag_nb.records import Frame, Page, timed

SEARCH_FRAMES = 8  # frames of a chunk at most where nothing says which of them matter
FRAME_TOKENS = 16  # image tokens that each of those has at least


class ItemKind(ABC):
    """One kind of item.

    name: in settings and records. word: of its labels ("Picture 2"). called: what models write for that. visual:
    whether it takes a share of the memory's pixels. replaces: kinds in which a page is not offered beside this one.
    prompt: the template for a memory that keeps such items, where it has to be told of them.
    """

    name: ClassVar[str]
    word: ClassVar[str]
    called: ClassVar[tuple[str, ...]] = ()
    visual: ClassVar[bool]
    replaces: ClassVar[tuple[str, ...]] = ()
    prompt: ClassVar[str] = ""

    def holds(self, page: Page) -> bool:
        """Whether the page has anything of this kind."""
        return True

    @abstractmethod
    def offer(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
        """What a search shows of a page that holds this kind."""

    @abstractmethod
    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        """(width, height) at which `pixels` show it; None for what is not visual, or too few pixels to show."""

    @abstractmethod
    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        """What a context shows of a remembered item."""


class ImageKind(ItemKind):
    """The page's image, at the budget of a search or at the pixels its memory was allotted, never magnified there."""

    name, word, visual = "image", "Picture", True
    called = ("image", "page", "photo")

    def offer(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
        view = View.whole((page.width, page.height), settings.budget)
        shown = Observation(
            kind="page",
            caption=f"\n{label}:\n",
            page_id=page.page_id,
            image=page.image,
            page_size=view.page_size,
            shown_size=view.shown_size,
            image_tokens=view.tokens,
        )
        return [shown]

    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        pixels = min(pixels, settings.max_pixels)
        if pixels < settings.factor**2:
            return None
        return Budget(0, pixels, settings.factor).size(page.width, page.height)

    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        if item.shown_size is None:
            return []
        pixels = geometry.render(pages.image(page.page_id), None, item.shown_size)
        image = Image(item.shown_size, pixels, page.page_id, None, (page.width, page.height))
        return [Text(f"\n{item.name}, kept by {', '.join(item.nodes)}:\n"), image]


class TextKind(ItemKind):
    """The page's text layer, its first `text_chars` characters."""

    name, word, visual = "text", "Text", False
    called = ("passage",)

    def holds(self, page: Page) -> bool:
        return bool(page.text.strip())

    def offer(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
        text = page.text.strip()[: settings.text_chars]
        size = (page.width, page.height)
        caption = f"\n{label}:\n"
        shown = Observation(
            kind="page", caption=caption, text=text, page_id=page.page_id, image=page.image, page_size=size
        )
        return [shown]

    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        return None

    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        text = page.text.strip()[: settings.text_chars]
        return [Text(f"\n{item.name}, text, kept by {', '.join(item.nodes)}:\n{text}")]


class VideoKind(ItemKind):
    """A chunk of a video, each of its frames an image of its own. Beside videos, pictures are pages alone."""

    name, word, visual = "video", "Video", True
    replaces = ("image",)
    prompt = "vimrag_video"

    def holds(self, page: Page) -> bool:
        return page.video is not None

    def offer(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
        """The chunk frame by frame, each a rectangle of the sheet; together within the budget of one image."""
        assert page.video is not None
        frames = _spread(page.video.frames, settings.max_pixels, settings.factor)
        budget = Budget(0, max(settings.max_pixels // len(frames), settings.factor**2), settings.factor)
        seen = []
        for number, frame in enumerate(frames):
            x0, y0, x1, y1 = frame.box
            size = budget.size(x1 - x0, y1 - y0)
            seen.append(
                Observation(
                    kind="page",
                    caption=("" if number else _video_head(page, label)) + _frame_head(frame),
                    page_id=page.page_id,
                    image=page.image,
                    page_size=(page.width, page.height),
                    crop_box=frame.box,
                    shown_size=size,
                    image_tokens=budget.tokens(size),
                )
            )
        return seen

    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        """The size of a frame that has the pixels to itself; several frames share them."""
        if page.video is None:
            return None
        return _frame_size(page.video.frames[0], pixels, settings)

    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        if page.video is None or item.shown_size is None:
            return []
        frames = nearest_frames(page.video.frames, item.timestamps) or _spread(
            page.video.frames, item.pixels, settings.factor
        )
        frames = frames[: max(1, item.pixels // settings.factor**2)]
        parts: list[Text | Image] = [Text(_video_head(page, f"{item.name}, kept by {', '.join(item.nodes)}"))]
        for frame in frames:
            size = _frame_size(frame, item.pixels // len(frames), settings)
            if size is not None:
                shown = Image(
                    size, _pixels(page, frame, pages, size), page.page_id, frame.box, (page.width, page.height)
                )
                parts += [Text(_frame_head(frame)), shown]
        return parts


def nearest_frames(frames: Sequence[Frame], times: Sequence[float]) -> list[Frame]:
    """The frames nearest to these seconds, each once, in order; none where there are no times."""
    found = {min(range(len(frames)), key=lambda place: abs(frames[place].seconds - time)) for time in times}
    return [frames[place] for place in sorted(found)]


def _spread(frames: Sequence[Frame], pixels: int, factor: int) -> list[Frame]:
    """Evenly spaced frames, as many as the pixels show with `FRAME_TOKENS` each, `SEARCH_FRAMES` at most."""
    count = max(1, min(len(frames), SEARCH_FRAMES, pixels // (FRAME_TOKENS * factor**2)))
    return [frames[number * len(frames) // count] for number in range(count)]


def _frame_size(frame: Frame, pixels: int, settings: MemorySettings) -> Size | None:
    pixels = min(pixels, settings.max_pixels)
    if pixels < settings.factor**2:
        return None
    return Budget(0, pixels, settings.factor).size(frame.width, frame.height)


def _pixels(page: Page, frame: Frame, pages: Pages, size: Size) -> PILImage.Image:
    """The frame as the model sees it: from its file where the pages lie in a folder, otherwise from the sheet."""
    corpus = getattr(pages, "corpus", None)
    if isinstance(corpus, Path):
        return geometry.render(page_image(corpus, page.model_copy(update={"image": frame.image})), None, size)
    return geometry.render(pages.image(page.page_id), frame.box, size)


def _video_head(page: Page, label: str) -> str:
    assert page.video is not None
    return f"\n{label}, {timed(page.video.start)} to {timed(page.video.end)}:\n"


def _frame_head(frame: Frame) -> str:
    return f"\n{timed(frame.seconds)}:\n"


KINDS: Mapping[str, ItemKind] = {kind.name: kind for kind in (ImageKind(), TextKind(), VideoKind())}


def kinds_of(settings: MemorySettings) -> list[ItemKind]:
    """The kinds in which pages are offered. Raises ValueError for one that is not there."""
    unknown = [name for name in settings.items if name not in KINDS]
    if unknown:
        raise ValueError(f"there are no items of kind {', '.join(unknown)}; settings.items may name {', '.join(KINDS)}")
    return [KINDS[name] for name in settings.items]


def observations(kind: ItemKind, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
    """All that a search shows of the page in this kind; nothing where it holds none, or another kind replaces it."""
    replaced = any(kind.name in other.replaces and other.holds(page) for other in kinds_of(settings))
    return kind.offer(page, label, settings) if kind.holds(page) and not replaced else []


_LABEL = re.compile(r"(?<![a-z_])([a-z]*)[\W_]*(\d+)")


def labelled(label: str, offered: Sequence[Offered]) -> int | None:
    """The place of the item that a model means: its label in any spelling, a bare number, or the page's name.

    A name that is there exactly comes first: a page may be called "picture_1" itself.
    """
    plain = label.strip().lower()
    for place, one in enumerate(offered):
        if plain in (one.label.lower(), one.name.lower()):
            return place
    found = _LABEL.search(plain)
    words = {called: kind.word.lower() for kind in KINDS.values() for called in kind.called}
    word, number = (words.get(found[1], found[1]), int(found[2][:9])) if found else ("", 0)
    for place, one in enumerate(offered):
        if f"{word} {number}" == one.label.lower():
            return place
    return number - 1 if found and found[0] == plain and not word and 0 < number <= len(offered) else None
