"""A scorer of an installed package, in a child process with limits of time and memory.

Other people's scorers were not written against hostile text: a regular expression may take hours, a nested text may
exhaust the stack, a call may ask for a number of a million digits. The child runs one request at a time. If it takes
too long, needs too much memory or crashes, the answer is None, and the next request starts another child.

The child also keeps the scorer's globals (seeds, caches, data paths) away from this process, and refuses to compile
text, to write files, to open sockets and to start processes (`child.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from llm_envs.errors import SandboxError
from llm_envs.processes import Shared, forget_after_fork
from llm_envs.processes.deadline import TimeLimits

__all__ = ["BoundedScorer"]

_CHILD = Path(__file__).parents[1] / "processes" / "child.py"
_time_limits = Shared(TimeLimits)


class BoundedScorer:
    """A child process that answers requests, started with the first one. Threads take turns.

    Args:
        script: File with a function `load() -> None`, called once, and `answer(request) -> reply`; both JSON types. It
            imports nothing of this package. `MAY_COMPILE = True` lets it compile text, which it must check before.
    """

    def __init__(self, script: Path) -> None:
        self._script = script
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        """The write end of the child's pipe. The child ends when it closes, so also when this process is killed."""
        self.forget()
        forget_after_fork(self)

    def forget(self) -> None:
        """Start over in a forked child, leaving the parent's process to the parent."""
        self._lock = threading.Lock()
        if self._process is not None:
            os.close(self._lifeline)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process.returncode = -1
        self._process = None

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """Return the reply; None if the request exceeded its time or memory, or crashed the scorer.

        Args:
            request: JSON types.
            timeout_s: Limit in seconds.

        Raises:
            SandboxError: If the child process cannot be started, or has no processor.
        """
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            process = self._running()
            with _time_limits().hold(process.pid, timeout_s) as limit:
                reply = _exchange(process, line)
            if not reply.endswith(b"\n"):
                self._end()
                if limit.was_starved:
                    raise SandboxError(
                        f"the scorer {self._script.name} had a processor for {limit.used_s:.1f} s of "
                        f"{limit.given_s:.1f} s. Is this machine overloaded?"
                    )
                return None
        found: dict[str, Any] | None = json.loads(reply)
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "HOME") if name in os.environ}
        end, lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", str(_CHILD), str(self._script), str(end)],
                pass_fds=(end,),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            )
        except OSError as error:
            os.close(lifeline)
            raise SandboxError(f"the scorer {self._script.name} cannot be started: {error}") from error
        finally:
            os.close(end)
        self._lifeline = lifeline
        said = _exchange(self._process, b"")
        ready = json.loads(said) if said.endswith(b"\n") else {"error": "it ended"}
        if ready["error"] is not None:
            self._end()
            raise SandboxError(f"the scorer {self._script.name} does not start: {ready['error']}")
        if not ready["is_limited"]:
            warnings.warn(
                "this system sets no limit of memory (RLIMIT_AS) for scorers: an answer may use up the memory of the "
                "machine until its limit of time.",
                stacklevel=3,
            )
        return self._process

    def close(self) -> None:
        """End the child process; the next request starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            os.close(self._lifeline)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    """Write a line to the child and return the line that it answers, without its end if it died."""
    assert process.stdin is not None and process.stdout is not None
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[process.stdin.write(rest) :]
        reply = b""
        while not reply.endswith(b"\n"):
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            reply += chunk
        return reply
    except OSError:
        return b""
