"""Videos of a corpus on paper: their chunks as a table, a chunk's sheet, a question's gold on the video's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vrag_nb.agent.pages import PageStore
from vrag_nb.display.panels import Panel, draw_panel
from vrag_nb.display.scenes import page_store
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import BLUE, GREEN, INK, LINE, MUTED, axes_at, text_at, wrap
from vrag_nb.records import Clip, Page, Question, timed

_WIDTH, _MARGIN, _GAP = 13.0, 0.3, 0.15  # inches
_BAR = 0.5  # inches, the timeline's height
_CAPTION = 0.3
_AXIS = 0.55  # inches, the seconds below it
_STRIP = 2.2  # inches, the tallest frame below the timeline
_TALLEST = 9.0  # inches, of a sheet
_FRAMES = 12  # below the timeline at most, evenly spaced
_NAMED = 60  # chunks that have room for their numbers


def chunk_rows(pages: Sequence[Page]) -> list[dict[str, Any]]:
    """A row for every chunk among the pages: its id, its video, from which second to which, and its frames."""
    return [
        {
            "chunk": page.page_id,
            "video": page.document,
            "start": page.video.start,
            "end": page.video.end,
            "frames": len(page.video.frames),
            "sheet": f"{page.width} x {page.height} px",
        }
        for page in pages
        if page.video is not None
    ]


def sheet_figure(page: Page, corpus: Path | PageStore) -> Figure:
    """A chunk's sheet as large as the figure. Raises ValueError for a page that is no chunk of a video."""
    clip = _clip(page)
    image = page_store(corpus).image(page.page_id)
    caption = f"{page.page_id}: {timed(clip.start)} to {timed(clip.end)}, {len(clip.frames)} frames"
    panel = Panel(image, [], f"{caption}, {page.width} x {page.height} px", False)
    width, height = panel.fit(_WIDTH - 2 * _MARGIN, _TALLEST)
    figure = figures.new_figure(width + 2 * _MARGIN, height + _CAPTION + 2 * _MARGIN)
    draw_panel(figure, _MARGIN, _MARGIN, panel, (width, height))
    return figure


def gold_span(question: Question) -> tuple[float, float] | None:
    """(start, end) in seconds of what a question about a video asks for; None where it does not say."""
    span = (question.meta_info.model_extra or {}).get("reference_span")
    return (float(span[0]), float(span[1])) if span is not None else None


def timeline_figure(question: Question, corpus: Path | PageStore, pages: Sequence[Page]) -> Figure:
    """A question's gold on its video: chunks, sampled frames and the gold span in time, and the frames of its chunk.

    pages: of the corpus, or of the question's video alone. Raises ValueError where the corpus has no such video, and
    where the gold span does not lie in the gold chunks: the video was then cut into chunks of another length.
    """
    chunks = [page for page in pages if page.document == question.document and page.video is not None]
    gold = [page for page in chunks if page.page_id in question.gold_page_ids]
    span = gold_span(question)
    if not gold or span is None:
        raise ValueError(f"question {question.uid}: the corpus has no video {question.document!r} with its gold chunk")
    if not (_clip(gold[0]).start <= span[0] and span[1] <= _clip(gold[-1]).end):
        chunk_seconds = (question.meta_info.model_extra or {}).get("chunk_seconds", "another number of")
        raise ValueError(
            f"question {question.uid}: {timed(span[0])} to {timed(span[1])} is not in {gold[0].page_id}; prepare the "
            f"corpus with chunks of {chunk_seconds} seconds"
        )
    title = wrap(f"{question.query}  →  {question.reference_answer}", _WIDTH - 2 * _MARGIN, 13, lines=2, weight="bold")
    top = _MARGIN + figures.line_height(13) * (title.count("\n") + 1) + 0.15
    strip = _strip(gold, span, page_store(corpus))
    column = (_WIDTH - 2 * _MARGIN - _GAP * (len(strip) - 1)) / len(strip)
    height = max(panel.fit(column, _STRIP)[1] for panel in strip)
    figure = figures.new_figure(_WIDTH, top + _BAR + _AXIS + height + _CAPTION + _MARGIN)
    text_at(figure, _MARGIN, _MARGIN, title, fontsize=13, weight="bold")
    _draw_timeline(axes_at(figure, _MARGIN, top, _WIDTH - 2 * _MARGIN, _BAR), chunks, gold, span)
    for place, panel in enumerate(strip):
        left = _MARGIN + place * (column + _GAP)
        _draw_frame(figure, left, top + _BAR + _AXIS, panel, panel.fit(column, _STRIP))
    return figure


def _draw_frame(figure: Figure, left: float, top: float, panel: Panel, size: tuple[float, float]) -> None:
    """A frame over its second; in the gold span both are green."""
    axes, colour = axes_at(figure, left, top, *size), GREEN if panel.gold else MUTED
    axes.imshow(np.asarray(panel.image), interpolation="antialiased", aspect="auto")
    figures.plain(axes)
    for spine in axes.spines.values() if panel.gold else ():
        spine.set(color=GREEN, linewidth=2)
    text_at(figure, left, top + size[1] + 0.06, panel.caption, fontsize=8.5, color=colour)


def _clip(page: Page) -> Clip:
    if page.video is None:
        raise ValueError(f"page {page.page_id} is no chunk of a video")
    return page.video


def _strip(gold: Sequence[Page], span: tuple[float, float], store: PageStore) -> list[Panel]:
    """Frames of the gold chunks, cut from their sheets; those that are on screen in the span are gold."""
    frames = [(page, frame) for page in gold for frame in _clip(page).frames]
    shown = min(len(frames), _FRAMES)
    return [
        Panel(
            store.image(page.page_id).crop(frame.box),
            [],
            timed(frame.seconds),
            span[0] <= frame.seconds < span[1],
        )
        for page, frame in (frames[number * len(frames) // shown] for number in range(shown))
    ]


def _draw_timeline(axes: Axes, chunks: Sequence[Page], gold: Sequence[Page], span: tuple[float, float]) -> None:
    """Chunks side by side, a mark at each frame's second, the gold span over them."""
    golden = {page.page_id for page in gold}
    for page in chunks:
        clip = _clip(page)
        colour = GREEN if page.page_id in golden else LINE
        axes.broken_barh([(clip.start, clip.end - clip.start)], (0, 1), facecolor=colour, alpha=0.35, edgecolor=INK)
        middle = (clip.start + clip.end) / 2
        if len(chunks) <= _NAMED:
            axes.text(middle, 0.72, f"{page.page}", ha="center", va="center", fontsize=8.5, color=INK)
        axes.vlines([frame.seconds for frame in clip.frames], 0, 0.25, color=BLUE, linewidth=0.9)
    axes.broken_barh([(span[0], span[1] - span[0])], (0.3, 0.25), facecolor=GREEN, edgecolor=INK)
    axes.set_xlim(min(_clip(page).start for page in chunks), max(_clip(page).end for page in chunks))
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.tick_params(labelsize=8.5, colors=INK, length=2)
    axes.set_xlabel("seconds; boxes: chunks, blue: frames sampled, green: gold chunk and gold span", fontsize=8.5)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
