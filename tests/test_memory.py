"""The memory graph, its energies and GGPO's mask and loss against hand-worked examples."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vrag_nb.agent.memory_energy import allocate, energies, uniform
from vrag_nb.agent.memory_graph import ANSWER, LONGEST_NAME, ROOT, GraphError, Item, MemoryGraph
from vrag_nb.learning.ggpo import ggpo_loss, left_out


@pytest.fixture
def graph() -> MemoryGraph:
    """root -> a -> c -> answer, root -> b (a dead end)."""
    graph = MemoryGraph("Which grew faster?")
    graph.open("a", [ROOT], "growth of Norway")
    graph.memorise("a", "2% in 2019", [Item(name="deck_1", priority=5), Item(name="deck_2", priority=1)])
    graph.open("b", [ROOT], "growth of Peru")
    graph.memorise("b", "not there", [Item(name="deck_9", priority=2)])
    graph.open("c", ["a"], "growth of Peru since 2010")
    graph.memorise("c", "3% in 2019", [Item(name="deck_4", priority=4)])
    graph.answer(["c"], "Peru")
    return graph


def test_the_answer_s_path_and_what_is_beside_it(graph: MemoryGraph) -> None:
    assert graph.path() == {ROOT, "a", "c", ANSWER}
    assert graph.redundant() == ["b"]
    assert graph.dead_ends() == ["b"]
    assert graph.children(ROOT) == ["a", "b"]
    assert sorted(graph.as_networkx().edges) == [("a", "c"), ("c", ANSWER), (ROOT, "a"), (ROOT, "b")]
    assert MemoryGraph("q").path() == set()
    assert MemoryGraph("q").redundant() == []


def test_it_is_written_into_prompts_and_records(graph: MemoryGraph) -> None:
    lines = [json.loads(line) for line in graph.linearise().splitlines()]
    assert lines[0] == {"id": ROOT, "query": "Which grew faster?"}
    assert lines[1]["kept"] == {"deck_1": 5, "deck_2": 1}
    assert lines[-1] == {"id": ANSWER, "parents": ["c"], "summary": "Peru"}
    again = MemoryGraph.load(json.loads(json.dumps(graph.dump())))
    assert again.nodes == graph.nodes


def test_what_does_not_fit_says_why(graph: MemoryGraph) -> None:
    with pytest.raises(GraphError, match="is answered"):
        graph.open("d", ["a"], "more")
    fresh = MemoryGraph("q")
    fresh.open("a", [ROOT], "x")
    for name, parents, query, why in (
        ("a", [ROOT], "x", "'a' is taken"),
        ("", [ROOT], "x", "needs a name"),
        ("b", ["z"], "x", "no node 'z'; there are root, a"),
        ("b", [], "x", "no parents"),
        ("b", ["a"], " ", "no query"),
    ):
        with pytest.raises(GraphError, match=why):
            fresh.open(name, parents, query)
    with pytest.raises(GraphError, match="is no search"):
        fresh.memorise(ROOT, "x")
    later = [{"name": ROOT}, {"name": "b", "parents": ["c"]}, {"name": "c", "parents": [ROOT]}]
    with pytest.raises(GraphError, match="no node 'c'"):
        MemoryGraph.load(later)
    with pytest.raises(GraphError, match="first node"):
        MemoryGraph.load([{"name": "a"}])


def test_a_taken_name_gets_a_number_and_stays_as_short_as_a_reference_to_it() -> None:
    graph, name = MemoryGraph("q"), "n" * LONGEST_NAME
    names = []
    for _ in range(11):
        names.append(graph.free_name(name))
        graph.open(names[-1], [ROOT], "x")
    assert len(set(names)) == 11
    assert {len(one) for one in names} == {LONGEST_NAME}
    assert names[10] == name[:-3] + "_11"


def test_energies_are_those_of_equations_6_and_7(graph: MemoryGraph) -> None:
    """Nodes root, a, b, c are numbered 0 to 3, so a is 2 steps old, b 1 and c 0; a has one child."""
    found = energies(graph)
    c = 4 / 5
    assert found["c", 0] == pytest.approx(c)
    assert found["b", 0] == pytest.approx(2 / 5 * math.exp(-0.1))
    assert found["a", 0] == pytest.approx(1 * 2 * math.exp(-0.2) + 0.3 * c)
    assert found["a", 1] == pytest.approx(1 / 5 * 2 * math.exp(-0.2) + 0.3 * c)
    assert list(found) == [("a", 0), ("a", 1), ("b", 0), ("c", 0)]
    assert energies(graph, decay=0, feedback=0) == pytest.approx(
        {("a", 0): 2, ("a", 1): 0.4, ("b", 0): 0.4, ("c", 0): 0.8}
    )


def test_pixels_follow_energy_and_the_rest_is_dropped() -> None:
    energy = {("a", 0): 3.0, ("a", 1): 1.0, ("b", 0): 0.5}
    assert allocate(energy, 1000, 2) == {("a", 0): 750, ("a", 1): 250}
    assert uniform(energy, 1000, 3) == {("a", 0): 333, ("a", 1): 333, ("b", 0): 333}
    assert allocate({}) == {} == uniform({})
    # 1/5 and 4/5 of 1,310,720; a pixel less would show a page of 1024 x 1024 in 992 x 992, squares being 32 wide
    assert allocate({("a", 0): 0.2, ("a", 1): 0.8}) == {("a", 0): 262_144, ("a", 1): 1_048_576}


@st.composite
def graphs(draw: st.DrawFn) -> MemoryGraph:
    graph = MemoryGraph("q")
    for number in range(draw(st.integers(0, 8))):
        known = [node.name for node in graph.nodes]
        parents = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        graph.open(f"n{number}", parents, "x")
        priorities = draw(st.lists(st.integers(1, 5), max_size=4))
        graph.memorise(f"n{number}", "", [Item(name=f"i{k}", priority=p) for k, p in enumerate(priorities)])
    return graph


@given(graphs(), st.integers(1, 10**7), st.integers(1, 8))
def test_energy_is_positive_and_budgets_hold(graph: MemoryGraph, budget: int, top_k: int) -> None:
    energy = energies(graph)
    assert all(value > 0 for value in energy.values())
    assert len(energy) == sum(len(node.items) for node in graph.nodes)
    for shares in (allocate(energy, budget, top_k), uniform(energy, budget, top_k)):
        assert sum(shares.values()) <= budget
        assert len(shares) == min(top_k, len(energy))
    assert MemoryGraph.load(graph.dump()).linearise() == graph.linearise()


def test_success_drops_what_led_nowhere_and_failure_spares_what_was_found(graph: MemoryGraph) -> None:
    shown = {"a": {"deck_1", "deck_2"}, "b": {"deck_9"}, "c": {"deck_4"}}
    assert left_out(graph, True, shown, {"deck_4"}) == {"a": False, "b": True, "c": False, ANSWER: False}
    assert left_out(graph, False, shown, {"deck_4"}) == {"a": False, "b": False, "c": True, ANSWER: False}


def test_the_loss_is_equation_12_and_masked_segments_get_no_gradient() -> None:
    old = torch.log(torch.tensor([[0.5, 0.5, 0.1], [0.2, 0.4, 0.3], [0.5, 0.9, 0.9]]))
    new = torch.log(torch.tensor([[0.6, 0.4, 0.9], [0.4, 0.8, 0.3], [0.9, 0.1, 0.9]])).requires_grad_()
    written = torch.tensor([[True, True, False], [True, True, False], [True, True, True]])
    advantages, masked = torch.tensor([2.0, 1.0, -1.0]), torch.tensor([False, False, True])
    first = math.sqrt(0.6 / 0.5 * 0.4 / 0.5)  # lengths are 2 and 2; the second segment's ratio, 2, is clipped to 1.2
    loss = ggpo_loss(new, old, written, advantages, masked)
    assert loss.item() == pytest.approx(-(first * 2 + 1.2 * 1) / 3)
    loss.backward()
    assert new.grad is not None
    assert (new.grad[2] == 0).all()
    assert (new.grad[1] == 0).all()  # clipped
    assert (new.grad[0, :2] != 0).all()
    assert new.grad[0, 2] == 0  # not the model's token


def test_energies_that_have_faded_away_are_still_shared_out() -> None:
    one = MemoryGraph("question")
    one.open("a", [ROOT], "first")
    one.memorise("a", "kept", [Item(name="p1", priority=5)])
    one.open("b", ["a"], "second")
    one.memorise("b", "nothing")
    found = energies(one, decay=800)
    assert min(found.values()) > 0
    assert allocate(found, 1000) == {("a", 0): 1000}
