"""Pages as text: an observer that answers a search with the text layer of a page in place of its image.

    Environment(engine, corpus, observers={"search": PageTextObserver(pages, settings), "bbox": refuse_crop})

The text is what documents.pages kept beside the page image: a PDF's own text layer, no OCR. A page without one, a scan
or a picture, is shown as a line that says so: to systems that read text such pages are lost, and that is measured.
"""

from __future__ import annotations

from vrag_nb.agent.actions import Action
from vrag_nb.agent.observers import SearchObserver, Session
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation
from vrag_nb.records import Hit

MAX_CHARACTERS = 6000  # of one page: about 1,500 tokens, three times what an image of a page costs


class PageTextObserver:
    """Shows the text of the pages that `SearchObserver` would show as images, the same pages in the same order."""

    def __init__(self, pages: Pages, settings: Settings, max_characters: int = MAX_CHARACTERS) -> None:
        self.pages, self.max_characters = pages, max_characters
        self.search = SearchObserver(pages, settings)

    def __call__(self, session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        found = self.search(session, action, hits)
        session.last_page = session.last_view = None  # there is no image to crop
        return [self._as_text(seen) for seen in found]

    def _as_text(self, seen: Observation) -> Observation:
        if seen.page_id is None:
            return seen
        page = self.pages.page(seen.page_id)
        text = page.text.strip() or "(This page has no text layer.)"
        if len(text) > self.max_characters:
            text = f"{text[: self.max_characters].rstrip()} (cut here)"
        shown = f"Page {page.page} of {page.document}:\n{text}\n"
        return Observation(kind="page", page_id=page.page_id, caption=seen.caption, text=shown)
