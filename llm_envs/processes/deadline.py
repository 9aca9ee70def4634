"""The one notion of a time limit: time in which code is ready to run and has no processor does not count.

A busy machine is not the code's fault. Code that had less than `ENOUGH` of its limit gets more time, until it had that
or `LONGEST` is reached. So code is over its time on a busy machine if it is so on a free one. For a worker process, a
thread of the host watches the limit and kills it; in a worker, waiting counts only as far as it uses a processor.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from llm_envs.processes import cpu_seconds, register_for_forks

__all__ = ["LONGEST", "Deadline", "TimeLimit", "TimeLimits", "thread_clock"]

ENOUGH = 0.9
"""Share of its limit that a run must have had on a processor. Below 1: on a free machine, too, a little is lost."""
STEP = 0.25
"""How much more time it gets before the next look, in multiples of its time limit."""
LONGEST = 30
"""Longest time of a run that had no processor, in multiples of its time limit."""
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has no SIGKILL; there `os.kill` ends the process with any signal."""


@dataclass(eq=False)
class Deadline:
    """The time that a run has and what it has spent, in seconds."""

    limit_s: float
    longest: float = LONGEST
    """The most that it is given, in multiples of its limit."""
    given_s: float = field(init=False)
    """Wall-clock time so far; at first the limit."""
    spent_s: float = field(default=0.0, init=False)
    """The part of it that counts, as of the last `extend`."""

    def __post_init__(self) -> None:
        self.given_s = self.limit_s

    @property
    def was_starved(self) -> bool:
        """Whether the run has spent less than `ENOUGH` of its limit."""
        return self.spent_s < ENOUGH * self.limit_s

    def extend(self, used_s: float, waited_s: float = math.inf) -> float:
        """Return how much more time a run has that has used up what it was given; 0.0 if it is over.

        Args:
            used_s: The run's processor time.
            waited_s: Time in which it was ready and had no processor. By default, everything but `used_s`.
        """
        self.spent_s = max(used_s, self.given_s - waited_s)
        if not self.was_starved or self.given_s >= self.longest * self.limit_s:
            return 0.0
        self.given_s += STEP * self.limit_s
        return STEP * self.limit_s


def thread_clock(thread: int | None) -> tuple[float, float]:
    """Return the seconds in which a thread had a processor, and those in which it was ready and had none (on Linux).

    Args:
        thread: Its id in the system.
    """
    try:
        with open(f"/proc/{thread}/schedstat") as file:
            used_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0, 0.0
    return used_ns / 1e9, waited_ns / 1e9


@dataclass(eq=False)
class TimeLimit(Deadline):
    """The limit of a worker process's run, and what became of it."""

    pid: int = field(kw_only=True)
    used_before_s: float = field(kw_only=True)
    """Processor time of the worker before the run."""
    until: float = field(kw_only=True)
    """When to look next, on the monotonic clock."""
    is_killed: bool = False

    def check(self) -> None:
        """Kill the worker, or extend the limit because it had no processor."""
        used_s = cpu_seconds(self.pid)
        more_s = self.extend(self.limit_s if used_s is None else used_s - self.used_before_s)
        self.until += more_s
        if not more_s:
            self.is_killed = True
            with contextlib.suppress(OSError):  # it has ended
                os.kill(self.pid, _KILL)


class TimeLimits:
    """A thread that watches the limits of all current runs. It starts with the first run."""

    def __init__(self) -> None:
        self.reset_after_fork()
        register_for_forks(self)

    def reset_after_fork(self) -> None:
        """Start over in a forked child, which has no such thread."""
        self._changed = threading.Condition()
        self._current: set[TimeLimit] = set()
        self._next = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def hold(self, pid: int, timeout_s: float) -> Iterator[TimeLimit]:
        """Kill the process if the block takes longer than its limit. The process must live until the block ends."""
        limit = TimeLimit(timeout_s, pid=pid, used_before_s=cpu_seconds(pid) or 0.0, until=time.monotonic() + timeout_s)
        with self._changed:
            self._current.add(limit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="llm-envs-time-limits", daemon=True)
                self._thread.start()
            elif limit.until < self._next:
                self._changed.notify()
        try:
            yield limit
        finally:
            with self._changed:  # so that the thread cannot kill the worker during its next run
                self._current.discard(limit)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for limit in [each for each in self._current if each.until <= now]:
                    limit.check()
                    if limit.is_killed:
                        self._current.discard(limit)
                self._next = min((limit.until for limit in self._current), default=float("inf"))
                self._changed.wait(None if self._next == float("inf") else max(self._next - now, 0.001))
