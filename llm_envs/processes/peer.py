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

__all__ = ["Peer", "end_group", "start"]

_PULSE_S = 1.0
"""Seconds between checks of the progress of a starting process."""


def start(
    arguments: Sequence[str], connection: socket.socket, *, first: bytes = b"", **options: Any
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a Python process; return it and the end of a pipe: when that closes, the process ends.

    The process leads its own session, so Ctrl-C in a terminal does not reach it. Its standard input is the
    connection; its last argument is the descriptor of the pipe's other end, for `child.end_with_host`.

    Args:
        arguments: The interpreter's, behind `-P`: otherwise a json.py in the working folder would be imported.
        connection: Its end of a connection. It is closed here: held here, it would hide the process's death.
        first: Bytes that wait in the pipe: others can read a process's arguments.
        options: Of `subprocess.Popen`.

    Raises:
        OSError: If it cannot be started.
    """
    end, lifeline = os.pipe()
    try:
        os.write(lifeline, first)
        process = subprocess.Popen(
            [sys.executable, "-P", *arguments, str(end)],
            stdin=connection.fileno(),
            pass_fds=(end,),
            start_new_session=True,
            **options,
        )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        connection.close()
        os.close(end)
    return process, lifeline


def end_group(pid: int) -> None:
    """Kill a process that leads a group, and all processes that it has started, without waiting."""
    others = children_of(pid)  # before the kill: orphans get another parent and could not be found
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for other in others:  # those that started their own sessions are not in the process group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(other, signal.SIGKILL)


class Peer:
    """A Python process that exchanges frames with this one. Used by one thread at a time.

    Args:
        arguments: See `start`.
        options: See `start`.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        self.connection, theirs = socket.socketpair()
        try:
            self._process, self._lifeline = start(arguments, theirs, **options)
        except BaseException:
            self.connection.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

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
        self._process.wait()
        self._close_descriptors()

    def forget(self) -> None:
        """Close the descriptors in a forked child. The process belongs to the parent."""
        self._process.returncode = -1  # so that Popen's destructor neither warns nor waits for another's child
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self.connection.close()
        os.close(self._lifeline)
