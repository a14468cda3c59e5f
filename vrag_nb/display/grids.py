"""Grids of pages: ranked hits with scores, and any pages with captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from vrag_nb.agent.pages import PageStore
from vrag_nb.display import panels, scenes
from vrag_nb.display.panels import Panel
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import text_at, wrap
from vrag_nb.records import Hit, Question

_WIDTH, _MARGIN, _GAP = 13.0, 0.3, 0.25  # inches


def hits_figure(
    hits: Sequence[Hit],
    corpus: Path | PageStore,
    *,
    query: str = "",
    question: Question | None = None,
    columns: int = 5,
) -> Figure:
    """Ranked hits with scores; with a question its gold pages are framed and its gold regions drawn."""
    pages, pictures = scenes.page_store(corpus), []
    for hit in sorted(hits, key=lambda one: one.rank):
        page = pages.page(hit.page_id)
        marks = scenes.page_marks(page, None, question)
        caption = f"{hit.rank}. {hit.page_id}\nscore {hit.score:.3f}"
        pictures.append(Panel(pages.image(hit.page_id), marks, caption, scenes.is_gold(question, hit.page_id)))
    figure = _grid(pictures, f"Hits for “{query}”" if query else "Hits", columns)
    panels.legend(figure, [mark for picture in pictures for mark in picture.marks])
    return figure


def pages_figure(
    pages: Sequence[Image.Image],
    captions: Sequence[str],
    *,
    title: str = "",
    columns: int = 4,
) -> Figure:
    """A grid of page images, a caption under each. Raises ValueError when images and captions differ in number."""
    if len(pages) != len(captions):
        raise ValueError(f"{len(pages)} pages but {len(captions)} captions: give one caption per page")
    return _grid([Panel(page, [], text, False) for page, text in zip(pages, captions, strict=True)], title, columns)


def _grid(pictures: Sequence[Panel], title: str, columns: int) -> Figure:
    if not pictures:
        raise ValueError("there are no pages to draw")
    columns = max(1, min(columns, len(pictures)))
    width = (_WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns if columns > 2 else 4.5
    heading = wrap(title, columns * width, 13, lines=2, weight="bold")
    top = _MARGIN + (figures.line_height(13) * (heading.count("\n") + 1) + 0.12 if title else 0)
    rows = [pictures[first : first + columns] for first in range(0, len(pictures), columns)]
    heights = [max(picture.fit(width, 4.0)[1] for picture in row) + 0.55 for row in rows]
    full_width = 2 * _MARGIN + columns * width + (columns - 1) * _GAP
    figure = figures.new_figure(full_width, top + sum(heights) + _MARGIN)
    text_at(figure, _MARGIN, _MARGIN, heading, fontsize=13, weight="bold")
    for row, height in zip(rows, heights, strict=True):
        for place, picture in enumerate(row):
            left = _MARGIN + place * (width + _GAP)
            panels.draw_panel(figure, left, top, _shrunk(picture, width), picture.fit(width, 4.0))
        top += height
    return figure


def _shrunk(picture: Panel, width: float) -> Panel:
    """The picture at no more pixels than the figure has; its caption broken to its column."""
    image = picture.image.copy()
    image.thumbnail((round(width * figures.DPI * 1.5), 10**4))
    caption = "\n".join(wrap(line, width, 8.5, lines=1) for line in picture.caption.splitlines())
    return Panel(image, picture.marks, caption, picture.gold)
