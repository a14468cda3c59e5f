"""Which page of which document a row of a data set is: rows in their order, and nothing else, decide.

    places = Places(merge_equal=True)
    place = places.place("document:report.pdf", None, sha256_of_the_image)     # Place(document="report", page=1, ...)

A key says who names the document: `document:` a column, `file:` the image file, `row:` nobody but the row.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from pydantic import BaseModel

from vrag_nb.document_names import PICTURE_SUFFIXES, safe_name


class PlaceError(ValueError):
    """A row that cannot be the page it says it is."""


class Place(BaseModel):
    """A row's page. `source`: sha256 of its image, "" for none; `repeated`: an earlier row is this page."""

    key: str
    document: str
    page: int
    source: str
    repeated: bool = False


class Places:
    """The pages so far. `merge_equal`: rows of one image are one page, where no page number says otherwise."""

    def __init__(self, merge_equal: bool) -> None:
        self._merge_equal = merge_equal
        self._documents: dict[str, str] = {}  # key -> document
        self._taken: set[str] = set()  # documents' names without case
        self._sources: dict[tuple[str, int], str] = {}  # (document, page) -> sha256 of its image
        self._last: dict[str, int] = {}  # document -> its largest page
        self._same: dict[tuple[str, str], Place] = {}  # (document, or "" for rows that nobody names; sha256) -> page

    def place(self, key: str, page: int | None, source: str) -> Place:
        """The next row's page. Raises PlaceError where that page is there with another image."""
        alone = key.startswith("row:")
        document = "" if alone else self._documents.get(key, "")
        same = self._same.get((document, source)) if (alone or document) and source and page is None else None
        if same is not None:
            return same.model_copy(update={"repeated": True})
        document = document or self._free(key)
        if key.startswith("file:"):
            page = 1
        number = self._last.get(document, 0) + 1 if page is None else page
        there = self._sources.get((document, number), "")
        if there and there != source:
            raise PlaceError(f"page {number} of {document} is there already, from an earlier row with another image")
        found = Place(key=key, document=document, page=number, source=source, repeated=bool(there))
        self.take(found)
        return found

    def take(self, place: Place) -> None:
        """A row's page as an earlier run found it."""
        if place.repeated:
            return
        document = self._documents[place.key] = place.document
        self._taken.add(document.casefold())
        self._sources[document, place.page] = place.source
        self._last[document] = max(self._last.get(document, 0), place.page)
        if self._merge_equal and place.source:
            self._same.setdefault(("" if place.key.startswith("row:") else document, place.source), place)

    def _free(self, key: str) -> str:
        kind, _, name = key.partition(":")
        path = PurePosixPath(name)
        if path.suffix.lower() in ((".pdf",) if kind == "document" else PICTURE_SUFFIXES if kind == "file" else ()):
            path = path.with_suffix("")
        plain = "__".join(part for part in path.parts if part not in ("/", ".", ".."))
        short = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        names = [safe_name(plain), safe_name(f"{plain}~{short}"), f"document~{short}"]
        return next(name for name in names if name.casefold() not in self._taken)
