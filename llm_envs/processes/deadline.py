"""The time limit of a worker process: a thread of the host kills a worker that is over it.

A busy machine is not the code's fault. A worker that had less than `ENOUGH` of its limit on a processor gets more time,
until it had that or `LONGEST` is reached. So code is over its time on a busy machine if it is so on a free one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from llm_envs.processes import cpu_seconds, forget_after_fork

__all__ = ["ENOUGH", "LONGEST", "STEP", "TimeLimit", "TimeLimits"]

ENOUGH = 0.9
"""Share of its limit that a run must have had on a processor. Below 1: on a free machine, too, a little is lost."""
STEP = 0.25
"""How much more time it gets before the next look, in multiples of its time limit."""
LONGEST = 30
"""Longest time of a run that had no processor, in multiples of its time limit."""
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Windows has no SIGKILL; there `os.kill` ends the process with any signal."""


@dataclass(eq=False)
class TimeLimit:
    """The limit of one run, and what became of it."""

    pid: int
    timeout_s: float
    used_before_s: float
    """Processor time of the worker before the run."""
    deadline: float
    given_s: float
    """Wall-clock time from the start of the run to the deadline."""
    used_s: float = 0.0
    """Processor time of the run, as of the last check."""
    is_killed: bool = False

    @property
    def was_starved(self) -> bool:
        """Whether the worker was killed although it never had a processor for `ENOUGH` of its limit."""
        return self.is_killed and self.used_s < ENOUGH * self.timeout_s

    def check(self) -> None:
        """Kill the worker, or extend the limit because it had no processor."""
        used_s = cpu_seconds(self.pid)
        self.used_s = self.timeout_s if used_s is None else used_s - self.used_before_s
        if self.used_s < ENOUGH * self.timeout_s and self.given_s < LONGEST * self.timeout_s:
            self.given_s += STEP * self.timeout_s
            self.deadline += STEP * self.timeout_s
            return
        self.is_killed = True
        with contextlib.suppress(OSError):  # it has ended
            os.kill(self.pid, _KILL)


class TimeLimits:
    """A thread that watches the limits of all current runs. It starts with the first run."""

    def __init__(self) -> None:
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        """Start over in a forked child, which has no such thread."""
        self._changed = threading.Condition()
        self._current: set[TimeLimit] = set()
        self._next = float("inf")
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def hold(self, pid: int, timeout_s: float) -> Iterator[TimeLimit]:
        """Kill the process if the block takes longer than its limit. The process must live until the block ends."""
        limit = TimeLimit(pid, timeout_s, cpu_seconds(pid) or 0.0, time.monotonic() + timeout_s, timeout_s)
        with self._changed:
            self._current.add(limit)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="llm-envs-time-limits", daemon=True)
                self._thread.start()
            elif limit.deadline < self._next:
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
                for limit in [each for each in self._current if each.deadline <= now]:
                    limit.check()
                    if limit.is_killed:
                        self._current.discard(limit)
                self._next = min((limit.deadline for limit in self._current), default=float("inf"))
                self._changed.wait(None if self._next == float("inf") else max(self._next - now, 0.001))
