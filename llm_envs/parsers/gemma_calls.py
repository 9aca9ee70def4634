"""Calls in Gemma 4's format: JSON with unquoted keys, and strings between `<|"|>` marks."""

from __future__ import annotations

import re
from typing import Any

from llm_envs.parsers.json_calls import Calls, expect, scan_json, skip_space
from llm_envs.parsers.reply import MAX_DEPTH, BrokenCallError
from llm_envs.types import ToolCall

__all__ = ["read_gemma4"]

_GEMMA_HEAD = re.compile(r"\s*call:([^\s<>{}\[\]|:,\"]{1,200})(?=\{)")
_GEMMA_KEY = re.compile(r"\s*([^\s<>{}\[\]:,\"]{1,200})\s*:")
_GEMMA_WORD = re.compile(r"(?:true|false|null)(?![A-Za-z0-9_])")
_GEMMA_WORDS = {"true": True, "false": False, "null": None}
_QUOTE = '<|"|>'


def read_gemma4(text: str, position: int) -> tuple[Calls, int]:
    """Read `call:name{a:<|"|>x<|"|>,n:3}<tool_call|>`."""
    head = _GEMMA_HEAD.match(text, position)
    if head is None:
        raise BrokenCallError("a tool call must start with call:name{")
    arguments, end = _read_gemma_object(text, head.end(), 1)
    return [ToolCall(head[1], arguments)], expect(text, end, "<tool_call|>")


def _read_gemma_object(text: str, position: int, depth: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    position = skip_space(text, position + 1)
    while not text.startswith("}", position):
        if text.startswith(_QUOTE, position):
            key, position = _read_gemma_string(text, position)
            position = expect(text, position, ":")
        elif (match := _GEMMA_KEY.match(text, position)) is not None:
            key, position = match[1], match.end()
        else:
            raise BrokenCallError("an argument of the tool call has no key")
        if key in items:
            raise BrokenCallError(f"the key {key[:20]!r} stands twice in one object")
        items[key], position = _read_gemma_value(text, skip_space(text, position), depth)
        position = _next_gemma_item(text, position, "}")
    return items, position + 1


def _read_gemma_list(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = skip_space(text, position + 1)
    while not text.startswith("]", position):
        item, position = _read_gemma_value(text, position, depth)
        items.append(item)
        position = _next_gemma_item(text, position, "]")
    return items, position + 1


def _next_gemma_item(text: str, position: int, closing: str) -> int:
    position = skip_space(text, position)
    if not text.startswith(",", position):
        if not text.startswith(closing, position):
            raise BrokenCallError(f"a tool call lacks a comma or {closing}")
        return position
    position = skip_space(text, position + 1)
    if text.startswith(closing, position):
        raise BrokenCallError("a tool call has a comma too many")
    return position


def _read_gemma_value(text: str, position: int, depth: int) -> tuple[Any, int]:
    if text.startswith(_QUOTE, position):
        return _read_gemma_string(text, position)
    if text.startswith(("{", "["), position):
        if depth >= MAX_DEPTH:
            raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
        read = _read_gemma_object if text[position] == "{" else _read_gemma_list
        return read(text, position, depth + 1)
    if (match := _GEMMA_WORD.match(text, position)) is not None:
        return _GEMMA_WORDS[match.group()], match.end()
    if text[position : position + 1] in set("-0123456789"):
        return scan_json(text, position)
    raise BrokenCallError('a value in a tool call is no number, true, false, null, {...}, [...] or <|"|> string')


def _read_gemma_string(text: str, position: int) -> tuple[str, int]:
    end = text.find(_QUOTE, position + len(_QUOTE))
    if end < 0:
        raise BrokenCallError('a string in a tool call is not closed by <|"|>')
    return text[position + len(_QUOTE) : end], end + len(_QUOTE)
