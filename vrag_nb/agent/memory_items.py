"""The kinds of items a search shows and a memory keeps: page images and texts.

A kind says how an item of a page is offered after a search and how it is shown again from memory. A further kind - the
frames of a video, whose place in the records is there already - is one more class in `KINDS`; frames of one video
share its pixels equally (official demo).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from vrag_nb.agent import geometry
from vrag_nb.agent.geometry import Budget, Size, View
from vrag_nb.agent.memory_records import ItemKind, Offered, Remembered
from vrag_nb.agent.memory_session import MemorySettings, Pages
from vrag_nb.agent.policy import Image, Text
from vrag_nb.agent.trajectory import Observation
from vrag_nb.records import Page


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


KINDS: Mapping[str, Kind] = {"image": ImageKind(), "text": TextKind()}


def kinds_of(settings: MemorySettings) -> list[Kind]:
    """The kinds in which pages are offered. Raises ValueError for one that is not there."""
    unknown = [name for name in settings.items if name not in KINDS]
    if unknown:
        raise ValueError(f"there are no items of kind {', '.join(unknown)}; settings.items may name {', '.join(KINDS)}")
    return [KINDS[name] for name in settings.items]


_LABEL = re.compile(r"([a-z]*)\W*(\d+)")
_SAME_WORD = {"image": "picture", "page": "picture", "photo": "picture", "passage": "text"}


def labelled(label: str, offered: Sequence[Offered]) -> int | None:
    """The place of the item that a model means: its label in any spelling, a bare number, or the page's name."""
    plain = label.strip().lower()
    found = _LABEL.search(plain)
    word, number = (_SAME_WORD.get(found[1], found[1]), int(found[2][:9])) if found else ("", 0)
    for place, one in enumerate(offered):
        if plain in (one.label.lower(), one.name.lower()) or f"{word} {number}" == one.label.lower():
            return place
    return number - 1 if found and found[0] == plain and not word and 0 < number <= len(offered) else None
