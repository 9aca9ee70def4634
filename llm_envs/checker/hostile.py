"""Hostile model outputs: actions that must not make the task raise, and must not win more often than guesses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.spaces import MAX_TEXT_LENGTH

__all__ = ["HostileAction", "hostile_actions", "mutate"]

HostileAction = Callable[[Any, str, random.Random], str]
"""(environment, last observation, random source) to action."""

_ALPHABET = "abc XYZ 0123456789 <>/{}[]\"'\\\n\t.,:;+-*=()äß中🙂\x00\ud800"

_TEXTS: dict[str, str] = {
    "empty": "",
    "white space": " \n\t ",
    "a word": "hello",
    "a null character": "\x00",
    "lone surrogates": "\ud800\udfff",
    "an empty answer": "<answer></answer>",
    "a blank answer": "<answer> \n </answer>",
    "an open answer": "<answer>1",
    "a closing tag": "</answer>",
    "nested answers": "<answer><answer>1</answer></answer>",
    "answer 0": format_answer(0),
    "answer 1": format_answer(1),
    "answer nan": format_answer("nan"),
    "answer True": format_answer(True),
    "answer None": format_answer(None),
    "an answer of a lone surrogate": format_answer("\ud800"),
    "an answer of other digits": format_answer("²٣８"),
    "an answer of all numbers": format_answer(" ".join(map(str, range(1_000)))),
    "an answer of a huge power": format_answer("9**9**9**9"),
    "an answer of code": format_answer("__import__('os').getpid()"),
    "an open thought": "<think>hmm",
    "only a thought": "<think>hmm</think>",
    "an open tool call": "<tool_call>",
    "an empty tool call": "<tool_call></tool_call>",
    "a tool call of a list": "<tool_call>[]</tool_call>",
    "a tool call of a number": "<tool_call>1e999</tool_call>",
    "a broken tool call": '<tool_call>{"name": "x", "arguments": {</tool_call>',
    "a tool call without a name": '<tool_call>{"arguments": {}}</tool_call>',
    "a tool call with a text as arguments": '<tool_call>{"name": "x", "arguments": "y"}</tool_call>',
    "a tool that does not exist": format_tool_call("no_such_tool\ud800"),
    "a long tool call, nested": "<tool_call>" + "[" * 100_000 + "</tool_call>",
    "a long text": "word " * 20_000,
    "a long row of tags": "<answer>" * 20_000,
    "a long number": format_answer("9" * 100_000),
    "too long": "x" * (MAX_TEXT_LENGTH + 1),
}


def hostile_actions(tools: Sequence[Mapping[str, Any]] = ()) -> dict[str, HostileAction]:
    """Return hostile actions by name: fixed texts, random ones, echoes of the prompt, and misuse of each tool.

    Args:
        tools: JSON Schemas of the environment's tools.
    """
    actions: dict[str, HostileAction] = {name: _constant(text) for name, text in _TEXTS.items()}
    actions["random text"] = lambda env, seen, rng: _random_text(rng)
    actions["a random answer"] = lambda env, seen, rng: format_answer(_random_text(rng))
    actions["an answer of a random number"] = lambda env, seen, rng: format_answer(rng.randint(-10_000, 10_000))
    actions["an echo"] = lambda env, seen, rng: seen
    actions["an echo as the answer"] = lambda env, seen, rng: format_answer(seen)
    actions["an echo of the system prompt"] = lambda env, seen, rng: (
        f"{getattr(env.unwrapped, 'system_prompt', '')}\n{seen}"
    )
    actions["an echo of the problem"] = lambda env, seen, rng: format_answer(seen.partition(" is ")[2].rstrip("?"))
    for tool in tools:
        function = tool["function"]
        name, parameters = function["name"], function["parameters"].get("properties", {})
        for label, value in _ARGUMENTS.items():
            arguments = dict.fromkeys(parameters, value)
            actions[f"{name} with {label}"] = _constant(format_tool_call(name, **arguments))
        actions[f"{name} without arguments"] = _constant(format_tool_call(name))
        actions[f"{name} with an unknown argument"] = _constant(format_tool_call(name, **{"no such": 1}))
        actions[f"{name} a thousand times, long"] = _constant(format_tool_call(name) * 1_000)
    return actions


_ARGUMENTS: dict[str, Any] = {
    "nulls": None,
    "lists": [[1]],
    "objects": {"a": {"b": None}},
    "empty texts": "",
    "a huge power": "9**9**9**9",
    "a huge number": 10**400,
    "lone surrogates": "\ud800",
    "code": "__import__('os').getpid()",
    "long texts": "(" * 50_000,
    "an answer": json.dumps(format_answer(1)),
}


def mutate(text: str, rng: random.Random) -> str:
    """Return a text with one to three small changes, like the mistakes of a model that has nearly learned the form."""
    for _ in range(rng.randint(1, 3)):
        start, stop = sorted(rng.randint(0, len(text)) for _ in range(2))
        text = rng.choice(_MUTATIONS)(text[:start], text[start:stop], text[stop:], rng)
    return text


_PIECES = (
    *("<answer>", "</answer>", "<think>", "</think>", "<tool_call>", "</tool_call>", "{", "}", '"', ",", " ", "\n"),
    *("-", "0", "1", "99", "e9", ".", "None", "\ud800", "\x00", "é"),
)

_MUTATIONS: tuple[Callable[[str, str, str, random.Random], str], ...] = (
    lambda before, middle, after, rng: before + after,
    lambda before, middle, after, rng: before + middle + middle + after,
    lambda before, middle, after, rng: before + middle[::-1] + after,
    lambda before, middle, after, rng: before + middle.swapcase() + after,
    lambda before, middle, after, rng: before + rng.choice(_PIECES) + middle + after,
    lambda before, middle, after, rng: before + rng.choice(_PIECES) + after,
    lambda before, middle, after, rng: before + _random_text(rng) + middle + after,
    lambda before, middle, after, rng: before + "".join(rng.choice("0123456789") for _ in middle[:4]) + after,
    lambda before, middle, after, rng: before + middle,
    lambda before, middle, after, rng: after + before,
)
"""Ways to damage a text in three parts."""


def _constant(text: str) -> HostileAction:
    return lambda env, seen, rng: text


def _random_text(rng: random.Random) -> str:
    return "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(0, 40)))
