"""An action of one's own: parsed, ended, carried out, recorded, drawn, and named in a profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RankedEngine, make_question
from test_policies import SHORT, Endpoint, endpoint, force, ids_of, policy  # noqa: F401 - fixtures

from vrag_nb.agent.action_kinds import ActionKind, load_kinds
from vrag_nb.agent.actions import Action, Grammar, InvalidAction, close_action, end_of_action, parse, rewrite_box
from vrag_nb.agent.environment import Environment, replay
from vrag_nb.agent.observers import SearchObserver, Session
from vrag_nb.agent.openai_policy import OpenAIPolicy
from vrag_nb.agent.pages import PageStore
from vrag_nb.agent.policy import Frame, Generation, Message, Text, boxes_to_shown, grammar_of
from vrag_nb.agent.task_settings import Settings
from vrag_nb.agent.trajectory import Observation, Trajectory
from vrag_nb.agent.transformers_policy import TransformersPolicy
from vrag_nb.agent.vrag import VRAG
from vrag_nb.display import payloads, static
from vrag_nb.display.scenes import scenes
from vrag_nb.display.transcript import turn_lines
from vrag_nb.evaluation.turn_counts import turn_counts
from vrag_nb.profiles import ProfileError, load_profile

NANO = {"min_pixels": 784, "max_pixels": 20 * 784}
SEARCH, ANSWER = "<search>first</search>", "<answer>42</answer>"


class Again(ActionKind):
    """Searches once more, with a word of the model's; its argument is read and its search made."""

    tag = "again"
    usage = "<again>word</again> searches once more."
    searches = True

    @classmethod
    def read(cls, argument: str) -> Action:
        if " " in argument:
            raise InvalidAction("one word, please.")
        return Action(kind=cls.tag, query=f"again {argument}", argument=argument)

    def observe(self, session: Session, action: Action, hits: list) -> list[Observation]:
        return SearchObserver(self.pages, self.settings)(session, action, hits)


class Zoom(ActionKind):
    """A box and no more: its numbers are converted at a policy's edge as a crop's are."""

    tag = "zoom"

    @classmethod
    def read(cls, argument: str) -> Action:
        return parse(f"<bbox>{argument}</bbox>")[1].model_copy(update={"kind": cls.tag})

    def observe(self, session: Session, action: Action, hits: list) -> list[Observation]:
        return [Observation(kind="notice", text="looked")]


class Blank(Again):
    """Says that it searches, and gives no query."""

    tag = "blank"

    @classmethod
    def read(cls, argument: str) -> Action:
        return Action(kind=cls.tag, argument=argument)


NAMES = tuple(f"{__name__}:{kind.__name__}" for kind in (Again, Zoom))


def world(corpus: Path, engine: RankedEngine | None = None) -> Environment:
    return Environment(engine or RankedEngine(), corpus, Settings(actions=NAMES, **NANO), "nano")


def play(environment: Environment, *texts: str) -> tuple[Session, Trajectory]:
    session = environment.start(make_question("u1"))
    for text in texts:
        environment.advance([session], [Generation(text)])
    return session, environment.finish(session, "test")


def test_it_is_parsed_by_the_rules_of_all_actions(tiny_corpus: Path) -> None:
    grammar = world(tiny_corpus).grammar
    again = Action(kind="again", query="again x", argument="x")
    for text in ("<again>x</again>", "< AGAIN > x", "<again>x</aga", "\uff1cagain\uff1ex</again><answer>7</answer>"):
        assert parse(text, grammar)[1] == again
    assert parse("<think>or <again>y</again></think><again>x</again>", grammar) == ("or <again>y</again>", again)
    assert parse("<again>x y</again>", grammar)[1] == Action(kind="invalid", problem="one word, please.")
    assert parse("<again>x</again>")[1].problem == "no action was found.", "elsewhere it is no tag"
    assert end_of_action("<again>x</again> and on", grammar) == len("<again>x</again>")
    assert end_of_action("<again>x</again> and on") is None
    assert close_action("<again>x</agai", grammar) == "<again>x</again>"
    assert rewrite_box("<zoom>[1, 2, 3, 4]</zoom>", lambda box: (5, 6, 7, 8), grammar) == "<zoom>[5, 6, 7, 8]</zoom>"


@pytest.mark.parametrize("tag", ["search", "think", "crop", "Next", "a b", "", "thirteen_long", "a|b"])
def test_a_tag_that_cannot_be_is_an_error(tag: str) -> None:
    with pytest.raises(ValueError, match="the tag"):
        Grammar({tag: Again.read})


def test_a_search_without_a_query_costs_a_turn_and_not_the_session(tiny_corpus: Path) -> None:
    engine = RankedEngine()
    environment = Environment(engine, tiny_corpus, Settings(**NANO), "nano", actions=[Blank])
    _, trajectory = play(environment, "<blank>x</blank>", ANSWER)
    assert not engine.calls
    assert trajectory.status != "error"
    assert trajectory.turns[0].action == Action(kind="invalid", problem="the search query is empty.", argument="x")
    assert "the search query is empty." in trajectory.turns[0].observation.text


def test_it_is_carried_out_recorded_and_replayed(tiny_corpus: Path) -> None:
    engine = RankedEngine()
    texts = ("<again>a b</again>", SEARCH, "<again>x</again>", "<zoom>[1, 2, 30, 40]</zoom>", ANSWER)
    session, trajectory = play(world(tiny_corpus, engine), *texts)
    assert engine.calls == [["first"], ["again x"]]
    assert [turn.action.kind for turn in trajectory.turns] == ["invalid", "search", "again", "zoom", "answer"]
    assert trajectory.turns[2].observation.page_id == "alpha_2"
    assert "searches once more" in trajectory.turns[0].observation.text
    assert session.prompt.endswith("\n\n<again>word</again> searches once more.")
    loaded = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert loaded == trajectory
    assert tuple(loaded.settings["actions"]) == NAMES
    assert replay(loaded, PageStore(tiny_corpus)) == []


class Odd(Zoom):
    """Shows what a test tells it to."""

    shown: object = None

    def observe(self, session: Session, action: Action, hits: list) -> list[Observation]:
        return self.shown  # type: ignore[return-value]


@pytest.mark.parametrize(
    "shown", [None, [], "some text", ["some text"], Observation(kind="notice", text="looked")], ids=repr
)
def test_what_is_no_observation_ends_its_session_and_says_why(
    tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch, shown: object
) -> None:
    """A text once went into the record, which nobody could read again: the whole file was lost to the next run."""
    monkeypatch.setattr(Odd, "shown", shown)
    environment = Environment(RankedEngine(), tiny_corpus, Settings(**NANO), "nano", actions=[Odd])
    _, trajectory = play(environment, SEARCH, "<zoom>[1, 2, 30, 40]</zoom>")
    assert trajectory.status == "error"
    assert "the action zoom should show a list of at least one Observation, and gave" in str(trajectory.error)
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


def test_what_no_file_can_hold_is_shown_as_a_question_mark(tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "shown", (Observation(kind="notice", text="half \ud83d"),))
    environment = Environment(RankedEngine(), tiny_corpus, Settings(**NANO), "nano", actions=[Odd])
    session, trajectory = play(environment, SEARCH, "<zoom>[1, 2, 30, 40]</zoom>", ANSWER)
    assert (trajectory.status, trajectory.turns[1].observation.text) == ("answered", "half ?")
    assert "half ?" in session.conversation[4].text
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


class Tagless(ActionKind):
    def observe(self, session: Session, action: Action, hits: list) -> list[Observation]:
        return []


class Idle(ActionKind):
    tag = "idle"


def test_a_class_that_is_not_finished_is_an_error_in_its_profile() -> None:
    for name, told in (("Tagless", "has no tag"), ("Idle", "has no method observe")):
        with pytest.raises(ValueError, match=f"action '.*:{name}' {told}"):
            load_kinds([f"{__name__}:{name}"])


def test_without_one_records_are_as_they_were(tiny_corpus: Path) -> None:
    _, trajectory = play(Environment(RankedEngine(), tiny_corpus, Settings(**NANO), "nano"), SEARCH, ANSWER)
    assert "actions" not in trajectory.settings
    assert "argument" not in trajectory.model_dump()["turns"][0]["action"]


def test_the_same_class_is_given_or_named(tiny_corpus: Path) -> None:
    given = Environment(RankedEngine(), tiny_corpus, Settings(**NANO), "nano", actions=[Again, Zoom])
    assert (given.settings, given.template) == (world(tiny_corpus).settings, world(tiny_corpus).template)
    again = Environment(RankedEngine(), tiny_corpus, given.settings, "nano", actions=[Again])
    assert again.settings == given.settings, "told of once"
    for name in ("no_such_module:Again", f"{__name__}:Nothing", f"{__name__}:play", "gibberish"):
        with pytest.raises(ValueError, match="action '"):
            Environment(RankedEngine(), tiny_corpus, Settings(actions=(name,)), "nano")


# -- policies


def test_a_turn_ends_at_its_tag_in_its_conversations_alone(
    policy: TransformersPolicy,  # noqa: F811
    tiny_corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "max_new_tokens", 24)
    conversation = world(tiny_corpus).start(make_question("u1")).conversation
    written = ids_of(policy, "<again>x</again>")
    force(policy, monkeypatch, [[*written, *ids_of(policy, "a")]])
    [own] = policy.generate([conversation])
    assert (own.text, own.token_ids, own.finish_reason) == ("<again>x</again>", written, "action")
    own, other = policy.generate([conversation, SHORT])  # one call, two grammars
    assert (own.finish_reason, other.finish_reason) == ("action", "length")


def test_endpoints_are_sent_its_tag(endpoint: Endpoint, tiny_corpus: Path) -> None:  # noqa: F811
    conversation = world(tiny_corpus).start(make_question("u1")).conversation
    [generation] = OpenAIPolicy("<again>x</again> more", endpoint.url, api_key_env=None).generate([conversation])
    assert endpoint.requests[-1]["stop"] == ["</search>", "</bbox>", "</answer>", "</again>"]
    assert (generation.text, generation.finish_reason) == ("<again>x</again>", "action")
    assert grammar_of(conversation).stops[4:] == ["</zoom>", "</tool_call>", "</region>"], "what vLLM is given as well"


def test_its_box_is_converted_too(tiny_corpus: Path) -> None:
    session, _ = play(world(tiny_corpus), SEARCH)
    width, height = session.conversation[-1].images[-1].size
    frame: Frame = "normalised-1000"
    said = boxes_to_shown("<zoom>[0, 0, 1000, 1000]</zoom>", session.conversation, frame)
    assert said == f"<zoom>[0, 0, {width}, {height}]</zoom>"
    assert session.conversation[0] == Message("user", (Text(session.prompt),)), "what is said is the same message"


# -- display


def test_it_is_shown_under_its_tag(tiny_corpus: Path) -> None:
    class Script:
        name, batched, texts = "script", True, [SEARCH, "<again>x</again>", "<zoom>[1, 2, 30, 40]</zoom>", ANSWER]

        def generate(self, conversations, seeds=None):
            return [Generation(self.texts.pop(0)) for _ in conversations]

    agent = VRAG(Script(), RankedEngine(), tiny_corpus, "nano", actions=NAMES, **NANO)
    events = list(agent.run(make_question("u1")))
    assert [event.kind for event in events] == ["search", "page", "again", "page", "zoom", "notice", "answer", "end"]
    lines = list(turn_lines(events))
    assert "2   again  again x" in lines
    assert "3    zoom  [1, 2, 30, 40]" in lines
    store, trajectory = PageStore(tiny_corpus), events[-1].trajectory
    said = payloads.turn(trajectory, scenes(trajectory, store)[1])
    assert (said["kind"], said["argument"], said["query"]) == ("again", "x", "again x")
    static.trajectory_figure(trajectory, store)
    labels = turn_counts([trajectory]).axes[1].get_legend_handles_labels()[1]
    assert labels == ["search", "crop", "answer", "invalid", "again", "zoom"]


# -- profiles


def test_a_profile_names_it_for_all_that_acts(tiny_corpus: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.yaml"
    text = """
profiles:
  own:
    corpus: {{kind: documents, documents: documents, folder: {corpus}}}
    retriever: {{kind: bm25}}
    policy: {{kind: openai, checkpoint: m, options: {{api_key_env: null}}}}
    agent: {{prompt: nano, actions: [{name}]}}
"""
    file.write_text(text.format(corpus=tiny_corpus, name=f'"{NAMES[0]}"'), encoding="utf-8")
    profile = load_profile("own", file)
    environment = profile.load_environment(RankedEngine(), training=True)
    assert list(environment.actions) == ["again"]
    assert list(profile.load_agent(engine=RankedEngine()).environment.actions) == ["again"]
    assert profile.task().actions == NAMES[:1]
    file.write_text(text.format(corpus=tiny_corpus, name='"nowhere:Again"'), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"profile own, field agent.actions: the action 'nowhere:Again'"):
        load_profile("own", file).load_environment(RankedEngine())
