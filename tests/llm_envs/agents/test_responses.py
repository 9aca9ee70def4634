"""OpenAI's responses API and Anthropic's messages API by plain HTTP; the packages: test_server_official_clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from llm_envs.agents import Endpoint, PolicyServer
from llm_envs.parsers import FORMATTERS, format_tool_call
from llm_envs.testing import ByteCodec, HashingTokenPolicy
from llm_envs.types import FinishReason, Sampled, SamplingParams, ToolCall, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

CODEC = ByteCodec()
CALL = "<think>Hm.</think>" + format_tool_call("multiply", b=4, a=3)
TOOL_TOKEN = 260
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "multiply", "description": "Multiply.", "parameters": PARAMETERS}}
]
RESPONSE_TOOLS = [{"type": "function", "name": "multiply", "description": "Multiply.", "parameters": PARAMETERS}]
MESSAGE_TOOLS = [{"name": "multiply", "description": "Multiply.", "input_schema": PARAMETERS}]

Body = dict[str, Any]
Ask = Callable[..., Awaitable[httpx.Response]]


def calls_then_answers(ids: np.ndarray, random: Any) -> str:
    return f"It is {random.randrange(100)}." if TOOL_TOKEN in ids.tolist() else CALL


class Stopping(HashingTokenPolicy):
    """Ends behind a stop string, as engines do."""

    async def sample(self, prompt_ids: np.ndarray, params: SamplingParams, *, seed: int, session: str) -> Sampled:
        sampled = await super().sample(prompt_ids, params, seed=seed, session=session)
        text = CODEC.decode_reply(sampled.token_ids)
        ends = [text.find(stop) + len(stop) for stop in params.stop_strings if stop in text]
        if not ends:
            return sampled
        n = min(ends)
        return replace(
            sampled, token_ids=sampled.token_ids[:n], logps=sampled.logps[:n], finish_reason=FinishReason.STOP_STRING
        )


def serve(play: Callable[[Ask], Awaitable[None]], policy: Any = None) -> Trajectory:
    """Let `play` post requests, and return the session."""

    async def main() -> Trajectory:
        server = PolicyServer(policy or HashingTokenPolicy(CODEC, calls_then_answers), codec=CODEC)
        async with server, httpx.AsyncClient(base_url=server.url, timeout=120, trust_env=False) as http:

            async def ask(path: str, body: Any) -> httpx.Response:
                return await http.post(f"/s/a/v1/{path}", json=body, headers={"x-api-key": server.token})

            await play(ask)
            return server.end("a", 1.0)

    trajectory = asyncio.run(main())
    assert validate_batch([trajectory]) == []
    return trajectory


async def chat_loop(ask: Ask) -> None:
    """The same loop as a chat completion."""
    history: list[Body] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3 * 4?"}]
    first = (await ask("chat/completions", {"messages": history, "tools": CHAT_TOOLS})).json()["choices"][0]["message"]
    history += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "12"}]
    await ask("chat/completions", {"messages": history, "tools": CHAT_TOOLS})


def same_rows(one: Trajectory, other: Trajectory) -> bool:
    return [row.ids.tolist() for row in one.rows] == [row.ids.tolist() for row in other.rows] and (
        [row.mask.tolist() for row in one.rows] == [row.mask.tolist() for row in other.rows]
    )


async def error_of(ask: Ask, path: str, body: Any) -> str:
    response = await ask(path, body)
    assert response.status_code == 400, response.text
    data = response.json()
    assert data["type"] == "error"
    return str(data["error"]["message"])


def events_of(response: httpx.Response) -> list[Body]:
    found = []
    for text in response.text.strip().split("\n\n"):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


class TestResponses:
    @pytest.mark.parametrize("by_id", [False, True], ids=["items", "previous_response_id"])
    def test_a_loop_with_a_tool_leaves_the_row_of_the_chat(self, by_id: bool) -> None:
        async def play(ask: Ask) -> None:
            common = {
                "model": "m",
                "instructions": "Be brief.",
                "tools": RESPONSE_TOOLS,
                "text": {"format": {"type": "text"}},
            }
            items: list[Body] = [{"role": "user", "content": [{"type": "input_text", "text": "3 * 4?"}]}]
            first = (await ask("responses", {**common, "input": items})).json()
            assert (first["object"], first["status"], first["model"]) == ("response", "completed", "m")
            thought, call = first["output"]
            assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
            assert (call["type"], call["name"], call["arguments"]) == ("function_call", "multiply", '{"b": 4, "a": 3}')
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
            if by_id:
                more: Body = {"input": [result], "previous_response_id": first["id"]}
            else:
                more = {"input": [*items, *first["output"], result]}
            second = (await ask("responses", {**common, **more})).json()
            (message,) = second["output"]
            assert message["content"][0]["text"].startswith("It is ")
            assert second["usage"]["total_tokens"] == second["usage"]["input_tokens"] + second["usage"]["output_tokens"]

        assert same_rows(serve(play), serve(chat_loop))

    def test_a_text_is_enough_and_a_limit_makes_it_incomplete(self) -> None:
        async def play(ask: Ask) -> None:
            answer = (await ask("responses", {"input": "Hi.", "max_output_tokens": 3})).json()
            assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
            assert answer["output"][0]["content"][0]["text"] == "abc"

        assert serve(play, HashingTokenPolicy(CODEC, ["abcdef"])).messages[0].content == "Hi."

    def test_instructions_are_those_of_one_response(self) -> None:
        async def play(ask: Ask) -> None:
            first = (await ask("responses", {"input": "One?", "instructions": "Be brief."})).json()
            await ask("responses", {"input": "Two?", "previous_response_id": first["id"]})

        rows = serve(play, HashingTokenPolicy(CODEC, ["Yes."])).rows
        assert len(rows) == 2
        assert b"Be brief." not in bytes(id_ for id_ in rows[1].ids.tolist() if id_ < 256)
        assert b"One?" in bytes(id_ for id_ in rows[1].ids.tolist() if id_ < 256)

    def test_the_events_of_a_stream(self) -> None:
        async def play(ask: Ask) -> None:
            events = events_of(await ask("responses", {"input": "Hi.", "tools": RESPONSE_TOOLS, "stream": True}))
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert [event["type"].removeprefix("response.") for event in events] == [
                "created",
                "in_progress",
                *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
                *("content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta"),
                *("function_call_arguments.done", "output_item.done", "completed"),
            ]
            assert events[0]["response"]["output"] == []
            assert len(events[-1]["response"]["output"]) == 2

        serve(play)

    def test_what_is_refused(self) -> None:
        cases: list[tuple[Any, str]] = [
            ([1], "the body is list"),
            ({}, "input is None"),
            ({"input": []}, "messages is"),
            ({"input": [{"type": "item_reference", "id": "x"}]}, r"input[0] is of type 'item_reference'"),
            ({"input": ["x"]}, "input[0] is of type 'str'"),
            ({"input": "x", "tools": [{"type": "web_search"}]}, 'tools[0] is {"type": "web_search"}'),
            ({"input": "x", "previous_response_id": "resp_0"}, "no response of this session"),
            ({"input": "x", "background": True}, "'background'"),
            ({"input": "x", "conversation": "c"}, "'conversation'"),
            ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "response_format"),
            ({"input": "x", "tool_choice": "required"}, "tool_choice"),
            ({"input": "x", "max_output_tokens": 0}, "max_tokens is 0"),
        ]

        async def play(ask: Ask) -> None:
            for body, message in cases:
                assert message in await error_of(ask, "responses", body), body
            unkept = (await ask("responses", {"input": "Hi.", "store": False})).json()
            assert "store=true" in await error_of(
                ask, "responses", {"input": "x", "previous_response_id": unkept["id"]}
            )

        serve(play)


class TestMessages:
    def test_tokens_are_counted_without_a_turn(self) -> None:
        async def play(ask: Ask) -> None:
            body = {"messages": [{"role": "user", "content": "Hi."}], "tools": MESSAGE_TOOLS}
            counted = (await ask("messages/count_tokens", body)).json()
            asked = (await ask("messages", body | {"max_tokens": 8})).json()
            assert counted == {"input_tokens": asked["usage"]["input_tokens"]}

        assert len(serve(play).turns) == 1

    def test_a_loop_with_a_tool_leaves_the_row_of_the_chat(self) -> None:
        async def play(ask: Ask) -> None:
            system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
            common = {
                "model": "m",
                "max_tokens": 512,
                "system": system,
                "tools": MESSAGE_TOOLS,
                "thinking": {"type": "adaptive"},
            }
            history: list[Body] = [{"role": "user", "content": "3 * 4?"}]
            first = (await ask("messages", {**common, "messages": history})).json()
            assert (first["type"], first["role"], first["stop_reason"]) == ("message", "assistant", "tool_use")
            thought, call = first["content"]
            assert thought == {"type": "thinking", "thinking": "Hm.", "signature": ""}
            assert (call["type"], call["name"], call["input"]) == ("tool_use", "multiply", {"a": 3, "b": 4})
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "12"}]}
            history += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
            second = (await ask("messages", {**common, "messages": history})).json()
            assert second["stop_reason"] == "end_turn"
            assert second["content"][0]["text"].startswith("It is ")
            assert second["usage"]["output_tokens"] == len(second["content"][0]["text"]) + 1

        assert same_rows(serve(play), serve(chat_loop))

    def test_reasons_to_stop(self) -> None:
        async def play(ask: Ask) -> None:
            body: Body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3}
            assert (await ask("messages", body)).json()["stop_reason"] == "max_tokens"
            body |= {"max_tokens": 100, "stop_sequences": ["zz", "de"]}
            answer = (await ask("messages", body)).json()
            assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "de")
            assert answer["content"] == [{"type": "text", "text": "abc"}]

        serve(play, Stopping(CODEC, ["abcdef"]))

    def test_results_and_texts_of_one_message_are_messages_in_their_order(self) -> None:
        async def play(ask: Ask) -> None:
            blocks = [{"type": "text", "text": text} for text in ("Before.", "After.")]
            use = {"type": "tool_use", "id": "c", "name": "multiply", "input": {}}
            result = {"type": "tool_result", "tool_use_id": "c", "content": "12"}
            history = [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result, *blocks[1:]]},
            ]
            assert (await ask("messages", {"messages": history})).status_code == 200

        trajectory = serve(play, HashingTokenPolicy(CODEC, ["Yes."]))
        assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "user", "assistant"]

    def test_the_events_of_a_stream(self) -> None:
        async def play(ask: Ask) -> None:
            body = {"messages": [{"role": "user", "content": "Hi."}], "tools": MESSAGE_TOOLS, "stream": True}
            events = events_of(await ask("messages", body))
            assert [event["type"] for event in events] == [
                "message_start",
                *("content_block_start", "content_block_delta", "content_block_stop") * 2,
                "message_delta",
                "message_stop",
            ]
            assert events[5]["delta"] == {"type": "input_json_delta", "partial_json": '{"b": 4, "a": 3}'}
            assert events[-2]["delta"]["stop_reason"] == "tool_use"

        serve(play)

    def test_what_is_refused(self) -> None:
        hi = [{"role": "user", "content": "Hi."}]
        image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
        cases: list[tuple[Any, str]] = [
            ("x", "the body is str"),
            ({}, "messages is None"),
            ({"messages": [3]}, "messages[0] is 3"),
            ({"messages": image}, "messages[0] has a block of type 'image'"),
            ({"messages": [*hi, {"role": "assistant", "content": "It"}]}, "the last message is the assistant's"),
            ({"messages": hi, "tools": [{"type": "web_search_20250305", "name": "x"}]}, "tools[0] is"),
            ({"messages": hi, "tools": [{"description": "x"}]}, "tools[0] is"),
            ({"messages": hi, "tool_choice": {"type": "any"}}, "tool_choice"),
            ({"messages": hi, "output_config": {"format": {"type": "json_schema"}}}, "response_format"),
            ({"messages": hi, "max_tokens": 0}, "max_tokens is 0"),
            ({"messages": hi, "mcp_servers": [1]}, "'mcp_servers'"),
        ]

        async def play(ask: Ask) -> None:
            for body, message in cases:
                assert message in await error_of(ask, "messages", body), body
            await ask("messages", {"messages": hi})

        serve(play)


def test_both_forms_of_the_token_and_the_address_for_anthropic() -> None:
    async def main() -> None:
        policy = HashingTokenPolicy(CODEC, ["Yes."])
        async with PolicyServer(policy, codec=CODEC) as server, httpx.AsyncClient(trust_env=False) as http:
            where = server.endpoint("a")
            assert f"{where.anthropic_url}/v1" == where.base_url
            url = f"{where.anthropic_url}/v1/messages?beta=true"
            body = {"messages": [{"role": "user", "content": "Hi."}]}
            for headers, status in (
                ({"x-api-key": where.api_key}, 200),
                ({"Authorization": f"Bearer {where.api_key}"}, 200),
                ({"x-api-key": "wrong"}, 401),
                ({"x-api-key": "wrong", "Authorization": f"Bearer {where.api_key}"}, 401),
                ({}, 401),
            ):
                assert (await http.post(url, json=body, headers=headers)).status_code == status

    asyncio.run(main())
    assert Endpoint("http://h/v1", "key").anthropic_url == "http://h"


LONG = 'Zürich: "a", {b}\n' * 4
SEVERAL = {
    "hermes": "\n".join(format_tool_call("multiply", note=note) for note in ("1", LONG, "1")),
    "mistral": "[TOOL_CALLS]"
    + json.dumps([{"name": "multiply", "arguments": {"note": n}, "id": "abcdefghi"} for n in ("1", LONG, "1")]),
    "kimi_k2": FORMATTERS["kimi_k2"]([ToolCall("multiply", {"note": note}) for note in ("1", LONG, "1")]),
}
"""Replies with three calls, the first and the last equal: without ids, with one id for all, with an id for each."""


def pieced_chat(response: httpx.Response) -> list[tuple[str, str, str]]:
    """Put the calls of a streamed chat completion together as clients do: by index, arguments joined."""
    calls: dict[int, list[str]] = {}
    for line in response.text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for piece in json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], [piece["id"], piece["function"]["name"], ""])
            call[2] += piece["function"]["arguments"]
    assert list(calls) == list(range(len(calls)))
    return [(id_, name, arguments) for id_, name, arguments in calls.values()]


def pieced_response(response: httpx.Response) -> list[tuple[str, str, str]]:
    calls: dict[str, list[str]] = {}
    for event in events_of(response):
        if event["type"] == "response.output_item.added":
            calls[event["item"]["id"]] = [event["item"]["call_id"], event["item"]["name"], ""]
        elif event["type"] == "response.function_call_arguments.delta":
            calls[event["item_id"]][2] += event["delta"]
    return [(id_, name, arguments) for id_, name, arguments in calls.values()]


def pieced_message(response: httpx.Response) -> list[tuple[str, str, str]]:
    calls: dict[int, list[str]] = {}
    for event in events_of(response):
        if event["type"] == "content_block_start":
            calls[event["index"]] = [event["content_block"]["id"], event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta":
            calls[event["index"]][2] += event["delta"]["partial_json"]
    return [(id_, name, arguments) for id_, name, arguments in calls.values()]


@pytest.mark.parametrize("written", SEVERAL)
@pytest.mark.parametrize(
    ("path", "body", "pieced"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi."}], "tools": CHAT_TOOLS}, pieced_chat),
        ("responses", {"input": "Hi.", "tools": RESPONSE_TOOLS}, pieced_response),
        ("messages", {"messages": [{"role": "user", "content": "Hi."}], "tools": MESSAGE_TOOLS}, pieced_message),
    ],
    ids=["chat", "responses", "messages"],
)
def test_several_calls_keep_ids_order_and_arguments_in_a_stream(
    path: str, body: Body, pieced: Callable[[httpx.Response], list[tuple[str, str, str]]], written: str
) -> None:
    """Two turns: every id is unique in the conversation, whatever ids the model writes."""
    ids: list[str] = []

    async def play(ask: Ask) -> None:
        for _ in range(2):
            found = pieced(await ask(path, {**body, "stream": True}))
            assert [(name, json.loads(arguments)) for _, name, arguments in found] == [
                ("multiply", {"note": note}) for note in ("1", LONG, "1")
            ]
            ids.extend(id_ for id_, _, _ in found)

    serve(play, HashingTokenPolicy(CODEC, [SEVERAL[written]]))
    assert len(set(ids)) == len(ids) == 6
