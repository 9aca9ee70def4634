"""The append log: one line of JSON per trajectory, handed to the operating system immediately.

Invariant: the log has complete lines, and at most one torn line at its end. A failed write is undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Literal

from llm_envs.data.files import open_bytes, own
from llm_envs.data.storage import reaching
from llm_envs.errors import StoreError
from llm_envs.types import Trajectory

__all__ = ["AppendLog", "has_errored", "parse_line", "read_keys", "read_log", "remove_torn_line", "torn_line"]

# JSON from an API may hold a lone surrogate, which strict UTF-8 refuses; the trajectory must still be stored.
_ENCODING_ERRORS = "surrogatepass"

# Cannot occur inside a JSON string, where quotes are escaped.
_FAILED = b'"error": {'

_NO_TRAJECTORY = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class AppendLog:
    """A log open for writing.

    Args:
        path: The file; created if missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: FileIO | None = open(path, "ab", buffering=0, opener=own)  # noqa: SIM115  # open as long as the log is
        except OSError as error:
            raise _unreadable(path, error) from error
        self.size = os.fstat(self._file.fileno()).st_size
        """Bytes written, always complete lines."""

    def append(self, trajectory: Trajectory) -> None:
        """Append one line, or nothing if it fails. A kill after this call does not lose the line.

        Raises:
            StoreError: If the system refuses (no space left, a limit on file sizes, ...), or a name has a lone
                surrogate, which a shard's columns cannot hold.
        """
        if self._file is None:
            raise StoreError(f"{self.path}: the log is closed.")
        names = {"env_id": trajectory.env_id, "group_id": trajectory.group_id}
        names |= {f"messages[{n}].role": message.role for n, message in enumerate(trajectory.messages)}
        for field, name in names.items():
            if not name.isascii() and name.encode(errors="replace").decode() != name:
                raise StoreError(f"{self.path}: {field} is {name!r}; a name must be Unicode, without lone surrogates.")
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
        """Remove the rest of a failed write; if even that fails, stop writing here."""
        try:
            file.truncate(self.size)
        except OSError:
            self._file = None
            file.close()


def read_log(log: Path) -> Iterator[Trajectory]:
    """Read the complete lines of a log.

    Raises:
        StoreError: If a line is not a trajectory; names the line.
    """
    with _open(log, "rb") as lines:  # bytes: only b"\n" ends a line
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            yield parse_line(line, log, number)


def parse_line(line: bytes, log: Path, number: int) -> Trajectory:
    """Return the trajectory of a log's line.

    Raises:
        StoreError: If it is none; names the log and the line's number.
    """
    try:
        return Trajectory.from_json(line.decode(errors=_ENCODING_ERRORS))
    except _NO_TRAJECTORY as error:
        raise _damaged(log, number, error) from error


def read_keys(log: Path) -> Iterator[tuple[str, int, bool]]:
    """Read (group_id, member, whether it has an error) of each complete line."""
    with _open(log, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                data = json.loads(line.decode(errors=_ENCODING_ERRORS))
                if not (isinstance(data["group_id"], str) and isinstance(data["member"], int)):
                    raise TypeError("group_id and member are not a string and an integer")
                yield data["group_id"], data["member"], data["error"] is not None
            except _NO_TRAJECTORY as error:
                raise _damaged(log, number, error) from error


def has_errored(log: Path) -> bool:
    """Return whether any line may have an error, without parsing. False is certain, True is not."""
    with _open(log, "rb") as lines:
        return any(_FAILED in line for line in lines)


def torn_line(log: Path) -> str | None:
    """Return the text after the last newline, or None."""
    torn = _torn(log)
    return None if torn is None else torn.decode(errors="replace")


def remove_torn_line(log: Path) -> str | None:
    """Remove the text after the last newline and return it, or None."""
    torn = _torn(log)
    if torn is None:
        return None
    with _open(log, "rb+") as file:
        file.truncate(file.seek(0, os.SEEK_END) - len(torn))
        os.fsync(file.fileno())
    return torn.decode(errors="replace")


def _open(log: Path, mode: Literal["rb", "rb+"]) -> BinaryIO:
    try:
        with reaching(log):
            return open_bytes(log) if mode == "rb" else open(log, mode, opener=own)
    except OSError as error:
        raise error if isinstance(error, StoreError) else _unreadable(log, error) from error


def _unreadable(log: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{log} cannot be opened ({error.strerror or error}). Put the log back, or move what is there elsewhere."
    )


def _torn(log: Path) -> bytes | None:
    with _open(log, "rb") as file:
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
    is_of_run = number > 1 or log.match("log-*.jsonl") or log.name == "trajectories.jsonl"
    what_to_do = "Remove the line: a resumed run plays its episode again." if is_of_run else "Give the folder of a run."
    return StoreError(f"{log}, line {number}: not a trajectory ({type(error).__name__}: {error}). {what_to_do}")
