"""Calls written in tags: Qwen3-Coder and Qwen3.5, Seed-OSS, MiniMax M2, GLM, Hunyuan 3, Muse's ATEM, Kimi K3.

Tags contain strings without quotes, so `1` and `"1"` look the same: every value that JSON or Python can read is
decoded, except strings. `TagArguments` keeps the text as well, for a tool whose parameter is a string. A value ends at
the first closing tag before the next parameter or the end of the function; if it began with a line break, at the first
such tag on its own line. So code that quotes a closing tag is read.
"""

from __future__ import annotations

import re
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
    "HUNYUAN",
    "KIMI_K3",
    "MINICPM",
    "QWEN",
    "XML_INVOKE",
    "TagArguments",
    "invoke_style",
    "read_function",
    "read_invokes",
]

_NAME = r"[^\s<>{}\[\]()\"',;]{1,200}"


class TagArguments(dict[str, Any]):
    """The arguments of a call in tags, decoded, and the text of each as the model wrote it."""

    __slots__ = ("texts",)

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}

    def put(self, key: str, text: str, *, is_text: bool = False) -> None:
        """Add an argument.

        Args:
            key: Its name.
            text: The text of the value.
            is_text: Whether the format marks the value as a string.

        Raises:
            BrokenCallError: If the argument is there already, or is nested too deeply.
        """
        if key in self:
            raise BrokenCallError(f"the argument {key[:20]!r} stands twice in one tool call")
        value = text if is_text else decode_value(text)
        self[key] = decode_literal(text) if value is text and not is_text else value
        self.texts[key] = text


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
        """Finds the end of a value (group 1), or the next opening tag, which no value may contain."""
        return self._value_end("")

    @cached_property
    def value_end_on_a_line(self) -> re.Pattern[str]:
        """The same for a value that begins with a line break: both tags begin a line."""
        return self._value_end("\n")

    def _value_end(self, before: str) -> re.Pattern[str]:
        opening = re.sub(r"\((?!\?)", "(?:", self.parameter)
        end = re.escape(self.parameter_end)
        return re.compile(rf"{before}({end})(?=\s*+(?:{opening}|{re.escape(self.function_end)}))|{before}{opening}")


def invoke_style(prefix: str) -> TagStyle:
    """Return the style of `<invoke name="f"><parameter name="a">1</parameter></invoke>`, with a prefix in each tag."""
    quoted = r'"([^\s"<>]{1,200})"'
    return TagStyle(
        function=rf"<{prefix}invoke name={quoted}>",
        function_end=f"</{prefix}invoke>",
        parameter=rf'<{prefix}parameter name={quoted}(?: string="(true|false)")?>',
        parameter_end=f"</{prefix}parameter>",
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
HUNYUAN = replace(GLM, function=rf"<tool_call>\s*({_NAME})\s*<tool_sep>\s*")
MINICPM = TagStyle(
    function=rf'<function name="({_NAME})">',
    function_end="</function>",
    parameter=r'<param name="([^\s"<>]{1,200})">',
    parameter_end="</param>",
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
    position = skip_space(text, head.end())
    while (match := style.key.match(text, position)) is not None:
        start = match.end()
        is_on_lines = style.is_stripped and text.startswith("\n", start)
        end = style.value_end_on_a_line.search(text, start) if is_on_lines else None
        if end is None or end[1] is None:
            end = style.value_end.search(text, start)
        if end is None or end[1] is None:
            raise _unclosed(text, start, end, style)
        value = text[start : end.start(1)]
        if style.is_stripped:
            value = value.removeprefix("\n").removesuffix("\n")
        is_text = match.re.groups > 1 and match[2] in ("true", "string")
        arguments.put(match[1].strip(), value, is_text=is_text)
        position = skip_space(text, end.end(1))
    return ToolCall(head[1], arguments), expect(text, position, style.function_end)


def _unclosed(text: str, start: int, opening: re.Match[str] | None, style: TagStyle) -> BrokenCallError:
    """Return the error of a value without an end before the next opening tag, if there is one."""
    if text.find(style.parameter_end, start, len(text) if opening is None else opening.start()) < 0:
        return BrokenCallError(f"a parameter of the tool call is not closed by {style.parameter_end}")
    return BrokenCallError(f"a parameter of the tool call has extra text after {style.parameter_end}")
