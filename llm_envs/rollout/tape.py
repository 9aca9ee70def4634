"""An episode's rows while they are written: what was said and heard, in order, as tokens.

One row as long as the model sees everything as it was. Where it is to see something else (a chat template that drops
earlier thinking, a context function that drops earlier turns), the row ends and another begins: a fork. Each sampled
token stands in exactly one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.context import Codec
from llm_envs.rollout.rows import RowBuilder
from llm_envs.types import Message, Row

__all__ = ["History", "Tape"]

History = Literal["append", "template"]
"""What a model sees of earlier turns: "append", its own words exactly as it wrote them; "template", what the chat
template makes of them now. The first costs each turn its new tokens; the second renders all anew and may fork."""

_NOTHING = np.array([], dtype=np.int32)


class Tape:
    """Writes rows with a codec. Without a codec it stays empty, whatever is said.

    Args:
        codec: Encodes what the environment says.
        history: See `History`.

    Raises:
        InvalidConfigError: If `history` is neither.
    """

    def __init__(self, codec: Codec | None, history: History = "append") -> None:
        if history not in ("append", "template"):
            raise InvalidConfigError(f'history is {history!r}; it must be "append" or "template".')
        self.codec, self.history = codec, history
        self.row = RowBuilder()
        """The row that the model is given now."""
        self._earlier: list[RowBuilder] = []
        self._forked_from: RowBuilder | None = None  # until something is said in the new row
        self._view: tuple[Message, ...] = ()
        self._reply: tuple[Message, ...] = ()
        self._reply_ids = _NOTHING
        self._tools: Sequence[Mapping[str, Any]] = ()
        self._start: Any = None
        self._heard: tuple[Message, ...] = ()
        self._heard_at = 0  # length of the row before the last observation

    @property
    def row_index(self) -> int:
        """Index of the row in which the last turn stands."""
        return len(self._earlier)

    @property
    def is_forked(self) -> bool:
        """Whether the last observation began a new row, in which nothing has been said yet."""
        return self._forked_from is not None

    @property
    def earlier_tokens(self) -> int:
        """Tokens of the rows before this one."""
        return sum(len(row) for row in self._earlier) + (0 if self._forked_from is None else len(self._forked_from))

    def begin(self, view: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Write the first prompt."""
        self._view, self._tools = tuple(view), tools
        if self.codec is not None:
            self._start = self.codec.start_of(self._view, tools)
            self.row.append_context(self.codec.encode_prompt(view, tools))

    def say(self, reply: Message, ids: npt.NDArray[np.int32] | None, logps: npt.NDArray[np.float32] | None) -> None:
        """Append the policy's words; without log-probabilities they were not sampled."""
        self._reply = (reply,)
        if self.codec is None or ids is None:
            return
        if self._forked_from is not None:
            self._earlier.append(self._forked_from)
            self._forked_from = None
        if logps is None:
            self.row.append_unsampled(ids)
        else:
            self.row.append_sampled(ids, logps)
        self._reply_ids = ids

    def unsay(self) -> None:
        """Take back the last words: their step failed, so there is no turn that they belong to."""
        if self.codec is None:
            return
        self.row.forget_turn()
        if self.row.n_spans == 0 and self._earlier:
            self._forked_from = self._earlier.pop()

    def hear(self, messages: tuple[Message, ...], view: Sequence[Message] | None = None) -> None:
        """Take what the environment said, ready for the next turn.

        Args:
            messages: What it said since the last turn.
            view: All that the model is to see now; None is everything as it was.
        """
        self._heard, self._heard_at = messages, len(self.row)
        if self.codec is None:
            return
        as_it_was = (*self._view, *self._reply, *messages)
        self._view = as_it_was if view is None else tuple(view)
        if view is not None and self._view != as_it_was:
            self._fork(self.codec.encode_prompt(self._view, self._tools))
            return
        delta = self.codec.encode_delta(messages, reply_ids=self._reply_ids, start=self._start)
        if self.history == "template":
            prompt = self.codec.encode_anew(self._view, self._tools, np.concatenate([self.row.ids, delta]))
            if prompt is not None:
                self._fork(prompt)
                return
        self.row.append_context(delta)

    def hear_last(self, messages: tuple[Message, ...]) -> None:
        """Take the last observation, which nobody answers; if it was heard already, write it anew as such."""
        if self.codec is None:
            return
        if self._forked_from is not None:
            self.row, self._forked_from = self._forked_from, None
        elif not self.row.n_spans:
            return
        elif messages is self._heard:
            self.row.truncate(self._heard_at)
        delta = self.codec.encode_delta(messages, reply_ids=self._reply_ids, generation_prompt=False, start=self._start)
        self.row.append_context(delta)

    def cut(self, length: int | None) -> None:
        """Cut the row to at most `length` tokens."""
        if length is not None and self.row.n_spans and len(self.row) > length:
            self.row.truncate(length)

    def rows(self) -> tuple[Row, ...]:
        """Return what was written."""
        last = self.row if self._forked_from is None else self._forked_from
        return tuple(row.build() for row in (*self._earlier, last) if len(row))

    def _fork(self, prompt: npt.NDArray[np.int32]) -> None:
        self._start = self.codec.start_of(self._view, self._tools) if self.codec is not None else None
        if self._forked_from is None and self.row.n_spans:
            self._forked_from = self.row
        self.row = RowBuilder(capacity=2 * len(prompt))
        self.row.append_context(prompt)
