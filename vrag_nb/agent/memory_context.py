"""What a VimRAG agent reads at the start of a cycle: C_t, rebuilt from its memory (arXiv 2602.12735, section 3.1).

The instructions with the question, the graph as text, the remembered items - images at the pixels that their energy
allots - and, where the last step was a fault or a search found nothing, the notice that says so. Nothing else of the
past is there. The order is ours: what never changes comes first, so that a server can keep its prefix.

Where public sources do not say: a page that several nodes keep is shown once and its energies are added up; texts take
no pixels, and as many of them are shown as there may be images; an allotment below one image token shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vrag_nb.agent.memory_energy import Key, allocate, energies, uniform
from vrag_nb.agent.memory_graph import MemoryGraph
from vrag_nb.agent.memory_items import KINDS
from vrag_nb.agent.memory_records import Remembered
from vrag_nb.agent.pages import Pages
from vrag_nb.agent.policy import Conversation, Image, Message, Text
from vrag_nb.agent.task_settings import MemorySettings

GRAPH_HEAD = "\n\nMemory graph, a line for each node:\n"
SUMMARY_HEAD = "\n\nWhat you have written down so far:\n"
ITEMS_HEAD = "\n\nKept from earlier searches:"
NOTHING_YET = "nothing yet"


def remembered(graph: MemoryGraph, settings: MemorySettings, pages: Pages) -> list[Remembered]:
    """The items to show from memory, oldest first, with energies and pixels; empty where the memory keeps none.

    Raises KeyError for a page that is not in the corpus.
    """
    if not settings.keeps_items:
        return []
    found: dict[tuple[str, str], Remembered] = {}
    for (node, place), energy in energies(graph, settings.decay, settings.feedback).items():
        item = graph[node].items[place]
        one = found.setdefault((item.kind, item.name), Remembered(name=item.name, kind=item.kind, nodes=[], energy=0))
        one.nodes.append(node)
        one.energy += energy
        one.timestamps += item.timestamps
    chosen = [one for visual in (True, False) for one in _chosen(list(found.values()), visual, settings, pages)]
    order = {id(one): number for number, one in enumerate(found.values())}
    return sorted(chosen, key=lambda one: order[id(one)])


def _chosen(items: Sequence[Remembered], visual: bool, settings: MemorySettings, pages: Pages) -> list[Remembered]:
    """The items of most energy among those that are visual, or not, with what they are allotted."""
    energy: dict[Key, float] = {
        (item.name, number): item.energy for number, item in enumerate(items) if KINDS[item.kind].visual == visual
    }
    shares: Mapping[Key, int] = (allocate if settings.memory == "energy" else uniform)(
        energy, settings.memory_pixels, settings.memory_items
    )
    chosen = []
    for (_, number), pixels in shares.items():
        item = items[number]
        item.pixels = pixels if visual else 0
        item.shown_size = KINDS[item.kind].recalled_size(pages.page(item.name), item.pixels, settings)
        chosen.append(item)
    return chosen


def context(
    prompt: str,
    graph: MemoryGraph,
    items: Sequence[Remembered],
    settings: MemorySettings,
    pages: Pages,
    last_words: str,
) -> Conversation:
    """The messages that open a cycle; `last_words` is the notice and what is asked for.

    Raises KeyError / OSError for a page that is not there or cannot be read.
    """
    parts: list[Text | Image] = [Text(prompt)]
    if settings.keeps_graph:
        parts.append(Text(GRAPH_HEAD + graph.linearise()))
    else:
        parts.append(Text(SUMMARY_HEAD + (graph.nodes[-1].summary or NOTHING_YET)))
    shown = [part for item in items for part in KINDS[item.kind].recall(pages.page(item.name), item, pages, settings)]
    if shown:
        parts += [Text(ITEMS_HEAD), *shown]
    parts.append(Text(f"\n\n{last_words}"))
    first = [Message("system", (Text(settings.system),))] if settings.system else []
    return [*first, Message("user", _merged(parts))]


def _merged(parts: Sequence[Text | Image]) -> tuple[Text | Image, ...]:
    """Neighbouring texts as one."""
    merged: list[Text | Image] = []
    for part in parts:
        if isinstance(part, Text) and merged and isinstance(merged[-1], Text):
            merged[-1] = Text(merged[-1].text + part.text)
        else:
            merged.append(part)
    return tuple(merged)
