"""Convert agent logs in the form of OpenAI's chat API to trajectories for training.

Each assistant message becomes the text that the model at hand would have written, with thinking and calls in its own
format, encoded like an oracle's reply: mask True and NaN log-probabilities. Everything else is context.

| in the log | in the trajectory |
|---|---|
| `content` null, or a list of text parts | no text; the parts joined |
| `tool_calls` (arguments as JSON text or objects), the older `function_call` | calls |
| `reasoning_content`, `reasoning`, `thinking` | thinking |
| `refusal` without content | content |
| role `developer` | `system` |
| role `function`, or `tool` with a `tool_call_id` | `tool`, with the name of the function that was called |
| an assistant's thinking, text and calls in separate messages, in this order | one turn |
| other assistant messages in a row | separate turns, with the template's text between |
| results that name their calls, in another order than the calls | in the order of the calls |
| an assistant's message with `weight: 0`, or before any other message | context: not trained on |
| messages after the assistant's last | the final observation, without a reply |
| images, audio, files, other roles, arguments that are not a JSON object | an error that names the message |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from llm_envs.chat.context import Codec, render_reply
from llm_envs.errors import InvalidConfigError, ModelError
from llm_envs.parsers import parse_reply
from llm_envs.problems import as_number
from llm_envs.rollout.rows import spans_as_context
from llm_envs.rollout.token_transcript import History, TokenTranscript
from llm_envs.sources.prompts import read_jsonl
from llm_envs.types import Message, Role, StopReason, ToolCall, Trajectory, Turn

__all__ = [
    "LogEntry",
    "as_messages",
    "context_turns",
    "entries_as_messages",
    "from_messages",
    "read_entry",
    "read_messages_jsonl",
]

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THINKING = ("reasoning_content", "reasoning", "thinking")


def from_messages(
    messages: Sequence[Message | Mapping[str, Any]],
    *,
    codec: Codec | None,
    tools: Sequence[Any] = (),
    env_id: str = "log",
    reward: float | None = None,
    is_success: bool | None = None,
    context: int = 0,
    one_call_a_turn: bool = False,
    history: History = "append",
    group_id: str = "0",
    member: int = 0,
) -> Trajectory:
    """Return a logged conversation as a trajectory in which the assistant's turns are trained on.

    `sft_rows` drops unscored trajectories by default: use `sft_rows(logs, keep=lambda log: True)`. For preferences,
    give the preferred log the higher reward, and both the same `group_id`.

    Args:
        messages: The conversation, in OpenAI's form; see the module's table.
        codec: Codec of the model to train. None converts only the messages, without tokens.
        tools: JSON Schemas of the tools, in OpenAI's form, or bare function schemas.
        env_id: Name in the trajectory.
        reward: Reward of the conversation; None leaves it unscored.
        is_success: None: whether the reward is at least 1.
        context: How many messages at the start are context, including assistant messages; the template renders them.
        one_call_a_turn: Split a turn with several calls into several turns, each with its result, for a model that
            writes one call per turn (GPT-OSS).
        history: "append": each turn stays as it was written. "template": a new row begins where the template would show
            it differently later.
        group_id: The trajectory's group.
        member: Its index there.

    Raises:
        InvalidConfigError: If a message cannot be converted, or no assistant message answers another one.
        ModelError: If the model's template refuses the conversation.
    """
    try:
        reward = None if reward is None else as_number(reward)
    except TypeError as error:
        raise InvalidConfigError(f"the reward of a log is {reward!r:.80}; {error}, or None.") from error
    # Join before sorting: the results after joined messages may answer calls of any of them.
    entries = [read_entry(index, message) for index, message in enumerate(messages)]
    log = _in_order(_joined(entries, joins=_is_rest_of_turn))
    if getattr(codec, "closes_thinking", False):  # the template closes it before the model writes
        log = [replace(entry, thinking=None) for entry in log]
    if one_call_a_turn:
        log = _one_call_a_turn(log)
    start = _first_turn(log, context)
    converted = _as_messages(log, codec)
    schemas = tuple(map(_schema, tools))
    transcript = TokenTranscript(codec, history)
    transcript.begin(converted[:start], schemas)
    turns, is_over = _replay(converted, log, start, transcript, codec)
    if reward is not None:
        turns = [replace(turn, components={"reward": 0.0}) for turn in turns]
        turns[-1] = replace(turns[-1], reward=reward, components={"reward": reward})
    replies = [entry for entry in log if entry.role == "assistant"]
    untrained = {(t.row, t.span) for t, entry in zip(turns, replies, strict=True) if not entry.trained}
    rows, turns = spans_as_context(transcript.rows(), turns, untrained)
    return Trajectory(
        env_id=env_id,
        env_kwargs={},
        seed=0,
        group_id=group_id,
        member=member,
        messages=converted,
        tools=schemas,
        rows=tuple(rows),
        turns=tuple(turns),
        terminated=is_over,
        truncated=not is_over,
        stop_reason=StopReason.TERMINATED if is_over else StopReason.ENV_TRUNCATED,
        status="unscored" if reward is None else "ok",
        is_success=None if reward is None else bool(reward >= 1.0 if is_success is None else is_success),
        metadata={"unscored_because": "the log has no reward"} if reward is None else {},
    )


def as_messages(messages: str | Sequence[Message | Mapping[str, Any]]) -> tuple[Message, ...]:
    """Convert a conversation in OpenAI's form; an assistant's text includes its thinking and calls.

    Raises:
        InvalidConfigError: If a message cannot be converted. The error names the message.
    """
    if isinstance(messages, str):
        return (Message("user", messages),)
    log = [read_entry(index, message) for index, message in enumerate(messages)]
    return _as_messages(_in_order(_joined(log)), None)


def entries_as_messages(log: Sequence[LogEntry], written: Mapping[int, str]) -> tuple[Message, ...]:
    """Convert a conversation that was taken apart, with each turn's results in the order of its calls.

    Args:
        log: The entries.
        written: Position in the log -> the assistant's own words, where they are known exactly.

    Raises:
        InvalidConfigError: If an assistant's text hides its calls. The error names the message.
    """
    return _as_messages(_in_order(_joined(log)), None, written)


def context_turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return turns for assistant messages that are context: without tokens and without a reward."""
    return tuple(Turn(0.0, {}) for message in messages if message.role == "assistant")


def read_messages_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Read logs, one per line: an object with `messages` (and perhaps `tools` and more), or a bare list of messages.

    Raises:
        InvalidConfigError: If the file does not exist, or a line has neither form. The message has the line number.
    """
    records = []
    for number, value in read_jsonl(path):
        record = {"messages": value} if isinstance(value, list) else value
        if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
            has = f"the keys {list(record)}" if isinstance(record, dict) else f"{value!r:.80}"
            raise InvalidConfigError(f"{path}, line {number} has {has}; it must be an object with `messages`, a list.")
        records.append(record)
    return records


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A message of a log, taken apart."""

    index: int
    """Its position in the log."""
    role: Role
    content: str
    thinking: str | None = None
    calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    call_id: str | None = None
    trained: bool = True


def read_entry(index: int, message: Message | Mapping[str, Any]) -> LogEntry:
    """Take a message apart; `index` is its position in the log.

    Raises:
        InvalidConfigError: If it cannot be converted. The error names the message.
    """
    where = f"messages[{index}]"
    if isinstance(message, Message):
        name, call_id = message.metadata.get("name"), message.tool_call_id or message.metadata.get("tool_call_id")
        return LogEntry(index, message.role, message.content, None, message.tool_calls, name, call_id)
    if not isinstance(message, Mapping):
        raise InvalidConfigError(f"{where} is {message!r:.80}; it must be an object with a role.")
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise InvalidConfigError(f"{where} has the role {name!r}; known are {', '.join(_ROLES)}.")
    content = _text(where, message.get("content"))
    if message.get("audio"):
        raise InvalidConfigError(f"{where} has audio; only text can be converted.")
    if role != "assistant":
        name, call_id = message.get("name"), message.get("tool_call_id")
        return LogEntry(
            index,
            role,
            content,
            name=None if name is None else str(name),
            call_id=None if call_id is None else str(call_id),
        )
    given_calls = message.get("tool_calls") or ()
    if not isinstance(given_calls, (list, tuple)):
        raise InvalidConfigError(f"{where} has the tool_calls {given_calls!r:.80}; they must be a list.")
    calls = [_call(f"{where}, call {n}", call) for n, call in enumerate(given_calls)]
    if message.get("function_call"):
        calls.append(_call(f"{where}, function_call", message["function_call"]))
    thinking = next((_text(where, message[key]) for key in _THINKING if message.get(key)), None)
    return LogEntry(
        index,
        role,
        content or _text(where, message.get("refusal")),
        thinking,
        tuple(calls),
        trained=message.get("weight") != 0,
    )


def _text(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, (list, tuple)):
        raise InvalidConfigError(
            f"{where} has the content {content!r:.80}; it must be a text, null or a list of parts."
        )
    texts = []
    for part in content:
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else None
        text = part if isinstance(part, str) else part.get(_TEXT_PARTS.get(str(kind), "")) if kind else None
        if not isinstance(text, str):
            raise InvalidConfigError(f"{where} has a part of the type {kind!r}; only text can be converted.")
        texts.append(text)
    return "".join(texts)


def _call(where: str, call: Any) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidConfigError(f"{where} is {call!r:.80}; it must have a function with a name.")
    arguments = function.get("arguments")
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments) if arguments.strip() else {}
        arguments = {} if arguments is None else arguments
        arguments = json.loads(json.dumps(arguments, allow_nan=False))  # a tuple becomes a list, as a model writes it
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(f"{where}: the arguments {arguments!r:.80} are not JSON ({error}).") from error
    if not isinstance(arguments, Mapping):
        raise InvalidConfigError(f"{where}: the arguments are {arguments!r:.80}; they must be an object.")
    call_id = call.get("id")
    return ToolCall(function["name"], dict(arguments), None if call_id is None else str(call_id))


def _in_order(log: Sequence[LogEntry]) -> list[LogEntry]:
    """Return the log with each turn's results in the order of its calls, where each result names a call by its id.

    A server that runs calls in parallel logs the results as they arrive. Most templates show no ids, so a model can
    match results to calls only by their order.
    """
    out = list(log)
    for place, entry in enumerate(log):
        ids = [call.id for call in entry.calls]
        stop = place + 1
        while stop < len(log) and log[stop].role == "tool":
            stop += 1
        results = log[place + 1 : stop]
        # If ids are missing, unknown or used twice, the log's own order is the best guess.
        if len(set(ids)) == len(ids) and all(result.call_id in ids for result in results):
            out[place + 1 : stop] = sorted(results, key=lambda result: ids.index(result.call_id))
    return out


def _is_rest_of_turn(last: LogEntry, entry: LogEntry) -> bool:
    """Return whether an assistant message can be the rest of the turn before it: of thinking, then text, then calls."""
    said, following = ([bool(part) for part in (e.thinking, e.content, e.calls)] for e in (last, entry))
    if last.trained != entry.trained or (said[1] and following[1]):
        return False
    return not any(any(following[:place]) for place, has_part in enumerate(said) if has_part)


def _joined(
    log: Sequence[LogEntry], *, joins: Callable[[LogEntry, LogEntry], bool] = lambda last, entry: True
) -> list[LogEntry]:
    """Return the log with consecutive assistant messages joined, which templates may refuse in a prompt.

    Args:
        log: The entries.
        joins: Whether an assistant's message and the next one are joined.
    """
    out: list[LogEntry] = []
    for entry in log:
        if not (out and out[-1].role == entry.role == "assistant" and joins(out[-1], entry)):
            out.append(entry)
            continue
        last = out[-1]
        thoughts = [text for text in (last.thinking, entry.thinking) if text]
        out[-1] = replace(
            last,
            content="\n".join(text for text in (last.content, entry.content) if text),
            thinking="\n".join(thoughts) if thoughts else None,
            calls=last.calls + entry.calls,
            trained=last.trained and entry.trained,
        )
    return out


def _one_call_a_turn(log: Sequence[LogEntry]) -> list[LogEntry]:
    """Return the log with a turn of several calls split into several turns, each followed by its result."""
    out: list[LogEntry] = []
    place = 0
    while place < len(log):
        entry = log[place]
        place += 1
        if len(entry.calls) < 2:
            out.append(entry)
            continue
        results: list[LogEntry] = []
        while place < len(log) and log[place].role == "tool":
            results.append(log[place])
            place += 1
        if len(results) != len(entry.calls):
            raise InvalidConfigError(
                f"messages[{entry.index}] has {len(entry.calls)} calls and {len(results)} results: they cannot be "
                "split into turns."
            )
        for number, call in enumerate(entry.calls):
            own = next((result for result in results if call.id is not None and result.call_id == call.id), results[0])
            results.remove(own)
            # Only the first turn keeps the text and the thinking; in every turn they would be trained on repeatedly.
            one = entry if number == 0 else replace(entry, content="", thinking=None)
            out += [replace(one, calls=(call,)), own]
    return out


def _as_messages(
    log: Sequence[LogEntry], codec: Codec | None, written: Mapping[int, str] = MappingProxyType({})
) -> tuple[Message, ...]:
    parser = getattr(codec, "parser", parse_reply)
    out: list[Message] = []
    names: dict[str, str] = {}
    unanswered: list[str] = []  # names of the last turn's calls, in order
    for entry in log:
        if entry.role == "assistant":
            unanswered = [call.name for call in entry.calls]
            names |= {call.id: call.name for call in entry.calls if call.id is not None}
            text = written.get(entry.index)
            out.append(Message("assistant", _assistant_text(entry, parser) if text is None else text))
        elif entry.role == "tool":
            next_name = unanswered.pop(0) if unanswered else None
            name = entry.name or names.get(entry.call_id or "", next_name)
            # Not `tool_call_id`: templates that print ids require their own forms of ids, and the model neither
            # writes nor reads ids here.
            extras = {"name": name, "tool_call_id": entry.call_id}
            kept = {key: value for key, value in extras.items() if value is not None}
            out.append(Message("tool", entry.content, metadata=kept))
        else:
            out.append(Message(entry.role, entry.content))
    return tuple(out)


def _assistant_text(entry: LogEntry, parser: Callable[[str], Any]) -> str:
    """Return an assistant's turn in canonical form; raise if it does not parse back to the same calls and thinking."""
    text = render_reply(Message("assistant", entry.content, entry.calls))
    if entry.thinking:
        text = f"<think>\n{entry.thinking}\n</think>\n\n{text}"
    if not entry.calls and not entry.thinking:
        return text
    parsed = parser(text)
    calls = [(call.name, dict(call.arguments)) for call in parsed.tool_calls]
    thinking = (parsed.thinking or "").strip()
    if calls != [(call.name, dict(call.arguments)) for call in entry.calls] or (
        entry.thinking and thinking != entry.thinking.strip()
    ):
        why = f" ({'; '.join(parsed.problems)})" if parsed.problems else ""
        raise InvalidConfigError(
            f"messages[{entry.index}]: its text has markup that hides its calls or thinking{why}: {text[:80]!r}."
        )
    return text


def _first_turn(log: Sequence[LogEntry], context: int) -> int:
    """Return the position of the first assistant turn that is not context."""
    for place, entry in enumerate(log):
        if entry.role == "assistant" and place > 0 and entry.index >= context:
            return place
    n_messages = max((entry.index for entry in log), default=-1) + 1
    raise InvalidConfigError(
        f"{n_messages} messages (context={context}): no assistant message answers another one, so there is nothing to "
        "train on."
    )


def _replay(
    messages: Sequence[Message], log: Sequence[LogEntry], start: int, transcript: TokenTranscript, codec: Codec | None
) -> tuple[list[Turn], bool]:
    """Write the conversation from the first turn on; return the turns, and whether the last message is a reply."""
    turns = list(context_turns(messages[:start]))
    observed: list[Message] = []
    for place, message in enumerate(messages[start:], start):
        if message.role != "assistant":
            observed.append(message)
            continue
        # `begin` has encoded the messages before the first turn as the prompt. Between two replies in a row the
        # template writes the end of the first and the start of the second.
        if place > start:
            transcript.append_observation(tuple(observed))
            observed = []
        try:
            ids = None if codec is None else codec.encode_reply(message.content)
        except ModelError as error:
            raise ModelError(f"messages[{log[place].index}]: {error}") from error
        transcript.append_reply(message, ids, None)  # it was not sampled here, so its log-probabilities are unknown
        span = (-1, -1) if ids is None else (transcript.row_index, transcript.row.n_spans - 1)
        turns.append(Turn(0.0, {}, *span))
    if observed:
        transcript.append_final_observation(tuple(observed))
    return turns, not observed


def _schema(tool: Any) -> Mapping[str, Any]:
    schema = getattr(tool, "schema", tool)
    if not isinstance(schema, Mapping):
        raise InvalidConfigError(f"a tool is {tool!r:.80}; it must be a JSON Schema, as an API takes it.")
    function = schema.get("function", schema)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidConfigError(f"a tool is {dict(schema)!r:.80}; it must have a name.")
    return dict(schema) if "function" in schema else {"type": "function", "function": dict(schema)}
