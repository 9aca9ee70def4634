"""Where an environment's own code runs: in the event loop, or in a thread of a pool.

Invariants:

1. A light environment runs inline: no thread is ever started or used for it.
2. One that declares `blocking`, or any under a time limit, has a thread to itself from `open` to `close`, in which all
   of its calls happen in order. Where its class says so, or an earlier one of its kind did, it is made there too.
3. Threads are kept for the environments that follow; there are at most as many as were ever needed at once.
4. Nothing waits for a hung thread. It is replaced by another; if it comes back, it closes its environment and is used
   again. All are daemons: none keeps the interpreter from exiting.

What may hang for good, or crash, belongs into a process of its own: `llm_envs.rollout.workers`.
"""

from __future__ import annotations

import asyncio
import math
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import EnvContractError, ResetNeededError

__all__ = ["EnvMaker", "EnvRunner", "Runner", "call", "check_reset", "check_step", "env_attribute", "make_env"]

Env = gym.Env[str, str]
Target = EnvSpec | str | Callable[..., Env]
Step = tuple[str, float, bool, bool, Mapping[str, Any]]

_IDLE_S = 60.0
"""How long a thread without an environment is kept."""


class Runner(Protocol):
    """What plays one episode's environment, wherever that runs. Its calls raise what the environment raises."""

    async def open(self) -> Env:
        """Make the environment; return it, or what stands for it."""
        ...

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        ...

    async def step(self, action: str) -> Step:
        """Step the environment and check the form of what it returns."""
        ...

    def close(self) -> None:
        """Have the environment closed. Never raises, never waits; harmless when repeated."""
        ...


@dataclass(frozen=True)
class EnvMaker:
    """What to make, so that it can be made here or in another process. Calling it makes the environment.

    Args:
        env_id: A registered id, or "module:id"; with a factory only a name.
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
        """Whether the environment's class declares `blocking`, or one made before was found to. Imports nothing."""
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
    """Make an environment of an `EnvMaker`'s target."""
    if isinstance(target, (str, EnvSpec)):
        # Without the passive checker, which takes as long as all the rest. The episode checks what it relies on
        # itself, and `llm-envs check` the whole contract.
        return gym.make(target, disable_env_checker=True, **kwargs)
    return target(**kwargs)


_found_blocking: set[tuple[str, int]] = set()
"""What of has been made that declared `blocking`. (Should another factory get an old one's address, then it is made in
a thread for nothing.)"""


def env_attribute(env: Env, name: str, default: Any) -> Any:
    """Return an attribute of the environment as its wrappers show it, or `default` if none has it."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return default


class EnvRunner:
    """Makes, calls and closes one environment in this process; see the module.

    Args:
        env: The environment, or what makes it (an `EnvMaker` also says where).
        limit_s: Seconds that one call may take; None is no limit.
    """

    def __init__(self, env: Env | Callable[[], Env], limit_s: float | None) -> None:
        self._given = env
        self._limit_s = limit_s
        self._env: Env | None = None
        self._thread: _Thread | None = None

    async def open(self) -> Env:
        """Make the environment."""
        given = self._given
        if isinstance(given, gym.Env):
            self._env = given
        else:
            if self._limit_s is not None or getattr(given, "blocking", False) is True:
                self._thread = _threads.take()
            await self.call("env.make", self._make)
        if self._thread is None and (self._limit_s is not None or env_attribute(self._opened, "blocking", False)):
            self._thread = _threads.take()
        return self._opened

    async def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`; `what` names the call if it takes too long."""
        if self._thread is None:
            return call(function, *args, **kwargs)
        future = asyncio.wrap_future(self._thread.submit(call, function, *args, **kwargs))
        try:
            await asyncio.wait([future], timeout=self._limit_s)
            if not future.done():
                raise TimeoutError(f"{what} took longer than max_step_s={self._limit_s:g} s; its thread was abandoned.")
            return future.result()
        finally:
            future.cancel()  # one that is still running reports to nobody

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        return check_reset(await self.call("env.reset", self._opened.reset, seed=seed, options=options))

    async def step(self, action: str) -> Step:
        """Step the environment and check the form of what it returns."""
        return check_step(await self.call("env.step", self._opened.step, action))

    def close(self) -> None:
        """Close the environment, or have its thread do so after whatever it is doing. Never raises, never waits."""
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
        self._env = self._given()  # type: ignore[operator]  # not an environment, so it makes one

    def _close(self) -> None:
        env, self._env = self._env, None
        try:
            if env is not None:
                env.close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass  # the episode is over and its record written: a failing close is nobody's result


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`; what would end a coroutine instead of failing in it becomes a RuntimeError.

    A future refuses a StopIteration, and a GeneratorExit reads as if the event loop had closed the episode.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the environment raised {type(error).__name__}: {error}".rstrip(": ")) from error


def check_reset(result: Any) -> tuple[str, Mapping[str, Any]]:
    """Return what `reset` returned, if it has the form; else raise an `EnvContractError`."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
        raise EnvContractError(f"reset returned {result!r:.80}; it must return (observation, info: dict).")
    return result


def check_step(result: Any) -> Step:
    """Return what `step` returned, with a finite float as reward, if it has the form; else raise `EnvContractError`."""
    if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], Mapping)):
        form = "(observation, reward, terminated, truncated, info: dict)"
        raise EnvContractError(f"step returned {result!r:.80}; it must return {form}.")
    observation, reward, terminated, truncated, info = result
    return observation, _finite(reward), bool(terminated), bool(truncated), info


def _finite(reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise EnvContractError(f"the reward is {reward!r:.80}; it must be a number.") from error
    if not math.isfinite(value):
        raise EnvContractError(f"the reward is {value}; it must be finite.")
    return value


class _Thread:
    """A daemon thread that runs what is submitted, in order. Taken from `_threads`, and back there after `finish`."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.is_free = False
        """Whether nobody has it. Guarded by the lock of `_threads`."""
        threading.Thread(target=self._run, name="llm-envs-env", daemon=True).start()

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # a thread has no one else to tell
                future.set_exception(error)

        self._tasks.put(run)
        return future

    def finish(self, last: Callable[[], None]) -> None:
        """Run `last`, whatever it raises, and be free."""
        self.submit(last)
        self._tasks.put(None)

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_S if self.is_free else None)
            except queue.Empty:
                if _threads.drop(self):
                    return
                continue  # it was taken a moment ago
            if task is None:
                _threads.give_back(self)
            else:
                task()
            del task  # it holds the environment


class _Threads:
    """The threads that nobody has; the last to come back is the first to be taken."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew; those that were free end. A forked child has none of its parent's, maybe a held lock."""
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
        """Forget a thread that wants to end; return whether it may."""
        with self._lock:
            if thread in self._free:
                self._free.remove(thread)
            return thread.is_free


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.forget)
