"""Page images of a corpus, decoded once: a small cache between the environment and the disk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from PIL import Image

from vrag_nb.documents.pages import page_image
from vrag_nb.records import Page, read_pages

DEFAULT_CACHE_BYTES = 256 * 2**20


class Pages(Protocol):
    """Page records and their images: a `PageStore`, or a search server's pages."""

    def page(self, page_id: str) -> Page: ...

    def image(self, page_id: str) -> Image.Image: ...


class PageStore:
    """The pages of a prepared corpus folder, by id; their images decoded to RGB, the least recently used forgotten.

    Thread-safe. Images are shared: callers must not draw on them. Raises FileNotFoundError for an unprepared corpus.
    """

    def __init__(self, corpus: Path, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.corpus = Path(corpus)
        self.cache_bytes = cache_bytes
        self._pages = {page.page_id: page for page in read_pages(self.corpus)}
        self._images: OrderedDict[str, Image.Image] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page_id: object) -> bool:
        return page_id in self._pages

    @property
    def held_bytes(self) -> int:
        """Bytes of decoded pixels held now."""
        return self._held

    def page(self, page_id: str) -> Page:
        """The record of a page. Raises KeyError that names the corpus when it has no such page."""
        try:
            return self._pages[page_id]
        except KeyError:
            raise KeyError(
                f"the corpus at {self.corpus} has no page {page_id!r}: index and corpus do not belong together"
            ) from None

    def image(self, page_id: str) -> Image.Image:
        """The page as RGB pixels at full resolution. Raises KeyError for an unknown page, FileNotFoundError or
        ValueError for a broken file."""
        with self._lock:
            if page_id in self._images:
                self._images.move_to_end(page_id)
                return self._images[page_id]
        page = self.page(page_id)
        image = page_image(self.corpus, page)
        if image.size != (page.width, page.height):
            raise ValueError(
                f"{self.corpus / page.image} is {image.width} x {image.height} pixels, pages.parquet says "
                f"{page.width} x {page.height}: prepare the corpus again"
            )
        self._remember(page_id, image)
        return image

    def _remember(self, page_id: str, image: Image.Image) -> None:
        with self._lock:
            if page_id in self._images:  # another thread was faster
                return
            self._images[page_id] = image
            self._held += _bytes(image)
            while self._held > self.cache_bytes and len(self._images) > 1:
                _, forgotten = self._images.popitem(last=False)
                self._held -= _bytes(forgotten)


def _bytes(image: Image.Image) -> int:
    return image.width * image.height * 3
