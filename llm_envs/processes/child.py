"""The child process of `sandbox.scorer`: loads a scorer, then answers requests, one line of JSON each.

    python -P child.py SCRIPT LIFELINE

LIFELINE is the descriptor of a pipe's read end: when the other end closes, the kernel ends this process. It is a script
and imports nothing of this package. After loading, an audit hook refuses to compile text, to start a process, to open a
socket and to write a file. A scorer that checks text before it is compiled sets `MAY_COMPILE`.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import threading
from typing import Any

MAX_MEMORY = 2 << 30
"""Address space, bytes."""
_REFUSED: tuple[str, ...] = ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.kill", "os.remove")
_REFUSED += ("os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "subprocess.", "socket.", "ctypes.", "pty.")
_REFUSED += ("shutil.", "webbrowser.", "urllib.")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse_to_execute(event: str, arguments: tuple[Any, ...]) -> None:
    """Allow imports and refuse other execution. This is an audit hook."""
    if event == "compile":
        if not (isinstance(arguments[1], str) and arguments[1].endswith(".py")):
            raise PermissionError("text is not compiled here")
    elif event == "open":
        if arguments[2] & _WRITING:
            raise PermissionError("files are not written here")
    elif event.startswith(_REFUSED):
        raise PermissionError(f"{event} is refused here")


def limit_memory() -> bool:
    """Limit the memory of this process and its children. Return whether the system does that: macOS does not."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (OSError, ValueError):
        return False
    return True


def end_with_parent(lifeline: int) -> None:
    """End when the other end of a pipe closes, on Linux even in a regular expression that backtracks for ever."""
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, int(signal.SIGKILL))
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)
    except (AttributeError, OSError):  # a system without F_SETSIG
        threading.Thread(target=lambda: os._exit(len(os.read(lifeline, 1))), daemon=True).start()
    if select.select([lifeline], [], [], 0)[0]:  # it had already closed
        os._exit(1)


def main() -> None:
    """Load the scorer, report it, and answer requests from standard input until that closes."""
    end_with_parent(int(sys.argv[2]))
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    spec = importlib.util.spec_from_file_location("scorer", sys.argv[1])
    assert spec is not None and spec.loader is not None
    scorer = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(scorer)
        scorer.load()
        ready = None
    except Exception as error:
        ready = f"{type(error).__name__}: {error}"
    replies.write(json.dumps({"error": ready, "is_limited": limit_memory()}).encode() + b"\n")
    replies.flush()
    may_compile = getattr(scorer, "MAY_COMPILE", False)
    sys.addaudithook(lambda event, args: None if may_compile and event == "compile" else refuse_to_execute(event, args))
    for line in requests:
        try:
            answer = scorer.answer(json.loads(line))
        except Exception:
            answer = None
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
