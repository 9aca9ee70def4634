"""Rows of tokens, appended piece by piece. Nothing is ever encoded, decoded or compared with a pad id here."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llm_envs.types import IdArray, KeptTokens, Row, Turn

__all__ = ["RowBuilder", "spans_as_context"]

LogpArray = npt.NDArray[np.float32]


class RowBuilder:
    """Builds one `Row`. Appending a token takes amortised constant time, however long the history is.

    Args:
        capacity: Tokens to make room for at the start; the room doubles when it is full.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._ids = np.empty(capacity, dtype=np.int32)
        self._mask = np.empty(capacity, dtype=np.bool_)
        self._logps = np.empty(capacity, dtype=np.float32)
        self._length = 0
        self._spans: list[tuple[int, int]] = []
        self._kept: list[KeptTokens | None] = []  # one per span

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> IdArray:
        """All token ids so far, shape (T,), as a read-only view: the policy's prompt."""
        # Not a copy: one per turn would make an episode's cost quadratic in its length.
        view = self._ids[: self._length]
        view.flags.writeable = False
        return view

    @property
    def n_spans(self) -> int:
        """Number of turns written so far."""
        return len(self._spans)

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first turn, or of all tokens before any turn."""
        return self._spans[0][0] if self._spans else self._length

    def append_context(self, ids: IdArray) -> None:
        """Append tokens of the template or the environment: mask False, log-probability 0. Shape (T,)."""
        self._append(ids, mask=False, logps=0.0)

    def append_sampled(self, ids: IdArray, logps: LogpArray, kept: KeptTokens | None = None) -> int:
        """Append a turn that the policy sampled.

        Args:
            ids: Shape (T,), exactly what was sampled.
            logps: Shape (T,), log-probability of each.
            kept: The tokens that the sampling filters kept at each position, if requested.

        Returns:
            Index of the turn's span.
        """
        if len(ids) != len(logps):
            raise ValueError(f"RowBuilder: {len(ids)} token ids but {len(logps)} log-probabilities.")
        return self._append_span(ids, logps, kept)

    def append_unsampled(self, ids: IdArray) -> int:
        """Append a reply that was not sampled (an oracle's): mask True, log-probabilities NaN."""
        return self._append_span(ids, np.nan)

    def truncate(self, length: int) -> None:
        """Drop every token from `length` on, and the spans there. Raise if that would split a span.

        An empty span exactly at the cut stays.
        """
        if any(start < length < stop for start, stop in self._spans):
            raise ValueError(f"RowBuilder: cutting at {length} would split a turn; spans are {self._spans}.")
        self._spans = [(start, stop) for start, stop in self._spans if stop <= length]
        del self._kept[len(self._spans) :]
        self._length = min(self._length, length)

    def forget_turn(self) -> None:
        """Drop the last turn and every token since it began."""
        start, _ = self._spans.pop()
        self._kept.pop()
        self._length = start

    def build(self) -> Row:
        """Return the row. Its arrays are copies of exactly its length."""
        stop = self._length
        parts = [part for part in self._kept if part is not None]
        # If a span lacks its masks, the others cannot be aligned with the row, so all of them are dropped.
        is_whole = bool(parts) and sum(map(len, parts)) == sum(end - start for start, end in self._spans)
        arrays = (self._ids[:stop].copy(), self._mask[:stop].copy(), self._logps[:stop].copy())
        return Row(*arrays, tuple(self._spans), KeptTokens.join(parts) if is_whole else None)

    def _append_span(self, ids: IdArray, logps: LogpArray | float, kept: KeptTokens | None = None) -> int:
        start = self._length
        self._append(ids, mask=True, logps=logps)
        self._spans.append((start, self._length))
        self._kept.append(kept)
        return len(self._spans) - 1

    def _append(self, ids: IdArray, *, mask: bool, logps: LogpArray | float) -> None:
        stop = self._length + len(ids)
        if stop > len(self._ids):
            capacity = max(stop, 2 * len(self._ids))
            for name in ("_ids", "_mask", "_logps"):
                setattr(self, name, np.resize(getattr(self, name), capacity))
        self._ids[self._length : stop] = ids
        self._mask[self._length : stop] = mask
        self._logps[self._length : stop] = logps
        self._length = stop


def spans_as_context(
    rows: Sequence[Row], turns: Sequence[Turn], spans: AbstractSet[tuple[int, int]]
) -> tuple[list[Row], list[Turn]]:
    """Turn some turns into context: their tokens stay, but no longer count as the policy's.

    Args:
        rows: The rows of an episode. The masks of sampling filters are dropped.
        turns: Its turns.
        spans: (row, span) of each turn that becomes context. Later spans of the row move up.
    """
    places: dict[tuple[int, int], tuple[int, int]] = {}
    out = []
    for number, row in enumerate(rows):
        mask, logps = row.mask.copy(), row.logps.copy()
        kept: list[tuple[int, int]] = []
        for span, (start, stop) in enumerate(row.spans):
            if (number, span) in spans:
                mask[start:stop], logps[start:stop] = False, np.float32(0)
            else:
                places[number, span] = (number, len(kept))
                kept.append((start, stop))
        out.append(Row(row.ids, mask, logps, tuple(kept)))
    moved = [places.get((turn.row, turn.span), (-1, -1)) for turn in turns]
    return out, [replace(turn, row=row, span=span) for turn, (row, span) in zip(turns, moved, strict=True)]
