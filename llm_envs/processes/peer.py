"""The host's side of a process of ours: start it, wait until it is ready, exchange frames, kill its group."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from llm_envs.processes import StartWatch, children_of
from llm_envs.processes.child import receive, send

__all__ = ["Peer", "end_group"]

_PULSE_S = 1.0
"""Seconds between checks of the progress of a starting process."""


def end_group(pid: int) -> None:
    """Kill a process that leads a group, and all processes that it has started, without waiting."""
    others = children_of(pid)  # before the kill: orphans get another parent and could not be found
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for other in others:  # those that started their own sessions are not in the process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)


class Peer:
    """A Python process of ours, with a connection and a lifeline. Used by one thread at a time.

    It leads its own session, so Ctrl-C in a terminal does not reach it. Its standard input is the connection; its last
    argument is the descriptor of a pipe's read end. When this process ends, that pipe closes, and the other one ends
    (`child.end_with_host`).

    Args:
        arguments: The interpreter's, behind `-P`: otherwise a json.py in the working folder would be imported.
        ends: Both ends of the connection, ours first. The other one is closed here: held here, it would hide the
            process's death. By default, those of a new pair.
        first: Bytes that wait in the pipe: others can read a process's arguments.
        options: Of `subprocess.Popen`.

    Raises:
        OSError: If it cannot be started, as on a system other than POSIX.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        ends: tuple[socket.socket, socket.socket] | None = None,
        *,
        first: bytes = b"",
        **options: Any,
    ) -> None:
        if os.name != "posix":
            raise OSError(f"it needs Linux or macOS, and this is {sys.platform}; Windows has the Subsystem for Linux")
        self.connection, theirs = ends or socket.socketpair()
        end, lifeline = os.pipe()
        self._lifeline = open(lifeline, "wb", buffering=0)  # noqa: SIM115  # closed by `release`
        try:
            self._lifeline.write(first)
            command, given = [sys.executable, "-P", *arguments, str(end)], theirs.fileno()
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stdin=given, pass_fds=(end,), start_new_session=True, **options
            )
        except BaseException:
            self.release()
            raise
        finally:
            theirs.close()
            os.close(end)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self.process.pid

    def wait_until_ready(self) -> Any:
        """Return the process's first frame.

        Raises:
            TimeoutError: If it makes no progress, with the reason.
            OSError: If it ends before.
        """
        watch, complaint = StartWatch(self.pid), None
        self.connection.settimeout(_PULSE_S)
        while complaint is None:
            with contextlib.suppress(TimeoutError):
                self.connection.recv(1, socket.MSG_PEEK)
                self.connection.settimeout(None)
                return receive(self.connection)
            complaint = watch.complaint()
        raise TimeoutError(complaint)

    def ask(self, message: Any) -> Any:
        """Send a frame and return the answer.

        Raises:
            OSError: If the process has ended.
        """
        send(self.connection, message)
        return receive(self.connection)

    def close(self) -> None:
        """Kill the process and all that it has started, and wait for its end."""
        end_group(self.pid)
        self.process.wait()
        self.release()

    def reset_after_fork(self) -> None:
        """Close the descriptors in a forked child. The process belongs to the parent."""
        self.process.returncode = -1  # so that Popen's destructor neither warns nor waits for another's child
        self.release()

    def release(self) -> None:
        """Close the descriptors; the process then ends too. Harmless when repeated."""
        self.connection.close()
        self._lifeline.close()
