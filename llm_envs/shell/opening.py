"""Opens shells by the name of their runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.shell.base import HOME, Shell, ShellLimits
from llm_envs.shell.confined import ConfinedRuntime, Isolation
from llm_envs.shell.session import ShellSession

__all__ = ["RUNTIMES", "open_shell"]

RUNTIMES = (*get_args(Isolation),)
"""Names of runtimes; see the guide for what each isolates."""
_TAKEN = (f"{HOME}/", "/tmp/", "/dev/", "/proc/")


def open_shell(
    runtime: str = "namespaces",
    *,
    limits: ShellLimits | None = None,
    seed: int = 0,
    endpoint: tuple[str, int] | None = None,
    folders: Sequence[str] = (),
) -> Shell:
    """Return a shell, which starts with its first call. Close it after use.

    Args:
        runtime: One of `RUNTIMES`. "process" isolates nothing.
        limits: Its resources.
        seed: Of `RANDOM` and Python's hashes.
        endpoint: Host and port that programs reach at 127.0.0.1 and this port; by default they reach nothing.
        folders: Absolute paths of folders of the host that are visible at the same place, read-only.

    Raises:
        InvalidConfigError: If an argument is out of its range.
    """
    if runtime not in RUNTIMES:
        raise InvalidConfigError(
            f"runtime is {runtime!r}; it must be one of {', '.join(RUNTIMES)}.{did_you_mean(runtime, RUNTIMES)}"
        )
    if endpoint is not None and not 0 < endpoint[1] < 65_536:
        raise InvalidConfigError(f"endpoint is {endpoint!r}; it must be a host and a port from 1 to 65535.")
    if relative := [folder for folder in folders if not folder.startswith("/")]:
        raise InvalidConfigError(f"folders has {relative[0]!r}; each must be an absolute path.")
    if hidden := [folder for folder in folders if f"{folder}/".startswith(_TAKEN)]:
        raise InvalidConfigError(f"folders has {hidden[0]!r}; a shell has its own {', '.join(_TAKEN)}, which hide it.")
    chosen: Isolation = next(name for name in get_args(Isolation) if name == runtime)
    given = limits or ShellLimits()
    return ShellSession(ConfinedRuntime(chosen, given, endpoint, folders), given, seed)
