"""One turn of a conversation by hand: encode, sample, parse, execute the tool calls.

Every part is a function argument; `ChatCodec` has the two that convert messages to ids and ids to text. No model is
needed in this process: a generator may be any policy, or any function, synchronous or not.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from llm_envs.errors import ContextFullError, InvalidConfigError
from llm_envs.parsers import ParsedReply, parse_reply
from llm_envs.policies.base import TokenPolicy
from llm_envs.policies.inference.seeds import turn_seed
from llm_envs.tools.base import Tool
from llm_envs.tools.executor import Executor, arun_calls, as_results, run_calls
from llm_envs.tools.toolset import Toolset, as_tools
from llm_envs.types import FinishReason, IdArray, Message, Sampled, SamplingParams, ToolCall, ToolResult

if TYPE_CHECKING:
    from llm_envs.chat.codec import ChatCodec

__all__ = [
    "ConversationTurn",
    "GenerateFn",
    "TemplateFn",
    "aconversation_turn",
    "conversation_turn",
    "create_executor",
    "create_policy_generator",
    "next_prompt_ids",
]

T = TypeVar("T")

GenerateFn = Callable[[IdArray, SamplingParams], Sampled | Awaitable[Sampled]]
"""Prompt ids (T,) and how to sample -> the sampled turn, or an awaitable of it. If a prompt leaves no room for a token,
the result has no tokens and the reason `FinishReason.CONTEXT_FULL`."""
TemplateFn = Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], IdArray]
"""Messages and the tools' JSON Schemas -> prompt ids (T,), ready for the assistant."""
ToolLike = Tool | Toolset | Callable[..., Any] | Mapping[str, Any]
"""A tool, a set of them, a typed function, or a bare JSON Schema."""


@dataclass(frozen=True, slots=True, eq=False)
class ConversationTurn:
    """The result of one turn."""

    messages: tuple[Message, ...]
    """The conversation, ending with the assistant's message and the tools' answers. Neither is added if nothing was
    sampled because the prompt fills the context."""
    text: str
    """The assistant's text, without the closing end-of-turn token."""
    reply: ParsedReply
    """The parsed text."""
    tool_results: tuple[ToolResult, ...]
    """One for each of `reply.tool_calls`; empty if the turn was aborted."""
    prompt_ids: IdArray
    """Shape (T,): the ids that the model saw."""
    sampled: Sampled
    """The sampled ids, with log-probabilities and the finish reason."""

    @property
    def tool_messages(self) -> tuple[Message, ...]:
        """The tools' answers."""
        calls = self.reply.tool_calls[: len(self.tool_results)]
        return tuple(_tool_message(call, result) for call, result in zip(calls, self.tool_results, strict=True))


async def aconversation_turn(
    messages: Sequence[Message],
    generate_fn: GenerateFn,
    *,
    template_fn: TemplateFn,
    decode_fn: Callable[[IdArray], str],
    tools: Sequence[ToolLike] = (),
    parser: Callable[[str], ParsedReply] = parse_reply,
    executor: Executor | None = None,
    params: SamplingParams | None = None,
    prompt_ids: IdArray | None = None,
) -> ConversationTurn:
    """Sample one assistant turn and execute its tool calls.

    The calls of a broken reply are not executed (`reply.problems`), nor are broken calls that stand with sound ones
    (`reply.dropped_calls_error`). A call of an unknown tool, or with wrong
    arguments, gets an error as its result. If a limit cut the turn, its complete calls are executed; the calls of an
    aborted turn are not.

    Args:
        messages: The conversation so far; the last message must not be the assistant's.
        generate_fn: Samples the turn: `functools.partial(generate, model)`, `create_policy_generator(policy)`, or any
            other. A synchronous one blocks the event loop.
        template_fn: Messages and schemas to ids: `ChatCodec(tokenizer).encode_prompt`, or another.
        decode_fn: Sampled ids to text: `ChatCodec(tokenizer).decode_reply`, or another.
        tools: Tools, typed functions or toolsets, or bare JSON Schemas if you pass an executor. The model sees all of
            them.
        parser: Parses the text.
        executor: Executes the calls, in the loop's thread; awaited if it is asynchronous. None runs the tools by
            `tools.executor.arun_calls`, so that a slow one does not block the loop. A string among its results is the
            output of a call that succeeded.
        params: How to sample.
        prompt_ids: The prompt, instead of the template's rendering (`next_prompt_ids`). Shape (T,).

    Raises:
        InvalidConfigError: If the executor does not return one result for each call, or one of `tools` is invalid.
    """
    listed = _listed(tools)
    if prompt_ids is None:
        if not messages:
            raise InvalidConfigError("messages is empty: a conversation begins with a system or user message.")
        prompt_ids = template_fn(messages, [tool.schema if isinstance(tool, Tool) else tool for tool in listed])
    sampled = await _settle(generate_fn(prompt_ids, params or SamplingParams()))
    text = decode_fn(sampled.token_ids) if len(sampled.token_ids) else ""
    reply = parser(text)
    calls = () if sampled.finish_reason is FinishReason.ABORT else reply.tool_calls
    given: Sequence[ToolResult | str] = ()
    if calls:
        given = await _settle(executor(calls) if executor else arun_calls(_by_name(listed), calls))
    results = tuple(as_results(calls, given))
    replies = [] if sampled.finish_reason is FinishReason.CONTEXT_FULL else [Message("assistant", text)]
    answers = [_tool_message(call, result) for call, result in zip(calls, results, strict=True)]
    return ConversationTurn((*messages, *replies, *answers), text, reply, results, prompt_ids, sampled)


def conversation_turn(messages: Sequence[Message], generate_fn: GenerateFn, **settings: Any) -> ConversationTurn:
    """Sample one assistant turn and execute its tool calls: `aconversation_turn` for synchronous code.

    Without an executor, `create_executor` runs the tools in the calling thread.

    Raises:
        InvalidConfigError: As for `aconversation_turn`; also if a function is asynchronous while an event loop is
            running in this thread.
    """
    settings["executor"] = settings.get("executor") or create_executor(settings.get("tools", ()))
    turn = aconversation_turn(messages, generate_fn, **settings)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(turn)
    try:
        turn.send(None)  # without asynchronous functions it runs to its end
    except StopIteration as done:
        result: ConversationTurn = done.value
        return result
    turn.close()
    raise InvalidConfigError("an event loop is running: await aconversation_turn(...) instead of conversation_turn.")


def next_prompt_ids(turn: ConversationTurn, messages: Sequence[Message] = (), *, codec: ChatCodec) -> IdArray:
    """Return the prompt of the turn after `turn`, with the sampled tokens exactly as they were sampled.

    (A template that renders the conversation again would encode the assistant's text again, perhaps as other
    tokens.)

    Args:
        turn: The previous turn.
        messages: Messages after it, besides the answers of its tools.
        codec: Encodes both.

    Returns:
        Shape (T,): the turn's prompt, its sampled ids, and the text that the template puts before the next reply.

    Raises:
        InvalidConfigError: If no message follows the turn.
    """
    following = [*turn.tool_messages, *messages]
    if not following:
        raise InvalidConfigError("no message follows the turn: it called no tool, and messages is empty.")
    delta = codec.encode_delta(following, reply_ids=turn.sampled.token_ids)
    return np.concatenate([turn.prompt_ids, turn.sampled.token_ids, delta]).astype(np.int32)


def create_executor(
    tools: Sequence[ToolLike], *, timeout_s: float | None = None
) -> Callable[[Sequence[ToolCall]], tuple[ToolResult, ...]]:
    """Return a function that executes the calls of one reply with the tools of their names: `tools.executor.run_calls`.

    An unknown name, wrong arguments, an exception in a tool or a timeout becomes a result that the model can read.
    Calls of tools that allow it run in parallel.

    Args:
        tools: Tools, typed functions or toolsets. Bare JSON Schemas cannot be executed: calls of them count as calls of
            unknown tools.
        timeout_s: Limit in seconds of each call, for tools without their own limit.
    """
    return functools.partial(run_calls, _by_name(_listed(tools)), timeout_s=timeout_s)


def create_policy_generator(policy: TokenPolicy) -> Callable[[IdArray, SamplingParams], Awaitable[Sampled]]:
    """Return the asynchronous generator of a token policy."""

    async def generate_fn(prompt_ids: IdArray, params: SamplingParams) -> Sampled:
        try:
            return await policy.sample(prompt_ids, params, seed=turn_seed(params, prompt_ids), session="by-hand")
        except ContextFullError:
            return Sampled.empty(FinishReason.CONTEXT_FULL)

    return generate_fn


def _listed(tools: Sequence[ToolLike]) -> list[Tool | Mapping[str, Any]]:
    """Return tools and bare schemas; functions become tools, and toolsets are expanded."""
    if isinstance(tools, Mapping | str):
        raise InvalidConfigError(
            f"tools is of type {type(tools).__name__}; give a list of tools, functions or JSON Schemas."
        )
    listed: list[Tool | Mapping[str, Any]] = []
    for item in [tools] if isinstance(tools, Tool | Toolset) or callable(tools) else tools:
        listed += [item] if isinstance(item, Mapping) else as_tools([item], "conversation_turn")
    return listed


def _by_name(tools: Sequence[Tool | Mapping[str, Any]]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools if isinstance(tool, Tool)}


def _tool_message(call: ToolCall, result: ToolResult) -> Message:
    return Message("tool", result.output, tool_call_id=call.id, metadata={"name": call.name})


async def _settle(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value
