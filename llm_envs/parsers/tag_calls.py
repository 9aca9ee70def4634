"""Calls written in tags: Qwen3-Coder and Qwen3.5, Seed-OSS, MiniMax M2, GLM, Hunyuan 3, Muse's ATEM, Kimi K3.

Tags contain strings without quotes, so `1` and `"1"` look the same: every value that JSON or Python can read is
decoded, except strings. `TagArguments` keeps the text as well, for a tool whose parameter is a string. A value ends at
the first closing tag before the next parameter or the end of the function; if it began with a line break, at the first
such tag on its own line. So code that quotes a closing tag is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from llm_envs.parsers.json_calls import Calls, decode_value, expect, skip_space
from llm_envs.parsers.python_calls import decode_literal
from llm_envs.parsers.reply import BrokenCallError
from llm_envs.types import ToolCall

__all__ = [
    "ATEM",
    "GLM",
    "KIMI_K3",
    "MINICPM",
    "QWEN",
    "XML_INVOKE",
    "TagArguments",
    "hunyuan_style",
    "invoke_style",
    "read_function",
    "read_invokes",
    "typed_arguments",
    "typed_calls",
]

_NAME = r"[^\s<>{}\[\]()\"',;]{1,200}"


class TagArguments(dict[str, Any]):
    """The arguments of a call in tags, decoded, and the text of each as the model wrote it."""

    __slots__ = ("texts",)
    texts: dict[str, str]
    """The text of each decoded argument, by name."""


def typed_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call's arguments, with the model's own text for each parameter that is a string.

    In tags `007` or `true` may be text; only the tool knows.

    Args:
        arguments: The arguments of a parsed call.
        parameters: JSON Schema of the tool's arguments, of type object.
    """
    if not isinstance(arguments, TagArguments) or not arguments.texts:
        return arguments
    properties = parameters.get("properties") or {}
    texts = {
        name: text for name, text in arguments.texts.items() if (properties.get(name) or {}).get("type") == "string"
    }
    return {**arguments, **texts}


def typed_calls(calls: Iterable[ToolCall], tools: Iterable[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    """Return calls with `typed_arguments`; `tools` are JSON Schemas in OpenAI's shape."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return tuple(replace(call, arguments=typed_arguments(call.arguments, schemas.get(call.name, {}))) for call in calls)


def _decode(text: str) -> Any:
    """Return the value of a text without quotes: a JSON value but no string, a Python literal, or else the text."""
    stripped = text.strip()
    if not stripped or stripped[0] not in "-0123456789{[tfnTFN":
        return text
    value = decode_value(stripped)
    if value is stripped:
        value = decode_literal(stripped)
    return text if value is stripped else value


@dataclass(frozen=True)
class TagStyle:
    """The tags in which one family writes functions and parameters, as regular expressions."""

    function: str
    """Opening tag of a function; its group 1 is the name."""
    function_end: str
    """Closing tag, as it is."""
    parameter: str
    """Opening tag of a parameter; its group 1 is the key. A group 2 of "true" or "string": the value is a string."""
    parameter_end: str
    """Closing tag, as it is."""
    is_stripped: bool = False
    """Whether to remove a line break at either end of a value."""
    has_cdata: bool = False
    """Whether a string may stand in `<![CDATA[...]]>`."""

    @cached_property
    def head(self) -> re.Pattern[str]:
        """Matches the opening tag of a function."""
        return re.compile(self.function)

    @cached_property
    def key(self) -> re.Pattern[str]:
        """Matches the opening tag of a parameter."""
        return re.compile(self.parameter)

    @cached_property
    def value_end(self) -> re.Pattern[str]:
        """Finds the end of a value (group 1, after its "<"), or the next opening tag, which no value may contain."""
        return self._value_end("")

    @cached_property
    def value_end_on_a_line(self) -> re.Pattern[str]:
        """The same for a value that begins with a line break: both tags begin a line."""
        return self._value_end("\n")

    def _value_end(self, before: str) -> re.Pattern[str]:
        opening = re.sub(r"\((?!\?)", "(?:", self.parameter)
        end = re.escape(self.parameter_end)
        then = rf"(?=\s*+(?:{opening}|{re.escape(self.function_end)}))"
        # Both tags begin with "<", for which a search is fast.
        return re.compile(rf"{before}<(?:({end[1:]}){then}|{opening[1:]})")


def invoke_style(prefix: str) -> TagStyle:
    """Return the style of `<invoke name="f"><parameter name="a">1</parameter></invoke>`, with a prefix in each tag."""
    quoted = r'"([^\s"<>]{1,200})"'
    return TagStyle(
        function=rf"<{prefix}invoke name={quoted}>",
        function_end=f"</{prefix}invoke>",
        parameter=rf'<{prefix}parameter name={quoted}(?: string="(true|false)")?>',
        parameter_end=f"</{prefix}parameter>",
    )


def hunyuan_style(suffix: str) -> TagStyle:
    """Return Hunyuan 3's style, with a suffix in each tag (":opensource")."""
    return TagStyle(
        function=rf"<tool_call{suffix}>\s*({_NAME})\s*<tool_sep{suffix}>\s*",
        function_end=f"</tool_call{suffix}>",
        parameter=rf"<arg_key{suffix}>([^<>\n]{{1,200}})</arg_key{suffix}>\s*<arg_value{suffix}>",
        parameter_end=f"</arg_value{suffix}>",
    )


QWEN = TagStyle(
    function=r"<function=([^\s<>]{1,200})>",
    function_end="</function>",
    parameter=r"<parameter=([^<>\n]{1,200})>",
    parameter_end="</parameter>",
    is_stripped=True,
)
ATEM, XML_INVOKE = invoke_style("atem:"), invoke_style("")
GLM = TagStyle(
    function=rf"\s*({_NAME})\s*",
    function_end="</tool_call>",
    parameter=r"<arg_key>([^<>\n]{1,200})</arg_key>\s*<arg_value>",
    parameter_end="</arg_value>",
)
MINICPM = TagStyle(
    function=rf'<function name="({_NAME})">',
    function_end="</function>",
    parameter=r'<param name="([^\s"<>]{1,200})">',
    parameter_end="</param>",
    has_cdata=True,
)
KIMI_K3 = TagStyle(
    function=rf'<\|open\|>call tool="({_NAME})"(?: index="\d{{1,9}}")?<\|sep\|>',
    function_end="<|close|>call<|sep|>",
    parameter=r'<\|open\|>argument key="([^"<>]{1,200})" type="([a-z]{1,20})"<\|sep\|>',
    parameter_end="<|close|>argument<|sep|>",
)


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


def read_function(text: str, position: int, style: TagStyle, back: int = 0) -> tuple[Calls, int]:
    """Read one function, whose closing tag ends the block (GLM); it begins `back` characters before the position."""
    call, end = _read_function(text, position - back, style)
    return [call], end


def _read_function(text: str, position: int, style: TagStyle) -> tuple[ToolCall, int]:
    head = style.head.match(text, position)
    if head is None:
        raise BrokenCallError("a tool call must start with the name of its function")
    arguments = TagArguments()
    arguments.texts = texts = {}
    position, key_at, has_types = skip_space(text, head.end()), style.key.match, style.key.groups > 1
    while (match := key_at(text, position)) is not None:
        start = match.end()
        is_on_lines = style.is_stripped and text.startswith("\n", start)
        end = style.value_end_on_a_line.search(text, start) if is_on_lines else None
        if end is None or end[1] is None:
            end = style.value_end.search(text, start)
        if end is None or end[1] is None:
            raise _unclosed(text, start, end, style)
        value = text[start : end.start(1) - 1]
        if style.is_stripped:
            value = value.removeprefix("\n").removesuffix("\n")
        is_text = has_types and match[2] in ("true", "string")
        if style.has_cdata and value.startswith("<![CDATA[") and value.endswith("]]>"):
            value, is_text = value[9:-3], True
        key = match[1].strip()
        if key in arguments:
            raise BrokenCallError(f"the argument {key[:20]!r} stands twice in one tool call")
        arguments[key] = decoded = value if is_text else _decode(value)
        if decoded is not value:
            texts[key] = value
        position = skip_space(text, end.end(1))
    return ToolCall(head[1], arguments), expect(text, position, style.function_end)


def _unclosed(text: str, start: int, opening: re.Match[str] | None, style: TagStyle) -> BrokenCallError:
    """Return the error of a value without an end before the next opening tag, if there is one."""
    if text.find(style.parameter_end, start, len(text) if opening is None else opening.start()) < 0:
        return BrokenCallError(f"a parameter of the tool call is not closed by {style.parameter_end}")
    return BrokenCallError(f"a parameter of the tool call has extra text after {style.parameter_end}")
