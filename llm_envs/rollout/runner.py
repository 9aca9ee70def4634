"""Where an environment's own code runs: in the event loop, or in a thread of its own under a time limit."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import gymnasium as gym

from llm_envs.errors import EnvContractError, ResetNeededError

__all__ = ["EnvRunner", "env_attribute"]

Env = gym.Env[str, str]


def env_attribute(env: Env, name: str, default: Any) -> Any:
    """Return an attribute of the environment as its wrappers show it, or `default` if none has it."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return default


class EnvRunner:
    """Makes, calls and closes one environment.

    Light environments run inline: no thread is ever started for them. One that declares `blocking`, or any under a time
    limit, has a daemon thread of its own, in which every call and the final `close` happen in order. When a call
    exceeds the limit the thread is abandoned: it closes the environment if it ever comes back, and keeps nothing
    waiting.

    Args:
        env: The environment, or what makes it.
        limit_s: Seconds that one call may take; None is no limit.
    """

    def __init__(self, env: Env | Callable[[], Env], limit_s: float | None) -> None:
        self._given = env
        self._limit_s = limit_s
        self._env: Env | None = None
        self._thread: _Thread | None = _Thread() if limit_s is not None else None

    async def open(self) -> Env:
        """Make the environment."""
        given = self._given
        self._env = given if isinstance(given, gym.Env) else await self.call("env.make", self._make)
        if self._thread is None and env_attribute(self._env, "blocking", False):
            self._thread = _Thread()
        return self._env

    async def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`; `what` names the call if it takes too long."""
        if self._thread is None:
            return _called(function, *args, **kwargs)
        future = asyncio.wrap_future(self._thread.submit(_called, function, *args, **kwargs))
        try:
            await asyncio.wait([future], timeout=self._limit_s)
            if not future.done():
                raise TimeoutError(f"{what} took longer than max_step_s={self._limit_s:g} s; its thread was abandoned.")
            return future.result()
        finally:
            future.cancel()  # one that is still running reports to nobody

    async def reset(self, seed: int, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        result = await self.call("env.reset", self._opened.reset, seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise EnvContractError(f"reset returned {result!r:.80}; it must return (observation, info: dict).")
        return result

    async def step(self, action: str) -> tuple[str, float, bool, bool, Mapping[str, Any]]:
        """Step the environment and check the form of what it returns."""
        result = await self.call("env.step", self._opened.step, action)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], Mapping)):
            form = "(observation, reward, terminated, truncated, info: dict)"
            raise EnvContractError(f"step returned {result!r:.80}; it must return {form}.")
        observation, reward, terminated, truncated, info = result
        return observation, _finite(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the environment, or have its thread do so after whatever it is doing. Never raises, never waits."""
        if self._thread is None:
            self._close()
        else:
            self._thread.finish(self._close)

    @property
    def _opened(self) -> Env:
        if self._env is None:
            raise ResetNeededError("EnvRunner: call open() first.")
        return self._env

    def _make(self) -> Env:
        made = self._given()  # type: ignore[operator]  # not an environment, so it makes one
        self._env = made
        return made

    def _close(self) -> None:
        try:
            if self._env is not None:
                self._env.close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass  # the episode is over and its record written: a failing close is nobody's result


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`; what would end a coroutine instead of failing in it becomes a RuntimeError.

    A future refuses a StopIteration, and a GeneratorExit reads as if the event loop had closed the episode.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the environment raised {type(error).__name__}: {error}".rstrip(": ")) from error


def _finite(reward: Any) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise EnvContractError(f"the reward is {reward!r:.80}; it must be a number.") from error
    if not math.isfinite(value):
        raise EnvContractError(f"the reward is {value}; it must be finite.")
    return value


class _Thread:
    """A daemon thread that runs what is submitted, in order, until told to finish."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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
        self._tasks.put(last)
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
