"""Run a coroutine from synchronous code, also where an event loop is already running (a notebook)."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["SyncRunner"]

T = TypeVar("T")


class SyncRunner:
    """One event loop, kept from call to call, so that a policy's queues and locks stay with the loop they belong to.

    In plain code the loop runs in the calling thread, and Ctrl-C cancels the coroutine. Where the calling thread
    already runs a loop, ours runs in a thread beside it while the caller waits; an interrupt cancels the coroutine
    there as well.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._finalizer = weakref.finalize(self, _close, self._runner)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `await function()`."""
        return self._run_beside(function) if _is_in_a_loop() else self._run_here(function)

    def close(self) -> None:
        """Close the loop. Harmless when repeated."""
        self._finalizer()

    def _run_here(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: list[T] = []

        # Not as the task's result: `asyncio.Runner` puts the signal handler back by way of the repr of its task, which
        # would write out all that was collected.
        async def main() -> None:
            result.append(await function())

        self._runner.run(main())
        return result[0]

    def _run_beside(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        result: Future[T] = Future()
        task: list[asyncio.Task[Any] | None] = []

        async def main() -> T:
            task.append(asyncio.current_task())
            return await function()

        def target() -> None:
            try:
                result.set_result(self._runner.run(main()))
            except BaseException as error:  # handed to the waiting thread
                result.set_exception(error)

        thread = threading.Thread(target=target, name="llm-envs-sync")
        thread.start()
        try:
            return result.result()
        except KeyboardInterrupt:
            if task and task[0] is not None and not result.done():
                self._runner.get_loop().call_soon_threadsafe(task[0].cancel)
            raise
        finally:
            thread.join()


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner) -> None:
    """Close a runner, also when that falls (by garbage collection, say) into a thread whose own loop is running."""
    if not _is_in_a_loop():
        runner.close()
        return
    thread = threading.Thread(target=runner.close, name="llm-envs-sync-close")
    thread.start()
    thread.join()
