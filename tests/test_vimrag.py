"""VimRAG's loop: contexts rebuilt from memory, faults that cost a step, records that hold it all, and its front."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PAGE_IDS, RankedEngine, ScriptedPolicy, make_question, serving
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PILImage
from test_policies import Endpoint

from vrag_nb.agent import memory_items
from vrag_nb.agent.memory_environment import PROMPTS, MemoryEnvironment
from vrag_nb.agent.memory_graph import ANSWER, ROOT, MemoryGraph
from vrag_nb.agent.memory_items import TextKind, labelled
from vrag_nb.agent.memory_records import Offered
from vrag_nb.agent.memory_replay import contexts
from vrag_nb.agent.memory_session import MemorySession
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Generation, Text
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.search_client import SearchClient
from vrag_nb.agent.task_settings import MemorySettings
from vrag_nb.agent.trajectory import Observation, Trajectory, read_trajectories
from vrag_nb.agent.vimrag import MODEL_OPTIONS, Event, VimRAG
from vrag_nb.evaluation.per_question import conduct
from vrag_nb.learning.rewards import validity
from vrag_nb.records import Hit, Page, Question, as_question
from vrag_nb.retrieval import server
from vrag_nb.retrieval.bm25 import Bm25
from vrag_nb.retrieval.engine import SearchEngine, build_index

SMALL = {"max_pixels": 40 * 784, "memory_pixels": 60 * 784}


def call(tool: str, **arguments: object) -> str:
    return f"<think>so</think><tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def look(name: str, *parents: str, query: str = "q") -> str:
    return call("add_search_node", id=name, parent_ids=list(parents or [ROOT]), query=query)


def note(summary: str, **kept: int) -> str:
    items = [
        {"information_id": label.replace("_", " "), "is_useful": priority > 0, "priority_score": priority or 1}
        for label, priority in kept.items()
    ]
    return call("summarize_and_memorize", summarize=summary, memorize=items)


def reply(*parents: str, text: str = "42") -> str:
    return call("add_answer_node", parent_ids=list(parents), answer=text)


def play(environment: MemoryEnvironment, *texts: str) -> tuple[MemorySession, Trajectory, list[Conversation]]:
    """Run texts through one session; also what was read before each."""
    session, read = environment.start(make_question("u1")), []
    for text in texts:
        assert not session.done
        read.append(session.conversation)
        environment.advance([session], [Generation(text, token_ids=[1, 2], logprobs=[-0.1, -0.2], prompt_tokens=9)])
    return session, environment.finish(session, "test"), read


def make(corpus: Path, engine: object = None, **options: object) -> MemoryEnvironment:
    return MemoryEnvironment(engine or RankedEngine(), corpus, MemorySettings(**{**SMALL, **options}))  # type: ignore[arg-type]


STORY = (look("a"), note("two pages", Picture_1=5, Picture_2=1, Picture_3=0), look("b", "a"), note("none"), reply("b"))


def test_a_cycle_is_read_from_the_graph_alone(tiny_corpus: Path) -> None:
    environment = make(tiny_corpus)
    session, trajectory, read = play(environment, *STORY)
    assert [[message.role for message in one] for one in read] == [["user"], ["user", "assistant", "user"]] * 2 + [
        ["user"]
    ]
    first, found, second, _, third = read
    assert first[0].images == []
    assert '{"id": "root"' in first[0].text
    assert [image.page_id for image in found[-1].images] == PAGE_IDS[:3]
    assert "Picture 1:" in found[-1].text
    assert environment.settings.memorise_text in found[-1].text
    assert [image.page_id for image in second[0].images] == ["alpha_1", "alpha_2"]  # kept; alpha_3 is dropped
    assert '"summary": "two pages"' in second[0].text
    assert "alpha_1, kept by a:" in second[0].text
    assert "18 steps are left" in second[0].text
    assert second[0].text.startswith(first[0].text[: first[0].text.index("\n\nMemory graph")])
    assert third[0].images[0].size != ()
    assert (session.answer, trajectory.status, trajectory.answer) == ("42", "answered", "42")
    graph = MemoryGraph.load(trajectory.graph or [])
    assert graph.path() == {ROOT, "a", "b", ANSWER}
    assert graph["a"].items[0].priority == 5


def test_pixels_follow_energy_or_are_equal(tiny_corpus: Path) -> None:
    shown = {}
    for memory in ("energy", "multimodal"):
        _, trajectory, read = play(make(tiny_corpus, memory=memory), *STORY)
        memories = trajectory.turns[1].memory
        assert memories is not None
        shown[memory] = memories.remembered
        for image, one in zip(read[2][0].images, memories.remembered, strict=True):
            assert image.size == one.shown_size
            assert image.size[0] * image.size[1] <= one.pixels <= SMALL["memory_pixels"]
            assert image.resolved().size == image.size
        assert sum(one.pixels for one in memories.remembered) <= SMALL["memory_pixels"]
    one, other = shown["energy"]
    assert one.energy == pytest.approx(1.0)  # the last node, no children, priority 5 of 5
    assert other.energy == pytest.approx(0.2)
    assert one.pixels == 50 * 784
    assert [item.pixels for item in shown["multimodal"]] == [30 * 784] * 2


def test_a_page_kept_twice_is_shown_once(tiny_corpus: Path) -> None:
    texts = (look("a"), note("x", Picture_1=5), look("b"), note("y", Picture_1=5, Picture_2=5), look("c"))
    _, trajectory, read = play(make(tiny_corpus), *texts)
    memory = trajectory.turns[2].memory
    assert memory is not None
    assert [(one.name, one.nodes) for one in memory.remembered] == [("alpha_1", ["a", "b"]), ("alpha_2", ["b"])]
    assert len(read[-1][0].images) == 2
    assert memory.remembered[0].energy > memory.remembered[1].energy


def test_only_so_many_items_are_shown(tiny_corpus: Path) -> None:
    kept = note("x", Picture_1=1, Picture_2=5, Picture_3=3)
    _, _, read = play(make(tiny_corpus, memory_items=2), look("a"), kept, reply("a"))
    assert [image.page_id for image in read[-1][0].images] == ["alpha_2", "alpha_3"]
    assert "alpha_1" in read[-1][0].text  # its name stays in the graph
    _, _, read = play(make(tiny_corpus, memory_pixels=783), look("a"), kept, reply("a"))
    assert read[-1][0].images == []


@pytest.mark.parametrize("memory", ["summary", "graph", "multimodal", "energy"])
def test_kinds_of_memory_build_on_each_other(tiny_corpus: Path, memory: str) -> None:
    environment = make(tiny_corpus, memory=memory)
    texts = (look("a"), note("one", Picture_1=4), look("b", ROOT), note("two"), reply("b"))
    _, trajectory, read = play(environment, *texts)
    last = read[-1][0]
    assert environment.template.startswith("You answer a question")
    assert trajectory.settings["memory"] == memory
    assert ("Memory graph" in last.text) == (memory != "summary")
    assert bool(last.images) == (memory in ("multimodal", "energy"))
    assert "two" in last.text
    assert ('"one"' in last.text) == (memory != "summary")
    graph = MemoryGraph.load(trajectory.graph or [])
    if memory == "summary":  # one chain, whatever the model calls its nodes
        assert [node.name for node in graph.nodes] == [ROOT, "node_1", "node_2", ANSWER]
        assert graph.redundant() == []
    else:
        assert graph.redundant() == ["a"]
    assert bool(graph.nodes[1].items) == (memory in ("multimodal", "energy"))


def test_every_item_may_have_what_was_searched_for_before_it(tiny_corpus: Path) -> None:
    environment = make(tiny_corpus, items=("image", "text"), caption="For {query}", top_k=2)
    session, trajectory, read = play(environment, look("a", query="exports {1}"), note("x", Picture_1=5), reply("a"))
    captions = [part.text for part in read[1][-1].parts if isinstance(part, Text)]
    assert [text for text in captions if "exports" in text] == [
        "For exports {1}\nPicture 1:\n",
        "For exports {1}\nPicture 2:\n",
        "For exports {1}\nText 1:\n",
        "For exports {1}\nText 2:\n",
    ]
    assert "For exports" not in read[2][0].text  # what is remembered has its node's query
    assert contexts(trajectory, environment.pages) == read
    assert session.answer == "42"


def test_texts_are_items_too(tiny_corpus: Path) -> None:
    environment = make(tiny_corpus, items=("image", "text"), text_chars=6)
    session, trajectory, read = play(environment, look("a"), note("x", Picture_2=1, Text_3=5), reply("a"))
    assert "Text 3:\nPage 3" in read[1][-1].text
    assert "of alpha" not in read[1][-1].text
    assert session.graph["a"].items[1].kind == "text"
    assert [image.page_id for image in read[2][0].images] == ["alpha_2"]
    assert "alpha_3, text, kept by a:\nPage 3" in read[2][0].text
    assert trajectory.retrieved_page_ids == PAGE_IDS[:3]
    memory = trajectory.turns[1].memory
    assert memory is not None
    assert memory.remembered[0].pixels == SMALL["memory_pixels"]  # a text takes none
    with pytest.raises(ValueError, match="no items of kind sound"):
        make(tiny_corpus, items=("sound",))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["hm"], "no tool call was found"),
        ([look("a"), note("x"), "hm"], "no tool call was found"),
        ([note("x")], "there is no search to write down"),
        (['<tool_call>{"name": "zoom", "arguments": {}}</tool_call>'], "the tool 'zoom' is not there"),
    ],
)
def test_faults_before_a_search_cost_a_step_and_are_explained(tiny_corpus: Path, texts: list[str], words: str) -> None:
    engine = RankedEngine()
    session, trajectory, _ = play(make(tiny_corpus, engine), *texts)
    turn = trajectory.turns[-1]
    assert turn.action.kind == "invalid"
    assert words in turn.notices[0]
    assert words in session.conversation[-1].text
    assert "Call one of add_search_node" in session.conversation[-1].text
    assert len(session.conversation) == 1  # a new context, with the notice
    assert len(engine.calls) == len(texts) // 2  # what is no search is not searched for
    assert f"{20 - len(texts)} steps are left" in session.conversation[-1].text
    assert not session.done


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hm", "no tool call"),
        (look("b"), "write down first"),
        (reply("a"), "write down first"),
        (note("x", Picture_9=3), "there is no Picture 9; the items are Picture 1, Picture 2, Picture 3"),
    ],
)
def test_faults_after_a_search_leave_its_pages_in_view(tiny_corpus: Path, text: str, words: str) -> None:
    session, trajectory, read = play(make(tiny_corpus), look("a"), text, note("x"))
    assert len(trajectory.turns) == 1
    memory = trajectory.turns[0].memory
    assert memory is not None
    assert words in memory.replies[0].notice
    assert [message.role for message in read[2]] == ["user", "assistant", "user", "assistant", "user"]
    assert words in read[2][-1].text
    assert len(read[2][2].images) == 3
    assert session.graph["a"].summary == "x"
    assert trajectory.turns[0].generations == 3
    assert trajectory.generated_tokens == 6
    assert conduct(trajectory)["invalid_action_rate"] == pytest.approx(1 / 3)
    assert validity(trajectory) == pytest.approx(2 / 3)


def test_a_running_summary_is_not_lost_to_an_empty_one(tiny_corpus: Path) -> None:
    environment = make(tiny_corpus, memory="summary")
    session, trajectory, _ = play(environment, look("a"), note("known so far"), look("b"), note("", Picture_1=3))
    assert "there is no summary" in trajectory.turns[-1].memory.replies[0].notice  # type: ignore[union-attr]
    environment.advance([session], [Generation(note("more is known"))])
    assert session.graph.nodes[-1].summary == "more is known"


def test_an_item_that_is_judged_twice_keeps_all_that_was_said(tiny_corpus: Path) -> None:
    items = [
        {"information_id": "Picture 1", "priority_score": 5, "key_timestamp": [12.0]},
        {"information_id": "Picture 1", "priority_score": 2, "key_timestamp": [14.0]},
    ]
    session, *_ = play(make(tiny_corpus), look("a"), call("summarize_and_memorize", summarize="s", memorize=items))
    [item] = session.graph["a"].items
    assert (item.priority, item.timestamps) == (5, (12.0, 14.0))


def test_what_was_found_and_cannot_be_shown_is_not_called_nothing(tiny_corpus: Path) -> None:
    session, trajectory, _ = play(make(tiny_corpus, items=("video",)), look("a"))
    assert session.graph["a"].summary == "What the search found holds no video."
    assert trajectory.turns[0].observation.text == session.graph["a"].summary  # type: ignore[union-attr]


def test_where_videos_are_kept_the_prompt_tells_of_their_seconds(tiny_corpus: Path) -> None:
    assert "key_timestamp" in make(tiny_corpus, items=("image", "video")).template
    assert "key_timestamp" not in make(tiny_corpus, items=("image", "video"), memory="graph").template


def test_what_is_left_out_is_filled_in(tiny_corpus: Path) -> None:
    bare = call("add_search_node", query="x")
    texts = (bare, note("one", Picture_1=3, Picture_7=3), bare, note("two"), call("add_answer_node", answer="42"))
    _, trajectory, _ = play(make(tiny_corpus), *texts)
    graph = MemoryGraph.load(trajectory.graph or [])
    assert [(node.name, node.parents) for node in graph.nodes] == [
        (ROOT, ()),
        ("node_1", (ROOT,)),
        ("node_2", (ROOT,)),
        (ANSWER, ("node_1", "node_2")),
    ]
    assert [item.name for item in graph["node_1"].items] == ["alpha_1"]  # the label that no item has is passed over


def test_what_names_the_graph_wrongly_is_put_right(tiny_corpus: Path) -> None:
    texts = (look("a", "z"), note("one"), look("a", "z", "a"), note("two"), look("answer", "a_2"), note("three"))
    environment = make(tiny_corpus)
    session, trajectory, read = play(environment, *texts, reply("z", "a_2"))
    assert [(node.name, node.parents) for node in session.graph.nodes] == [
        (ROOT, ()),
        ("a", (ROOT,)),
        ("a_2", ("a",)),
        ("answer_2", ("a_2",)),
        (ANSWER, ("a_2",)),
    ]
    assert not any(turn.action.kind == "invalid" for turn in trajectory.turns)
    assert contexts(trajectory, environment.pages) == read
    session, _, _ = play(environment, *texts, reply("z"))  # from every search that nothing follows from
    assert session.graph.nodes[-1].parents == ("answer_2",)


def test_an_empty_search_is_written_down_at_once(tiny_corpus: Path) -> None:
    session, trajectory, _ = play(make(tiny_corpus, RankedEngine([])), look("a"))
    assert session.graph["a"].summary == "The search found nothing."
    assert trajectory.turns[0].notices == ["The search found nothing."]
    assert "The search found nothing. 19 steps are left" in session.conversation[-1].text
    engine = RankedEngine()
    environment = make(tiny_corpus, engine, memory="summary")
    session, _, _ = play(environment, look("a"), note("known so far"))
    engine.ranking = []
    environment.advance([session], [Generation(look("b", query="growth"))])
    assert session.graph.nodes[-1].summary == "known so far The search found nothing. (growth)"


def test_the_last_step_asks_for_the_answer(tiny_corpus: Path) -> None:
    session, trajectory, read = play(make(tiny_corpus, max_steps=3), look("a"), note("x"), reply("a", "z"))
    assert "This is the last step" in read[2][-1].text
    assert trajectory.turns[-1].forced
    assert (trajectory.status, session.graph.path()) == ("answered", {ROOT, "a", ANSWER})  # z is passed over
    _, trajectory, read = play(make(tiny_corpus, max_steps=2), look("a"), reply(text="7"))  # with the pages in view
    assert "This is the last step" in read[1][-1].text
    assert len(read[1][-1].images) == 3
    assert (trajectory.answer, len(trajectory.turns), trajectory.turns[1].forced) == ("7", 2, True)
    _, trajectory, read = play(make(tiny_corpus, max_steps=3), look("a"), "hm", look("b"))
    assert "no tool call" in read[2][-1].text
    assert "This is the last step" in read[2][-1].text
    assert (trajectory.status, trajectory.answer) == ("no_answer", None)
    session, trajectory, read = play(make(tiny_corpus, max_steps=1), reply())
    assert "This is the last step" in read[0][-1].text
    assert session.done


def test_the_record_holds_everything_and_rebuilds_what_was_read(tiny_corpus: Path) -> None:
    texts = ("hm", look("a"), "hm", note("x", Picture_2=4), look("b", "a"), note("y", Picture_1=2), reply("a", "b"))
    environment = make(tiny_corpus)
    _, trajectory, read = play(environment, *texts)
    again = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert again == trajectory
    assert contexts(again, PageStore(tiny_corpus)) == read
    turn = again.turns[1]
    assert turn.memory is not None
    assert (turn.action.kind, turn.action.query, turn.memory.node) == ("search", "q", "a")
    assert [hit.page_id for hit in turn.hits] == PAGE_IDS[:3]
    assert [one.label for one in turn.memory.offered] == ["Picture 1", "Picture 2", "Picture 3"]
    assert turn.memory.replies[1].token_ids == [1, 2]
    assert turn.memory.replies[1].logprobs == [-0.1, -0.2]
    assert turn.memory.replies[1].prompt_tokens == 9
    assert again.retrieved_page_ids == PAGE_IDS[:3]
    with pytest.raises(ValueError, match="use memory_replay"):
        again.messages()
    with pytest.raises(ValueError, match="no memory graph"):
        contexts(again.model_copy(update={"graph": None}), PageStore(tiny_corpus))


def test_a_memorising_that_was_cut_off_is_told_and_rebuilt(tiny_corpus: Path) -> None:
    environment = make(tiny_corpus)
    session = environment.start("What?")
    for said in (Generation(look("a")), Generation("Well", finish_reason="length"), Generation(note("x"))):
        environment.advance([session], [said])
    trajectory = environment.finish(session)
    [cut, _] = trajectory.turns[0].memory.replies if trajectory.turns[0].memory else []
    assert (cut.finish_reason, cut.notice.startswith("Your reply was cut off")) == ("length", True)
    assert contexts(trajectory, environment.pages)[2][-1].text.startswith("Your reply was cut off")


def test_old_records_are_read(tiny_corpus: Path) -> None:
    _, trajectory, _ = play(make(tiny_corpus), reply())
    old = json.loads(trajectory.model_dump_json())
    del old["graph"], old["turns"][0]["memory"]
    assert Trajectory.model_validate(old).graph is None


# -- many at once


def script(conversation: Conversation) -> str:
    """Question i searches i % 3 times, then answers with its number."""
    opening = conversation[0].text
    number = int(opening.split("Question: number ")[1].split("\n")[0])
    if len(conversation) > 1:
        return note(f"looked for {number}", Picture_1=number % 5 + 1)
    searched = opening.count('"parents"')
    return look(f"n{searched}") if searched < number % 3 else reply(text=str(number))


QUESTIONS = [make_question(f"q{i}", f"number {i}") for i in range(9)]


@pytest.mark.parametrize("batched", [True, False])
def test_the_driver_runs_them_side_by_side_and_resumes(tiny_corpus: Path, tmp_path: Path, batched: bool) -> None:
    out = tmp_path / "t.jsonl"
    environment, policy = make(tiny_corpus), ScriptedPolicy(script, batched)
    rollout(policy, environment, QUESTIONS[:4], out, concurrency=3, progress=False)
    with out.open("ab") as file:
        file.write(b'{"uid": "q5", "half')
    again = ScriptedPolicy(script, batched)
    found = rollout(again, environment, QUESTIONS, out, concurrency=3, progress=False)
    assert [trajectory.answer for trajectory in found] == [str(i) for i in range(9)]
    assert sum(again.calls) == sum(1 + 2 * (i % 3) for i in range(4, 9))
    assert len(set(policy.seeds + again.seeds)) == len(policy.seeds + again.seeds)  # every step draws anew
    kept = read_trajectories(out)
    assert {one.uid for one in kept} == {question.uid for question in QUESTIONS}
    assert all(one.graph and MemoryGraph.load(one.graph).answered for one in kept)


@pytest.mark.parametrize("batched", [True, False])
def test_one_bad_question_stops_nothing(tiny_corpus: Path, batched: bool) -> None:
    def failing(conversation: Conversation) -> str:
        if "number 4" in conversation[0].text:
            raise ValueError("no reply")
        if "number 5" in conversation[0].text:
            return look("a", query="fail")
        return script(conversation)

    policy = ScriptedPolicy(failing, batched)
    found = rollout(policy, make(tiny_corpus), QUESTIONS, concurrency=5, progress=False)
    errors = {trajectory.uid: trajectory.error for trajectory in found if trajectory.status == "error"}
    assert errors == {"q4": "policy: ValueError: no reply", "q5": "search: RuntimeError: the index is gone"}
    assert sum(trajectory.status == "answered" for trajectory in found) == 7


def test_a_bad_page_ends_only_its_own_session(tiny_corpus: Path) -> None:
    class Broken(PageStore):
        def image(self, page_id: str) -> PILImage.Image:
            if page_id == "beta_1":
                raise OSError("broken file")
            return super().image(page_id)

    class ByQuery(RankedEngine):
        def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
            return [[Hit(page_id=query, score=1, rank=1)] for query in queries]

    environment = MemoryEnvironment(ByQuery(), Broken(tiny_corpus), MemorySettings(max_pixels=40 * 784))
    sessions = [environment.start(make_question(uid)) for uid in ("u1", "u2", "u3")]
    queries = ["beta_1", "nowhere_1", "alpha_1"]
    environment.advance(sessions, [Generation(look("a", query=query)) for query in queries])
    assert [session.done for session in sessions] == [True, True, False]
    assert sessions[0].error == "observation: OSError: broken file"
    assert "no page 'nowhere_1'" in (sessions[1].error or "")


def test_a_transformers_policy_plays_by_ids(tiny_corpus: Path, tiny_vlm_folder: Path) -> None:
    from vrag_nb.agent.transformers_policy import TransformersPolicy

    policy = TransformersPolicy(tiny_vlm_folder, max_new_tokens=6, temperature=1.0, device="cpu", threads=1)
    environment = make(tiny_corpus, max_steps=3)
    found = rollout(policy, environment, [make_question("u1"), make_question("u2")], progress=False)
    assert [trajectory.status for trajectory in found] == ["no_answer"] * 2  # random weights call no tool
    assert all(len(turn.token_ids) == len(turn.logprobs) > 0 for one in found for turn in one.turns)
    assert all(turn.prompt_tokens > 100 for one in found for turn in one.turns)
    session = environment.start(make_question("u3"))
    environment.advance([session], [Generation(look("a"))])
    [generation] = policy.generate([session.conversation], [1])  # with pictures
    assert generation.error is None
    policy.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*STORY, "hm", "", look("c"), note("z", Picture_3=2), reply(), "{"]), max_size=8))
def test_any_play_can_be_recorded_and_rebuilt(tiny_corpus: Path, texts: list[str]) -> None:
    environment, read = make(tiny_corpus, max_steps=6), []
    session = environment.start(make_question("u1"))
    for text in texts:
        if session.done:
            break
        read.append(session.conversation)
        environment.advance([session], [Generation(text)])
        assert all(isinstance(part, Text) or part.pixels for message in session.conversation for part in message.parts)
    trajectory = environment.finish(session)
    assert trajectory.status != "error"
    assert session.steps <= 6
    again = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert contexts(again, environment.pages) == read
    assert MemoryGraph.load(again.graph or []).nodes == session.graph.nodes


def test_labels_in_any_spelling() -> None:
    offered = [Offered(label="Picture 1", name="a_7"), Offered(label="Picture 2", name="b_1")]
    spellings = {"picture 2": 1, "Image #1": 0, "2": 1, "Picture-1": 0, "<Picture 2>": 1, "a_7": 0, "picture_2": 1}
    for label, place in spellings.items():
        assert labelled(label, offered) == place
    for label in ("Picture 3", "Text 1", "", "0", "9" * 400):
        assert labelled(label, offered) is None
    named = [Offered(label="Picture 1", name="page_2"), Offered(label="Picture 2", name="page_1")]
    assert [labelled(label, named) for label in ("page_1", "page_2", "picture_1", "page 1")] == [1, 0, 0, 0]
    assert labelled("other_page_1", named) is None  # of a page that was not shown


def test_every_kind_of_memory_has_its_prompt(tiny_corpus: Path) -> None:
    for memory, prompt in PROMPTS.items():
        template = make(tiny_corpus, memory=memory).template
        assert "add_answer_node" in template
        assert ("memory graph" in template) == (prompt != "vimrag_summary")
        assert ("priority_score" in template) == (memory in ("multimodal", "energy"))


# -- the front, over HTTP

SECRET = "sk-very-secret"


class Agent(Endpoint):
    """An endpoint whose model plays VimRAG: searches once, keeps the first picture, answers."""

    async def complete(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        if body["model"] == "refuses":
            return JSONResponse({"error": {"message": f"no such model for {SECRET}"}}, status_code=404)
        message = {"role": "assistant", **self.play(body)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        base = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        return {**base, "choices": [choice], "usage": {"prompt_tokens": 17, "completion_tokens": 3, "total_tokens": 20}}

    def play(self, body: dict[str, Any]) -> dict[str, Any]:
        if len(body["messages"]) > 1:
            arguments = {"summarize": "it says beta", "memorize": [{"information_id": "Picture 1"}]}
            if body["model"] == "plain":
                return {"content": call("summarize_and_memorize", **arguments)}
            function = {"name": "summarize_and_memorize", "arguments": json.dumps(arguments)}
            return {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        content = body["messages"][0]["content"]
        if isinstance(content, str):  # no pictures yet
            return {"content": look("a", query="page of beta")[20:], "reasoning_content": "I look for beta."}
        return {"content": reply("a", text="beta")}


@pytest.fixture(scope="module")
def agent_endpoint() -> Iterator[Agent]:
    endpoint = Agent()
    with serving(endpoint.app) as url:
        endpoint.url = f"{url}/v1"
        yield endpoint


@pytest.fixture(scope="module")
def search_url(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    index = tmp_path_factory.mktemp("served") / "index"
    build_index(tiny_corpus, index, Bm25(), progress=False)
    with serving(server.create_app(SearchEngine.open(tiny_corpus, index), tiny_corpus)) as url:
        yield url


def test_a_question_over_http_streams_its_events(
    agent_endpoint: Agent, search_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    agent = VimRAG(
        "player", base_url=agent_endpoint.url, search_url=f"{search_url}/search", api_key=SECRET, enable_thinking=True
    )
    events = list(agent.run({"query": "Which document?"}))
    kinds = [event.kind for event in events]
    assert kinds == ["think", "search", "graph", "memorize", "graph", "think", "graph", "answer"]
    thought, search, opened, summary, filled, _, answered, answer = events
    assert thought.text == "I look for beta."
    assert (search.text, search.node, search.parents, search.step) == ("page of beta", "a", (ROOT,), 0)
    assert search.hits[0].page_id.startswith("beta")
    assert len(search.images) == len(search.hits) == 3
    assert (summary.text, summary.node, summary.step) == ("it says beta", "a", 1)
    for event, size in ((opened, 2), (filled, 2), (answered, 3)):
        assert event.graph is not None
        assert len(event.graph.nodes) == size
    assert [(one.name, one.nodes) for one in filled.remembered] == [(search.hits[0].page_id, ["a"])]
    assert filled.remembered[0].shown_size is not None
    assert answer.text == "beta"
    assert answer.trajectory is not None
    assert (answer.trajectory.status, answer.trajectory.policy) == ("answered", "player")
    request = agent_endpoint.requests[-1]
    assert (request["enable_thinking"], request["temperature"], request["top_p"]) == (True, 0.6, 0.95)
    assert request["chat_template_kwargs"] == {"enable_thinking": True}
    assert request["max_tokens"] == 4096
    said = [answer.trajectory.model_dump_json(), caplog.text, repr(events), repr(agent), str(vars(agent.environment))]
    assert not any(SECRET in text for text in said)
    assert not any("127.0.0.1" in text for text in said[:1])


def test_the_key_may_come_from_the_environment(
    agent_endpoint: Agent, search_url: str, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAYER_KEY", SECRET)
    options: dict[str, Any] = {"base_url": agent_endpoint.url, "search_url": search_url, "api_key_env": "PLAYER_KEY"}
    agent = VimRAG("player", corpus=str(tiny_corpus), memory="graph", **options)
    trajectory = agent.ask("Which document?")
    assert trajectory.status == "no_answer"  # this player answers only once it is shown a kept picture
    assert "enable_thinking" not in agent_endpoint.requests[-1]
    monkeypatch.delenv("PLAYER_KEY")
    with pytest.raises(ValueError, match="PLAYER_KEY is not set"):
        VimRAG("player", **options)
    agent = VimRAG("refuses", **{**options, "api_key": SECRET}, model_options={"retries": 0})
    *_, last = agent.run("Which document?")
    assert (last.kind, last.text[:8]) == ("error", "policy: ")
    assert SECRET not in repr(last)


def test_the_searches_of_a_server(search_url: str, tiny_corpus: Path) -> None:
    client = SearchClient(search_url)
    found = client.search(["page of beta"] * 70 + ["beta " * 999], top_k=2)
    assert len(found) == 71
    assert {hit.page_id for hit in found[-1]} == {"beta_1", "beta_2"}
    local = PageStore(tiny_corpus)
    page = client.page("beta_2")
    assert (page.document, page.page, page.width, page.height) == ("beta", 2, 300, 424)
    assert client.image("beta_2").tobytes() == local.image("beta_2").tobytes()
    with pytest.raises(ValueError, match=r"/pages/no%20where_1 with 404"):
        client.page("no where_1")
    with pytest.raises(ValueError, match=r"422: .*the query is empty"):
        client.search(["  "])
    client.close()
    with pytest.raises(ConnectionError, match=r"POST /search: ConnectError$"):
        SearchClient("http://user:secret@127.0.0.1:9", retries=0).search(["x"])


def test_a_busy_server_is_asked_again_and_a_token_is_sent() -> None:
    app, asked = FastAPI(), []

    @app.post("/search")
    def search(request: Request) -> dict[str, Any]:
        asked.append(request.headers.get("authorization"))
        if len(asked) < 3:
            raise HTTPException(503, headers={"Retry-After": "0"})
        return {"results": [[{"page_id": "beta_1", "score": 1, "rank": 1}]] * (2 if len(asked) > 3 else 1)}

    with serving(app) as url:
        client = SearchClient(url, token="t0ken")
        assert client.search(["x"])[0][0].page_id == "beta_1"
        assert asked == ["Bearer t0ken"] * 3
        with pytest.raises(ValueError, match="2 lists of hits for 1 queries"):
            client.search(["x"])


def test_a_server_that_is_none_is_told(agent_endpoint: Agent, tiny_corpus: Path) -> None:
    with pytest.raises(ValueError, match="404"):
        SearchClient(agent_endpoint.url).search(["x"])
    policy = ScriptedPolicy([look("a")])
    agent = VimRAG(policy=policy, search_url=agent_endpoint.url)
    assert "search: ValueError: the search server answers POST /search with 404" in (agent.ask("x").error or "")


def test_faults_and_errors_are_events(tiny_corpus: Path) -> None:
    def events(*texts: str, **more: Any) -> list[Event]:
        told, options = iter(texts), {**SMALL, **more}
        policy = ScriptedPolicy(lambda conversation: next(told))
        return list(VimRAG(policy=policy, engine=RankedEngine(), corpus=tiny_corpus, **options).run("x"))

    found = events("hm", look("a"), reply("a"), note("x"), reply("a"))
    assert [event.kind for event in found if event.kind not in ("think", "graph")] == [
        "notice", "search", "notice", "memorize", "answer"
    ]  # fmt: skip
    assert "no tool call" in found[1].text
    found = events(look("a"), look("b"), max_steps=2)
    assert [event.kind for event in found] == ["think", "search", "graph", "think", "notice"]
    assert (found[-1].text, found[-1].step) == ("no answer after 2 steps", 1)
    assert found[-1].trajectory is not None
    found = events(look("a", query="fail"))
    assert [event.kind for event in found] == ["think", "search", "error"]
    assert (found[1].text, found[1].node, found[1].hits) == ("fail", "a", [])
    assert (found[-1].text, found[-1].step) == ("search: RuntimeError: the index is gone", 0)
    assert [event.step for event in events(look("a"), note("x"))[-1:]] == [2]  # the script has ended: the third fails


def test_what_is_asked_and_with_what(tiny_corpus: Path) -> None:
    whole = make_question("u1")
    assert as_question(whole.model_dump()) == as_question(whole) == whole
    assert as_question({"query": "x", "uid": "u"}) == "x"
    agent = VimRAG(policy=ScriptedPolicy([reply()]), engine=RankedEngine(), corpus=tiny_corpus)
    for bad in ({}, {"query": 3}, "  ", {"query": " "}):
        with pytest.raises(ValueError, match="a question is its text"):
            agent.run(bad)  # type: ignore[arg-type]
    trajectory = agent.ask(whole)
    assert isinstance(trajectory.reference, Question)
    with pytest.raises(ValueError, match="name a model"):
        VimRAG(search_url="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="search_url"):
        VimRAG(policy=ScriptedPolicy([""]), engine=RankedEngine())


def test_the_policy_of_vrag_s_endpoints_plays_too(
    agent_endpoint: Agent, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAYER_KEY", SECRET)
    policy = OpenAIPolicy("plain", agent_endpoint.url, api_key_env="PLAYER_KEY")
    questions = [make_question(f"q{i}") for i in range(3)]
    found = rollout(policy, make(tiny_corpus), questions, concurrency=3, progress=False)
    assert [trajectory.answer for trajectory in found] == ["beta"] * 3
    assert [len(trajectory.turns) for trajectory in found] == [2] * 3


def test_requests_carry_pictures_and_are_made_side_by_side(agent_endpoint: Agent, tiny_corpus: Path) -> None:
    policy = OpenAIPolicy(
        "player", agent_endpoint.url, api_key=SECRET, temperature=0.3, image_format="jpeg", **MODEL_OPTIONS
    )
    session, _, _ = play(make(tiny_corpus), look("a"))
    found = policy.generate([session.conversation, make(tiny_corpus).start("x").conversation], [2**40, 1])
    assert [generation.error for generation in found] == [None, None]
    assert found[0].text.startswith('<tool_call>{"name": "summarize_and_memorize"')
    request = next(one for one in agent_endpoint.requests[-2:] if len(one["messages"]) > 1)
    kinds = [part["type"] for part in request["messages"][2]["content"]]
    assert kinds == ["text", "image_url"] * 3 + ["text"]
    assert request["messages"][2]["content"][1]["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert request["seed"] < 2**31
    policy.close()


def test_a_further_kind_of_item_is_one_more_class(tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Heading(TextKind):
        name, word, called = "heading", "Heading", ("title",)

        def offer(self, page: Page, label: str, settings: MemorySettings) -> list[Observation]:
            [whole] = super().offer(page, label, settings)
            return [whole.model_copy(update={"text": whole.text.split()[0]})]

    monkeypatch.setitem(memory_items.KINDS, "heading", Heading())  # type: ignore[arg-type]
    environment = make(tiny_corpus, items=("heading",), memory="multimodal")
    session, _, read = play(environment, look("a"), note("s", Title_1=4), reply("a"))
    assert "Heading 1:" in read[1][-1].text
    assert [one.kind for one in session.graph["a"].items] == ["heading"]
    again = Trajectory.model_validate_json(environment.finish(session).model_dump_json())
    assert again.turns[0].memory == session.turns[0].memory
