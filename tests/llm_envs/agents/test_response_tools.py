"""Tools of the responses API as functions, and calls back as items; hand-written after OpenAI's reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llm_envs.agents.requests import RequestError
from llm_envs.agents.response_tools import as_call, as_item, chat_tools

PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": {"type": "grammar"}}
SPAWN = {"type": "function", "name": "spawn", "parameters": {"type": "object"}, "strict": False}
TOOLS: list[dict[str, Any]] = [PATCH, {"type": "local_shell"}, {"type": "namespace", "name": "team", "tools": [SPAWN]}]


def test_each_kind_becomes_a_function() -> None:
    functions = [tool["function"] for tool in chat_tools(TOOLS)]
    assert [function["name"] for function in functions] == ["apply_patch", "local_shell", "team__spawn"]
    assert functions[0]["parameters"]["required"] == ["input"]
    assert functions[1]["parameters"]["required"] == ["command"]
    assert functions[2] == {"name": "team__spawn", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("name", "arguments", "item"),
    [
        ("apply_patch", {"input": "+a"}, {"type": "custom_tool_call", "name": "apply_patch", "input": "+a"}),
        (
            "local_shell",
            {"command": ["ls", "-l"], "timeout_ms": 5},
            {
                "type": "local_shell_call",
                "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 5},
            },
        ),
        (
            "team__spawn",
            {"task": "x"},
            {"type": "function_call", "name": "spawn", "namespace": "team", "arguments": '{"task": "x"}'},
        ),
        ("other", {}, {"type": "function_call", "name": "other", "arguments": "{}"}),
    ],
)
def test_a_call_becomes_its_item_and_comes_back(name: str, arguments: dict[str, Any], item: dict[str, Any]) -> None:
    made = as_item(TOOLS, "call_1", name, json.dumps(arguments))
    assert made == {"call_id": "call_1", **item}
    function = as_call(made)["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)


def test_a_tool_of_the_provider_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"tools\[1\].*web_search"):
        chat_tools([PATCH, {"type": "web_search"}])
