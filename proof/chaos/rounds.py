"""A round's outcome, and the child processes in which its work is done, killed, and watched for hanging."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llm_envs.errors import LLMEnvsError
from llm_envs.processes import children_of

__all__ = ["Action", "Broken", "Ended", "Outcome", "in_child", "kill_all"]

Action = tuple[float, Callable[[int], None]]
"""(seconds after the start, function of the child's process id), called in the parent while the child runs."""
_POLL_S = 0.004


class Broken(Exception):
    """An invariant does not hold."""


@dataclass
class Outcome:
    """What one round did and found."""

    faults: list[str] = field(default_factory=list)
    """The faults, in their order."""
    problems: list[str] = field(default_factory=list)
    """The invariants that did not hold; empty in a good round."""
    counts: dict[str, int] = field(default_factory=dict)
    """Numbers of the scenario: episodes compared, kills that hit, ..."""

    def add(self, name: str, n: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + n


@dataclass(frozen=True)
class Ended:
    """How a child process ended."""

    how: str
    """"done", "killed" (by SIGKILL), "refused" (an error of ours), "crashed" (any other end) or "hung"."""
    message: str
    """The error, and all that the child wrote."""
    seconds: float


def in_child(work: Callable[[], None], log: Path, *, limit_s: float, actions: Sequence[Action] = ()) -> Ended:
    """Run a function in a forked process and wait for its end.

    Args:
        work: The function. It runs in a copy of this process, which must not have started threads.
        log: Gets what the child prints, and its error.
        limit_s: Seconds after which the child has hung; it is killed, with all processes that it has started.
        actions: What happens meanwhile, in order of time.
    """
    started, left = time.monotonic(), list(actions)
    pid = os.fork()
    if pid == 0:
        _become(work, log)
    status: int | None = None
    while status is None:
        found, status_now = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(status_now)
            break
        now = time.monotonic() - started
        if now > limit_s:
            kill_all(pid)
            os.waitpid(pid, 0)
            break
        while left and now >= left[0][0]:
            left.pop(0)[1](pid)
        time.sleep(_POLL_S)
    how = {None: "hung", 0: "done", 3: "refused", -signal.SIGKILL: "killed"}.get(status, "crashed")
    message = log.read_text(errors="replace") if log.exists() else ""
    return Ended(how, message, time.monotonic() - started)


def kill_all(pid: int) -> None:
    """Kill a process and all that descend from it."""
    for each in (*children_of(pid), pid):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def _become(work: Callable[[], None], log: Path) -> None:
    """Do the work, and leave with a code that tells how it ended; never returns."""
    code = 4
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        try:
            work()
            code = 0
        except (LLMEnvsError, Broken) as error:
            code = 3
            os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
        except BaseException:
            os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)
