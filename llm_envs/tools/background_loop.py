"""An event loop in a background thread, shared by the process, and calls in threads that can be abandoned.

Asynchronous tools run on the loop, whoever calls them: from plain code, from inside another running loop (a notebook),
from several threads at once. What they keep open (connections, locks) so belongs to one loop.

1. The loop is made when first needed, and again in a forked child.
2. Its thread is a daemon, so it never keeps the interpreter from exiting. At exit, tasks that still run on the loop are
   cancelled and get `EXIT_S` to clean up.
3. No exception ends the loop: every coroutine on it is wrapped in `capture` first.
4. If something blocks the loop (a `time.sleep` in a coroutine), a wait with a limit notices and drops the loop; the
   next use makes a new one.
5. A caller that can be suspended (`llm_envs.processes.suspension`) does not block its event loop while it waits.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from llm_envs.processes import register_for_forks
from llm_envs.processes.suspension import can_suspend, suspend
from llm_envs.processes.threads import in_thread, post, take_thread

__all__ = [
    "CLEANUP_S",
    "LimitReached",
    "call_within",
    "capture",
    "event_loop",
    "guard_s",
    "is_present",
    "refuse_on_loop",
    "start_thread",
    "wait",
    "wait_async",
    "wait_for_outcome",
]

CLEANUP_S = 1.0
"""How long to wait for a task on the loop after its cancellation."""
EXIT_S = 3.0
_PING_S = 2.0
"""A loop that does not react for this long is blocked."""

Captured = tuple[Any, BaseException | None]
"""The result of a call, and the exception that it raised instead."""


class LimitReached(Exception):
    """A call took longer than its limit; the argument is the limit in seconds."""


class _Background:
    """The current loop, if there is one. Guarded by its lock."""

    lock: threading.Lock
    loop: asyncio.AbstractEventLoop | None
    thread: threading.Thread | None

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over. A forked child has its parent's loop but not its thread, and a lock that may be held."""
        self.lock, self.loop, self.thread = threading.Lock(), None, None


_background = _Background()


def event_loop() -> asyncio.AbstractEventLoop:
    """Return the process's background event loop, running."""
    if (present := _background.loop) is not None:
        return present
    with _background.lock:
        if _background.loop is None:
            _background.loop = loop = asyncio.new_event_loop()
            _background.thread = threading.Thread(target=_serve, args=(loop,), name="llm-envs-loop", daemon=True)
            _background.thread.start()
        return _background.loop


def is_present(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether this is still the process's background event loop."""
    return _background.loop is loop


def wait(coroutine: Coroutine[Any, Any, Any], limit_s: float | None = None) -> Any:
    """Run a coroutine on the loop and return its result. If the caller is interrupted, the coroutine is cancelled.

    Args:
        coroutine: Raises only `Exception`s: see `capture`.
        limit_s: Seconds after which it is cancelled. If the loop is blocked then, it is dropped.

    Raises:
        LimitReached: If the limit was reached.
        RuntimeError: If the caller is on the loop itself, which would wait for itself forever.
    """
    if can_suspend():
        return _suspend_for(coroutine) if limit_s is None else suspend(wait_async(coroutine, limit_s))
    try:
        refuse_on_loop()
    except RuntimeError:
        coroutine.close()
        raise
    loop = event_loop()
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        done, _ = concurrent.futures.wait([future], timeout=limit_s)
        if done:
            return future.result()
    finally:
        future.cancel()
    if not _responds(loop):
        _give_up(loop)
    raise LimitReached(limit_s)


async def wait_async(awaitable: Awaitable[Any], limit_s: float | None = None) -> Any:
    """Do what `wait` does, from any event loop."""
    loop = event_loop()
    future, cancel = _submit(awaitable, loop)
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await future
    except TimeoutError:
        if not scope.expired():
            raise  # the awaitable's own
    finally:
        if not future.done() or future.cancelled():
            cancel()
    responds, _ = await asyncio.wrap_future(start_thread(_responds, {"loop": loop}))
    if not responds:
        _give_up(loop)
    raise LimitReached(limit_s)


def _suspend_for(awaitable: Awaitable[Any]) -> Any:
    """Do what `wait_async` does without a limit, from a call that can be suspended."""
    future, cancel = _submit(awaitable, event_loop())
    try:
        return suspend(future)
    finally:
        if not future.done() or future.cancelled():
            cancel()


def _submit(
    awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop
) -> tuple[asyncio.Future[Any], Callable[[], None]]:
    """Run an awaitable on another loop, in the caller's context; return its future, and what cancels it there."""
    caller, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = caller.create_future()
    task: asyncio.Task[None] | None = None

    async def run() -> None:
        # Delivered here and not when the task is done, which would cost the loop another round.
        try:
            deliver = partial(future.set_result, await awaitable)
        except asyncio.CancelledError:
            deliver = partial(future.set_exception, RuntimeError("it was cancelled from within"))
        except BaseException as raised:  # a SystemExit would end the loop
            deliver = partial(future.set_exception, raised)
        post(caller, lambda: None if future.done() else deliver())

    def start() -> None:
        nonlocal task
        task = loop.create_task(run(), context=context)

    def stop() -> None:
        if task is not None:
            task.cancel()
        if asyncio.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
            awaitable.close()

    def cancel() -> None:
        future.cancel()
        post(loop, stop, is_urgent=True)  # `start` ran by then, because a mailbox keeps the order

    post(loop, start)
    return future, cancel


def wait_for_outcome(awaitable: Awaitable[Any], limit_s: float | None) -> Any:
    """Run an awaitable on the loop and return its result, or raise its exception.

    Args:
        awaitable: A coroutine, or any other awaitable.
        limit_s: Seconds that it may take; None means no limit.

    Raises:
        LimitReached: If it took longer.
    """
    if limit_s is None and can_suspend():
        return _suspend_for(awaitable)  # `capture` would make a second task
    try:
        value, raised = wait(capture(awaitable, limit_s), guard_s(limit_s))
    except LimitReached:  # the loop is blocked
        raise LimitReached(limit_s) from None
    if raised is not None:
        raise raised
    return value


def guard_s(limit_s: float | None, n_rounds: int = 1) -> float | None:
    """Return the seconds to wait for a task that has its own limit on the loop, in case the loop is blocked."""
    return None if limit_s is None else n_rounds * (limit_s + 2 * CLEANUP_S)


def refuse_on_loop() -> None:
    """Raise a RuntimeError if the loop would wait for itself."""
    thread = _background.thread
    if thread is not None and thread.ident == threading.get_ident():
        raise RuntimeError("an asynchronous tool waits for another one: it must await it (Tool.acall, arun_calls)")


async def capture(awaitable: Awaitable[Any], limit_s: float | None = None) -> Captured:
    """Return the outcome of an awaitable as data; at the limit it is cancelled.

    Args:
        awaitable: A coroutine, or any other awaitable.
        limit_s: Seconds that it may take; None means no limit. If it ignores its cancellation, it is abandoned.
    """
    task = asyncio.ensure_future(_captured(awaitable))
    try:
        await asyncio.wait([task], timeout=limit_s)
        if task.done():
            if task.cancelled():
                return None, RuntimeError("it was cancelled from within")
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CLEANUP_S)
    return None, LimitReached(limit_s)


def start_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> concurrent.futures.Future[Captured]:
    """Call the function in a daemon thread; the future has the outcome as data."""
    return in_thread(_captured_call(function, arguments))


def call_within(function: Callable[..., Any], arguments: dict[str, Any], limit_s: float | None) -> Any:
    """Return `function(**arguments)`, called in a daemon thread, which is abandoned at the limit.

    Raises:
        LimitReached: If it took longer than `limit_s` seconds.
    """
    if can_suspend():
        value, raised = suspend(_call_within(_captured_call(function, arguments), limit_s))
    else:
        try:
            value, raised = start_thread(function, arguments).result(limit_s)
        except concurrent.futures.TimeoutError:
            raise LimitReached(limit_s) from None
    if raised is not None:
        raise raised
    return value


async def _call_within(call: Callable[[], Captured], limit_s: float | None) -> Captured:
    thread = take_thread()
    future = thread.submit_from_loop(call)
    thread.finish()
    if limit_s is None:
        return await future
    await asyncio.wait([future], timeout=limit_s)
    if not future.done():
        raise LimitReached(limit_s)
    return future.result()


def _captured_call(function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Captured]:
    """Return a call in the caller's context whose outcome is data."""
    context = contextvars.copy_context()

    def call() -> Captured:
        try:
            return context.run(function, **arguments), None
        except BaseException as raised:  # reported to the caller
            return None, raised

    return call


async def _captured(awaitable: Awaitable[Any]) -> Captured:
    try:
        return await awaitable, None
    except asyncio.CancelledError:
        raise
    except BaseException as raised:  # a SystemExit would end the loop
        return None, raised


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):  # from a task that a tool started and did not await
            continue


def _responds(loop: asyncio.AbstractEventLoop) -> bool:
    answered = threading.Event()
    loop.call_soon_threadsafe(answered.set)
    return answered.wait(_PING_S)


def _give_up(loop: asyncio.AbstractEventLoop) -> None:
    with _background.lock:
        if _background.loop is loop:
            _background.loop = _background.thread = None
    loop.call_soon_threadsafe(lambda: loop.create_task(_drain(loop)))  # should it ever come back


async def _drain(loop: asyncio.AbstractEventLoop) -> None:
    """Let the remaining tasks of a dropped loop finish."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    loop.stop()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=EXIT_S)


@atexit.register
def _stop_at_exit() -> None:
    loop, thread = _background.loop, _background.thread
    if loop is None or thread is None or not thread.is_alive():
        return
    future = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
    concurrent.futures.wait([future], timeout=EXIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=CLEANUP_S)


register_for_forks(_background)
