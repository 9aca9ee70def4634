"""What each form of reply gives; every broken form has a defined result."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import (
    PARSERS,
    ParsedReply,
    create_reply_parser,
    format_answer,
    format_reward,
    format_tool_call,
    last_number,
    parse_reply,
)
from llm_envs.types import ToolCall

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "37*24"}}\n</tool_call>'
PARSED_CALL = ToolCall("calculator", {"expression": "37*24"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ParsedReply(None, "", (), None, ())),
        (" hello ", ParsedReply(None, "hello", (), None, ())),
        ("<answer>888</answer>", ParsedReply(None, "<answer>888</answer>", (), "888", ())),
        ("It is <answer>\n 888 \n</answer>.", ParsedReply(None, "It is <answer>\n 888 \n</answer>.", (), "888", ())),
        ("<think>hm</think>\n<answer>2</answer>", ParsedReply("hm", "<answer>2</answer>", (), "2", ())),
        ("hm</think><answer>2</answer>", ParsedReply("hm", "<answer>2</answer>", (), "2", ())),
        ("<think>a</think>x<think>b</think>y", ParsedReply("a\nb", "xy", (), None, ())),
        ("<think><answer>1</answer></think>", ParsedReply("<answer>1</answer>", "", (), None, ())),
        (CALL, ParsedReply(None, "", (PARSED_CALL,), None, ())),
        (f"I ask. {CALL} Now.", ParsedReply(None, "I ask.  Now.", (PARSED_CALL,), None, ())),
        (CALL + "\n" + CALL, ParsedReply(None, "", (PARSED_CALL, PARSED_CALL), None, ())),
        (CALL + "<answer>1</answer>", ParsedReply(None, "<answer>1</answer>", (PARSED_CALL,), "1", ())),
        ('<tool_call>{"name": "now"}</tool_call>', ParsedReply(None, "", (ToolCall("now", {}),), None, ())),
        (
            '<tool_call>{"id": "c1", "name": "f", "arguments": {}, "extra": 0}</tool_call>',
            ParsedReply(None, "", (ToolCall("f", {}, "c1"),), None, ()),
        ),
        (
            '<tool_call>{"name": "f", "arguments": {"x": "<answer>1</answer>"}}</tool_call>',
            ParsedReply(None, "", (ToolCall("f", {"x": "<answer>1</answer>"}),), None, ()),
        ),
        ("<ANSWER>1</ANSWER>", ParsedReply(None, "<ANSWER>1</ANSWER>", (), None, ())),
        ("answer>1</answer", ParsedReply(None, "answer>1</answer", (), None, ())),
    ],
)
def test_sound_forms(text, expected):
    assert parse_reply(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<answer>1", "<answer> is not closed"),
        ("1</answer>", "</answer> stands without"),
        ("</answer><answer>1</answer>", "</answer> stands without"),
        ("<answer>1</answer></answer>", "</answer> stands without"),
        ("<answer><answer>1</answer></answer>", "</answer> stands without <answer>"),
        ("<answer></answer>", "the answer is empty"),
        ("<answer> \n </answer>", "the answer is empty"),
        ("<answer>...</answer><answer></answer>", "the answer is empty"),
        ("<answer>1</answer> no, <answer>2</answer>", "two answers"),
        ("<think>" + CALL + "</think>", "close </think> before calling"),
        ("<think>hm", "<think> is not closed"),
        ("<think>a</think></think><answer>1</answer>", "</think> stands without"),
        ("<answer>1</answer><think>", "<think> is not closed"),
        ("<tool_call>", "<tool_call> is not closed"),
        ("</tool_call>", "</tool_call> stands without"),
        ("<tool_call></tool_call>", "a value is missing"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "f"} and more</tool_call>', "extra text"),
        ("<tool_call>{'name': 'f'}</tool_call>", "not valid JSON"),
        ('<tool_call>"f"</tool_call>', "not a string"),
        ("<tool_call>7</tool_call>", "not a number"),
        ("<tool_call>null</tool_call>", "not null"),
        ("<tool_call>{}</tool_call>", '"name"'),
        ('<tool_call>{"name": 3}</tool_call>', '"name"'),
        ('<tool_call>{"name": ""}</tool_call>', '"name"'),
        ('<tool_call>{"name": "f", "id": 5}</tool_call>', '"id"'),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "f", "arguments": {"x": -Infinity}}</tool_call>', "Infinity"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "1e999 is too large"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "not valid JSON"),
        (
            '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 40 + "]" * 40 + "}}</tool_call>",
            "nested more than 32",
        ),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
    ],
)
def test_broken_forms_are_named_and_give_neither_call_nor_answer(text, problem):
    reply = parse_reply(text)
    assert any(problem in named for named in reply.problems), reply.problems
    assert reply.answer is None
    assert reply.tool_calls == ()
    assert all(named.isascii() and named.isprintable() for named in reply.problems)


def test_an_open_thought_is_thinking_to_the_end():
    assert parse_reply("<think>so <answer>1</answer>").thinking == "so <answer>1</answer>"


@pytest.mark.parametrize("broken", ["<tool_call>{</tool_call>", "<tool_call>"])
def test_a_sound_call_beside_a_broken_one_is_kept_and_the_reply_earns_nothing(broken):
    reply = parse_reply(CALL + broken)
    assert (reply.tool_calls, reply.problems, reply.quirks) == ((PARSED_CALL,), (), ("dropped_call",))
    assert format_reward(reply, require=("tool_calls",)) == 0.0
    assert parse_reply("</answer>" + CALL + broken).tool_calls == ()
    assert parse_reply(CALL + "<tool_call>{</tool_call>" * 9).tool_calls == ()


def test_a_call_in_thinking_is_counted_and_run_only_if_the_parser_accepts_it():
    text = f"<think>I ask. {CALL}</think><answer>1</answer>"
    reply = parse_reply(text)
    assert (reply.tool_calls, reply.answer, reply.quirks) == ((), "1", ("call_in_thinking",))
    for name in ("auto", "hermes"):
        accepted = create_reply_parser(name, calls_in_thinking=True)(text)
        assert accepted == reply._replace(tool_calls=(PARSED_CALL,))
    harmony = '<|channel|>analysis<|message|><tool_call>{"name": "f"}</tool_call><|end|>'
    assert create_reply_parser("auto", calls_in_thinking=True)(harmony).tool_calls == (ToolCall("f", {}),)
    with pytest.raises(InvalidConfigError, match="qwen"):
        create_reply_parser("qwen")


def test_few_problems_are_named_however_many_there_are():
    broken = "".join(f'<tool_call>{{"name": "f", "arguments": {{"x": 1e{999 + i}}}}}</tool_call>' for i in range(1000))
    assert len(parse_reply(broken).problems) == 8
    assert len(parse_reply("</answer>" * 1000).problems) == 1


def test_canonical_forms_read_back():
    text = format_tool_call("calculator", expression="37*24")
    assert text == CALL
    arguments = {"text": 'quote " brace } tag </answer> 中\n', "n": 3, "items": [1, {"a": None}]}
    assert parse_reply(format_tool_call("f", **arguments)).tool_calls == (ToolCall("f", arguments),)
    assert parse_reply(format_answer(42)).answer == "42"


ANY_TEXT = st.text(st.characters(exclude_categories=()))
PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f"}',
        "x",
        " ",
        "<",
        "{",
        "\ud800",
    ]
)


@given(st.one_of(ANY_TEXT, st.lists(PIECES, max_size=12).map("".join)))
def test_any_text_is_parsed(text):
    reply = parse_reply(text)
    if reply.problems:
        assert reply.answer is None
        assert reply.tool_calls == ()
    if reply.answer is not None:
        assert "<answer>" in text
        assert reply.answer == reply.answer.strip() != ""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_json_arguments_read_back(value):
    call = "<tool_call>" + json.dumps({"name": "f", "arguments": {"value": value}}) + "</tool_call>"
    if "think>" not in call and "tool_call>" not in call[11:-12]:
        assert parse_reply(call).tool_calls[0].arguments == {"value": value}


UNITS = ["<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<answer></answer>"]
UNITS += [
    "<think></think>",
    "<tool_call></tool_call>",
    '<tool_call>{"name":"f"}</tool_call>',
    "<",
    "1,",
    "[",
    "a </think> ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit):
    def seconds(n):
        text = unit * n
        best = 1e9
        for _ in range(3):
            started = time.thread_time()
            parse_reply(text)
            last_number(text)
            best = min(best, time.thread_time() - started)
        return best

    # Four times the text: 4 if linear, 16 if quadratic. Below a tenth of a second nothing is measured.
    assert seconds(40_000) < max(0.1, 9 * seconds(10_000))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", None),
        ("none here", None),
        ("1 then 2", "2"),
        ("it is -3.5.", "-3.5"),
        ("total 1,234,567 items", "1234567"),
        ("37*24=888", "888"),
        ("+7", "+7"),
        ("x-1-", "-1"),
        ("12.", "12"),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_what_the_table_says_of_other_tags_calls_without_arguments_and_the_last_number():
    assert parse_reply("<answer><b>5</b></answer>").answer == "<b>5</b>"
    assert parse_reply("<answer>5</div></answer>").answer == "5</div>"
    assert parse_reply("<answer><think>5</answer>").problems
    assert parse_reply('<tool_call>{"name": "f"}</tool_call>').tool_calls == (ToolCall("f", {}),)
    for arguments in ("1", "[1]", '"x"'):
        assert parse_reply(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>').problems
    assert [PARSERS["last_number"](text).answer for text in ("-3/4", "1e3", "-3", "1,234.5")] == [
        "4",
        "3",
        "-3",
        "1234.5",
    ]
