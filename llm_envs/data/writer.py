"""Trajectories on disk: an append log that is compacted to Parquet shards, and a manifest that identifies the run.

A folder holds one run. Every finished trajectory goes to the operating system immediately, as a line of JSON in a log.
A log that has grown, and the last one when the writer closes, becomes a shard (see `folder` for the steps and `parquet`
for the form). Without pyarrow, which comes with the extra `train`, the logs stay: readers accept both.

A kill loses nothing that was written and causes no duplicates. At most it leaves a torn last line, which readers report
and a resumed writer removes. `finished` returns the finished episodes, `remaining` those still to be played.

A trajectory with an error is stored but is not finished: a resumed run replays it, and the later record replaces the
earlier one. Readers return everything else.
"""

from __future__ import annotations

import json
import threading
import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llm_envs.data.folder import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    Manifest,
    Part,
    clean,
    find_parts,
    log_name,
    parts_in,
    read_manifest,
    shard_name,
    sync_folder,
    write_manifest,
)
from llm_envs.data.lock import LOCK_NAME, FolderLock
from llm_envs.data.log import AppendLog, has_errored, read_keys, read_log, remove_torn_line, torn_line
from llm_envs.data.parquet import can_compact, read_shard, read_shard_keys, write_shard
from llm_envs.data.storage import as_path, exists, is_remote, local_path, names_in
from llm_envs.errors import InvalidConfigError, StoreError
from llm_envs.registration import load_entry_point
from llm_envs.sources.source import EpisodeSpec
from llm_envs.types import Trajectory

__all__ = [
    "FORMAT_VERSION",
    "StoredRun",
    "TrajectoryWriter",
    "check_folder",
    "finished",
    "finished_keys",
    "iter_trajectories",
    "json_settings",
    "n_records",
    "open_writer",
    "read_run",
    "read_trajectories",
    "remaining",
]

MAX_LOG_BYTES = 64 * 2**20
"""About two million tokens: a second or two of compacting, and little to parse when a run is resumed."""

UPLOAD_EVERY_S = 60.0
"""Two or three requests a minute, and at most a minute of episodes to play again after the loss of a machine."""
WRITER_GROUP = "llm_envs.writers"
"""Entry-point group: `storage` is a `TrajectoryWriter` for object storage that also takes `upload_every_s`."""

EpisodeKey = tuple[str, int]
"""(group_id, member): the key of an episode."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was found on disk."""

    settings: Mapping[str, Any]
    """The writer's settings: environments, seeds, limits, the policy's name."""
    trajectories: tuple[Trajectory, ...]
    """In the order of finishing."""
    torn: str | None
    """The beginning of a last line that a kill cut off; None if the log is complete."""


class TrajectoryWriter(AbstractContextManager["TrajectoryWriter"]):
    """Appends trajectories to a folder. Pass `write` to a collector as `on_trajectory`.

    Only one writer can hold a folder at a time. A killed process releases it.

    Args:
        path: The folder; created if missing.
        settings: The settings that identify the run, as JSON types; stored in the manifest.
        resume: Continue the run in the folder, if there is one. Its settings must be the same; a torn last line is
            removed.
        max_log_bytes: A log of this size is compacted, in another thread, while the next log is written.

    Raises:
        StoreError: If the folder holds another run, or anything else, or is being written to.
        InvalidConfigError: If the settings are not JSON types.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
        max_log_bytes: int = MAX_LOG_BYTES,
    ) -> None:
        if max_log_bytes < 1:
            raise InvalidConfigError(f"max_log_bytes is {max_log_bytes!r}; it must be at least 1.")
        self.path = local_path(path, "a TrajectoryWriter's log")
        self.settings = json_settings(settings or {})
        self.max_log_bytes = max_log_bytes
        self.removed: str | None = None
        """A torn last line that resuming removed."""
        self._mutex = threading.Lock()
        self._compacting = threading.Lock()
        self._threads: list[threading.Thread] = []
        try:
            self._begin(resume)
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{self.path} is a file, or is inside one: a run is a folder, choose another.") from error
        except StoreError:
            raise
        except OSError as error:
            named = f": {error.filename}" if error.filename not in (None, str(self.path)) else ""
            reason = f"{error.strerror}{named}"
            raise StoreError(f"{self.path} cannot be written to ({reason}): choose another folder.") from error
        self._closed = False
        self._finalizer = weakref.finalize(self, self._lock.release)

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory and hand it to the operating system: a kill after this call does not lose it.

        Raises:
            StoreError: If the writer is closed or the system refuses; earlier trajectories are safe.
        """
        with self._mutex:
            if self._closed:
                raise StoreError(f"{self.path}: the writer is closed.")
            self._log.append(trajectory)
            if self._log.size >= self.max_log_bytes and can_compact():
                thread = threading.Thread(target=self._compact_quietly, args=self._rotate(), name="llm-envs-store")
                self._threads = [*(t for t in self._threads if t.is_alive()), thread]
                thread.start()

    def compact(self) -> None:
        """Turn everything written so far into shards, and wait for it. A log that cannot be compacted stays."""
        with self._mutex:
            if self._closed:
                raise StoreError(f"{self.path}: the writer is closed.")
            _, log = self._rotate()
        log.close()
        self._compact_all()

    def close(self) -> None:
        """Sync the data to disk, compact it and release the folder. Harmless when repeated."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        try:
            self._log.close()
            for thread in self._threads:
                thread.join()
            self._compact_all()
        finally:
            if not any(thread.is_alive() for thread in self._threads):  # after an interrupt, a thread may still write
                self._finalizer()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self, resume: bool) -> None:
        """Lock the folder, clean it up and open a log."""
        self.path.mkdir(parents=True, exist_ok=True)
        check_folder(self.path, self.settings, resume=resume)  # before anything is written to an unrelated folder
        self._lock = FolderLock(self.path)
        try:
            check_folder(self.path, self.settings, resume=resume)
            self._manifest = self._open()
            self._number, self._log = self._next_log()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> Manifest:
        """Clean up the folder and return its manifest."""
        if not (self.path / MANIFEST_NAME).exists():
            write_manifest(self.path, Manifest(self.settings))
            return read_manifest(self.path)
        manifest = read_manifest(self.path)
        find_parts(self.path, manifest)
        if manifest.version != FORMAT_VERSION:
            write_manifest(self.path, manifest)
        clean(self.path, manifest)
        torn = [remove_torn_line(part.path) for part in find_parts(self.path, manifest) if part.counts is None]
        self.removed = next((line for line in reversed(torn) if line is not None), None)
        return manifest

    def _next_log(self) -> tuple[int, AppendLog]:
        """Return the log to write to: the last part if that is a log, else a new one."""
        parts = find_parts(self.path, self._manifest)
        number = 0 if not parts else parts[-1].number + (parts[-1].counts is not None)
        return number, AppendLog(self.path / log_name(number))

    def _rotate(self) -> tuple[int, AppendLog]:
        """Begin a new log; return the old one, which is still open."""
        done = self._number, self._log
        log = AppendLog(self.path / log_name(self._number + 1))
        self._number, self._log = self._number + 1, log
        return done

    def _compact_quietly(self, number: int, log: AppendLog) -> None:
        """Compact a full log in the background. A failure is retried, and reported, when the writer closes."""
        try:
            log.close()
            self._compact(number)
        except Exception:
            pass

    def _compact_all(self) -> None:
        """Compact every log except the one being written; warn about those that cannot be compacted."""
        for part in find_parts(self.path, self._manifest):
            if part.counts is not None or (part.path == self._log.path and not self._closed):
                continue
            try:
                self._compact(part.number)
            except Exception as error:
                warnings.warn(
                    f"{part.path} could not be compacted and stays as it is; nothing is lost ({error}).", stacklevel=3
                )

    def _compact(self, number: int) -> None:
        """Turn one closed log into a shard. The order of the steps makes a kill at any moment safe; see `folder`."""
        log, shard = self.path / log_name(number), self.path / shard_name(number)
        with self._compacting:
            if number in self._manifest.shards:
                return
            if log.stat().st_size == 0:
                log.unlink()
                return
            if not can_compact():
                return
            if torn_line(log) is not None:
                raise StoreError("its last line is torn; resuming the run removes it")
            counts = write_shard(read_log(log), shard)
            sync_folder(self.path)
            manifest = self._manifest.with_shard(number, counts)
            write_manifest(self.path, manifest)
            self._manifest = manifest
            log.unlink()


def open_writer(path: str | Path, *, upload_every_s: float = UPLOAD_EVERY_S, **others: Any) -> TrajectoryWriter:
    """Return the writer of a run's folder, here or on object storage; `others` are arguments of `TrajectoryWriter`."""
    if not is_remote(path):
        return TrajectoryWriter(path, **others)
    make: Callable[..., TrajectoryWriter] = load_entry_point(WRITER_GROUP, "storage", str(path))
    return make(path, upload_every_s=upload_every_s, **others)


def check_folder(path: str | Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
    """Check that a run with these settings may be written to a folder, without touching it; see `TrajectoryWriter`.

    Raises:
        StoreError: If not.
    """
    folder = as_path(path)
    try:
        is_run = exists(folder / MANIFEST_NAME)
    except StoreError:
        raise
    except OSError as error:  # a name that is too long, or a folder without permission
        raise StoreError(f"{folder} cannot be read ({error.strerror}): choose another folder.") from error
    if not is_run:
        names = names_in(folder)
        if MANIFEST_NAME in names or any(parts_in(folder)):
            raise StoreError(
                f"{folder / MANIFEST_NAME} is missing, or a link to nothing, beside the files of a run: put it back, "
                "or choose a new folder."
            )
        own = {LOCK_NAME, LOCK_NAME + ".tmp", MANIFEST_NAME + ".tmp"}  # a kill may have left these
        if any(name not in own for name in names):
            raise StoreError(f"{folder} is not empty and holds no run: choose a new folder.")
        return
    stored = read_manifest(folder).settings
    if not resume:
        raise StoreError(
            f"{folder} holds a run already: choose another folder, or continue that run (resume=True, --resume)."
        )
    given = json_settings(settings)
    differing = sorted(key for key in {*stored, *given} if stored.get(key) != given.get(key))
    if differing:
        differences = ", ".join(f"{key}: {_shown(stored, key)} there, {_shown(given, key)} here" for key in differing)
        raise StoreError(f"{folder} holds another run ({differences}): choose another folder or the same settings.")


def read_run(path: str | Path) -> StoredRun:
    """Read a folder that a `TrajectoryWriter` wrote.

    Raises:
        StoreError: If the folder has no run, the run has another format, or a file of it is damaged.
        MissingExtraError: If the run has shards and pyarrow is not installed.
    """
    folder = as_path(path)
    manifest = read_manifest(folder)
    parts = find_parts(folder, manifest)
    torn = _torn(parts[-1]) if parts else None
    return StoredRun(manifest.settings, tuple(_read(parts)), torn)


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read the trajectories of a folder, or of one of its `.jsonl` or `.parquet` files, in the order of finishing.

    From a trainer's `output_dir` it reads all processes, one after the other.

    A torn last line is skipped with a warning. An errored trajectory that was replayed later is skipped silently.

    Raises:
        StoreError: If the folder has no run, the run has another format, or a file of it is damaged.
        MissingExtraError: If there are shards and pyarrow is not installed.
    """
    return list(iter_trajectories(path))


def iter_trajectories(path: str | Path) -> Iterator[Trajectory]:
    """Read trajectories one by one, as `read_trajectories` does, without holding them all."""
    parts = [part for folder in _process_folders(as_path(path)) for part in _parts(folder)]
    for part in parts:
        if (torn := _torn(part)) is not None:
            warnings.warn(f"{part.path}: the last line is torn ({torn[:60]!r}...) and was skipped.", stacklevel=2)
    yield from _read(parts)


def n_records(path: str | Path) -> int:
    """Return how many trajectories a folder or file has, replayed ones too; those in shards are not read."""
    parts = _parts(as_path(path))
    return sum(part.counts[0] if part.counts else sum(1 for _ in _keys([part])) for part in parts)


def finished(path: str | Path) -> frozenset[EpisodeKey]:
    """Return (group_id, member) of each episode in a folder that need not be replayed: all without an error."""
    return frozenset((group, member) for group, member, is_errored in _keys(_parts(as_path(path))) if not is_errored)


def finished_keys(path: str | Path) -> FinishedKeys:
    """Return what `finished` does, for runs of millions of episodes: in a bit or two for each."""
    return FinishedKeys((group, member) for group, member, is_errored in _keys(_parts(as_path(path))) if not is_errored)


class FinishedKeys:
    """Keys of episodes, which answers whether a key is among them. Groups of consecutive numbers take a bit each.

    Args:
        keys: The keys; repeated ones count once.
    """

    def __init__(self, keys: Iterable[EpisodeKey]) -> None:
        self._bits: dict[EpisodeKey, int] = {}
        for key in keys:
            block, bit = _block_of(key)
            self._bits[block] = self._bits.get(block, 0) | 1 << bit

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._bits.values())

    def __contains__(self, key: Any) -> bool:
        block, bit = _block_of(key)
        return bool(self._bits.get(block, 0) >> bit & 1)


def _block_of(key: EpisodeKey) -> tuple[EpisodeKey, int]:
    """Return the block and the bit of a key: group "0-041999" is bit 999 of "0-041"; "other" is bit 1000 of itself."""
    group, member = key
    last = group[-3:]
    if len(last) == 3 and last.isascii() and last.isdigit():
        return (group[:-3], member), int(last)
    return key, 1000


def remaining(
    groups: Iterable[Sequence[EpisodeSpec]], finished: Container[EpisodeKey]
) -> list[tuple[EpisodeSpec, ...]]:
    """Return the specs that are not finished, by group, without finished groups.

    Args:
        groups: Each as the specs of its members.
        finished: The result of `finished`.
    """
    left = [tuple(spec for spec in specs if (spec.group_id, spec.member) not in finished) for specs in groups]
    return [specs for specs in left if specs]


def json_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they come back from a manifest; NumPy numbers become numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{value!r:.80} is not a JSON type")

    try:
        taken: dict[str, Any] = json.loads(json.dumps(dict(settings), default=plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(f"the settings of a run must be JSON types: {error}.") from error
    return taken


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "not set"


def _process_folders(path: Path) -> list[Path]:
    """Return the folders of a trainer's processes; of anything else, the path itself."""
    if is_remote(path) or not path.is_dir() or (path / MANIFEST_NAME).exists():
        return [path]
    found = [folder for folder in (path / "trajectories").glob("process-*") if (folder / MANIFEST_NAME).exists()]
    return sorted(found, key=lambda folder: (len(folder.name), folder.name)) or [path]


def _parts(path: Path) -> list[Part]:
    """Return the parts of a folder, or a single file as one part."""
    if path.suffix not in (".jsonl", ".parquet") if is_remote(path) else path.is_dir():
        return find_parts(path, read_manifest(path))
    if not exists(path):
        raise StoreError(f"{path} does not exist: give the folder of a run.")
    return [Part(0, path)]


def _read(parts: Sequence[Part]) -> Iterator[Trajectory]:
    """Read the parts, without errored trajectories that were replayed later."""
    left_out = _replayed_later(parts)
    trajectories = (trajectory for part in parts for trajectory in _read_part(part))
    for place, trajectory in enumerate(trajectories):
        if place not in left_out:
            yield trajectory


def _replayed_later(parts: Sequence[Part]) -> set[int]:
    """Return the indices, over all parts, of errored trajectories with a later record of the same episode."""
    if not any(_may_have_errored(part) for part in parts):
        return set()
    last: dict[EpisodeKey, int] = {}
    errored: list[tuple[int, EpisodeKey]] = []
    for place, (group, member, is_errored) in enumerate(_keys(parts)):
        last[group, member] = place
        if is_errored:
            errored.append((place, (group, member)))
    return {place for place, key in errored if last[key] > place}


def _may_have_errored(part: Part) -> bool:
    if part.counts is not None:
        return part.counts[1] > 0
    return part.path.suffix == ".parquet" or not exists(part.path) or has_errored(part.path)


def _read_part(part: Part) -> Iterator[Trajectory]:
    where = _now(part)
    if where.suffix == ".parquet":
        return read_shard(where, part.counts[0] if part.counts else None)
    return read_log(where)


def _keys(parts: Sequence[Part]) -> Iterator[tuple[str, int, bool]]:
    for part in parts:
        where = _now(part)
        if where.suffix == ".parquet":
            yield from read_shard_keys(where, part.counts[0] if part.counts else None)
        else:
            yield from read_keys(where)


def _torn(part: Part) -> str | None:
    is_log = part.path.suffix != ".parquet" and exists(part.path)
    return torn_line(part.path) if is_log else None


def _now(part: Part) -> Path:
    """Return the present file of a part: a log may have been compacted since it was found."""
    if part.counts is not None:
        return part.path
    shard = part.path.with_name(shard_name(part.number))
    return shard if not exists(part.path) and exists(shard) else part.path
