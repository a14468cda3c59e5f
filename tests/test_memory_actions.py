"""VimRAG's tool calls: what models write is read, whatever its faults, and nothing ever raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vrag_nb.agent.loose_json import DEEPEST, first_object
from vrag_nb.agent.memory_actions import MIDDLE, TOOLS, parse
from vrag_nb.agent.memory_records import Judgement, MemoryAction

SEARCH = {"id": "a", "parent_ids": ["root"], "query": "growth of Norway"}
FOUND = MemoryAction(kind="retrieve", node="a", parents=["root"], query="growth of Norway")


def call(kind: str, arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': TOOLS[kind], 'arguments': arguments})}</tool_call>"


def test_a_name_is_read_alike_where_it_is_given_and_where_it_is_referred_to() -> None:
    for name in ('"a"', "'a' ", "a" * 80, "b" * 63 + " c"):
        given = parse(call("retrieve", {"id": name, "query": "x"}))[1].node
        assert parse(call("answer", {"parent_ids": [name], "answer": "x"}))[1].parents == [given]


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ("Picture 1, Picture 3", ["Picture 1", "Picture 3"]),
        ([{"information_id": ["Picture 1", "Picture 2"], "is_useful": True}], ["Picture 1", "Picture 2"]),
        ([{"information_id": "Picture 1 and 2", "is_useful": "yes"}], ["Picture 1", "2"]),
        (["sales, 2019_3"], ["sales, 2019_3"]),
        ([{"information_id": "Picture 1", "is_useful": "No, it is a cover page"}], []),
        ([{"information_id": "Picture 1", "is_useful": "No revenue is missing"}], ["Picture 1"]),
    ],
)
def test_items_that_are_named_together_are_each_kept(items: object, kept: list[str]) -> None:
    action = parse(call("memorise", {"summarize": "s", "memorize": items}))[1]
    assert [one.label for one in action.judgements if one.useful] == kept


def test_the_three_calls() -> None:
    assert parse(f"<think>I look.</think>\n{call('retrieve', SEARCH)}") == ("I look.", FOUND)
    items = [
        {"information_id": "Picture 1", "is_useful": True, "priority_score": 4},
        {"information_id": "Video 2", "is_useful": True, "priority_score": 2, "key_timestamp": [1.5, 30]},
        {"information_id": "Picture 3", "is_useful": False, "priority_score": 1},
    ]
    thought, action = parse(call("memorise", {"summarize": "2% in 2019", "memorize": items}))
    assert (thought, action.kind, action.summary) == ("", "memorise", "2% in 2019")
    assert action.judgements == [
        Judgement(label="Picture 1", useful=True, priority=4),
        Judgement(label="Video 2", useful=True, priority=2, timestamps=[1.5, 30]),
        Judgement(label="Picture 3", useful=False, priority=1),
    ]
    _, action = parse(call("answer", {"parent_ids": ["a", "b"], "answer": "Norway,\n2%"}))
    assert action == MemoryAction(kind="answer", parents=["a", "b"], answer="Norway,\n2%")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n```json\n" + json.dumps({"name": "add_search_node", "arguments": SEARCH}) + "\n```\n</tool_call>",
        "```json\n" + json.dumps({"name": "add_search_node", "arguments": SEARCH}) + "\n```",
        json.dumps({"name": "add_search_node", **SEARCH}),
        json.dumps({"add_search_node": SEARCH}),
        json.dumps({"function": {"name": "add_search_node", "arguments": json.dumps(SEARCH)}}),
        json.dumps({"tool": "AddSearchNode", "parameters": SEARCH}),
        json.dumps({"tool": "ad_serch_node", "parameters": SEARCH}),
        json.dumps({"add_search_nodes": SEARCH}),
        json.dumps(SEARCH),
        "<tool_call>{'name': 'add_search_node', 'arguments': {'id': 'a', 'parent_ids': ['root'], "
        "'query': 'growth of Norway',},}</tool_call>",
        '<tool_call>{name: "add_search_node", arguments: {id: "a", parent_ids: "root", query: "growth of\nNorway"}}',
        '<tool_call>{"name": "add_search_node", "arguments": {"id": "a", "parent_ids": ["root"], '
        '"query": "growth of Norway"</tool_call>',
        '<tool_call>{"name": "add_search_node", "arguments": {"id": "a", "parent_ids": ["root"], '
        '"query": "growth of Norway"}</tool_call>',
        '<TOOL_CALL>{"name": "add_search_node", // the first\n "arguments": {"id": "a", "parent": "root", '
        '"sub_query": "growth of Norway"}}</tool_call>',
        call("retrieve", SEARCH) + call("answer", {"answer": "guess"}),
        call("retrieve", SEARCH) + "<tool_response>Norway</tool_response>" + call("answer", {"answer": "guess"}),
        call("retrieve", SEARCH) + "<|im_end|>\n<|im_start|>user\n" + call("answer", {"answer": "guess"}),
        call("retrieve", {**SEARCH, "query": ["growth of", "Norway"]}),
        "<tool_call>\n<function=add_search_node>\n<parameter=id>\na\n</parameter>\n<parameter=parent_ids>\n"
        '["root"]\n</parameter>\n<parameter=query>\ngrowth of Norway\n</parameter>\n</function>\n</tool_call>',
        "<tool_call><function=search><parameter=id>a<parameter=parents>root<parameter=query>growth of\nNorway"
        "</tool_call>" + call("answer", {"answer": "guess"}),
    ],
)
def test_faults_are_forgiven(text: str) -> None:
    assert parse(text)[1] == FOUND


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        ("<think>I could <tool_call>{}</tool_call> or so</think>" + call("retrieve", SEARCH), "I could"),
        ("<think>never closed " + call("retrieve", SEARCH), "never closed"),
        ("the template opened it</think>" + call("retrieve", SEARCH), "the template opened it"),
        ("I look it up: " + call("retrieve", SEARCH), "I look it up:"),
        ("<think>a {brace}</think> so " + json.dumps(SEARCH), "a {brace}"),
    ],
)
def test_thoughts_are_kept_apart_from_calls(text: str, thought: str) -> None:
    said, action = parse(text)
    assert action == FOUND
    assert said.startswith(thought)
    assert "<think>" not in said


def test_apostrophes_and_python_words_in_single_quotes() -> None:
    _, action = parse(
        "<tool_call>{'name': 'summarize_and_memorize', 'arguments': {'summarize': 'Norway's True growth:\n2%', "
        "'memorize': [{'information_id': 'Picture 1', 'is_useful': True, 'priority_score': None}]}}</tool_call>"
    )
    assert action.kind == "memorise"
    assert action.summary == "Norway's True growth: 2%"
    assert action.judgements == [Judgement(label="Picture 1", useful=True, priority=MIDDLE)]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([{"information_id": 2, "is_useful": "yes", "priority_score": "5"}], [("2", True, 5)]),
        ([{"id": "Picture 1", "is_useful": "False", "priority": 9}], [("Picture 1", False, 5)]),
        ([{"label": "Picture 1", "keep": 0, "score": -3}], [("Picture 1", False, 1)]),
        ([{"label": "Picture 1", "priority_score": "high"}], [("Picture 1", True, MIDDLE)]),
        (["Picture 1", 3], [("Picture 1", True, MIDDLE), ("3", True, MIDDLE)]),
        ({"Picture 1": 5, "Picture 2": {"is_useful": False}}, [("Picture 1", True, 5), ("Picture 2", False, MIDDLE)]),
        ({"information_id": "Picture 1", "priority_score": 2.4}, [("Picture 1", True, 2)]),
        ("Picture 1", [("Picture 1", True, MIDDLE)]),
        ({"Picture 1": True, "Picture 2": False}, [("Picture 1", True, MIDDLE), ("Picture 2", False, MIDDLE)]),
        (
            json.dumps([{"id": "Picture 1", "is_useful": False}, {"id": "Picture 2", "priority": 5}]),
            [("Picture 1", False, MIDDLE), ("Picture 2", True, 5)],
        ),
        ([None, {}, {"information_id": None}, [], "Picture 2"], [("Picture 2", True, MIDDLE)]),
        (None, []),
        (7.5, []),
    ],
)
def test_judgements_of_any_type(items: object, expected: list[tuple[str, bool, int]]) -> None:
    _, action = parse(call("memorise", {"summarize": "s", "memorize": items}))
    assert [(one.label, one.useful, one.priority) for one in action.judgements] == expected


def test_calls_in_xml_hold_lists_and_are_told_what_is_wrong() -> None:
    def called(name: str, **fields: str) -> MemoryAction:
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in fields.items())
        return parse(f"<think>So.</think>\n<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>")[1]

    items = '[{"information_id": "Picture 1", "is_useful": true, "priority_score": 4}, "Picture 2"]'
    action = called("summarize_and_memorize", summarize='It says {"a": 1}.', memorize=items)
    assert (action.kind, action.summary) == ("memorise", 'It says {"a": 1}.')
    assert [(one.label, one.priority) for one in action.judgements] == [("Picture 1", 4), ("Picture 2", MIDDLE)]
    action = called("add_answer_node", parent_ids='["a", "b"]', answer="[1, 2]")
    assert (action.parents, action.answer) == (["a", "b"], "[1, 2]")
    assert "the tool 'crop' is not there" in str(called("crop", box="[1]").problem)
    assert "no query" in str(called("add_search_node").problem)


def test_xml_without_its_opening_tag_is_a_call() -> None:
    text = "I look.\n\n<function=add_search_node>\n<parameter=query>\ngrowth\n</parameter>\n</function>\n</tool_call>"
    assert parse(text) == ("I look.", MemoryAction(kind="retrieve", query="growth"))


@pytest.mark.parametrize("summary", ['The slide "Revenue by region" shows 45.', 'A 12" pipe costs 45', '"Total" is 3'])
def test_quotation_marks_that_were_not_escaped(summary: str) -> None:
    items = '[{"information_id": "Picture 1", "is_useful": true, "priority_score": 4}]'
    arguments = f'{{"summarize": "{summary}", "memorize": {items}}}'
    _, action = parse(f'<tool_call>{{"name": "summarize_and_memorize", "arguments": {arguments}}}</tool_call>')
    assert (action.kind, action.summary, [one.label for one in action.judgements]) == (
        "memorise",
        summary,
        ["Picture 1"],
    )


def test_timestamps_of_any_type() -> None:
    ranges: list[tuple[object, list[float]]] = [(text, [10, 14]) for text in ("10.0-14.0", "10 s - 14 s", "10 -14")]
    clocks = [(["1:05", "0:10-0:12.5"], [65, 10, 12.5]), ("1:02:03", [3723]), ("3:75", [3, 75])]
    others = [("12.5 seconds", [12.5]), (["<1.0 seconds>", 3], [1.0, 3.0]), (None, []), (True, []), (-3, [-3])]
    for given_, read in (*ranges, *clocks, *others):
        item = {"information_id": "Video 1", "key_timestamp": given_}
        _, action = parse(call("memorise", {"summarize": "s", "memorize": [item]}))
        assert action.judgements[0].timestamps == read


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no tool call was found"),
        ("Norway.", "no tool call was found"),
        ("<tool_call></tool_call>", "no JSON object"),
        ("<tool_call>[1, 2]</tool_call>", "no JSON object"),
        ("<tool_call>{{{</tool_call>", "does not name its tool"),
        ("<tool_call>{1 2 3}</tool_call>", "no JSON object"),
        ('<tool_call>{"name": "crop", "arguments": {"box": [1]}}</tool_call>', "the tool 'crop' is not there"),
        ("<tool_call>{}</tool_call>", "does not name its tool"),
        (call("retrieve", {"id": "a"}), "no query"),
        (call("retrieve", {"query": {"a": 1}}), "no query"),
        (call("retrieve", None), "no query"),
        (call("memorise", {"memorize": [{"information_id": "Picture 1", "is_useful": False}]}), "no summary"),
        (call("answer", {"parent_ids": ["a"], "answer": "  "}), "the answer is empty"),
    ],
)
def test_what_cannot_be_read_says_why(text: str, problem: str) -> None:
    _, action = parse(text)
    assert action.kind == "invalid"
    assert problem in (action.problem or "")


def test_names_and_parents_may_be_left_out() -> None:
    assert parse(call("retrieve", {"query": "x"}))[1] == MemoryAction(kind="retrieve", query="x")
    assert parse(call("answer", {"answer": 7, "parent_ids": []}))[1] == MemoryAction(kind="answer", answer="7")
    assert parse(call("retrieve", {"query": "x", "parent_ids": "a, b"}))[1].parents == ["a", "b"]


def test_a_summary_may_quote_a_closing_tag() -> None:
    _, action = parse(call("memorise", {"summarize": "it says </tool_call> twice </tool_call>", "memorize": []}))
    assert action.summary == "it says </tool_call> twice </tool_call>"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["id", "parent_ids", "query", "summarize", "memorize", "answer", "information_id", "is_useful"]
FIELDS += ["priority_score", "key_timestamp"]
PIECES = ["<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", "[", "]", '"', "'", "\\", ",", ":", "query"]
PIECES += ['"name"', "add_answer_node", "arguments", "```json", "\n", "True", "<|im_end|>", "5", "\ud800", "e999", " "]
PIECES += ["<function=", "<parameter=", "</parameter>", "</function>", "memorize", ">"]


@given(st.text() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
@example("<tool_call>" + "[" * 10_000)
@example("<tool_call>" + '{"a":' * 10_000)
@example("{" + "'" * 999)
@example('<tool_call>{"name": "add_search_node", "arguments": {"query": "\\ud800"}}</tool_call>')
@example('<tool_call>{"name": "add_search_node", "arguments": {"query": 0x' + "F" * 5_000 + "}}")
@example("{0x" + "F" * 5_000 + ": 1}")
def test_no_text_is_too_strange(text: str) -> None:
    thought, action = parse(text)
    MemoryAction.model_validate_json(action.model_dump_json())
    thought.encode("utf-8")


@given(st.sampled_from(sorted(TOOLS)), JSON | st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_argument_is_too_strange(kind: str, arguments: object) -> None:
    _, action = parse(call(kind, arguments))
    assert action.kind in (kind, "invalid")
    MemoryAction.model_validate_json(action.model_dump_json())


@given(st.dictionaries(st.text(), JSON))
def test_what_is_json_is_read_as_json(data: dict[str, object]) -> None:
    text = json.dumps(data)
    assert json.dumps(first_object(f"words: {text} and more")) == text or "{" in "".join(data)


@given(st.text(alphabet="abc '\"{}[]:,\\\n<>"), st.text(alphabet="abc 123", min_size=1).filter(str.strip))
def test_strings_survive_whatever_they_hold(summary: str, query: str) -> None:
    assert parse(call("retrieve", {"query": query}))[1].query == " ".join(query.split())
    if summary.strip():
        assert parse(call("memorise", {"summarize": summary}))[1].summary == " ".join(summary.split())


def test_depth_is_bounded() -> None:
    assert first_object('{"a":' * 2 * DEEPEST + "1" + "}" * 2 * DEEPEST) is None
    assert first_object('{"a":' * 3 + "1") == {"a": {"a": {"a": 1}}}


@pytest.mark.parametrize(
    ("items", "kept"),
    [
        ({"Picture 1": "not useful", "Picture 2": "useful"}, ["Picture 2"]),
        ({"Picture 1": "no", "Picture 2": "yes"}, ["Picture 2"]),
        ({"Picture 1": "False.", "Picture 2": "true"}, ["Picture 2"]),
        ({"Picture 1": "4", "Picture 2": "discard"}, ["Picture 1"]),
        ([{"information_id": "Picture 1", "is_useful": "not relevant"}, {"id": "Picture 2"}], ["Picture 2"]),
    ],
)
def test_judgements_in_words(items: object, kept: list[str]) -> None:
    _, action = parse(call("memorise", {"summarize": "s", "memorize": items}))
    assert [one.label for one in action.judgements if one.useful] == kept
