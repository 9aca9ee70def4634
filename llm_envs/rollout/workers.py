"""Environments in worker processes, which are killed and replaced when they hang or crash.

Invariants:

1. A worker has one environment at a time: an episode has it from `open` to `close`. Episodes that find none wait, first
   come, first served, also across event loops and threads.
2. There are never more than `n_workers` processes that have not been killed. They start when they are needed and stay
   for the next episode. Nothing of a pool belongs to an event loop.
3. A call over its limit, or that outlives its process, costs its own episode and that process, with all that the
   process has started. What such an environment was in the middle of is lost: its `close` is not called.
4. `close` of a runner never waits. Whoever gets the worker next waits, up to a limit, for what it still does.
5. After `close` of the pool, and after the end of this process (however it ends), none of its processes is left.
6. A forked child has an empty pool, and does not touch its parent's.

What an environment has started in sessions of their own is killed with it too, unless it has ended before, or the
kernel had to do the killing because this process was killed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from llm_envs.errors import InvalidConfigError, ResetNeededError, WorkerDiedError
from llm_envs.rollout.remote_env import RemoteEnv
from llm_envs.rollout.runner import EnvMaker, Step, Target, check_reset, check_step
from llm_envs.rollout.worker_process import Reply, WorkerProcess
from llm_envs.rollout.worker_wire import MOST_TARGETS, revive

__all__ = ["WorkerPool", "WorkerRunner"]

Env = gym.Env[str, str]

START_S = 60.0
"""Longest time for a worker to start, and for what makes an environment to be imported there. (An import counts once
for each worker, and not against `max_step_s`.)"""
CLOSE_S = 5.0
"""Longest time that an environment's `close`, or a call that nobody waits for any more, is waited for."""
ABANDONED_S = 1.0
"""The same where the pool is being closed and the environment is in the middle of another call."""
ASK_S = 60.0
"""Longest time for an `EnvPolicy`'s question to the environment, which holds up the event loop, without a limit."""
_DEATH_S = 10.0
"""Longest time for a killed process to be gone."""


class WorkerPool:
    """Up to `n_workers` processes that environments are made and played in.

    Usable from any event loop, one after another or at once. A context manager; closes itself at exit.

    Args:
        n_workers: Most processes, and so most episodes at once.

    Raises:
        InvalidConfigError: If `n_workers` is not at least 1.
    """

    def __init__(self, n_workers: int) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise InvalidConfigError(f"WorkerPool: n_workers is {n_workers!r}; it must be a whole number above 0.")
        self.n_workers = n_workers
        self.n_started = 0
        """Processes started so far; those beyond `n_workers` have replaced others."""
        self._state = _State(n_workers)
        self._targets: dict[int, tuple[int, bytes, Target]] = {}
        """By the target's address (the target is kept, so that nothing else gets it): its key, and it pickled."""
        self._n_keys = 0
        self._finalizer = weakref.finalize(self, _close, self._state)
        _pools.add(self)

    def runner(self, make: Callable[[], Env], limit_s: float | None) -> WorkerRunner:
        """Return what plays one episode's environment in a worker; see `runner.Runner`.

        Args:
            make: An `EnvMaker`, or a function or class that makes the environment when called without arguments.
            limit_s: Seconds that one call may take; None is no limit.

        Raises:
            InvalidConfigError: If `make` is an environment, or cannot be pickled.
        """
        return WorkerRunner(self, make, limit_s)

    def check(self, make: Callable[[], Env]) -> None:
        """Make an environment in a worker and close it, to know that it can be done; waits for it.

        Raises:
            InvalidConfigError: If it cannot be pickled or loaded there, or no worker is free.
            Exception: Whatever making it raises, by its name (see `worker_wire.RemoteError`).
        """
        runner = WorkerRunner(self, make, START_S)
        if not self._state.take_now():
            raise InvalidConfigError("WorkerPool.check: all workers are in use; check before playing.")
        runner.open_here()
        runner.close()

    def close(self) -> None:
        """End all processes, those of running episodes too; environments that are closing have `CLOSE_S` for it.

        Harmless when repeated. The pool cannot be used afterwards.
        """
        self._finalizer()

    def __enter__(self) -> WorkerPool:
        """Return the pool; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the pool."""
        self.close()

    def _pack(self, make: Callable[[], Env]) -> tuple[int, bytes, bytes]:
        """Return what makes the environment: the target's key, the target and its arguments, pickled."""
        if isinstance(make, gym.Env):
            raise InvalidConfigError(
                f"{type(make).__name__}: an environment that exists cannot go to a worker process; pass what makes it."
            )
        target, kwargs = (make.target, make.kwargs) if isinstance(make, EnvMaker) else (make, {})
        if id(target) not in self._targets:
            if len(self._targets) >= MOST_TARGETS:
                self._targets.clear()
            self._n_keys += 1
            self._targets[id(target)] = self._n_keys, _pickled(_by_value(target), target), target
        key, pickled, _ = self._targets[id(target)]
        return key, pickled, _pickled(dict(kwargs), target)

    def _forget(self) -> None:
        self._state.forget(self.n_workers)


class WorkerRunner:
    """One episode's environment in a worker process. Made by `WorkerPool.runner`; see `runner.Runner`."""

    def __init__(self, pool: WorkerPool, make: Callable[[], Env], limit_s: float | None) -> None:
        self._pool, self._limit_s = pool, limit_s
        self._key, self._target, self._kwargs = pool._pack(make)
        self._has_place = False
        self._worker: WorkerProcess | None = None
        self._env: RemoteEnv | None = None

    async def open(self) -> RemoteEnv:
        """Wait for a worker, and make the environment there."""
        await self._pool._state.take()
        self._has_place = True
        self._worker = self._pool._state.idle_worker()
        if self._worker is not None:
            await self._settle(self._worker)
        if self._worker is None or self._worker.is_killed:
            await self._make_in_a_new_one()
        else:
            try:
                await self._make()
            except WorkerDiedError:  # it may have ended before it heard of us: that is not this episode's fault
                self._worker.kill()
                self._pool._state.drop(self._worker)
                await self._make_in_a_new_one()
        self._env = RemoteEnv(self.ask)
        return self._env

    async def _make_in_a_new_one(self) -> None:
        self._start()
        await self._call("starting a worker", START_S)
        await self._make()

    async def _make(self) -> None:
        if self._key not in self._present.loaded:
            await self._call("importing the environment", START_S, "load", self._key, self._target)
            self._present.note_loaded(self._key)
        await self._call("env.make", self._limit_s, "make", self._key, self._kwargs)

    def open_here(self) -> None:
        """Do what `open` does, holding up the calling thread, in a place that was taken already."""
        self._has_place = True
        try:
            self._worker = self._pool._state.idle_worker()
            if self._worker is not None and not self._worker.is_there():
                self._worker.kill()
                self._pool._state.drop(self._worker)
            if self._worker is None or self._worker.is_killed:
                self._start()
            if not self._present.is_settled:
                self._present.wait_here(START_S)
            self.ask("load", self._key, self._target)
            self._present.note_loaded(self._key)
            self.ask("make", self._key, self._kwargs)
        except BaseException:
            self.close()
            raise

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        observation, info, shown = await self._call("env.reset", self._limit_s, "reset", seed, options)
        self._opened.show(shown)
        return check_reset((observation, info))

    async def step(self, action: str) -> Step:
        """Step the environment and check the form of what it returns."""
        *result, shown = await self._call("env.step", self._limit_s, "step", action)
        self._opened.show(shown)
        return check_step(tuple(result))

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return a request's result, holding up the calling thread."""
        limit_s = ASK_S if self._limit_s is None else self._limit_s
        worker, what = self._present, f"env.{name}"
        worker.post(name, *arguments)
        try:
            reply = worker.wait_here(limit_s)
        except TimeoutError:
            raise self._over_time(what, limit_s) from None
        except WorkerDiedError as error:
            raise WorkerDiedError(f"the worker process died in {what}: {error}.") from None
        return _value(reply)

    def close(self) -> None:
        """Have the environment closed and leave the worker to the next. Never raises, never waits."""
        if not self._has_place:
            return
        self._has_place = False
        worker, self._worker = self._worker, None
        if worker is not None and not worker.is_killed:
            worker.post("close")
        self._pool._state.give_back(worker)

    @property
    def _present(self) -> WorkerProcess:
        if self._worker is None:
            raise ResetNeededError("WorkerRunner: call open() first.")
        return self._worker

    @property
    def _opened(self) -> RemoteEnv:
        if self._env is None:
            raise ResetNeededError("WorkerRunner: call open() first.")
        return self._env

    def _start(self) -> None:
        self._worker = WorkerProcess()
        self._pool.n_started += 1
        self._pool._state.add(self._worker)

    async def _settle(self, worker: WorkerProcess) -> None:
        """Wait until the worker is done with the episode before; kill it if that takes too long, or it has ended."""
        try:
            if not worker.is_settled:
                await worker.wait(CLOSE_S if worker.has_started else START_S)
        except (TimeoutError, WorkerDiedError):
            worker.kill()
        if not worker.is_there():
            worker.kill()
        if worker.is_killed:
            self._pool._state.drop(worker)

    async def _call(self, what: str, limit_s: float | None, *request: Any) -> Any:
        worker = self._present
        if request:
            worker.post(*request)
        try:
            reply = await worker.wait(limit_s)
        except TimeoutError:
            raise self._over_time(what, limit_s) from None
        except WorkerDiedError as error:
            raise WorkerDiedError(f"the worker process died in {what}: {error}.") from None
        return _value(reply)

    def _over_time(self, what: str, limit_s: float | None) -> TimeoutError:
        self._present.kill()
        name = "max_step_s=" if limit_s == self._limit_s else ""
        return TimeoutError(f"{what} took longer than {name}{limit_s:g} s; its process was killed.")


class _Waiter:
    """An episode in the queue. Guarded by the lock of its `_State`."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_place = False


class _State:
    """Who has a place, who waits for one, and which processes there are. Safe in threads; knows no episodes."""

    def __init__(self, n_places: int) -> None:
        self.forget(n_places)

    def forget(self, n_places: int) -> None:
        """Start anew, without a look at the lock, which may be held for ever in a forked child."""
        for worker in getattr(self, "_workers", ()):
            worker.forget()
        self._lock = threading.Lock()
        self._n_free = n_places
        self._waiters: deque[_Waiter] = deque()
        self._workers: set[WorkerProcess] = set()
        self._idle: deque[WorkerProcess] = deque()
        self._dying: list[WorkerProcess] = []
        self._is_closed = False

    async def take(self) -> None:
        """Wait for a place."""
        with self._lock:
            self._check_open()
            if self._take_free():
                return
            waiter = _Waiter()
            self._waiters.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)
            raise
        with self._lock:
            self._check_open()

    def take_now(self) -> bool:
        """Take a place if one is free; return whether it was."""
        with self._lock:
            self._check_open()
            return self._take_free()

    def idle_worker(self) -> WorkerProcess | None:
        """Return the worker that has been idle longest, for whoever has a place."""
        with self._lock:
            return self._idle.popleft() if self._idle else None

    def add(self, worker: WorkerProcess) -> None:
        """Take note of a new process."""
        with self._lock:
            self._workers.add(worker)
            if self._is_closed:
                worker.kill()
        self._bury()

    def drop(self, worker: WorkerProcess) -> None:
        """Take leave of a process that was killed."""
        with self._lock:
            self._dying.append(worker)
        self._bury()

    def give_back(self, worker: WorkerProcess | None) -> None:
        """Give a place to who waits longest, and the worker, unless it was killed, to whoever wants it."""
        with self._lock:
            if worker is not None:
                if worker not in self._workers:
                    return  # it is the parent's of this forked process
                if self._is_closed:
                    worker.kill()
                (self._dying if worker.is_killed else self._idle).append(worker)
            self._pass_on()
        self._bury()

    def close(self) -> None:
        """End everything."""
        with self._lock:
            self._is_closed = True
            idle, workers = list(self._idle), list(self._workers)
            self._idle.clear()
            self._dying += idle
            while self._waiters:
                self._wake(self._waiters.popleft())
        busy = [worker for worker in workers if worker not in idle]
        for worker in busy:
            worker.kill()
        started = time.monotonic()
        for worker in idle:
            grace_s = CLOSE_S if worker.n_pending <= 1 else ABANDONED_S
            try:
                if worker.has_started:
                    worker.wait_here(started + grace_s - time.monotonic())
            except (TimeoutError, WorkerDiedError, OSError):
                pass  # it had its time
            finally:
                worker.kill()
        deadline = time.monotonic() + _DEATH_S
        for worker in busy:  # whoever has it closes the descriptors: an event loop may be watching them
            worker.reap(deadline - time.monotonic())
        while self._bury() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidConfigError("the WorkerPool is closed; make a new one.")

    def _take_free(self) -> bool:
        is_free = self._n_free > 0
        self._n_free -= is_free
        return is_free

    def _pass_on(self) -> None:
        """Hand a place on."""
        while self._waiters:
            if self._wake(self._waiters.popleft()):
                return
        self._n_free += 1

    def _wake(self, waiter: _Waiter) -> bool:
        waiter.has_place = True
        try:
            waiter.future.get_loop().call_soon_threadsafe(_finish, waiter.future)
        except RuntimeError:  # its loop is closed, and it with it
            return False
        return True

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.has_place:
                self._pass_on()
            else:
                self._waiters.remove(waiter)

    def _bury(self) -> bool:
        """Wait for killed processes that are gone; return whether there are others."""
        with self._lock:
            gone = {worker for worker in self._dying if worker.bury()}
            self._workers -= gone
            self._dying = [worker for worker in self._dying if worker not in gone]
            return bool(self._dying)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _value(reply: Reply) -> Any:
    status, value = reply
    if status == "error":
        raise revive(*value)
    return value


def _by_value(target: Target) -> Target:
    """Return a spec whose class is in the main module with the class itself: a worker has another main module."""
    if isinstance(target, EnvSpec) and isinstance(target.entry_point, str):
        module, _, name = target.entry_point.partition(":")
        if module == "__main__":
            found = getattr(__import__("__main__"), name, None)
            if found is not None:
                return replace(target, entry_point=found)
    return target


def _pickled(value: Any, target: Target) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # Gymnasium brings it; pickles what is defined in a script or a notebook by value

    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise InvalidConfigError(
            f"{target!r:.200} cannot go to a worker process: {type(error).__name__}: {error}. Pass an id and arguments "
            "of JSON types, or a function that makes what cannot be pickled itself."
        ) from error
    return data


def _close(state: _State) -> None:
    state.close()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
