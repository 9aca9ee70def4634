"""Parses replies with transformers, if the tokenizer has a response template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers.formats import parse_reply
from llm_envs.parsers.json_calls import call_from
from llm_envs.parsers.reply import BrokenCallError, Draft, ParsedReply, Parser, broken
from llm_envs.parsers.tagged import ReplyGrammar, read_tagged
from llm_envs.types import ToolCall

__all__ = ["create_response_parser"]

MAX_LENGTH = 100_000
"""Longer replies are not passed to transformers, because its time can grow with the square of the length."""

_ANSWER_ALONE = ReplyGrammar(thinking=())
_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")


def create_response_parser(
    tokenizer: Any, *, prefix: str = "", tools: Sequence[Mapping[str, Any]] | None = None
) -> Parser:
    """Make a parser that reads replies with the tokenizer's own `parse_response`.

    transformers is lenient: a tag that is not closed counts as closed. So `parse_reply` reads each reply too, and its
    problems remain. An exception of transformers becomes a problem of the reply.

    Args:
        tokenizer: A tokenizer, or a processor that has one, with a `response_template` (transformers 5.13 or newer) or
            a `response_schema`.
        prefix: The prompt before the reply, or its end: the part of the assistant's turn that the chat template writes.
        tools: JSON Schemas of the tools, from which transformers takes the types of arguments written in tags.

    Raises:
        InvalidConfigError: If the tokenizer has neither.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    options: dict[str, Any] = {}
    if getattr(inner, "response_template", None) is not None:
        options["prefix"] = prefix
        if tools is not None:
            options["tools"] = list(tools)
    elif getattr(inner, "response_schema", None) is None:
        raise InvalidConfigError(
            f"{type(tokenizer).__name__} has no response_template: set one, or use a parser from PARSERS."
        )
    return partial(_parse_response, inner, options)


def _parse_response(tokenizer: Any, options: Mapping[str, Any], text: str) -> ParsedReply:
    if len(text) > MAX_LENGTH:
        return broken(f"it has {len(text)} characters, over {MAX_LENGTH}")
    draft = Draft()
    for problem in parse_reply(text).problems:
        draft.complain(problem)
    try:
        message = tokenizer.parse_response(text, **options)
        content = message.get("content") or ""
        thoughts = [message[key] for key in _THINKING_KEYS if message.get(key)]
        if not all(isinstance(piece, str) for piece in (content, *thoughts)):
            raise TypeError("content and thinking must be strings")
        calls = [_call(call) for call in message.get("tool_calls") or ()]
    except BrokenCallError as error:
        draft.complain(str(error))
        content, thoughts, calls = text, [], []
    except Exception as error:  # templates apply unknown patterns to hostile text, so any exception is possible
        draft.complain(f"the tokenizer's response template cannot read it: {type(error).__name__}")
        content, thoughts, calls = text, [], []
    draft.thoughts.extend(thought.strip() for thought in thoughts)
    read_tagged(content, _ANSWER_ALONE, draft)
    draft.tool_calls.extend(calls)
    return draft.finish()


def _call(message: Any) -> ToolCall:
    """Convert a call of transformers, `{"type": "function", "function": {"name": ..., "arguments": ...}}`."""
    function = message.get("function") if isinstance(message, dict) else None
    call = call_from(function if isinstance(function, dict) else message)
    call_id = message.get("id") if isinstance(message, dict) else None
    return ToolCall(call.name, call.arguments, call.id if call.id is not None else call_id)
