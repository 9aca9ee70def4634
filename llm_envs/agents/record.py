"""The requests of one episode as a tree, and the rows of tokens that it leaves.

1. A turn's tokens are those that were sampled. Nothing that the client sends back is encoded in their place.
2. A request continues a turn if its messages are those that the turn was asked with, then the turn's reply, then at
   least one message and no further assistant message. Only the new messages are encoded. The longest such turn counts.
3. The reply comes back unchanged if these are equal: its text (apart from space at both ends; null is ""), and the
   names and arguments of its calls (as parsed JSON, so neither the order of keys nor the spelling counts). Its thinking
   may be missing; if it is there, it must be equal. Ids of calls and unknown fields are not compared. If several turns
   fit, ids decide, then a turn that nothing has continued, then the last one.
4. Other messages must have the same role and the same text; tools must be the same JSON.
5. The first request that continues a turn extends its row. A second one, concurrent or repeated, is a branch: a row of
   its own that begins with the same tokens, as context. Anything else begins a new row with a new prompt.
6. Each sampled token is trained on in one row, and is context in the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from llm_envs.agents.requests import ChatRequest, ReturnedReply
from llm_envs.chat.context import Codec
from llm_envs.rollout.chat_logs import LogEntry, entries_as_messages
from llm_envs.rollout.rows import RowBuilder
from llm_envs.rollout.token_transcript import History, TokenTranscript
from llm_envs.spaces import encodable
from llm_envs.types import IdArray, Message, Row

__all__ = ["EpisodeRecord", "RecordedTurn", "canonical_arguments"]

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text, and calls of a message: equal keys are equal in substance."""


@dataclass(eq=False, slots=True)
class RecordedTurn:
    """One request, and its reply once it is sampled."""

    number: int
    """Index in the order of arrival."""
    parent: RecordedTurn | None
    """The turn that it continues."""
    keys: tuple[Key, ...]
    """Of the messages since the parent's reply, or of all of them."""
    tools: str
    """As canonical JSON."""
    messages: tuple[Message, ...]
    """The same messages, as they were encoded."""
    context_ids: IdArray
    """Their tokens, up to the start of the reply."""
    start: Any
    """The codec's start of the conversation."""
    why: str
    """Why it begins a row, if it does."""
    tool_schemas: tuple[Mapping[str, Any], ...]
    n_new: int | None = None
    """Of a row that only the template began: how many of its last messages are new."""
    child: str = ""
    """See `ChatRequest`."""
    reply: ReturnedReply | None = None
    children: list[RecordedTurn] = field(default_factory=list)

    @property
    def path(self) -> list[RecordedTurn]:
        """The turns from the first to this one."""
        turns, turn = [self], self.parent
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    @property
    def prompt_ids(self) -> IdArray:
        """All tokens before the reply, shape (T,)."""
        before = [ids for turn in self.path[:-1] for ids in (turn.context_ids, turn.reply_ids)]
        return np.concatenate([*before, self.context_ids])

    @property
    def reply_ids(self) -> IdArray:
        """The sampled tokens, shape (T,)."""
        assert self.reply is not None and self.reply.sampled.ids is not None
        return self.reply.sampled.ids


class EpisodeRecord:
    """Matches requests with earlier turns, encodes what is new, and keeps what was sampled.

    Args:
        codec: Encodes messages.
        history: "append": the model sees its earlier replies as it wrote them. "template": as the chat template renders
            them now, in a new row where that differs.
    """

    def __init__(self, codec: Codec, history: History = "append") -> None:
        TokenTranscript(codec, history)  # checks `history`
        self.codec, self.history = codec, history
        self.n_requests = 0
        self._roots: list[RecordedTurn] = []
        self._turns: list[RecordedTurn] = []

    @property
    def turns(self) -> list[RecordedTurn]:
        """The turns with a reply, in the order of their requests."""
        return sorted(self._turns, key=lambda turn: turn.number)

    def begin(self, request: ChatRequest) -> RecordedTurn:
        """Find the turn that a request continues and encode its new messages.

        Raises:
            InvalidConfigError: If a message cannot be converted.
            ModelError: If the model's template refuses the conversation.
        """
        tools, keys = json.dumps(request.tools, sort_keys=True), tuple(map(_key, request.entries))
        parent = self._continued(request, keys, tools)
        number, self.n_requests = self.n_requests, self.n_requests + 1
        if parent is None:
            return self._new_row(request, number, keys, tools, self._difference(request, keys, tools))
        assert parent.reply is not None
        n_old = sum(len(turn.keys) + 1 for turn in parent.path)
        # The assistant's message is converted too, so that results find the names and the order of their calls.
        tail = request.entries[n_old - 1 :]
        messages = tuple(map(_plain, entries_as_messages(tail, {tail[0].index: parent.reply.sampled.text})[1:]))
        delta = self.codec.encode_delta(messages, reply_ids=parent.reply_ids, start=parent.start)
        if self.history == "template":
            known = _replies(parent)
            shown = self._conversation(request, keys, known)
            row_ids = np.concatenate([parent.prompt_ids, parent.reply_ids, delta])
            if self.codec.encode_anew(shown, request.tools, row_ids) is not None:
                why = f"the chat template shows the turns before differently (history={self.history!r})"
                turn = self._new_row(request, number, keys, tools, why, known)
                turn.n_new = len(keys) - n_old
                return turn
        siblings = parent.children
        why = f"a branch: turn {siblings[0].number} already continues turn {parent.number}" if siblings else ""
        turn = RecordedTurn(number, parent, keys[n_old:], tools, messages, delta, parent.start, why, request.tools)
        turn.child = request.child
        siblings.append(turn)  # now, so that a concurrent request knows that it is a branch
        return turn

    def encode(self, request: ChatRequest) -> IdArray:
        """Return a request's prompt as a new conversation, shape (T,)."""
        messages = self._conversation(request, tuple(map(_key, request.entries)), {})
        return self.codec.encode_prompt(messages, request.tools)

    def finish(self, turn: RecordedTurn, reply: ReturnedReply) -> None:
        """Keep a turn with its reply."""
        turn.reply = reply
        if turn.parent is None:
            self._roots.append(turn)
        self._turns.append(turn)

    def drop(self, turn: RecordedTurn) -> None:
        """Forget a turn whose request failed or was cancelled."""
        if turn.parent is not None:
            turn.parent.children.remove(turn)

    def exact_text(self, message: LogEntry) -> str | None:
        """Return what the model wrote for a message that we returned; None for any other message."""
        found = self._matching(self._turns, message)
        return None if found is None or found.reply is None else found.reply.sampled.text

    def lines(self) -> list[list[RecordedTurn]]:
        """Return the turns of each row, in the order in which the rows began."""
        lines: list[list[RecordedTurn]] = []
        line_of: dict[RecordedTurn, list[RecordedTurn]] = {}
        for turn in self.turns:
            line = None if turn.parent is None else line_of[turn.parent]
            if line is None or line[-1] is not turn.parent:  # a sibling has gone on with that row
                line = []
                lines.append(line)
            line.append(turn)
            line_of[turn] = line
        return lines

    def rows(
        self, final: Sequence[Message] = (), most: Callable[[int, int], int | None] | None = None
    ) -> tuple[Row, ...]:
        """Return the rows, in the order of `lines`.

        Args:
            final: The observation after the last turn, which gets no reply; it is context at the end of its row.
            most: (length of the row's prompt, tokens of the other rows) -> the most tokens of that row.
        """
        lines = self.lines()
        rows = [self._row(line) for line in lines]
        if final and lines:
            last = self.turns[-1]
            place = next(index for index, line in enumerate(lines) if last in line)
            if lines[place][-1] is last:
                delta = self.codec.encode_delta(
                    final, reply_ids=last.reply_ids, generation_prompt=False, start=last.start
                )
                others = sum(len(row) for index, row in enumerate(rows) if index != place)
                limit = None if most is None else most(len(lines[place][0].prompt_ids), others)
                rows[place].append_context(delta)
                if limit is not None and len(rows[place]) > limit:
                    rows[place].truncate(limit)
        return tuple(row.build() for row in rows)

    def row_lengths(self, turn: RecordedTurn) -> tuple[int, int]:
        """Return the length of the prompt of a turn's row, and the tokens of all other rows."""
        lines = self.lines()
        own = next((line for line in lines if line[-1] is turn.parent), None)
        others = sum(len(line[-1].prompt_ids) + len(line[-1].reply_ids) for line in lines if line is not own)
        return len((turn if own is None else own[0]).prompt_ids), others

    def conversation(self) -> Iterator[tuple[Message, RecordedTurn | None]]:
        """Yield each message once, with its turn if it is a reply. Histories that are sent again are not repeated."""
        seen: set[tuple[str, str]] = set()
        for turn in self.turns:
            assert turn.reply is not None
            is_other = turn.parent is None and turn.n_new is None
            for message in turn.messages[-(turn.n_new or len(turn.messages)) :]:
                if is_other and (message.role, message.content) in seen:
                    continue
                seen.add((message.role, message.content))
                yield message, None
            reply = turn.reply.sampled.message
            seen.add((reply.role, reply.content))
            yield reply, turn

    def _row(self, line: Sequence[RecordedTurn]) -> RowBuilder:
        row = RowBuilder()
        row.append_context(line[0].prompt_ids)
        for index, turn in enumerate(line):
            if index:
                row.append_context(turn.context_ids)
            sampled = turn.reply.sampled if turn.reply is not None else None
            assert sampled is not None and sampled.ids is not None and sampled.logps is not None
            row.append_sampled(sampled.ids, sampled.logps, sampled.kept)
        return row

    def _new_row(
        self,
        request: ChatRequest,
        number: int,
        keys: tuple[Key, ...],
        tools: str,
        why: str,
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> RecordedTurn:
        messages = self._conversation(request, keys, known)
        ids, start = self.codec.encode_prompt(messages, request.tools), self.codec.start_of(messages, request.tools)
        return RecordedTurn(number, None, keys, tools, messages, ids, start, why, request.tools, child=request.child)

    def _conversation(self, request: ChatRequest, keys: Sequence[Key], known: Mapping[int, str]) -> tuple[Message, ...]:
        """Return all messages of a request, with the replies that we know as the model wrote them.

        Args:
            request: The request.
            keys: Of its messages.
            known: Index of a message -> the model's words. Other replies are found by what they say.
        """
        written = dict(known)
        for index, entry in enumerate(request.entries):
            if index in known:
                continue
            is_alone = all(keys[near][0] != "assistant" for near in (index - 1, index + 1) if 0 <= near < len(keys))
            if entry.role == "assistant" and is_alone and (text := self.exact_text(entry)) is not None:
                written[index] = text
        return tuple(map(_plain, entries_as_messages(request.entries, written)))

    def _continued(self, request: ChatRequest, keys: tuple[Key, ...], tools: str) -> RecordedTurn | None:
        """Return the longest turn that the request continues."""
        found: dict[int, list[RecordedTurn]] = {}  # number of messages with the reply -> the turns that fit
        open_turns = [(root, 0) for root in self._roots]
        while open_turns:
            turn, place = open_turns.pop()
            end = place + len(turn.keys)
            # A reply that ends the request leaves nothing to answer, so at least one message must follow it.
            fits = turn.tools == tools and keys[place:end] == turn.keys and end + 1 < len(keys)
            if fits and _is_reply(turn, request.entries[end]):
                found.setdefault(end + 1, []).append(turn)
                open_turns += [(child, end + 1) for child in turn.children]
        if not found:
            return None
        place = max(found)
        if any(key[0] == "assistant" for key in keys[place:]):
            return None
        return self._matching(found[place], request.entries[place - 1])

    def _matching(self, turns: Sequence[RecordedTurn], entry: LogEntry) -> RecordedTurn | None:
        """Return the turn whose reply a message is; see the module's rule 3."""
        ids = [call.id for call in entry.calls]

        def rank(turn: RecordedTurn) -> tuple[bool, bool, int]:
            assert turn.reply is not None
            same_ids = bool(ids) and [id_ for id_, _, _ in turn.reply.calls] == ids
            return same_ids, not turn.children, turn.number

        return max((turn for turn in turns if _is_reply(turn, entry)), key=rank, default=None)

    def _difference(self, request: ChatRequest, keys: tuple[Key, ...], tools: str) -> str:
        """Say why a request continues no turn: where it leaves the most similar conversation."""
        if not self._turns:
            return "the first request"
        best, why = -1, ""
        for turn in self.turns:
            place, reason = _first_difference(turn, request.entries, keys)
            if turn.tools != tools and place >= len(turn.path[0].keys):
                reason = f"other tools than in turn {turn.number}"
            if place > best:
                best, why = place, reason
        return why


def canonical_arguments(arguments: Mapping[str, Any]) -> str:
    """Return a call's arguments as JSON with sorted keys."""
    return json.dumps(dict(arguments), sort_keys=True, ensure_ascii=False)


def _replies(turn: RecordedTurn) -> dict[int, str]:
    """Return what the model wrote up to a turn, by the index of the message."""
    texts, place = {}, 0
    for step in turn.path:
        place += len(step.keys)
        if step.reply is not None:
            texts[place] = step.reply.sampled.text
        place += 1
    return texts


def _key(entry: LogEntry) -> Key:
    is_reply = entry.role == "assistant"
    calls = tuple((call.name, canonical_arguments(call.arguments)) for call in entry.calls)
    return entry.role, entry.content.strip() if is_reply else entry.content, calls


def _is_reply(turn: RecordedTurn, entry: LogEntry) -> bool:
    reply = turn.reply
    if reply is None or entry.role != "assistant":
        return False
    calls = tuple((name, canonical_arguments(json.loads(arguments))) for _, name, arguments in reply.calls)
    thinking = (entry.thinking or "").strip()
    return _key(entry) == ("assistant", reply.content.strip(), calls) and thinking in ("", reply.thinking.strip())


def _first_difference(turn: RecordedTurn, entries: Sequence[LogEntry], keys: Sequence[Key]) -> tuple[int, str]:
    """Return how many messages of a request belong to a turn's conversation, and what the next one is."""
    place = 0
    for step in turn.path:
        for key in step.keys:
            if place >= len(keys):
                return place, f"the history ends before turn {turn.number}"
            if keys[place] != key:
                return place, f"messages[{place}] ({keys[place][0]}) is not the one before turn {step.number}"
            place += 1
        if place >= len(keys) - 1:
            return place, f"the same messages as turn {step.number}, asked again"
        if not _is_reply(step, entries[place]):
            return place, f"messages[{place}] ({keys[place][0]}) is not the reply of turn {step.number}"
        place += 1
    return place, f"an assistant's message after turn {turn.number} was not sampled here"


def _plain(message: Message) -> Message:
    """Leave out ids of calls, which the model neither writes nor reads, and characters that no tokenizer can encode."""
    metadata = {key: value for key, value in message.metadata.items() if key != "tool_call_id"}
    return replace(message, content=encodable(message.content), metadata=metadata)
