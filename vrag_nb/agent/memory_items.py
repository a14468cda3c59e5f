"""The kinds of items a search shows and a memory keeps: page images, texts and chunks of videos.

A kind says how an item of a page is offered after a search and how it is shown again from memory. A further kind is
one more class in `KINDS`.

A chunk of a video is shown as frames, each under its second; frames of one chunk share its pixels equally (official
demo). A search shows some of its frames, evenly spaced; memory only those nearest to the key timestamps, where there
are any. Where frames are not known - a search server gives pages alone - a chunk is offered as its sheet, a picture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image as PILImage

from vrag_nb.agent import geometry
from vrag_nb.agent.geometry import Budget, Size, View
from vrag_nb.agent.memory_records import ItemKind, Offered, Remembered
from vrag_nb.agent.memory_session import MemorySettings
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Image, Text
from vrag_nb.agent.trajectory import Observation
from vrag_nb.documents.pages import page_image
from vrag_nb.records import Frame, Page, timed

SEARCH_FRAMES = 8  # frames of a chunk at most where nothing says which of them matter
FRAME_TOKENS = 16  # image tokens that each of those has at least


class Kind(Protocol):
    """One kind of item. word: its labels' ("Picture 2"). visual: whether it takes a share of the memory's pixels."""

    name: ItemKind
    word: str
    visual: bool

    def offer(self, page: Page, label: str, settings: MemorySettings) -> Observation | None:
        """What a search shows of the page; None where the page has nothing of this kind."""

    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        """(width, height) at which `pixels` show it; None for what is not visual, or too few pixels to show."""

    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        """What a context shows of a remembered item."""


class ImageKind:
    """The page's image, at the budget of a search or at the pixels its memory was allotted, never magnified there."""

    name: ItemKind = "image"
    word, visual = "Picture", True

    def offer(self, page: Page, label: str, settings: MemorySettings) -> Observation | None:
        view = View.whole((page.width, page.height), settings.budget)
        return Observation(
            kind="page",
            caption=f"\n{label}:\n",
            page_id=page.page_id,
            image=page.image,
            page_size=view.page_size,
            shown_size=view.shown_size,
            image_tokens=view.tokens,
        )

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


class TextKind:
    """The page's text layer, its first `text_chars` characters."""

    name: ItemKind = "text"
    word, visual = "Text", False

    def offer(self, page: Page, label: str, settings: MemorySettings) -> Observation | None:
        if not page.text.strip():
            return None
        text = page.text.strip()[: settings.text_chars]
        size = (page.width, page.height)
        caption = f"\n{label}:\n"
        return Observation(
            kind="page", caption=caption, text=text, page_id=page.page_id, image=page.image, page_size=size
        )

    def recalled_size(self, page: Page, pixels: int, settings: MemorySettings) -> Size | None:
        return None

    def recall(self, page: Page, item: Remembered, pages: Pages, settings: MemorySettings) -> list[Text | Image]:
        text = page.text.strip()[: settings.text_chars]
        return [Text(f"\n{item.name}, text, kept by {', '.join(item.nodes)}:\n{text}")]


class VideoKind:
    """A chunk of a video. In one image it is the sheet of its frames; otherwise each frame is an image of its own."""

    name: ItemKind = "video"
    word, visual = "Video", True

    def offer(self, page: Page, label: str, settings: MemorySettings) -> Observation | None:
        """The chunk in one image: its sheet, on which every frame stands under its second."""
        if page.video is None:
            return None
        view = View.whole((page.width, page.height), settings.budget)
        return Observation(
            kind="page",
            caption=_video_head(page, label),
            page_id=page.page_id,
            image=page.image,
            page_size=view.page_size,
            shown_size=view.shown_size,
            image_tokens=view.tokens,
        )

    def offer_frames(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
        """The chunk frame by frame, each a rectangle of the sheet; together within the budget of one image."""
        if page.video is None:
            return []
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


class StillKind(ImageKind):
    """The page's image beside a `VideoKind`, to which it leaves the chunks."""

    def offer(self, page: Page, label: str, settings: MemorySettings) -> Observation | None:
        return None if page.video is not None else super().offer(page, label, settings)


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


KINDS: Mapping[str, Kind] = {"image": ImageKind(), "text": TextKind(), "video": VideoKind()}


def kinds_of(settings: MemorySettings) -> list[Kind]:
    """The kinds in which pages are offered; beside videos, pictures are pages alone. Raises ValueError for one that is
    not there."""
    unknown = [name for name in settings.items if name not in KINDS]
    if unknown:
        raise ValueError(f"there are no items of kind {', '.join(unknown)}; settings.items may name {', '.join(KINDS)}")
    kinds = {**KINDS, "image": StillKind()} if "video" in settings.items else KINDS
    return [kinds[name] for name in settings.items]


def observations(kind: Kind, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
    """All that a search shows of the page in this kind: a chunk frame by frame, anything else in one; maybe nothing."""
    if isinstance(kind, VideoKind):
        return kind.offer_frames(page, label, settings)
    one = kind.offer(page, label, settings)
    return [] if one is None else [one]


_LABEL = re.compile(r"(?<![a-z_])([a-z]*)[\W_]*(\d+)")
_SAME_WORD = {"image": "picture", "page": "picture", "photo": "picture", "passage": "text"}


def labelled(label: str, offered: Sequence[Offered]) -> int | None:
    """The place of the item that a model means: its label in any spelling, a bare number, or the page's name.

    A name that is there exactly comes first: a page may be called "picture_1" itself.
    """
    plain = label.strip().lower()
    for place, one in enumerate(offered):
        if plain in (one.label.lower(), one.name.lower()):
            return place
    found = _LABEL.search(plain)
    word, number = (_SAME_WORD.get(found[1], found[1]), int(found[2][:9])) if found else ("", 0)
    for place, one in enumerate(offered):
        if f"{word} {number}" == one.label.lower():
            return place
    return number - 1 if found and found[0] == plain and not word and 0 < number <= len(offered) else None
