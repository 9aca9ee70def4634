"""Decisions about servers, as functions and small state machines without tasks, clients or clocks.

The time is always an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError

__all__ = ["Backoff", "RateLimit", "Router", "retry_after_s"]

# Number of episodes whose server is remembered. The oldest is forgotten first; it only loses its prefix cache.
_MAX_SESSIONS = 65_536


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a server's `Retry-After`; None if it is missing or not in seconds."""
    value = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    try:
        seconds = float(value)
    except ValueError:  # an HTTP date, which would need a clock that agrees with the server's
        return None
    return seconds if 0 <= seconds < float("inf") else None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits between attempts, with jitter from a seed."""

    first_s: float = 0.25
    """Wait before the first retry."""
    factor: float = 2.0
    max_s: float = 15.0
    """Longest wait, unless a server asks for a longer one."""
    jitter: float = 0.5
    """Random share of a wait: with 0.5, half to all of it."""

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.max_s and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise InvalidConfigError(f"{self!r}: needs 0 <= first_s <= max_s, factor >= 1 and 0 <= jitter <= 1.")

    def delay_s(self, attempt: int, seed: int, asked_s: float | None = None) -> float:
        """Return the wait before retry number `attempt`.

        Args:
            attempt: From 0.
            seed: Seed of the request: the same seed and attempt give the same wait, other requests get other waits.
            asked_s: The server's `Retry-After` in seconds. The wait is at least that long, plus a little jitter.
        """
        digest = hashlib.blake2b(f"{seed}/{attempt}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "little") / 2**64
        own = min(self.max_s, self.first_s * self.factor ** min(attempt, 60))
        if asked_s is not None:
            return asked_s + self.first_s * self.jitter * drawn
        return own * (1 - self.jitter * drawn)


class RateLimit:
    """Limits how many requests begin in any minute, in the order in which they ask.

    Args:
        per_minute: Maximum number of requests; None means no limit.

    Raises:
        InvalidConfigError: If the limit is not above 0.
    """

    def __init__(self, per_minute: int | None) -> None:
        if per_minute is not None and per_minute < 1:
            raise InvalidConfigError(f"requests_per_minute is {per_minute!r}; it must be at least 1, or None.")
        self.per_minute = per_minute
        self._starts: deque[float] = deque()
        self._not_before_s = 0.0

    def reserve(self, now_s: float) -> float:
        """Reserve a place; return the seconds to wait before the request may begin."""
        if self.per_minute is None:
            return max(0.0, self._not_before_s - now_s)
        start_s = max(now_s, self._not_before_s)
        if len(self._starts) == self.per_minute:
            start_s = max(start_s, self._starts.popleft() + 60.0)
        self._starts.append(start_s)
        return start_s - now_s

    def hold(self, until_s: float) -> None:
        """Delay further requests until a given time: the server has reported too many."""
        self._not_before_s = max(self._not_before_s, until_s)


@dataclass(slots=True)
class _Endpoint:
    running: int = 0
    sessions: int = 0
    failures: int = 0
    """Failures in a row."""
    down_until_s: float | None = None
    """Time until which it is avoided; None if it has not failed."""


@dataclass
class Router:
    """Chooses the endpoint of a turn: the one with its episode's prefix in the cache, or else the least busy one.

    A failed endpoint is avoided for a time that doubles with each failure in a row. Its episodes move to other
    endpoints and stay there. After that time it may be tried again. Event loops of several threads may share it.
    """

    n_endpoints: int
    cooldown: Backoff = field(default_factory=lambda: Backoff(first_s=1.0, max_s=15.0, jitter=0.0))

    def __post_init__(self) -> None:
        if self.n_endpoints < 1:
            raise InvalidConfigError("the list of endpoints is empty: give at least one URL.")
        self._endpoints = [_Endpoint() for _ in range(self.n_endpoints)]
        self._places: OrderedDict[str, int] = OrderedDict()
        self._counts = threading.RLock()  # an evaluation during a training asks from a second thread

    def pick(self, session: str, now_s: float) -> int | None:
        """Return the endpoint for a session's next turn, and count the turn as running there; None if all are down.

        Args:
            session: The episode; "" means none.
            now_s: The time.
        """
        usable = [i for i, e in enumerate(self._endpoints) if e.down_until_s is None or e.down_until_s <= now_s]
        if not usable:
            return None
        with self._counts:
            index = self._places.get(session)
            if index not in usable:
                index = min(usable, key=lambda i: (self._endpoints[i].running, self._endpoints[i].sessions, i))
            self._settle(session, index)
            self._endpoints[index].running += 1
        return index

    def done(self, index: int) -> None:
        """Count a turn as ended, with any result."""
        with self._counts:
            self._endpoints[index].running -= 1

    def forget(self, session: str) -> None:
        """Send a session's next turn to the least busy endpoint."""
        with self._counts:
            index = self._places.pop(session, None)
            if index is not None:
                self._endpoints[index].sessions -= 1

    def succeeded(self, index: int) -> None:
        """Record that an endpoint answered."""
        self._endpoints[index].failures, self._endpoints[index].down_until_s = 0, None

    def failed(self, index: int, now_s: float) -> None:
        """Record that an endpoint failed. Other turns that end with the same failure are not counted again."""
        endpoint = self._endpoints[index]
        if endpoint.down_until_s is None or endpoint.down_until_s <= now_s:
            endpoint.down_until_s = now_s + self.cooldown.delay_s(endpoint.failures, seed=index)
            endpoint.failures += 1

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until some endpoint may be tried; 0 if one may be tried now."""
        return max(0.0, min(now_s if e.down_until_s is None else e.down_until_s for e in self._endpoints) - now_s)

    def is_well(self, index: int) -> bool:
        """Return whether an endpoint has not failed since it last answered."""
        return self._endpoints[index].down_until_s is None

    def running(self, index: int) -> int:
        """Return the number of turns that run at an endpoint."""
        return self._endpoints[index].running

    def _settle(self, session: str, index: int) -> None:
        if not session:
            return
        self.forget(session)
        self._places[session] = index
        self._endpoints[index].sessions += 1
        if len(self._places) > _MAX_SESSIONS:
            _, oldest = self._places.popitem(last=False)
            self._endpoints[oldest].sessions -= 1
