"""A gate before a policy: closed, it aborts the calls that are under way and lets none through until it opens again.

An episode that waits at the gate keeps its environment and all tokens of its earlier turns. When the gate opens, the
turn that was aborted is asked for anew, under whatever weights the policy has then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Gate"]

T = TypeVar("T")


class Gate:
    """Open at the start. For one event loop."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._calls: set[asyncio.Task[Any]] = set()
        self._aborted: set[asyncio.Task[Any]] = set()

    def close(self) -> None:
        """Abort the calls under way, and let none through."""
        self._open.clear()
        self._aborted |= self._calls
        for call in self._calls:
            call.cancel()

    def open(self) -> None:
        """Let calls through again."""
        self._open.set()

    async def through(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return `await call()`, made anew each time that the gate closed on it."""
        while True:
            await self._open.wait()
            task = asyncio.ensure_future(call())
            self._calls.add(task)
            try:
                return await task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if task not in self._aborted or (current is not None and current.cancelling()):
                    task.cancel()
                    raise
            finally:
                self._calls.discard(task)
                self._aborted.discard(task)
