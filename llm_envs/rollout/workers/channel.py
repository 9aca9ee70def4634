"""The connection to one worker: requests, replies in order, and what is left when it breaks.

A worker is a process of this machine (`process`) or one that an environment server runs elsewhere (`remote`).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import socket
import time
from abc import ABC, abstractmethod
from typing import Any

from llm_envs.errors import WorkerDiedError
from llm_envs.processes import StartWatch
from llm_envs.rollout.workers.frames import MAX_FRAME_BYTES, Frames
from llm_envs.rollout.workers.wire import MAX_TARGETS, load_plain

__all__ = ["Channel", "Reply"]

Reply = tuple[str, Any]
""""ok" and a value, or "error" and the arguments of `wire.revive`."""

_PULSE_S = 1.0
"""How often a wait checks whether the worker is still alive. (Its socket reports that at once, unless a process that
the environment forked holds the socket too.)"""
_CHUNK = 1 << 20


class Channel(ABC):
    """A worker that answers requests in order. Used by one episode at a time, from any event loop.

    Args:
        connection: The connected socket. The worker sends a first reply, number 0, without a request.
        frames: This side's frames.
    """

    def __init__(self, connection: socket.socket, frames: Frames) -> None:
        self._owner = os.getpid()
        self.loaded: set[int] = set()
        """Keys of the targets that the worker has loaded."""
        self.is_killed = False
        self._is_gone = False
        self._fault = ""
        self._n_posted, self._n_answered = 0, -1
        self._reply: Reply | None = None
        self._in, self._out = bytearray(), bytearray()
        self._socket, self._frames = connection, frames
        self._socket.setblocking(False)

    @abstractmethod
    def watch(self) -> StartWatch | None:
        """Return what ends a wait for a start that is stuck, if anything can tell."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the worker and all processes that it has started, without waiting. Harmless when repeated."""

    @abstractmethod
    def release(self) -> bool:
        """Release all resources; return whether the killed worker has ended, as far as this can be known."""

    @abstractmethod
    def reap(self, limit_s: float) -> bool:
        """Wait for the killed worker; return whether it has ended."""

    @abstractmethod
    def reset_after_fork(self) -> None:
        """Close the descriptors in a forked child. The worker belongs to the parent."""

    @abstractmethod
    def _has_ended(self) -> bool:
        """Return whether the worker is known to have ended, beside what the socket tells."""

    @abstractmethod
    def _ending(self) -> str:
        """Describe how the worker ended."""

    @property
    def has_started(self) -> bool:
        """Whether the process has ever replied."""
        return self._n_answered >= 0

    @property
    def n_pending(self) -> int:
        """Number of requests without an answer."""
        return self._n_posted - self._n_answered

    @property
    def is_settled(self) -> bool:
        """Whether all requests are answered."""
        return self.n_pending == 0

    def is_there(self) -> bool:
        """Check whether the process is still running."""
        self._look(always=True)
        return not self._is_gone

    def post(self, *request: Any) -> None:
        """Send a request: its name and arguments. Never waits, even if the socket is full."""
        self._n_posted += 1
        self._out += self._frames.pack(pickle.dumps(request, protocol=5))
        self._reply = None
        self._transfer()

    async def wait(self, limit_s: float | None, watch: StartWatch | None = None) -> Reply:
        """Return the reply to the last request.

        Args:
            limit_s: Seconds to wait; None means no limit.
            watch: For a process that is starting: ends the wait if the start is stuck.

        Raises:
            TimeoutError: If the reply does not come in time, with the watch's complaint if it has one. The process
                keeps running.
            WorkerDiedError: If the process has ended, with the reason. The processes that it started are killed.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        descriptor = self._socket.fileno()

        def move() -> None:
            # The event loop calls this when the socket is ready; the loop below only checks the limit and the process.
            self._transfer()
            if self._is_over and not over.done():
                over.set_result(None)
            if not self._out:
                loop.remove_writer(descriptor)

        deadline = None if limit_s is None else time.monotonic() + limit_s
        if not self._is_over:
            loop.add_reader(descriptor, move)
            if self._out:
                loop.add_writer(descriptor, move)
        try:
            while not self._is_over:
                left = _PULSE_S if deadline is None else min(_PULSE_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait([over], timeout=left)  # unlike `wait_for`, leaves `over` usable for the next round
                if not over.done():
                    self._look()
                    _check(watch)
        finally:
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)
        return self._result()

    def wait_here(self, limit_s: float | None, watch: StartWatch | None = None) -> Reply:
        """Do what `wait` does, but block the calling thread."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        poller = select.poll()
        while not self._is_over:
            left = _PULSE_S if deadline is None else min(_PULSE_S, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError
            poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
            poller.poll(left * 1e3)
            self._look()
            if not self._is_over:
                _check(watch)
        return self._result()

    def note_loaded(self, key: int) -> None:
        """Record that the process has loaded a target; at the limit it drops all others first."""
        if len(self.loaded) >= MAX_TARGETS:
            self.loaded.clear()
        self.loaded.add(key)

    @property
    def _is_over(self) -> bool:
        return self.is_settled or self._is_gone

    def _result(self) -> Reply:
        if self._reply is not None:
            return self._reply
        how = self._fault or self._ending()
        self.kill()
        raise WorkerDiedError(how)

    def _look(self, always: bool = False) -> None:
        """Pump pending messages and, if any are awaited or `always` is set, check that the process is alive."""
        # Transfer again after the process has ended: its last reply may still be in the socket.
        self._transfer()
        if (always or not self._is_over) and self._has_ended():
            self._transfer()
            self._is_gone = True

    def _transfer(self) -> None:
        """Send and receive as much as possible without waiting."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out[:_CHUNK])]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the other end is closed; there may still be data to read
            self._out.clear()
        try:
            while not self._is_gone:
                chunk = self._socket.recv(_CHUNK)
                self._is_gone = not chunk
                self._in += chunk
                self._parse()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._is_gone = True

    def _parse(self) -> None:
        while not self._is_gone:
            try:
                data = self._frames.take(self._in, MAX_FRAME_BYTES)
            except OSError as error:
                return self._break(str(error))
            if data is None:
                return None
            if self.is_settled:
                return self._break("it sent a reply to no request")
            try:
                reply = _read_reply(data)
            except Exception as error:
                return self._break(f"it sent something that is not a reply ({type(error).__name__}: {error!s:.100})")
            self._n_answered += 1
            # Replies to earlier requests, whose episodes gave up, are read and dropped.
            self._reply = reply if self.is_settled else None
        return None

    def _break(self, fault: str) -> None:
        self._is_gone, self._fault = True, fault + ", and was killed"


def _read_reply(data: bytes) -> Reply:
    status, value = load_plain(data)
    if status != "ok" and status != "error":
        raise ValueError(f"the status {status!r:.20}")
    return status, value


def _check(watch: StartWatch | None) -> None:
    complaint = None if watch is None else watch.complaint()
    if complaint is not None:
        raise TimeoutError(complaint)
