"""Runs an environment's code in this process: in the event loop, or in a pooled thread.

Invariants:

1. A light environment runs inline, without any thread. Where a tool waits for a coroutine, for a function with a limit
   or for one that may run in parallel, only its episode waits (`llm_envs.processes.suspension`).
2. An environment that declares `blocking`, or any under a time limit, has its own thread from `open` to `close`. All
   its calls happen there, in order. It is also made there if its class, or an earlier instance, declared `blocking`.
3. Nothing waits for a hung thread. It is replaced; if it comes back, it closes its environment and is reused.

Environments that may hang for ever or crash need their own process: `llm_envs.rollout.workers.pool`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import EnvContractError, InvalidConfigError, ResetNeededError
from llm_envs.problems import as_flag, as_number
from llm_envs.processes.suspension import call_suspendable, has_suspended, start_suspendable
from llm_envs.processes.threads import PooledThread, take_thread
from llm_envs.rollout.workers.slow_calls import name_if_slow
from llm_envs.tracking.spans import carried

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
    "make_env",
]

Env = gym.Env[str, str]
Target = EnvSpec | str | Callable[..., Env]
Step = tuple[str, float, bool, bool, Mapping[str, Any]]

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
        InvalidConfigError: If it does not take the argument `split`.
    """
    try:
        if isinstance(target, (str, EnvSpec)):
            # Without the passive checker, which takes as long as everything else together. The episode checks the
            # values that it relies on, and `llm-envs check` checks the whole contract.
            return gym.make(target, disable_env_checker=True, **kwargs)
        return target(**kwargs)
    except TypeError as error:
        if "split" not in kwargs or not re.search("takes no arguments|'split'", str(error)):
            raise
        raise InvalidConfigError(
            f"the environment does not take split={kwargs['split']!r} ({error}). Give it that argument, or pass none: "
            "--split none, evaluate(split=None), a training's env_kwargs={'split': None}."
        ) from error
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
        self._thread: PooledThread | None = None

    async def open(self) -> Env:
        """Make the environment."""
        target = self._given
        if isinstance(target, gym.Env):
            self._env = target
        else:
            if self._limit_s is not None or getattr(target, "blocking", False) is True:
                self._thread = take_thread()
            await self.call("env.make", self._make)
        # An instance may declare `blocking` where its class does not, and a given instance was not asked yet.
        if self._thread is None and (self._limit_s is not None or env_attribute(self._opened, "blocking", False)):
            self._thread = take_thread()
        return self._opened

    async def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `function(*args, **kwargs)`; `what` names the call if it takes too long."""
        work = partial(call, function, *args, **kwargs)
        if self._thread is None:
            return await call_suspendable(work)
        future = self._thread.submit_from_loop(carried(work))
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
        step = self._opened.step if self._thread is not None else self._step_here
        return check_step(await self.call("env.step", step, action))

    def close(self) -> None:
        """Close the environment, or queue that in its thread. Never raises, never waits."""
        thread, self._thread = self._thread, None
        if thread is None:
            start_suspendable(self._close)
        else:
            thread.finish(self._close)

    @property
    def _opened(self) -> Env:
        if self._env is None:
            raise ResetNeededError("EnvRunner: call open() first.")
        return self._env

    def _step_here(self, action: str) -> Any:
        env, wall_s, cpu_s = self._opened, time.perf_counter(), time.thread_time()
        step = env.step(action)
        if not has_suspended():
            _note_wait(env, time.perf_counter() - wall_s - (time.thread_time() - cpu_s))
        return step

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
