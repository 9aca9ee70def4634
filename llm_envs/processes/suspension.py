"""Plain calls that wait without blocking the event loop that they run in.

`call_suspendable(function)` runs a plain function in the event loop's own thread, in a greenlet. Where the function
calls `suspend(awaitable)`, however deep, it stands still until the loop has the result, and the loop does other things
meanwhile. A wait so costs no thread. Such functions are like
coroutines: others run only during a `suspend`, so a lock must not be held across one.

Invariants:

1. A greenlet runs one call at a time, in the context (`contextvars`) of the task that awaits it, and is then reused:
   a new one takes ten times as long.
2. Cancelling the task raises `CancelledError` inside the function, at its `suspend`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

__all__ = ["call_suspendable", "can_suspend", "has_suspended", "start_suspendable", "suspend"]

T = TypeVar("T")


class _Suspendable(greenlet):
    """Runs one call after another.

    Switching to it returns the next awaitable whose result the call needs, or None at the call's end.
    """

    has_suspended = False
    """Whether the current call has."""
    value: Any = None
    """The result of the last call."""
    error: BaseException | None = None
    """Its exception, if it raised one."""

    def run(self, function: Callable[[], Any]) -> None:
        while True:
            try:
                self.value = function()
            except BaseException as error:  # raised again in `_end`
                self.error = error
            del function
            function = self.parent.switch(None)


class _Idle(threading.local):
    """The greenlets of this thread that run nothing."""

    def __init__(self) -> None:
        self.greenlets: list[_Suspendable] = []


_idle = _Idle()


async def call_suspendable(function: Callable[[], T]) -> T:
    """Return `function()`, which may `suspend`."""
    runner = _take()
    awaited = runner.switch(function)
    if awaited is not None:
        await _resume(runner, awaited)
    value: T = _end(runner)
    return value


def start_suspendable(function: Callable[[], object]) -> None:
    """Call `function()`; from its first `suspend` on, a task of the running loop finishes it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # so there is nothing that a wait could hold up
        function()
        return
    runner = _take()
    awaited = runner.switch(function)
    if awaited is None:
        _end(runner)
        return
    task = loop.create_task(_resumed(runner, awaited))
    _unfinished.add(task)
    task.add_done_callback(_unfinished.discard)


_unfinished: set[asyncio.Task[Any]] = set()
"""A loop does not keep its tasks alive."""


def _take() -> _Suspendable:
    idle, current = _idle.greenlets, getcurrent()
    runner = idle.pop() if idle else _Suspendable()
    runner.parent, runner.gr_context = current, current.gr_context
    return runner


async def _resume(runner: _Suspendable, awaited: Awaitable[Any] | None) -> None:
    """Await for a greenlet what it waits for, until its call has ended."""
    while awaited is not None:
        try:
            value = await awaited
        except BaseException as error:  # also a cancellation
            awaited = runner.throw(error)
        else:
            awaited = runner.switch(value)


async def _resumed(runner: _Suspendable, awaited: Awaitable[Any]) -> None:
    await _resume(runner, awaited)
    _end(runner)


def _end(runner: _Suspendable) -> Any:
    """Return or raise the outcome of a greenlet's call; it is idle from then on."""
    value, error = runner.value, runner.error
    runner.value = runner.error = runner.gr_context = None
    runner.has_suspended = False
    _idle.greenlets.append(runner)
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # it would keep its own traceback, and so this frame, alive


def can_suspend() -> bool:
    """Return whether the caller runs under `call_suspendable`, in the same thread."""
    return type(getcurrent()) is _Suspendable


def has_suspended() -> bool:
    """Return whether the caller runs under `call_suspendable` and has suspended since it began."""
    current = getcurrent()
    return type(current) is _Suspendable and current.has_suspended


def suspend(awaitable: Awaitable[T]) -> T:
    """Return the awaitable's result, or raise its exception. Call it only if `can_suspend()`."""
    current = getcurrent()
    assert isinstance(current, _Suspendable) and current.parent is not None
    current.has_suspended = True
    result: T = current.parent.switch(awaitable)
    return result
