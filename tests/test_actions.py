"""The parser: what models write is read, and nothing makes it raise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vrag_nb.agent.actions import Action, close_action, end_of_action, parse, rewrite_box
from vrag_nb.agent.thinking import closed_spans, outside, spans, thought

SEARCH = "<think>Where is it?</think>\n<search>sales 2019</search>"


def test_plain_turns() -> None:
    assert parse(SEARCH) == ("Where is it?", Action(kind="search", query="sales 2019"))
    assert parse("<think>a</think><answer> 42 </answer>")[1] == Action(kind="answer", answer="42")
    assert parse("<bbox>[1, 2, 30, 40.5]</bbox>")[1] == Action(kind="bbox", box=(1, 2, 30, 40.5))


@pytest.mark.parametrize(
    "content",
    [
        "[10, 20, 30, 40]",
        "10, 20, 30, 40",
        "(10 20 30 40)",
        "(10,20),(30,40)",
        "[[10, 20, 30, 40]]",
        "[[10, 20, 30, 40], [1, 2, 3, 4]]",
        '[{"bbox_2d": [10, 20, 30, 40], "label": "Q3 2019"}]',
        '```json\n{"x1": 10, "y1": 20, "x2": 30, "y2": 40}\n```',
        "[10.0,\n20.00,\t30., 4e1]",
        "\uff3b10\uff0c20\uff0c30\uff0c40\uff3d",
        "\uff11\uff10, 20, 30, 40",
        "x1=10, y1=20, x2=30, y2=40",
        "[30, 40, 10, 20]",
        "it's [10, 20, 30, 40], that's it",
    ],
)
def test_boxes_as_models_write_them(content: str) -> None:
    assert parse(f"<bbox>{content}</bbox>")[1] == Action(kind="bbox", box=(10, 20, 30, 40))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("I can now give the <answer>.\nAction: <answer>42</answer>", Action(kind="answer", answer="42")),
        ("<answer><answer>42</answer></answer>", Action(kind="answer", answer="42")),
        ("I use <search>: <search>total</search>", Action(kind="search", query="total")),
    ],
)
def test_a_tag_that_is_named_in_words_begins_nothing(text: str, wanted: Action) -> None:
    assert parse(text)[1] == wanted


@pytest.mark.parametrize(
    "text",
    [
        "<search>sales 2019",
        "<search>sales 2019</sea",
        "<search>sales 2019<|im_end|>",
        "<SEARCH>sales 2019</Search>",
        "< search >sales\n 2019</ search>",
        "I will look it up: <search>sales 2019</search> and then answer.",
        "<search>sales 2019</search><answer>7</answer>",
        "<search>sales 2019</answer>",
        "The <answer> is near. <search>sales 2019</search>",
        "I could <bbox> again, or <answer>, but <search>sales 2019</search>",
        "\uff1csearch\uff1esales 2019\uff1c/search\uff1e",
        "<think>Perhaps <answer>7</answer>?</think><search>sales 2019</search>",
        "no opening tag</think><search>sales 2019</search>",
        "<think>not closed <search>sales 2019</search>",
        "<think>all inside <search>sales 2019</search></think>",
    ],
)
def test_searches_as_models_write_them(text: str) -> None:
    assert parse(text)[1] == Action(kind="search", query="sales 2019")


def test_the_action_that_was_closed_wins() -> None:
    """As by the released code's pattern, <(search|answer|bbox)>(.*?)</...>."""
    assert parse("<search>sales 2019<answer>7</answer>")[1] == Action(kind="answer", answer="7")
    assert parse("<search>what does <answer> mean</search>")[1].query == "what does <answer> mean"
    assert parse("I <search> again, but <bbox>[1, 2, 30, 40]</bbox>")[1].box == (1, 2, 30, 40)


def test_region_is_bbox_and_negative_numbers_are_numbers() -> None:
    assert parse("<region>[-5, 2, 30, 40]</region>")[1] == Action(kind="bbox", box=(-5, 2, 30, 40))
    assert parse("<bbox>[\u22125, -2.5, 30, 40]</bbox>")[1].box == (-5, -2.5, 30, 40)
    assert parse("<region>[1, 2, 3, 4]</bbox>")[1].box == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no action"),
        ("just words", "no action"),
        ("<search> </search>", "empty"),
        ("<answer></answer>", "empty"),
        ("<bbox>[1, 2, 3]</bbox>", "3 were given"),
        ("<bbox>[1, 2, 3, 4, 5, 6, 7, 8]</bbox>", "8 were given"),
        ("<bbox>top left</bbox>", "four numbers"),
        ("<bbox>[5, 5, 5, 9]</bbox>", "no area"),
        ("<bbox>[1, 2, 3, 1e999]</bbox>", "too large"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    action = parse(text)[1]
    assert action.kind == "invalid"
    assert action.problem is not None
    assert words in action.problem


def test_thoughts() -> None:
    assert parse("before <search>q</search>")[0] == "before"
    assert parse("<think>open <search>q</search>")[0] == "open"
    assert parse("<think>one</think><think>two</think><search>q</search>")[0] == "one\ntwo"
    assert parse("<think>one</think><search>q</search><think>late</think>")[0] == "one"
    assert parse("head</think><answer>1</answer>")[0] == "head"
    assert parse("nothing to do")[0] == "nothing to do"


def test_end_of_action_and_closing() -> None:
    assert SEARCH[: end_of_action(SEARCH + "<answer>")] == SEARCH
    assert end_of_action("<search>q") is None
    assert close_action("<think>t</think><search>q") == "<think>t</think><search>q</search>"
    assert close_action("<region>[1, 2, 3, 4]</reg") == "<region>[1, 2, 3, 4]</region>"
    assert close_action(SEARCH) == SEARCH
    assert close_action("no action") == "no action"


def test_what_a_closed_thought_quotes_neither_ends_a_turn_nor_is_left_open() -> None:
    quoting = "<think>Not <answer>41</answer>.</think>"
    assert end_of_action(quoting) is None
    assert end_of_action(f"{quoting} <answer>45</answer> x") == len(f"{quoting} <answer>45</answer>")
    assert end_of_action("opened by the template <answer>1</answer></think>") is None
    assert end_of_action("<think>never closed <answer>1</answer>") == len("<think>never closed <answer>1</answer>")
    for finished in ("<think>maybe <answer>?</think> I am done.", f"{quoting} Done.", f"{quoting}<answer>45</answer>"):
        assert close_action(finished) == finished
    assert close_action(f"{quoting}<answer>45") == f"{quoting}<answer>45</answer>"
    assert close_action("<think>never closed <search>q") == "<think>never closed <search>q</search>"


def test_thinking_and_what_is_outside_of_it() -> None:
    text = "<think>one <search>q</search></think> a < Think >two\uff1c/think\uff1e b <think>open"
    assert outside(text).split() == ["a", "b"]
    assert outside(text).index("a") == text.index(" a ") + 1
    assert thought(text, spans(text), len(text)) == "one <search>q</search>\ntwo\nopen"
    assert thought(" plain ", [], 7) == "plain"
    assert len(spans(text)) == len(closed_spans(text)) + 1 == 3


CALL = '<think>so</think>\n<tool_call>{"name": "add_search_node", "arguments": {"query": "q"}}</tool_call>'


def test_a_tool_call_ends_a_turn_too() -> None:
    assert CALL[: end_of_action(CALL + "\n<tool_response>dreamt</tool_response>")] == CALL
    assert end_of_action("<tool_call>{}</ TOOL_CALL >x") == len("<tool_call>{}</ TOOL_CALL >")
    assert end_of_action("<tool_call>{}") is None
    assert close_action(CALL.removesuffix("</tool_call>")) == CALL
    assert close_action(CALL) == CALL
    assert (
        close_action("<think>or <search>?</think><tool_call>{}")
        == "<think>or <search>?</think><tool_call>{}</tool_call>"
    )
    assert close_action("<think>a <tool_call>, perhaps") == "<think>a <tool_call>, perhaps"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (CALL, None),
        ('<tool_call>{"name": "search", "arguments": {"query": "q"}}', None),
        ("<search>what is <tool_call></search>", Action(kind="search", query="what is <tool_call>")),
        ("<think>no <tool_call>x</tool_call></think><answer>7</answer>", Action(kind="answer", answer="7")),
        ("<tool_call>{}</tool_call><answer>7</answer>", Action(kind="answer", answer="7")),
        ("<search>a <tool_call>", Action(kind="search", query="a <tool_call>")),
    ],
)
def test_a_tool_call_is_no_action_here(text: str, action: Action | None) -> None:
    expected = action or Action(kind="invalid", problem="no action was found.")
    assert parse(text)[1] == expected
    assert parse(close_action(text))[1] == expected


def test_rewriting_a_box_leaves_the_rest_alone() -> None:
    def double(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
        return box[0] * 2, box[1] * 2, box[2] * 2, box[3] * 2.125

    assert rewrite_box("a <bbox>(1,2,3,4)</bbox> b", double) == "a <bbox>[2, 4, 6, 8.5]</bbox> b"
    assert rewrite_box(SEARCH, double) == SEARCH


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(text: str) -> None:
    thought, action = parse(text)
    assert isinstance(thought, str)
    Action.model_validate_json(action.model_dump_json())


FRAGMENTS = [
    *(f"<{slash}{name}>" for name in ("think", "search", "bbox", "region", "answer", "ANSWER") for slash in ("", "/")),
    *("<", ">", "</", "[", "]", "{", "}", "(", ")", ",", '"', "'", "\n", " ", "\t", "-", "+", ".", "e", "\\", "\x00"),
    *("1", "23", "4.5", "-6", "1e9", "9" * 40, "1e999", "nan", "\u0663", "\u2212", "\ud800", "\uff1c", "\uff11"),
    *("[1, 2, 30, 40]", "(5 6 70 80)", "1, 2, 3", "<bbox>[9, 8,", "<bbox>"),
    *("<|im_end|>", "<|image_pad|>", "bbox_2d", "text", "\U0001f600", "< search >", "```json"),
]


def test_a_hundred_thousand_random_strings() -> None:
    rng = random.Random(0)
    kinds = {"search": 0, "bbox": 0, "answer": 0, "invalid": 0}
    for _ in range(100_000):
        text = "".join(rng.choices(FRAGMENTS, k=rng.randrange(16)))
        action = parse(text)[1]
        kinds[action.kind] += 1
        if action.kind == "bbox":
            assert action.box is not None
            x1, y1, x2, y2 = action.box
            assert x1 < x2
            assert y1 < y2
    assert all(kinds.values()), kinds  # the strings did reach every outcome


@pytest.mark.parametrize("piece", ["<", "< ", "[", "1", '"', "<think>", "<search>", "<bbox>[1,", "</bbox", "1 "])
def test_long_hostile_texts_are_invalid(piece: str) -> None:
    assert parse(f"<bbox>{piece * 20_000}")[1].kind == "invalid"
