# ruff: noqa: RUF001, SIM905 - the wide bars are DeepSeek's own; one line of markers a family reads better than a list
"""No text makes a parser raise, return something ill-formed, or take long."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_envs.parsers import (
    DROPPED_CALL,
    PARSERS,
    QUIRKS,
    ParsedReply,
    create_answer_parser,
    create_fenced_parser,
    create_react_parser,
    create_xml_parser,
    detect_format,
    extract_boxed,
    fenced_blocks,
    format_reward,
    last_number,
    parse_reply,
    xml_fields,
)
from llm_envs.parsers.formats import _read_any
from llm_envs.types import ToolCall

VARIANTS = {
    **PARSERS,
    "xml with fields": create_xml_parser(["reasoning", "plan"]),
    "react with text": create_react_parser(input_argument="x"),
    "fenced as a tool": create_fenced_parser("python", "run"),
    "boxed beside calls": create_answer_parser(extract_boxed, base=parse_reply),
}
EXTRACTORS: dict[str, Callable[[str], object]] = {
    "extract_boxed": extract_boxed,
    "fenced_blocks": fenced_blocks,
    "last_number": last_number,
    "xml_fields": lambda text: xml_fields(text, ["answer", "plan"]),
    "detect_format": detect_format,
}
MARKERS = (
    "<think> </think> <answer> </answer> <tool_call> </tool_call> <function=f> </function> <parameter=a> </parameter> "
    "<arg_key> </arg_key> <arg_value> </arg_value> <|python_tag|> f.call( <|python_start|> <|python_end|> [TOOL_CALLS] "
    "[ARGS] [CALL_ID] [THINK] [/THINK] <｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> "
    "<｜tool▁call▁end｜> <｜tool▁sep｜> <｜DSML｜function_calls> </｜DSML｜function_calls> "
    "<|start|>assistant <|channel|> "
    "<|message|> <|constrain|> <|end|> <|call|> <|return|> analysis final commentary to=functions.f to=self <|eom|> "
    "<|START_THINKING|> <|END_THINKING|> <|START_ACTION|> <|END_ACTION|> <|START_RESPONSE|> <|END_RESPONSE|> "
    '<|tool_call_start|> <|tool_call_end|> <|tool_call> <tool_call|> call:f{ <|"|> <|channel>thought <channel|> '
    "<atem:function_calls> </atem:function_calls> </invoke> <|tool_calls_section_begin|> "
    "<|tool_calls_section_end|> <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{} "
    "<minimax:tool_call> </minimax:tool_call> <tool_calls> </tool_calls> <seed:tool_call> </seed:tool_call> "
    "<seed:think> </seed:think> <function_calls> </function_calls> f() <|tool_call|> functools[ <TOOLCALL> "
    "</TOOLCALL> <|tools_prefix|> <|tools_suffix|> <longcat_tool_call> </function> <|action_start|> "
    "<|action_end|> <|plugin|> <|function_call|> <start_function_call> <end_function_call> <escape> "
    "<|open|>tools<|sep|> <|close|>tools<|sep|> <|open|>think<|sep|> <|close|>think<|sep|> <tool_sep> </param> "
    "<plan> </plan> \\boxed{ \\fbox{ ``` ~~~ [f( a= f <|im_end|>"
).split(" ")
PIECES = [
    *MARKERS,
    *('<invoke name="f">', "Thought:", "\nAction: f", "\nAction Input: {}", "\nObservation:", "\nFinal Answer: 1"),
    *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": [1]}}', "[f(a=1)]", "{}", "{a:1}"),
    *("{", "}", "[", "]", "(", ")", '"', "'", '"""', "\\", ",", ":", ";", "=", " ", "\n", "<", ">", "|", "`"),
    *("0", "-1.5e9", "1e999", "NaN", "null", "True", "x", "é", "🙂", "\ud800", "\x00", "\u2028"),
]
ANY_TEXT = st.text(st.characters(exclude_categories=()))
HOSTILE = st.one_of(ANY_TEXT, st.lists(st.one_of(st.sampled_from(PIECES), ANY_TEXT), max_size=14).map("".join))


def check(reply: ParsedReply) -> None:
    assert type(reply) is ParsedReply
    assert reply.thinking is None or type(reply.thinking) is str
    assert isinstance(reply.content, str)
    assert reply.content == reply.content.strip()
    assert len(reply.problems) <= 8
    assert all(problem and problem.isascii() and problem.isprintable() for problem in reply.problems)
    assert format_reward(reply, require=()) == float(not reply.problems and DROPPED_CALL not in reply.quirks)
    assert set(reply.quirks) <= QUIRKS.keys()
    if reply.problems:
        assert reply.answer is None
        assert reply.tool_calls == ()
    if reply.answer is not None:
        assert reply.answer.strip()
    for call in reply.tool_calls:
        assert type(call) is ToolCall
        assert call.name
        assert call.id is None or type(call.id) is str
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments


@settings(max_examples=400)
@given(HOSTILE)
def test_any_text_is_parsed_by_every_parser(text: str) -> None:
    for parse in VARIANTS.values():
        check(parse(text))
    for extract in EXTRACTORS.values():
        extract(text)


PLAIN = st.sampled_from(
    [
        *("<answer>", "</answer>", "<tool_call>", "</tool_call>", "[THINK]", "[/THINK]", "x", " ", "{"),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {"a": ":"}}', "[f(a=1)]"),
        '{"name": "f", "arguments": {"a": 1, "a": 2}}',
    ]
)


@settings(max_examples=1000)
@given(st.lists(PLAIN, max_size=6).map("".join))
def test_the_quick_way_gives_what_the_long_way_gives(text: str) -> None:
    assert parse_reply(text) == _read_any(text).finish()


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join), st.sampled_from(list(VARIANTS)))
def test_thinking_around_any_text_hides_it(text: str, name: str) -> None:
    """What stands in `<think>` alone is never an answer or a call."""
    if (
        name in ("gemma4", "cohere", "harmony", "muse", "seed_oss", "kimi_k3", "longcat")
        or "think>" in text
        or "THINK" in text
    ):
        return
    reply = VARIANTS[name](f"<think>{text}</think>")
    assert reply.answer is None
    assert reply.tool_calls == ()


UNITS = [
    *PIECES,
    *("<think></think>", "<answer></answer>", "<tool_call></tool_call>", "[THINK][/THINK]", "\\boxed{}", "```\n"),
    *('<tool_call>{"name": "f"}</tool_call>', "<tool_call>{</tool_call>", '<tool_call>["', "<tool_call>f{"),
    *("<tool_call>f<arg_key>a</arg_key><arg_value>", "<tool_call><function=f><parameter=a>", "1,", '{"a":'),
    *('{"name":"f","parameters":{}};', "<|python_tag|>{", "<|python_tag|>f.call(a='", "<|tool_call_start|>[f(a='"),
    *("[TOOL_CALLS]f{}", "[TOOL_CALLS]["),
    *("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>",),
    *("<|channel|>final<|message|>", "<|message|><|eom|>", "<|channel|>analysis<|message|><|end|><|start|>assistant"),
    *('<|START_ACTION|>[{"tool_name":"f"}]<|END_ACTION|>', '<|tool_call>call:f{a:<|"|>', "Action:\n", "a ", " \n"),
    *(
        "<seed:tool_call><function=f><parameter=a>\nx</parameter>y",
        "<tool_calls>[",
        '<function name="f"><param name="a">',
    ),
    *(
        "<tool_call><function=f><parameter=a>\n</parameter>\n",
        '{"a": [1,],}',
        '<tool_call>{"name": "f", "arguments": {"a": "',
    ),
    *("Action: f\nAction Input: {}\n", "<plan></plan>", "f(a=1), ", "<|channel>thought<channel|>"),
]


def seconds(parse: Callable[[str], object], text: str) -> float:
    """Return what this thread computed: the machine may be busy, and so may threads that another test has left."""
    gc.disable()  # what other tests have left is not to be gone through here
    try:
        started = time.thread_time()
        parse(text)
        return time.thread_time() - started
    finally:
        gc.enable()


def slowness() -> float:
    """Return how many times as long this machine computes as one that takes 0.6 ms for this, or 1 if it is quicker."""

    def search(text: str) -> None:
        for _ in re.finditer(r"<(\w+)>|[{}\[\]]|\w+", text):
            pass

    return max(1.0, min(seconds(search, "<a> {b: [1, 2]} and so on\n" * 100) for _ in range(5)) / 0.0006)


@pytest.mark.alone  # computing takes longer where two cores are one and its other half computes too
@pytest.mark.parametrize("name", [*VARIANTS, *EXTRACTORS])
def test_ten_thousand_characters_take_ten_milliseconds_at_most(name: str) -> None:
    parse = VARIANTS[name] if name in VARIANTS else EXTRACTORS[name]
    for unit in UNITS:
        text = unit * (10_000 // len(unit))
        if seconds(parse, text) > 0.01:  # the machine may be busy: the best of several counts
            assert any(seconds(parse, text) <= 0.01 * slowness() for _ in range(10)), unit


BEFORE_AND_AFTER = [
    ("", ""),
    ("<think>", "</think>"),
    ('<tool_call>{"name": "f", "arguments": {"a": "', ""),
    ("[f(a='", ""),
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    """Ten times the text takes about ten times as long, by `parse_reply` and by every parser that knows the unit."""
    others = [VARIANTS[name] for name in ("react", "fenced as a tool", "boxed", "xml with fields", "harmony", "muse")]
    for index, parse in enumerate([parse_reply, *others]):
        for before, after in BEFORE_AND_AFTER if index == 0 else [("", "")]:
            short = before + unit * (20_000 // len(unit)) + after
            long = before + unit * (200_000 // len(unit)) + after
            if seconds(parse, long) > 0.06:  # that is 3 ms for 10,000 characters: worth a closer look
                best = min(seconds(parse, short) for _ in range(5))
                assert min(seconds(parse, long) for _ in range(3)) < 30 * best + 0.05, (parse, before)
