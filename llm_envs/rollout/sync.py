"""Run coroutines from synchronous code: one and wait for it, even in a notebook, or some beside other work."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

__all__ = ["BackgroundLoop", "SyncRunner"]

T = TypeVar("T")


class SyncRunner:
    """One event loop that is reused from call to call, so a policy's queues and locks stay with their loop.

    In plain code the loop runs in the calling thread, and Ctrl-C cancels the coroutine. If the calling thread already
    runs a loop, ours runs in a second thread while the caller waits; Ctrl-C cancels the coroutine there too.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._finalizer = weakref.finalize(self, _close, self._runner)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `await function()`."""
        return self._run_beside(function) if _is_in_a_loop() else self._run_here(function)

    def each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator, which makes progress only while the next one is awaited."""
        try:
            while (item := self.run(partial(anext, items, None))) is not None:
                yield item
        finally:
            self.run(items.aclose)

    def close(self) -> None:
        """Close the loop. Harmless when repeated."""
        self._finalizer()

    def _run_here(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: list[T] = []

        # The result is not returned by the task: when `asyncio.Runner` restores the signal handler it takes the repr of
        # the task, which would print everything that was collected.
        async def main() -> None:
            result.append(await function())

        self._runner.run(main(), context=copy_context())  # else the context of the first call, with its span
        return result[0]

    def _run_beside(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: Future[T] = Future()
        task: list[asyncio.Task[Any] | None] = []
        context = copy_context()

        async def main() -> T:
            task.append(asyncio.current_task())
            return await function()

        def target() -> None:
            try:
                result.set_result(self._runner.run(main(), context=context))
            except BaseException as error:  # handed to the waiting thread
                result.set_exception(error)

        thread = threading.Thread(target=target, name="llm-envs-sync")
        thread.start()
        try:
            return result.result()
        except KeyboardInterrupt:
            # The signal reaches only this thread, so the cancellation is handed to the loop in the other one.
            if task and task[0] is not None and not result.done():
                self._runner.get_loop().call_soon_threadsafe(task[0].cancel)
            raise
        finally:
            thread.join()


class BackgroundLoop:
    """An event loop in a second thread, whose coroutines run while the calling thread does something else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: the process can end with an error before `close` is called.
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm-envs-background", daemon=True)
        self._thread.start()

    def start(self, function: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start `function()` in the other thread; cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop)

    def close(self) -> None:
        """Cancel what is running, wait until it has ended, and end the thread. Harmless when repeated."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner) -> None:
    """Close a runner, even if garbage collection calls this in a thread whose own loop is running."""
    if not _is_in_a_loop():
        runner.close()
        return
    thread = threading.Thread(target=runner.close, name="llm-envs-sync-close")
    thread.start()
    thread.join()
