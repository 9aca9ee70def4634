"""A chat policy for any server with OpenAI's chat completions API. For playing and evaluating, not for training."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.parsers.json_calls import strict_json
from llm_envs.policies.answers import Answer
from llm_envs.policies.base import refuse_keep_mask
from llm_envs.policies.vllm.http import AsyncClients, RetryableError, bearer, check_url, is_local
from llm_envs.policies.vllm.routing import Backoff, RateLimit
from llm_envs.spaces import encodable
from llm_envs.types import Message, SamplingParams, ToolCall

__all__ = ["ChatAPIPolicy", "chat_message", "chat_request"]

_LOG = logging.getLogger(__name__)

# Hosted APIs do not know these parameters, so they are sent only if they differ from their defaults.
_OURS_BY_DEFAULT = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class ChatAPIPolicy:
    """Messages in, a message out, through `/v1/chat/completions`.

    It sees only text, so its episodes cannot be trained on. The limits hold within one event loop.

    Args:
        base_url: Address of the API: `"http://127.0.0.1:8000"` or `"https://host/v1"`.
        model: The model's name there.
        api_key: Sent as a bearer token.
        max_concurrency: Maximum number of concurrent requests.
        requests_per_minute: Maximum number of requests that begin in any minute, including retries; None means no
            limit.
        timeout_s: Seconds that one attempt may take.
        max_retries: Attempts after the first, for errors that may pass: no connection, 429, 5xx.
        backoff: Waits between attempts. A server's `Retry-After` takes precedence, and holds all requests.
        max_tokens_name: The API's name for the token limit of a turn: `"max_completion_tokens"` for some.
        extra: Sent with every request (`reasoning_effort`, ...).

    Raises:
        InvalidConfigError: If a setting is wrong.
        MissingExtraError: If no HTTP client is installed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_concurrency: int = 32,
        requests_per_minute: int | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 8,
        backoff: Backoff | None = None,
        max_tokens_name: str = "max_tokens",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        check_url(base_url, "base_url")
        if max_concurrency < 1 or max_retries < 0 or not timeout_s > 0:
            raise InvalidConfigError(
                f"{max_concurrency=}, {max_retries=}, {timeout_s=}: they must be at least 1 and 0, and above 0."
            )
        root = base_url.rstrip("/")
        self.url = f"{root if root.endswith('/v1') else root + '/v1'}/chat/completions"
        self.model, self.extra, self.max_tokens_name = model, dict(extra or {}), max_tokens_name
        self.max_concurrency, self.timeout_s, self.max_retries = max_concurrency, timeout_s, max_retries
        self.backoff, self.rate_limit = backoff or Backoff(first_s=0.5, max_s=60.0), RateLimit(requests_per_minute)
        self._is_failing = False
        self._clients = AsyncClients(bearer(api_key), max_concurrency, use_proxy=not is_local(base_url))

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> Message:
        """Return the assistant's next message, with its calls in `tool_calls`.

        Raises:
            ContextFullError: If the conversation does not fit the model's context.
            InvalidConfigError: If the API refuses the key or the request.
            ModelError: If the API does not have the model, or its answer is not a chat completion.
            BridgeError: If no attempt succeeded.
        """
        body = chat_request(self.model, messages, tools, params, max_tokens_name=self.max_tokens_name) | self.extra
        async with self._clients.slot():
            return chat_message(await self._try(body))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._clients.aclose()

    async def _try(self, body: Mapping[str, Any]) -> Answer:
        seed = int.from_bytes(hashlib.blake2b(repr(body).encode(), digest_size=8).digest(), "little")
        last: RetryableError | None = None
        for attempt in range(self.max_retries + 1):
            if last is not None:
                await asyncio.sleep(self.backoff.delay_s(attempt - 1, seed, last.asked_s))
            await asyncio.sleep(self.rate_limit.reserve(time.monotonic()))
            try:
                answer = await self._clients.post(self.url, body, timeout_s=self.timeout_s)
                self._is_failing = False
                return answer
            except RetryableError as error:
                last = error
                if error.is_busy and error.asked_s is not None:
                    self.rate_limit.hold(time.monotonic() + error.asked_s)
            if not self._is_failing and not last.is_busy:
                _LOG.warning("%s failed; its turns are tried again. %s", self.url, last)
            self._is_failing |= not last.is_busy
        raise BridgeError(f"a turn failed {self.max_retries + 1} times; at last: {last}") from last


def chat_request(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    *,
    max_tokens_name: str = "max_tokens",
) -> dict[str, Any]:
    """Return the JSON of a chat request.

    Args:
        model: The model's name.
        messages: The conversation.
        tools: JSON Schemas, bare (`{"name": ..., "parameters": ...}`) or as `{"type": "function", ...}`.
        params: How to sample. Stop tokens are refused, because they are ids of a tokenizer that the API does not share.
            A None in `extra` removes a parameter from the request: `{"seed": None}` for an API that refuses a seed.
        max_tokens_name: The API's name for the token limit.

    Raises:
        InvalidConfigError: If the parameters have stop tokens.
    """
    refuse_keep_mask(params, "a chat API")
    if params.stop_token_ids:
        raise InvalidConfigError(
            f"a chat API takes no token ids: stop_token_ids is {params.stop_token_ids!r}; use stop_strings."
        )
    body: dict[str, Any] = {
        "model": model,
        "messages": [_to_api(message) for message in messages],
        max_tokens_name: params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    body |= {name: value for name, off in _OURS_BY_DEFAULT.items() if (value := getattr(params, name)) != off}
    if tools:
        body["tools"] = [dict(t) if t.get("type") == "function" else {"type": "function", "function": t} for t in tools]
    if params.stop_strings:
        body["stop"] = list(params.stop_strings)
    if params.seed is not None:
        body["seed"] = params.seed
    body |= params.extra
    return {name: value for name, value in body.items() if value is not None}


def chat_message(answer: Answer) -> Message:
    """Return the message in an API's answer.

    Separate reasoning goes into `metadata["reasoning"]`; it is not part of the reply. A call whose arguments are not a
    JSON object stays in the content as text. So it fails in the environment, which tells the model the reason.

    Raises:
        ModelError: If the answer has no message, or a field of another form. The error has the field's name.
    """
    choice = answer["choices"].items()[0]
    message = choice["message"]
    content, calls = _text_of(message["content"]), []
    for call in message["tool_calls"].items(least=0) if message["tool_calls"] else ():
        name, written = call["function"]["name"].text(), call["function"]["arguments"].value
        arguments = _json_object(written)
        if arguments is None:
            raw = f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {written}}}\n</tool_call>'
            content = f"{content}\n{raw}" if content else raw
        else:
            calls.append(ToolCall(name, arguments, call["id"].text() if call["id"] else None))
    metadata: dict[str, Any] = {}
    for reasoning in (message["reasoning_content"], message["reasoning"]):
        if reasoning.value:
            metadata["reasoning"] = reasoning.text()
    if reason := choice["finish_reason"]:
        metadata["finish_reason"] = reason.text()
    return Message("assistant", content, tuple(calls), metadata=metadata)


def _to_api(message: Message) -> dict[str, Any]:
    # A lone surrogate, which an API may have answered with, cannot be sent.
    out: dict[str, Any] = {"role": message.role, "content": encodable(message.content)}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or f"call_{index}",
                "function": {
                    "name": encodable(call.name),
                    "arguments": encodable(json.dumps(dict(call.arguments), ensure_ascii=False)),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
        out["content"] = out["content"] or None
    if message.role == "tool":
        if message.tool_call_id is None:  # the result of a call that was written as text: the API knows no such call
            out["role"] = "user"
        else:
            out["tool_call_id"] = message.tool_call_id
    return out


def _text_of(content: Answer) -> str:
    """Return the text of a message's content, which is a string, nothing, or a list of parts."""
    if not content:
        return ""
    if isinstance(content.value, str):
        return content.value
    texts = [part["text"] for part in content.items(least=0)]
    return "".join(text.text() for text in texts if text)


def _json_object(written: Any) -> dict[str, Any] | None:
    if isinstance(written, Mapping):
        return dict(written)
    try:
        value = strict_json("{}" if written in (None, "") else written)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None
