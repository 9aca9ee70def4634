"""The interface of every shell: limits in, a persistent session, and results that are data.

A `Shell` belongs to one episode and is used by one thread at a time. Whatever a command does is a `ShellResult`; only
misuse and a runtime that does not work raise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from llm_envs.sandbox.base import check_limits

__all__ = ["HOME", "Shell", "ShellLimits", "ShellResult", "ShellSnapshot", "ShellStop"]

HOME = "/workspace"
"""The folder in which a shell begins."""
ShellStop = Literal["time", "output", "ended"]
"""The reason why a command ended: its time, a flood of output, or that it ended the shell itself (`exit`, a crash)."""
_MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class ShellLimits:
    """Resources of one shell. The guide has a table of how each runtime holds them."""

    timeout_s: float = 60.0
    """Longest time of one command, seconds, unless `run` gets another. Waiting for a processor does not count."""
    memory_bytes: int = 1024 * _MEBIBYTE
    """Most memory of one process, and of all processes together."""
    disk_bytes: int = 256 * _MEBIBYTE
    """Most that all files of the shell may hold together, and one file."""
    files: int = 50_000
    """Most files and folders."""
    processes: int = 128
    """Most processes and threads at a time."""
    output_characters: int = 10_000
    """Longest output of a result, about. Of longer ones the beginning and the end are kept, with a note."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidConfigError: If a limit is not a number in its range.
        """
        check_limits(self, _RANGES)


_RANGES: dict[str, tuple[float, float]] = {
    "timeout_s": (0.01, 86_400.0),
    "memory_bytes": (16 * _MEBIBYTE, 1 << 40),
    "disk_bytes": (_MEBIBYTE, 1 << 40),
    "files": (16, 100_000_000),
    "processes": (4, 30_000),
    "output_characters": (100, 10_000_000),
}


@dataclass(frozen=True)
class ShellResult:
    """The result of one command."""

    output: str
    """The text from standard output and standard error, cut in the middle, and our notes in brackets. Background
    processes may write into it too."""
    exit_code: int
    """As in a shell; 124 if it was stopped."""
    stopped: ShellStop | None
    """The reason if it was stopped, or None."""
    state_lost: bool
    """Whether this began a new shell, without the variables of the old one. Files are kept."""
    seconds: float
    """Wall-clock time."""


@dataclass(frozen=True)
class ShellSnapshot:
    """The files of a shell, its folder, variables and functions. Running processes are not part of it."""

    archive: bytes
    """A tar archive of the folders that can be written to."""
    folder: str
    variables: str
    """Text that bash reads to define them."""


class Shell(Protocol):
    """A persistent bash with files. Variables, the folder and background processes last from one `run` to the next."""

    limits: ShellLimits

    @property
    def holds(self) -> dict[str, str]:
        """How this runtime isolates and limits, by subject."""
        ...

    def start(self) -> None:
        """Start it; the first call of another method does so too.

        Raises:
            SandboxError: If this machine cannot, with what is missing and what to do.
        """
        ...

    def run(self, command: str, timeout_s: float | None = None) -> ShellResult:
        """Run a command in bash and return its result.

        A command over its time is killed with all processes that it has started, and the shell stays.

        Args:
            command: Any number of lines, without null characters.
            timeout_s: Seconds; None: the limit.

        Raises:
            SandboxError: If the shell is closed, or its runtime does not work.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a file; a relative path begins in the shell's folder.

        Raises:
            InvalidActionError: If it cannot be read.
        """
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file, with the folders that it needs.

        Raises:
            InvalidActionError: If it cannot be written.
        """
        ...

    def snapshot(self) -> ShellSnapshot:
        """Return the shell's state."""
        ...

    def restore(self, snapshot: ShellSnapshot) -> None:
        """End all processes, and take over a state of this shell or of another one of the same runtime."""
        ...

    def close(self) -> None:
        """End every process and release everything. May be called again."""
        ...
