"""The faults: what happens to disks, files and clocks, and what environments do."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from llm_envs.processes import children_of
from llm_envs.testing import NumbersEnv

__all__ = [
    "DAMAGES",
    "DEEDS",
    "ChaosEnv",
    "Disk",
    "damage",
    "jump_clocks",
    "kill",
    "kill_a_child",
]

DEED_VARIABLE = "CHAOS_ENV_DEED"
"""Environment variable with a deed of `DEEDS`, which worker processes inherit."""
_SHARE = 0.08
"""Share of the episodes, chosen by their seeds, in which an environment does its deed."""
_LEAK = 192 * 2**20


class Disk:
    """A disk that can be full: a small tmpfs where this process may mount one, else a limit on the size of files.

    A mount is seen by this process and its children only if it runs in a mount namespace (`unshare -rm`), and then
    ends with them.

    Args:
        folder: Where it is mounted; created.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(folder)]
        self.is_mounted = "CHAOS_NAMESPACE" in os.environ and subprocess.run(mount, check=False).returncode == 0

    def limit(self, n_bytes: int | None) -> None:
        """Leave room for so many bytes, or again for all. Without a mount: for this process, which ends by it."""
        if not self.is_mounted:
            most = resource.RLIM_INFINITY if n_bytes is None else max(1, n_bytes)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            return
        if n_bytes is not None:
            used = shutil.disk_usage(self.folder).used
            n_bytes = used + max(4096, n_bytes)
        size = "1g" if n_bytes is None else str(n_bytes)
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)


def _folder_instead(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("else")


def _dangling_link(path: Path, random: Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _random_bytes(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(random.randint(1, 5_000)))


def _cut(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def _zeros(path: Path, random: Random) -> None:
    """Zeros to the end, as after a power cut."""
    with open(path, "rb+") as file:
        start = random.randrange(path.stat().st_size)
        file.seek(start)
        file.write(bytes(path.stat().st_size - start))


def _flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(20):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, Random], None]] = {
    "a folder": _folder_instead,
    "a dangling link": _dangling_link,
    "random bytes": _random_bytes,
    "cut": _cut,
    "zeros": _zeros,
    "flipped bits": _flip,
}


def damage(path: Path, random: Random, kinds: tuple[str, ...] = tuple(DAMAGES)) -> str:
    """Damage a file in one of the ways; return which."""
    kind = random.choice(kinds)
    DAMAGES[kind](path, random)
    return kind


def jump_clocks(random: Random) -> None:
    """Make the clocks of this process jump from now on.

    The wall clock jumps by up to a day, forth and back. The clocks that never go back (`monotonic`, `perf_counter`)
    jump by up to an hour, forth. Our modules call all of them by these names of `time`, as asyncio does.
    """

    def jumping(read: Callable[[], float], least_s: float, most_s: float) -> Callable[[], float]:
        offset_s = 0.0

        def now() -> float:
            nonlocal offset_s
            if random.random() < 0.002:
                offset_s += random.uniform(least_s, most_s)
            return read() + offset_s

        return now

    time.time = jumping(time.time, -86_400.0, 86_400.0)  # type: ignore[assignment]
    time.monotonic = jumping(time.monotonic, 0.0, 3_600.0)  # type: ignore[assignment]
    time.perf_counter = jumping(time.perf_counter, 0.0, 3_600.0)  # type: ignore[assignment]


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


def kill_a_child(random: Random) -> Callable[[int], None]:
    """Return an action that kills one of the processes that a process has started."""

    def act(pid: int) -> None:
        children = children_of(pid)
        if children:
            with suppress(ProcessLookupError):
                os.kill(random.choice(children), signal.SIGKILL)

    return act


def _hang() -> None:
    while True:
        time.sleep(3_600)


def _leak() -> None:
    """Keep memory, of which this process has no more than it takes twice, until there is none left."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if not _kept:
        resource.setrlimit(resource.RLIMIT_AS, (now + 2 * _LEAK, hard))
    _kept.append(bytearray(_LEAK))


_kept: list[bytearray] = []


def _raise() -> None:
    raise ConnectionError("the tool's server is gone")


DEEDS: dict[str, Callable[[], Any]] = {
    "hang": _hang,
    "die": lambda: os._exit(3),
    "be killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leak": _leak,
    "raise": _raise,
}


class ChaosEnv(NumbersEnv):
    """A `NumbersEnv` of two turns that does a deed in some episodes, while the variable `DEED_VARIABLE` names one."""

    def __init__(self, split: str = "train") -> None:
        super().__init__(n_turns=2, split=split)
        self.deed = DEEDS.get(os.environ.get(DEED_VARIABLE, ""))
        self.seed, self.at = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the digits, and whether and when the deed is done."""
        random = Random(seed)
        self.at = random.randrange(2) if random.random() < _SHARE else -1
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the step, perhaps after the deed."""
        if self.deed is not None and self.turn == self.at:
            self.deed()
        return super().step(action)
