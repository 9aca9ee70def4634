"""The package `openai`, not touched, against a tiny model that calls tools; it is installed beside vLLM only."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from tool_model import ENV, SAMPLING, collected, tool_policy

from llm_envs.agents import AgentEnv, EnvTask, PolicyServer
from llm_envs.policies import TransformersPolicy
from llm_envs.rollout import Collector
from llm_envs.types import validate_batch

openai = pytest.importorskip("openai", reason="the package openai is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm
policy = pytest.fixture(scope="module")(tool_policy)


async def acts(task: EnvTask, client: Any) -> None:
    """The plain loop of the documentation: objects of the client go back as they came."""
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=task.tools)
        reply = answer.choices[0].message
        messages += [reply, *task.step(reply)]


async def acts_in_streams(task: EnvTask, client: Any) -> None:
    """Put the pieces of each reply together. (The client's own `stream()` raises on a reply that is cut.)"""
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        reply: dict[str, Any] = {"role": "assistant", "content": ""}
        ask = {"model": "policy", "messages": messages, "tools": task.tools, "stream": True}
        async for chunk in await client.chat.completions.create(**ask):
            delta = chunk.choices[0].delta
            reply["content"] += delta.content or ""
            for call in delta.tool_calls or ():
                kept = call.model_dump(include={"id", "type", "function"})
                reply.setdefault("tool_calls", []).append(kept)
        messages += [reply, *task.step(reply)]


def acts_plainly(task: EnvTask, client: Any) -> None:
    messages: list[Any] = list(task.messages)
    while not task.is_over:
        answer = client.chat.completions.create(model="policy", messages=messages, tools=task.tools)
        reply = answer.choices[0].message.model_dump(exclude_none=True)
        reply.pop("reasoning_content", None)
        messages += [reply, *task.step(reply)]


@pytest.mark.parametrize("agent", [acts, acts_in_streams, acts_plainly], ids=["objects", "streams", "plain"])
def test_an_agents_rows_are_those_of_the_environment(agent: Any, policy: TransformersPolicy) -> None:
    expected, found = collected(ENV, policy), collected(AgentEnv(agent, ENV), policy)
    assert validate_batch(found) == []
    assert any(m.role == "tool" for t in found for m in t.messages)
    assert found == expected


def test_errors_are_those_of_the_client(policy: TransformersPolicy) -> None:
    async def main() -> None:
        async with PolicyServer(policy, codec=policy.codec, sampling=SAMPLING) as server:
            where = server.endpoint("a")
            client = openai.AsyncOpenAI(base_url=where.base_url, api_key=where.api_key)
            ask: Any = {"model": "any", "messages": [{"role": "user", "content": "Hello."}]}
            assert [model.id async for model in await client.models.list()] == ["policy"]
            answer = await client.chat.completions.create(**ask, n=2, logprobs=True, max_tokens=4, temperature=0.5)
            assert len(answer.choices) == 2
            assert all(choice.logprobs.content for choice in answer.choices)
            with pytest.raises(openai.BadRequestError, match="response_format") as caught:
                await client.chat.completions.create(**ask, response_format={"type": "json_object"})
            assert (caught.value.code, caught.value.param) == ("unsupported_or_invalid", "response_format")
            with pytest.raises(openai.BadRequestError, match="Did you mean") as caught:
                await client.chat.completions.create(**ask, extra_body={"min_pp": 1})
            with pytest.raises(openai.NotFoundError, match="does not exist here"):
                await client.embeddings.create(model="any", input="Hello.")
            with pytest.raises(openai.AuthenticationError):
                await openai.AsyncOpenAI(base_url=where.base_url, api_key="wrong").models.list()
            long = {"role": "user", "content": "word " * 2000}
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="any", messages=[long])
            assert caught.value.code == "context_length_exceeded"
            await client.close()

    asyncio.run(main())


def test_concurrent_requests_and_a_cancelled_one(policy: TransformersPolicy) -> None:
    async def agent(task: dict[str, Any], client: Any) -> str:
        def ask(text: str) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return client.chat.completions.create(model="policy", messages=messages)

        answers = await asyncio.gather(*(ask(f"Part {part}.") for part in range(3)))
        late = asyncio.create_task(ask("Never mind."))
        await asyncio.sleep(0.001)
        late.cancel()
        return " ".join(answer.choices[0].message.content or "" for answer in answers)

    env = AgentEnv(agent, [{"question": "?"}], lambda result, trajectory: float(len(result)))
    with Collector(env, policy, codec=policy.codec, sampling=SAMPLING, progress=False) as collector:
        ((trajectory,),) = collector.collect(1)
    assert trajectory.status == "ok"
    assert len(trajectory.rows) >= 3
    assert validate_batch([trajectory]) == []


def test_a_program_reads_the_environment_variables(policy: TransformersPolicy, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(
        "import json, sys, openai\n"
        "task = json.load(sys.stdin)\n"
        "ask = openai.OpenAI().chat.completions.create\n"
        "answer = ask(model='any', messages=task['messages'], tools=task['tools'])\n"
        "print(answer.choices[0].message.content or 'no text')\n"
    )
    trajectories = collected(AgentEnv([sys.executable, str(script)], ENV), policy)
    assert {t.status for t in trajectories} == {"ok"}
    assert all(len(t.rows) == 1 and t.tools for t in trajectories)
