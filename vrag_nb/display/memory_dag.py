"""VimRAG's memory while it grows: a widget that follows an agent's events, and its static twins.

    dag = MemoryDag(corpus, agent.environment.settings)
    display(dag)
    trajectory = dag.follow(agent.run("Which country grew faster?"))

Every change of the graph is drawn as `display.memory_figure` draws it; the slider goes back to any of them. Beside the
picture is what happened, in words. Below it every search has a button, which opens it in the inspector: its turn, or
while the agent still works, a page that it kept. Python owns the pixels: the picture travels as PNG bytes, so nothing
has to be installed in the browser, and `dag.png` is what a headless run saves. For a record there is `MemoryDag.of`,
and `trajectory_memory_figure` without a widget.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import ipywidgets

from vrag_nb.agent.memory_graph import ANSWER, ROOT, GraphError, MemoryGraph, Node
from vrag_nb.agent.memory_records import Remembered
from vrag_nb.agent.pages import Pages, PageStore
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Trajectory
from vrag_nb.agent.vimrag import Event
from vrag_nb.display import scenes
from vrag_nb.display.inspector import TrajectoryInspector
from vrag_nb.display.memory_figure import memory_figure, trajectory_memory_figure
from vrag_nb.plotting import figures
from vrag_nb.plotting.figures import BLUE, MUTED, VERMILION

__all__ = ["MemoryDag", "memory_figure", "trajectory_memory_figure"]

_WORDS = {
    "think": ("thought", MUTED),
    "search": ("searched", BLUE),
    "memorize": ("wrote down", BLUE),
    "answer": ("answered", BLUE),
    "notice": ("was told", VERMILION),
    "error": ("error", VERMILION),
}
_LONGEST = 400  # characters of one entry


@dataclass(frozen=True)
class _State:
    """The graph at one moment, what the memory showed then, and how many entries of the log were there."""

    graph: MemoryGraph
    remembered: list[Remembered]
    entries: int


class MemoryDag(ipywidgets.VBox):
    """See the module's docstring.

    corpus: the prepared folder the agent works on, or an open store of its pages. settings: those the agent works
    with. A page that cannot be read is drawn as an empty frame.
    """

    def __init__(self, corpus: Path | str | Pages, settings: MemorySettings | None = None) -> None:
        self.pages: Pages = scenes.page_store(corpus) if isinstance(corpus, Path | str) else corpus
        self.settings = settings or MemorySettings()
        self.trajectory: Trajectory | None = None
        self._states: list[_State] = []
        self._drawn: dict[int, bytes] = {}
        self._entries: list[str] = []
        shrinks = ipywidgets.Layout(flex="0 1 auto", min_width="0", height="auto")  # a wide graph leaves the words room
        self.picture = ipywidgets.Image(format="png", layout=shrinks)
        self.words = ipywidgets.HTML(layout=ipywidgets.Layout(flex="0 0 300px", max_height="900px", overflow="auto"))
        self.slider = ipywidgets.IntSlider(min=0, max=0, description="change", continuous_update=False)
        self.slider.observe(self._on_slider, "value")
        row = ipywidgets.HBox([self.picture, self.words], layout=ipywidgets.Layout(align_items="flex-start"))
        self.searches = ipywidgets.HBox(layout=ipywidgets.Layout(flex_flow="row wrap"))
        self.opened = ipywidgets.VBox()
        super().__init__([self.slider, row, self.searches, self.opened])

    @classmethod
    def of(cls, trajectory: Trajectory, corpus: Path | str | Pages) -> MemoryDag:
        """The graph of a record, at its end. Raises ValueError for a trajectory without one."""
        if trajectory.graph is None:
            raise ValueError(f"trajectory {trajectory.uid} has no memory graph: it is not VimRAG's")
        dag = cls(corpus, MemorySettings.model_validate(trajectory.settings))
        for event in _events_of(trajectory):
            dag.show(event)
        return dag

    @property
    def png(self) -> bytes:
        """The picture as it is shown now; empty before the first change."""
        return bytes(self.picture.value)

    @property
    def changes(self) -> int:
        """How often the graph has changed so far."""
        return len(self._states)

    def follow(self, events: Iterable[Event]) -> Trajectory | None:
        """Show events as they come, to the end; the trajectory that the last one carries."""
        for event in events:
            self.show(event)
        return self.trajectory

    def show(self, event: Event) -> None:
        """Show one event. The first one after a question's last begins a new picture."""
        if self.trajectory is not None and event.trajectory is None:
            self._begin_anew()
        self.trajectory = event.trajectory or self.trajectory
        if event.kind in _WORDS:
            self._entries.append(_entry(event))
            self._write(len(self._entries))
        if event.kind in ("graph", "error") and event.graph is not None:
            kept = event.remembered or (self._states[-1].remembered if event.kind == "error" and self._states else [])
            self._states.append(_State(event.graph, list(kept), len(self._entries)))
            self._offer_searches()
            self.slider.max = len(self._states) - 1
            if self.slider.value == self.slider.max:  # the first one: the slider does not move
                self._draw(self.slider.value)
            self.slider.value = self.slider.max

    def _begin_anew(self) -> None:
        self.trajectory, self._states, self._drawn, self._entries = None, [], {}, []
        self.searches.children = self.opened.children = ()
        self.slider.value = self.slider.max = 0

    def inspect(self, name: str) -> TrajectoryInspector:
        """Open a search in the inspector below. Raises GraphError for a node that is no search of the graph so far."""
        known = [node.name for node in self._searches()]
        if name not in known or not isinstance(self.pages, PageStore):
            raise GraphError(f"{name!r} cannot be opened; searches so far: {', '.join(known) or 'none'}")
        turns = self.trajectory.turns if self.trajectory else []
        turn = next((n for n, one in enumerate(turns) if one.memory and one.memory.node == name), None)
        if self.trajectory is not None and turn is not None:
            inspector = TrajectoryInspector([self.trajectory], self.pages, turn_index=turn)
        else:
            inspector = TrajectoryInspector([], self.pages)
            for item in self._states[-1].graph[name].items[:1]:
                inspector.open_page(item.name)
        for other in self.opened.children:
            other.close()
        self.opened.children = (inspector,)
        return inspector

    def _searches(self) -> list[Node]:
        nodes = self._states[-1].graph.nodes if self._states else []
        return [node for node in nodes if node.name not in (ROOT, ANSWER)]

    def _offer_searches(self) -> None:
        """A button for each search that has none yet."""
        if not isinstance(self.pages, PageStore):  # other stores are not the inspector's
            return
        for node in self._searches()[len(self.searches.children) :]:
            button = ipywidgets.Button(description=node.name, tooltip=node.query)
            button.on_click(lambda _, name=node.name: self.inspect(name))
            self.searches.children = (*self.searches.children, button)

    def _on_slider(self, change: dict[str, int]) -> None:
        self._draw(change["new"])

    def _draw(self, index: int) -> None:
        """Show the graph as it was after change `index`, and what had happened by then."""
        if not 0 <= index < len(self._states):
            return
        state = self._states[index]
        if index not in self._drawn:
            figure = memory_figure(state.graph, self.pages, self.settings, state.remembered)
            self._drawn[index] = figures.png_bytes(figure)
        self.picture.value = self._drawn[index]
        newest = index == len(self._states) - 1
        self._write(len(self._entries) if newest else state.entries)

    def _write(self, entries: int) -> None:
        self.words.value = "".join(self._entries[:entries])


def _entry(event: Event) -> str:
    """One line of the log. Texts come from models and documents: nothing in them is markup."""
    words, colour = _WORDS[event.kind]
    text = event.text if len(event.text) <= _LONGEST else f"{event.text[:_LONGEST]} …"
    node = f" <code>{html.escape(event.node)}</code>" if event.node else ""
    head = f'<b style="color:{colour}">{event.step + 1} {words}</b>{node}'
    return f'<p style="margin:2px 0;line-height:1.3">{head}<br>{html.escape(text)}</p>'


def _events_of(trajectory: Trajectory) -> list[Event]:
    """What happened in a record, as far as the widget shows it; one change of the graph, the last."""
    events: list[Event] = []
    step = 0
    for turn in trajectory.turns:
        memory = turn.memory
        node = memory.node if memory else ""
        if turn.thought:
            events.append(Event("think", step, turn.thought))
        if turn.action.kind == "search":
            events.append(Event("search", step, turn.action.query or "", node))
        events += [Event("notice", step, notice) for notice in turn.notices]
        for reply in memory.replies if memory else []:
            step += 1
            if reply.thought:
                events.append(Event("think", step, reply.thought))
            kept = reply.action.summary if not reply.notice else None
            events.append(Event("notice" if kept is None else "memorize", step, kept or reply.notice, node))
        step += 1
    graph = MemoryGraph.load(trajectory.graph or [])
    last = trajectory.turns[-1].memory if trajectory.turns else None
    events.append(Event("graph", step, graph=graph, remembered=last.remembered if last else []))
    last_step = max(0, step - 1)
    if trajectory.error is not None:
        events.append(Event("error", last_step, trajectory.error, trajectory=trajectory))
    elif trajectory.answer is not None:
        events.append(Event("answer", last_step, trajectory.answer, trajectory=trajectory))
    else:
        events.append(Event("notice", last_step, f"no answer after {step} steps", trajectory=trajectory))
    return events
