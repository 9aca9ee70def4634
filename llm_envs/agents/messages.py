"""Anthropic's messages API, translated into a chat completion and back.

| in a request | here |
|---|---|
| `messages` and `system` of text, `tool_use`, `tool_result` and `thinking` blocks | supported |
| `tools` (own ones), `max_tokens`, `stop_sequences`, `temperature`, `top_p`, `top_k`, `stream` | supported |
| `cache_control`, `metadata` | ignored |
| `thinking`, `context_management`, effort, `disable_parallel_tool_use` | noted: see `requests` |
| images, documents, tools of the server, `tool_choice` but "auto" and "none", structured outputs | error 400 |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llm_envs.agents.requests import PIECE_LENGTH, ChatRequest, ReturnedReply, refused, usage_of
from llm_envs.types import FinishReason

__all__ = ["message_answer", "message_events", "to_chat_body"]

_IGNORED = ("metadata", "service_tier")
_TRANSLATED = ("messages", "n", "output_config", "system", "tool_choice", "tools")


def to_chat_body(body: Any) -> dict[str, Any]:
    """Return the body of the chat completion that a request asks for.

    Raises:
        RequestError: If something cannot be translated. `read_chat_request` checks the rest.
    """
    if not isinstance(body, Mapping):
        raise refused(f"the body is {type(body).__name__}; it must be a JSON object.", None)
    chat: dict[str, Any] = {
        "stop" if name == "stop_sequences" else str(name): value
        for name, value in body.items()
        if value is not None and name not in (*_TRANSLATED, *_IGNORED)
    }
    wanted = body.get("output_config") or {}
    chat |= {"response_format": wanted.get("format"), "reasoning_effort": wanted.get("effort")}
    choice = body.get("tool_choice") or {"type": "auto"}
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    chat["tool_choice"] = choice["type"] if choice.get("type") in ("auto", "none") else choice
    if not isinstance(body.get("messages"), list):
        raise refused(f"messages is {body.get('messages')!r:.60}; it must be a list.", "messages")
    system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    messages = [chat for index, message in enumerate(body["messages"]) for chat in _messages(index, message)]
    tools = [_tool(index, tool) for index, tool in enumerate(body.get("tools") or ())]
    return chat | {"messages": [*system, *messages], "tools": tools}


def _messages(index: int, message: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages that one message holds: an assistant's one, or results of tools and texts of the user."""
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if role not in ("user", "assistant", "system"):
        raise refused(f"messages[{index}] is {message!r:.60}; it must have the role user or assistant.", "messages")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    own: dict[str, Any] = {"role": role, "content": []}
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
        if kind == "text":
            own["content"].append({"type": "text", "text": block.get("text")})
        elif kind == "tool_result" and role == "user":
            if own["content"]:
                yield own
                own = {"role": role, "content": []}
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
        elif kind == "tool_use" and role == "assistant":
            call = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            own.setdefault("tool_calls", []).append({"id": block.get("id"), "type": "function", "function": call})
        elif kind == "thinking" and role == "assistant":
            own["reasoning_content"] = own.get("reasoning_content", "") + str(block.get("thinking") or "")
        elif kind != "redacted_thinking":
            raise refused(f"messages[{index}] has a block of type {kind!r:.40}, not supported here.", "messages")
    if own["content"] or role == "assistant":
        yield own


def message_answer(request: ChatRequest, id_: str, reply: ReturnedReply) -> dict[str, Any]:
    """Return the JSON of a message.

    Args:
        request: The request, as a chat completion.
        id_: Id of the chat completion.
        reply: The reply.
    """
    content: list[dict[str, Any]] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": ""})
    if reply.content or not reply.calls:
        content.append({"type": "text", "text": reply.content})
    for call_id, name, arguments in reply.calls:
        content.append({"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)})
    reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(reply.finish_reason, "end_turn")
    stop, text = None, reply.sampled.text
    if reason == "end_turn" and reply.sampled.finish_reason is FinishReason.STOP_STRING:
        stop = min((stop for stop in request.stops if stop in text), key=text.find, default=None)
    usage = usage_of([reply])
    return {
        "id": f"msg_{id_.removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": reason if stop is None else "stop_sequence",
        "stop_sequence": stop,
        "usage": {"input_tokens": usage["prompt_tokens"], "output_tokens": usage["completion_tokens"]},
    }


def message_events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a message that is complete."""
    begun = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {**answer["usage"], "output_tokens": 0}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(answer["content"]):
        name = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        text = json.dumps(block[name]) if name == "input" else block[name]
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, name: {} if name == "input" else ""},
        }
        delta, key = {"input": ("input_json_delta", "partial_json")}.get(name, (f"{name}_delta", name))
        for start in range(0, len(text), PIECE_LENGTH):
            piece = {"type": delta, key: text[start : start + PIECE_LENGTH]}
            yield {"type": "content_block_delta", "index": index, "delta": piece}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": answer["stop_reason"], "stop_sequence": answer["stop_sequence"]}
    yield {"type": "message_delta", "delta": ended, "usage": answer["usage"]}
    yield {"type": "message_stop"}


def _tool(index: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
        raise refused(f"tools[{index}] is {tool!r:.80}; only tools of the client are supported.", "tools")
    # In the order of a chat completion's tools, which chat templates show.
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
