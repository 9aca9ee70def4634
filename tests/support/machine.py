"""Wait for something, see whether a process runs, and keep the machine busy."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 120.0
"""Longest wait for something that takes well under a second on a machine of one's own."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Wait for something, and return whether it happened."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Wait for something on this event loop, and return whether it happened."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return bool(condition())


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not (which a container's init may be slow to bury)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def busy(n: int) -> Iterator[None]:
    """Keep processors busy with so many processes."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(n)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
