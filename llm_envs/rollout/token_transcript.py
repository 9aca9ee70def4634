"""The tokens of one episode: replies and observations, in order, in one or more rows.

There is one row as long as the model sees its history unchanged. If it must see a changed history (a chat template that
drops earlier thinking, a context function that drops earlier turns), the row ends and a new one begins: a fork. Each
sampled token is in exactly one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llm_envs.chat.context import Codec
from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.rows import RowBuilder
from llm_envs.types import KeptTokens, Message, Row

__all__ = ["History", "TokenTranscript"]

History = Literal["append", "template"]
"""How a model sees its earlier replies: "append", exactly as it wrote them; "template", as the chat template renders
them now. With "append" each turn encodes only its new tokens; "template" renders everything again and may fork."""

_NOTHING = np.array([], dtype=np.int32)


class TokenTranscript:
    """Writes rows with a codec. Without a codec it stays empty.

    Args:
        codec: Encodes observations.
        history: See `History`.

    Raises:
        InvalidConfigError: If `history` is neither.
    """

    def __init__(self, codec: Codec | None, history: History = "append") -> None:
        if history not in ("append", "template"):
            raise InvalidConfigError(f'history is {history!r}; it must be "append" or "template".')
        self.codec, self.history = codec, history
        self.row = RowBuilder()
        """The row that the model sees now."""
        self._earlier: list[RowBuilder] = []
        self._forked_from: RowBuilder | None = None  # the old row, until the new one has a reply
        self.view: tuple[Message, ...] = ()
        """The messages that the model sees now. Empty without a codec."""
        self._reply: tuple[Message, ...] = ()
        self._reply_ids = _NOTHING
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._start: Any = None
        # Length of the row, view and start before the last observation; None if a reply followed it.
        self._before: tuple[int, tuple[Message, ...], Any] | None = None
        self._is_compacted = False  # whether the row was begun after a summary and has no reply yet

    @property
    def row_index(self) -> int:
        """Index of the row that holds the last turn."""
        return len(self._earlier)

    @property
    def is_forked(self) -> bool:
        """Whether the last observation began a new row that has no reply yet."""
        return self._forked_from is not None

    @property
    def earlier_tokens(self) -> int:
        """Tokens of the rows before this one."""
        return sum(len(row) for row in self._earlier) + (0 if self._forked_from is None else len(self._forked_from))

    def begin(self, view: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Write the first prompt."""
        self.view, self._tools = tuple(view), tools
        if self.codec is not None:
            self._start = self.codec.start_of(self.view, tools)
            self.row.append_context(self.codec.encode_prompt(view, tools))

    def append_reply(
        self,
        reply: Message,
        ids: npt.NDArray[np.int32] | None,
        logps: npt.NDArray[np.float32] | None,
        kept: KeptTokens | None = None,
        *,
        trained: bool = True,
    ) -> None:
        """Append a reply of the policy. Without log-probabilities it counts as not sampled.

        Args:
            reply: The message.
            ids: Its tokens, shape (T,); None if there are none.
            logps: Shape (T,).
            kept: The tokens that the sampling filters kept, if requested.
            trained: If False, the tokens are context, and the row has no span for them.
        """
        self._reply, self._before, self._is_compacted = (reply,), None, False
        if self.codec is None or ids is None:
            return
        # A fork becomes final only with a reply: an episode that ends before it keeps the old row, which then takes the
        # final observation.
        if self._forked_from is not None:
            self._earlier.append(self._forked_from)
            self._forked_from = None
        if not trained:
            self.row.append_context(ids)
        elif logps is None:
            self.row.append_unsampled(ids)
        else:
            self.row.append_sampled(ids, logps, kept)
        self._reply_ids = ids

    def drop_reply(self) -> None:
        """Drop the last reply: its step failed, so it belongs to no turn."""
        if self.codec is None:
            return
        self.row.forget_turn()
        # If the reply was the first of a forked row, the fork is open again.
        if self.row.n_spans == 0 and self._earlier:
            self._forked_from = self._earlier.pop()

    def append_observation(self, messages: tuple[Message, ...], view: Sequence[Message] | None = None) -> None:
        """Append an observation, ready for the next turn.

        Args:
            messages: The messages since the last turn.
            view: The messages that the model sees from now on; None if its history is unchanged.
        """
        self._before = (len(self.row), self.view, self._start)
        if self.codec is None:
            return
        as_it_was = (*self.view, *self._reply, *messages)
        self.view = as_it_was if view is None else tuple(view)
        if view is not None and self.view != as_it_was:
            self._fork(self.codec.encode_prompt(self.view, self._tools))
            return
        # Only the new messages are encoded, after the ids that were sampled: encoding the replies again could give
        # other ids than the model wrote.
        delta = self.codec.encode_delta(messages, reply_ids=self._reply_ids, start=self._start)
        if self.history == "template":
            prompt = self.codec.encode_anew(self.view, self._tools, np.concatenate([self.row.ids, delta]))
            if prompt is not None:
                self._fork(prompt)
                return
        self.row.append_context(delta)

    def append_request(self, messages: tuple[Message, ...], request: Message) -> None:
        """Append a request behind the last observation, `messages`, which was appended for a next turn."""
        self._take_back()
        self.append_observation((*messages, request))

    def begin_compacted(self, view: Sequence[Message]) -> None:
        """Begin a new row after a summary.

        Args:
            view: The messages that the model sees from now on, the last observation among them.
        """
        if self.codec is not None:
            self.view, self._is_compacted = tuple(view), True
            self._fork(self.codec.encode_prompt(self.view, self._tools))

    def append_final_observation(self, messages: tuple[Message, ...]) -> None:
        """Append the last observation, which gets no reply. If it was appended before, replace that version."""
        if self.codec is None:
            return
        if self._is_compacted:  # the old row has the observation, before the summary
            self.row, self._forked_from = self._forked_from or self.row, None
            return
        # An observation that was appended for a next turn ends with a generation prompt (or opened a fork). The last
        # one has neither, so undo that first.
        self._take_back()
        if not self.row.n_spans:
            return
        delta = self.codec.encode_delta(messages, reply_ids=self._reply_ids, generation_prompt=False, start=self._start)
        self.row.append_context(delta)

    def _take_back(self) -> None:
        """Undo the last `append_observation`, unless a reply followed it."""
        if self._before is None:
            return
        length, self.view, self._start = self._before
        self._before = None
        if self._forked_from is None:
            self.row.truncate(length)
        else:
            self.row, self._forked_from = self._forked_from, None

    def cut(self, length: int | None) -> None:
        """Cut the row to at most `length` tokens."""
        if length is not None and self.row.n_spans and len(self.row) > length:
            self.row.truncate(length)

    def rows(self) -> tuple[Row, ...]:
        """Return the rows."""
        last = self.row if self._forked_from is None else self._forked_from
        return tuple(row.build() for row in (*self._earlier, last) if len(row))

    def _fork(self, prompt: npt.NDArray[np.int32]) -> None:
        self._start = self.codec.start_of(self.view, self._tools) if self.codec is not None else None
        if self._forked_from is None and self.row.n_spans:
            self._forked_from = self.row
        self.row = RowBuilder(capacity=2 * len(prompt))
        self.row.append_context(prompt)
