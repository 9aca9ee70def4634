"""A scorer that was not written against hostile text, in child processes with limits of time and memory.

1. A regular expression may take hours, a nested text may exhaust the stack, a call may ask for a number of a million
   digits. A child answers one request at a time; any number of threads may ask, and wait if all children are busy. If
   a request takes too long, needs too much memory or crashes, it has no answer, and the next one has another child.
2. One process loads the scorer, and forks the children in milliseconds (`processes.child`).
3. Processor time counts (`processes.deadline`): without a processor a request is an error, and not without an answer.
4. The children keep the scorer's globals (seeds, caches, data paths) away from this process, and refuse to compile
   text, to write files, to open sockets and to start processes. Only JSON leaves them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import warnings
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.processes import register_for_forks
from llm_envs.processes.child import PROGRAM, receive, send
from llm_envs.processes.deadline import TimeLimits
from llm_envs.processes.peer import Peer

__all__ = ["BoundedScorer"]

_MAX_REPLY_BYTES = 64 << 20
_TIME_LIMITS = TimeLimits()


class BoundedScorer:
    """Child processes that answer requests, started with the first one.

    Args:
        script: File with a function `load() -> None`, called once, and `answer(request) -> reply`; both JSON types. It
            imports nothing of this package. `MAY_COMPILE = True` lets it compile text, which it must check before;
            `MAX_MEMORY` sets the address space of a child, in bytes.
        n_workers: Largest number of requests at one time. With one, requests reach the same child until that ends.

    Raises:
        InvalidConfigError: If `n_workers` is less than 1.
    """

    def __init__(self, script: Path, n_workers: int = 1) -> None:
        if isinstance(n_workers, bool) or not isinstance(n_workers, int) or n_workers < 1:
            raise InvalidConfigError(f"n_workers is {n_workers!r}; it must be an integer from 1.")
        self._script, self.n_workers = script, n_workers
        self.n_loaded = 0
        """How often the script was loaded: more than once only if its process was killed, or this one was forked."""
        self._is_closed = False
        self._idle: list[_Child] = []
        self._loader: _Loader | None = None
        self.reset_after_fork()
        register_for_forks(self)

    def reset_after_fork(self) -> None:
        """Start over in a forked child, leaving the parent's processes to the parent."""
        for child in self._idle:
            child.close()
        if self._loader is not None:
            self._loader.reset_after_fork()
        self._free = threading.BoundedSemaphore(self.n_workers)
        self._lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._idle, self._loader = [], None

    def start(self) -> None:
        """Start loading the script, without waiting for it."""
        self._started_loader()

    def ask(self, request: dict[str, Any], timeout_s: float) -> Any:
        """Return the reply; None if the request exceeded its time or memory, or crashed the scorer.

        Args:
            request: JSON types.
            timeout_s: Limit of processor time, in seconds.

        Raises:
            SandboxError: If the process cannot be started, or has no processor.
            InvalidConfigError: If the scorer is closed.
        """
        return self.try_to_answer(request, timeout_s)[0]

    def try_to_answer(self, request: dict[str, Any], timeout_s: float) -> tuple[Any, str]:
        """Return the reply and an empty text, or None and the reason; see `ask`."""
        with self._free:
            child, reply, is_done = self._take(), None, False
            try:
                with _TIME_LIMITS.hold(child.pid, timeout_s) as limit, contextlib.suppress(OSError, ValueError):
                    reply = child.ask(request)
                    is_done = True
            except BaseException:  # interrupted
                child.kill()
                raise
            with self._lock:
                if is_done and not self._is_closed:
                    self._idle.append(child)
                else:
                    child.close()
        if is_done:
            return reply, ""
        if limit.is_killed and limit.was_starved:
            raise SandboxError(
                f"the scorer {self._script.name} had a processor for {limit.spent_s:.1f} s of {limit.given_s:.1f} s. "
                "Is this machine overloaded?"
            )
        return None, f"over the time limit of {timeout_s:.3g} s" if limit.is_killed else "it crashed"

    def close(self) -> None:
        """End the processes. May be called again."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        self._drop_loader()

    def _take(self) -> _Child:
        with self._lock:
            self._check_open()
            while self._idle:
                child = self._idle.pop()
                if child.is_silent():
                    return child
                child.close()
        with self._start_lock:
            try:
                return self._started_loader().fork()
            except OSError:  # it was killed: by the system, when memory ran out
                self._drop_loader()
                return self._started_loader().fork()
            except SandboxError:
                self._drop_loader()
                raise

    def _started_loader(self) -> _Loader:
        with self._lock:
            self._check_open()
            if self._loader is None:
                self._loader = _Loader(self._script)
                self.n_loaded += 1
            return self._loader

    def _drop_loader(self) -> None:
        with self._lock:
            loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidConfigError(f"the {type(self).__name__} is closed; make a new one.")


class _Loader(Peer):
    """The process that loads a script and forks children."""

    def __init__(self, script: Path) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "HOME") if name in os.environ}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._name, self._is_ready = script.name, False
        nothing = subprocess.DEVNULL
        try:
            super().__init__(["-W", "ignore", PROGRAM, str(script)], stdout=nothing, stderr=nothing, env=environment)
        except OSError as error:
            raise SandboxError(f"the scorer {self._name} cannot be started: {error}") from error

    def fork(self) -> _Child:
        """Return a new child, after the script is loaded.

        Raises:
            SandboxError: If the process does not load it.
            OSError: If the process has ended since.
        """
        if not self._is_ready:
            self._check_start()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.connection, [b"+"], [theirs.fileno()])
            return _Child(receive(self.connection), ours)
        except BaseException:
            ours.close()
            raise

    def _check_start(self) -> None:
        try:
            said = self.wait_until_ready()
        except OSError as error:
            said = {"error": str(error)}
        if "error" in said:
            raise SandboxError(f"the scorer {self._name} does not start: {said['error']}")
        self._is_ready = True
        if not said["is_limited"]:
            warnings.warn(
                f"this system sets no limit of memory (RLIMIT_AS) for the scorer {self._name}: an answer may use up "
                "the memory of the machine until its limit of time.",
                stacklevel=2,
            )


class _Child:
    """The connection to one child, used by one thread at a time."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self._connection = pid, connection

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the reply; raise an `OSError` if the child ends, or a `ValueError` if it sends something else."""
        send(self._connection, request)
        return receive(self._connection, _MAX_REPLY_BYTES)

    def is_silent(self) -> bool:
        """Return whether the idle child is alive and has sent nothing: the system may have killed it."""
        try:
            self._connection.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection. The child ends when it next reads or writes."""
        self._connection.close()

    def kill(self) -> None:
        """Kill the child, which is in the middle of a request."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()
