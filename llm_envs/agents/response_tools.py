"""The tools of the responses API as functions, and their calls as items.

| tool | as a function |
|---|---|
| `function` | itself |
| `custom` | of one text, `input`; a grammar is not enforced, so the client has to check the text |
| `local_shell` | `local_shell`, with `command` (a list of words), `working_directory`, `timeout_ms` |
| `namespace` | each of its functions, as `namespace__name` |
| others | error 400: the provider would run them |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.agents.requests import refused

__all__ = ["CALLS", "OUTPUTS", "as_call", "as_item", "chat_tools"]

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
"""Types of the items that call a tool."""
OUTPUTS = tuple(f"{kind}_output" for kind in CALLS)
_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_WORDS = {"type": "array", "items": {"type": "string"}}
_SHELL = {
    "type": "object",
    "properties": {"command": _WORDS, "working_directory": {"type": "string"}, "timeout_ms": {"type": "integer"}},
    "required": ["command"],
}


def chat_tools(tools: Any) -> list[dict[str, Any]]:
    """Return the functions of a request's tools, as a chat completion has them.

    Raises:
        RequestError: If a tool cannot be offered.
    """
    return [function for index, tool in enumerate(tools or ()) for function in _functions(f"tools[{index}]", tool)]


def as_item(tools: Any, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return the item of a call, without its own id.

    Args:
        tools: The request's tools.
        call_id: Id of the call.
        name: Name of the function.
        arguments: Its arguments as JSON.
    """
    given = json.loads(arguments)
    for tool in tools or ():
        kind, own = tool.get("type"), tool.get("name")
        if kind == "custom" and own == name and isinstance(given.get("input"), str):
            return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": given["input"]}
        if kind == "local_shell" and name == "local_shell":
            return {"type": "local_shell_call", "call_id": call_id, "action": {"type": "exec", "env": {}, **given}}
        if kind == "namespace" and name.startswith(f"{own}__"):
            inner = {"name": name.removeprefix(f"{own}__"), "namespace": own}
            return {"type": "function_call", "call_id": call_id, **inner, "arguments": arguments}
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def as_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call of an item, as a chat completion has it."""
    name, arguments = item.get("name"), item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input")})
    elif item["type"] == "local_shell_call":
        action = item.get("action") or {}
        name, arguments = "local_shell", json.dumps({key: action[key] for key in _SHELL_KEYS if action.get(key)})
    elif item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    return {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments}}


_SHELL_KEYS: Sequence[str] = ("command", "working_directory", "timeout_ms")


def _functions(where: str, tool: Any) -> list[dict[str, Any]]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind == "namespace":
        inner = [function for each in tool.get("tools") or () for function in _functions(where, each)]
        return [
            _function({**each["function"], "name": f"{tool.get('name')}__{each['function']['name']}"}) for each in inner
        ]
    if kind == "function":
        return [_function(tool)]
    if kind == "custom":
        return [_function({**tool, "parameters": _TEXT})]
    if kind == "local_shell":
        return [_function({"name": kind, "description": "Run a command.", "parameters": _SHELL})]
    given = json.dumps(tool)[:80]
    raise refused(
        f"{where} is {given}: the provider would run it, and here is none. Switch it off in the agent.", "tools"
    )


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": shown}
