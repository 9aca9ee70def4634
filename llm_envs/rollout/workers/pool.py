"""Environments in worker processes, which are killed and replaced when they hang or crash.

Invariants:

1. A worker has one environment at a time, from an episode's `open` to its `close`. If no worker is free, episodes wait,
   first come, first served, even across event loops and threads.
2. There are never more than `n_workers` processes that have not been killed. They start when they are needed and are
   reused by later episodes. No part of a pool is bound to an event loop.
3. A call that exceeds its limit, or whose process dies, fails only its own episode. The process is killed together with
   all processes that it has started; the environment's `close` is not called.
4. `close` of a runner never waits. The next user of the worker waits, up to a limit, for pending work.
5. After `close` of the pool, and after the end of this process (however it ends), none of its processes is left.
6. A forked child has an empty pool and does not touch its parent's.

Processes that an environment started in other sessions are killed with it too, except those that had lost their parent
before, and unless this process was killed, so that the kernel had to do the killing.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError, NoEnvServerError, ResetNeededError, WorkerDiedError
from llm_envs.problems import check_at_least
from llm_envs.processes import register_for_forks
from llm_envs.processes.threads import in_thread
from llm_envs.rollout.workers.channel import Channel, Reply
from llm_envs.rollout.workers.process import WorkerProcess
from llm_envs.rollout.workers.remote import EnvServers, NoRoomError
from llm_envs.rollout.workers.remote_env import RemoteEnv
from llm_envs.rollout.workers.runner import Env, EnvMaker, Step, Target, check_reset, check_step
from llm_envs.rollout.workers.wire import MAX_TARGETS, by_value, pickled, revive

__all__ = ["WorkerPool", "WorkerRunner"]

CLOSE_S = 5.0
"""Longest wait for an environment's `close`, or for a call whose episode has given up."""
ABANDONED_S = 1.0
"""The same limit when the pool is closed while the environment is inside another call."""
ASK_S = 60.0
"""Default limit of an `EnvPolicy`'s request to the environment, which blocks the event loop."""
SERVERS_S = 30.0
"""The run ends when no environment server has answered for so long."""
_AGAIN_S = 0.2
_DEATH_S = 10.0
"""Longest wait for a killed process to end."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Up to `n_workers` processes in which environments are created and played.

    Usable from any event loop, in turn or concurrently. A context manager; closes itself at exit.

    Args:
        n_workers: Maximum number of processes, and so of concurrent episodes. With servers, 0 means all of theirs.
        servers: Environment servers, which have the processes then.

    Raises:
        InvalidConfigError: If `n_workers` is not at least 1.
    """

    def __init__(self, n_workers: int, servers: EnvServers | None = None) -> None:
        self._servers = servers
        if servers is not None:
            n_workers = min(n_workers or servers.n_workers, servers.n_workers)
        check_at_least("WorkerPool", "n_workers", n_workers, 1)
        self.n_workers = n_workers
        self.n_started = 0
        """Processes started so far; those beyond `n_workers` replaced others."""
        self._state = _State(n_workers)
        self._targets: dict[int, tuple[int, bytes, Target]] = {}
        """By the target's address: its key, its pickle, and the target itself, so that its address stays unique."""
        self._n_keys = 0
        self._finalizer = weakref.finalize(self, self._state.close)
        register_for_forks(self)

    @property
    def is_remote(self) -> bool:
        """Whether environment servers have the processes."""
        return self._servers is not None

    def runner(self, make: Callable[[], Env], limit_s: float | None) -> WorkerRunner:
        """Return the runner of one episode's environment in a worker; see `runner.Runner`.

        Args:
            make: An `EnvMaker`, or a function or class that makes the environment when called without arguments.
            limit_s: Seconds that one call may take; None means no limit.

        Raises:
            InvalidConfigError: If `make` is an environment, or cannot be pickled.
        """
        return WorkerRunner(self, make, limit_s)

    def check(self, make: Callable[[], Env]) -> None:
        """Make an environment in a worker and close it again, to check that this works. Blocks.

        Raises:
            InvalidConfigError: If it cannot be pickled or loaded there, or no worker is free.
            Exception: Any error from making it, under its name (see `wire.RemoteError`).
        """
        for is_last in (False, True):
            try:
                self._check_once(make)
                return
            except NoRoomError:  # others use the servers now; an error will be seen when they have room
                return
            except WorkerDiedError:  # perhaps killed from outside; an environment that kills its process does it again
                if is_last:
                    raise

    def _check_once(self, make: Callable[[], Env]) -> None:
        runner = WorkerRunner(self, make, None)
        if not self._state.take_now():
            raise InvalidConfigError("WorkerPool.check: all workers are in use; check before playing.")
        runner.open_here()
        runner.close()

    def close(self) -> None:
        """End all processes, including those of running episodes; environments get `CLOSE_S` to close.

        Harmless when repeated. The pool cannot be used afterwards.
        """
        self._finalizer()

    def fresh(self) -> WorkerPool:
        """Return a pool like this one, without processes yet."""
        return WorkerPool(self.n_workers, self._servers)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _add_worker(self) -> Channel:
        worker = WorkerProcess() if self._servers is None else self._servers.connect()
        self.n_started += 1
        self._state.add(worker)
        return worker

    def _drop_late(self, connecting: Future[Channel]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            connecting.result().kill()
            self._state.drop(connecting.result())

    def _pack(self, make: Callable[[], Env]) -> tuple[int, bytes, bytes]:
        """Return the target's key, the pickled target and its pickled arguments."""
        if isinstance(make, gym.Env):
            raise InvalidConfigError(
                f"{type(make).__name__}: an existing environment cannot move to a worker process; pass a function "
                "that makes it."
            )
        target, kwargs = (make.target, make.kwargs) if isinstance(make, EnvMaker) else (make, {})
        if id(target) not in self._targets:
            # Keys are never reused, so workers that still hold a dropped target cannot confuse it with a new one.
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            self._n_keys += 1
            self._targets[id(target)] = self._n_keys, pickled(by_value(target), target), target
        key, data, _ = self._targets[id(target)]
        return key, data, pickled(dict(kwargs), target)

    def reset_after_fork(self) -> None:
        """Reset the pool in a forked child: it has no processes, and the parent's stay untouched."""
        self._state.reset_after_fork(self.n_workers)
        if self._servers is not None:
            self._servers.reset_after_fork()


class WorkerRunner:
    """One episode's environment in a worker process. Made by `WorkerPool.runner`; see `runner.Runner`."""

    def __init__(self, pool: WorkerPool, make: Callable[[], Env], limit_s: float | None) -> None:
        self._pool, self._limit_s = pool, limit_s
        self._key, self._target, self._kwargs = pool._pack(make)
        self._has_place = False
        self._worker: Channel | None = None
        self._env = RemoteEnv(self._ask)

    async def open(self) -> RemoteEnv:
        """Wait for a worker, and make the environment there."""
        await self._pool._state.take()
        self._has_place = True  # from here on `close` gives the place back, however this ends
        self._worker = self._pool._state.idle_worker()
        if self._worker is not None:
            await self._settle(self._worker)
        if self._worker is None or self._worker.is_killed:
            await self._make_in_a_new_one()
        else:
            try:
                await self._make()
            except WorkerDiedError:  # an idle worker may have died before this episode: start a new one instead
                self._worker.kill()
                self._pool._state.drop(self._worker)
                await self._make_in_a_new_one()
        return self._env

    async def _make_in_a_new_one(self) -> None:
        if self._pool._servers is not None:
            await self._connect(self._pool._servers)
        else:
            self._worker = self._pool._add_worker()
        await self._call("starting a worker", None, starting=True)
        await self._make()

    async def _connect(self, servers: EnvServers) -> None:
        """Get a worker from a server; while all are in use, wait, and for a while if no server answers.

        Raises:
            NoEnvServerError: If none has answered for `SERVERS_S`.
        """
        begun = time.monotonic()
        while True:
            connecting = in_thread(self._pool._add_worker)  # a server may take long
            try:
                self._worker = await asyncio.wrap_future(connecting)
                return
            except asyncio.CancelledError:  # the thread still connects: its worker must not occupy a place
                connecting.add_done_callback(self._pool._drop_late)
                raise
            except WorkerDiedError:
                if time.monotonic() - max(begun, servers.answered_s) > SERVERS_S:
                    raise NoEnvServerError(
                        f"no environment server has answered for {SERVERS_S:g} s ({', '.join(servers.addresses)}). "
                        "Start one again; a run with a folder has kept its episodes: resume it (--resume)."
                    ) from None
            await asyncio.sleep(_AGAIN_S)
            if (idle := self._pool._state.idle_worker()) is not None:  # it may occupy the place that we wait for
                idle.kill()
                self._pool._state.drop(idle)

    async def _make(self) -> None:
        # No time limit for imports, which depend on the machine: `starting` watches for progress instead.
        if self._key not in self._present.loaded:
            await self._call("importing the environment", None, "load", self._key, self._target, starting=True)
            self._present.note_loaded(self._key)
        # Without a limit the process is watched, as in a trial: one that hangs would hold its place for ever.
        await self._call("env.make", self._limit_s, "make", self._key, self._kwargs, starting=self._limit_s is None)

    def open_here(self) -> None:
        """Do what `open` does, but block the calling thread. The caller has already taken a place."""
        self._has_place = True
        try:
            self._worker = self._pool._state.idle_worker()
            if self._worker is not None and not self._worker.is_there():
                self._worker.kill()
                self._pool._state.drop(self._worker)
            if self._worker is None or self._worker.is_killed:
                self._worker = self._pool._add_worker()
            if not self._present.is_settled:
                self._present.wait_here(None, self._present.watch())
            self._ask("load", self._key, self._target, starting=True)
            self._present.note_loaded(self._key)
            self._ask("make", self._key, self._kwargs, starting=True)
        except BaseException:
            self.close()
            raise

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[str, Mapping[str, Any]]:
        """Reset the environment and check the form of what it returns."""
        observation, info, shown = await self._call("env.reset", self._limit_s, "reset", seed, options)
        self._env.show(shown)
        return check_reset((observation, info))

    async def step(self, action: Any) -> Step:
        """Step the environment and check the form of what it returns."""
        *result, shown = await self._call("env.step", self._limit_s, "step", action)
        self._env.show(shown)
        return check_step(tuple(result))

    def _ask(self, name: str, *arguments: Any, starting: bool = False) -> Any:
        """Return a request's result, blocking the calling thread."""
        limit_s = None if starting else ASK_S if self._limit_s is None else self._limit_s
        worker, what = self._present, f"env.{name}"
        worker.post(name, *arguments)
        try:
            reply = worker.wait_here(limit_s, worker.watch() if starting else None)
        except TimeoutError as late:
            raise self._over_time(what, limit_s, late) from None
        except WorkerDiedError as error:
            raise WorkerDiedError(f"the worker process died in {what}: {error}.") from None
        return _value(reply)

    def kill(self) -> None:
        """Kill the process in the middle of a call, which then fails. Never waits; harmless when repeated."""
        if self._worker is not None:
            self._worker.kill()

    def close(self) -> None:
        """Close the environment and return the worker to the pool. Never raises, never waits."""
        if not self._has_place:
            return
        self._has_place = False
        # The `close` request is only posted; the next episode with this worker waits for its reply (`_settle`).
        worker, self._worker = self._worker, None
        if worker is not None and not worker.is_killed:
            worker.post("close")
        self._pool._state.give_back(worker)

    @property
    def _present(self) -> Channel:
        if self._worker is None:
            raise ResetNeededError("WorkerRunner: call open() first.")
        return self._worker

    async def _settle(self, worker: Channel) -> None:
        """Wait until the worker has finished the previous episode; kill it if that takes too long or it has ended."""
        try:
            # A process that has never replied is still importing, which `CLOSE_S` is too short for.
            if not worker.is_settled:
                has_started = worker.has_started
                await worker.wait(CLOSE_S if has_started else None, None if has_started else worker.watch())
        except (TimeoutError, WorkerDiedError):
            worker.kill()
        if not worker.is_there():
            worker.kill()
        if worker.is_killed:
            self._pool._state.drop(worker)

    async def _call(self, what: str, limit_s: float | None, *request: Any, starting: bool = False) -> Any:
        worker = self._present
        if request:
            worker.post(*request)
        try:
            reply = await worker.wait(limit_s, worker.watch() if starting else None)
        except TimeoutError as late:
            raise self._over_time(what, limit_s, late) from None
        except WorkerDiedError as error:
            raise WorkerDiedError(f"the worker process died in {what}: {error}.") from None
        return _value(reply)

    def _over_time(self, what: str, limit_s: float | None, late: TimeoutError) -> TimeoutError:
        self._present.kill()
        if limit_s is None:
            return TimeoutError(f"{what} took too long: {late}; its process was killed.")
        name = "max_step_s=" if limit_s == self._limit_s else ""
        return TimeoutError(f"{what} took longer than {name}{limit_s:g} s; its process was killed.")


class _Waiter:
    """An episode in the queue. Guarded by the lock of `_State`."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_place = False


class _State:
    """The places, the queue for them, and the processes. Thread-safe; independent of episodes."""

    def __init__(self, n_places: int) -> None:
        self.reset_after_fork(n_places)

    def reset_after_fork(self, n_places: int) -> None:
        """Start over without taking the lock: in a forked child it may be held for ever."""
        for worker in getattr(self, "_workers", ()):
            worker.reset_after_fork()
        self._lock = threading.Lock()
        self._n_free = n_places
        self._waiters: deque[_Waiter] = deque()
        self._workers: set[Channel] = set()
        self._idle: deque[Channel] = deque()
        self._dying: list[Channel] = []
        self._is_closed = False

    async def take(self) -> None:
        with self._lock:
            self._check_open()
            if self._take_free():
                return
            waiter = _Waiter()
            self._waiters.append(waiter)
        try:
            await waiter.future
        except asyncio.CancelledError:
            self._leave(waiter)  # it may have got a place just before the cancellation, and must pass it on
            raise
        with self._lock:
            self._check_open()  # `close` wakes all waiters

    def take_now(self) -> bool:
        """Take a place if one is free; return whether it was."""
        with self._lock:
            self._check_open()
            return self._take_free()

    def idle_worker(self) -> Channel | None:
        """Return the worker that has been idle longest, for a caller that has a place."""
        with self._lock:
            return self._idle.popleft() if self._idle else None

    def add(self, worker: Channel) -> None:
        with self._lock:
            self._workers.add(worker)
            if self._is_closed:  # in another thread, while the process was being started
                worker.kill()
        self._reap_killed()

    def drop(self, worker: Channel) -> None:
        with self._lock:
            self._dying.append(worker)
        self._reap_killed()

    def give_back(self, worker: Channel | None) -> None:
        """Pass a place to the longest waiter; keep the worker for reuse unless it was killed."""
        with self._lock:
            if worker is not None:
                if worker not in self._workers:
                    return  # this is a forked process, and the worker belongs to the parent
                if self._is_closed:
                    worker.kill()
                (self._dying if worker.is_killed else self._idle).append(worker)
            self._pass_on()
        self._reap_killed()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, workers = list(self._idle), list(self._workers)
            self._idle.clear()
            self._dying += idle
            while self._waiters:
                self._wake(self._waiters.popleft())
        # Busy workers are inside a call and could not answer: kill them. Idle ones may still be closing environments.
        busy = [worker for worker in workers if worker not in idle]
        for worker in busy:
            worker.kill()
        started = time.monotonic()  # one clock for all, because the environments close in parallel
        for worker in idle:
            # One pending request is the `close`. More mean that an abandoned call is still running before it.
            grace_s = CLOSE_S if worker.n_pending <= 1 else ABANDONED_S
            try:
                if worker.has_started:
                    worker.wait_here(started + grace_s - time.monotonic())
            except (TimeoutError, WorkerDiedError, OSError):
                pass  # its grace period is over
            finally:
                worker.kill()
        deadline = time.monotonic() + _DEATH_S
        for worker in busy:  # the episode closes the descriptors: its event loop may still be watching them
            worker.reap(deadline - time.monotonic())
        while self._reap_killed() and time.monotonic() < deadline:
            time.sleep(0.002)

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidConfigError("the WorkerPool is closed; make a new one.")

    def _take_free(self) -> bool:
        is_free = self._n_free > 0
        self._n_free -= is_free
        return is_free

    def _pass_on(self) -> None:
        """Pass a place to the next waiter, or mark it as free."""
        while self._waiters:
            if self._wake(self._waiters.popleft()):
                return
        self._n_free += 1

    def _wake(self, waiter: _Waiter) -> bool:
        waiter.has_place = True
        try:
            # The caller may be in any thread, and only its own event loop may touch a future.
            waiter.future.get_loop().call_soon_threadsafe(_finish, waiter.future)
        except RuntimeError:  # its loop is closed, so nobody waits any more
            return False
        return True

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            if waiter.has_place:
                self._pass_on()
            else:
                self._waiters.remove(waiter)

    def _reap_killed(self) -> bool:
        """Reap killed processes that have ended; return whether some have not."""
        with self._lock:
            gone = {worker for worker in self._dying if worker.release()}
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
