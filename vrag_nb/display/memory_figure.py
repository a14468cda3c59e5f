"""A memory graph as a figure: what a VimRAG agent asked, wrote down and kept, and what its answer follows from.

Every search is a card: its sub-query, its summary, a disc whose area is its energy (equation 7, summed over its items)
and its pictures, whose areas are the pixels they are allotted. Once there is an answer the path to it is blue, and the
cards beside it are grey. `memory_figure` draws a graph at any moment, `trajectory_memory_figure` that of a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve
from PIL import Image

from vrag_nb.agent.memory_context import remembered as remembered_items
from vrag_nb.agent.memory_energy import energies
from vrag_nb.agent.memory_graph import ANSWER, ROOT, Item, MemoryGraph, Node
from vrag_nb.agent.memory_records import Remembered
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.display import scenes
from vrag_nb.display.memory_layout import CARD, Layout, Place, lay_out
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import BLUE, INK, LINE, MUTED, ORANGE, axes_at, line_height, wrap

_MARGIN, _PAD = 0.3, 0.12  # inches
_INNER = CARD - 2 * _PAD
_NAME = 20  # letters of a page's name
_TALLEST, _SMALLEST = 1.0, 0.26  # inches, of a picture; the smallest is for what is not shown to the model any more
_DISC = 0.13  # inches, the radius of the largest energy
_PALE, _FAINT = "#f5f5f5", "#a3a3a3"
_DRAWN = 480  # pixels of a picture's longer side


@dataclass(frozen=True)
class _Card:
    """A node ready to be drawn: its lines of (text, fontsize, colour, weight), its energy, its pictures."""

    node: Node
    words: list[tuple[str, float, str, str]]
    energy: float
    pictures: list[tuple[Item, Remembered | None, Image.Image | None]]
    off_path: bool
    on_path: bool


def memory_figure(
    graph: MemoryGraph,
    corpus: Path | Pages,
    settings: MemorySettings | None = None,
    remembered: Sequence[Remembered] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Figure:
    """Draw a graph. corpus: where its pages are. settings: those it was made with, for energies and pixels.

    remembered: what the memory shows, by default what it would show now. notes: a line for some nodes' cards, by name.
    A page that cannot be read is an empty frame.
    """
    settings = settings or MemorySettings()
    pages: Pages = scenes.page_store(corpus) if isinstance(corpus, Path) else corpus
    shown = list(remembered) if remembered is not None else _remembered(graph, settings, pages)
    cards = _cards(graph, settings, pages, shown, notes or {})
    scale = _scale(cards.values())
    heights = {name: _height(card, scale) for name, card in cards.items()}
    layout = lay_out(graph, heights, _MARGIN + 0.4, _MARGIN, least_width=10.8)
    width, height = layout.size[0], layout.size[1] + 0.62
    figure = figures.new_figure(width, height)
    canvas = axes_at(figure, 0, 0, width, height)
    canvas.set(xlim=(0, width), ylim=(height, 0))
    canvas.axis("off")
    _text(canvas, _MARGIN, _MARGIN, _facts(graph, shown, settings), fontsize=9, color=MUTED)
    _edges(canvas, layout, graph.path())
    most = max([card.energy for card in cards.values()], default=0.0) or 1.0
    for name, card in cards.items():
        _draw(figure, canvas, layout.cards[name], card, scale, most)
    _text(canvas, _MARGIN, height - 0.42, _key(graph), fontsize=8.5, color=MUTED)
    return figure


def trajectory_memory_figure(
    trajectory: Trajectory, corpus: Path | Pages, notes: Mapping[str, str] | None = None
) -> Figure:
    """The memory graph at the end of a trajectory, with `notes` as above. Raises ValueError for one that has none."""
    if trajectory.graph is None:
        raise ValueError(f"trajectory {trajectory.uid} has no memory graph: it is not VimRAG's")
    settings = MemorySettings.model_validate(trajectory.settings)
    return memory_figure(MemoryGraph.load(trajectory.graph), corpus, settings, notes=notes)


def _remembered(graph: MemoryGraph, settings: MemorySettings, pages: Pages) -> list[Remembered]:
    try:
        return remembered_items(graph, settings, pages)
    except (KeyError, OSError):  # a page that is not in this corpus: the rest of the graph can be drawn
        return []


def _cards(
    graph: MemoryGraph,
    settings: MemorySettings,
    pages: Pages,
    shown: Sequence[Remembered],
    notes: Mapping[str, str],
) -> dict[str, _Card]:
    by_item: Mapping[tuple[str, str], Remembered] = {(one.kind, one.name): one for one in shown}
    energy, path = energies(graph, settings.decay, settings.feedback), graph.path()
    cards = {}
    for node in graph.nodes:
        off = bool(path) and node.name not in path
        pictures = [(item, by_item.get((item.kind, item.name)), _thumbnail(item, pages)) for item in node.items]
        own = sum(energy[node.name, place] for place in range(len(node.items)))
        words = _words(node, off)
        if node.name in notes:
            words.append((wrap(notes[node.name], _INNER, 9, lines=3, weight="bold"), 9.0, ORANGE, "bold"))
        cards[node.name] = _Card(node, words, own, pictures, off, node.name in path)
    return cards


def _words(node: Node, off: bool) -> list[tuple[str, float, str, str]]:
    ink, muted = (_FAINT, _FAINT) if off else (INK, MUTED)
    if node.name in (ROOT, ANSWER):
        said = node.query if node.name == ROOT else node.summary
        heading = "question" if node.name == ROOT else "answer"
        return [(heading, 8.5, muted, "normal"), (wrap(said, _INNER, 11, lines=6, weight="bold"), 11.0, ink, "bold")]
    lines = [(_short(node.name), 10.5, muted, "normal")]
    lines.append((wrap(node.query, _INNER, 9.5, lines=3, weight="bold"), 9.5, ink, "bold"))
    lines.append((wrap(node.summary or "not written down", _INNER, 8.5, lines=5), 8.5, muted, "normal"))
    return lines


def _caption(item: Item, shown: Remembered | None) -> str:
    """What a kept item is and what it is worth, in one line."""
    worth = "not shown" if shown is None else "text" if item.kind == "text" else "too few pixels"
    if shown is not None and shown.shown_size is not None:
        worth = f"{shown.shown_size[0]}×{shown.shown_size[1]} of {shown.pixels:,} px"
    return f"{_short(item.name)} · p{item.priority} · {worth}"


def _short(name: str) -> str:
    """A name that fits a card: its end is what tells pages of one document apart."""
    return name if len(name) <= _NAME else f"{name[: _NAME - 9]}…{name[-8:]}"


def _thumbnail(item: Item, pages: Pages) -> Image.Image | None:
    if item.kind == "text":
        return None
    try:
        image = pages.image(item.name).copy()
    except (KeyError, OSError, ValueError):
        return None
    image.thumbnail((_DRAWN, _DRAWN))
    return image


def _sizes(card: _Card, scale: float) -> list[tuple[float, float]]:
    """(width, height) in inches of each picture of a card: area follows the pixels allotted."""
    found = []
    for _, shown, image in card.pictures:
        ratio = image.width / image.height if image is not None else 1.0
        pixels = shown.pixels if shown is not None and shown.shown_size is not None else 0
        across = max(math.sqrt(pixels * ratio) * scale, _SMALLEST)
        found.append((across, across / ratio))
    return found


def _scale(cards: Iterable[_Card]) -> float:
    """Inches per root pixel, so that in every card the pictures stand side by side and none is too tall."""
    scale = math.inf
    for card in cards:
        if not card.pictures:
            continue
        room = _INNER - 0.08 * (len(card.pictures) - 1)
        sides = _sizes(card, 1.0)
        wide = sum(width for width, _ in sides)
        tall = max(height for _, height in sides)
        scale = min(scale, room / max(wide, 1e-9), _TALLEST / max(tall, 1e-9))
    return scale if math.isfinite(scale) else 1.0


def _height(card: _Card, scale: float) -> float:
    height = 2 * _PAD + sum(_step(text, size) for text, size, _, _ in card.words)
    if card.pictures:
        height += max(tall for _, tall in _sizes(card, scale)) + 0.1 + len(card.pictures) * line_height(7.5) + 0.04
    return height


def _step(text: str, fontsize: float) -> float:
    return (text.count("\n") + 1) * line_height(fontsize) + 0.05


def _draw(figure: Figure, canvas: Axes, place: Place, card: _Card, scale: float, most: float) -> None:
    edge, line = (BLUE, 2.2) if card.on_path else (LINE if card.off_path else MUTED, 1.0)
    face = _PALE if card.off_path else "white"
    shape = FancyBboxPatch((place.left, place.top), place.width, place.height, "round,pad=0,rounding_size=0.08",
                           facecolor=face, edgecolor=edge, linewidth=line, zorder=2)  # fmt: skip
    canvas.add_patch(shape)
    if card.energy:
        _disc(canvas, place, card, most)
    left, top = place.left + _PAD, place.top + _PAD
    for text, size, colour, weight in card.words:
        _text(canvas, left, top, text, fontsize=size, color=colour, weight=weight)
        top += _step(text, size)
    if not card.pictures:
        return
    sizes = _sizes(card, scale)
    for (_, shown, image), (width, height) in zip(card.pictures, sizes, strict=True):
        faded = card.off_path or shown is None
        _picture(axes_at(figure, left, top + 0.02, width, height), image, faded)
        left += width + 0.08
    top += max(height for _, height in sizes) + 0.1
    for item, shown, _ in card.pictures:
        colour = _FAINT if card.off_path or shown is None else MUTED
        _text(canvas, place.left + _PAD, top, _caption(item, shown), fontsize=7.5, color=colour)
        top += line_height(7.5)


def _disc(canvas: Axes, place: Place, card: _Card, most: float) -> None:
    """The energy: a disc in the card's upper right corner, and its number."""
    radius = max(_DISC * math.sqrt(card.energy / most), 0.03)
    right, middle = place.left + place.width - _PAD, place.top + _PAD + 0.07
    colour = _FAINT if card.off_path else ORANGE
    canvas.add_patch(Circle((right - _DISC, middle + 0.03), radius, facecolor=colour, edgecolor="none", zorder=3))
    words = _FAINT if card.off_path else MUTED
    _text(canvas, right - 2 * _DISC - 0.06, place.top + _PAD, f"energy {card.energy:.2f}", 8.5, words, ha="right")


def _picture(axes: Axes, image: Image.Image | None, faded: bool) -> None:
    axes.set_zorder(3)
    figures.plain(axes)
    if image is None:
        axes.text(0.5, 0.5, "T", ha="center", va="center", fontsize=9, color=MUTED, transform=axes.transAxes)
        return
    pixels = np.asarray(image.convert("L" if faded else "RGB"))
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, alpha=0.45 if faded else 1.0, aspect="auto")


def _edges(canvas: Axes, layout: Layout, path: set[str]) -> None:
    for (parent, child), points in layout.edges.items():
        on = parent in path and child in path
        colour, width = (BLUE, 2.2) if on else (LINE if path else MUTED, 1.2)
        arrow = FancyArrowPatch(
            path=_curve(points),
            arrowstyle="-|>",
            mutation_scale=11,
            color=colour,
            linewidth=width,
            zorder=1.5 if on else 1,
        )
        canvas.add_patch(arrow)


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Through all points, downwards at each."""
    vertices, codes = [points[0]], [Curve.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (y1 - y0) / 2
        vertices += [(x0, y0 + half), (x1, y1 - half), (x1, y1)]
        codes += [Curve.CURVE4] * 3
    return Curve(vertices, codes)


def _facts(graph: MemoryGraph, shown: Sequence[Remembered], settings: MemorySettings) -> str:
    searches = sum(node.name not in (ROOT, ANSWER) for node in graph.nodes)
    used = sum(one.pixels for one in shown)
    kept = len({(item.kind, item.name) for node in graph.nodes for item in node.items})
    facts = [f"memory: {settings.memory}", f"{searches} search{'es' * (searches != 1)}", f"{kept} kept"]
    if used:
        facts.append(f"{len(shown)} shown, {used:,} of {settings.memory_pixels:,} pixels allotted")
    return "   ·   ".join(facts)


def _key(graph: MemoryGraph) -> str:
    words = "Disc: energy of what a search kept.   Picture: area by the pixels it is allotted, p1 to p5 its priority."
    return f"{words}   Blue: what the answer follows from; grey: the rest." if graph.answered else words


def _text(canvas: Axes, left: float, top: float, text: str, fontsize: float, color: str, **style: Any) -> None:
    """Plain text, in inches from the canvas's top left corner."""
    canvas.text(left, top, text, fontsize=fontsize, color=color, va="top", parse_math=False, zorder=4, **style)
