"""Watch processes that we start, end commands by signals and with their host, and reset state in forked children.

A starting process is judged by its progress and not by a timeout: on a busy machine, an import that usually takes a
second may take a minute.

`peer` is the host's side of a process of ours, `child` the other side, and `deadline` the limit of time of both.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = [
    "Shared",
    "StartWatch",
    "children_of",
    "end_quietly_until_started",
    "end_with_parent",
    "ended_with_this_process",
    "processors",
    "register_for_forks",
    "terminated_as_interrupted",
]

T = TypeVar("T")

IDLE_S = 60.0
"""Seconds without processor time after which a starting process counts as stuck."""
START_CPU_S = 120.0
"""Processor time after which a start counts as an endless loop. Usual is 1 s, or 5 s before anything is compiled."""
START_WALL_S = 900.0
"""Longest start in wall time, for systems that do not report processor times and for a process that polls."""


class StartWatch:
    """Tells whether a process, with its children, is still making progress towards being ready.

    Args:
        pid: The process. 0: one whose progress cannot be seen from here, so that only `START_WALL_S` limits it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = self._last_used = time.monotonic()
        self._cpu_s = 0.0

    def complaint(self) -> str | None:
        """Return why the process will never be ready, or None while it makes progress. Call about once a second."""
        now = time.monotonic()
        cpu_s = cpu_seconds(self._pid)
        if cpu_s is None:
            self._last_used = now
        elif cpu_s > self._cpu_s:
            self._cpu_s, self._last_used = cpu_s, now
        if now - self._last_used > IDLE_S:
            return f"it has done nothing for {IDLE_S:g} s"
        if self._cpu_s > START_CPU_S:
            return f"it has used {self._cpu_s:.0f} s of processor time and is not ready"
        if now - self._started > START_WALL_S:
            return f"it is not ready after {START_WALL_S:g} s"
        return None


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process and its descendants, or None if the system does not report it."""
    ticks = 0
    for each in (pid, *children_of(pid)):
        with contextlib.suppress(OSError):
            with open(f"/proc/{each}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # its own time, and that of the children that it has reaped
    return ticks / os.sysconf("SC_CLK_TCK") if ticks or os.path.exists(f"/proc/{pid}/stat") else None


def children_of(pid: int) -> list[int]:
    """Return the descendants of a process, as far as the system reports them (Linux)."""
    found: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    children = [int(child) for child in file.read().split()]
                found += children
                pending += children
    return found


def end_quietly_until_started() -> None:
    """In a command of this package: at Ctrl-C or SIGTERM print one line and end, until `terminated_as_interrupted`.

    The imports before a command begins have nothing to clean up, and would print a traceback.
    """
    given = sys.orig_argv
    module = given[given.index("-m") + 1 :][:1] if "-m" in given else []
    is_command = os.path.basename(sys.argv[0]) == "llm-envs" or any(name.startswith("llm_envs.") for name in module)
    if not is_command or threading.current_thread() is not threading.main_thread():
        return
    for number, before in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is before:
            signal.signal(number, _end_quietly)


def _end_quietly(number: int, frame: object) -> None:
    os.write(2, f"llm-envs: interrupted{_by(number)}\n".encode())
    os._exit(130)


def _by(number: int) -> str:
    return " by SIGTERM" if number == signal.SIGTERM else ""


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[list[str]]:
    """Make SIGTERM, which schedulers send before a kill, end a command like Ctrl-C, also in the background.

    A shell script starts its background processes with SIGINT ignored, and asyncio then does not watch for it.

    Yields:
        A list, which then has " by SIGTERM" if that came.
    """
    came: list[str] = []

    def end(number: int, frame: object) -> None:
        came.append(_by(number))
        signal.raise_signal(signal.SIGINT)

    interrupt = signal.getsignal(signal.SIGINT)
    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread: the command is embedded in another program
        yield came
        return
    if interrupt in (signal.SIG_IGN, _end_quietly):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends, even in a loop. Without such a kernel a thread does it.

    Only for a process that its parent starts in its main thread: Linux counts the end of the thread that started it.
    """
    parent, is_set = os.getppid(), False
    if sys.platform == "linux":
        import ctypes

        is_set = ctypes.CDLL(None).prctl(1, int(signal.SIGKILL)) == 0  # PR_SET_PDEATHSIG
    if not is_set:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it has ended in between
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


@contextlib.contextmanager
def ended_with_this_process(group: int) -> Iterator[None]:
    """Kill a group of processes if this process ends, even by SIGKILL, while the context lasts.

    For programs of others, which cannot call `end_with_parent`: a process beside them waits for this one's end.

    Args:
        group: Id of the group. Processes that have left it are not killed.
    """
    watch = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # whoever kills this process's group does not kill the watch too
    )
    try:
        yield
    finally:
        watch.kill()
        watch.communicate()


_WATCH = """
import os, select, signal, sys
host, group = map(int, sys.argv[1:])
while os.getppid() == host and not select.select([0], [], [], 1.0)[0]:  # a forked process may hold the pipe too
    pass
os.killpg(group, signal.SIGKILL)
"""


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Resettable(Protocol):
    def reset_after_fork(self) -> None:
        """Start over: replace locks, and release the parent's resources without ending them."""
        ...


_registered: weakref.WeakSet[_Resettable] = weakref.WeakSet()


def register_for_forks(owner: _Resettable) -> None:
    """Call `owner.reset_after_fork()` in every process forked from this one while `owner` lives.

    During the fork, another thread may hold the owner's locks; and the processes at the other ends of its pipes belong
    to the parent.
    """
    _registered.add(owner)


def _reset_all() -> None:
    for owner in list(_registered):
        owner.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


class Shared(Generic[T]):
    """An object that a process creates once, at first use.

    Args:
        make: Makes the object.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: T | None = None
        self.reset_after_fork()
        register_for_forks(self)

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child. The object itself must survive a fork."""
        self._lock = threading.Lock()

    def __call__(self) -> T:
        """Return the object."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
