"""Open files of folders that somebody else may have made. None of it waits for a pipe or writes through a link.

`regular`, `own` and `replacing` are openers: `open(path, mode, opener=regular)`.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from llm_envs.data.storage import is_remote

__all__ = ["atomic", "open_bytes", "own", "read_text", "regular", "remove", "remove_link", "remove_links", "replacing"]

_LOG = logging.getLogger(__name__)

_EXTRA = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def regular(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file to read. A link is followed: hubs keep their files behind links.

    Raises:
        OSError: If it is a pipe, a socket or a device, or cannot be opened.
    """
    return _checked(os.open(path, flags | _EXTRA), path)


def own(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file to change it, or make it.

    Raises:
        OSError: As `regular`, and if it is a link: what is behind it belongs to somebody else.
    """
    try:
        descriptor = _checked(os.open(path, flags | _EXTRA | _NOFOLLOW, 0o666), path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, "it is a link", os.fspath(path)) from error
        raise
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a hard link: the file has another name, too", os.fspath(path))
    return descriptor


def replacing(path: str | os.PathLike[str], flags: int) -> int:
    """Make a new file in place of what has the name; a link there is removed and not followed."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | _EXTRA | os.O_EXCL, 0o666)


@contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically: readers see all of it or the earlier one, which stays if the block fails."""
    temporary = path.with_name(path.name + ".tmp")  # one left by a kill is replaced
    try:
        with open(temporary, "wb", opener=replacing) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_MODEL_FILES = (".json", ".safetensors", ".bin", ".pt", ".model", ".txt", ".jinja", ".py")


def remove(path: Path) -> None:
    """Remove a folder with its contents, or a file or link if it is one. Links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_link(path: Path, *, to_folder: bool = True) -> None:
    """Remove a link, a hard link or a pipe where code of others, which would follow it, is to write.

    Args:
        path: Of a file or folder, which need not exist.
        to_folder: Also remove a link to a folder.
    """
    if not os.path.lexists(path):
        return
    found = path.lstat()
    is_plain = stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
    if not is_plain and (to_folder or not path.is_dir()):
        _LOG.warning("%s is a link or a pipe. It is removed, because a file or folder is to be written there.", path)
        path.unlink()


def remove_links(folder: Path, *, deep: bool = False) -> None:
    """Remove links, hard links and pipes from a folder in which a model is to be saved; see `remove_link`.

    Args:
        folder: The folder, which need not exist.
        deep: Remove all, also in its subfolders, and `folder` itself if it is a link. Otherwise those that have the
            name of a model's file, and no links to folders: the folder may hold other things of its user.
    """
    if deep:
        remove_link(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if deep or name.endswith(_MODEL_FILES):
                remove_link(Path(place, name), to_folder=deep)
        if not deep:
            return


def open_bytes(path: Path) -> BinaryIO:
    """Open a file to read, here (see `regular`) or on object storage."""
    return cast(BinaryIO, path.open("rb")) if is_remote(path) else open(path, "rb", opener=regular)


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8; see `open_bytes`."""
    with open_bytes(path) as file:
        return file.read().decode("utf-8")


def _checked(descriptor: int, path: str | os.PathLike[str]) -> int:
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # `open` itself refuses a folder
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device", os.fspath(path))
    return descriptor
