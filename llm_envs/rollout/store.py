"""Trajectories on disk: an append log, one line of JSON each, beside a manifest that says what run it is.

A folder holds one run: `manifest.json` and `trajectories.jsonl`. Every finished trajectory is flushed to the log at
once. A process that is killed in mid-line leaves a torn last line, which readers report and a resumed writer removes.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from llm_envs.errors import StoreError
from llm_envs.types import Trajectory

__all__ = ["FORMAT_VERSION", "StoredRun", "TrajectoryWriter", "iter_trajectories", "read_run", "read_trajectories"]

FORMAT_VERSION = 1
"""Version of the folder's layout and of a line's form. Another one is refused."""

MANIFEST_NAME = "manifest.json"
LOG_NAME = "trajectories.jsonl"

# JSON from an API may hold half a surrogate pair, which strict UTF-8 refuses: it must not cost a trajectory.
_ENCODING_ERRORS = "surrogatepass"

_SALVAGE = f"The trajectories may be whole: read_trajectories('.../{LOG_NAME}') reads the log alone."


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was found on disk."""

    settings: Mapping[str, Any]
    """What the writer was given: environments, seeds, limits, the policy's name."""
    trajectories: tuple[Trajectory, ...]
    """In the order of finishing."""
    torn: str | None
    """The start of a last line that was cut off by a kill; None if the log is whole."""


class TrajectoryWriter:
    """Appends trajectories to a folder. `write` is what a collector takes as `on_trajectory`.

    Args:
        path: The folder; made if missing.
        settings: What run this is, as JSON types; kept in the manifest.
        resume: Go on with the run in the folder. Its settings must be the same; a torn last line is removed.

    Raises:
        StoreError: If the folder holds another run, or anything else.
    """

    def __init__(self, path: str | Path, *, settings: Mapping[str, Any] | None = None, resume: bool = False) -> None:
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self.settings = dict(settings or {})
        self.removed: str | None = None
        """A torn last line that resuming removed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{self.path} is a file, or lies below one: a run is a folder, choose another.") from error
        if (self.path / MANIFEST_NAME).exists():
            self._check_manifest(resume)
            self.removed = _remove_torn_line(self.path / LOG_NAME)
        else:
            self._write_manifest()
        self._file = open(self.path / LOG_NAME, "ab")  # noqa: SIM115  # open as long as the writer is

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory and hand it to the operating system: a kill after this does not lose it."""
        if self._file is None:
            raise StoreError(f"{self.path}: the writer is closed.")
        self._file.write(trajectory.to_json().encode(errors=_ENCODING_ERRORS) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Sync the log to the disk and close it."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def __enter__(self) -> TrajectoryWriter:
        """Return the writer; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the log."""
        self.close()

    def _check_manifest(self, resume: bool) -> None:
        stored = _read_manifest(self.path)["settings"]
        if not resume:
            raise StoreError(
                f"{self.path} holds a run already: choose another folder, or pass resume=True to go on with that run."
            )
        own = json.loads(json.dumps(self.settings))
        differing = sorted(key for key in {*stored, *own} if stored.get(key) != own.get(key))
        if differing:
            said = ", ".join(f"{key}: {stored.get(key)!r} there, {own.get(key)!r} here" for key in differing)
            raise StoreError(f"{self.path} holds another run ({said}): choose another folder or the same settings.")

    def _write_manifest(self) -> None:
        temporary = self.path / (MANIFEST_NAME + ".tmp")  # one that a kill left here is written anew
        if any(entry != temporary for entry in self.path.iterdir()):
            raise StoreError(f"{self.path} is not empty and holds no run: choose a new folder.")
        manifest = json.dumps({"format": FORMAT_VERSION, "settings": self.settings}, indent=2)
        temporary.write_text(manifest + "\n", encoding="utf-8")
        temporary.replace(self.path / MANIFEST_NAME)


def read_run(path: str | Path) -> StoredRun:
    """Read a folder that a `TrajectoryWriter` wrote.

    Raises:
        StoreError: If there is no run, it has another format, or a line other than the last is damaged.
    """
    settings = _read_manifest(Path(path))["settings"]
    log = Path(path) / LOG_NAME
    trajectories = tuple(_parse_lines(log)) if log.exists() else ()
    return StoredRun(settings, trajectories, _torn_line(log))


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read the trajectories of a folder, or of a single `.jsonl` file; a torn last line is left out with a warning."""
    return list(iter_trajectories(path))


def iter_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """Read trajectories one by one, as `read_trajectories` does, without holding them all."""
    log = Path(path)
    if log.is_dir():
        _read_manifest(log)
        log = log / LOG_NAME
    if not log.exists():
        raise StoreError(f"{log} does not exist.")
    torn = _torn_line(log)
    if torn is not None:
        warnings.warn(f"{log}: the last line is torn ({torn[:60]!r}...) and left out.", stacklevel=2)
    yield from _parse_lines(log)


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest_path = folder / MANIFEST_NAME
    if not manifest_path.exists():
        raise StoreError(f"{folder} holds no run: there is no {MANIFEST_NAME} in it.{_runs_below(folder)}")
    try:
        manifest: Any = json.loads(manifest_path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no text at all
        raise StoreError(f"{manifest_path} is damaged: {error}. {_SALVAGE}") from error
    if not isinstance(manifest, dict):
        raise StoreError(f"{manifest_path} is damaged: it holds no JSON object. {_SALVAGE}")
    if manifest.get("format") != FORMAT_VERSION:
        raise StoreError(f"{folder} has format {manifest.get('format')!r}; this version reads {FORMAT_VERSION}.")
    if not isinstance(manifest.get("settings"), dict):
        raise StoreError(f"{manifest_path} is damaged: it has no settings. {_SALVAGE}")
    return manifest


def _runs_below(folder: Path) -> str:
    """Say which folders below hold runs, for one who gave the folder above them."""
    logs = [log for depth in ("*", "*/*", "*/*/*") for log in folder.glob(f"{depth}/{LOG_NAME}")]
    names = sorted(str(log.parent) for log in logs)
    if not names:
        return ""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f" There are runs below it, give one of these: {', '.join(names[:8])}{more}."


def _parse_lines(log: Path) -> Iterator[Trajectory]:
    with open(log, "rb") as lines:  # bytes: only b"\n" ends a line
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Trajectory.from_json(line.decode(errors=_ENCODING_ERRORS))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StoreError(f"{log}, line {number}: no trajectory ({type(error).__name__}: {error}).") from error


def _torn_line(log: Path) -> str | None:
    """Return what follows the last newline, or None if nothing does."""
    if not log.exists():
        return None
    with open(log, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end > 0 and b"\n" not in tail:
            start = max(0, end - 65536)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    torn = tail[tail.rfind(b"\n") + 1 :]
    return torn.decode(errors="replace") if torn else None


def _remove_torn_line(log: Path) -> str | None:
    torn = _torn_line(log)
    if torn is not None:
        with open(log, "rb+") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
    return torn
