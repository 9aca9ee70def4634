"""Calls written in tags: Qwen3-Coder and Qwen3.5, GLM, Muse's ATEM.

Tags contain strings without quotes, so `1` and `"1"` look the same: every JSON value except a string is decoded. (A
tool with a string parameter converts a number back.) A value must not contain the format's own tags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from llm_envs.parsers.json_calls import Calls, decode_value, expect, skip_space
from llm_envs.parsers.reply import BrokenCallError
from llm_envs.types import ToolCall

__all__ = ["ATEM", "XML_INVOKE", "invoke_style", "read_glm", "read_invokes", "read_qwen3_coder"]

_GLM_NAME = re.compile(r'\s*([^\s<>{}\[\]()"\',;]{1,200})\s*')
_GLM_KEY = re.compile(r"<arg_key>([^<>\n]{1,200})</arg_key>\s*<arg_value>")
_GLM_TAG = re.compile(r"</?(?:arg_key|arg_value|tool_call)>")


@dataclass(frozen=True, slots=True)
class TagStyle:
    """The tags in which one family writes functions and parameters."""

    function: re.Pattern[str]
    """Opening tag of a function; its group 1 is the name."""
    function_end: str
    parameter: re.Pattern[str]
    """Opening tag of a parameter; its group 1 is the key. A group 2 of "true" means that the value is a string."""
    parameter_end: str
    tag: re.Pattern[str]
    """Any tag of the family; it ends a value."""
    is_stripped: bool = False
    """Whether to remove a line break at either end of a value."""


def invoke_style(prefix: str) -> TagStyle:
    """Return the style of `<invoke name="f"><parameter name="a">1</parameter></invoke>`, with a prefix in each tag."""
    quoted = r'"([^\s"<>]{1,200})"'
    return TagStyle(
        function=re.compile(rf"<{prefix}invoke name={quoted}>"),
        function_end=f"</{prefix}invoke>",
        parameter=re.compile(rf'<{prefix}parameter name={quoted}(?: string="(true|false)")?>'),
        parameter_end=f"</{prefix}parameter>",
        tag=re.compile(rf"</?{prefix}(?:invoke|parameter|function_calls)\b"),
    )


QWEN = TagStyle(
    function=re.compile(r"<function=([^\s<>]{1,200})>"),
    function_end="</function>",
    parameter=re.compile(r"<parameter=([^<>\n]{1,200})>"),
    parameter_end="</parameter>",
    tag=re.compile(r"</?(?:function|parameter|tool_call)\b"),
    is_stripped=True,
)
ATEM, XML_INVOKE = invoke_style("atem:"), invoke_style("")


def read_qwen3_coder(text: str, position: int) -> tuple[Calls, int]:
    """Read `<function=f><parameter=a>1</parameter></function></tool_call>`."""
    call, end = _read_function(text, skip_space(text, position), QWEN)
    return [call], expect(text, end, "</tool_call>")


def read_invokes(text: str, position: int, style: TagStyle, closing: str) -> tuple[Calls, int]:
    """Read one or more functions in tags, up to the block's closing tag."""
    calls: Calls = []
    position = skip_space(text, position)
    while not text.startswith(closing, position):
        call, position = _read_function(text, position, style)
        calls.append(call)
        position = skip_space(text, position)
    if not calls:
        raise BrokenCallError("the list of tool calls is empty")
    return calls, position + len(closing)


def _read_function(text: str, position: int, style: TagStyle) -> tuple[ToolCall, int]:
    head = style.function.match(text, position)
    if head is None:
        raise BrokenCallError("a tool call must start with the tag of its function")
    arguments: dict[str, Any] = {}
    position = skip_space(text, head.end())
    while (match := style.parameter.match(text, position)) is not None:
        end = style.tag.search(text, match.end())
        if end is None or not text.startswith(style.parameter_end, end.start()):
            raise BrokenCallError(f"a parameter of the tool call is not closed by {style.parameter_end}")
        value = text[match.end() : end.start()]
        if style.is_stripped:
            value = value.removeprefix("\n").removesuffix("\n")
        is_text = match.re.groups > 1 and match[2] == "true"
        _put(arguments, match[1], value if is_text else decode_value(value))
        position = skip_space(text, end.start() + len(style.parameter_end))
    return ToolCall(head[1], arguments), expect(text, position, style.function_end)


def read_glm(text: str, position: int) -> tuple[Calls, int]:
    """Read `name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`."""
    head = _GLM_NAME.match(text, position)
    if head is None:
        raise BrokenCallError("a tool call must start with the name of its function")
    arguments: dict[str, Any] = {}
    position = head.end()
    while (match := _GLM_KEY.match(text, position)) is not None:
        end = _GLM_TAG.search(text, match.end())
        if end is None or end.group() != "</arg_value>":
            raise BrokenCallError("an argument of the tool call is not closed by </arg_value>")
        _put(arguments, match[1].strip(), decode_value(text[match.end() : end.start()]))
        position = skip_space(text, end.end())
    return [ToolCall(head[1], arguments)], expect(text, position, "</tool_call>")


def _put(arguments: dict[str, Any], key: str, value: Any) -> None:
    if key in arguments:
        raise BrokenCallError(f"the argument {key[:20]!r} stands twice in one tool call")
    arguments[key] = value
