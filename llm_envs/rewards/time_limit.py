"""A limit of time for functions of the user: rewards, shaping, filters, selectors, contexts, advantages.

In the main thread the function runs where it always ran, and the alarm signal interrupts it: loops, sleeps, sockets and
regular expressions. In another thread, which no signal reaches, it runs in a daemon thread that is left behind. An
asynchronous function is cancelled.

Time without a processor does not count (`processes.deadline`), up to half of the limit: other processes of a training
may wait for this one.

Code that neither ends (a library that ignores signals and holds Python's lock) is ended with its process, `GRACE_S`
later, and Python prints where it was.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import functools
import inspect
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from llm_envs.errors import InvalidConfigError, TimeLimitError
from llm_envs.processes.deadline import Deadline, thread_clock
from llm_envs.types import Message, Trajectory, TrajectoryGroup

__all__ = ["GRACE_S", "limited"]

F = TypeVar("F")

GRACE_S = 30.0
"""Seconds after the limit until the process is ended."""
_LONGEST = 1.5
"""Longest time of a call that had no processor, in multiples of its limit."""
_AGAIN_S = 1.0
"""Seconds between two alarms, for code that catches the first one and continues."""


class _TooLate(BaseException):
    """Raised inside a function at its limit. Code that catches `Exception` does not catch it."""


def limited(function: F, limit_s: float | None, what: str) -> F:
    """Return a function whose calls, and whose `score_batch`'s calls, may take `limit_s` seconds; None: any time.

    Args:
        function: Takes a trajectory, a group, several trajectories or messages. Anything else is returned unchanged.
        limit_s: Seconds.
        what: Kind and name of the function, for the error.

    Raises:
        TimeLimitError: (When called) after that time.
        InvalidConfigError: If the limit is not above 0.
    """
    if limit_s is None or not callable(function):
        return function
    if not limit_s > 0:
        raise InvalidConfigError(f"max_function_s={limit_s!r}; it must be above 0, or None.")

    def under_limit(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            late = functools.partial(_late, what, limit_s, args)
            result = _run(functools.partial(call, *args, **kwargs), limit_s, late)
            return _awaited(result, limit_s, late) if inspect.isawaitable(result) else result

        return run

    made = under_limit(function)
    if hasattr(function, "score_batch"):
        made.__dict__["score_batch"] = under_limit(function.score_batch)
    return cast("F", made)


def _late(what: str, limit_s: float, args: Sequence[Any]) -> TimeLimitError:
    row = f" for {_row(args[0])}" if args and _row(args[0]) else ""
    return TimeLimitError(
        f"{what} was not done after max_function_s={limit_s:g} s{row}: let it give up earlier, or raise max_function_s."
    )


def _row(given: Any) -> str:
    """Return which episodes a function was given."""
    if isinstance(given, Trajectory):
        return f"episode {given.member} of group {given.group_id!r} ({given.env_id}, seed {given.seed})"
    if isinstance(given, TrajectoryGroup):
        return f"group {given.group_id!r}"
    if isinstance(given, Sequence) and given and isinstance(given[0], Trajectory):
        return f"{len(given)} episodes, the first {_row(given[0])}"
    if isinstance(given, Sequence) and given and isinstance(given[0], Message):
        return f"{len(given)} messages, the last {given[-1].content!r:.80}"
    return ""


def _run(call: Callable[[], Any], limit_s: float, late: Callable[[], TimeLimitError]) -> Any:
    # A thread of C that needs no lock of Python; a later call replaces it.
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(_LONGEST * limit_s + GRACE_S, exit=True, file=sys.__stderr__)
    try:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            return _run_here(call, limit_s, late)
        return _run_beside(call, limit_s, late)
    finally:
        faulthandler.cancel_dump_traceback_later()


async def _awaited(result: Awaitable[Any], limit_s: float, late: Callable[[], TimeLimitError]) -> Any:
    try:
        async with asyncio.timeout(limit_s) as scope:
            return await result
    except TimeoutError:
        if not scope.expired():
            raise  # the function's own
        raise late() from None


def _run_here(call: Callable[[], Any], limit_s: float, late: Callable[[], TimeLimitError]) -> Any:
    is_running, has_rung, left_s, every_s = True, False, 0.0, 0.0
    more_s = _extender(limit_s, threading.get_native_id())

    def ring(number: int, frame: Any) -> None:
        nonlocal has_rung
        if is_running and not has_rung and (given_s := more_s()):
            signal.setitimer(signal.ITIMER_REAL, given_s, _AGAIN_S)
        elif is_running:
            has_rung = True
            raise _TooLate

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
        result = call()
    except _TooLate:
        raise late() from None
    finally:
        is_running = False
        # Continue an alarm that the program itself has set.
        signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - start), 1e-3) if left_s else 0.0, every_s)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
    if has_rung:  # the function has caught it
        raise late()
    return result


def _run_beside(call: Callable[[], Any], limit_s: float, late: Callable[[], TimeLimitError]) -> Any:
    outcome: list[tuple[Any, BaseException | None]] = []

    def target() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:  # handed to the waiting thread
            outcome.append((None, error))

    run = functools.partial(contextvars.copy_context().run, target)
    thread = threading.Thread(target=run, name="llm-envs-limited", daemon=True)  # the interpreter's exit ignores it
    thread.start()
    more_s, left_s = _extender(limit_s, thread.native_id), limit_s
    while left_s:
        thread.join(left_s)
        left_s = more_s() if thread.is_alive() else 0.0
    if not outcome:
        raise late()
    ((result, error),) = outcome
    if error is not None:
        raise error
    return result


def _extender(limit_s: float, thread: int | None) -> Callable[[], float]:
    """Return a function that tells how much more time a call in a thread gets."""
    deadline, start = Deadline(limit_s, _LONGEST), thread_clock(thread)

    def more_s() -> float:
        used_s, waited_s = (now - before for now, before in zip(thread_clock(thread), start, strict=True))
        return deadline.extend(used_s, waited_s)

    return more_s
