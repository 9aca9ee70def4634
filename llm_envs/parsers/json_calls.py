"""Calls written as JSON: Hermes and Qwen, Llama 3, Mistral, Cohere.

A reader takes the text and the position after the block's opening tag, and returns the calls and the position after
the block. It scans JSON from its start and does not search for the closing tag first, so a string may contain any tag.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from llm_envs.parsers.reply import MAX_DEPTH, QUOTE_LENGTH, BrokenCallError
from llm_envs.types import ToolCall

__all__ = [
    "Document",
    "call_from",
    "decode_value",
    "expect",
    "read_cohere",
    "read_json_objects",
    "read_mistral",
    "read_sole_json",
    "read_whole_json",
    "scan_json",
    "strict_json",
]

Calls = list[ToolCall]
_SPACE = re.compile(r"\s*")
_CLAIMS_TO_BE_A_CALL = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"\\]{0,200}"\s*,\s*"(?:parameters|arguments)"\s*:'
)
_MISTRAL_NAME = re.compile(r'\s*([^\s\[\]{}<>"]{1,200})\s*(?:\[CALL_ID\]([^\s\[\]{}<>"]{1,200})\s*)?(?:\[ARGS\]\s*)?')


class Document(str):
    """A string in which JSON errors are cheap.

    `JSONDecodeError` counts the lines before the error. In a text of many broken calls that takes quadratic time, and
    nobody reads the line numbers.
    """

    __slots__ = ()

    def count(self, *_: Any) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Return 0."""
        return 0


def skip_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    return _SPACE.match(text, position).end()  # type: ignore[union-attr] # matches everywhere


def expect(text: str, position: int, literal: str) -> int:
    """Skip white space and `literal`; return the position after it."""
    position = skip_space(text, position)
    if not text.startswith(literal, position):
        raise BrokenCallError(f"a tool call has extra text where {literal} was expected")
    return position + len(literal)


def scan_json(text: str, position: int, wrapping: int = 0) -> tuple[Any, int]:
    """Return the JSON value at `position` and the position after it.

    Args:
        text: A `Document` if there may be many errors.
        position: Start of the value, or of white space before it.
        wrapping: Number of levels of nesting around the arguments of a call.

    Raises:
        BrokenCallError: If a value is missing, or it has a duplicate key, NaN, Infinity, a number that is too large, or
            too deep nesting.
    """
    start = skip_space(text, position)
    try:
        value, end = _scan(text, start)
    except StopIteration:
        reason = "a value is missing"
    except RecursionError:
        reason = "nested too deeply"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos - start}"
    except ValueError as error:
        reason = str(error)[:QUOTE_LENGTH]
    else:
        brackets = str.count(text, "{", start, end) + str.count(text, "[", start, end)
        if brackets > MAX_DEPTH and _depth(value) > MAX_DEPTH + wrapping:
            raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
        return value, end
    raise BrokenCallError(f"a tool call is not valid JSON: {reason}")


def strict_json(text: str) -> Any:
    """Return the value of a text that is JSON throughout.

    Raises:
        ValueError: If it is not JSON, has a duplicate key, NaN, Infinity or a number that is too large, or is nested
            more than `MAX_DEPTH` deep.
    """
    try:
        value = _decode(text)
        if _depth(value) <= MAX_DEPTH:
            return value
    except RecursionError:
        pass
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def call_from(data: Any, name_key: str = "name", id_key: str = "id") -> ToolCall:
    """Convert a decoded JSON value to a call, with its arguments under "arguments" or "parameters"."""
    if type(data) is not dict:
        raise BrokenCallError(f"a tool call must be one JSON object, not {_json_type(data)}")
    name, call_id = data.get(name_key), data.get(id_key)
    if type(name) is not str or not name:
        raise BrokenCallError(f'a tool call must have "{name_key}", a string')
    key = "arguments"
    if "parameters" in data:
        if "arguments" in data:
            raise BrokenCallError('a tool call has both "arguments" and "parameters"')
        key = "parameters"
    arguments = data.get(key, {})
    if type(arguments) is not dict:
        raise BrokenCallError(f'"{key}" of the tool call must be a JSON object, not {_json_type(arguments)}')
    if call_id is not None and type(call_id) is not str:
        raise BrokenCallError(f'"{id_key}" of the tool call must be a string, not {_json_type(call_id)}')
    return ToolCall(name, arguments, call_id)


def call_with(name: str, arguments: Any, call_id: str | None = None) -> ToolCall:
    """Return a call with a name from outside the JSON."""
    return call_from({"name": name, "arguments": arguments, "id": call_id})


def calls_from(data: Any, name_key: str = "name", id_key: str = "id") -> Calls:
    """Convert a decoded JSON list to calls."""
    if type(data) is not list:
        raise BrokenCallError(f"the tool calls must be a JSON list, not {_json_type(data)}")
    if not data:
        raise BrokenCallError("the list of tool calls is empty")
    return [call_from(item, name_key, id_key) for item in data]


def decode_value(text: str) -> Any:
    """Return the value of a tag's text in a format without quotes: a JSON value but no string, or else the text."""
    stripped = text.strip()
    if not stripped or stripped[0] not in '-0123456789{["tfn':
        return text
    try:
        value, end = _scan(stripped, 0)
    except (StopIteration, ValueError, RecursionError):
        return text
    if end != len(stripped) or isinstance(value, str):
        return text
    if _depth(value) >= MAX_DEPTH:
        raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
    return value


def parse_sole_call(text: str) -> ToolCall | None:
    """Parse the text inside a block as one plain call; None for any other text. This is the fast path."""
    try:
        data, end = _scan_quickly(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    if end != len(text) or type(data) is not dict or len(data) != 2:
        return None
    name, arguments = data.get("name"), data.get("arguments")
    if type(name) is not str or not name or type(arguments) is not dict:
        return None
    # As many colons as keys: so no key is duplicated, and arguments contain no nested values except lists.
    if text.count(":") != 2 + len(arguments) or text.count("[") >= MAX_DEPTH:
        return None
    return ToolCall(name, arguments)


def read_sole_json(text: str, position: int, closing: str) -> tuple[Calls, int]:
    """Read `{"name": ..., "arguments": {...}}` and the closing tag."""
    data, end = scan_json(text, position, 1)
    call = call_from(data)
    try:
        return [call], expect(text, end, closing)
    except BrokenCallError:
        raise BrokenCallError("a tool call is not valid JSON: extra text after it") from None


def read_json_objects(text: str, position: int, *, are_bare: bool = False) -> tuple[Calls, int]:
    """Read one or more objects `{"name": ..., "parameters": {...}}`, separated by `;` or white space.

    Args:
        text: The text.
        position: Start of the first object, or of white space before it.
        are_bare: Whether the calls have no marker, so that an object without arguments is not a call.
    """
    calls: Calls = []
    while True:
        data, position = scan_json(text, position, 1)
        calls.append(call_from(data))
        if are_bare and "parameters" not in data and "arguments" not in data:
            raise BrokenCallError('a tool call must have "parameters", an object')
        after = skip_space(text, position)
        if text.startswith(";", after):
            after = skip_space(text, after + 1)
        if not text.startswith("{", after):
            return calls, position
        position = after


def read_whole_json(text: str) -> Calls | None:
    """Read a stripped reply that consists of such objects.

    Returns:
        The calls, or None if the reply neither is a valid call nor starts like one.

    Raises:
        BrokenCallError: If it starts like a call and is broken.
    """
    is_surely_a_call = _CLAIMS_TO_BE_A_CALL.match(text) is not None
    if not is_surely_a_call and '"name"' not in text:
        return None
    try:
        calls, end = read_json_objects(text, 0, are_bare=True)
        if text[end:].strip(" \r\n\t;"):
            raise BrokenCallError("a tool call is followed by other text")
    except BrokenCallError:
        if is_surely_a_call:
            raise
        return None
    return calls


def read_mistral(text: str, position: int) -> tuple[Calls, int]:
    """Read the list `[{...}]`, or `name[ARGS]{...}`, that follows `[TOOL_CALLS]`."""
    start = skip_space(text, position)
    if text.startswith("[", start) and not text.startswith(("[ARGS]", "[CALL_ID]", "[TOOL_CALLS]"), start):
        data, end = scan_json(text, start, 2)
        calls = calls_from(data)
    else:
        match = _MISTRAL_NAME.match(text, position)
        if match is None or not text.startswith("{", match.end()):
            raise BrokenCallError("[TOOL_CALLS] must be followed by a JSON list of calls or by name[ARGS]{...}")
        data, end = scan_json(text, match.end())
        calls = [call_with(match[1], data, match[2])]
    return calls, end


def read_cohere(text: str, position: int) -> tuple[Calls, int]:
    """Read the list of `{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}` before `<|END_ACTION|>`."""
    data, end = scan_json(text, position, 2)
    return calls_from(data, "tool_name", "tool_call_id"), expect(text, end, "<|END_ACTION|>")


def _depth(value: object) -> int:
    """Return how deeply lists and objects are nested in a JSON value, level by level."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _finite_float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise ValueError(f"the number {literal[:20]} is too large")
    return value


def _refuse_constant(literal: str) -> float:
    raise ValueError(f"{literal} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:20]!r} stands twice in one object")
    return found


def _decoder(**options: Any) -> json.JSONDecoder:
    return json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant, **options)


def _scanner(decoder: json.JSONDecoder) -> Callable[[str, int], tuple[Any, int]]:
    """Return `JSONDecoder.scan_once`, which does not skip white space; the type stubs lack it."""
    scan: Callable[[str, int], tuple[Any, int]] = vars(decoder)["scan_once"]
    return scan


_decode = _decoder(object_pairs_hook=_unique).decode
_scan_quickly, _scan = _scanner(_decoder()), _scanner(_decoder(object_pairs_hook=_unique))
