"""The responses API of the package `openai`, and the package `anthropic`, not touched, on a tiny model with tools.

Both are installed beside vLLM only.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tool_model import ENV, collected, tool_policy

from llm_envs.agents import AgentEnv, Endpoint, EnvTask, PolicyServer
from llm_envs.agents.responses import chat_messages
from llm_envs.policies import TransformersPolicy
from llm_envs.types import SamplingParams, validate_batch

openai = pytest.importorskip("openai", reason="the package openai is not installed (make test-vllm has it)")
anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed (make test-vllm has it)")
pytestmark = pytest.mark.vllm
policy = pytest.fixture(scope="module")(tool_policy)


def anthropic_client(endpoint: Endpoint) -> Any:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    return anthropic.Anthropic(
        base_url=endpoint.anthropic_url, api_key=endpoint.api_key, max_retries=0, http_client=http
    )


def response_tools(task: EnvTask) -> list[Any]:
    return [{"type": "function", "strict": False, **tool["function"]} for tool in task.tools]


async def acts_by_responses(task: EnvTask, client: Any) -> None:
    """All items go back with each request."""
    items: list[Any] = [{"role": m["role"], "content": m["content"]} for m in task.messages]
    while not task.is_over:
        response = await client.responses.create(model="policy", input=items, tools=response_tools(task))
        items += [*response.output, *results(task, response)]


async def acts_by_previous_id(task: EnvTask, client: Any) -> None:
    """The server knows the conversation; the answers are streams."""
    more: dict[str, Any] = {"input": [{"role": m["role"], "content": m["content"]} for m in task.messages]}
    while not task.is_over:
        events = []
        async for event in await client.responses.create(
            model="policy", tools=response_tools(task), stream=True, **more
        ):
            events.append(event)
        response = events[-1].response
        said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert said == response.output_text
        more = {"input": results(task, response), "previous_response_id": response.id}


def results(task: EnvTask, response: Any) -> list[Any]:
    (reply,) = chat_messages([item.model_dump() for item in response.output])
    found: list[Any] = []
    for message in task.step(reply):
        if message["role"] == "tool":
            call_id, output = message["tool_call_id"], message["content"]
            found.append({"type": "function_call_output", "call_id": call_id, "output": output})
        else:
            found.append({"role": message["role"], "content": message["content"]})
    return found


def acts_by_messages(task: EnvTask, client: Any) -> None:
    _by_messages(task, lambda **ask: client.messages.create(**ask))


def acts_by_streamed_messages(task: EnvTask, client: Any) -> None:
    def ask(**given: Any) -> Any:
        with client.messages.stream(**given) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        assert text == "".join(block.text for block in message.content if block.type == "text")
        return message

    _by_messages(task, ask)


def _by_messages(task: EnvTask, ask: Any) -> None:
    system = [m["content"] for m in task.messages if m["role"] == "system"]
    common: dict[str, Any] = {"model": "policy", "max_tokens": 512, **({"system": system[0]} if system else {})}
    common["tools"] = [
        {
            "name": tool["function"]["name"],
            "description": tool["function"].get("description", ""),
            "input_schema": tool["function"]["parameters"],
        }
        for tool in task.tools
    ]
    history: list[Any] = [m for m in task.messages if m["role"] != "system"]
    while not task.is_over:
        message = ask(messages=history, **common)
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in message.content
            if block.type == "tool_use"
        ]
        blocks = [
            {"type": "tool_result", "tool_use_id": m["tool_call_id"], "content": m["content"]}
            if m["role"] == "tool"
            else {"type": "text", "text": m["content"]}
            for m in task.step({"role": "assistant", "content": text, "tool_calls": calls})
        ]
        history += [{"role": "assistant", "content": message.content}, {"role": "user", "content": blocks}]


@pytest.mark.parametrize(
    ("agent", "create_client"),
    [
        (acts_by_responses, None),
        (acts_by_previous_id, None),
        (acts_by_messages, anthropic_client),
        (acts_by_streamed_messages, anthropic_client),
    ],
    ids=["responses", "previous_response_id, streamed", "messages", "messages, streamed"],
)
def test_rows_are_those_of_the_environment(agent: Any, create_client: Any, policy: TransformersPolicy) -> None:
    expected = collected(ENV, policy)
    found = collected(AgentEnv(agent, ENV, create_client=create_client), policy)
    assert validate_batch(found) == []
    assert any(m.role == "tool" for t in found for m in t.messages)
    for ours, theirs in zip(found, expected, strict=True):
        assert [row.ids.tolist() for row in ours.rows] == [row.ids.tolist() for row in theirs.rows]
        for a, b in zip(ours.rows, theirs.rows, strict=True):
            np.testing.assert_array_equal(a.logps, b.logps)
        assert ours.reward == theirs.reward


def test_accumulated_streams_and_errors_are_those_of_the_clients(policy: TransformersPolicy) -> None:
    async def main() -> None:
        async with PolicyServer(policy, codec=policy.codec, sampling=SamplingParams(max_new_tokens=400)) as server:
            where = server.endpoint("a")
            client = openai.AsyncOpenAI(base_url=where.base_url, api_key=where.api_key, max_retries=0)
            async with client.responses.stream(model="any", input="Hello.") as stream:
                kinds = [event.type async for event in stream]
            assert kinds[0] == "response.created"
            if kinds[-1] == "response.completed":
                assert (await stream.get_final_response()).status == "completed"
            with pytest.raises(openai.BadRequestError, match="no response of this session"):
                await client.responses.create(model="any", input="Hello.", previous_response_id="resp_x")
            with pytest.raises(openai.BadRequestError, match="web_search"):
                await client.responses.create(model="any", input="Hello.", tools=[{"type": "web_search"}])
            other = anthropic.AsyncAnthropic(base_url=where.anthropic_url, api_key=where.api_key, max_retries=0)
            ask: Any = {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello."}]}
            with pytest.raises(anthropic.BadRequestError, match="tool_choice") as caught:
                await other.messages.create(**ask, tool_choice={"type": "any"})
            assert caught.value.body["error"]["type"] == "invalid_request_error"
            wrong = anthropic.AsyncAnthropic(base_url=where.anthropic_url, api_key="wrong", max_retries=0)
            with pytest.raises(anthropic.AuthenticationError):
                await wrong.messages.create(**ask)
            for made in (client, other, wrong):
                await made.close()

    asyncio.run(main())
