"""Opens shells by the name of their runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.shell.base import HOME, Shell, ShellLimits
from llm_envs.shell.confined import SYSTEM, ConfinedRuntime, Isolation
from llm_envs.shell.container import CLIENTS, ContainerRuntime
from llm_envs.shell.runtime import Runtime
from llm_envs.shell.session import ShellSession

__all__ = ["RUNTIMES", "open_shell"]

_OURS: dict[str, Isolation] = {"namespaces": "namespaces", "bubblewrap": "bubblewrap", "process": "process"}
RUNTIMES = (*_OURS, *CLIENTS)
"""Names of runtimes; see the guide for what each isolates."""
_TAKEN = (f"{HOME}/", "/tmp/", "/dev/", "/proc/")
_SYSTEM_PLACES = {
    HOME,
    *SYSTEM,
    "/tmp",
    "/dev",
    "/proc",
    "/etc",
    "/var",
    "/run",
    "/root",
    "/home",
    "/opt",
    "/mnt",
    "/srv",
}


def open_shell(
    runtime: str | Sequence[str] = "namespaces",
    *,
    image: str | None = None,
    limits: ShellLimits | None = None,
    seed: int = 0,
    endpoint: tuple[str, int] | None = None,
    folders: Sequence[str] = (),
    writable: Sequence[str] = (),
) -> Shell:
    """Return a shell, which starts with its first call. Close it after use.

    Args:
        runtime: One of `RUNTIMES`, or the command of a client of containers (`CLIENTS`). "process" isolates nothing.
        image: The container's image, with bash and Python 3.8; for a client of containers only.
        limits: Its resources.
        seed: Of `RANDOM` and Python's hashes.
        endpoint: Host and port that programs reach at 127.0.0.1 and this port; by default they reach nothing.
        folders: Absolute paths of folders of the host that are visible at the same place, read-only.
        writable: Names such as "/app": links to "/workspace/app", for programs that name such a place. For
            "namespaces" and "bubblewrap".

    Raises:
        InvalidConfigError: If an argument is out of its range.
    """
    if isinstance(runtime, str) and runtime not in RUNTIMES:
        raise InvalidConfigError(
            f"runtime is {runtime!r}; it must be one of {', '.join(RUNTIMES)}, or the command of a client of "
            f"containers as a list.{did_you_mean(runtime, RUNTIMES)}"
        )
    is_ours = isinstance(runtime, str) and runtime in _OURS
    if is_ours == (image is not None):
        raise InvalidConfigError(
            f"image is {image!r} with runtime={runtime!r}; {', '.join(_OURS)} take no image, and clients of containers "
            "need one."
        )
    if endpoint is not None and not 0 < endpoint[1] < 65_536:
        raise InvalidConfigError(f"endpoint is {endpoint!r}; it must be a host and a port from 1 to 65535.")
    if relative := [folder for folder in folders if not folder.startswith("/")]:
        raise InvalidConfigError(f"folders has {relative[0]!r}; each must be an absolute path.")
    if hidden := [folder for folder in folders if f"{folder}/".startswith(_TAKEN)]:
        raise InvalidConfigError(f"folders has {hidden[0]!r}; a shell has its own {', '.join(_TAKEN)}, which hide it.")
    if writable and runtime not in ("namespaces", "bubblewrap"):
        raise InvalidConfigError(
            f"writable is {writable!r} with runtime={runtime!r}; only namespaces and bubblewrap can."
        )
    if wrong := [path for path in writable if not re.fullmatch(r"/\w+", path) or path in _SYSTEM_PLACES]:
        raise InvalidConfigError(
            f"writable has {wrong[0]!r}; each must be a new name directly below /, such as '/app'."
        )
    given = limits or ShellLimits()
    made: Runtime
    if image is None:
        made = ConfinedRuntime(_OURS[str(runtime)], given, endpoint, folders, writable)
    else:
        template = CLIENTS[runtime] if isinstance(runtime, str) else tuple(runtime)
        made = ContainerRuntime(template, image, given, endpoint, folders)
    return ShellSession(made, given, seed)
