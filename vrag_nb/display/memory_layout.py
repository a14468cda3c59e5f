"""Where the cards of a memory graph lie: rows from the question down, no card over another, no edge behind a card.

A node's row is below its parents', or further down where that row is full; as parents come before their children, rows
never change while a graph grows. Within a row cards stand under their parents, and an edge that passes a row has a
lane of its own in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vrag_nb.agent.memory_graph import ANSWER, MemoryGraph

Lane = tuple[str, str, int]  # parent, child, the row passed
Point = tuple[float, float]

PER_ROW = 4
CARD, LANE = 3.1, 0.22  # widths, inches
GAP, DROP = 0.28, 0.5  # between cards, and between rows, inches


@dataclass(frozen=True)
class Place:
    """A rectangle, in inches from the figure's top left corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


@dataclass(frozen=True)
class Layout:
    """Cards by node, and for every edge (parent, child) the points it runs through. size: (width, height) in all."""

    cards: dict[str, Place]
    edges: dict[tuple[str, str], list[Point]]
    size: tuple[float, float]


def rows_of(graph: MemoryGraph, per_row: int = PER_ROW) -> dict[str, int]:
    """The row of every node, the root's being 0; the answer is alone in the last one."""
    rows: dict[str, int] = {}
    for node in graph.nodes:
        row = 1 + max((rows[parent] for parent in node.parents), default=-1)
        while list(rows.values()).count(row) >= per_row:
            row += 1
        rows[node.name] = row if node.name != ANSWER else 1 + max(rows.values())
    return rows


def lay_out(
    graph: MemoryGraph, heights: Mapping[str, float], top: float, margin: float, least_width: float = 0.0
) -> Layout:
    """Place cards of the given heights (inches, by node) below `top`, centred, `margin` inches from the sides."""
    rows = rows_of(graph)
    order = _ordered(graph, rows)
    widths = [sum(_width(slot) for slot in row) + GAP * (len(row) - 1) for row in order]
    width = max(max(widths) + 2 * margin, least_width)
    places: dict[str | Lane, Place] = {}
    for row, row_width in zip(order, widths, strict=True):
        height = max(heights[slot] for slot in row if isinstance(slot, str))
        left = (width - row_width) / 2
        for slot in row:
            own = heights[slot] if isinstance(slot, str) else height
            places[slot] = Place(left, top, _width(slot), own)
            left += _width(slot) + GAP
        top += height + DROP
    edges = {
        (parent, node.name): _through(parent, node.name, rows, places)
        for node in graph.nodes
        for parent in node.parents
    }
    cards = {slot: place for slot, place in places.items() if isinstance(slot, str)}
    return Layout(cards, edges, (width, top - DROP))


def _ordered(graph: MemoryGraph, rows: Mapping[str, int]) -> list[list[str | Lane]]:
    """Every row's cards and lanes from left to right: each under the middle of what leads to it."""
    order: list[list[str | Lane]] = []
    spot: dict[str | Lane, float] = {}
    for row in range(max(rows.values()) + 1):
        above = {name: _above(graph[name].parents, name, row, rows) for name in rows if rows[name] == row}
        slots: dict[str | Lane, float] = {}
        for name, before in above.items():
            slots[name] = sum(spot[one] for one in before) / len(before) if before else 0.0
        for child in graph.nodes:
            for parent in child.parents:
                if rows[parent] < row < rows[child.name]:
                    [before_lane] = _above([parent], child.name, row, rows)
                    slots[parent, child.name, row] = spot[before_lane]
        found = sorted(slots, key=lambda slot: slots[slot])
        order.append(found)
        whole = sum(_width(slot) + GAP for slot in found)
        left = -whole / 2
        for slot in found:
            spot[slot] = left + _width(slot) / 2
            left += _width(slot) + GAP
    return order


def _above(parents: Sequence[str], child: str, row: int, rows: Mapping[str, int]) -> list[str | Lane]:
    """What an edge to `child` comes through in the row above: its parent, or its own lane."""
    return [parent if rows[parent] == row - 1 else (parent, child, row - 1) for parent in parents]


def _through(parent: str, child: str, rows: Mapping[str, int], places: Mapping[str | Lane, Place]) -> list[Point]:
    start, end = places[parent], places[child]
    points = [(start.middle, start.top + start.height)]
    for row in range(rows[parent] + 1, rows[child]):
        lane = places[parent, child, row]
        points += [(lane.middle, lane.top), (lane.middle, lane.top + lane.height)]
    return [*points, (end.middle, end.top)]


def _width(slot: str | Lane) -> float:
    return CARD if isinstance(slot, str) else LANE
