"""One writer per folder: a lock that a killed process cannot leave behind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

from llm_envs.data.files import own
from llm_envs.errors import StoreError
from llm_envs.processes import register_for_forks

__all__ = ["LOCK_NAME", "FolderLock"]

LOCK_NAME = "writer.lock"
"""Holds the id of the writing process. The file stays; the system's lock on it is what counts."""

_held: set[str] = set()
"""The folders that this process holds, for the error's words."""


class FolderLock:
    """Holds a folder for this process until it is released or the process ends in any way.

    The lock belongs to the open file. (A record lock would be lost when anything in this process closes the file, such
    as a copy of the folder.) Forked children close theirs, so a child that outlives a killed process does not keep it.

    Args:
        folder: An existing folder.

    Raises:
        StoreError: If another writer holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._key = os.path.realpath(folder)
        self._descriptor: int | None = None
        try:
            descriptor = own(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreError(
                f"{folder / LOCK_NAME} cannot be opened ({error.strerror}): a run is written to a folder whose files "
                "this user may write. Make them writable, or copy the run and continue the copy."
            ) from error
        try:
            _lock(descriptor, folder)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(self._key)
        register_for_forks(self)

    def release(self) -> None:
        """Release the folder. Harmless when repeated, and in a forked child."""
        if self._descriptor is not None and fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a child that was just forked may still have it open
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In a forked child: close its descriptor. The parent's keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held.discard(self._key)
            os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        if os.path.realpath(folder) in _held:
            raise StoreError(
                f"{folder} is being written by another writer of this process: close that one first."
            ) from error
        raise StoreError(
            f"{folder} is being written by process {holder}: choose another folder, or wait until that one has ended."
        ) from error
    except OSError:
        pass  # a file system without locks: continue without one
