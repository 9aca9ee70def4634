"""The server that records: what it answers, which rows it leaves, and its limits. Real HTTP, on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from llm_envs.agents import PolicyServer
from llm_envs.agents.session import MAX_REFUSALS
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.parsers import format_tool_call
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import RolloutLimits
from llm_envs.testing import ByteCodec, HashingTokenPolicy, with_failures
from llm_envs.types import Message, SamplingParams, StopReason, Trajectory, validate_batch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

CODEC = ByteCodec()
TOOLS = [{"type": "function", "function": {"name": "multiply", "parameters": {"type": "object"}}}]
CALL = format_tool_call("multiply", b=4, a=3)
ASK = {"role": "user", "content": "What is 3 * 4?"}
TOOL_TOKEN = 260

Body = dict[str, Any]
Play = Callable[["Caller"], Awaitable[None]]


def calls_then_answers(ids: np.ndarray, random: Any) -> str:
    return f"It is {random.randrange(100)}." if TOOL_TOKEN in ids.tolist() else CALL


class Caller:
    """A client of one session, without any library of OpenAI's."""

    def __init__(self, server: PolicyServer, http: httpx.AsyncClient) -> None:
        self.server, self.http = server, http
        self.headers = {"Authorization": f"Bearer {server.token}"}

    async def post(self, body: Any, path: str = "/s/a/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(path, content=content, headers=self.headers | headers)

    async def ask(self, messages: list[Body], **body: Any) -> Body:
        """Return the message of the first choice."""
        response = await self.post({"model": "any", "messages": messages, **body})
        assert response.status_code == 200, response.text
        message: Body = response.json()["choices"][0]["message"]
        return message

    async def error(self, body: Any, **where: Any) -> tuple[int, str, str]:
        response = await self.post(body, **where)
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return response.status_code, error["code"], error["message"]


def serve(play: Play, policy: Any = None, *, end: bool = True, **settings: Any) -> Trajectory | None:
    """Run a server, let `play` talk to it, and return session "a"."""
    found: list[Trajectory] = []

    async def main() -> None:
        server = PolicyServer(policy or HashingTokenPolicy(CODEC, calls_then_answers), codec=CODEC, **settings)
        async with server, httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            await play(Caller(server, http))
            if end and "a" in server.sessions:
                found.append(server.end("a", 1.0))

    asyncio.run(main())
    return found[0] if found else None


def played(play: Play, policy: Any = None, **settings: Any) -> Trajectory:
    trajectory = serve(play, policy, **settings)
    assert trajectory is not None
    assert validate_batch([trajectory]) == []
    return trajectory


def result(message: Body, content: str = "12") -> Body:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": content}


def reasons(trajectory: Trajectory) -> list[str]:
    return list(trajectory.metadata.get("row_reasons", ["the first request"]))


class TestRows:
    def test_a_loop_leaves_one_row_of_the_sampled_tokens(self) -> None:
        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            assert first["content"] is None
            (call,) = first["tool_calls"]
            assert (call["type"], call["function"]) == (
                "function",
                {"name": "multiply", "arguments": '{"b": 4, "a": 3}'},
            )
            answer = await caller.ask([ASK, first, result(first)], tools=TOOLS)
            assert answer["content"].startswith("It is ")
            assert "tool_calls" not in answer

        trajectory = played(play)
        (row,) = trajectory.rows
        answer = trajectory.messages[-1].content
        prompt = CODEC.encode_prompt([Message("user", ASK["content"])], TOOLS)
        said = [CODEC.encode_reply(text).tolist() for text in (CALL, answer)]
        assert row.ids.tolist() == [*prompt.tolist(), *said[0], TOOL_TOKEN, *b"12", 256, 259, *said[1]]
        assert row.spans == (
            (len(prompt), len(prompt) + len(said[0])),
            (len(row.ids) - len(said[1]), len(row.ids)),
        )
        assert (row.logps[row.mask] < 0).all()
        assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
        assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
        assert (trajectory.status, trajectory.is_success, trajectory.n_forks) == ("ok", True, 0)

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m | {"content": ""},
            lambda m: {k: m[k] for k in reversed(m) if k not in ("refusal", "content")},
            lambda m: m | {"annotations": [], "audio": None, "function_call": None, "name": "agent"},
            lambda m: m | {"tool_calls": [with_call(m, arguments='{"a":3,"b":4}')]},
            lambda m: m | {"tool_calls": [with_call(m, arguments={"a": 3, "b": 4})]},
            lambda m: m | {"tool_calls": [with_call(m) | {"id": "changed"}]},
            lambda m: m | {"content": [{"type": "text", "text": ""}]},
        ],
        ids=["empty content", "order of keys", "other fields", "arguments", "arguments as an object", "id", "parts"],
    )
    def test_what_clients_do_to_a_reply_keeps_its_row(self, change: Callable[[Body], Body]) -> None:
        async def play(caller: Caller) -> None:
            first = change(await caller.ask([ASK], tools=TOOLS))
            await caller.ask([ASK, first, result(first)], tools=TOOLS)

        trajectory = played(play)
        assert len(trajectory.rows) == 1
        assert CODEC.encode_reply(CALL).tobytes() in trajectory.rows[0].ids.tobytes()

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda m: m | {"content": "I call it."}, "messages[1] (assistant) is not the reply of turn 0"),
            (lambda m: m | {"tool_calls": [with_call(m, arguments='{"a": 3, "b": 5}')]}, "is not the reply of turn 0"),
            (lambda m: m | {"tool_calls": [with_call(m, arguments='{"a": 3, "b": 4.0}')]}, "is not the reply"),
            (lambda m: m | {"tool_calls": [with_call(m, name="add")]}, "is not the reply of turn 0"),
            (lambda m: m | {"tool_calls": [with_call(m)] * 2}, "is not the reply of turn 0"),
            (lambda m: m | {"reasoning_content": "I never thought this."}, "is not the reply of turn 0"),
        ],
        ids=["text", "argument", "float", "name", "second call", "thinking"],
    )
    def test_a_reply_with_another_meaning_begins_a_row(self, change: Callable[[Body], Body], why: str) -> None:
        async def play(caller: Caller) -> None:
            first = change(await caller.ask([ASK], tools=TOOLS))
            await caller.ask([ASK, first, result(first)], tools=TOOLS)

        trajectory = played(play)
        assert len(trajectory.rows) == 2
        assert why in reasons(trajectory)[1]
        # The rewritten message is context in the new row, and a turn without tokens in the conversation.
        assert int(trajectory.rows[1].mask.sum()) == len(CODEC.encode_reply(trajectory.messages[-1].content))
        assert [turn.row for turn in trajectory.turns] == [0, -1, 1]

    def test_thinking_may_be_dropped_or_kept_but_not_changed(self) -> None:
        texts = iter(["<think>Hm.</think>One.", "Two.", "Three.", "Four."])

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK])
            assert (first["content"], first["reasoning_content"]) == ("One.", "Hm.")
            more = {"role": "user", "content": "More."}
            second = await caller.ask([ASK, first, more])
            dropped = {k: v for k, v in first.items() if k != "reasoning_content"}
            await caller.ask([ASK, dropped, more, second, more])
            await caller.ask([ASK, first | {"reasoning_content": "Ha."}, more])

        trajectory = played(play, HashingTokenPolicy(CODEC, lambda ids, random: next(texts)))
        assert [len(row.spans) for row in trajectory.rows] == [3, 1]

    def test_cut_summarised_and_other_histories_begin_rows(self) -> None:
        more = {"role": "user", "content": "More."}

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK])
            second = await caller.ask([ASK, first, more])
            await caller.ask([ASK, second, more])  # the first turn is cut out
            await caller.ask([{"role": "user", "content": "A summary. More."}])
            await caller.ask([ASK, first, more, second, more], tools=TOOLS)
            await caller.ask([ASK, first, more, second, more])  # the whole history again: goes on with row 0

        policy = HashingTokenPolicy(CODEC, lambda ids, random: f"{len(ids)}, {random.randrange(10**6)}.")
        trajectory = played(play, policy)
        assert [len(row.spans) for row in trajectory.rows] == [3, 1, 1, 1]
        assert reasons(trajectory) == [
            "the first request",
            "messages[1] (assistant) is not the reply of turn 0",
            "messages[0] (user) is not the one before turn 0",
            "other tools than in turn 1",
        ]
        # The cut history shows the second reply as the model wrote it, as context.
        assert CODEC.encode_reply(trajectory.messages[3].content).tobytes() in trajectory.rows[1].ids.tobytes()
        # Nothing is listed twice, so each reply has its turn.
        assert [m.content for m in trajectory.messages].count(ASK["content"]) == 1
        assert sum(m.role == "assistant" for m in trajectory.messages) == len(trajectory.turns)

    def test_a_window_of_a_long_history_shows_replies_as_they_were_written(self) -> None:
        """A foreign assistant message is encoded; ours, whose canonical form differs, is not."""
        odd = '<tool_call>{"arguments": {"a": 3, "b": 4},   "name": "multiply"}</tool_call>'

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            await caller.ask([{"role": "system", "content": "Be brief."}, ASK, first, result(first)], tools=TOOLS)

        trajectory = played(play, HashingTokenPolicy(CODEC, [odd]))
        assert len(trajectory.rows) == 2
        assert odd.encode() in bytes(i for i in trajectory.rows[1].ids.tolist() if i < 256)

    def test_results_are_shown_in_the_order_of_the_calls(self) -> None:
        two = f"{CALL}\n{format_tool_call('multiply', a=1, b=1)}"
        texts = iter([two, "Done."])

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            ids = [call["id"] for call in first["tool_calls"]]
            results = [{"role": "tool", "tool_call_id": id_, "content": id_} for id_ in reversed(ids)]
            await caller.ask([ASK, first, *results], tools=TOOLS)

        trajectory = played(play, HashingTokenPolicy(CODEC, lambda ids, random: next(texts)))
        assert [m.content for m in trajectory.messages if m.role == "tool"] == ["call_0_0", "call_0_1"]

    def test_template_history_keeps_the_row_where_the_template_changes_nothing(self) -> None:
        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], max_tokens=3)  # cut; the row gets the closing token that it lacks
            await caller.ask([ASK, first, {"role": "user", "content": "More."}])

        long = HashingTokenPolicy(CODEC, ["A long reply."])
        assert len(played(play, long, history="template").rows) == 1
        with pytest.raises(InvalidConfigError, match="history is 'tempalte'"):
            serve(play, long, history="tempalte")


def with_call(message: Body, **function: Any) -> Body:
    (call,) = message["tool_calls"]
    return call | {"function": call["function"] | function}


class TestBranches:
    def test_concurrent_requests_become_branches_with_the_same_prefix(self) -> None:
        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            history = [ASK, first, result(first)]
            answers = await asyncio.gather(*(caller.ask(history, tools=TOOLS) for _ in range(3)))
            await caller.ask([*history, answers[1], {"role": "user", "content": "Sure?"}], tools=TOOLS)

        policy = HashingTokenPolicy(CODEC, calls_then_answers, latency_s=0.05)
        trajectory = played(play, policy)
        assert policy.most_running == 3
        assert len(trajectory.rows) == 3
        assert [why.partition(":")[0] for why in reasons(trajectory)] == ["the first request", "a branch", "a branch"]
        heads = {row.ids[: trajectory.rows[0].spans[1][0]].tobytes() for row in trajectory.rows}
        assert len(heads) == 1
        # The call is trained on once, though it stands in three rows; the last request goes on with one of them.
        n_sampled = sum(len(CODEC.encode_reply(m.content)) for m in trajectory.messages if m.role == "assistant")
        assert trajectory.n_sampled_tokens == n_sampled
        assert sorted(len(row.spans) for row in trajectory.rows) == [1, 2, 2]
        assert trajectory.turns[-1].reward == 1.0

    def test_n_choices_are_branches_and_each_can_go_on(self) -> None:
        async def play(caller: Caller) -> None:
            body = {"messages": [ASK], "n": 3}
            choices = (await caller.post(body)).json()["choices"]
            assert [choice["index"] for choice in choices] == [0, 1, 2]
            texts = [choice["message"]["content"] for choice in choices]
            assert len(set(texts)) == 3
            await caller.ask([ASK, choices[2]["message"], {"role": "user", "content": "More."}])

        policy = HashingTokenPolicy(CODEC, lambda ids, random: str(random.random()))
        trajectory = played(play, policy)
        assert [len(row.spans) for row in trajectory.rows] == [1, 1, 2]

    def test_ids_of_calls_tell_equal_replies_apart(self) -> None:
        async def play(caller: Caller) -> None:
            choices = (await caller.post({"messages": [ASK], "tools": TOOLS, "n": 2})).json()["choices"]
            first = choices[0]["message"]
            await caller.ask([ASK, first, result(first)], tools=TOOLS)

        trajectory = played(play)
        assert [len(row.spans) for row in trajectory.rows] == [2, 1]


class TestSampling:
    def test_seeds_temperature_and_stops(self) -> None:
        policy = HashingTokenPolicy(CODEC, lambda ids, random: f"{random.random()} END and more")

        async def play(caller: Caller) -> None:
            same = [await caller.ask([ASK], seed=7) for _ in range(2)]
            assert same[0] == same[1]
            assert await caller.ask([ASK], seed=8) != same[0]
            stopped = await caller.post({"messages": [ASK], "max_completion_tokens": 4, "max_tokens": 9})
            assert stopped.json()["choices"][0]["finish_reason"] == "length"
            assert stopped.json()["usage"]["completion_tokens"] == 4

        assert len(played(play, policy).rows) == 4

    def test_logprobs_are_those_of_the_row(self) -> None:
        found: list[float] = []

        async def play(caller: Caller) -> None:
            choice = (await caller.post({"messages": [ASK], "logprobs": True})).json()["choices"][0]
            found.extend(item["logprob"] for item in choice["logprobs"]["content"])
            assert "".join(item["token"] for item in choice["logprobs"]["content"]) == choice["message"]["content"]

        (row,) = played(play, HashingTokenPolicy(CODEC, ["Yes."])).rows
        assert found == pytest.approx(row.logps[row.mask][:-1].tolist())

    def test_a_stream_has_the_same_reply_in_pieces(self) -> None:
        text = "<think>Hm.</think>" + "A long answer, " * 10

        async def play(caller: Caller) -> None:
            body = {"messages": [ASK], "stream": True, "stream_options": {"include_usage": True}, "seed": 1}
            response = await caller.post(body)
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.text.split("\n\n") if line]
            assert lines[-1] == "data: [DONE]"
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            assert chunks[-1]["usage"]["completion_tokens"] > 0
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
            assert deltas[0]["role"] == "assistant"
            assert "".join(d.get("content", "") for d in deltas) == text.removeprefix("<think>Hm.</think>").strip()
            assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
            assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
            assert sum("content" in d for d in deltas) > 3

        played(play, HashingTokenPolicy(CODEC, [text]))

    def test_a_broken_call_comes_back_as_it_was_written(self) -> None:
        broken = '<tool_call>{"name": "multiply", "arguments": </tool_call>'

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            assert first["content"] == broken
            await caller.ask([ASK, first, {"role": "user", "content": "Again."}], tools=TOOLS)

        assert len(played(play, HashingTokenPolicy(CODEC, [broken])).rows) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            (b"{", 400, "the body is not JSON"),
            ([], 400, "the body is list; it must be a JSON object"),
            ({}, 400, "messages is null; it must be a list"),
            ({"messages": []}, 400, "at least one message"),
            ({"messages": ["x"]}, 400, "messages[0] is 'x'; it must be an object with a role"),
            ({"messages": [{"role": "critic", "content": ""}]}, 400, "messages[0] has the role 'critic'"),
            ({"messages": [ASK, {"role": "assistant", "content": "x"}]}, 400, "the last message is the assistant's"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
                400,
                "only text can be converted",
            ),
            ({"messages": [ASK], "temperatur": 1}, 400, "Did you mean temperature?"),
            ({"messages": [ASK], "response_format": {"type": "json_object"}}, 400, "response_format"),
            ({"messages": [ASK], "tool_choice": "required"}, 400, 'tool_choice="required" is not supported'),
            ({"messages": [ASK], "chat_template_kwargs": {"a": 1}}, 400, "chat_template_kwargs is not supported"),
            ({"messages": [ASK], "top_logprobs": 3}, 400, "top_logprobs=3 is not supported"),
            ({"messages": [ASK], "temperature": -1}, 400, "temperature is -1; it must be at least 0"),
            ({"messages": [ASK], "temperature": "hot"}, 400, "temperature is 'hot'; it must be a number"),
            ({"messages": [ASK], "max_tokens": 0}, 400, "max_tokens is 0; it must be an integer from 1"),
            ({"messages": [ASK], "n": 1000}, 400, "n is 1000; it must be an integer from 1 to 64"),
            ({"messages": [ASK], "stop": [""]}, 400, "stop is"),
            ({"messages": [ASK], "seed": 1.5}, 400, "seed is 1.5"),
            ({"messages": [ASK], "stream": "yes"}, 400, "stream is 'yes'"),
            ({"messages": [ASK], "tools": [{"type": "web_search"}]}, 400, "only functions with a name"),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
    )
    def test_bad_requests(self, body: Any, status: int, message: str) -> None:
        async def play(caller: Caller) -> None:
            found = await caller.error(body)
            assert found[0] == status
            assert message in found[2]

        serve(play, end=False)

    def test_neutral_values_are_taken(self) -> None:
        async def play(caller: Caller) -> None:
            neutral = {"frequency_penalty": 0.0, "tool_choice": "auto", "response_format": {"type": "text"}, "n": 1}
            await caller.ask([ASK], user="me", store=False, metadata={"a": "b"}, top_p=None, tools=None, **neutral)

        played(play)

    def test_without_tools_none_is_offered(self) -> None:
        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK], tools=TOOLS)
            more = [ASK, first, result(first)]
            await caller.ask(more, tools=TOOLS, tool_choice="none")

        trajectory = played(play)
        assert reasons(trajectory) == ["the first request", "other tools than in turn 0"]

    def test_a_manner_of_answering_is_recorded(self) -> None:
        async def play(caller: Caller) -> None:
            await caller.ask([ASK], reasoning_effort="high", parallel_tool_calls=False, verbosity="low")

        asked = {"reasoning_effort": "high", "parallel_tool_calls": False, "verbosity": "low"}
        assert played(play).metadata["not_applied"] == asked

    def test_token_sessions_and_places(self) -> None:
        async def play(caller: Caller) -> None:
            body = {"messages": [ASK]}
            assert (await caller.error(body, Authorization="Bearer wrong"))[:2] == (401, "invalid_api_key")
            assert (await caller.http.get("/v1/models")).status_code == 401
            models = await caller.http.get("/s/a/v1/models", headers=caller.headers)
            assert models.json()["data"][0]["id"] == "policy"
            assert (await caller.error(body, path="/v1/embeddings"))[:2] == (404, "not_found")
            assert (await caller.error(body, path="/s/a%20b/v1/chat/completions"))[:2] == (400, "invalid_session")
            assert (await caller.post(body, path="/v1/chat/completions")).status_code == 200
            header = {"X-Session-Id": "b"}
            assert (await caller.post(body, path="/v1/chat/completions", **header)).status_code == 200
            assert set(caller.server.sessions) == {"default", "b"}
            assert (await caller.error(body))[:2] == (429, "too_many_sessions")
            assert (await caller.error({"reward": "x"}, path="/s/b/end"))[:2] == (400, "invalid_reward")
            ended = await caller.post({"reward": 0.5}, path="/s/b/end")
            assert Trajectory.from_dict(ended.json()).reward == 0.5
            assert (await caller.error({}, path="/s/b/end"))[:2] == (404, "session_not_found")
            assert (await caller.post(body)).status_code == 200  # room again

        serve(play, end=False, max_sessions=2)

    def test_a_large_body_is_refused(self) -> None:
        async def play(caller: Caller) -> None:
            big = [ASK | {"content": "x" * 5000}]
            assert (await caller.error({"messages": big}))[:2] == (413, "request_too_large")
            await caller.ask([ASK])

        played(play, max_body_bytes=2000)

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        "body",
        [
            b'{"reward": 1%s}' % (b"0" * 400),
            b'{"reward": 1e999}',
            b'{"reward": NaN}',
            b'{"reward": -Infinity}',
            b'{"reward": true}',
            b'{"reward": 1, "is_success": NaN}',
        ],
        ids=lambda body: body.decode()[:20],
    )
    def test_a_wrong_reward_leaves_the_session_open(self, body: bytes) -> None:
        async def play(caller: Caller) -> None:
            await caller.ask([ASK])
            assert (await caller.error(body, path="/s/a/end"))[0] == 400
            ended = await caller.post({"reward": 0.5}, path="/s/a/end")
            assert Trajectory.from_dict(ended.json()).reward == 0.5

        serve(play, end=False)

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_cannot_be_written_are_refused(self, value: str) -> None:
        """A schema with one could not be stored, nor sent with the trajectory."""
        schema = TOOLS[0] | {"function": TOOLS[0]["function"] | {"parameters": {"maximum": 9876}}}

        async def play(caller: Caller) -> None:
            body = json.dumps({"messages": [ASK], "tools": [schema]})
            status, code, message = await caller.error(body.replace("9876", value).encode())
            assert (status, code) == (400, "invalid_json") and value in message
            for name in ("temperature", "top_k", "repetition_penalty"):
                huge = b'{"messages": [{"role": "user", "content": "x"}], "%s": 1%s}' % (name.encode(), b"0" * 400)
                assert (await caller.error(huge))[0] == 400
            assert (await caller.post(body.encode())).status_code == 200
            assert (await caller.post({"reward": 1}, path="/s/a/end")).status_code == 200

        serve(play, end=False)

    def test_a_lone_surrogate_is_no_reason_to_lose_a_session(self) -> None:
        async def play(caller: Caller) -> None:
            tool = TOOLS[0] | {"function": TOOLS[0]["function"] | {"description": "half \ud83d"}}
            await caller.post({"messages": [ASK], "tools": [tool], "model": "\ud83d"})
            await caller.ask([ASK])
            ended = await caller.post({"reward": 1}, path="/s/a/end")
            assert ended.status_code == 200 and Trajectory.from_dict(json.loads(ended.content)).reward == 1.0

        serve(play, end=False)

    def test_a_session_that_cannot_be_written_stays(self) -> None:
        written: list[Trajectory] = []

        def write(trajectory: Trajectory) -> None:
            if not written:
                written.append(trajectory)
                raise OSError("no space left")

        async def play(caller: Caller) -> None:
            await caller.ask([ASK])
            assert (await caller.error({"reward": 1}, path="/s/a/end"))[:2] == (500, "internal_error")
            ended = await caller.post({"reward": 0.5}, path="/s/a/end")
            assert Trajectory.from_dict(ended.json()).reward == 0.5
            assert not caller.server.sessions

        serve(play, end=False, on_trajectory=write)

    @pytest.mark.smoke
    def test_connections_without_the_token_give_way(self) -> None:
        """They hold half of the descriptors at most; those that have shown it are kept, however many wait."""

        async def play(caller: Caller) -> None:
            caller.server.strangers.most = 8
            assert (await caller.http.get("/v1/models", headers=caller.headers)).status_code == 200
            n_before = len(caller.server._server.server_state.connections)
            opened = []
            for number in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", caller.server.port)
                if number % 2:  # a wrong token, and half of a request
                    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + b"\r\n" * (number % 4 == 1))
                opened.append((reader, writer))

            async def given_way() -> None:
                for reader, _ in opened[:11]:  # how far the server is with the last ones is unknown
                    with contextlib.suppress(ConnectionError):
                        while await reader.read(1000):
                            pass
                while len(caller.server._server.server_state.connections) > n_before + 8:
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(given_way(), 300)  # without the limit they stay for ever
            assert n_before == 1
            assert (await caller.http.get("/v1/models", headers=caller.headers)).status_code == 200
            assert len(caller.server._server.server_state.connections) == 9  # it had been kept
            for _, writer in opened:
                writer.close()

        serve(play, end=False)

    def test_closed_sessions_are_not_opened_by_requests(self) -> None:
        async def play(caller: Caller) -> None:
            assert (await caller.error({"messages": [ASK]}))[:2] == (404, "session_not_found")

        serve(play, end=False, opens_sessions=False)

    def test_wrong_settings(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["x"])
        with pytest.raises(InvalidConfigError, match="max_sessions=0"):
            PolicyServer(policy, codec=CODEC, max_sessions=0)
        with pytest.raises(InvalidConfigError, match="ConstantPolicy takes no token ids"):
            PolicyServer(ConstantPolicy("x"), codec=CODEC)

        async def play(caller: Caller) -> None:
            with pytest.raises(BridgeError, match="cannot listen on"):
                await PolicyServer(policy, codec=CODEC, port=caller.server.port).start()
            with pytest.raises(InvalidConfigError, match="is open already"):
                caller.server.add("a b", caller.server._make_session("x"))

        serve(play, end=False)


class TestLimits:
    def test_turns(self) -> None:
        async def play(caller: Caller) -> None:
            await caller.ask([ASK])
            for _ in range(MAX_REFUSALS):
                assert (await caller.error({"messages": [ASK]}))[:2] == (403, "episode_over")
            assert (await caller.error({"messages": [ASK]}))[:2] == (403, "session_over")

        trajectory = played(play, limits=RolloutLimits(max_turns=1))
        assert trajectory.metadata["limit"] == f"{StopReason.MAX_TURNS.value}: max_turns=1"

    def test_a_full_context_lets_the_agent_shorten_its_history(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["Fine."], context_length=60)

        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK])
            long = [ASK, first, {"role": "user", "content": "x" * 60}]
            assert (await caller.error({"messages": long}))[:2] == (400, "context_length_exceeded")
            await caller.ask([{"role": "user", "content": "Short."}])

        trajectory = played(play, policy)
        assert [len(row.spans) for row in trajectory.rows] == [1, 1]
        assert "limit" not in trajectory.metadata

    def test_tokens_of_a_row_and_of_all(self) -> None:
        async def play(caller: Caller) -> None:
            first = await caller.ask([ASK])
            found = await caller.error({"messages": [ASK, first, {"role": "user", "content": "x" * 30}]})
            assert found[:2] == (400, "context_length_exceeded")

        policy = HashingTokenPolicy(CODEC, ["Fine, I think so."])
        played(play, policy, limits=RolloutLimits(max_completion_tokens=40))
        trajectory = played(play, policy, limits=RolloutLimits(max_episode_tokens=60))
        assert trajectory.n_tokens <= 60

    def test_a_slow_policy_is_a_failure_and_no_zero(self) -> None:
        async def play(caller: Caller) -> None:
            assert (await caller.error({"messages": [ASK]}))[:2] == (500, "policy_failed")
            assert (await caller.error({"messages": [ASK]}))[:2] == (403, "session_over")

        slow = HashingTokenPolicy(CODEC, ["x"], latency_s=3600)
        trajectory = played(play, slow, limits=RolloutLimits(max_policy_s=0.05))
        assert trajectory.error is not None
        assert (trajectory.status, trajectory.error.where, trajectory.error.kind) == (
            "errored",
            "policy",
            "TimeoutError",
        )
        trajectory = played(play, with_failures(HashingTokenPolicy(CODEC, ["x"]), 1.0))
        assert trajectory.error is not None
        assert trajectory.error.message == "injected failure"

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_client_that_disconnects_cancels_its_sampling(self, stream: bool) -> None:
        policy = HashingTokenPolicy(CODEC, ["x"], latency_s=3600)

        async def play(caller: Caller) -> None:
            body = json.dumps({"messages": [ASK], "n": 2, "stream": stream})
            path = "/s/a/v1/chat/completions"
            asked = asyncio.create_task(caller.http.post(path, content=body, headers=caller.headers))
            while policy.running < 2 and not asked.done():
                await asyncio.sleep(0.01)
            asked.cancel()  # which closes the connection
            with pytest.raises(asyncio.CancelledError):
                await asked
            for _ in range(6_000):
                if policy.aborted == 2:
                    break
                await asyncio.sleep(0.02)
            assert (policy.aborted, policy.running) == (2, 0)
            assert caller.server.sessions["a"].record.turns == []
            policy.latency_s = 0.0
            await caller.ask([ASK])

        assert len(played(play, policy).turns) == 1

    def test_stopping_cancels_what_runs(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["x"], latency_s=3600)

        async def main() -> None:
            server = PolicyServer(policy, codec=CODEC)
            await server.start()
            async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
                asked = asyncio.create_task(Caller(server, http).error({"messages": [ASK]}))
                while not policy.running:
                    await asyncio.sleep(0.01)
                server.stop()
                server.stop()
                assert (await asked)[:2] == (503, "server_stops")
            assert policy.aborted == 1
            with pytest.raises(httpx.ConnectError):
                async with httpx.AsyncClient(base_url=server.url) as http:
                    await http.get("/v1/models")

        asyncio.run(main())

    def test_sampling_settings_of_the_server_are_the_defaults(self) -> None:
        policy = HashingTokenPolicy(CODEC, ["A long reply."])

        async def play(caller: Caller) -> None:
            await caller.ask([ASK])
            await caller.ask([ASK], max_tokens=100)

        played(play, policy, sampling=SamplingParams(max_new_tokens=5))
        assert [most for _, _, most in policy.calls] == [5, 5]
