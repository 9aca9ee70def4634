"""Extractors, the parsers made of them, the format reward, and writing calls back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import (
    FORMATTERS,
    PARSERS,
    Fenced,
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
from llm_envs.types import ToolCall

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ("", None),
        ("\\boxed{7}", "7"),
        ("\\boxed {7}", "7"),
        ("\\fbox{ 7 }", "7"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{a \\} b}", "a \\} b"),
        ("{ \\boxed{7}", "7"),
        ("} \\boxed{7}", "7"),
        ("\\boxed{1} \\boxed{2", "1"),
        ("\\boxed{ \\boxed{2}", "2"),
        ("\\boxed{1{}", None),
        ("\\boxed{}", ""),
        ("\\\\boxed{7}", None),
        ("boxed{7}", None),
    ],
)
def test_the_last_complete_box(text, boxed):
    assert extract_boxed(text) == boxed


def test_fenced_blocks():
    text = "a\n```Python title=x\nb\n\nc\n```\n~~~\n```\n~~~\n   ```js\nd\n    ```\n   ```\n```\nopen"
    assert fenced_blocks(text) == (Fenced("python", "b\n\nc"), Fenced("", "```"), Fenced("js", "d\n    ```"))
    assert fenced_blocks("```\n```") == (Fenced("", ""),)
    assert fenced_blocks("x ```\ny\n```") == ()


def test_xml_fields():
    text = "<plan> a </plan><code>b</code><x>c</x><x>d</x><y><z>e</z></y><w>"
    assert xml_fields(text, ["plan", "code", "none"]) == {"plan": "a", "code": "b"}
    assert xml_fields(text, ["x"]) == {}  # twice
    assert xml_fields(text, ["y"]) == {"y": "<z>e</z>"}
    assert xml_fields(text, ["y", "z"]) == {}  # one in the other
    assert xml_fields(text, ["w", "plan"]) == {"plan": "a"}  # not closed
    assert xml_fields("<a>1</a></a>", ["a"]) == {}


def test_an_answer_parser_takes_what_the_function_finds():
    parse = create_answer_parser(last_number)
    assert parse("<think>1</think>2 and 3") == ParsedReply("1", "2 and 3", (), "3", ())
    assert parse("none").answer is None
    beside_calls = create_answer_parser(extract_boxed, base=parse_reply)
    assert beside_calls(CALL + "\\boxed{7}") == ParsedReply(None, "\\boxed{7}", (ToolCall("f", {}),), "7", ())
    assert beside_calls("<answer>1</answer>").answer is None
    final = create_answer_parser(str.strip, base=PARSERS["harmony"])
    reply = final("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|> b <|return|>")
    assert reply == ParsedReply("a", "b", (), "b", ())


def test_what_the_function_raises_is_a_problem():
    reply = create_answer_parser(lambda text: text[5], base=parse_reply)(CALL + "x")
    assert reply == ParsedReply(None, "x", (), None, ("the answer cannot be read: IndexError",))
    assert create_answer_parser(lambda text: " ")("x").problems == ("the answer is empty",)


def test_fenced_code_calls_a_tool():
    parse = create_fenced_parser("Python", tool="run", argument="source")
    reply = parse("<think>```python\n0\n```</think>First:\n```python\n1\n```\n```sh\nls\n```\n```python\n2\n```\nEnd.")
    assert reply.tool_calls == (ToolCall("run", {"source": "1"}), ToolCall("run", {"source": "2"}))
    assert reply.content == "First:\n\n```sh\nls\n```\n\nEnd."
    assert reply.answer is None
    assert parse("```python\n1").problems == ("a code fence is not closed",)


def test_a_react_input_may_be_text_where_it_has_a_name():
    parse = create_react_parser(input_argument="query")
    assert parse("Action: search\nAction Input: Paris, now").tool_calls == (
        ToolCall("search", {"query": "Paris, now"}),
    )
    assert parse('Action: f\nAction Input: {"x": 1}').tool_calls == (ToolCall("f", {"x": 1}),)
    assert parse("Action: f\nAction Input: {x}").problems != ()


def test_tags_of_ones_own():
    parse = create_xml_parser(["plan"], thinking_tag="reasoning", call_tag="call", answer_tag="result")
    reply = parse('<reasoning>r</reasoning><plan>p</plan><call>{"name": "f"}</call><result>7</result>')
    assert reply == ParsedReply("r", "<plan>p</plan><result>7</result>", (ToolCall("f", {}),), "7", ())
    assert xml_fields(reply.content, ["plan"]) == {"plan": "p"}
    assert parse("<plan>p").problems == ("<plan> is not closed by </plan>",)
    assert parse("<plan>p</plan><plan>q</plan>").problems == ("<plan> stands twice",)
    assert parse("<plan><result>7</plan></result>").problems != ()
    assert parse("<think><answer>1</answer>").content == "<think><answer>1</answer>"
    assert create_xml_parser(call_tag=None)(CALL).content == CALL
    with pytest.raises(InvalidConfigError, match="not a valid tag name"):
        create_xml_parser(["a b"])
    with pytest.raises(InvalidConfigError, match="given twice"):
        create_xml_parser(["answer"])


@pytest.mark.parametrize(
    ("text", "require", "reward"),
    [
        ("<answer>1</answer>", ("answer",), 1.0),
        ("<answer>1</answer>", ("answer", "thinking"), 0.0),
        ("<think>a</think><answer>1</answer>", ("answer", "thinking"), 1.0),
        ("<think></think><answer>1</answer>", ("answer", "thinking"), 0.0),
        (CALL, ("tool_calls",), 1.0),
        (CALL, ("answer",), 0.0),
        (CALL + "<answer>1</answer>", ("answer",), 0.0),
        (CALL + "<answer>1</answer>", ("answer", "tool_calls"), 1.0),
        ("text", ("content",), 1.0),
        ("", (), 1.0),
        ("<answer>1", (), 0.0),
    ],
)
def test_format_reward(text, require, reward):
    assert format_reward(parse_reply(text), require=require) == reward


BROKEN = {
    "an unclosed answer": "<think>a</think><answer>1",
    "unclosed thinking": "<think>a<answer>1</answer>",
    "thinking closed without being opened, after thinking": "<think>a</think>b</think><answer>1</answer>",
    "an unclosed call": "<think>a</think><answer>1</answer><tool_call>{}",
    "crossed tags": "<think>a<answer></think>1</answer>",
    "a crossed call": "<think>a<tool_call></think></tool_call><answer>1</answer>",
    "only a call inside thinking": f"<think>a{CALL}</think>",
    "a call inside the answer": f"<think>a</think><answer>1{CALL}</answer>",
    "two answers": "<think>a</think><answer>1</answer><answer>2</answer>",
    "an answer in thinking alone": "<think>a<answer>1</answer></think>",
    "an empty answer": "<think>a</think><answer> </answer>",
    "nested answers": "<think>a</think><answer><answer>1</answer></answer>",
    "nested thinking": "<think><think>a</think><answer>1</answer>",
    "a broken call": "<think>a</think><answer>1</answer><tool_call>{'name': 'f'}</tool_call>",
    "a key twice": '<think>a</think><answer>1</answer><tool_call>{"name": "f", "name": "f"}</tool_call>',
    "two formats": f"<think>a</think><answer>1</answer>{CALL}[TOOL_CALLS]f[ARGS]{{}}",
}


@pytest.mark.parametrize("form", BROKEN)
def test_the_format_reward_never_pays_for_a_broken_form(form):
    reply = parse_reply(BROKEN[form])
    assert format_reward(reply) == 0.0
    assert format_reward(reply, require=("tool_calls",)) == 0.0
    assert format_reward(parse_reply("<think>a</think><answer>1</answer>"), require=("thinking", "answer")) == 1.0


def test_an_unknown_part_cannot_be_required():
    with pytest.raises(InvalidConfigError, match="known are thinking, content, tool_calls, answer"):
        format_reward(parse_reply(""), require=("style",))


def test_the_format_is_detected():
    assert detect_format("no marks") is None
    assert detect_format("<think>a</think><answer>1</answer>") is None
    assert detect_format(CALL) == "hermes"
    assert detect_format("[TOOL_CALLS]broken") == "mistral"
    assert detect_format(CALL + "[TOOL_CALLS]f{}") == "hermes"  # the first of two


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
WITHOUT_QUOTES = ("kimi_k2", "lfm2")
"""Formats that write names as they are, and no ids of ours."""


@pytest.mark.parametrize("name", FORMATTERS)
@given(st.data())
def test_calls_that_are_written_read_back(name, data):
    keys = WORDS if name in WITHOUT_QUOTES else st.text()
    names, ids = (WORDS, st.none()) if name in WITHOUT_QUOTES else (st.text(min_size=1), st.none() | st.text())
    call = st.builds(ToolCall, names, st.dictionaries(keys, JSON, max_size=3), ids)
    calls = data.draw(st.lists(call, min_size=1, max_size=3))
    text = FORMATTERS[name](calls)
    if name == "kimi_k2":
        calls = [replace(call, id=f"functions.{call.name}:{index}") for index, call in enumerate(calls)]
    assert PARSERS[name](text).tool_calls == tuple(calls)
    assert parse_reply(text).tool_calls == tuple(calls)
