"""Daemon threads that are reused, and mailboxes that bring functions to an event loop.

Invariants:

1. There are at most as many threads as were ever needed together.
2. Nothing waits for a hung thread. It is replaced, and reused if its call ever returns. No thread keeps the interpreter
   from exiting.
3. An event loop is woken once for all functions that wait in its mailbox.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from llm_envs.processes import register_for_forks

__all__ = ["PooledThread", "in_thread", "post", "take_thread"]

T = TypeVar("T")

_IDLE_S = 60.0
"""How long an idle thread is kept."""


class PooledThread:
    """A daemon thread that runs submitted functions in order, from `take_thread` until `finish`."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_free = False
        """Whether it is idle. Guarded by the lock of `_threads`."""
        threading.Thread(target=self._run, name="llm-envs-call", daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function; the future has its result or exception."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller gave up before this call began
            try:
                future.set_result(function())
            except BaseException as error:  # reported to whoever waits
                future.set_exception(error)

        self._tasks.put(run)
        return future

    def submit_from_loop(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function for the event loop of the caller."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            if future.cancelled():
                return  # the caller gave up before this call began
            try:
                deliver: Callable[[], None] = partial(future.set_result, function())
            except BaseException as error:  # reported to whoever waits
                deliver = partial(future.set_exception, error)
            post(loop, lambda: None if future.done() else deliver())

        self._tasks.put(run)
        return future

    def finish(self, last: Callable[[], None] | None = None) -> None:
        """Run `last`, even if it raises, and become idle."""
        # Both wait behind a hung call, so the thread becomes idle only if that call returns.
        if last is not None:
            self.submit(last)
        self._tasks.put(None)

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_S if self.is_free else None)
            except queue.Empty:
                if _threads.drop(self):
                    return
                continue  # it was taken in the meantime
            if task is None:
                _threads.give_back(self)
            else:
                task()
            del task  # it keeps the environment alive


class _Threads:
    """The idle threads; the last one returned is the first one taken."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over without the idle threads, which end. In a forked child none exist, and the lock may be held."""
        self._lock, self._free = threading.Lock(), list[PooledThread]()

    def take(self) -> PooledThread:
        with self._lock:
            if self._free:
                thread = self._free.pop()
                thread.is_free = False
                return thread
        return PooledThread()

    def give_back(self, thread: PooledThread) -> None:
        with self._lock:
            thread.is_free = True
            self._free.append(thread)

    def drop(self, thread: PooledThread) -> bool:
        """Remove an idle thread that wants to end; return whether it may."""
        with self._lock:
            if thread in self._free:
                self._free.remove(thread)
            return thread.is_free


_threads = _Threads()
register_for_forks(_threads)


def take_thread() -> PooledThread:
    """Return a thread, which is the caller's until its `finish`."""
    return _threads.take()


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread; it may be abandoned there."""
    thread = _threads.take()
    future = thread.submit(function)
    thread.finish()
    return future


class _Mailbox:
    """Functions on their way to an event loop."""

    def __init__(self) -> None:
        self._functions: deque[Callable[[], Any]] = deque()
        self._is_awake = False

    def put(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any], *, is_urgent: bool) -> None:
        self._functions.append(function)
        if self._is_awake and not is_urgent:
            return
        self._is_awake = True  # at worst two threads wake the loop
        try:
            here = None if is_urgent else asyncio.get_running_loop()
        except RuntimeError:  # a thread without a loop
            here = None
        if here is None:
            self._wake(loop)
        else:
            here.call_soon(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_awake = False  # first: what comes from now on wakes the loop again
        while self._functions:
            self._functions.popleft()()


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


def post(loop: asyncio.AbstractEventLoop, function: Callable[[], Any], *, is_urgent: bool = False) -> None:
    """From any thread: have the loop call a function that does not raise. Nothing happens if the loop was closed.

    A caller that runs in another loop wakes this one when its present callbacks are over, once for all of them, because
    waking it also hands over Python's lock. An urgent function does not wait for that; the order is kept.
    """
    mailbox = _mailboxes.get(loop)
    mailbox = _mailboxes.setdefault(loop, _Mailbox()) if mailbox is None else mailbox
    mailbox.put(loop, function, is_urgent=is_urgent)
