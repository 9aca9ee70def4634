"""Which messages the model sees, and how they become tokens: plain functions and one protocol."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from llm_envs.chat.summarize import Summarize
from llm_envs.errors import EnvContractError, InvalidConfigError
from llm_envs.types import IdArray, Message

__all__ = [
    "Codec",
    "ContextFn",
    "ViewFn",
    "create_window",
    "observed_messages",
    "render_reply",
    "seen_by",
    "with_call_ids",
]


class Codec(Protocol):
    """Messages to token ids and back. For real models use `llm_envs.chat.ChatCodec`."""

    end_of_turn_id: int
    """Id of the token with which an assistant closes its turn."""
    stop_token_ids: tuple[int, ...]
    """Ids that end the sampling of a turn."""

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> IdArray:
        """Encode a conversation from its start, ready for the assistant's next turn. Shape (T,)."""
        ...

    def start_of(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Any:
        """Return the start of a conversation for `encode_delta`."""
        ...

    def encode_delta(
        self, messages: Sequence[Message], *, reply_ids: IdArray, generation_prompt: bool = True, start: Any = None
    ) -> IdArray:
        """Encode the text between an assistant turn, whose ids are `reply_ids`, and the next. Shape (T,)."""
        ...

    def encode_reply(self, text: str) -> IdArray:
        """Encode an assistant's reply, closed by the end-of-turn token. Shape (T,)."""
        ...

    def decode_reply(self, token_ids: IdArray) -> str:
        """Decode sampled ids to the action."""
        ...

    def encode_anew(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], row_ids: IdArray
    ) -> IdArray | None:
        """Encode a conversation from its start, shape (T,); None if the row `row_ids` already has the same text."""
        ...


ViewFn = Callable[[tuple[Message, ...]], "Sequence[Message] | Awaitable[Sequence[Message]]"]
"""All messages so far -> the messages that the model sees. Called before each turn except the first.

A plain function runs on the event loop and holds up all episodes, so it must be quick. A function that asks a service
should be asynchronous; `RolloutLimits.max_policy_s` and `max_episode_s` apply to it. A training also limits both kinds
(`max_function_s`)."""
ContextFn = ViewFn | Summarize
"""A function of the messages so far, or `Summarize`, which asks the policy itself."""


async def seen_by(context_fn: ViewFn | None, messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """Return the messages that a context function keeps; None without a context function.

    Raises:
        InvalidConfigError: If it returns nothing, or objects that are not messages.
    """
    if context_fn is None:
        return None
    left = context_fn(tuple(messages))
    view = tuple(await left) if inspect.isawaitable(left) else tuple(left)
    roles = ("system", "user", "assistant", "tool")
    is_sound = (isinstance(m, Message) and isinstance(m.content, str) and m.role in roles for m in view)
    if not view or not all(is_sound):
        raise InvalidConfigError(f"the context function returned {view!r:.200}; it must return messages, at least one.")
    return view


def create_window(n_turns: int) -> ContextFn:
    """Return a context function that keeps the task and the last turns.

    Args:
        n_turns: Turns to keep, each with its observation; the messages before the first turn always stay.

    Raises:
        InvalidConfigError: If `n_turns` is not at least 1.
    """
    if n_turns < 1:
        raise InvalidConfigError(f"create_window: n_turns is {n_turns!r}; it must be at least 1.")

    def window(messages: tuple[Message, ...]) -> Sequence[Message]:
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if len(turns) <= n_turns:
            return messages
        # A turn is a reply and the observation after it, so the kept part begins with a reply.
        return (*messages[: turns[0]], *messages[turns[-n_turns] :])

    return window


def observed_messages(observation: object, info: Mapping[str, Any]) -> tuple[Message, ...]:
    """Return an observation as messages.

    `info["messages"]` is used only if its text equals the observation. If a wrapper changed the observation, the
    observation is used, as one user message.

    Raises:
        EnvContractError: If the observation is not a string or the messages are malformed.
    """
    if not isinstance(observation, str):
        raise EnvContractError(
            f"the observation is {type(observation).__name__} {observation!r:.80}; it must be a str."
        )
    listed = info.get("messages")
    if not listed:
        return (Message("user", observation),)
    try:
        messages = tuple(_message(item) for item in listed)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise EnvContractError(
            f'info["messages"] must be dicts of JSON types with role and content ({error}), got {listed!r:.200}.'
        ) from error
    if "\n".join(message.content for message in messages) != observation:
        return (Message("user", observation),)
    return messages


def _message(data: Mapping[str, Any]) -> Message:
    message = Message.from_dict(data)
    if not isinstance(message.content, str) or message.role not in ("system", "user", "assistant", "tool"):
        raise TypeError(f"not a message: {data!r}")
    if not isinstance(data.get("name", ""), str):
        raise TypeError(f"the name {data['name']!r:.60} is not a string")
    # `Message` has no field for OpenAI's `name`; the template reads it from the metadata.
    if "name" in data:
        message = replace(message, metadata={**message.metadata, "name": data["name"]})
    check_extras(message)
    return message


def check_extras(message: Message) -> None:
    """Check that a message's fields besides its text are strict JSON, so that the episode can be recorded.

    Raises:
        TypeError: If a tool call or the metadata has a value that JSON cannot represent.
        ValueError: If it has a number that is NaN or infinite.
    """
    if message.tool_calls or message.metadata or message.tool_call_id is not None:
        json.dumps(message.to_dict(), allow_nan=False)


def render_reply(reply: Message) -> str:
    """Return a reply as the environment reads it: its content, then each structured call as `<tool_call>` text."""
    calls = [
        "<tool_call>\n"
        + json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, allow_nan=False)
        + "\n</tool_call>"
        for call in reply.tool_calls
    ]
    return "\n".join(([reply.content] if reply.content else []) + calls)


def with_call_ids(messages: Sequence[Message], reply: Message | None) -> tuple[Message, ...]:
    """Give the tool results among `messages` the ids of the calls in `reply`, in order, if they have none.

    The environment parses calls from text and never sees the ids of a chat API, but the API requires them.
    """
    ids = iter([call.id for call in reply.tool_calls] if reply is not None else [])
    out = []
    for message in messages:
        # A result with its own id uses up a call too, so that the following results match theirs.
        call_id = next(ids, None) if message.role == "tool" else None
        out.append(replace(message, tool_call_id=call_id) if call_id and message.tool_call_id is None else message)
    return tuple(out)
