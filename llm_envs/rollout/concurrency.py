"""How many episodes run concurrently: a fixed number, or "auto", which follows the throughput.

`climb` decides, as a pure function from one measurement to the next limit. `AutoConcurrency` measures for a collector.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.tracking.stats import CollectorStats

__all__ = [
    "AUTO",
    "FIRST",
    "HIGHEST",
    "AutoConcurrency",
    "Concurrency",
    "ConcurrencySearch",
    "EpisodeSlots",
    "climb",
    "most_of",
]

AUTO: Literal["auto"] = "auto"
FIRST = 16
"""Concurrent episodes before anything is measured."""
HIGHEST = 512
_GAIN = 1.05
_MIN_S = 0.5
_MAX_PATIENCE = 64

Concurrency = int | Literal["auto"]
"""A number of episodes, or "auto"."""


def most_of(setting: Concurrency) -> int:
    """Return the highest number of episodes that a setting allows.

    Raises:
        InvalidConfigError: If it is neither "auto" nor a positive number.
    """
    if setting == AUTO:
        return HIGHEST
    if isinstance(setting, bool) or not isinstance(setting, int) or setting < 1:
        raise InvalidConfigError(f"max_concurrency is {setting!r}; it must be at least 1, or {AUTO!r}.")
    return setting


class EpisodeSlots(asyncio.Semaphore):
    """A semaphore whose number of slots can change while they are in use."""

    def __init__(self, n_slots: int) -> None:
        super().__init__(n_slots)
        self._n_slots, self._n_excess = n_slots, 0

    def resize(self, n_slots: int) -> None:
        """Change the number; when it falls, slots in use disappear as they are released."""
        change, self._n_slots = n_slots - self._n_slots, n_slots
        self._n_excess -= change
        while self._n_excess > 0 and not self.locked():
            self._n_excess -= 1
            self._value -= 1
        while self._n_excess < 0:
            self._n_excess += 1
            super().release()

    def release(self) -> None:
        """Give a slot back."""
        if self._n_excess > 0:
            self._n_excess -= 1
        else:
            super().release()


@dataclass(frozen=True, slots=True)
class ConcurrencySearch:
    """The state of the search for the best limit."""

    limit: int = FIRST
    """The current number of concurrent episodes."""
    base: int = FIRST
    """The best limit so far. Below `limit` while a higher one is tried."""
    base_rate: float = 0.0
    """The throughput there, when it was last measured; in any unit."""
    factor: float = 2.0
    """How much higher the next try is."""
    patience: int = 1
    """Measurements at the best limit between two tries."""
    waited: int = 0


def climb(
    state: ConcurrencySearch, rate: float, *, is_preempting: bool = False, highest: int = HIGHEST
) -> ConcurrencySearch:
    """Return the state after a measurement at `state.limit`.

    The limit doubles as long as the throughput rises by 5% each time. After the first try without success, tries are
    smaller (half more) and rarer, each time after twice as many measurements. When the engine preempts turns
    because its cache is full, a quarter of the episodes is given up immediately.

    Args:
        state: Before.
        rate: The throughput that was measured.
        is_preempting: Whether the engine preempted turns meanwhile.
        highest: No limit is above it.
    """
    rarer = replace(state, factor=1.5, patience=min(2 * state.patience, _MAX_PATIENCE), waited=0)
    if is_preempting:
        fewer = max(1, state.limit * 3 // 4)
        return replace(rarer, limit=fewer, base=fewer, base_rate=0.0)
    if state.limit > state.base:
        if rate < _GAIN * state.base_rate:
            return replace(rarer, limit=state.base)
        state = replace(state, base=state.limit, base_rate=rate, patience=1, waited=0)
    else:
        state = replace(state, base_rate=rate, waited=state.waited + 1)
        if state.waited < state.patience:
            return state
    return replace(state, limit=min(highest, max(state.base + 1, int(state.base * state.factor))), waited=0)


class AutoConcurrency:
    """Measures a collector's throughput, in tokens/s or turns/s, and adapts the limit (`climb`).

    A measurement begins when as many turns have ended as there are slots, so that the episodes of the last change have
    begun, and takes twice as many turns. Only times in which every slot is in use count.

    Args:
        stats: The collector's counts.
        policy: If it has `async count_preemptions() -> int`, that is how many turns its engine has preempted so far.
        highest: No limit is above it.
        clock: Returns seconds.
    """

    def __init__(
        self,
        stats: CollectorStats,
        policy: Policy,
        highest: int = HIGHEST,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        first = min(FIRST, highest)
        self.state = ConcurrencySearch(limit=first, base=first)
        self._stats, self._highest, self._clock = stats, highest, clock
        self._count: Callable[[], Awaitable[int]] | None = getattr(policy, "count_preemptions", None)
        self._n_preemptions = 0
        self._settled_at: int | None = None
        """Turns at which the measurement begins; None: nothing is under way."""
        self._begun: tuple[float, int, int] | None = None

    async def episode_ended(self, *, is_full: bool) -> None:
        """Take an episode's end into account.

        Args:
            is_full: Whether every slot is in use.
        """
        n_turns, limit = self._stats.turns, self.state.limit
        if not is_full:
            self._settled_at = self._begun = None
        elif self._settled_at is None:
            self._settled_at = n_turns + limit
        elif self._begun is None:
            if n_turns >= self._settled_at:
                self._begun = self._clock(), self._stats.live_tokens, n_turns
        else:
            since_s, n_tokens, n_before = self._begun
            seconds = self._clock() - since_s
            if n_turns < n_before + 2 * limit or seconds < _MIN_S:
                return
            self._settled_at = self._begun = None  # before the await: other episodes end meanwhile
            rate = (self._stats.live_tokens - n_tokens or n_turns - n_before) / seconds
            n_preemptions = self._n_preemptions
            if self._count is not None:
                self._n_preemptions = await self._count()
            is_preempting = self._n_preemptions > n_preemptions
            self.state = climb(self.state, rate, is_preempting=is_preempting, highest=self._highest)
