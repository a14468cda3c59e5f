"""The papers' baselines through the one environment, driven by scripted policies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import ScriptedPolicy, make_question

from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation
from vrag_nb.agent.prompting import load_prompt
from vrag_nb.agent.task_settings import MemorySettings, Settings
from vrag_nb.agent.trajectory import Trajectory, read_trajectories
from vrag_nb.display import static
from vrag_nb.display.scenes import scenes
from vrag_nb.evaluation.baselines import SYSTEMS, Context, System, find_system, known_systems
from vrag_nb.evaluation.evaluate import answer_metrics, evaluate
from vrag_nb.evaluation.systems.evidence_ledger import MAX_ENTRIES, ledger
from vrag_nb.records import read_pages, write_pages

SETTINGS = Settings(max_turns=4, top_k=5, min_pixels=16 * 784, max_pixels=160 * 784)
MEMORIES = ["vimrag", "vimrag_graph", "vimrag_multimodal", "vimrag_summary"]
NEW = [
    "evidence_ledger", "react", "react_text", "search_r1", "search_r1_vl", "select_page", "text_top1", "text_top3",
    *MEMORIES,
]  # fmt: skip


def run(system: str, corpus: Path, engine, script, folder: Path) -> tuple[Trajectory, list[Conversation]]:
    """One question; the trajectory, and every conversation that the policy was given."""
    had: list[Conversation] = []
    turns = iter(script) if not callable(script) else None

    def say(conversation: Conversation) -> str:
        had.append(list(conversation))
        return next(turns) if turns is not None else script(conversation)

    context = Context(ScriptedPolicy(say), engine, PageStore(corpus), SETTINGS, "nano", progress=False)
    [one] = find_system(system).run(context, [make_question("q")], folder / f"{system}.jsonl")
    assert one.error is None, one.error
    assert read_trajectories(folder / f"{system}.jsonl") == [one]
    # the record holds the conversation that the model had
    for turn, conversation in enumerate(had):
        assert conversation == one.messages()[: len(conversation)], f"turn {turn}"
    return one, had


def kinds(one: Trajectory) -> list[str]:
    return [turn.action.kind for turn in one.turns]


def images(conversation: Conversation) -> int:
    return sum(len(message.images) for message in conversation)


def test_every_file_is_found_and_nothing_else_registered():
    assert sorted(known_systems().keys() - SYSTEMS.keys()) == NEW
    for name in NEW:
        system = find_system(name)
        assert (system.name, bool(system.title)) == (name, True)
        assert "{question}" in load_prompt(system.prompt or "vrag")
    with pytest.raises(ValueError, match=r"unknown system 'reakt'; known: no_retrieval, .*react"):
        find_system("reakt")


def test_a_class_of_ones_own_by_its_path(tmp_path, monkeypatch):
    text = "from vrag_nb.evaluation.baselines import Agent\n\nclass Mine(Agent):\n    name = 'mine'\n"
    (tmp_path / "my_idea.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_system("my_idea:Mine").name == "mine"
    for path in ("my_idea:Other", "my_idea:__name__", "no_such_module:Mine"):
        with pytest.raises(ValueError, match=path):
            find_system(path)
    del sys.modules["my_idea"]


def test_two_systems_of_one_name_are_an_error(monkeypatch):
    clash = type("Clash", (System,), {"name": "react"})
    monkeypatch.setitem(SYSTEMS, "react", clash)
    with pytest.raises(ValueError, match="the name 'react' is taken"):
        known_systems()


@pytest.mark.parametrize("system", ["search_r1", "react_text"])
def test_text_loops_show_text_and_no_image(tiny_corpus, engine, tmp_path, system):
    script = ["<search>a</search>", "<bbox>[1, 1, 90, 90]</bbox>", "<search>b</search>", "<answer>42</answer>"]
    one, had = run(system, tiny_corpus, engine, script, tmp_path)
    assert kinds(one) == ["search", "invalid", "search", "answer"]
    assert images(had[-1]) == 0
    assert had[1][-1].text == "Page 1 of alpha:\nPage 1 of alpha\n"
    assert "<bbox>" not in had[2][-1].text
    assert had[3][-1].text.startswith("Page 2 of alpha:")
    assert one.retrieved_page_ids == ["alpha_1", "alpha_2"]
    assert had[0][0].text.endswith(f"Question: {one.question}")
    assert "<bbox>" not in had[0][0].text


@pytest.mark.parametrize("system", ["search_r1_vl", "react"])
def test_image_loops_without_crop(tiny_corpus, engine, tmp_path, system):
    script = ["Thought: look.\nAction: <search>a</search>", "<bbox>[1, 1, 90, 90]</bbox>", "<answer>42</answer>"]
    one, had = run(system, tiny_corpus, engine, script, tmp_path)
    assert kinds(one) == ["search", "invalid", "answer"]
    assert one.turns[0].thought == "Thought: look.\nAction:"
    assert images(had[-1]) == 1
    assert "<bbox>" not in had[0][0].text + had[2][-1].text


@pytest.mark.parametrize(("system", "shown"), [("text_top1", 1), ("text_top3", 3)])
def test_vanilla_text(tiny_corpus, engine, tmp_path, system, shown):
    one, had = run(system, tiny_corpus, engine, ["<answer>42</answer>"], tmp_path)
    assert kinds(one) == ["search", "answer"]
    assert (len(had), images(had[0])) == (1, 0)
    assert [f"Page {number} of alpha:" in had[0][-1].text for number in (1, 2, 3)] == [n <= shown for n in (1, 2, 3)]
    assert had[0][-1].text.endswith(SETTINGS.forced_text)
    assert engine.calls == [["What is shown?"]]
    assert one.turns[-1].forced
    measured = answer_metrics([one], [make_question("q")], ready_made_turns=find_system(system).ready_made_turns)
    assert (measured["accuracy"]["value"], measured["behaviour"]["searches"]["value"]) == (1, 0)


def test_pages_without_text_and_pages_with_much(tiny_corpus, engine, tmp_path):
    pages = read_pages(tiny_corpus)
    texts = {"alpha_1": " \n", "alpha_2": "word " * 5000}
    write_pages(tmp_path, [page.model_copy(update={"text": texts.get(page.page_id, page.text)}) for page in pages])
    _, had = run("text_top3", tmp_path, engine, ["<answer>42</answer>"], tmp_path)
    text = had[0][-1].text
    assert "Page 1 of alpha:\n(This page has no text layer.)" in text
    assert "word (cut here)\nPage 3 of alpha:" in text
    assert len(text) < 7000


def test_select_shows_three_small_pages_and_then_one(tiny_corpus, engine, tmp_path):
    script = [
        "<bbox>[1, 1, 90, 90]</bbox>",
        "<think>Look.</think><search>a</search>",
        "<think>The <select>3</select>rd? No, the second.</think> <select> 2 </select>",
        "<bbox>[0, 0, 140, 84]</bbox>",
        "<answer>42</answer>",
    ]
    one, had = run("select_page", tiny_corpus, engine, script, tmp_path)
    assert kinds(one) == ["invalid", "search", "select", "bbox", "answer"]
    small = one.turns[1].observations
    assert [seen.page_id for seen in small] == ["alpha_1", "alpha_2", "alpha_3"] == one.retrieved_page_ids
    assert "".join(part.text if hasattr(part, "text") else "*" for part in had[2][-1].parts) == "[1] *[2] *[3] *"
    [selected] = one.turns[2].observations
    assert (selected.kind, selected.page_id, selected.crop_box) == ("crop", "alpha_2", (0, 0, 600, 338))
    assert 4 * small[1].image_tokens <= 160 < 160 + selected.image_tokens
    assert selected.image_tokens > 3 * small[1].image_tokens
    assert (one.turns[2].action.argument, one.settings["actions"][0].split(":")[1]) == ("2", "Select")
    assert one.turns[2].thought == "The <select>3</select>rd? No, the second."
    cropped = one.turns[3].observations[0]
    width, height = selected.shown_size
    assert cropped.page_id == "alpha_2"
    assert cropped.crop_box[2] == pytest.approx(140 / width * 600, abs=1)
    assert cropped.crop_box[3] == pytest.approx(84 / height * 338, abs=1)


@pytest.mark.parametrize(
    "said", ["<select>4</select>", "<select>0</select>", "<select>two</select>", "<select></select>"]
)
def test_what_cannot_be_selected_is_told(tiny_corpus, engine, tmp_path, said):
    script = ["<select>1</select>", "<search>a</search>", said, "<bbox>[1, 1, 90, 90]</bbox>", "<answer>42</answer>"]
    one, had = run("select_page", tiny_corpus, engine, script, tmp_path)
    assert kinds(one) == ["invalid", "search", "invalid", "invalid", "answer"]
    assert "no pages to select from yet" in had[1][-1].text
    assert "none of the pages 1 to 3" in had[3][-1].text
    assert "<select>number</select>" in had[3][-1].text
    assert "no page is selected" in had[4][-1].text


def test_the_first_action_wins_over_a_selection(tiny_corpus, engine, tmp_path):
    script = ["<search>a</search>", "<answer>42</answer><select>1</select>"]
    one, _ = run("select_page", tiny_corpus, engine, script, tmp_path)
    assert (kinds(one), one.answer) == (["search", "answer"], "42")


def test_what_a_thought_mentions_overrides_no_selection(tiny_corpus, engine, tmp_path):
    thought = "Is it <answer>4</answer>, or <bbox>[1, 2, 3, 4]</bbox>? Not <select>3</select>."
    script = ["<search>a</search>", f"<think>{thought}</think><select>2</select>", "<answer>42</answer>"]
    one, _ = run("select_page", tiny_corpus, engine, script, tmp_path)
    assert (kinds(one), one.answer) == (["search", "select", "answer"], "42")
    assert one.turns[1].observation.page_id == "alpha_2"
    assert one.turns[1].thought == thought


def test_a_later_search_renews_what_can_be_selected(tiny_corpus, engine, tmp_path):
    script = [
        "<search>a</search>",
        "<select>1</select>",
        "<search>b</search>",
        "<select>2</select>",
        "<answer>4</answer>",
    ]
    one, had = run("select_page", tiny_corpus, engine, script, tmp_path)
    assert [turn.observation.page_id for turn in one.turns[:4]] == ["alpha_1", "alpha_1", "beta_1", "beta_2"]
    assert one.turns[4].forced
    assert had[4][-1].text.endswith(SETTINGS.forced_text)


def test_the_ledger_is_shown_back_every_turn(tiny_corpus, engine, tmp_path):
    script = [
        "<think><evidence>thoughts are none</evidence></think><search>a</search>",
        "<think>Read.</think><evidence>Sales were 42.</evidence> <bbox>[10, 10, 100, 100]</bbox>",
        "<evidence>sales were 42.</evidence><evidence>Costs\n were 7.</evidence> nothing else",
        "<search>b</search>",
        "<answer>42</answer>",
    ]
    one, had = run("evidence_ledger", tiny_corpus, engine, script, tmp_path)
    assert kinds(one) == ["search", "bbox", "invalid", "search", "answer"]
    assert "Evidence so far" not in had[1][-1].text
    assert had[2][-1].text == "Evidence so far:\n1. alpha_1: Sales were 42.\n"
    both = "Evidence so far:\n1. alpha_1: Sales were 42.\n2. alpha_1: Costs were 7.\n"
    assert had[3][-1].text.startswith(f"{both}Invalid action:")
    assert had[4][-1].text == both + SETTINGS.forced_text
    assert images(had[4]) == 3
    assert one.answer == "42"


def test_a_ledger_has_an_end(tiny_corpus, engine, tmp_path):
    notes = "".join(f"<evidence>{'x' * 1000} {number}</evidence>" for number in range(3))
    many = "".join(f"<evidence>fact {number}</evidence>" for number in range(2 * MAX_ENTRIES))
    script = [f"{notes}<search>a</search>", f"{many}<evidence></evidence><search>b</search>", "<answer>42</answer>"]
    one, had = run("evidence_ledger", tiny_corpus, engine, script, tmp_path)
    assert len(ledger(one.turns[:1])) == 1  # alike after the cut
    assert len(ledger(one.turns)) == MAX_ENTRIES
    assert had[2][-1].text.count("\n") == MAX_ENTRIES + 1


@pytest.mark.parametrize("system", [name for name in NEW if name not in MEMORIES])
@pytest.mark.parametrize("batched", [True, False])
def test_a_failing_search_ends_only_its_own_session(tiny_corpus, engine, tmp_path, system, batched):
    def say(conversation: Conversation) -> str:
        asked = conversation[0].text.rpartition("Question: ")[2]
        return f"<search>{asked}</search>" if len(conversation) == 1 else "<answer>42</answer>"

    policy = ScriptedPolicy(say, batched)
    context = Context(policy, engine, PageStore(tiny_corpus), SETTINGS, "nano", progress=False)
    found = find_system(system).run(
        context, [make_question("bad", "fail"), make_question("good")], tmp_path / "t.jsonl"
    )
    assert [one.status for one in found] == ["error", "answered"]
    assert "the index is gone" in (found[0].error or "")


@pytest.mark.parametrize("system", [name for name in NEW if name not in MEMORIES])
def test_the_records_can_be_drawn(tiny_corpus, engine, tmp_path, system):
    def say(conversation: Conversation) -> str:
        turns = ["<search>a</search>", "<select>1</select>", "<evidence>e</evidence><search>b</search>"]
        said = sum(message.role == "assistant" for message in conversation)
        forced = conversation[-1].text.endswith(SETTINGS.forced_text)
        return "<answer>42</answer>" if forced or said >= len(turns) else turns[said]

    one, _ = run(system, tiny_corpus, engine, say, tmp_path)
    assert one.status == "answered"
    pages = PageStore(tiny_corpus)
    drawn = scenes(one, pages)
    assert len(drawn) == len(one.turns)
    shown = [seen for scene in drawn for seen in scene.shown]
    assert len(shown) == sum(seen.shown_size is not None for seen in one.observations)
    assert static.trajectory_figure(one, pages) is not None


MEMORY_SCRIPT = ['{"name": "add_search_node", "arguments": {"id": "a", "query": "total"}}',
                 '{"name": "summarize_and_memorize", "arguments": {"summarize": "42", "memorize": []}}',
                 '{"name": "add_answer_node", "arguments": {"parent_ids": ["a"], "answer": "42"}}']  # fmt: skip


@pytest.fixture
def remembers():
    """A policy that searches once, writes 42 down and answers it."""
    steps: dict[str, int] = {}

    def say(conversation: Conversation) -> str:
        place = 1 if len(conversation) > 1 else 2 if "a" in steps else 0
        steps["a"] = 1
        if place == 2:
            steps.clear()
        assert "q" in conversation[0].text
        return f"<tool_call>{MEMORY_SCRIPT[place]}</tool_call>"

    return ScriptedPolicy(say)


def test_vimrag_is_evaluated_beside_the_others(tiny_corpus, engine, remembers, tmp_path):
    metrics = evaluate(
        corpus=tiny_corpus, questions=[make_question("q")], engine=engine, policy=remembers, systems=MEMORIES,
        out=tmp_path, settings=SETTINGS, prompt="nano", progress=False,
    )  # fmt: skip
    for name in MEMORIES:
        [one] = read_trajectories(tmp_path / "trajectories" / f"{name}.jsonl")
        assert (one.answer, one.error, [turn.action.kind for turn in one.turns]) == ("42", None, ["search", "answer"])
        assert one.settings["memory"] == ("energy" if name == "vimrag" else name.removeprefix("vimrag_"))
        behaviour = metrics["answers"][name]["behaviour"]
        assert (behaviour["turns"]["value"], behaviour["searches"]["value"]) == (2, 1)
    assert (tmp_path / "metrics.md").is_file()


def test_a_vimrag_task_is_its_systems_own_and_the_others_share_its_budget(tiny_corpus, engine, remembers, tmp_path):
    task = MemorySettings(top_k=1, max_steps=7, max_pixels=40 * 784, memory_items=2)
    shared = {"corpus": tiny_corpus, "questions": [make_question("q")], "engine": engine, "out": tmp_path,
              "settings": task, "prompt": "vimrag_nano", "progress": False}  # fmt: skip
    metrics = evaluate(policy=remembers, systems=["vimrag_summary", "vimrag"], **shared)
    for name, memory in (("vimrag_summary", "summary"), ("vimrag", "energy")):
        [one] = read_trajectories(tmp_path / "trajectories" / f"{name}.jsonl")
        assert one.settings == task.model_copy(update={"memory": memory}).model_dump(mode="json")
        assert one.prompt.startswith("Use add_search_node")
    assert metrics["run"]["settings"]["max_steps"] == 7
    assert list(metrics["comparisons"]) == ["vimrag_minus_vimrag_summary"]
    assert (tmp_path / "figures/turns_vimrag.png").is_file()
    evaluate(policy=ScriptedPolicy(lambda _: "<answer>42</answer>"), systems=["agent"], **shared)
    [one] = read_trajectories(tmp_path / "trajectories" / "agent.jsonl")
    assert (one.settings["max_pixels"], one.settings["max_turns"]) == (40 * 784, 7)
