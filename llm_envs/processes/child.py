"""The child's side: JSON frames, the end with the host, the one audit hook, and the program that runs scorers.

    python -P child.py SCRIPT LIFELINE

The program loads a scorer, which takes seconds, and then only forks: one child for each connection that it receives
on its standard input, in milliseconds. A child answers requests until its connection closes. `sandbox.scorer` is the
host's side. This file uses only the standard library: the program imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
from typing import Any, NoReturn

PROGRAM = __file__
MAX_MEMORY = 2 << 30
"""Address space of a scorer's child in bytes, unless its script sets another `MAX_MEMORY`."""
_CHUNK = 1 << 20
_REFUSED: tuple[str, ...] = ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.kill", "os.remove")
_REFUSED += ("os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "subprocess.", "socket.", "ctypes.", "pty.")
_REFUSED += ("shutil.", "webbrowser.", "urllib.")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def send(connection: socket.socket, message: Any) -> None:
    """Write one frame: eight bytes of length, then JSON."""
    data = json.dumps(message).encode()
    connection.sendall(struct.pack("!Q", len(data)) + data)


def receive(connection: socket.socket, max_bytes: int | None = None) -> Any:
    """Read one frame.

    Raises:
        OSError: If the connection ends, or the frame is longer than `max_bytes`.
    """
    (size,) = struct.unpack("!Q", read_exactly(connection, 8))
    if max_bytes is not None and size > max_bytes:
        raise OSError(f"a frame of {size} bytes, of at most {max_bytes}")
    return json.loads(read_exactly(connection, size))


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read that many bytes; raise an `OSError` if the connection ends before."""
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), _CHUNK))
        if not chunk:
            raise ConnectionError("the connection was closed")
        data += chunk
    return bytes(data)


def refuse_to_execute(event: str, arguments: tuple[Any, ...], may_compile: bool = False) -> None:
    """Allow imports and refuse other execution. This is an audit hook."""
    if event == "compile":
        if not (may_compile or (isinstance(arguments[1], str) and arguments[1].endswith(".py"))):
            raise PermissionError("text is not compiled here")
    elif event == "open":
        if arguments[2] & _WRITING:
            raise PermissionError("files are not written here")
    elif event.startswith(_REFUSED):
        raise PermissionError(f"{event} is refused here")


def limit_memory(most: int) -> bool:
    """Limit the memory of this process and its children. Return whether the system does that: macOS does not."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, OSError, ValueError):
        return False
    return True


def take_standard_input() -> socket.socket:
    """Return the connection to the host; standard input is empty from now on."""
    connection = socket.socket(fileno=os.dup(0))  # not inherited: a program would keep it open after this process
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    return connection


def end_with_host(lifeline: int) -> None:
    """Make this process and its group end when the other end of a pipe closes.

    On Linux the kernel does it, so it also works when no Python code can run: in a C call that holds the interpreter's
    lock, such as a regular expression that backtracks for ever. Elsewhere a thread does it.
    """
    os.set_inheritable(lifeline, False)
    try:
        import fcntl

        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())  # negative: signal the whole process group
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, int(signal.SIGKILL))
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        threading.Thread(target=_watch, args=(lifeline, os.getppid()), daemon=True).start()
    if select.select([lifeline], [], [], 0)[0]:  # it had already closed
        end_group()


def _watch(lifeline: int, parent: int) -> None:
    while os.getppid() == parent and not select.select([lifeline], [], [], 1.0)[0]:
        pass
    end_group()


def end_group() -> NoReturn:
    """Kill this process and everything that it has started in its group."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def load_scorer(path: str) -> Any:
    """Import a scorer's script and call its `load`."""
    spec = importlib.util.spec_from_file_location("scorer", path)
    assert spec is not None and spec.loader is not None
    scorer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scorer)
    scorer.load()
    return scorer


def serve(connection: socket.socket, scorer: Any) -> None:
    """Answer requests until the connection ends."""
    may_compile = getattr(scorer, "MAY_COMPILE", False)
    sys.addaudithook(lambda event, arguments: refuse_to_execute(event, arguments, may_compile))
    while True:
        request = receive(connection)
        try:
            reply = scorer.answer(request)
        except Exception:
            reply = None
        send(connection, reply)


def main() -> None:
    """Load the scorer, report it, and fork a child for each connection."""
    end_with_host(int(sys.argv[2]))
    control = take_standard_input()
    try:
        scorer = load_scorer(sys.argv[1])
    except Exception as error:
        send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    send(control, {"is_limited": limit_memory(getattr(scorer, "MAX_MEMORY", MAX_MEMORY))})
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no code waits for the children
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                control.close()
                serve(socket.socket(fileno=descriptors[0]), scorer)
            os._exit(0)
        os.close(descriptors[0])
        send(control, pid)


if __name__ == "__main__":
    main()
