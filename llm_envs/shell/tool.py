"""A shell as tools of an environment: `bash`, `edit` and `read`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.errors import InvalidActionError
from llm_envs.shell.base import HOME, Shell, ShellLimits, ShellResult
from llm_envs.shell.opening import open_shell
from llm_envs.tools.base import Tool
from llm_envs.tools.toolset import Toolset, tool

__all__ = ["ShellTools"]

_MOST_LINES = 2_000


class ShellTools(Toolset):
    """The tools `bash`, `edit` and `read` on one shell for each episode.

    An environment returns one of these from `make_tools`. The shell starts with an episode's first call. Its seed
    depends on the problem, so an episode that is played again, as `branch` does, gets the same answers; the clock and
    the order of processes are the system's.

    Args:
        runtime: See `open_shell`.
        image: See `open_shell`.
        limits: See `open_shell`; the tools' descriptions state them.
        endpoint: See `open_shell`.
        folders: See `open_shell`.
        writable: See `open_shell`.
    """

    blocking = True

    def __init__(
        self,
        runtime: str | Sequence[str] = "namespaces",
        *,
        image: str | None = None,
        limits: ShellLimits | None = None,
        endpoint: tuple[str, int] | None = None,
        folders: Sequence[str] = (),
        writable: Sequence[str] = (),
    ) -> None:
        self.limits = limits or ShellLimits()
        self._arguments: dict[str, Any] = {
            "runtime": runtime,
            "image": image,
            "endpoint": endpoint,
            "folders": tuple(folders),
            "writable": tuple(writable),
        }
        self._seed = 0
        self._shell: Shell | None = None
        self.last_result: ShellResult | None = None
        """The result of the last `bash`; None before the first of an episode."""

    @property
    def shell(self) -> Shell:
        """The episode's shell, opened at first use: an environment puts its files there, and looks at them."""
        if self._shell is None:
            self._shell = open_shell(limits=self.limits, seed=self._seed, **self._arguments)
        return self._shell

    def tools(self) -> list[Tool]:
        """Return the tools; the description of `bash` states the limits."""
        made = super().tools()
        limits = self.limits
        told = {
            "timeout_s": f"{limits.timeout_s:g} seconds a command",
            "output": f"about {limits.output_characters} characters of output",
            "memory": f"{limits.memory_bytes >> 20} MiB of memory",
            "disk": f"{limits.disk_bytes >> 20} MiB of files",
            "processes": f"{limits.processes} processes",
        }
        for each in made:
            if each.name == "bash":
                each.description += f" Limits: {', '.join(told.values())}."
        return made

    @tool
    def bash(self, command: str) -> str:
        """Run a command in a bash session that keeps its folder, variables and background processes.

        Args:
            command: Any number of lines. Standard input is empty. Nothing may be written outside of /workspace and
                /tmp.
        """
        self.last_result = result = self.shell.run(command)
        code = f"[exit code {result.exit_code}]" if result.exit_code else ""
        return "\n".join(part for part in (result.output, code) if part) or "(no output)"

    @tool
    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a text in a file by another one, or write a new file.

        Args:
            path: The file.
            old: The present text, with its indentation. It must occur exactly once. Empty: write a new file.
            new: The text to put in its place.
        """
        if not old:
            try:
                self.shell.read(path)
            except InvalidActionError:
                self.shell.write(path, new.encode())
                return "(done)"
            raise InvalidActionError(f"edit: {path[:200]} exists already; give the old text, or remove it first")
        text = self._text(path)
        if (n := text.count(old)) != 1:
            raise InvalidActionError(f"edit: the old text occurs {n} times in {path[:200]}; it must occur exactly once")
        self.shell.write(path, text.replace(old, new).encode())
        return "(done)"

    @tool
    def read(self, path: str, first: int = 1, last: int = _MOST_LINES) -> str:
        """Show lines of a text file with their numbers.

        Args:
            path: The file.
            first: The first line, from 1.
            last: The last line.
        """
        lines = self._text(path).splitlines()
        if not 1 <= first <= max(len(lines), 1):
            raise InvalidActionError(f"read: {path[:200]} has {len(lines)} lines, and the first is to be {first}")
        shown = lines[first - 1 : min(last, first - 1 + _MOST_LINES)]
        left = [f"[{len(lines)} lines in all]"] if len(shown) < len(lines) else []
        return "\n".join([*(f"{first + i}\t{line}" for i, line in enumerate(shown)), *left]) or "(empty)"

    def reset(self, problem: Mapping[str, Any], rng: np.random.Generator) -> None:
        """Begin an episode with an empty folder."""
        self.close()
        self._seed = zlib.crc32(json.dumps(problem, sort_keys=True).encode())

    def close(self) -> None:
        """End the shell. The next call opens a new one."""
        shell, self._shell, self.last_result = self._shell, None, None
        if shell is not None:
            shell.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle as settings: another process has its own shell."""
        return self.__dict__ | {"_shell": None, "last_result": None}

    def _text(self, path: str) -> str:
        try:
            return self.shell.read(path).decode()
        except UnicodeDecodeError:
            raise InvalidActionError(f"{path[:200]} is not a text in UTF-8") from None


assert HOME == "/workspace"  # the description of `bash` names it
