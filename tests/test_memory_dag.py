"""The picture of a memory graph: what it says, where its cards lie, and that the widget keeps up with an agent."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import RankedEngine, ScriptedPolicy
from hypothesis import given, settings
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from PIL import Image
from test_memory import graphs

from vrag_nb.agent.memory_graph import ANSWER, ROOT, GraphError, Item, MemoryGraph
from vrag_nb.agent.policy import Conversation
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.vimrag import Event, VimRAG
from vrag_nb.display.memory_dag import MemoryDag, memory_figure, trajectory_memory_figure
from vrag_nb.display.memory_layout import PER_ROW, lay_out, rows_of
from vrag_nb.plotting import figures
from vrag_nb.records import Hit

SETTINGS = MemorySettings(memory_pixels=100 * 784)


@pytest.fixture
def graph() -> MemoryGraph:
    """root -> a -> c -> answer and a -> answer, root -> b (a dead end)."""
    graph = MemoryGraph("Which grew faster?")
    graph.open("a", [ROOT], "growth of Norway")
    graph.memorise("a", "2% for $3 to $5", [Item(name="alpha_1", priority=5), Item(name="alpha_2", priority=1)])
    graph.open("b", [ROOT], "growth of Peru")
    graph.memorise("b", "not there", [Item(name="beta_1", priority=2)])
    graph.open("c", ["a"], "growth of Peru since 2010")
    graph.memorise("c", "3% in 2019", [Item(name="beta_2", priority=4), Item(name="beta_2", priority=2, kind="text")])
    return graph


def drawn(figure: Figure) -> np.ndarray:
    image = Image.open(io.BytesIO(figures.png_bytes(figure)))
    width, height = figure.get_size_inches() * figure.dpi
    assert image.size == pytest.approx((width, height), abs=1)
    return np.asarray(image.convert("RGB"))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def of_kind(figure: Figure, kind: type) -> list:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, kind)]


def test_a_growing_graph_is_told_whole(graph: MemoryGraph, tiny_corpus: Path) -> None:
    figure = memory_figure(graph, tiny_corpus, SETTINGS)
    said = "\n".join(texts(figure))
    for words in ("Which grew faster?", "growth of Norway", "2% for $3 to $5", "alpha_1 · p5 · ", "text", "3 searches"):
        assert words in said
    assert "energy 2.32" in said  # of a: (1 + 0.2) * 2 * exp(-0.2), and for both 0.3 * mean(0.8, 0.4) from its child
    assert "of 78,400 pixels allotted" in said
    assert len(of_kind(figure, FancyBboxPatch)) == 4
    assert len(of_kind(figure, FancyArrowPatch)) == 3
    assert not any(text.get_parse_math() for text in figure.axes[0].texts)
    assert drawn(figure).std() > 5


def test_energy_is_the_area_of_a_disc_and_pixels_that_of_a_picture(graph: MemoryGraph, tiny_corpus: Path) -> None:
    figure = memory_figure(graph, tiny_corpus, SETTINGS)
    discs = sorted(disc.get_radius() for disc in of_kind(figure, Circle))
    assert len(discs) == 3
    energy = sorted(float(text.split()[1]) for text in texts(figure) if text.startswith("energy"))
    assert (discs[1] / discs[2]) ** 2 == pytest.approx(energy[1] / energy[2], abs=0.01)
    frames = [axes.get_position() for axes in figure.axes[1:3]]  # alpha_1 and alpha_2, of one shape
    areas = [frame.width * frame.height for frame in frames]
    pixels = [int(text.split(" of ")[1].split()[0].replace(",", "")) for text in texts(figure) if "alpha_" in text]
    assert areas[1] / areas[0] == pytest.approx(pixels[1] / pixels[0], rel=0.01)


def test_the_answer_s_path_is_blue_and_the_rest_grey(graph: MemoryGraph, tiny_corpus: Path) -> None:
    blue = to_rgb(figures.BLUE)
    open_ = memory_figure(graph, tiny_corpus, SETTINGS)
    assert not any(card.get_edgecolor()[:3] == blue for card in of_kind(open_, FancyBboxPatch))
    graph.answer(["c", "a"], "Peru")
    figure = memory_figure(graph, tiny_corpus, SETTINGS)
    cards = of_kind(figure, FancyBboxPatch)
    assert [card.get_edgecolor()[:3] == blue for card in cards] == [True, True, False, True, True]
    assert sum(arrow.get_edgecolor()[:3] == blue for arrow in of_kind(figure, FancyArrowPatch)) == 4
    colours = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert colours["growth of Peru"] != colours["growth of Norway"]
    pictures = [image for axes in figure.axes[1:] for image in axes.get_images()]
    assert [np.asarray(image.get_array()).ndim for image in pictures] == [3, 3, 2, 3]  # b's has no colour
    assert "grey: the rest" in "\n".join(texts(figure))
    drawn(figure)


def test_what_the_memory_does_not_show_is_said(graph: MemoryGraph, tiny_corpus: Path) -> None:
    few = SETTINGS.model_copy(update={"memory_items": 1})
    said = "\n".join(texts(memory_figure(graph, tiny_corpus, few)))
    assert "alpha_2 · p1 · not shown" in said
    graph.open("gone", [ROOT], "x")
    graph.memorise("gone", "y", [Item(name="nowhere_1", priority=3)])
    said = "\n".join(texts(memory_figure(graph, tiny_corpus, SETTINGS)))
    assert "nowhere_1 · p3 · not shown" in said


def test_a_question_alone_and_one_without_pictures(tiny_corpus: Path) -> None:
    drawn(memory_figure(MemoryGraph("Why?"), tiny_corpus))
    graph = MemoryGraph("Why? " * 90)
    graph.open("n" * 64, [ROOT], "word " * 90)
    drawn(memory_figure(graph, tiny_corpus, MemorySettings(memory="graph")))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_cards_never_overlap_and_edges_run_down(graph: MemoryGraph) -> None:
    heights = {node.name: 1.0 + len(node.items) for node in graph.nodes}
    layout = lay_out(graph, heights, 0.5, 0.3)
    cards = list(layout.cards.values())
    assert set(layout.cards) == {node.name for node in graph.nodes}
    for number, one in enumerate(cards):
        assert one.left >= 0.3 - 1e-9
        assert one.left + one.width <= layout.size[0] - 0.3 + 1e-9
        for other in cards[number + 1 :]:
            beside = one.left + one.width <= other.left + 1e-9 or other.left + other.width <= one.left + 1e-9
            assert beside or one.top + one.height <= other.top or other.top + other.height <= one.top
    for (parent, child), points in layout.edges.items():
        assert points[0][1] == pytest.approx(layout.cards[parent].top + heights[parent])
        assert points[-1][1] == layout.cards[child].top
        downs = [point[1] for point in points]
        assert downs == sorted(downs)
        for x, y in points[1:-1]:  # on its way an edge keeps clear of every card
            assert not any(
                card.left < x < card.left + card.width and card.top < y < card.top + card.height for card in cards
            )


def test_rows_stay_when_a_graph_grows_and_are_never_too_long() -> None:
    graph, before = MemoryGraph("q"), {ROOT: 0}
    for number in range(11):
        graph.open(f"n{number}", [ROOT], "x")
        rows = rows_of(graph)
        assert before.items() <= rows.items()
        before = rows
    assert max(list(before.values()).count(row) for row in before.values()) == PER_ROW
    graph.answer(["n0"], "y")
    rows = rows_of(graph)
    assert rows[ANSWER] == max(before.values()) + 1


# -- the widget


def call(tool: str, **arguments: object) -> str:
    return f"<think>a <b>thought</b></think><tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


SCRIPT = [
    "hm",
    call("add_search_node", id="a", parent_ids=["root"], query="growth"),
    call("summarize_and_memorize", summarize="2%", memorize=[{"information_id": "Picture 1", "priority_score": 4}]),
    call("add_answer_node", parent_ids=["a"], answer="Peru"),
]


def agent(corpus: Path) -> VimRAG:
    told = iter(SCRIPT)
    policy = ScriptedPolicy(lambda conversation: next(told))
    return VimRAG(policy=policy, engine=RankedEngine(), corpus=corpus, memory_pixels=90 * 784)


def test_the_widget_follows_an_agent(tiny_corpus: Path) -> None:
    asked = agent(tiny_corpus)
    dag, seen = MemoryDag(str(tiny_corpus), asked.environment.settings), []
    assert (dag.png, dag.changes) == (b"", 0)
    for event in asked.run("Who?"):
        dag.show(event)
        seen.append((dag.changes, dag.slider.value, hash(dag.png)))
    assert dag.changes == 3  # opened, written down, answered
    assert dag.slider.value == 2
    assert len({picture for _, _, picture in seen}) == 4
    assert dag.trajectory is not None
    assert dag.trajectory.answer == "Peru"
    for words in ("was told", "searched", "growth", "wrote down", "2%", "answered", "Peru", "<code>a</code>"):
        assert words in dag.words.value
    assert "<b>thought</b>" not in dag.words.value  # a model's markup is shown, not obeyed
    last = dag.png
    dag.slider.value = 0
    assert dag.png != last
    assert "answered" not in dag.words.value
    dag.slider.value = 2
    assert dag.png == last
    assert "answered" in dag.words.value


def test_a_second_question_begins_a_new_picture(tiny_corpus: Path) -> None:
    first = agent(tiny_corpus)
    dag = MemoryDag(tiny_corpus, first.environment.settings)
    dag.follow(first.run("Who?"))
    told = dag.words.value
    dag.inspect("a")
    for event in agent(tiny_corpus).run("Who else?"):
        dag.show(event)
        if event.kind == "search":
            assert (dag.trajectory, dag.opened.children) == (None, ())
    assert dag.words.value == told
    assert (dag.changes, dag.slider.max, len(dag.searches.children)) == (3, 2, 1)


@pytest.mark.parametrize("broken", ["policy", "engine"])
def test_what_went_wrong_at_once_is_drawn(tiny_corpus: Path, broken: str) -> None:
    class Down(RankedEngine):
        def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
            raise OSError("the server is down")

    def said(conversation: Conversation) -> str:
        if broken == "policy":
            raise OSError("no such model")
        return SCRIPT[1]

    dag = MemoryDag(tiny_corpus)
    trajectory = dag.follow(VimRAG(policy=ScriptedPolicy(said), engine=Down(), corpus=tiny_corpus).run("Who?"))
    assert trajectory is not None
    assert trajectory.status == "error"
    assert dag.png.startswith(b"\x89PNG")
    assert [button.description for button in dag.searches.children] == (["a"] if broken == "engine" else [])
    assert "no such model" in dag.words.value or "the server is down" in dag.words.value


def test_a_record_without_an_answer_opens_its_searches(tiny_corpus: Path) -> None:
    policy = ScriptedPolicy(lambda conversation: SCRIPT[1])
    asked = VimRAG(policy=policy, engine=RankedEngine(), corpus=tiny_corpus, max_steps=2)
    live = MemoryDag(tiny_corpus, asked.environment.settings)
    trajectory = live.follow(asked.run("Who?"))
    assert trajectory is not None
    assert trajectory.status == "no_answer"
    dag = MemoryDag.of(trajectory, tiny_corpus)
    assert "no answer after 2 steps" in dag.words.value
    assert dag.inspect(dag.searches.children[0].description).trajectory == trajectory


def test_a_search_opens_in_the_inspector(tiny_corpus: Path) -> None:
    asked = agent(tiny_corpus)
    dag = MemoryDag(tiny_corpus, asked.environment.settings)
    with pytest.raises(GraphError, match="'a' cannot be opened; searches so far: none"):
        dag.inspect("a")
    for event in asked.run("Who?"):
        dag.show(event)
        if event.kind == "graph" and event.graph and event.graph["a"].items and not event.graph.answered:
            page = dag.inspect("a").current_page  # while it works: the page that the search kept
            assert page is not None
            assert page.page_id == event.graph["a"].items[0].name
    assert [button.description for button in dag.searches.children] == ["a"]
    assert dag.searches.children[0].tooltip == "growth"
    dag.searches.children[0].click()
    [inspector] = dag.opened.children
    assert inspector.trajectory == dag.trajectory
    assert dag.trajectory is not None
    assert dag.trajectory.turns[inspector.turn_index].memory.node == "a"
    with pytest.raises(GraphError, match="searches so far: a"):
        dag.inspect("answer")


def test_a_record_is_shown_at_its_end(tiny_corpus: Path) -> None:
    asked = agent(tiny_corpus)
    live = MemoryDag(tiny_corpus, asked.environment.settings)
    trajectory = live.follow(asked.run("Who?"))
    assert trajectory is not None
    dag = MemoryDag.of(trajectory, tiny_corpus)
    assert dag.png == live.png
    assert dag.words.value == live.words.value
    assert figures.png_bytes(trajectory_memory_figure(trajectory, tiny_corpus)) == live.png
    for broken in (trajectory.model_copy(update={"graph": None}),):
        with pytest.raises(ValueError, match="no memory graph"):
            MemoryDag.of(broken, tiny_corpus)
        with pytest.raises(ValueError, match="no memory graph"):
            trajectory_memory_figure(broken, tiny_corpus)


def test_long_words_are_cut_in_the_log(tiny_corpus: Path) -> None:
    dag = MemoryDag(tiny_corpus)
    dag.show(Event("error", 0, "x" * 9999))
    assert len(dag.words.value) < 999
    assert dag.changes == 0
