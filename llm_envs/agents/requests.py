"""OpenAI's chat completions as data: a request is read and checked, and an answer is written, complete or as a stream.

| in a request | here |
|---|---|
| `messages`, `tools`, `stop`, `max_tokens`, `max_completion_tokens`, `n`, `stream`, `logprobs`, `seed` | supported |
| `temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty` | supported, unless the run decides (see `session`) |
| `model` | any name; the answer repeats it |
| `tool_choice` "none" | the tools are not offered |
| `user`, `metadata`, `store` and others that do not change what is sampled | ignored |
| `reasoning_effort`, `verbosity`, `parallel_tool_calls`: a manner of answering | noted |
| `chat_template_kwargs` | noted if the run decides, else error 400 |
| other `tool_choice`, `response_format`, penalties, `logit_bias`, `top_logprobs`, audio, images | error 400 |

Noted parameters have no effect; `Trajectory.metadata["not_applied"]` lists them. Nothing here can force a reply into a
form, so a request that needs one is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_envs.chat.context import Codec
from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.problems import is_number
from llm_envs.rollout.chat_logs import LogEntry, read_entry
from llm_envs.rollout.turn import SampledTurn
from llm_envs.types import FinishReason

__all__ = [
    "NOTED",
    "ChatRequest",
    "RequestError",
    "ReturnedReply",
    "chat_answer",
    "chat_chunks",
    "read_chat_request",
    "refused",
    "usage_of",
]

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
NOTED = (
    *("chat_template_kwargs", "context_management", "parallel_tool_calls", "reasoning", "reasoning_effort"),
    *("thinking", "truncation", "verbosity"),
)
"""Parameters that are accepted and change nothing: they ask for a manner of answering, and the model has its own."""
_IGNORED = {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
# Parameters that would change the answer and that we cannot honour: name -> the values that ask for nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "frequency_penalty": (0,),
    "function_call": ("auto",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "prediction": (None,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "top_logprobs": (0,),
    "web_search_options": (None,),
}
_ADVICE: Mapping[str, str] = {
    "response_format": "Nothing here can force a form: leave it out, and ask for the form in the prompt",
    "tool_choice": 'Nothing here can force a call: pass "auto", or "none" to offer no tools',
}
_KNOWN = {
    *_SAMPLING,
    *NOTED,
    *("messages", "model", "tools", "stop", "max_tokens", "max_completion_tokens", "n", "seed"),
    *("stream", "stream_options", "logprobs"),
}
_MAX_NUMBER = 2**31 - 1
"""Largest temperature, top_k, ...: engines hold them in 32 bits, and an error in one would end the session."""
MAX_CHOICES = 64
"""Most choices (`n`) of a request."""
MAX_STOPS = 16
"""Most stop strings of a request."""
PIECE_LENGTH = 40
"""Characters in each piece of a stream."""


class RequestError(Exception):
    """A request that cannot be answered, in the form that OpenAI's clients read."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the response. Anthropic's clients read `type` too."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"type": "error", "error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked request."""

    entries: tuple[LogEntry, ...]
    """Its messages, taken apart; the last is not the assistant's."""
    tools: tuple[Mapping[str, Any], ...] = ()
    model: str = "policy"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The settings among temperature, top_p, top_k, min_p and repetition_penalty that it names."""
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    n: int = 1
    seed: int | None = None
    logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    noted: Mapping[str, Any] = field(default_factory=dict)
    """The parameters among `NOTED` that it names, with their values."""
    child: str = ""
    """The sign of a child of the agent (see `PolicySession`); empty for the agent itself."""


@dataclass(frozen=True, slots=True)
class ReturnedReply:
    """A reply as the client got it, and as it should come back."""

    content: str
    thinking: str
    calls: tuple[tuple[str, str, str], ...]
    """(id, name, arguments as canonical JSON) of each call."""
    finish_reason: str
    n_prompt_tokens: int
    sampled: SampledTurn


def read_chat_request(body: Any) -> ChatRequest:
    """Check the JSON of a request.

    Raises:
        RequestError: If something is wrong or not supported. It names the parameter.
    """
    if not isinstance(body, Mapping):
        raise refused(f"the body is {type(body).__name__}; it must be a JSON object.", None)
    _refuse_unsupported(body)
    n, seed = _whole(body, "n", 1, most=MAX_CHOICES), body.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise refused(f"seed is {seed!r:.40}; it must be an integer.", "seed")
    limits = [_whole(body, name, None) for name in ("max_tokens", "max_completion_tokens")]
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise refused(f"stream_options is {options!r:.40}; it must be an object.", "stream_options")
    return ChatRequest(
        entries=_entries(body.get("messages")),
        tools=() if body.get("tool_choice") == "none" else _tools(body.get("tools")),
        model=str(body.get("model") or "policy"),
        sampling={name: _number(body, name) for name in _SAMPLING if body.get(name) is not None},
        max_tokens=min((limit for limit in limits if limit is not None), default=None),
        stops=_stops(body.get("stop")),
        n=n or 1,
        seed=seed,
        logprobs=_flag(body, "logprobs"),
        stream=_flag(body, "stream"),
        include_usage=bool(options.get("include_usage")),
        noted={name: body[name] for name in NOTED if body.get(name) is not None},
    )


def chat_answer(request: ChatRequest, id_: str, replies: Sequence[ReturnedReply], codec: Codec) -> dict[str, Any]:
    """Return the JSON of an answer with a choice for each reply."""
    choices = [
        {
            "index": index,
            "message": _message(reply),
            "finish_reason": reply.finish_reason,
            "logprobs": _logprobs(reply, codec) if request.logprobs else None,
        }
        for index, reply in enumerate(replies)
    ]
    return _frame(request, id_, "chat.completion") | {"choices": choices, "usage": usage_of(replies)}


def chat_chunks(
    request: ChatRequest, id_: str, replies: Sequence[ReturnedReply], codec: Codec
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream. The replies are complete; only their delivery is in pieces."""
    frame = _frame(request, id_, "chat.completion.chunk")

    def chunk(index: int, delta: Mapping[str, Any], reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": index, "delta": dict(delta), "finish_reason": reason, "logprobs": logprobs}
        return frame | {"choices": [choice]} | ({"usage": None} if request.include_usage else {})

    for index, reply in enumerate(replies):
        yield chunk(index, {"role": "assistant", "content": ""})
        for name, text in (("reasoning_content", reply.thinking), ("content", reply.content)):
            for start in range(0, len(text), PIECE_LENGTH):
                yield chunk(index, {name: text[start : start + PIECE_LENGTH]})
        for number, call in enumerate(_calls(reply)):
            yield chunk(index, {"tool_calls": [{"index": number, **call}]})
        logprobs = _logprobs(reply, codec) if request.logprobs else None
        yield chunk(index, {}, reply.finish_reason, logprobs)
    if request.include_usage:
        yield frame | {"choices": [], "usage": usage_of(replies)}


def _frame(request: ChatRequest, id_: str, kind: str) -> dict[str, Any]:
    return {"id": id_, "object": kind, "created": int(time.time()), "model": request.model}


def _message(reply: ReturnedReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if reply.calls:
        message |= {"content": reply.content or None, "tool_calls": _calls(reply)}
    return message


def _calls(reply: ReturnedReply) -> list[dict[str, Any]]:
    return [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in reply.calls
    ]


def usage_of(replies: Sequence[ReturnedReply]) -> dict[str, int]:
    """Return the numbers of tokens of an answer with these choices."""
    n_sampled = sum(0 if reply.sampled.ids is None else len(reply.sampled.ids) for reply in replies)
    n_prompt = replies[0].n_prompt_tokens
    return {"prompt_tokens": n_prompt, "completion_tokens": n_sampled, "total_tokens": n_prompt + n_sampled}


def _logprobs(reply: ReturnedReply, codec: Codec) -> dict[str, Any]:
    """Return the log-probabilities of the sampled tokens, without the token that closes the turn."""
    ids, logps = reply.sampled.ids, reply.sampled.logps
    if ids is None or logps is None:
        return {"content": [], "refusal": None}
    n = len(ids) - (reply.sampled.finish_reason is FinishReason.STOP)
    tokens = [codec.decode_reply(np.array([id_], dtype=np.int32)) for id_ in ids[:n]]
    return {
        "content": [
            {"token": token, "logprob": float(logp), "bytes": list(token.encode(errors="replace")), "top_logprobs": []}
            for token, logp in zip(tokens, logps[:n], strict=True)
        ],
        "refusal": None,
    }


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in _NEUTRAL and value is not None and value not in _NEUTRAL[name]:
            advice = _ADVICE.get(str(name), "leave it out")
            raise refused(f"{name}={json.dumps(value)[:80]} is not supported here. {advice}.", str(name))
        if name not in _KNOWN and name not in _NEUTRAL and name not in _IGNORED and value is not None:
            hint = did_you_mean(str(name), _KNOWN)
            raise refused(f"the parameter {name!r:.60} is not supported here; leave it out.{hint}", str(name))


def _entries(messages: Any) -> tuple[LogEntry, ...]:
    if not isinstance(messages, list) or not messages:
        raise refused(f"messages is {json.dumps(messages)[:60]}; it must be a list, at least one message.", "messages")
    try:
        entries = tuple(read_entry(index, message) for index, message in enumerate(messages))
    except InvalidConfigError as error:
        raise refused(str(error), "messages") from error
    if entries[-1].role == "assistant":
        raise refused("the last message is the assistant's; continuing it is not supported.", "messages")
    return entries


def _tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise refused(f"tools is {json.dumps(tools)[:60]}; it must be a list.", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise refused(f"tools[{index}] is {json.dumps(tool)[:80]}; only functions with a name work.", "tools")
    return tuple(map(_shown, tools))


def _shown(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Leave out `strict`, which tells the server how to sample: a model never sees it."""
    function = {name: value for name, value in tool["function"].items() if name != "strict"}
    return {**tool, "function": function}


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise refused(f"stop is {json.dumps(stop)[:60]}; it must be a text or at most {MAX_STOPS} texts.", "stop")
    return tuple(stops)


def _whole(body: Mapping[str, Any], name: str, default: int | None, most: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        raise refused(f"{name} is {value!r:.40}; it must be an integer from 1{f' to {most}' if most else ''}.", name)
    return value


def _number(body: Mapping[str, Any], name: str) -> float | int:
    value: float | int = body[name]
    if not is_number(value) or abs(value) > _MAX_NUMBER:
        raise refused(f"{name} is {value!r:.40}; it must be a number up to {_MAX_NUMBER}.", name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refused(f"{name} is {value!r:.40}; it must be true or false.", name)
    return bool(value)


def refused(message: str, param: str | None) -> RequestError:
    """Return the error of a request that is wrong or not supported."""
    return RequestError(400, message, "unsupported_or_invalid", param)
