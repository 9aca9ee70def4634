"""Calls of Gemma 4 and FunctionGemma: JSON with unquoted keys, and strings between `<|"|>` or `<escape>` marks."""

from __future__ import annotations

import re
from typing import Any

from llm_envs.parsers.json_calls import Calls, expect, scan_json, skip_space
from llm_envs.parsers.reply import MAX_DEPTH, BrokenCallError
from llm_envs.types import ToolCall

__all__ = ["read_gemma"]

_GEMMA_HEAD = re.compile(r"\s*call:([^\s<>{}\[\]|:,\"]{1,200})(?=\{)")
_GEMMA_KEY = re.compile(r"\s*([^\s<>{}\[\]:,\"]{1,200})\s*:")
_GEMMA_WORD = re.compile(r"(?:true|false|null)(?![A-Za-z0-9_])")
_GEMMA_WORDS = {"true": True, "false": False, "null": None}


def read_gemma(text: str, position: int, quote: str, closing: str) -> tuple[Calls, int]:
    """Read `call:name{a:<|"|>x<|"|>,n:3}<tool_call|>`, with the marks around a string and the closing tag."""
    head = _GEMMA_HEAD.match(text, position)
    if head is None:
        raise BrokenCallError("a tool call must start with call:name{")
    arguments, end = _read_gemma_object(text, head.end(), 1, quote)
    return [ToolCall(head[1], arguments)], expect(text, end, closing)


def _read_gemma_object(text: str, position: int, depth: int, quote: str) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    position = skip_space(text, position + 1)
    while not text.startswith("}", position):
        if text.startswith(quote, position):
            key, position = _read_gemma_string(text, position, quote)
            position = expect(text, position, ":")
        elif (match := _GEMMA_KEY.match(text, position)) is not None:
            key, position = match[1], match.end()
        else:
            raise BrokenCallError("an argument of the tool call has no key")
        if key in items:
            raise BrokenCallError(f"the key {key[:20]!r} stands twice in one object")
        items[key], position = _read_gemma_value(text, skip_space(text, position), depth, quote)
        position = _next_gemma_item(text, position, "}")
    return items, position + 1


def _read_gemma_list(text: str, position: int, depth: int, quote: str) -> tuple[list[Any], int]:
    items: list[Any] = []
    position = skip_space(text, position + 1)
    while not text.startswith("]", position):
        item, position = _read_gemma_value(text, position, depth, quote)
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


def _read_gemma_value(text: str, position: int, depth: int, quote: str) -> tuple[Any, int]:
    if text.startswith(quote, position):
        return _read_gemma_string(text, position, quote)
    if text.startswith(("{", "["), position):
        if depth >= MAX_DEPTH:
            raise BrokenCallError(f"the arguments of the tool call are nested more than {MAX_DEPTH} deep")
        read = _read_gemma_object if text[position] == "{" else _read_gemma_list
        return read(text, position, depth + 1, quote)
    if (match := _GEMMA_WORD.match(text, position)) is not None:
        return _GEMMA_WORDS[match.group()], match.end()
    if text[position : position + 1] in set("-0123456789"):
        return scan_json(text, position)
    raise BrokenCallError(f"a value in a tool call is no number, true, false, null, {{...}}, [...] or {quote} string")


def _read_gemma_string(text: str, position: int, quote: str) -> tuple[str, int]:
    end = text.find(quote, position + len(quote))
    if end < 0:
        raise BrokenCallError(f"a string in a tool call is not closed by {quote}")
    return text[position + len(quote) : end], end + len(quote)
