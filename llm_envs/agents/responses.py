"""OpenAI's responses API, translated into a chat completion and back.

| in a request | here |
|---|---|
| `input` of text, messages, `reasoning`, calls of tools and their outputs | supported |
| `instructions`, `tools` (see `response_tools`), `max_output_tokens`, `temperature`, `top_p`, `stream` | supported |
| `previous_response_id` | supported for the responses of the same session, unless they had `store=false` |
| `reasoning`, `text.verbosity`, `truncation` | noted: see `requests` |
| tools that the provider runs, item references, `conversation`, `background`, structured `text` | error 400 |
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_envs.agents.requests import PIECE_LENGTH, ChatRequest, ReturnedReply, refused, usage_of
from llm_envs.agents.response_tools import CALLS, OUTPUTS, as_call, as_item, chat_tools

__all__ = ["chat_messages", "response_answer", "response_events", "to_chat_body"]

# Parameters that ask for nothing with these values; other values are passed on, and refused by name.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "include": ([], ["reasoning.encrypted_content"]),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "truncation": ("disabled",),
}
_IGNORED = ("client_metadata",)
_TRANSLATED = ("input", "instructions", "max_output_tokens", "n", "previous_response_id", "text", "tools")


def to_chat_body(body: Any, earlier: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the body of the chat completion that a request asks for.

    Args:
        body: The JSON of the request.
        earlier: The id of each response of the session -> the messages up to it.

    Raises:
        RequestError: If something cannot be translated. `read_chat_request` checks the rest.
    """
    if not isinstance(body, Mapping):
        raise refused(f"the body is {type(body).__name__}; it must be a JSON object.", None)
    chat: dict[str, Any] = {
        str(name): value
        for name, value in body.items()
        if value is not None and name not in (*_TRANSLATED, *_IGNORED) and value not in _NEUTRAL.get(name, ())
    }
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    text = body.get("text") or {}
    chat |= {"response_format": text.get("format"), "verbosity": text.get("verbosity")}
    before: Sequence[Mapping[str, Any]] = ()
    if (previous := body.get("previous_response_id")) is not None:
        if previous not in earlier:
            what = f"previous_response_id={previous!r:.80}: no response of this session with store=true has that id."
            raise refused(what, "previous_response_id")
        before = earlier[previous]
    instructions = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    return chat | {
        "messages": [*instructions, *before, *chat_messages(body.get("input"))],
        "tools": chat_tools(body.get("tools")),
    }


def chat_messages(items: Any) -> list[dict[str, Any]]:
    """Return the messages of the input's items. The items of one response become one message.

    Raises:
        RequestError: If an item is not supported.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise refused(f"input is {items!r:.60}; it must be a text or a list of items.", "input")
    messages: list[dict[str, Any]] = []
    own: dict[str, Any] | None = None  # the assistant's message that the last items belong to
    for index, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, Mapping) else type(item).__name__
        is_text = kind == "message" and item.get("role") == "assistant"
        if is_text or kind == "reasoning" or kind in CALLS:
            rank = {"reasoning": 0, "message": 1}.get(kind, 2)
            if own is None or rank < own["rank"] or rank == own["rank"] != 2:
                own = {"role": "assistant", "content": "", "rank": rank}
                messages.append(own)
            own["rank"] = rank
            if kind == "reasoning":
                parts = item.get("content") or item.get("summary") or ()
                own["reasoning_content"] = "\n".join(str(part.get("text", "")) for part in parts)
            elif is_text:
                own["content"] = item.get("content") or ""
            else:
                own.setdefault("tool_calls", []).append(as_call(item))
            continue
        own = None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind in OUTPUTS:
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        else:
            raise refused(f"input[{index}] is of type {kind!r:.60}, which is not supported here.", "input")
    return [{name: value for name, value in message.items() if name != "rank"} for message in messages]


def response_answer(request: ChatRequest, body: Mapping[str, Any], id_: str, reply: ReturnedReply) -> dict[str, Any]:
    """Return the JSON of a response.

    Args:
        request: The request, as a chat completion.
        body: The request as it was.
        id_: Id of the chat completion.
        reply: The reply.
    """
    name, done = id_.removeprefix("chatcmpl-"), {"status": "completed"}
    output: list[dict[str, Any]] = []
    if reply.thinking:
        thoughts = [{"type": "reasoning_text", "text": reply.thinking}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": thoughts})
    if reply.content or not reply.calls:
        text = {"type": "output_text", "text": reply.content, "annotations": []}
        output.append({"type": "message", "id": f"msg_{name}", "role": "assistant", "content": [text], **done})
    for index, (call_id, function, arguments) in enumerate(reply.calls):
        call = as_item(body.get("tools"), call_id, function, arguments)
        output.append({"id": f"fc_{name}_{index}", **call, **done})
    is_cut = reply.finish_reason == "length"
    usage = usage_of([reply])
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": body.get("tool_choice") or "auto",
        **{key: body.get(key) for key in ("instructions", "metadata", "previous_response_id", "temperature", "top_p")},
        "tools": body.get("tools") or [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def response_events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a response that is complete."""
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events = [("created", {"response": begun}), ("in_progress", {"response": begun})]
    for index, item in enumerate(answer["output"]):
        events += _item_events({"output_index": index}, item)
    events.append((answer["status"], {"response": dict(answer)}))
    for number, (kind, fields) in enumerate(events):
        yield {"type": f"response.{kind}", "sequence_number": number, **fields}


def _item_events(where: Mapping[str, Any], item: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    inside = {**where, "item_id": item["id"]}
    empty: dict[str, Any]
    middle: list[tuple[str, dict[str, Any]]]
    if item["type"] == "local_shell_call":
        empty, middle = {"status": "in_progress"}, []
    elif item["type"] == "custom_tool_call":
        empty, middle = {"input": "", "status": "in_progress"}, []
        middle.append(("custom_tool_call_input.delta", {**inside, "delta": item["input"]}))
        middle.append(("custom_tool_call_input.done", {**inside, "input": item["input"]}))
    elif item["type"] == "function_call":
        empty = {"arguments": "", "status": "in_progress"}
        middle = [("function_call_arguments.delta", {**inside, "delta": item["arguments"]})]
        middle.append(
            ("function_call_arguments.done", {**inside, "name": item["name"], "arguments": item["arguments"]})
        )
    else:
        (part,) = item["content"]
        kind = part["type"]
        empty = {"content": []} | ({"status": "in_progress"} if "status" in item else {})
        inside |= {"content_index": 0}
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        text = part["text"]
        pieces = [text[start : start + PIECE_LENGTH] for start in range(0, len(text), PIECE_LENGTH)]
        middle = [("content_part.added", {**inside, "part": {**part, "text": ""}})]
        middle += [(f"{kind}.delta", {**inside, "delta": piece, **more}) for piece in pieces]
        middle += [(f"{kind}.done", {**inside, "text": text, **more}), ("content_part.done", {**inside, "part": part})]
    begin, end = (
        ("output_item.added", {**where, "item": {**item, **empty}}),
        ("output_item.done", {**where, "item": item}),
    )
    return [begin, *middle, end]
