"""The chat policy against a fake API: forms, limits, refusals. (On a real server: test_server.py.)"""

import asyncio
import json
import logging
import threading
import time

import pytest
from fake_server import Answer, fake_server

from llm_envs.errors import BridgeError, ContextFullError, InvalidConfigError, ModelError
from llm_envs.policies import ChatAPIPolicy
from llm_envs.policies.answers import Answer as Said
from llm_envs.policies.base import ChatPolicy, TokenPolicy
from llm_envs.policies.chat_api import chat_message, chat_request
from llm_envs.policies.vllm.routing import Backoff
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.types import Message, SamplingParams, ToolCall

QUICK = Backoff(first_s=0.01, max_s=0.02)
ASK = [Message("user", "Hi")]


def said(content, **message):
    return Answer(body={"choices": [{"message": {"role": "assistant", "content": content} | message}]})


def reply(url, n=1, **settings):
    async def run():
        policy = ChatAPIPolicy(url, "m", **{"backoff": QUICK, **settings})
        try:
            return await asyncio.gather(*[policy.reply(ASK, (), SamplingParams()) for _ in range(n)])
        finally:
            await policy.aclose()

    return asyncio.run(run())


def test_it_plays_and_cannot_be_trained_on():
    policy = ChatAPIPolicy("http://127.0.0.1:1/", "m")
    assert isinstance(policy, ChatPolicy)
    assert not isinstance(policy, TokenPolicy)
    assert policy.url == "http://127.0.0.1:1/v1/chat/completions"
    assert ChatAPIPolicy("https://host/v1/", "m").url == "https://host/v1/chat/completions"


def test_a_request_in_the_form_of_the_api():
    messages = [
        Message("system", "Be brief."),
        Message("user", "2+2?"),
        Message("assistant", "", (ToolCall("add", {"a": 2, "b": "ä"}, "c1"), ToolCall("add", {}))),
        Message("tool", "4", tool_call_id="c1", metadata={"name": "add"}),
        Message("tool", "5"),
    ]
    tool = {"name": "add", "parameters": {"type": "object"}}
    params = SamplingParams(max_new_tokens=7, temperature=0.5, top_k=3, stop_strings=("X",), seed=4, extra={"n": 1})
    assert chat_request("m", messages, [tool, {"type": "function", "function": tool}], params) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"type": "function", "id": "c1", "function": {"name": "add", "arguments": '{"a": 2, "b": "ä"}'}},
                    {"type": "function", "id": "call_1", "function": {"name": "add", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
            {"role": "user", "content": "5"},
        ],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 3,
        "tools": [{"type": "function", "function": tool}] * 2,
        "stop": ["X"],
        "seed": 4,
        "n": 1,
    }
    assert "max_completion_tokens" in chat_request("m", ASK, (), params, max_tokens_name="max_completion_tokens")
    with pytest.raises(InvalidConfigError, match=r"stop_token_ids .*\(7,\)"):
        chat_request("m", ASK, (), SamplingParams(stop_token_ids=(7,)))


def test_an_api_that_refuses_a_field_is_not_sent_it():
    params = SamplingParams(seed=4, extra={"seed": None, "n": 1})
    body = chat_request("m", [Message("user", "hi")], (), params)
    assert "seed" not in body and body["n"] == 1 and body["model"] == "m"


def test_an_answer_becomes_a_message():
    call = {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    answer = said(None, tool_calls=[call], reasoning_content="hm").body
    answer["choices"][0]["finish_reason"] = "tool_calls"
    assert chat_message(Said("u", answer)) == Message(
        "assistant", "", (ToolCall("add", {"a": 1}, "c1"),), metadata={"reasoning": "hm", "finish_reason": "tool_calls"}
    )
    parts = [{"type": "text", "text": "a"}, {"type": "refusal"}, {"type": "text", "text": "b"}]
    assert chat_message(Said("u", said(parts).body)) == Message("assistant", "ab")


@pytest.mark.parametrize(
    "written",
    [
        '{"a": 1',
        "[1]",
        '{"a": 1, "a": 2}',
        '{"a": ' + "[" * 500 + "]" * 500 + "}",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "[" * 9999 + "]" * 9999 + "}",
        "7",
    ],
)
def test_arguments_that_are_no_object_stay_text(written):
    answer = said("So:", tool_calls=[{"id": "c1", "function": {"name": "add", "arguments": written}}]).body
    message = chat_message(Said("u", answer))
    assert message.tool_calls == ()
    assert message.content == f'So:\n<tool_call>\n{{"name": "add", "arguments": {written}}}\n</tool_call>'


CALL = {"id": "c", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (None, "the answer"),
        ([], "the answer"),
        ({"error": "odd"}, "choices is missing"),
        ({"choices": {}}, "choices"),
        ({"choices": []}, "choices"),
        ({"choices": [None]}, r"choices\[0\]"),
        ({"choices": [{}]}, r"choices\[0\].message"),
        (said(7).body, r"choices\[0\].message.content is 7"),
        (said({"text": "x"}).body, "message.content"),
        (said([{"text": 7}]).body, r"message.content\[0\].text is 7"),
        (said(["x"]).body, r"message.content\[0\]"),
        (said("x", tool_calls="f").body, "message.tool_calls is 'f'"),
        (said("x", tool_calls=[None]).body, r"tool_calls\[0\]"),
        (said("x", tool_calls=[CALL | {"function": "f"}]).body, r"tool_calls\[0\].function is 'f'"),
        (said("x", tool_calls=[CALL | {"function": {"name": 5}}]).body, "function.name is 5"),
        (said("x", tool_calls=[CALL | {"id": {}}]).body, r"tool_calls\[0\].id"),
        (said("x", reasoning=[1]).body, r"message.reasoning is \[1\]"),
    ],
)
def test_an_answer_of_another_form_is_refused_with_server_and_field(answer, field):
    with pytest.raises(ModelError, match=f"^http://there: .*{field}"):
        chat_message(Said("http://there", answer))


@pytest.mark.parametrize(
    ("answer", "field"),
    [(said(7).body, "content is 7"), ("<html>Welcome</html>", "not JSON"), ("[" * 100_000, "nested too deeply")],
)
def test_an_answer_of_another_form_errs_its_episode_and_is_not_asked_for_again(answer, field):
    with fake_server(lambda asked, n: Answer(body=answer)) as server:
        with pytest.raises(ModelError):
            reply(server.url)
        assert len(server.asked) == 1
        with Collector("llm/Calculator-v0", ChatAPIPolicy(server.url, "m"), progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
        assert (trajectory.status, trajectory.error.kind) == ("errored", "ModelError")
        assert server.url in trajectory.error.message and field in trajectory.error.message


@pytest.mark.parametrize(
    ("status", "text", "error", "match"),
    [
        (401, {"error": {"message": "bad key"}}, InvalidConfigError, r"401: bad key\n.*api_key"),
        (403, {"detail": "no"}, InvalidConfigError, "403: no"),
        (404, {"error": {"message": "The model `m` does not exist."}}, ModelError, r"404: .*`m`.*\n.*v1/models"),
        (400, {"error": {"message": "maximum context length is 8"}}, ContextFullError, "is 8"),
        (400, {"error": {"message": "temperature"}}, InvalidConfigError, "400: temperature"),
        (400, "<html>", InvalidConfigError, "<html>"),
    ],
)
def test_what_would_be_refused_again_is_not_tried_again(status, text, error, match):
    with fake_server(lambda asked, n: Answer(status, text)) as server:
        with pytest.raises(error, match=match):
            reply(server.url)
        assert len(server.asked) == 1


def test_what_may_succeed_later_is_tried_again_with_one_warning(caplog):
    answers = [Answer(500, "down"), Answer(drop=True), Answer(503, ""), said("Hello")]
    with fake_server(lambda asked, n: answers[n]) as server, caplog.at_level(logging.WARNING):
        (message,) = reply(server.url, api_key="secret")
        assert message == Message("assistant", "Hello")
        assert len(server.asked) == 4
        (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("llm_envs")]
        assert server.url in warning and "500: down" in warning
        assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer secret"}


def test_in_the_end_the_last_failure_is_said():
    with fake_server(lambda asked, n: Answer(503, {"message": "still loading"})) as server:
        with pytest.raises(BridgeError, match=r"3 times.*503: still loading"):
            reply(server.url, max_retries=2)
        url = server.url
    with pytest.raises(BridgeError, match=r"failed 2 times.*ConnectError"):
        reply(url, max_retries=1)


def test_a_server_that_does_not_answer_is_given_up():
    slow = fake_server(lambda asked, n: Answer(delay_s=60.0))
    with slow as server, pytest.raises(BridgeError, match=r"failed 2 times.*timeout_s=0\.1"):
        reply(server.url, timeout_s=0.1, max_retries=1)


def test_retry_after_holds_every_request():
    answers = [Answer(429, "slow down", {"Retry-After": "0.4"})] + [said("ok")] * 3
    with fake_server(lambda asked, n: answers[n]) as server:

        async def run():
            policy = ChatAPIPolicy(server.url, "m", backoff=QUICK)
            first = asyncio.create_task(policy.reply(ASK, (), SamplingParams()))
            while policy.rate_limit._not_before_s == 0:
                await asyncio.sleep(0.01)
            await asyncio.gather(first, policy.reply(ASK, (), SamplingParams()))
            await policy.aclose()

        asyncio.run(run())
        first, *later = [asked.at_s for asked in server.asked]
        assert len(later) == 2
        assert min(later) - first >= 0.39


def test_so_many_requests_at_once_and_no_more():
    running, most, three = [], [], threading.Barrier(3, timeout=60)

    def respond(asked, n):
        running.append(1)
        most.append(len(running))
        three.wait()
        running.pop()
        return said("ok")

    with fake_server(respond) as server:
        assert len(reply(server.url, 12, max_concurrency=3)) == 12
    assert max(most) == 3


def test_cancelling_closes_the_connection():
    with fake_server(lambda asked, n: Answer(delay_s=300.0)) as server:

        async def run():
            policy = ChatAPIPolicy(server.url, "m")
            task = asyncio.create_task(policy.reply(ASK, (), SamplingParams()))
            while not server.asked:
                await asyncio.sleep(0.01)
            task.cancel()
            started = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await task
            await policy.aclose()
            return time.monotonic() - started

        assert asyncio.run(run()) < 60.0
        assert len(server.asked) == 1


def test_a_whole_episode_with_calls_results_and_their_ids():
    def respond(asked, n):
        if n:
            return said("Answer: 42")
        call = {"id": f"call-{n}", "function": {"name": "calculator", "arguments": json.dumps({"expression": "6*7"})}}
        return said(None, tool_calls=[call])

    with fake_server(respond) as server:
        policy = ChatAPIPolicy(server.url, "m")
        kwargs = {"difficulty": "easy"}
        limits = RolloutLimits(max_turns=2)
        with Collector("llm/Calculator-v0", policy, env_kwargs=kwargs, limits=limits, progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
        assert trajectory.error is None
        assert [r.output for r in trajectory.tool_results] == ["42"]
        last = server.asked[-1].body
        assert [t["type"] for t in last["tools"]] == ["function"]
        assert last["messages"][-1] == {"role": "tool", "content": "42", "tool_call_id": "call-0"}
        assert last["messages"][-2]["tool_calls"][0]["id"] == "call-0"
        assert trajectory.rows == ()


def test_half_a_surrogate_pair_in_an_answer_does_not_cost_the_episode():
    call = {"id": "c", "function": {"name": "calculator", "arguments": '{"expression": "\\ud83d"}'}}

    def respond(asked, n):
        return said("hm \ud83d", tool_calls=[call])  # as "\\ud83d" in the answer's JSON

    with fake_server(respond) as server:
        policy, limits = ChatAPIPolicy(server.url, "m"), RolloutLimits(max_turns=2)
        with Collector("llm/Calculator-v0", policy, limits=limits, progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
        assert trajectory.error is None and len(trajectory.turns) == 2
        sent = server.asked[-1].body["messages"][-2]
        assert sent["content"] == "hm \ufffd"
        assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"expression": "\ufffd"}


@pytest.mark.parametrize("key", ["secret\n", " secret", "sec\nret", "s\u00e9cret"])
def test_a_key_that_no_header_may_have_is_refused_and_not_shown(key):
    with pytest.raises(InvalidConfigError, match="API key") as refusal:
        ChatAPIPolicy("http://x", "m", api_key=key)
    assert "cret" not in str(refusal.value)


def test_a_key_that_a_server_says_back_is_not_kept():
    with fake_server(lambda asked, n: Answer(400, {"message": f"no: {asked.headers['Authorization']}"})) as server:
        policy = ChatAPIPolicy(server.url, "m", api_key="sk-hunter2-hunter2")
        with Collector("llm/Calculator-v0", policy, progress=False) as collector:
            ((trajectory,),) = collector.collect(1)
    assert trajectory.error is not None and trajectory.error.message.endswith("answered 400: no: Bearer ***")
    assert "hunter2" not in repr(trajectory)


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://x:99999", "https://x:port"])
def test_a_url_that_cannot_be_asked_is_refused(url):
    with pytest.raises(InvalidConfigError, match=r"host.* port"):
        ChatAPIPolicy(url, "m")


def test_wrong_settings_are_refused():
    for url in ("127.0.0.1:8000", "ftp://x"):
        with pytest.raises(InvalidConfigError, match=f"'{url}'"):
            ChatAPIPolicy(url, "m")
    for settings in ({"max_concurrency": 0}, {"max_retries": -1}, {"timeout_s": 0}):
        with pytest.raises(InvalidConfigError, match=next(iter(settings))):
            ChatAPIPolicy("http://x", "m", **settings)
