"""Calls written as Python: `[f(a=1, b='x'), g()]`, and Llama's `f.call(query="x")`.

A scanner reads only literals; nothing is compiled or evaluated. Strings may span several lines, and JSON's `true`,
`false` and `null` are accepted because models write them.
"""

from __future__ import annotations

import math
import re
from typing import Any

from llm_envs.parsers.json_calls import Calls, expect, skip_space
from llm_envs.parsers.reply import MAX_DEPTH, BrokenCallError
from llm_envs.types import ToolCall

__all__ = ["decode_literal", "read_call_lines", "read_closed_list", "read_python_tag", "read_whole_list"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}(?:[.\-][A-Za-z0-9_]{1,200}){0,8}")
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,199})\s*=(?!=)\s*")
_STRING = re.compile(
    # The outer repetition is not possessive: before Python 3.11.3 such a group with alternatives matches wrongly.
    r'"""(?P<a>(?:[^"\\]++|\\.|"(?!""))*)"""'
    r"|'''(?P<b>(?:[^'\\]++|\\.|'(?!''))*)'''"
    r'|"(?P<c>(?:[^"\\]++|\\.)*)"'
    r"|'(?P<d>(?:[^'\\]++|\\.)*)'",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_ESCAPED |= {"\\": "\\", "'": "'", '"': '"', "/": "/"}
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_.])")
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]+")
_WORD = re.compile(r"(?:True|False|None|true|false|null)(?![A-Za-z0-9_.(])")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_QUOTES, _BRACKETS = frozenset("'\""), frozenset("[{")
_SEPARATOR = re.compile(r"\s*+(,?)\s*+")
_LIST_START = re.compile(r"\[\s*[A-Za-z_][A-Za-z0-9_.\-]{0,199}\s*\(\s*(?:[A-Za-z_][A-Za-z0-9_]{0,199}\s*=(?!=)|\))")
_LOOKS_LIKE_A_LIST = re.compile(r"\[\s*[A-Za-z_][A-Za-z0-9_.\-]{0,199}\s*\(")


def read_closed_list(text: str, position: int, closing: str) -> tuple[Calls, int]:
    """Read the list of calls before a closing tag: LFM2's `<|tool_call_end|>`, Llama 4's `<|python_end|>`."""
    calls, end = read_call_list(text, position)
    return calls, expect(text, end, closing)


def read_call_lines(text: str, position: int, closing: str) -> tuple[Calls, int]:
    """Read OLMo 3's calls `f(a=1)`, one a line, and the closing tag."""
    calls: Calls = []
    position = skip_space(text, position)
    while not text.startswith(closing, position):
        call, position = _read_call(text, position)
        calls.append(call)
        position = skip_space(text, position)
    if not calls:
        raise BrokenCallError("the list of tool calls is empty")
    return calls, position + len(closing)


def read_python_tag(text: str, position: int) -> tuple[Calls, int]:
    """Read Llama's `f.call(query="x")` after `<|python_tag|>`."""
    call, end = _read_call(text, skip_space(text, position))
    if not call.name.endswith(".call"):
        raise BrokenCallError('after <|python_tag|> a call is written name.call(argument="value")')
    return [ToolCall(call.name.removesuffix(".call"), call.arguments)], end


def read_whole_list(text: str) -> Calls | None:
    """Read a stripped reply that is one list of calls.

    Returns:
        The calls, or None if the reply neither is such a list nor starts like `[name(key=`.

    Raises:
        BrokenCallError: If it starts like that and is broken.
    """
    if _LOOKS_LIKE_A_LIST.match(text) is None:
        return None
    try:
        calls, end = read_call_list(text, 0)
        if end != len(text):
            raise BrokenCallError("a list of tool calls is followed by other text")
    except BrokenCallError:
        start = _LIST_START.match(text)
        if start is not None and start.group().endswith("="):
            raise
        return None
    return calls


def read_call_list(text: str, position: int) -> tuple[Calls, int]:
    """Return the calls of `[f(a=1), g()]` and the position after the bracket."""
    position = skip_space(text, position)
    if not text.startswith("[", position):
        raise BrokenCallError("a list of tool calls must start with [")
    calls: Calls = []
    position = skip_space(text, position + 1)
    while not text.startswith("]", position):
        call, position = _read_call(text, position)
        calls.append(call)
        position = _next_item(text, position, "]")
    if not calls:
        raise BrokenCallError("the list of tool calls is empty")
    return calls, position + 1


def decode_literal(text: str) -> Any:
    """Return the value of a text that is one of Python's words, a list or a dict; otherwise the text itself."""
    stripped = text.strip()
    if stripped[:1] not in ("[", "{") and stripped not in _WORDS:
        return text
    try:
        value, end = _read_value(stripped, 0, 1)
    except BrokenCallError:
        return text
    return value if end == len(stripped) else text


def _read_call(text: str, position: int) -> tuple[ToolCall, int]:
    match = _NAME.match(text, position)
    if match is None:
        raise BrokenCallError("a tool call must be written name(argument=value)")
    position = skip_space(text, match.end())
    if not text.startswith("(", position):
        raise BrokenCallError("a tool call must be written name(argument=value)")
    arguments: dict[str, Any] = {}
    position = skip_space(text, position + 1)
    while not text.startswith(")", position):
        key = _KEY.match(text, position)
        if key is None:
            raise BrokenCallError("the arguments of a tool call must be written name=value")
        if key[1] in arguments:
            raise BrokenCallError(f"the argument {key[1][:20]!r} stands twice in one tool call")
        arguments[key[1]], position = _read_value(text, key.end(), 1)
        position = _next_item(text, position, ")")
    return ToolCall(match.group(), arguments), position + 1


def _next_item(text: str, position: int, closing: str) -> int:
    """Return the position after a comma, or of the closing bracket."""
    match = _SEPARATOR.match(text, position)
    assert match is not None  # it matches everywhere
    if match[1] or text.startswith(closing, match.end()):
        return match.end()
    raise BrokenCallError(f"a tool call lacks a comma or {closing}")


def _read_value(text: str, position: int, depth: int) -> tuple[Any, int]:
    """Return the literal at `position` and the position after it."""
    first = text[position : position + 1]
    if first in _QUOTES:
        match = _STRING.match(text, position)
        if match is None:
            raise BrokenCallError("a string in a tool call is not closed")
        return _unescape(match[match.lastgroup or 0]), match.end()
    if first in _BRACKETS:
        if depth >= MAX_DEPTH:
            raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
        return _read_list(text, position, depth + 1) if first == "[" else _read_dict(text, position, depth + 1)
    if (match := _NUMBER.match(text, position)) is not None:
        return _number(match.group()), match.end()
    if (match := _WORD.match(text, position)) is not None:
        return _WORDS[match.group()], match.end()
    raise BrokenCallError("a value in a tool call is no literal")


def _read_list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = skip_space(text, position + 1)
    while not text.startswith("]", position):
        item, position = _read_value(text, position, depth)
        items.append(item)
        position = _next_item(text, position, "]")
    return items, position + 1


def _read_dict(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    position = skip_space(text, position + 1)
    while not text.startswith("}", position):
        match = _STRING.match(text, position)
        if match is None:
            raise BrokenCallError("a key in a tool call is no string")
        key = _unescape(match[match.lastgroup or 0])
        if key in items:
            raise BrokenCallError(f"the key {key[:20]!r} stands twice in one object")
        position = skip_space(text, match.end())
        if not text.startswith(":", position):
            raise BrokenCallError("a key in a tool call lacks its colon")
        items[key], position = _read_value(text, skip_space(text, position + 1), depth)
        position = _next_item(text, position, "}")
    return items, position + 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_replace_escape, text) if "\\" in text else text


def _replace_escape(match: re.Match[str]) -> str:
    code = match[1]
    if code in _ESCAPED:
        return _ESCAPED[code]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16)) if int(code[1:], 16) <= 0x10FFFF else match.group()
    return chr(int(code, 8)) if code[0] in "01234567" else match.group()


def _number(literal: str) -> int | float:
    try:
        if _WHOLE_NUMBER.fullmatch(literal) is not None:
            return int(literal)
        value = float(literal)
    except ValueError:  # over 4,300 digits
        raise BrokenCallError("a number in a tool call has too many digits") from None
    if math.isinf(value):
        raise BrokenCallError(f"the number {literal[:20]} is too large")
    return value
