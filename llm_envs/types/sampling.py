"""How a policy samples a turn, and the tokens that it sampled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "MAX_LOGP",
    "MIN_LOGP",
    "FinishReason",
    "IdArray",
    "KeptTokens",
    "Sampled",
    "SamplingParams",
    "VersionSpan",
    "spans_of_changes",
]

IdArray = npt.NDArray[np.int32]
"""Token ids, shape (T,)."""
MAX_LOGP = 1e-3
"""A log-probability is at most 0; this allows for an engine's rounding."""
MIN_LOGP = -1000.0
"""Lowest log-probability of a sampled token. Float32, in which engines sample, has no probability below e**-104; some
engines write -9999 or less where they have no number."""


class FinishReason(StrEnum):
    """Why sampling one turn ended."""

    STOP = "stop"
    """The model wrote its end-of-turn token, which is the last of the sampled ids."""
    STOP_STRING = "stop_string"
    """A stop string or an extra stop token was reached; the sampled ids have no end-of-turn token."""
    LENGTH = "length"
    """The turn's token limit cut it."""
    CONTEXT_FULL = "context_full"
    """The prompt left no room for a token: nothing was sampled."""
    ABORT = "abort"
    """The request was cancelled before it was complete."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a policy samples one turn. Validated on construction."""

    max_new_tokens: int = 512
    """Tokens a turn may have, at least 1. The collector lowers it to the remaining budget."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_strings: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """In addition to the template's end-of-turn tokens."""
    thinking: bool | None = None
    """For the record only: `ChatCodec(thinking=...)` is what reaches the template."""
    keep_mask: bool = False
    """Whether to record, for each sampled token, the tokens that the filters kept (`KeptTokens`). Transformers only;
    other policies refuse it."""
    seed: int | None = None
    """Run seed of the sampling; None takes the collector's."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the backend unchanged."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ValueError(f"SamplingParams.{name} is {value!r}; it must be an integer.")
        checks: list[tuple[str, bool, str]] = [
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", self.temperature >= 0, "at least 0 (0 is greedy)"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0 (0 is off)"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", self.repetition_penalty > 0, "above 0"),
        ]
        for name, holds, expected in checks:
            if not holds:
                raise ValueError(f"SamplingParams.{name} is {getattr(self, name)!r}; it must be {expected}.")
        if self.keep_mask and self.repetition_penalty != 1:
            raise ValueError(
                f"SamplingParams.keep_mask with repetition_penalty={self.repetition_penalty!r}: a mask cannot record "
                "how a penalty changed the kept tokens. Set repetition_penalty to 1."
            )
        for name in ("stop_strings", "stop_token_ids"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"SamplingParams.{name} is {getattr(self, name)!r}; it must be a tuple.")
        for stop in self.stop_strings:
            if not isinstance(stop, str) or not stop:
                raise ValueError(f"SamplingParams.stop_strings has {stop!r}; each must be a text that is not empty.")


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Sampled tokens `[start, stop)` of a turn were drawn under one version of the weights."""

    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """The tokens that the sampling filters kept at each of T sampled tokens."""

    ids: npt.NDArray[np.int32]
    """Shape (N,): the kept tokens of all positions, concatenated."""
    stops: npt.NDArray[np.int64]
    """Shape (T,): where the kept tokens of each position end in `ids`."""

    def __len__(self) -> int:
        return len(self.stops)

    def first(self, n_tokens: int) -> KeptTokens:
        """Return the kept tokens of the first `n_tokens` positions."""
        stops = self.stops[:n_tokens]
        return KeptTokens(self.ids[: int(stops[-1]) if len(stops) else 0], stops)

    @classmethod
    def join(cls, parts: Sequence[KeptTokens]) -> KeptTokens:
        """Return the kept tokens of several pieces, concatenated."""
        starts = np.cumsum([0, *(len(part.ids) for part in parts)])
        return cls(
            np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate(
                [np.zeros(0, np.int64), *(part.stops + start for part, start in zip(parts, starts, strict=False))]
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One sampled turn of a token policy."""

    token_ids: npt.NDArray[np.int32]
    """Shape (T,): exactly the sampled ids, including the end-of-turn token if the model wrote one."""
    logps: npt.NDArray[np.float32]
    """Shape (T,): log-probability of each id under the distribution it was drawn from, after temperature and filters,
    on every backend (docs/concepts/tokens.md, Filters)."""
    finish_reason: FinishReason
    weight_version: int = 0
    kept: KeptTokens | None = None
    """The tokens that the filters kept for each id, if `SamplingParams.keep_mask` asks for them."""
    versions: tuple[VersionSpan, ...] = ()
    """Spans of all tokens, in order, if the weights changed during the turn. Empty: all have `weight_version`."""

    def __post_init__(self) -> None:
        """Check that the ids are whole numbers, and that the two arrays have the same shape."""
        if self.token_ids.dtype.kind not in "iu":
            raise ValueError(f"Sampled: token_ids has the dtype {self.token_ids.dtype}; it must be of whole numbers.")
        if self.token_ids.shape != self.logps.shape or self.token_ids.ndim != 1:
            raise ValueError(f"Sampled: {self.token_ids.shape} token ids but {self.logps.shape} log-probabilities.")

    @classmethod
    def empty(cls, finish_reason: FinishReason, weight_version: int = 0) -> Sampled:
        """Return a turn without tokens."""
        return cls(np.zeros(0, np.int32), np.zeros(0, np.float32), finish_reason, weight_version)

    @property
    def version_spans(self) -> tuple[VersionSpan, ...]:
        """Spans of all tokens; at least one."""
        return self.versions or (VersionSpan(0, len(self.token_ids), self.weight_version),)


def spans_of_changes(first: int, changes: Iterable[tuple[int, int]], n_tokens: int) -> tuple[VersionSpan, ...]:
    """Return the spans of a turn during which the weights changed; empty if all tokens have the first version.

    Args:
        first: Version of the first token.
        changes: For each change, in order: the number of tokens before it, and the version after it.
        n_tokens: Tokens of the turn.
    """
    spans, start, version = [], 0, first
    for stop, after in (*changes, (n_tokens, first)):
        if start < (stop := min(stop, n_tokens)):
            spans.append(VersionSpan(start, stop, version))
            start = stop
        version = after
    return tuple(spans) if len(spans) > 1 or (spans and spans[0].version != first) else ()
