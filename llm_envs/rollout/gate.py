"""A gate before a policy: closed, it ends the calls that are under way and lets none through until it opens again.

An episode that waits at the gate keeps its environment and all its tokens. A policy that can be interrupted gives those
of the turn under way too, and the turn goes on from them; any other's call is cancelled, and made anew when the gate
opens. Either way what is sampled then is sampled under the weights of then.

1. While the gate is closed no call begins; once `close` has returned none is under way.
2. An interrupt that a policy does not heed becomes a cancellation after `INTERRUPT_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["INTERRUPT_S", "Gate", "Stopwatch"]

T = TypeVar("T")

INTERRUPT_S = 10.0
"""How long a policy may take to heed an interrupt. Engines do at their next token; a long prompt is read first."""
_AGAIN_S = 0.5
"""After how long a call that is still under way is interrupted again: it may not have begun the first time."""


class Gate:
    """Open at the start. For one event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._calls: dict[asyncio.Task[Any], Callable[[], None] | None] = {}
        self._cancelled: set[asyncio.Task[Any]] = set()
        self._earlier_s = 0.0
        self._closed_at: float | None = None
        self.n_closed = 0
        """How often it was closed."""

    @property
    def closed_s(self) -> float:
        """Seconds that it has been closed, in all."""
        return self._earlier_s + (0.0 if self._closed_at is None else time.perf_counter() - self._closed_at)

    async def close(self) -> None:
        """Let no call through, interrupt or cancel those under way, and wait until they have ended."""
        if self._closed_at is None:
            self._closed_at, self.n_closed = time.perf_counter(), self.n_closed + 1
        self._open.clear()
        await asyncio.sleep(0)  # a call that was let through a moment ago gets to begin
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
                return  # whoever does not end when cancelled either is waited for by nobody

    def open(self) -> None:
        """Let calls through again."""
        self._earlier_s, self._closed_at = self.closed_s, None
        self._open.set()

    async def through(
        self, call: Callable[[], Coroutine[Any, Any, T]], interrupt: Callable[[], None] | None = None
    ) -> T:
        """Return `await call()`, made anew each time that the gate closed on it.

        Args:
            call: What to call.
            interrupt: Has the call return early, with what it has; the gate then calls it in place of cancelling.
        """
        while True:
            while not self._open.is_set():
                await self._open.wait()
            task = asyncio.ensure_future(call())
            self._calls[task] = interrupt
            try:
                return await task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if task not in self._cancelled or (current is not None and current.cancelling()):
                    task.cancel()
                    raise
            finally:
                del self._calls[task]
                self._cancelled.discard(task)


class Stopwatch:
    """Wall time since it was made, without what a gate was closed.

    Args:
        gate: The gate; None never closes.
    """

    __slots__ = ("_closed_s", "_gate", "_started")

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate, self._started = gate, time.perf_counter()
        self._closed_s = 0.0 if gate is None else gate.closed_s

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        closed_s = 0.0 if self._gate is None else self._gate.closed_s - self._closed_s
        return time.perf_counter() - self._started - closed_s
