"""The environment: what each action shows, what goes wrong is said, and records rebuild what was seen."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import PAGE_IDS, SLIDE, RankedEngine, ScriptedPolicy, make_question
from PIL import Image as PILImage

from vrag_nb.agent.actions import Action
from vrag_nb.agent.environment import Environment, replay
from vrag_nb.agent.geometry import View
from vrag_nb.agent.observers import Session
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Conversation, Generation, Image, Text
from vrag_nb.agent.prompting import load_prompt, prompt_names
from vrag_nb.agent.rollout import rollout
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation, Trajectory, TrajectoryLog, read_trajectories, write_trajectories
from vrag_nb.agent.vimrag import VimRAG
from vrag_nb.agent.vrag import VRAG
from vrag_nb.evaluation.per_question import conduct
from vrag_nb.records import Hit

NANO = {"min_pixels": 96 * 784, "max_pixels": 168 * 784}
SEARCH, ANSWER = "<think>look</think><search>q</search>", "<think>seen</think><answer>42</answer>"


def play(environment: Environment, *texts: str) -> tuple[Session, Trajectory]:
    """Run texts through one session."""
    session = environment.start(make_question("u1"))
    for text in texts:
        assert not session.done
        environment.advance([session], [Generation(text, token_ids=[1, 2], logprobs=[-0.1, -0.2])])
    return session, environment.finish(session, "test")


@pytest.fixture
def environment(tiny_corpus: Path, engine: RankedEngine) -> Environment:
    return Environment(engine, tiny_corpus, Settings(max_turns=6, **NANO), "nano")


def test_search_crop_answer(environment: Environment) -> None:
    session, trajectory = play(environment, SEARCH, "<bbox>[0, 0, 238, 126]</bbox>", ANSWER)
    first, second, third = trajectory.turns
    assert first.observation is not None
    assert (first.observation.kind, first.observation.page_id) == ("page", "alpha_1")
    assert first.observation.shown_size == (476, 252) == environment.settings.budget.size(*SLIDE)
    assert first.observation.image_tokens == 153
    assert first.observation.image == "pages/alpha_1.png"
    assert [hit.page_id for hit in first.hits] == PAGE_IDS  # the whole list, though one page was shown
    assert second.observation is not None
    assert second.observation.crop_box == (0, 0, 300, 169)
    assert third.observation is None
    assert (trajectory.status, trajectory.answer) == ("answered", "42")
    assert trajectory.retrieved_page_ids == ["alpha_1"]
    assert trajectory.reference == session.question
    roles = [message.role for message in session.conversation]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]


def test_the_question_can_be_repeated_before_each_image(tiny_corpus: Path, engine: RankedEngine) -> None:
    settings = Settings(max_turns=6, caption="Look for: {question}", **NANO)
    session, trajectory = play(
        Environment(engine, tiny_corpus, settings, "nano"), SEARCH, "<bbox>[0, 0, 238, 126]</bbox>"
    )
    said = f"Look for: {session.question.query}"
    assert [turn.observation.caption for turn in trajectory.turns if turn.observation] == [said, said]
    assert [turn.notices for turn in trajectory.turns] == [[], []]
    shown = [message for message in session.conversation if message.role == "user"][1:]
    assert [[type(part) for part in message.parts] for message in shown] == [[Text, Image]] * 2
    assert [message.text for message in shown] == [said, said]


def test_each_search_shows_the_next_unseen_page_then_says_so(environment: Environment) -> None:
    session, trajectory = play(environment, *[SEARCH] * 6)
    assert trajectory.retrieved_page_ids == PAGE_IDS
    last = trajectory.turns[-1].observation
    assert last is not None
    assert last.kind == "notice"
    assert "shown already" in last.text
    assert last.image is None
    assert session.conversation[-1].images == []  # nothing stale is shown again
    assert len(trajectory.turns[-1].hits) == 5


def test_a_search_may_show_several_pages(tiny_corpus: Path, engine: RankedEngine) -> None:
    environment = Environment(engine, tiny_corpus, Settings(images_per_search=2, **NANO), "nano")
    session, trajectory = play(environment, SEARCH, SEARCH, SEARCH)
    assert trajectory.retrieved_page_ids == PAGE_IDS
    assert [len(turn.observations) for turn in trajectory.turns] == [2, 2, 1]
    assert len(session.conversation[2].images) == 2
    assert session.last_page == "beta_2"
    assert trajectory.messages() == session.conversation


def test_top_k_bounds_what_is_looked_at(tiny_corpus: Path, engine: RankedEngine) -> None:
    _, trajectory = play(Environment(engine, tiny_corpus, Settings(top_k=1, **NANO), "nano"), SEARCH, SEARCH)
    assert trajectory.retrieved_page_ids == ["alpha_1"]
    assert trajectory.turns[1].observation is not None
    assert trajectory.turns[1].observation.kind == "notice"


def test_a_search_that_finds_nothing(tiny_corpus: Path) -> None:
    _, trajectory = play(Environment(RankedEngine([]), tiny_corpus, Settings(**NANO), "nano"), SEARCH)
    assert trajectory.turns[0].observation is not None
    assert "found no page" in trajectory.turns[0].observation.text


def test_crops_compose_and_crop_the_last_image_shown(environment: Environment) -> None:
    half = "<bbox>[238, 126, 476, 252]</bbox>"
    session, trajectory = play(environment, SEARCH, half, half, SEARCH, half)
    boxes = [seen.crop_box for seen in trajectory.observations]
    assert boxes[1] == (300, 169, 600, 338)
    budget = environment.settings.budget
    view = View.whole(SLIDE, budget).crop((238, 126, 476, 252)).crop((238, 126, 476, 252))
    assert boxes[2] == view.crop_box
    assert boxes[4] == (300, 169, 600, 338)  # a new page starts a new frame
    assert [seen.page_id for seen in trajectory.observations] == ["alpha_1"] * 3 + ["alpha_2"] * 2
    assert session.last_page == "alpha_2"


def test_the_model_sees_the_pixels_it_pointed_at(environment: Environment) -> None:
    session, trajectory = play(environment, SEARCH, "<bbox>[119, 63, 357, 189]</bbox>")
    crop = session.conversation[-1].images[0].resolved()
    assert crop.size == trajectory.observations[1].shown_size
    page = environment.pages.image("alpha_1")
    corner, middle = crop.getpixel((0, 0)), crop.getpixel((crop.width // 2, crop.height // 2))
    assert corner == pytest.approx(page.getpixel((150, 84)), abs=6)  # a quarter in from the top left
    assert middle == pytest.approx(page.getpixel((300, 169)), abs=6)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["hm"], "no action was found"),
        (["<bbox>[1, 2, 3, 4]</bbox>"], "search first"),
        ([SEARCH, "<bbox>[900, 900, 950, 950]</bbox>"], "outside the last image."),
        ([SEARCH, "<bbox>[10, 10, 11, 11]</bbox>"], "too small"),
        ([SEARCH, "<bbox>[10, 10]</bbox>"], "four numbers"),
    ],
)
def test_invalid_actions_cost_a_turn_and_are_explained(environment: Environment, texts: list[str], words: str) -> None:
    session, trajectory = play(environment, *texts)
    turn = trajectory.turns[-1]
    assert turn.action.kind == "invalid"
    assert turn.observation is not None
    assert turn.observation.kind == "notice"
    assert words in turn.observation.text
    assert words in (turn.action.problem or "")
    assert "<search>query</search>" in turn.observation.text
    assert session.conversation[-1].role == "user"
    assert not session.done


def test_a_notice_is_never_read_as_the_models_words(environment: Environment) -> None:
    """The notice names <answer>: upstream's checks can be satisfied by it."""
    _, trajectory = play(environment, "hm", "hm")
    assert trajectory.answer is None
    assert [turn.action.kind for turn in trajectory.turns] == ["invalid", "invalid"]


def test_the_last_turn_forces_an_answer(tiny_corpus: Path, engine: RankedEngine) -> None:
    environment = Environment(engine, tiny_corpus, Settings(max_turns=2, **NANO), "nano")
    session, trajectory = play(environment, SEARCH, SEARCH, ANSWER)
    assert [turn.forced for turn in trajectory.turns] == [False, False, True]
    assert trajectory.status == "answered"
    asked = session.conversation[4]
    assert len(asked.images) == 1  # the last search is still answered
    assert asked.text == environment.settings.forced_text
    session, trajectory = play(environment, SEARCH, SEARCH, SEARCH)
    assert session.done
    assert (trajectory.status, trajectory.answer) == ("no_answer", None)
    assert trajectory.turns[-1].observation is None
    assert len(engine.calls) == 4  # the forced turn searches no more


def test_no_turns_at_all_asks_at_once(tiny_corpus: Path) -> None:
    _, trajectory = play(Environment(None, tiny_corpus, Settings(max_turns=0, **NANO), "nano"), ANSWER)
    assert trajectory.turns[0].forced
    assert trajectory.answer == "42"


def test_one_bad_session_leaves_the_others_alone(environment: Environment, engine: RankedEngine) -> None:
    sessions = [environment.start(make_question(uid)) for uid in ("a", "b", "c")]
    texts = [SEARCH, "<search>fail</search>", ""]
    generations = [Generation(text) for text in texts[:2]] + [Generation.failed("out of memory")]
    environment.advance(sessions, generations)
    good, bad, broken = [environment.finish(session) for session in sessions]
    assert good.error is None
    assert good.retrieved_page_ids == ["alpha_1"]
    assert bad.status == broken.status == "error"
    assert bad.error == "search: RuntimeError: the index is gone"
    assert broken.error == "policy: out of memory"


def test_a_session_that_failed_is_not_observed(tiny_corpus: Path, engine: RankedEngine) -> None:
    """An environment of one's own may look at the last turn; a session that failed at once has none."""

    class Looks(Environment):
        def observe(self, session: Session, hits: list[Hit] | Exception) -> None:
            assert session.turns[-1].text
            super().observe(session, hits)

    environment = Looks(engine, tiny_corpus, Settings(**NANO), "nano")
    sessions = [environment.start(make_question(uid)) for uid in ("a", "b")]
    environment.advance(sessions, [Generation.failed("out of memory"), Generation(SEARCH)])
    assert [session.error for session in sessions] == ["policy: out of memory", None]
    assert environment.finish(sessions[1]).retrieved_page_ids == ["alpha_1"]


def test_an_environment_of_ones_own_that_raises_loses_no_other_session(tiny_corpus: Path, engine: RankedEngine) -> None:
    class Trips(Environment):
        def observe(self, session: Session, hits: list[Hit] | Exception) -> None:
            if session.uid == "a":
                raise KeyError("no such page")
            super().observe(session, hits)

    environment = Trips(engine, tiny_corpus, Settings(**NANO), "nano")
    sessions = [environment.start(make_question(uid), uid) for uid in ("a", "b")]
    environment.advance(sessions, [Generation(SEARCH), Generation(SEARCH)])
    assert [session.done for session in sessions] == [True, False]
    assert "no such page" in str(sessions[0].error)


def test_searches_of_many_sessions_are_one_call(environment: Environment, engine: RankedEngine) -> None:
    sessions = [environment.start(make_question(uid)) for uid in ("a", "b", "c")]
    environment.advance(sessions, [Generation(f"<search>{query}</search>") for query in ("x", "y", "x")])
    assert engine.calls == [["x", "y"]]  # a query that two of them ask is searched once
    assert [len(session.conversation[-1].images) for session in sessions] == [1, 1, 1]


def test_an_index_of_another_corpus_is_a_clear_error(tiny_corpus: Path) -> None:
    environment = Environment(RankedEngine(["gamma_1"]), tiny_corpus, Settings(**NANO), "nano")
    _, trajectory = play(environment, SEARCH)
    assert trajectory.status == "error"
    assert "no page 'gamma_1'" in (trajectory.error or "")


def test_parts_can_be_swapped(tiny_corpus: Path, engine: RankedEngine) -> None:
    def parse(text: str) -> tuple[str, Action]:
        return "", Action(kind="search", query=text)

    def observe(session: Session, action: Action, hits: list[Hit]) -> list[Observation]:
        return [Observation(kind="notice", text=f"{len(hits)} pages")]

    environment = Environment(
        engine,
        tiny_corpus,
        Settings(**NANO),
        "nano",
        parse=parse,
        observers={"search": observe},
        stop=lambda session, settings: len(session.turns) == 2,
    )
    session, trajectory = play(environment, "one", "two")
    assert session.done
    assert engine.calls == [["one"], ["two"]]
    assert trajectory.turns[0].observation == Observation(kind="notice", text="5 pages")


def test_messages_are_rebuilt_with_their_pixels(environment: Environment) -> None:
    session, trajectory = play(environment, SEARCH, "<bbox>[9, 9, 100, 100]</bbox>", "what", ANSWER)
    loaded = Trajectory.model_validate_json(trajectory.model_dump_json())
    rebuilt = loaded.messages(environment.pages)
    assert rebuilt == session.conversation
    pairs = zip(rebuilt, session.conversation, strict=True)
    images = [(a, b) for new, old in pairs for a, b in zip(new.images, old.images, strict=True)]
    assert len(images) == 2
    assert all(new.resolved().tobytes() == old.resolved().tobytes() for new, old in images)
    with pytest.raises(ValueError, match="no pixels"):
        loaded.messages()[2].images[0].resolved()


def test_replay_finds_what_differs(environment: Environment) -> None:
    box = "<bbox>[9, 9, 100, 100]</bbox>"
    _, trajectory = play(environment, SEARCH, box, "what", SEARCH, box, SEARCH, ANSWER)
    assert replay(trajectory, environment.pages) == []
    assert trajectory.turns[1].observation is not None
    trajectory.turns[1].observation.crop_box = (0, 0, 10, 10)
    [difference] = replay(trajectory, environment.pages)
    assert "turn 1: observation" in difference


def test_system_message_and_braces_in_the_prompt(tiny_corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text('Reply {"json"}. {question}\n', encoding="utf-8")
    environment = Environment(None, tiny_corpus, Settings(system="Be brief.", **NANO), file)
    session = environment.start("How many {things}?")
    assert [message.role for message in session.conversation] == ["system", "user"]
    assert session.conversation[1].parts == (Text('Reply {"json"}. How many {things}?'),)
    assert session.uid.startswith("ask-")
    assert environment.finish(session).reference is None


def test_prompts_come_by_name_or_path(tmp_path: Path) -> None:
    assert {"nano", "vrag"} <= set(prompt_names())
    assert len(load_prompt("nano").split()) <= 25
    assert all("{question}" in load_prompt(name) for name in prompt_names())
    with pytest.raises(FileNotFoundError, match=r"name one of .*nano.*vrag"):
        load_prompt("missing")
    (tmp_path / "bad.txt").write_text("no place", encoding="utf-8")
    with pytest.raises(ValueError, match=r"has no \{question\}"):
        load_prompt(tmp_path / "bad.txt")


def test_the_page_cache_is_bounded(tiny_corpus: Path) -> None:
    slide = SLIDE[0] * SLIDE[1] * 3
    pages = PageStore(tiny_corpus, cache_bytes=2 * slide)
    images = [pages.image(name) for name in ("alpha_1", "alpha_2", "alpha_1", "alpha_3")]
    assert pages.held_bytes == 2 * slide
    assert pages.image("alpha_1") is images[0]  # used lately, so kept
    assert pages.image("alpha_2") is not images[1]
    assert len(pages) == 5
    with pytest.raises(KeyError, match="do not belong together"):
        pages.image("gamma_1")


def test_a_page_file_of_another_size_is_an_error(tiny_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages.parquet").write_bytes((tiny_corpus / "pages.parquet").read_bytes())
    PILImage.new("RGB", (9, 9)).save(tmp_path / "pages" / "alpha_1.png")
    with pytest.raises(ValueError, match="prepare the corpus again"):
        PageStore(tmp_path).image("alpha_1")


def test_half_a_line_is_forgotten_and_a_broken_one_is_named(environment: Environment, tmp_path: Path) -> None:
    file = tmp_path / "runs" / "trajectories.jsonl"
    _, trajectory = play(environment, ANSWER)
    log = TrajectoryLog(file)
    log.append(trajectory)
    log.append(trajectory.model_copy(update={"uid": "u2"}))
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])  # killed while writing
    assert [kept.uid for kept in read_trajectories(file)] == ["u1"]
    log = TrajectoryLog(file)
    assert set(log.done) == {"u1"}
    log.append(trajectory.model_copy(update={"uid": "u2"}))
    assert file.read_bytes() == whole
    log.append(trajectory.model_copy(update={"answer": "43"}))
    assert [(kept.uid, kept.answer) for kept in read_trajectories(file)] == [("u2", "42"), ("u1", "43")]
    write_trajectories(file, read_trajectories(file))
    assert len(read_trajectories(file)) == 2
    file.write_bytes(b'{"uid": 3}\n' + whole)
    with pytest.raises(ValueError, match=r"trajectories.jsonl: line 1, field uid"):
        read_trajectories(file)


def test_a_line_without_its_end_is_kept_and_a_strangers_file_is_left_alone(
    environment: Environment, tmp_path: Path
) -> None:
    file = tmp_path / "trajectories.jsonl"
    _, trajectory = play(environment, ANSWER)
    lines = [trajectory.model_copy(update={"uid": uid}).model_dump_json() for uid in ("a", "b", "c")]
    file.write_text("\n".join(lines))  # as many a tool writes it
    assert [one.uid for one in read_trajectories(file)] == ["a", "b", "c"]
    log = TrajectoryLog(file)
    log.append(trajectory)
    assert [one.uid for one in read_trajectories(file)] == ["a", "b", "c", "u1"]
    file.write_bytes(lines[0][:50].encode())  # killed while writing the first
    assert TrajectoryLog(file).done == {}
    assert file.read_bytes() == b""
    for text in ('{"mine": [1, 2, 3]}', "my notes", "[\n 1,\n 2\n]"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"trajectories\.jsonl"):
            TrajectoryLog(file)
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda hits: hits[1:], r"the search engine gave 0 lists of hits for 1 queries"),
        (lambda hits: [[hits[0][0].model_copy(update={"score": -math.inf})], *hits[1:]], "alpha_1 the score -inf"),
        (lambda hits: None, "TypeError"),
    ],
)
def test_an_engine_that_gives_something_else_fails_its_session(
    tiny_corpus: Path, tmp_path: Path, gives: Any, said: str
) -> None:
    class Odd(RankedEngine):
        def search(self, queries: list[str], top_k: int = 3) -> list[list[Hit]]:
            found = super().search(queries, top_k)
            return gives(found) if "odd" in queries else found

    environment = Environment(Odd(), tiny_corpus, Settings(**NANO), "nano")
    sessions = [environment.start(make_question(uid)) for uid in ("u1", "u2")]
    environment.advance(sessions, [Generation("<search>odd</search>"), Generation("<search>fine</search>")])
    environment.advance(sessions, [Generation(ANSWER), Generation(ANSWER)])
    odd, fine = (environment.finish(session, "test") for session in sessions)
    assert (odd.status, fine.status) == ("error", "answered")
    assert re.search(said, str(odd.error))
    write_trajectories(tmp_path / "t.jsonl", [odd, fine])
    assert len(read_trajectories(tmp_path / "t.jsonl")) == 2


def test_vrag_streams_events_as_they_happen(tiny_corpus: Path, engine: RankedEngine) -> None:
    policy = ScriptedPolicy([SEARCH, "<bbox>[0, 0, 99, 99]</bbox>", "eh", ANSWER])
    agent = VRAG(policy, engine, tiny_corpus, "nano", max_turns=5, **NANO)
    stream = agent.run("What?")
    assert (next(stream).kind, next(stream).kind) == ("think", "search")
    assert engine.calls == []  # the search is announced before it is made
    events = list(stream)
    kinds = [event.kind for event in events]
    assert kinds == ["page", "bbox", "crop", "think", "invalid", "notice", "think", "answer", "end"]
    assert events[0].image is not None
    assert events[0].image.size == (476, 252)
    assert len(events[0].hits) == 5
    trajectory = agent.ask("What?")
    assert trajectory.answer == "42"
    assert trajectory.policy == "scripted"
    assert trajectory.settings["max_turns"] == 5
    with pytest.raises(ValueError, match="a question is its text"):
        agent.run({"query": " "})  # at once, not at the first event


def test_vrag_reports_a_failing_policy(tiny_corpus: Path, engine: RankedEngine) -> None:
    def fail(conversation: object) -> str:
        raise RuntimeError("no memory")

    events = list(VRAG(ScriptedPolicy(fail), engine, tiny_corpus, "nano", **NANO).run({"query": "What?"}))
    assert [event.kind for event in events] == ["error", "end"]
    assert "no memory" in events[0].text


@pytest.mark.parametrize("batched", [True, False])
def test_half_a_character_in_an_error_ends_one_session(tiny_corpus: Path, tmp_path: Path, batched: bool) -> None:
    """A file can hold no lone surrogate: of an endpoint's refusal, a search's or an observation's."""
    half = "no \ud83d"

    class Says(ScriptedPolicy):
        def generate(self, conversations: Sequence[Conversation], seeds: object = None) -> list[Generation]:
            return [Generation("", error=half) for _ in conversations]

    def breaks(*_: object) -> list[object]:
        raise RuntimeError(half)

    says, searches = Says(lambda _: ""), ScriptedPolicy(lambda _: "<search>a</search>")
    engine = RankedEngine()
    tried = [(says, engine, {}), (searches, SimpleNamespace(search=breaks), {}), (searches, engine, {"search": breaks})]
    for number, (policy, searched, observers) in enumerate(tried):
        policy.batched = batched
        environment = Environment(searched, tiny_corpus, Settings(), "vrag", observers=observers)
        [found] = rollout(policy, environment, [make_question("q")], tmp_path / f"{number}.jsonl", progress=False)
        assert found.error.endswith("no ?")
        assert [one.error for one in read_trajectories(tmp_path / f"{number}.jsonl")] == [found.error]


def test_what_a_policy_says_wrongly_of_its_turn_is_an_error_of_it(tiny_corpus: Path, engine: RankedEngine) -> None:
    class Says(ScriptedPolicy):
        def generate(self, conversations: Sequence[Conversation], seeds: object = None) -> list[Generation]:
            wrong: Any = {"logprobs": [None], "prompt_tokens": "many"}
            return [Generation("<answer>1</answer>", **wrong) for _ in conversations]

    policy = Says(lambda _: "")
    asks = [VRAG(policy, engine, tiny_corpus).ask, VimRAG(policy=policy, engine=engine, corpus=tiny_corpus).ask]
    for ask in asks:
        found = ask("What?")
        assert (found.status, "parser: " in found.error) == ("error", True)


def test_a_reply_that_was_cut_off_is_told_recorded_and_counted(environment: Environment) -> None:
    session = environment.start(make_question("u1"))
    for said in (Generation("I think and", finish_reason="length"), Generation(SEARCH, finish_reason="action")):
        environment.advance([session], [said])
    trajectory = environment.finish(session)
    first, second = trajectory.turns
    assert first.notices[0].startswith("Your reply was cut off because it was too long: be brief. Invalid action: ")
    assert (first.finish_reason, second.finish_reason) == ("length", "action")
    assert conduct(trajectory)["cut_off_rate"] == 0.5
    assert replay(trajectory, environment.pages) == []
    old = json.loads(trajectory.model_dump_json(exclude={"turns": {"__all__": {"finish_reason"}}}))
    assert "cut_off_rate" not in conduct(Trajectory.model_validate(old))
