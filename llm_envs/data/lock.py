"""One writer per folder: a lock that a killed process cannot leave behind."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

from llm_envs.data.files import own
from llm_envs.errors import StoreError

__all__ = ["LOCK_NAME", "FolderLock"]

LOCK_NAME = "writer.lock"
"""Holds the id of the writing process. The file stays; the system's lock on it is what counts."""

_held: dict[str, int] = {}
"""Folder -> the id of our process that holds it. The system's locks belong to a process, so a second writer in the same
process must be detected here. A forked child finds its parent's id and asks the system."""


class FolderLock:
    """Holds a folder for this process until it is released or the process ends in any way.

    It is a record lock, which belongs only to the process: unlike with `flock`, a child that outlives a killed process
    does not keep the folder.

    Args:
        folder: An existing folder.

    Raises:
        StoreError: If another writer holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._key = os.path.realpath(folder)
        self._descriptor: int | None = None
        if _held.get(self._key) == os.getpid():
            raise StoreError(f"{folder} is being written by another writer of this process: close that one first.")
        try:
            descriptor = own(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(
                f"{folder / LOCK_NAME} cannot be opened ({error.strerror}). Remove it; it contains no data."
            ) from error
        try:
            _lock(descriptor, folder)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor, self._process = descriptor, os.getpid()
        _held[self._key] = self._process

    def release(self) -> None:
        """Release the folder. Harmless when repeated, and in a forked child."""
        if self._descriptor is not None and self._process == os.getpid():
            os.close(self._descriptor)  # closing releases the lock
            _held.pop(self._key, None)
        self._descriptor = None


def _lock(descriptor: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise StoreError(
            f"{folder} is being written by process {holder}: choose another folder, or wait until that one has ended."
        ) from error
    except OSError:
        pass  # a file system without locks: continue without one
