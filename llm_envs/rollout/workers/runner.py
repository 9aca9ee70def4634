"""Runs an environment's code in this process: in the event loop, or in a pooled thread.

Invariants:

1. A light environment runs inline, without any thread.
2. An environment that declares `blocking`, or any under a time limit, has its own thread from `open` to `close`. All
   its calls happen there, in order. It is also made there if its class, or an earlier instance, declared `blocking`.
3. Threads are reused. There are at most as many as were ever needed at once.
4. Nothing waits for a hung thread. It is replaced; if it comes back, it closes its environment and is reused. All
   threads are daemons, so none keeps the interpreter from exiting.

Environments that may hang for ever or crash need their own process: `llm_envs.rollout.workers.pool`.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import EnvContractError, ResetNeededError
from llm_envs.problems import as_flag, as_number
from llm_envs.processes import register_for_forks
from llm_envs.rollout.workers.slow_calls import name_if_slow

__all__ = [
    "EnvMaker",
    "EnvRunner",
    "Runner",
    "call",
    "check_made",
    "check_reset",
    "check_step",
    "close_env",
    "env_attribute",
    "in_thread",
    "make_env",
]

T = TypeVar("T")
Env = gym.Env[str, str]
Target = EnvSpec | str | Callable[..., Env]
Step = tuple[str, float, bool, bool, Mapping[str, Any]]

_IDLE_S = 60.0
"""How long an idle thread is kept."""
_WAIT_S, _WAITS = 0.05, 3
"""So many steps that wait so long without a thread, and at least a third of all steps, are worth a warning."""


class Runner(Protocol):
    """Runs one episode's environment, here or elsewhere. Its calls raise the environment's exceptions."""

    async def open(self) -> Env:
        """Make the environment; return it, or a stand-in for it."""
        ...

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        ...

    async def step(self, action: str) -> Step:
        """Step the environment and check the form of what it returns."""
        ...

    def close(self) -> None:
        """Close the environment. Never raises, never waits; harmless when repeated."""
        ...


@dataclass(frozen=True)
class EnvMaker:
    """A recipe for an environment, usable in this process or in another. Calling it makes the environment.

    Args:
        env_id: A registered id, or "module:id". With a factory it is only a name.
        kwargs: Keyword arguments of `gymnasium.make`, or of the factory.
        factory: Makes the environment instead of `gymnasium.make`.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    factory: Callable[..., Env] | None = None

    @property
    def target(self) -> Target:
        """The factory, or the registered spec, or the id if nothing is registered under it yet."""
        return gym.registry.get(self.env_id) or self.env_id if self.factory is None else self.factory

    @property
    def blocking(self) -> bool:
        """Whether the environment's class declares `blocking`, or an earlier instance did. Imports nothing."""
        if self._key in _found_blocking:
            return True
        target = self.target
        entry: Any = target.entry_point if isinstance(target, EnvSpec) else target
        if isinstance(entry, str):
            module, _, name = entry.partition(":")
            entry = getattr(sys.modules.get(module), name, None)
        return getattr(entry, "blocking", False) is True

    def __call__(self) -> Env:
        """Make the environment."""
        env = make_env(self.target, self.kwargs)
        if env_attribute(env, "blocking", False):
            _found_blocking.add(self._key)
        return env

    @property
    def _key(self) -> tuple[str, int]:
        return self.env_id, id(self.factory)


def make_env(target: Target, kwargs: Mapping[str, Any]) -> Env:
    """Make an environment of an `EnvMaker`'s target.

    Raises:
        EnvContractError: If its code calls `sys.exit`, which would end the run.
    """
    try:
        if isinstance(target, (str, EnvSpec)):
            # Without the passive checker, which takes as long as everything else together. The episode checks the
            # values that it relies on, and `llm-envs check` checks the whole contract.
            return gym.make(target, disable_env_checker=True, **kwargs)
        return target(**kwargs)
    except SystemExit as error:
        raise EnvContractError(f"the environment called sys.exit({error.code!r}) while it was made.") from error


def close_env(env: Env) -> None:
    """Close an environment whose use is over; its errors change nothing now, not even `sys.exit`."""
    try:
        name_if_slow("env.close", env, env.close)
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass


def check_made(make: Callable[[], Env]) -> None:
    """Make an environment and close it again, to check that this works."""
    close_env(name_if_slow("env.make", make, make))


_found_blocking: set[tuple[str, int]] = set()
"""Environments that were found to declare `blocking`. (If a new factory gets the address of an old one, its
environment is made in a thread without need, which is harmless.)"""


def env_attribute(env: Env, name: str, default: Any) -> Any:
    """Return an attribute of the environment as its wrappers show it, or `default` if none has it."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return default


class EnvRunner:
    """Makes, calls and closes one environment in this process; see the module docstring.

    Args:
        env: The environment, or a function that makes it (an `EnvMaker` also tells whether to use a thread).
        limit_s: Seconds that one call may take; None means no limit.
    """

    def __init__(self, env: Env | Callable[[], Env], limit_s: float | None) -> None:
        self._given = env
        self._limit_s = limit_s
        self._env: Env | None = None
        self._thread: _Thread | None = None

    async def open(self) -> Env:
        """Make the environment."""
        target = self._given
        if isinstance(target, gym.Env):
            self._env = target
        else:
            if self._limit_s is not None or getattr(target, "blocking", False) is True:
                self._thread = _threads.take()
            await self.call("env.make", self._make)
        # An instance may declare `blocking` where its class does not, and a given instance was not asked yet.
        if self._thread is None and (self._limit_s is not None or env_attribute(self._opened, "blocking", False)):
            self._thread = _threads.take()
        return self._opened

    async def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`; `what` names the call if it takes too long."""
        if self._thread is None:
            return call(function, *args, **kwargs)
        future = self._thread.submit_from_loop(partial(call, function, *args, **kwargs))
        try:
            if self._limit_s is not None:
                await asyncio.wait([future], timeout=self._limit_s)
                if not future.done():
                    limit = f"max_step_s={self._limit_s:g} s"
                    raise TimeoutError(f"{what} took longer than {limit}; its thread was abandoned.")
            return await future
        finally:
            future.cancel()  # the result of a call that is still running is dropped

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        return check_reset(await self.call("env.reset", self._opened.reset, seed=seed, options=options))

    async def step(self, action: str) -> Step:
        """Step the environment and check the form of what it returns."""
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        step = check_step(await self.call("env.step", self._opened.step, action))
        if self._thread is None:
            _note_wait(self._opened, time.perf_counter() - wall_s - (time.thread_time() - cpu_s))
        return step

    def close(self) -> None:
        """Close the environment, or queue that in its thread. Never raises, never waits."""
        thread, self._thread = self._thread, None
        if thread is None:
            self._close()
        else:
            thread.finish(self._close)

    @property
    def _opened(self) -> Env:
        if self._env is None:
            raise ResetNeededError("EnvRunner: call open() first.")
        return self._env

    def _make(self) -> None:
        make: Any = self._given  # not an environment, so it makes one
        self._env = make() if self._limit_s is not None else name_if_slow("env.make", make, make)

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            close_env(env)


_steps: Counter[tuple[type, type]] = Counter()
_waits: Counter[tuple[type, type]] = Counter()


def _note_wait(env: Env, wait_s: float) -> None:
    """Warn once about environments whose steps wait here, where every other episode waits with them."""
    kind = type(env), type(env.unwrapped)
    _steps[kind] += 1
    if wait_s < _WAIT_S:
        return
    _waits[kind] += 1
    if _waits[kind] >= _WAITS and 3 * _waits[kind] >= _steps[kind]:
        _waits[kind] = -sys.maxsize  # once
        warnings.warn(
            f"steps of {env} wait ({wait_s:.2f} s without computing), and all other episodes wait with them. Set "
            "`blocking = True` on the environment or wrapper that waits, or a time limit (max_step_s): then each "
            "episode has a thread.",
            stacklevel=2,
        )


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`; convert a StopIteration or GeneratorExit to a RuntimeError.

    A future refuses a StopIteration, and a GeneratorExit would look as if the event loop had closed the episode.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the environment raised {type(error).__name__}: {error}".rstrip(": ")) from error


def check_reset(result: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the result of `reset`; raise an `EnvContractError` if it has the wrong form."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise EnvContractError(f"reset returned {result!r:.80}; it must return (observation, info: dict).")
    return result


def check_step(result: Any) -> Step:
    """Return the result of `step`, with a finite float as reward; raise an `EnvContractError` if the form is wrong."""
    if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], Mapping)):
        form = "(observation, reward, terminated, truncated, info: dict)"
        raise EnvContractError(f"step returned {result!r:.80}; it must return {form}.")
    observation, reward, terminated, truncated, info = result
    name, value = "the reward", reward
    try:
        paid = as_number(reward)
        name, value = "terminated", terminated
        is_over = as_flag(terminated)
        name, value = "truncated", truncated
        return observation, paid, is_over, as_flag(truncated), info
    except TypeError as error:
        raise EnvContractError(f"{name} is {value!r:.80}; {error}.") from error


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Call a function in a thread that keeps neither an event loop from closing nor the interpreter from exiting."""
    thread = _threads.take()
    future = thread.submit(function)
    thread.finish(lambda: None)
    return future


class _Thread:
    """A daemon thread that runs submitted functions in order. `_threads` lends it, and gets it back after `finish`."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_free = False
        """Whether it is idle. Guarded by the lock of `_threads`."""
        threading.Thread(target=self._run, name="llm-envs-env", daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the episode gave up before this call began
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # reported to the waiting event loop
                future.set_exception(error)

        self._tasks.put(run)
        return future

    def submit_from_loop(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a function for the event loop of the caller."""
        loop = asyncio.get_running_loop()
        mailbox, future = _mailboxes.setdefault(loop, _Mailbox()), loop.create_future()

        def run() -> None:
            if future.cancelled():
                return  # the episode gave up before this call began
            try:
                mailbox.put(future.set_result, function(), future)
            except BaseException as error:  # reported to the waiting event loop
                mailbox.put(future.set_exception, error, future)

        self._tasks.put(run)
        return future

    def finish(self, last: Callable[[], None]) -> None:
        """Run `last`, even if it raises, and become idle."""
        # Both wait behind a hung call, so the thread becomes idle only if that call returns.
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


class _Mailbox:
    """Results of threads on their way to an event loop, which is woken once for all that wait."""

    def __init__(self) -> None:
        self._results: deque[tuple[Callable[[Any], None], Any, asyncio.Future[Any]]] = deque()
        self._is_awake = False

    def put(self, deliver: Callable[[Any], None], result: Any, future: asyncio.Future[Any]) -> None:
        """From a thread: have the loop call `deliver(result)`, unless the future is done by then."""
        self._results.append((deliver, result, future))
        if not self._is_awake:  # at worst two threads wake the loop
            self._is_awake = True
            with suppress(RuntimeError):  # the loop was closed
                future.get_loop().call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_awake = False  # first: what comes from now on wakes the loop again
        while self._results:
            deliver, result, future = self._results.popleft()
            if not future.done():
                deliver(result)


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


class _Threads:
    """The idle threads; the last one returned is the first one taken."""

    def __init__(self) -> None:
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start over without the idle threads, which end. In a forked child none exist, and the lock may be held."""
        self._lock, self._free = threading.Lock(), list[_Thread]()

    def take(self) -> _Thread:
        with self._lock:
            if self._free:
                thread = self._free.pop()
                thread.is_free = False
                return thread
        return _Thread()

    def give_back(self, thread: _Thread) -> None:
        with self._lock:
            thread.is_free = True
            self._free.append(thread)

    def drop(self, thread: _Thread) -> bool:
        """Remove an idle thread that wants to end; return whether it may."""
        with self._lock:
            if thread in self._free:
                self._free.remove(thread)
            return thread.is_free


_threads = _Threads()
register_for_forks(_threads)
