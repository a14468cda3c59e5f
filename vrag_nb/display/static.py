"""Static twins of the inspector: the same scenes as matplotlib figures, for headless runs, HTML reports and papers.

`trajectory_figure` draws one trajectory as a strip, a row per turn: the words, the page with the model's crop and the
gold regions, and the image exactly as the model saw it with its size (of several images the first, and how many there
were). `hits_figure` and `pages_figure` (from `display.grids`) draw ranked hits, and any pages with captions. All return
a `Figure` that a notebook shows by itself; `figures.save(figure, path)` writes a PNG.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.display import panels, scenes
from vrag_nb.display.grids import hits_figure, pages_figure
from vrag_nb.display.panels import Panel
from vrag_nb.display.scenes import Scene
from vrag_nb.evaluation.answers import Verdict, answered_right
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import GREEN, INK, LINE, MUTED, VERMILION, text_at, wrap
from vrag_nb.records import Question

__all__ = ["hits_figure", "pages_figure", "trajectory_figure"]

_WIDTH, _MARGIN, _GAP = 13.0, 0.3, 0.25  # inches
_WORDS, _PAGE, _SEEN = 3.6, 4.5, 3.8  # widths of the three columns, inches
_CAPTION = 0.24
_DRAWN = (1200, 1200)  # pixels of a page in a figure; more is not visible


@dataclass(frozen=True)
class _Row:
    """A turn: its lines of words with (text, fontsize, colour, weight), and up to two pictures."""

    words: list[tuple[str, float, str, str]]
    page: Panel | None
    seen: Panel | None

    @property
    def height(self) -> float:
        pictures = [picture.fit(width)[1] for picture, width in ((self.page, _PAGE), (self.seen, _SEEN)) if picture]
        words = sum(text.count("\n") * figures.line_height(size) + _step(size) for text, size, _, _ in self.words)
        return max([words + 0.1, *(height + _CAPTION for height in pictures)])


def _step(fontsize: float) -> float:
    return figures.line_height(fontsize) + 0.06


def trajectory_figure(
    trajectory: Trajectory,
    corpus: Path | PageStore,
    *,
    gold: bool = True,
    max_turns: int | None = None,
    correct: Verdict = answered_right,
) -> Figure:
    """One trajectory as a strip.

    corpus: the prepared folder it ran on, or an open PageStore. gold: draw gold pages and regions. max_turns: draw only
    the first so many turns. correct: the verdict written beside the answer. Raises KeyError when the corpus lacks a
    page.
    """
    pages = scenes.page_store(corpus)
    question = trajectory.reference if gold else None
    rows = [_row(scene, pages, question) for scene in scenes.scenes(trajectory, pages)[:max_turns]]
    title = wrap(trajectory.question, _WIDTH - 2 * _MARGIN, 15, lines=3, weight="bold")
    top = _MARGIN + (title.count("\n") + 1) * figures.line_height(15) + 0.42
    figure = figures.new_figure(_WIDTH, top + sum(row.height + _GAP for row in rows) + 0.75)
    text_at(figure, _MARGIN, _MARGIN, title, fontsize=15, weight="bold")
    text_at(figure, _MARGIN, top - 0.36, _facts(trajectory, len(rows)), color=MUTED)
    for row in rows:
        _rule(figure, top - _GAP / 2)
        _draw_row(figure, top, row)
        top += row.height + _GAP
    _rule(figure, top - _GAP / 2)
    _draw_end(figure, top, trajectory, correct(trajectory))
    panels.legend(
        figure, [mark for row in rows for picture in (row.page, row.seen) if picture for mark in picture.marks]
    )
    return figure


def _facts(trajectory: Trajectory, drawn: int) -> str:
    count = len(trajectory.turns)
    facts = [trajectory.uid, f"{count} turn{'s' * (count != 1)}" + (f", {drawn} drawn" if drawn < count else "")]
    facts += [f"policy {trajectory.policy}"] if trajectory.policy else []
    seen = [one for one in trajectory.observations if one.image_tokens]
    facts += (
        [f"{sum(one.image_tokens for one in seen)} image tokens in {len(seen)} image{'s' * (len(seen) != 1)}"]
        if seen
        else []
    )
    return "   ·   ".join(facts)


def _row(scene: Scene, pages: PageStore, question: Question | None) -> _Row:
    turn, page, seen = scene.turn, None, None
    if scene.shown:
        shown, count = scene.shown[0], len(scene.shown)
        seen_as = "as the model saw it" if count == 1 else f"1 of {count} images seen"
        seen = Panel(
            shown.render(pages),
            scenes.seen_marks(shown.view, shown.page, question),
            f"{seen_as}: {shown.view.shown_size[0]} × {shown.view.shown_size[1]} px = "
            f"{shown.observation.image_tokens} tokens, {shown.zoom:.2f}×",
            False,
        )
    if scene.page is not None and (scene.shown or turn.action.box is not None):
        image = pages.image(scene.page.page_id).copy()
        image.thumbnail(_DRAWN)
        caption = f"{scene.page.page_id}: {scene.page.width} × {scene.page.height} px"
        marks = scenes.page_marks(scene.page, scene, question)
        page = Panel(image, marks, caption, scenes.is_gold(question, scene.page.page_id))
    return _Row(_words(scene), page, seen)


def _words(scene: Scene) -> list[tuple[str, float, str, str]]:
    turn, action = scene.turn, scene.turn.action
    heading = {"bbox": "crop", "invalid": "invalid action"}.get(action.kind, action.kind)
    lines = [(f"{turn.index + 1}  {heading}" + ("  (forced)" if turn.forced else ""), 11.0, INK, "bold")]
    if turn.thought:
        lines.append((wrap(turn.thought, _WORDS, 9, lines=9), 9.0, MUTED, "normal"))
    box = "[{}]".format(", ".join(f"{value:g}" for value in action.box)) if action.box else ""
    said = box or action.argument if action.kind == "invalid" else action.words or box
    if said:
        lines.append((wrap(f"→ {said}", _WORDS, 10, lines=4, weight="bold"), 10.0, INK, "bold"))
    if box and scene.before is not None:
        lines.append(
            (f"of {scene.before.view.shown_size[0]} × {scene.before.view.shown_size[1]} px shown", 8.5, MUTED, "normal")
        )
    notices = turn.notices or ([action.problem] if action.problem else [])
    lines += [(wrap(text, _WORDS, 8.5, lines=6), 8.5, VERMILION, "normal") for text in notices]
    return lines


def _draw_row(figure: Figure, top: float, row: _Row) -> None:
    line = top
    for text, size, colour, weight in row.words:
        text_at(figure, _MARGIN, line, text, fontsize=size, color=colour, weight=weight)
        line += text.count("\n") * figures.line_height(size) + _step(size)
    left = _MARGIN + _WORDS + _GAP
    for picture, width in ((row.page, _PAGE), (row.seen, _SEEN)):
        if picture is not None:
            panels.draw_panel(figure, left, top, picture, picture.fit(width))
        left += width + _GAP


def _draw_end(figure: Figure, top: float, trajectory: Trajectory, verdict: bool | None) -> None:
    answer = "no answer" if trajectory.answer is None else trajectory.answer
    if trajectory.status == "error":
        answer = f"error: {trajectory.error}"
    sign = {True: "✓ ", False: "✗ ", None: ""}[verdict]
    colour = {True: GREEN, False: VERMILION, None: INK}[verdict]
    text_at(
        figure,
        _MARGIN,
        top,
        wrap(f"{sign}Answer: {answer}", 7, 12, lines=1, weight="bold"),
        fontsize=12,
        weight="bold",
        color=colour,
    )
    if trajectory.reference is not None:
        reference = wrap(f"Reference: {trajectory.reference.reference_answer}", 7, 10, lines=1)
        text_at(figure, _MARGIN, top + 0.26, reference, fontsize=10, color=INK)


def _rule(figure: Figure, top: float) -> None:
    height = figure.get_size_inches()[1]
    span = [_MARGIN / _WIDTH, 1 - _MARGIN / _WIDTH]
    figure.add_artist(Line2D(span, [1 - top / height] * 2, color=LINE, linewidth=0.8))
