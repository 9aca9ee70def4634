"""Calls written as JSON: Hermes and Qwen, Llama 3, Mistral, Cohere, Hunyuan, Granite, Kimi K2, Apertus.

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
    "note_quirk",
    "read_after",
    "read_json_list",
    "read_json_objects",
    "read_kimi",
    "read_mistral",
    "read_named_objects",
    "read_sole_json",
    "read_whole_json",
    "read_whole_phi",
    "scan_json",
    "strict_json",
]

Calls = list[ToolCall]
_SPACE = re.compile(r"\s*")
_BETWEEN_OBJECTS = re.compile(r"[\s,;]*+(?=\{)")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\]]|,(?=\s*+[}\]])', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_CLAIMS_TO_BE_A_CALL = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"\\]{0,200}"\s*,\s*"(?:parameters|arguments)"\s*:'
)
_KIMI_HEAD = re.compile(
    r"\s*<\|tool_call_begin\|>\s*((?:functions\.)?([^\s<>|:]{1,200})(?::\d{1,9})?)\s*<\|tool_call_argument_begin\|>"
)
_MISTRAL_NAME = re.compile(r'\s*([^\s\[\]{}<>"]{1,200})\s*(?:\[CALL_ID\]([^\s\[\]{}<>"]{1,200})\s*)?(?:\[ARGS\]\s*)?')


class Document(str):
    """A string in which JSON errors are cheap, and that collects the quirks of its calls.

    `JSONDecodeError` counts the lines before the error. In a text of many broken calls that takes quadratic time, and
    nobody reads the line numbers.
    """

    __slots__ = ("quirks",)
    quirks: list[str]
    """The list to which quirks are added; without it they are not recorded."""

    def count(self, *_: Any) -> int:
        """Return 0."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Return 0."""
        return 0


def note_quirk(text: str, kind: str) -> None:
    """Record a quirk of the text, if it collects them."""
    if (quirks := getattr(text, "quirks", None)) is not None:
        quirks.append(kind)


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
        if (mended := _scan_mended(text, start, MAX_DEPTH + wrapping)) is not None:
            return mended
        reason = "a value is missing"
    except RecursionError:
        reason = "nested too deeply"
    except json.JSONDecodeError as error:
        if (mended := _scan_mended(text, start, MAX_DEPTH + wrapping)) is not None:
            return mended
        reason = f"{error.msg} at character {error.pos - start}"
    except ValueError as error:
        reason = str(error)[:QUOTE_LENGTH]
    else:
        brackets = str.count(text, "{", start, end) + str.count(text, "[", start, end)
        if brackets > MAX_DEPTH and _depth(value) > MAX_DEPTH + wrapping:
            raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
        return value, end
    raise BrokenCallError(f"a tool call is not valid JSON: {reason}")


def _scan_mended(text: str, start: int, max_depth: int) -> tuple[Any, int] | None:
    """Return a JSON value with trailing commas, or control characters in strings, and the position after it.

    None if it has neither, or is broken otherwise.
    """
    if not text.startswith(("{", "["), start):  # a tag that is only mentioned
        return None
    depth, quirks, parts, copied = 0, [], [], start
    for token in _JSON_TOKEN.finditer(text, start):
        first = token.group()[0]
        if first == '"':
            if _CONTROL.search(token.group()) is not None:
                quirks.append("control_character")
        elif first == ",":
            parts.append(text[copied : token.start()])
            copied = token.end()
            quirks.append("trailing_comma")
        else:
            depth += 1 if first in "{[" else -1
            if depth <= 0 or depth > max_depth:
                break
    else:
        return None
    if not quirks or depth:
        return None
    try:
        value = _decode_leniently("".join([*parts, text[copied : token.end()]]))
    except (ValueError, RecursionError):
        return None
    for kind in dict.fromkeys(quirks):
        note_quirk(text, kind)
    return value, token.end()


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


def call_from(data: Any, name_key: str = "name", id_key: str = "id", text: str = "") -> ToolCall:
    """Convert a decoded JSON value to a call, with its arguments under "arguments" or "parameters".

    `text` is where it stands, for its quirks.
    """
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
        arguments = _arguments_of(arguments, text)
    if type(arguments) is not dict:
        raise BrokenCallError(f'"{key}" of the tool call must be a JSON object, not {_json_type(arguments)}')
    if call_id is not None and type(call_id) is not str:
        raise BrokenCallError(f'"{id_key}" of the tool call must be a string, not {_json_type(call_id)}')
    return ToolCall(name, arguments, call_id)


def _arguments_of(written: Any, text: str) -> Any:
    """Return the arguments of a call that wrote null, or JSON in a string; anything else as it is."""
    if written is None or written == "":
        note_quirk(text, "no_arguments")
        return {}
    if type(written) is not str or len(written) > len(text):
        return written
    try:
        decoded = strict_json(written)
    except ValueError:
        return written
    if type(decoded) is dict:
        note_quirk(text, "arguments_as_text")
    return decoded if type(decoded) is dict else written


def call_with(name: str, arguments: Any, call_id: str | None = None, text: str = "") -> ToolCall:
    """Return a call with a name from outside the JSON."""
    return call_from({"name": name, "arguments": arguments, "id": call_id}, text=text)


def calls_from(data: Any, name_key: str = "name", id_key: str = "id", text: str = "") -> Calls:
    """Convert a decoded JSON list to calls."""
    if type(data) is not list:
        raise BrokenCallError(f"the tool calls must be a JSON list, not {_json_type(data)}")
    if not data:
        raise BrokenCallError("the list of tool calls is empty")
    return [call_from(item, name_key, id_key, text) for item in data]


def decode_value(text: str) -> Any:
    """Return the value of a stripped text that is JSON throughout, and no string; otherwise the text itself."""
    try:
        value, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return text
    if end != len(text) or isinstance(value, str):
        return text
    if text[0] in "{[" and _depth(value) >= MAX_DEPTH:
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


def read_sole_json(text: str, position: int, closing: str, *, is_one: bool = True) -> tuple[Calls, int]:
    """Read `{"name": ..., "arguments": {...}}` and the closing tag; also several objects, or a list of them.

    Several are a quirk if the format `is_one` object.
    """
    data, end = scan_json(text, position, 1)
    is_list = type(data) is list
    calls = calls_from(data, text=text) if is_list else [call_from(data, text=text)]
    if not is_list and text.startswith(closing, after := skip_space(text, end)):
        return calls, after + len(closing)
    while (separator := _BETWEEN_OBJECTS.match(text, end)) is not None:
        data, end = scan_json(text, separator.end(), 1)
        calls.append(call_from(data, text=text))
    if is_one and (len(calls) > 1 or is_list):
        note_quirk(text, "several_in_block")
    try:
        return calls, expect(text, end, closing)
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
        calls.append(call_from(data, text=text))
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
        calls = calls_from(data, text=text)
    else:
        match = _MISTRAL_NAME.match(text, position)
        if match is None or not text.startswith("{", match.end()):
            raise BrokenCallError("[TOOL_CALLS] must be followed by a JSON list of calls or by name[ARGS]{...}")
        data, end = scan_json(text, match.end())
        calls = [call_with(match[1], data, match[2], text)]
    return calls, end


def read_kimi(text: str, position: int, closing: str) -> tuple[Calls, int]:
    """Read Kimi K2's `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`, and more.

    The text before the arguments is the call's id.
    """
    calls: Calls = []
    while (head := _KIMI_HEAD.match(text, position)) is not None:
        data, end = scan_json(text, head.end())
        calls.append(call_with(head[2], data, head[1], text))
        position = expect(text, end, "<|tool_call_end|>")
    if not calls:
        raise BrokenCallError("a tool call must start with <|tool_call_begin|>functions.name:0")
    return calls, expect(text, position, closing)


def read_json_list(
    text: str, position: int, closing: str, name_key: str = "name", id_key: str = "id", *, may_be_open: bool = False
) -> tuple[Calls, int]:
    """Read a list of calls and the closing tag: Cohere, Hunyuan, Nemotron.

    Args:
        text: The text.
        position: Start of the list, or of white space before it.
        closing: The closing tag.
        name_key: The key of a call's name.
        id_key: The key of its id.
        may_be_open: Whether the list may stand without the closing tag (Granite).
    """
    data, end = scan_json(text, position, 2)
    calls = calls_from(data, name_key, id_key, text)
    if may_be_open and not text.startswith(closing, skip_space(text, end)):
        return calls, end
    return calls, expect(text, end, closing)


def read_whole_phi(text: str) -> Calls | None:
    """Read a stripped reply that is Phi-4-mini's `functools[{...}]`."""
    data, end = scan_json(text, len("functools"), 2)
    if text[end:].strip():
        raise BrokenCallError("a list of tool calls is followed by other text")
    return calls_from(data, text=text)


def read_named_objects(text: str, position: int, closing: str) -> tuple[Calls, int]:
    """Read Apertus' list of `{"f": {...}}`, one key an object, and the closing tag."""
    data, end = scan_json(text, position, 2)
    if type(data) is not list or not all(type(item) is dict and len(item) == 1 for item in data):
        raise BrokenCallError('the tool calls must be a JSON list of objects {"name": {...}}')
    return [call_with(name, item[name], text=text) for item in data for name in item], expect(text, end, closing)


def read_after(text: str, position: int, prefix: str, closing: str) -> tuple[Calls, int]:
    """Read a tag (InternLM's `<|plugin|>`), one call and the closing tag."""
    return read_sole_json(text, expect(text, position, prefix), closing)


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
_decode_leniently = _decoder(object_pairs_hook=_unique, strict=False).decode
_scan_quickly, _scan = _scanner(_decoder()), _scanner(_decoder(object_pairs_hook=_unique))
