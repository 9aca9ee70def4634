"""A worker in a process of this machine: start it, talk to it, kill it.

It is a fresh interpreter that imports `llm_envs` and nothing of the main module. So it starts in the same way under a
script without a `__main__` guard, `python -c`, a notebook and `accelerate launch`, and unlike a fork it shares no lock,
thread or GPU context with its parent. Killing its group also kills the processes that the environment has started.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time

from llm_envs.errors import InvalidConfigError, WorkerDiedError
from llm_envs.processes import StartWatch
from llm_envs.processes.peer import Peer, end_group
from llm_envs.rollout.workers.channel import Channel
from llm_envs.rollout.workers.frames import KEY_BYTES, Frames

__all__ = ["WorkerProcess", "has_ended", "start_worker"]

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from llm_envs.rollout.workers.child import main; main(int(sys.argv[2]))"
)
_ENDING_S = 0.2
"""Longest wait for the exit status of a process whose socket has closed."""


try:
    _FOLDER = os.getcwd()
except OSError:
    _FOLDER = os.sep
"""The folder that "" in `sys.path` meant at the start."""


def start_worker(ends: tuple[socket.socket, socket.socket], key: bytes) -> Peer:
    """Start a worker's process (`child`).

    Args:
        ends: Both ends of its connection, ours first; see `Peer`.
        key: The key of its frames. It goes through the pipe.

    Raises:
        InvalidConfigError: On a system other than POSIX.
        WorkerDiedError: If it cannot be started.
    """
    if os.name != "posix":
        raise InvalidConfigError(f"workers need Linux or macOS, and this is {sys.platform}. Use workers=0.")
    folders = [path or _FOLDER for path in sys.path if isinstance(path, str)]
    try:
        return Peer(["-c", _BOOT, json.dumps(folders)], ends, first=key)
    except OSError as error:
        raise WorkerDiedError(f"a worker process cannot be started: {error}") from error


class WorkerProcess(Channel):
    """A process that answers requests in order. Used by one episode at a time, from any event loop.

    Raises:
        WorkerDiedError: If it cannot be started.
    """

    def __init__(self) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        self._peer = start_worker(socket.socketpair(), key)
        super().__init__(self._peer.connection, Frames(key, "worker", is_host=True))

    @property
    def pid(self) -> int:
        """The id of the process and of its process group."""
        return self._peer.pid

    def kill(self) -> None:
        """Kill the process and all processes that it has started, without waiting. Harmless when repeated."""
        if not self.is_killed and os.getpid() == self._owner:
            self.is_killed = True
            end_group(self.pid)

    def release(self) -> bool:
        """Release all resources; return whether the killed process has ended."""
        self._peer.release()
        return self.reap(0.0)

    def reap(self, limit_s: float) -> bool:
        """Wait for the killed process; return whether it has ended."""
        try:
            self._peer.process.wait(max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def reset_after_fork(self) -> None:
        """Close the descriptors in a forked child. The process belongs to the parent."""
        self._peer.reset_after_fork()

    def watch(self) -> StartWatch:
        """Return a watch of the process."""
        return StartWatch(self.pid)

    def _has_ended(self) -> bool:
        return has_ended(self._peer.process)

    def _ending(self) -> str:
        deadline = time.monotonic() + _ENDING_S
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.002)
        if not self._has_ended():
            return "it closed its connection, and was killed"
        self.kill()  # before `wait` frees its process id, which is also that of the group
        code = self._peer.process.wait()
        if code >= 0:
            return f"it exited with code {code}"
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        return f"it was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the process has ended; if the system can, without reaping it."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # some other code has already reaped it
        return True
