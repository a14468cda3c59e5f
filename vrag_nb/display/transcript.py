"""An agent's events as lines of text, while they come: what `python -m vrag_nb ask` prints.

for line in transcript(agent, "What was revenue in 2019?"):
    print(line)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vrag_nb.agent import vimrag, vrag
from vrag_nb.agent.memory_graph import ANSWER, ROOT
from vrag_nb.agent.memory_records import Remembered

_MARKS = {"think": "·", "search": "search", "bbox": "crop", "answer": "answer", "invalid": "invalid"}
_MEMORY_MARKS = {"think": "·", "search": "search", "memorize": "notes", "answer": "answer"}
NO_ANSWER = "no answer"


def transcript(agent: vrag.VRAG | vimrag.VimRAG, question: str) -> Iterator[str]:
    """Ask an agent of either kind; the last line is NO_ANSWER where there is none."""
    if isinstance(agent, vimrag.VimRAG):
        return memory_lines(agent.run(question))
    return turn_lines(agent.run(question))


def turn_lines(events: Iterable[vrag.Event]) -> Iterator[str]:
    """VRAG's events: a turn's thought and action, and the image it was shown."""
    answered = False
    for event in events:
        if event.observation is None and event.kind not in ("error", "end"):
            text = event.text or (str([round(value) for value in event.box]) if event.box else "")
            yield _line(event.turn, _MARKS.get(event.kind, event.kind), text)
        elif event.observation is not None and event.image is not None:
            width, height = event.image.size
            yield _more(f"looks at {event.observation.page_id} ({event.kind}, {width} x {height} px)")
        elif event.kind in ("notice", "error"):
            yield f"  {event.kind:>7}  {event.text}"
        answered = event.trajectory is not None and event.trajectory.status == "answered"
    if not answered:
        yield NO_ANSWER


def memory_lines(events: Iterable[vimrag.Event]) -> Iterator[str]:
    """VimRAG's events: searches with their nodes, what was written down, and what the next context shows of it."""
    answered, before = False, list[Remembered]()
    for event in events:
        ended = event.trajectory is not None
        if event.kind in _MEMORY_MARKS:
            yield _line(event.step, _MEMORY_MARKS[event.kind], event.text)
        elif event.kind in ("notice", "error") and not (ended and event.kind == "notice"):
            yield f"  {event.kind:>7}  {event.text}"
        if event.kind == "search":
            yield _more(f"is {event.node}, after {', '.join(event.parents) or ROOT}")
            shown = ", ".join(f"{one.name} ({one.label})" for one in event.offered)
            yield _more(f"looks at {shown}" if shown else "is shown nothing")
        if event.kind == "graph" and event.remembered and event.remembered != before:
            before = event.remembered
            yield _more(f"remembers {', '.join(map(_kept, before))}")
        if event.kind == "graph" and event.graph is not None and event.graph.answered:
            yield _more(f"follows from {', '.join(event.graph[ANSWER].parents)}")
        answered = event.trajectory is not None and event.trajectory.status == "answered"
    if not answered:
        yield NO_ANSWER


def _kept(one: Remembered) -> str:
    size = (
        f"{one.shown_size[0]} x {one.shown_size[1]} px" if one.shown_size else "its text" if one.kind == "text" else ""
    )
    return f"{one.name} ({size or 'too few pixels'})"


def _line(step: int, mark: str, text: str) -> str:
    return f"{step + 1} {mark:>7}  {text}"


def _more(text: str) -> str:
    return f"          {text}"
