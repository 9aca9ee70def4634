"""The append log: one line of JSON a trajectory, handed to the operating system at once.

Invariant: the log is whole lines and at most one torn line at its end. A write that fails is taken back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from llm_envs.errors import StoreError
from llm_envs.types import Trajectory

__all__ = ["AppendLog", "has_errored", "read_keys", "read_log", "remove_torn_line", "torn_line"]

# JSON from an API may hold half a surrogate pair, which strict UTF-8 refuses: it must not cost a trajectory.
_ENCODING_ERRORS = "surrogatepass"

# Never part of a JSON text's inside, where quotes are escaped.
_FAILED = b'"error": {'

_NO_TRAJECTORY = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class AppendLog:
    """A log that is open for writing.

    Args:
        path: The file; made if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = open(path, "ab", buffering=0)  # noqa: SIM115  # open as long as the log is
        self.size = os.fstat(self._file.fileno()).st_size
        """Bytes written, all of them whole lines."""

    def append(self, trajectory: Trajectory) -> None:
        """Append one line: a kill after this does not lose it. If it cannot be written whole, it is not there at all.

        Raises:
            StoreError: If the system refuses (no space left, a limit on file sizes, ...).
        """
        if self._file is None:
            raise StoreError(f"{self.path}: the log is closed.")
        line = trajectory.to_json().encode(errors=_ENCODING_ERRORS) + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except BaseException as error:
            self._take_back(self._file)
            if isinstance(error, OSError):
                raise StoreError(
                    f"{self.path}: a trajectory could not be written ({error.strerror}). All earlier ones are safe; "
                    "make room and resume the run."
                ) from error
            raise
        self.size += len(line)

    def close(self) -> None:
        """Sync the log to the disk and close it."""
        if self._file is not None:
            with self._file as file:
                self._file = None
                os.fsync(file.fileno())

    def _take_back(self, file: FileIO) -> None:
        """Cut off what a failed write left; where not even that works, nothing more is written here."""
        try:
            file.truncate(self.size)
        except OSError:
            self._file = None
            file.close()


def read_log(log: Path) -> Iterator[Trajectory]:
    """Read the whole lines of a log.

    Raises:
        StoreError: If a line is no trajectory; names it.
    """
    with open(log, "rb") as lines:  # bytes: only b"\n" ends a line
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Trajectory.from_json(line.decode(errors=_ENCODING_ERRORS))
            except _NO_TRAJECTORY as error:
                raise _damaged(log, number, error) from error


def read_keys(log: Path) -> Iterator[tuple[str, int, bool]]:
    """Read (group_id, member, whether it has an error) of each whole line."""
    with open(log, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                data = json.loads(line.decode(errors=_ENCODING_ERRORS))
                yield data["group_id"], data["member"], data["error"] is not None
            except _NO_TRAJECTORY as error:
                raise _damaged(log, number, error) from error


def has_errored(log: Path) -> bool:
    """Say whether any line may be a trajectory with an error, without parsing them. False is certain."""
    with open(log, "rb") as lines:
        return any(_FAILED in line for line in lines)


def torn_line(log: Path) -> str | None:
    """Return what follows the last newline, or None if nothing does."""
    torn = _torn(log)
    return None if torn is None else torn.decode(errors="replace")


def remove_torn_line(log: Path) -> str | None:
    """Cut off what follows the last newline and return it, or None if nothing does."""
    torn = _torn(log)
    if torn is None:
        return None
    with open(log, "rb+") as file:
        file.truncate(file.seek(0, os.SEEK_END) - len(torn))
        os.fsync(file.fileno())
    return torn.decode(errors="replace")


def _torn(log: Path) -> bytes | None:
    with open(log, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        blocks: list[bytes] = []
        while end > 0 and not (blocks and b"\n" in blocks[-1]):
            start = max(0, end - 65536)
            file.seek(start)
            blocks.append(file.read(end - start))
            end = start
    tail = b"".join(reversed(blocks))
    return tail[tail.rfind(b"\n") + 1 :] or None


def _damaged(log: Path, number: int, error: Exception) -> StoreError:
    return StoreError(f"{log}, line {number}: no trajectory ({type(error).__name__}: {error}).")
