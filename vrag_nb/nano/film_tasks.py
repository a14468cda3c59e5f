"""A drawn deck filmed in memory: chunks whose frames are put together when they are looked at, and questions on them.

What a narrated corpus holds (`documents.narrated`), without encoding a video: the same shots, boxes and questions, and
frames at the same moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image

from vrag_nb.documents import filming
from vrag_nb.documents.filming import Shot, with_box
from vrag_nb.documents.narrated import CHUNK_SECONDS, script
from vrag_nb.documents.settings import VideoSettings
from vrag_nb.documents.video import moments, sheet
from vrag_nb.nano.deck_tasks import DrawnPage
from vrag_nb.nano.expert import DeckPages
from vrag_nb.records import Clip, Frame, Page, Question, page_id

VIDEO = VideoSettings(chunk_seconds=CHUNK_SECONDS, max_frames=4)  # as the corpus of the run nano-video


class FilmPages(DeckPages):
    """The pages of a deck and the chunks of its film, without files.

    `questions` are those about the film. Raises ValueError where the deck has no questions.
    """

    def __init__(self, pages: list[DrawnPage], questions: Sequence[Question], seed: int) -> None:
        self._shots, self.questions = script([page.image.size for page in pages], pages[0].title, questions, seed)
        super().__init__(questions[0].document, pages)
        self._deck = pages
        self._film, self._end = self.questions[0].document, self._shots[-1].end
        chunks = math.ceil(self._end / CHUNK_SECONDS)
        self._chunks = {page_id(self._film, number): number for number in range(1, chunks + 1)}

    @property
    def names(self) -> list[str]:
        """The ids of all pages, then of all chunks."""
        return [*super().names, *self._chunks]

    def page(self, page_id: str) -> Page:
        return self._shown(page_id)[0] if page_id in self._chunks else super().page(page_id)

    def image(self, page_id: str) -> Image.Image:
        return self._shown(page_id)[1] if page_id in self._chunks else super().image(page_id)

    def _shown(self, name: str) -> tuple[Page, Image.Image]:
        """A chunk's record and its sheet, put together at the first look."""
        if name not in self._records:
            number = self._chunks[name]
            start, end = (number - 1) * CHUNK_SECONDS, min(number * CHUNK_SECONDS, self._end)
            seconds = moments(start, end, VIDEO)
            stills = [self._still(second) for second in seconds]
            image, boxes = sheet(stills, seconds, VIDEO.max_sheet_pixels)
            width, height = filming.SIZE
            frames = [
                Frame(seconds=second, image=f"{name}.png", width=width, height=height, box=box)
                for second, box in zip(seconds, boxes, strict=True)
            ]
            self._records[name] = Page(
                page_id=name,
                document=self._film,
                page=number,
                image=f"{name}.png",
                width=image.width,
                height=image.height,
                video=Clip(start=start, end=end, frames=frames),
            )
            self._drawn[name] = image
        return self._records[name], self._drawn[name]

    def _still(self, second: float) -> Image.Image:
        shot = self._shot_at(second)
        still, box = self._deck[shot.page - 1].frame, shot.overlay
        return with_box(still, box) if box and box.start <= second < box.end else still

    def _shot_at(self, second: float) -> Shot:
        return next(shot for shot in self._shots if shot.start <= second < shot.end)
