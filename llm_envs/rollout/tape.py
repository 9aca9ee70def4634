"""An episode's row while it is written: what was said and heard, in order, as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_envs.rollout.context import Codec
from llm_envs.rollout.rows import RowBuilder
from llm_envs.types import Message, Row

__all__ = ["Tape"]


class Tape:
    """Writes one row with a codec. Without a codec it stays empty, whatever is said.

    Args:
        codec: Encodes what the environment says.
    """

    def __init__(self, codec: Codec | None) -> None:
        self.codec = codec
        self.row = RowBuilder()
        self._heard: tuple[Message, ...] = ()
        self._heard_at = 0  # length of the row before the last observation
        self._closed = True

    def begin(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Write the first prompt."""
        if self.codec is not None:
            self.row.append_context(self.codec.encode_prompt(messages, tools))

    def say(self, ids: npt.NDArray[np.int32] | None, logps: npt.NDArray[np.float32] | None) -> None:
        """Append the policy's words; without log-probabilities they were not sampled."""
        if self.codec is None or ids is None:
            return
        if logps is None:
            self.row.append_unsampled(ids)
        else:
            self.row.append_sampled(ids, logps)
        self._closed = len(ids) > 0 and int(ids[-1]) == self.codec.end_of_turn_id

    def unsay(self) -> None:
        """Take back the last words: their step failed, so there is no turn that they belong to."""
        if self.codec is not None:
            self.row.forget_turn()

    def hear(self, messages: tuple[Message, ...]) -> None:
        """Append what the environment said, ready for the next turn."""
        self._heard, self._heard_at = messages, len(self.row)
        self._encode(generation_prompt=True)

    def hear_last(self, room: int | None) -> None:
        """Write the last observation anew, as one that nobody answers; the whole row gets at most `room` tokens."""
        if self.codec is None or self.row.n_spans == 0:
            return
        self.row.truncate(self._heard_at)
        self._encode(generation_prompt=False)
        if room is not None and len(self.row) > room:
            self.row.truncate(room)

    def rows(self) -> tuple[Row, ...]:
        """Return what was written."""
        return (self.row.build(),) if len(self.row) else ()

    def _encode(self, *, generation_prompt: bool) -> None:
        if self.codec is not None:
            delta = self.codec.encode_delta(self._heard, closed=self._closed, generation_prompt=generation_prompt)
            self.row.append_context(delta)
