"""What an assistant wrote, taken apart: thinking, content, tool calls, final answer.

`parse_reply` takes any string in linear time and never raises. It is strict: a reply with anything broken in it has its
problems named, and then neither tool calls nor an answer, so that no broken form can be paid for. What counts:

| form | result |
|---|---|
| `<think>...</think>`, anywhere | thinking; several are joined by line breaks. Nothing inside is a call or an answer |
| `...</think>` before any `<think>` | thinking whose opening tag stands in the prompt |
| `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` | a call; several blocks are several calls, in order |
| `<answer>...</answer>` | the answer, stripped; of several, the last |
| an opening tag without its closing one | a problem; after `<think>` the rest is thinking |
| a closing tag without its opening one | a problem |
| `<answer>` inside `<answer>`, an empty answer | a problem |
| a call that is no JSON object, has no name, or no object as arguments | a problem |
| a call with NaN, Infinity, 1e999, over 4,300 digits in a row, or nested more than 32 deep | a problem |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from llm_envs.types import ToolCall

__all__ = ["ParsedReply", "format_answer", "format_tool_call", "last_number", "parse_reply"]


class ParsedReply(NamedTuple):
    """An assistant's reply, taken apart by `parse_reply`."""

    thinking: str | None
    """What stood in `<think>` blocks; None if there was none."""
    content: str
    """The reply without thinking and without tool calls, stripped; answer tags stay in it."""
    tool_calls: tuple[ToolCall, ...]
    """In the order written. Empty if there is any problem."""
    answer: str | None
    """Text of the last `<answer>` block, stripped. None without one, or if there is any problem."""
    problems: tuple[str, ...]
    """What is broken, as sentences the model can be shown. They quote only printable ASCII."""


_TAG = re.compile(r"</?(?:think|tool_call|answer)>")
_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?")
_MAX_PROBLEMS = 8  # A reply of a thousand broken tags is answered with the first few.
_QUOTE_LENGTH = 60
_MAX_DEPTH = 32  # Whoever walks or writes the arguments later does so by recursion.


def parse_reply(text: str) -> ParsedReply:
    """Take an assistant's reply apart; see the module's table for what each form gives.

    Args:
        text: The reply exactly as written, without the end-of-turn token. Any string.
    """
    # The forms of nearly every step, one answer or one call alone, by a few passes in C.
    if "think>" in text:
        return _parse_tagged(text)
    tag = text.find("answer>")
    if tag < 0:
        if "tool_call>" not in text:
            return ParsedReply(None, text.strip(), (), None, ())
        if text.startswith("<tool_call>") and text.endswith("</tool_call>") and text.count("tool_call>") == 2:
            call = _parse_call(text[11:-12])
            if isinstance(call, ToolCall):
                return ParsedReply(None, "", (call,), None, ())
    elif tag > 0 and text[tag - 1] == "<" and text.count("answer>") == 2 and "tool_call>" not in text:
        end = text.find("</answer>", tag)
        answer = text[tag + 7 : end].strip()
        if end > 0 and answer:
            return ParsedReply(None, text.strip(), (), answer, ())
    return _parse_tagged(text)


def last_number(text: str) -> str | None:
    """Return the last number written in `text` (sign and decimals kept, thousands separators dropped), or None."""
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def format_answer(answer: object) -> str:
    """Write a final answer in the canonical form."""
    return f"<answer>{answer}</answer>"


def format_tool_call(name: str, **arguments: Any) -> str:
    """Write a tool call in the canonical form, Hermes' and Qwen's."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _parse_tagged(text: str) -> ParsedReply:
    """Parse a reply with tags: one pass from left to right, each block skipped whole."""
    thoughts: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    answer: str | None = None
    problems: list[str] = []
    position = 0
    closing = text.find("</think>")
    if closing >= 0 and text.find("<think>", 0, closing) < 0:
        thoughts.append(text[:closing].strip())
        position = closing + len("</think>")
    while (match := _TAG.search(text, position)) is not None:
        tag = match.group()
        content.append(text[position : match.start()])
        if tag[1] == "/":
            problems.append(f"{tag} stands without <{tag[2:]} before it")
            position = match.end()
            continue
        end = text.find(f"</{tag[1:]}", match.end())
        if end < 0:
            problems.append(f"{tag} is not closed by </{tag[1:]}")
            (thoughts if tag == "<think>" else content).append(text[match.end() :].strip())
            position = len(text)
            break
        inner = text[match.end() : end]
        position = end + len(tag) + 1
        if tag == "<think>":
            thoughts.append(inner.strip())
        elif tag == "<answer>":
            content.append(text[match.start() : position])
            answer = inner.strip()
            if "<answer>" in inner:
                problems.append("<answer> stands inside <answer>")
            elif not answer:
                problems.append("the answer is empty")
        elif len(problems) < _MAX_PROBLEMS:
            call = _parse_call(inner)
            calls.append(call) if isinstance(call, ToolCall) else problems.append(call)
    content.append(text[position:])
    return ParsedReply(
        thinking="\n".join(thoughts) if thoughts else None,
        content="".join(content).strip(),
        tool_calls=() if problems else tuple(calls),
        answer=None if problems else answer,
        problems=tuple(problems[:_MAX_PROBLEMS]),
    )


def _parse_call(text: str) -> ToolCall | str:
    """Return the call that a `<tool_call>` block holds, or what is wrong with it."""
    text = text.strip()
    try:
        data, end = _scan(text, 0)
        if end != len(text):
            raise ValueError("extra text after it")
    except StopIteration:
        return "a tool call is not valid JSON: a value is missing"
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:_QUOTE_LENGTH]
        return f"a tool call is not valid JSON: {ascii(reason)[1:-1]}"
    if not isinstance(data, dict):
        return f"a tool call must be one JSON object, not {_json_type(data)}"
    name, arguments, call_id = data.get("name"), data.get("arguments", {}), data.get("id")
    if not isinstance(name, str) or not name:
        return 'a tool call must have "name", a string'
    if not isinstance(arguments, dict):
        return f'"arguments" of the tool call must be a JSON object, not {_json_type(arguments)}'
    if text.count("{") + text.count("[") > _MAX_DEPTH and _depth(arguments) > _MAX_DEPTH:
        return f"the arguments of the tool call are nested more than {_MAX_DEPTH} deep"
    if call_id is not None and not isinstance(call_id, str):
        return f'"id" of the tool call must be a string, not {_json_type(call_id)}'
    return ToolCall(name, arguments, call_id)


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


# `decode` without its passes over white space: an attribute of every JSONDecoder, which the type stubs leave out.
_scan: Callable[[str, int], tuple[Any, int]] = vars(
    json.JSONDecoder(parse_float=_finite_float, parse_constant=_refuse_constant)
)["scan_once"]
