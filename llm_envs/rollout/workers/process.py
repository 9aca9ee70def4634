"""One worker process, seen from the collector: start it, talk to it, kill it.

It is a fresh interpreter that imports `llm_envs` and nothing of the main module. So it starts in the same way under a
script without a `__main__` guard, `python -c`, a notebook and `accelerate launch`, and unlike a fork it shares no lock,
thread or GPU context with its parent. It has its own session and process group: Ctrl-C in a terminal does not reach it,
and killing the group also kills the processes that the environment has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from llm_envs.errors import InvalidConfigError, WorkerDiedError
from llm_envs.processes import StartWatch, children_of
from llm_envs.rollout.workers.wire import HEADER, MAX_FRAME_BYTES, MOST_TARGETS, load_plain

__all__ = ["Reply", "WorkerProcess"]

Reply = tuple[str, Any]
""""ok" and a value, or "error" and the arguments of `wire.revive`."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from llm_envs.rollout.workers.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_PULSE_S = 1.0
"""How often a wait checks whether the process is still alive. (Its socket reports that at once, unless a process that
the environment forked holds the socket too.)"""
_ENDING_S = 0.2
"""Longest wait for the exit status of a process whose socket has closed."""
_CHUNK = 1 << 20


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return os.sep


_FOLDER = _working_folder()
"""The folder that "" in `sys.path` meant at the start."""


class WorkerProcess:
    """A process that answers requests in order. Used by one episode at a time, from any event loop.

    Raises:
        WorkerDiedError: If it cannot be started.
    """

    def __init__(self) -> None:
        if os.name != "posix":
            raise InvalidConfigError(f"workers need a POSIX system; this is {sys.platform}. Use workers=0.")
        self._owner = os.getpid()
        self.loaded: set[int] = set()
        """Keys of the targets that the process has loaded."""
        self.is_killed = False
        self._is_gone = False
        self._fault = ""
        self._n_posted = self._n_answered = -1
        self._reply: Reply | None = None
        self._in, self._out = bytearray(), bytearray()
        self._socket, theirs = socket.socketpair()
        end, ours = os.pipe()
        self._lifeline = open(ours, "wb", buffering=0)  # noqa: SIM115  # closed by `release`
        folders = [path or _FOLDER for path in sys.path if isinstance(path, str)]
        # -P: otherwise a json.py in the working folder would be imported before `_BOOT` sets the path.
        command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(end), json.dumps(folders)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), end), start_new_session=True
            )
        except OSError as error:
            self._close_descriptors()
            raise WorkerDiedError(f"a worker process cannot be started: {error}") from error
        finally:
            theirs.close()  # if this end stayed open here, the process's death would not close the connection
            os.close(end)
        self._socket.setblocking(False)
        self._n_posted = 0  # the process sends a first reply, number 0, without a request

    @property
    def pid(self) -> int:
        """The id of the process and of its process group."""
        return self._process.pid

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
        data = pickle.dumps((self._n_posted, *request), protocol=5)
        self._out += HEADER.pack(len(data)) + data
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

    def kill(self) -> None:
        """Kill the process and all processes that it has started, without waiting. Harmless when repeated."""
        if self.is_killed or os.getpid() != self._owner:
            return
        self.is_killed = True
        others = children_of(self.pid)  # before the kill: orphans get another parent and could not be found
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for other in others:  # those that started their own sessions are not in the process group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(other, signal.SIGKILL)

    def note_loaded(self, key: int) -> None:
        """Record that the process has loaded a target; at the limit it drops all others first."""
        if len(self.loaded) >= MOST_TARGETS:
            self.loaded.clear()
        self.loaded.add(key)

    def release(self) -> bool:
        """Release all resources; return whether the killed process has ended."""
        self._close_descriptors()
        return self.reap(0.0)

    def reap(self, limit_s: float) -> bool:
        """Wait for the killed process; return whether it has ended."""
        try:
            self._process.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def forget(self) -> None:
        """Close the descriptors in a forked child. The process belongs to the parent."""
        self._close_descriptors()
        self._process.returncode = -1  # so that Popen's destructor neither warns nor waits for another's child

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
        if (always or not self._is_over) and _has_ended(self._process):
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
        while len(self._in) >= HEADER.size:
            (size,) = HEADER.unpack_from(self._in)
            if size > MAX_FRAME_BYTES:
                return self._break(f"it sent a frame of {size} bytes")
            if len(self._in) < HEADER.size + size:
                return None
            try:
                number, status, value = load_plain(self._in[HEADER.size : HEADER.size + size])
            except Exception as error:
                return self._break(f"it sent something that is not a reply ({type(error).__name__}: {error!s:.100})")
            if number != self._n_answered + 1 or number > self._n_posted or status not in ("ok", "error"):
                return self._break(f"it sent the reply {number!r:.20} where {self._n_answered + 1} was next")
            del self._in[: HEADER.size + size]
            self._n_answered = number
            # Replies to earlier requests, whose episodes gave up, are read and dropped.
            self._reply = (status, value) if number == self._n_posted else None
        return None

    def _break(self, fault: str) -> None:
        self._is_gone, self._fault = True, fault + ", and was killed"

    def _ending(self) -> str:
        """Describe how the process ended."""
        deadline = time.monotonic() + _ENDING_S
        while not _has_ended(self._process) and time.monotonic() < deadline:
            time.sleep(0.002)
        if not _has_ended(self._process):
            return "it closed its connection, and was killed"
        self.kill()  # before `wait` frees its process id, which is also that of the group
        code = self._process.wait()
        if code >= 0:
            return f"it exited with code {code}"
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        return f"it was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")

    def _close_descriptors(self) -> None:
        self._socket.close()
        self._lifeline.close()


def _check(watch: StartWatch | None) -> None:
    complaint = None if watch is None else watch.complaint()
    if complaint is not None:
        raise TimeoutError(complaint)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended; if the system can, without reaping it."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # some other code has already reaped it
        return True
