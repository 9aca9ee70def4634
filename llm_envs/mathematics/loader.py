"""The process that loads sympy, and the connections to the workers that it forks (`worker`)."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

from llm_envs.errors import MissingExtraError, SandboxError
from llm_envs.processes import StartWatch
from llm_envs.processes.deadline import LONGEST

__all__ = ["Loader", "Worker"]

_GRACE_S = 0.5
"""Seconds that a worker may be late before it is given up."""
_PULSE_S = 1.0
"""Seconds between checks of the progress of a starting process."""
_NO_LIMIT = (
    "this system sets no limit of memory (RLIMIT_AS) for the processes that compare formulas: an answer may use up the "
    "memory of the machine until its limit of time."
)
_WORKER = Path(__file__).with_name("worker.py")


class Loader:
    """The process that loads sympy and forks workers. Used by one thread at a time."""

    def __init__(self) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtraError(
                "comparing formulas needs math-verify; install it with: pip install 'llm-envs[tools]'"
            )
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        self._control, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", str(_WORKER)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment | {"OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            self._control.close()
            raise SandboxError(f"the process that compares formulas cannot be started: {error}") from error
        finally:
            theirs.close()
        self._is_ready = False

    def connect(self) -> Worker:
        """Return a new worker, after sympy is loaded.

        Raises:
            SandboxError: If the process does not load it.
            OSError: If the process has ended since.
        """
        self._wait_until_ready()
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return Worker(ours)

    def close(self) -> None:
        """End the process and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._control.close()

    def forget(self) -> None:
        """Close a forked child's copy of the connection."""
        self._control.close()
        self._process.returncode = -1

    def _wait_until_ready(self) -> None:
        watch = StartWatch(self._process.pid)
        self._control.settimeout(_PULSE_S)
        while not self._is_ready:
            complaint = None
            try:
                said = self._control.recv(1)
                self._is_ready = said in (b"+", b"-")
                if said == b"-":
                    warnings.warn(_NO_LIMIT, stacklevel=2)
                complaint = None if self._is_ready else "it ended"
            except TimeoutError:
                complaint = watch.complaint()
            if complaint is not None:
                raise SandboxError(f"the process that compares formulas does not start: {complaint} ({sys.executable})")


class Worker:
    """The connection to one worker, used by one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.is_alive = True

    def ask(self, answer: str, target: str, timeout_s: float) -> tuple[bool | None, str, float]:
        """Return whether the two are equal, or None and the reason; and the seconds of processor time that it took.

        Raises:
            SandboxError: If the worker had no processor for `timeout_s` in `LONGEST` times as long.
        """
        started = time.perf_counter()
        longest_s = LONGEST * timeout_s + _GRACE_S
        request = {"answer": answer, "target": target, "timeout_s": timeout_s}
        reply = b""
        try:
            self._connection.settimeout(longest_s)
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            while not reply.endswith(b"\n"):
                self._connection.settimeout(max(started + longest_s - time.perf_counter(), 0.001))
                chunk = self._connection.recv(65_536)
                if not chunk:
                    raise ConnectionError
                reply += chunk
        except TimeoutError as error:
            self.close()
            raise SandboxError(
                f"a comparison had no processor for {timeout_s:.3g} s in {longest_s:.3g} s. Is this machine overloaded?"
            ) from error
        except OSError:  # its timer ended it, or it crashed
            self.close()
            is_late = time.perf_counter() - started >= timeout_s
            reason = f"over the time limit of {timeout_s:.3g} s" if is_late else "the comparison crashed"
            return None, reason, timeout_s
        message = json.loads(reply)
        return message["equal"], message["reason"], message["seconds"]

    def is_there(self) -> bool:
        """Return whether the idle worker is alive: the system may have killed it when memory ran out."""
        self._connection.setblocking(False)
        try:
            return bool(self._connection.recv(1))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """Abandon the worker. It ends when it next reads from the connection, or by its timer."""
        self.is_alive = False
        self._connection.close()

    def forget(self) -> None:
        """Close a forked child's copy of the connection."""
        self._connection.close()
