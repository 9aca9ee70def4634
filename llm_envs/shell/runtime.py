"""The interface of a runtime to a session: programs in one sandbox, which ends with all that is in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Program", "Runtime", "close_quietly"]


@dataclass(eq=False)
class Program:
    """A program that a runtime has started, with our ends of its pipes."""

    pid: int
    """Its id, as the runtime counts."""
    stdin: int
    stdout: int
    """Standard output and standard error."""
    end: int
    """Becomes readable at its end."""

    def close(self) -> None:
        """Close our ends."""
        for descriptor in (self.stdin, self.stdout, self.end):
            close_quietly(descriptor)
        self.stdin = self.stdout = self.end = -1


class Runtime(Protocol):
    """One sandbox."""

    holds: Mapping[str, str]
    """How it isolates and limits, by subject."""
    home: str
    """The folder in which a shell begins."""
    folders: tuple[str, ...]
    """The folders that can be written to. A snapshot holds them."""

    def start(self) -> None:
        """Start the sandbox, without a program in it.

        Raises:
            SandboxError: If that is not possible here.
        """
        ...

    def spawn(self, argv: Sequence[str], folder: str, variables: Mapping[str, str]) -> Program:
        """Start a program, without privileges and under the limits."""
        ...

    def exit_code(self, program: Program) -> int:
        """Return the exit code of a program that has ended."""
        ...

    def mark(self, worker: Program) -> None:
        """Remember which processes there are: the worker begins a command."""
        ...

    def done(self) -> None:
        """The command has ended; if it has left too many processes behind, they are killed."""
        ...

    def kill_new(self) -> None:
        """Kill the processes that were not there at the mark, and interrupt the worker with SIGUSR1."""
        ...

    def kill_all(self) -> None:
        """Kill all programs."""
        ...

    def kill(self, program: Program) -> None:
        """Kill one program."""
        ...

    def clock(self) -> tuple[float, float] | None:
        """Return the seconds of processor time of all processes so far, and those in which they waited for one."""
        ...

    def close(self) -> None:
        """Kill everything and wait for its end."""
        ...


def close_quietly(descriptor: int) -> None:
    """Close a descriptor, if it is one."""
    with contextlib.suppress(OSError):
        if descriptor >= 0:
            os.close(descriptor)
