"""A gate in front of a policy. While it is closed, running calls are interrupted and no new call begins.

An episode that waits at the gate keeps its environment and all its tokens. An interruptible policy also returns the
tokens of the current turn, and the turn continues from them. For any other policy the call is cancelled, and repeated
when the gate opens. In both cases the rest of the turn is sampled with the new weights.

1. While the gate is closed no call begins; once `close` has returned none is running.
2. If a policy ignores an interrupt, it is cancelled after `INTERRUPT_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["INTERRUPT_S", "PauseGate", "Stopwatch"]

T = TypeVar("T")

INTERRUPT_S = 10.0
"""Seconds that a policy has to react to an interrupt. Engines react at the next token, but first read a long prompt."""
_AGAIN_S = 0.5
"""Seconds until a running call is interrupted again: at the first interrupt it may not have started yet."""


class PauseGate:
    """A gate that starts open. For one event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._calls: dict[asyncio.Task[Any], Callable[[], None] | None] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._earlier_s = 0.0
        self._closed_at: float | None = None
        self.n_closed = 0
        """How often the gate was closed."""

    @property
    def closed_s(self) -> float:
        """Total seconds that the gate has been closed."""
        return self._earlier_s + (0.0 if self._closed_at is None else time.perf_counter() - self._closed_at)

    async def close(self) -> None:
        """Close the gate: interrupt or cancel the running calls, and wait until they have ended."""
        if self._closed_at is None:
            self._closed_at, self.n_closed = time.perf_counter(), self.n_closed + 1
        self._open.clear()
        await asyncio.sleep(0)  # lets a call start that just passed the gate: one that never started ignores interrupts
        deadline = time.monotonic() + INTERRUPT_S
        while calls := [call for call in self._calls if not call.done()]:
            is_late = time.monotonic() > deadline
            for call in calls:
                interrupt = self._calls[call]
                if interrupt is not None and not is_late:
                    interrupt()
                elif call not in self._cancelled:
                    self._cancelled.add(call)
                    call.cancel()
            await asyncio.wait(calls, timeout=_AGAIN_S)
            if is_late:
                return  # a call that ignores its cancellation too must not block the gate for ever

    def open(self) -> None:
        """Open the gate again."""
        self._earlier_s, self._closed_at = self.closed_s, None
        self._open.set()

    async def call(self, call: Callable[[], Coroutine[Any, Any, T]], interrupt: Callable[[], None] | None = None) -> T:
        """Await the call; if the gate closes on it, make it again when the gate opens.

        Args:
            call: Makes a new coroutine for each attempt.
            interrupt: Makes the call return early with what it has. The gate then interrupts instead of cancelling.
        """
        while True:
            # A loop, because the gate may be closed again between its opening and the moment this task runs.
            while not self._open.is_set():
                await self._open.wait()
            task = asyncio.ensure_future(call())
            self._calls[task] = interrupt
            try:
                return await task
            except asyncio.CancelledError:
                # A cancellation by the gate means "repeat". Any other one is real and must be passed on.
                current = asyncio.current_task()
                if task not in self._cancelled or (current is not None and current.cancelling()):
                    task.cancel()
                    raise
            finally:
                del self._calls[task]
                self._cancelled.discard(task)


class Stopwatch:
    """Wall time since construction, excluding the time that a gate was closed.

    Args:
        gate: The gate; without one the clock never pauses.
    """

    __slots__ = ("_closed_s", "_gate", "_started")

    def __init__(self, gate: PauseGate | None = None) -> None:
        self._gate, self._started = gate, time.perf_counter()
        self._closed_s = 0.0 if gate is None else gate.closed_s

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        closed_s = 0.0 if self._gate is None else self._gate.closed_s - self._closed_s
        return time.perf_counter() - self._started - closed_s
