"""`EnvTask.call`: an environment's tools in a framework that runs the tools itself, here a small one."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from llm_envs.agents import AgentEnv, Endpoint, EnvTask
from llm_envs.chat import ChatCodec
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.rollout import Collector
from llm_envs.testing import HashingTokenPolicy
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import StopReason, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

CALCULATOR = "llm/Calculator-v0"
CODEC = ChatCodec(tiny_tokenizer())
CALLS = [format_tool_call("calculator", expression=e) for e in ("2*3", "1/0", "37*24")]
TEXTS = [*CALLS, f"{CALLS[0]}\n{CALLS[2]}", f"{CALLS[0]}\n{CALLS[0]}", format_tool_call("calculator", wrong=1)]
TEXTS += ["<tool_call>{", f"<think>Hm.</think>{CALLS[2]}", format_answer(6), "No idea."]


def create_client(endpoint: Endpoint) -> httpx.Client:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return httpx.Client(base_url=endpoint.base_url, headers=headers, timeout=60, trust_env=False)


def run(task: EnvTask, client: httpx.Client, call: Callable[[str, dict[str, Any]], str]) -> None:
    """Run tools, all calls of a reply at once in threads, until there are none; then let the environment answer."""
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        response = client.post("chat/completions", json={"messages": messages, "tools": task.tools})
        response.raise_for_status()
        reply = response.json()["choices"][0]["message"]
        messages.append(reply)
        calls = reply.get("tool_calls") or ()
        if not calls:
            messages += task.step(reply)
            continue
        with ThreadPoolExecutor() as pool:
            given = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
            results = list(pool.map(lambda name_and_arguments: call(*name_and_arguments), given))
        messages += [
            {"role": "tool", "tool_call_id": c["id"], "content": result}
            for c, result in zip(calls, results, strict=True)
        ]


def framework(task: EnvTask, client: httpx.Client) -> None:
    run(task, client, task.call)


def asks_until_refused(task: EnvTask, client: httpx.Client) -> None:
    """Never looks at `is_over`, as frameworks do."""
    while True:
        response = client.post("chat/completions", json={"messages": task.messages, "tools": task.tools})
        response.raise_for_status()
        (call,) = response.json()["choices"][0]["message"]["tool_calls"]
        task.call(call["function"]["name"], json.loads(call["function"]["arguments"]))


def changes_arguments(task: EnvTask, client: httpx.Client) -> None:
    """Hides the error from the model, as frameworks do."""

    def call(name: str, arguments: dict[str, Any]) -> str:
        try:
            return task.call(name, {"expression": "1+1"})
        except Exception as error:
            return str(error)

    run(task, client, call)


def collected(env: Any, texts: list[str], n: int = 12, **settings: Any) -> list[Trajectory]:
    policy = HashingTokenPolicy(CODEC, texts)
    settings = {"codec": CODEC, "seed": 3, "max_retries": 0, "progress": False} | settings
    with Collector(env, policy, **settings) as collector:
        found = [t for group in collector.collect(n, 2) for t in group]
    assert validate_batch(found) == []
    return found


@pytest.mark.parametrize("workers", [0, 1], ids=["thread", "worker"])
def test_a_frameworks_rows_are_those_of_the_environment(workers: int) -> None:
    expected = collected(CALCULATOR, TEXTS)
    found = collected(AgentEnv(framework, CALCULATOR, create_client=create_client), TEXTS, workers=workers)
    assert max(len(turn.tool_results) for t in found for turn in t.turns) == 2
    assert {t.stop_reason for t in found} == {StopReason.TERMINATED, StopReason.ENV_TRUNCATED}
    assert found == expected


def test_a_request_after_the_end_is_refused_and_ends_the_framework() -> None:
    env = AgentEnv(asks_until_refused, CALCULATOR, create_client=create_client)
    for t in collected(env, CALLS[2:], n=2):
        assert (t.status, t.stop_reason, len(t.turns)) == ("ok", StopReason.ENV_TRUNCATED, 4)
        assert "limit" not in t.metadata


def test_a_call_that_the_policy_did_not_make_is_the_agents_failure() -> None:
    env = AgentEnv(changes_arguments, CALCULATOR, create_client=create_client)
    for t in collected(env, CALLS[2:], n=2):
        assert t.status == "errored" and t.error is not None
        assert (t.error.kind, t.error.where) == ("InvalidConfigError", "agent")
        assert "has not called calculator with {'expression': '1+1'}" in t.error.message


def test_the_model_does_not_see_that_a_schema_is_strict() -> None:
    def agent(task: EnvTask, client: httpx.Client) -> str:
        tools = [{**tool, "function": {**tool["function"], "strict": False}} for tool in task.tools]
        answer = client.post("chat/completions", json={"messages": task.messages, "tools": tools}).json()
        return str(answer["choices"][0]["message"]["content"])

    (found, *_), (expected, *_) = (
        collected(env, [format_answer(6)], n=1)
        for env in (AgentEnv(agent, CALCULATOR, create_client=create_client), CALCULATOR)
    )
    np.testing.assert_array_equal(found.rows[0].ids, expected.rows[0].ids)
