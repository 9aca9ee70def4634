"""A run on object storage, which has no append, no atomic rename and no locks.

The writer appends each finished trajectory to a log on this machine, the spool, as `TrajectoryWriter` does. Every
`upload_every_s` seconds, what was appended since becomes one Parquet shard on the storage. Readers see the same folder
as of a local run, with shards only.

Invariants:
1. Objects are written atomically. A shard never changes: its number is above the number of every earlier shard.
2. Only the manifest decides which shards count. It is put after its shard. A kill in between leaves a shard that does
   not count; readers skip it, and the next writer removes it.
3. A log of the spool is removed only after the manifest lists its shard. A kill in between leaves a log whose episodes
   are stored already; the writer that resumes on this machine drops these and uploads the others.
4. So an episode that was finished is lost only with its machine, and then only if it finished in the last
   `upload_every_s` seconds plus the time of an upload. Episodes depend on their seeds, so a resumed run plays the lost
   ones again, and none twice.
5. One writer at a time. On one machine the operating system's lock on the spool makes sure of it. Between machines an
   object with the owner's name is the lock; it is rewritten at every upload. Another writer takes it over only after it
   has not changed for `lease_s`, so no clocks are compared.
6. A writer checks that the lock is its own before it puts a manifest, and stops if not.

Not guaranteed: a writer that is suspended between the check of 6 and the put, for longer than `lease_s`, can replace
its successor's manifest once. The successor puts its own again at its next upload and when it closes, and its shards
have other numbers, so only readers in between miss shards. Where the storage cannot refuse to replace an object (`hf://`,
Azure), two writers that start in the same moment both succeed until their first upload, where one of them stops.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llm_envs.data.folder import (
    MANIFEST_NAME,
    Manifest,
    log_name,
    manifest_text,
    parts_in,
    read_manifest,
    shard_name,
)
from llm_envs.data.lock import LOCK_NAME, FolderLock
from llm_envs.data.log import AppendLog, read_log, remove_torn_line
from llm_envs.data.parquet import can_compact, write_shard
from llm_envs.data.storage import as_path, exists, put, reaching
from llm_envs.data.writer import MAX_LOG_BYTES, UPLOAD_EVERY_S, check_folder, finished_keys, json_settings
from llm_envs.errors import InvalidConfigError, MissingExtraError, StoreError
from llm_envs.types import Trajectory

__all__ = ["RemoteWriter"]

_LEASES = 2.5
"""A lock counts for this many uploads, so one that is late or fails does not give the run away."""
_GAP = 1000
"""After a lock was taken over, shards are numbered from this much higher: its old owner may still put one."""


class RemoteWriter(contextlib.AbstractContextManager["RemoteWriter"]):
    """Appends trajectories to a run on object storage; the interface is `TrajectoryWriter`'s.

    An upload that fails is tried again at the next one, and the episodes stay on this machine meanwhile.

    Args:
        path: The folder, such as "s3://bucket/runs/a".
        settings: The settings that identify the run, as JSON types.
        resume: Continue the run in the folder, if there is one. If another machine's writer was killed, this waits
            until its lock has expired.
        max_log_bytes: Largest size of a log on this machine before it becomes a shard.
        upload_every_s: Seconds between two uploads.

    Raises:
        StoreError: If the folder holds another run, or anything else, is being written to, or cannot be reached.
        InvalidConfigError: If a setting is wrong.
        MissingExtraError: If the storage's driver or pyarrow is missing.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
        max_log_bytes: int = MAX_LOG_BYTES,
        upload_every_s: float = UPLOAD_EVERY_S,
    ) -> None:
        if max_log_bytes < 1 or not 0 < upload_every_s < float("inf"):
            raise InvalidConfigError(f"{max_log_bytes=}, {upload_every_s=}: they must be at least 1 and above 0.")
        if not can_compact():
            raise MissingExtraError(f"{path}: a run on object storage needs pyarrow: pip install 'llm-envs[cluster]'.")
        self.path, self.settings = as_path(path), json_settings(settings or {})
        self.max_log_bytes, self.upload_every_s = max_log_bytes, upload_every_s
        self.removed: str | None = None
        """A torn last line in the spool, left by a kill, that resuming removed."""
        check_folder(self.path, self.settings, resume=resume)
        self._spool = _Spool(self.path, self.settings, resume=resume)
        self._lock = _RemoteLock(self.path / LOCK_NAME, self._spool.owner, _LEASES * upload_every_s)
        self._error: StoreError | None = None
        self._mutex, self._uploading, self._wake = threading.Lock(), threading.Lock(), threading.Event()
        try:
            self._begin(resume)
        except BaseException:
            self._lock.release()
            self._spool.close()
            raise
        self._closed = self._is_left = False
        self._thread = threading.Thread(target=self._run, name="llm-envs-upload", daemon=True)
        self._thread.start()

    def write(self, trajectory: Trajectory) -> None:
        """Append one trajectory to the spool: a kill of the process after this call does not lose it.

        Raises:
            StoreError: If the writer is closed, the system refuses, or another writer has taken the run over.
        """
        with self._mutex:
            if self._closed:
                raise StoreError(f"{self.path}: the writer is closed.")
            if self._error is not None:
                raise self._error
            self._spool.log.append(trajectory)
            if self._spool.log.size >= self.max_log_bytes:
                self._spool.rotate()
                self._wake.set()

    def compact(self) -> None:
        """Upload everything written so far, and wait for it.

        Raises:
            StoreError: If that fails; nothing is lost.
        """
        with self._mutex:
            if self._closed:
                raise StoreError(f"{self.path}: the writer is closed.")
        self._upload_all()

    def close(self) -> None:
        """Upload the rest and release the folder. Harmless when repeated.

        Raises:
            StoreError: If the rest cannot be uploaded. It stays in the spool, for a resumed run on this machine.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        try:
            self._thread.join()
        except BaseException:  # an interrupt; the running upload continues, and `_run` releases the spool after it
            self._is_left = True
            if not self._thread.is_alive():
                self._spool.close()
            raise
        try:
            self._upload_all()
            if read_manifest(self.path) != self._manifest:  # an earlier owner, suspended for long, has replaced it
                self._put_manifest(self._manifest)
            self._lock.release()
            self._spool.remove()
        except StoreError as error:
            if self._spool.logs():
                raise StoreError(
                    f"{error} Episodes that could not be uploaded are in {self._spool.folder}: resume the run on this "
                    "machine, and it uploads them."
                ) from error
            raise
        finally:
            self._spool.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self, resume: bool) -> None:
        """Lock the folder, remove what does not count, and upload what an earlier process left in the spool."""
        took_over = self._lock.acquire()
        check_folder(self.path, self.settings, resume=resume)
        if exists(self.path / MANIFEST_NAME):
            self._manifest = read_manifest(self.path)
        else:
            self._put_manifest(Manifest(self.settings))
        logs, shards = parts_in(self.path)
        self._next = max([*logs, *shards, *self._manifest.shards], default=-1) + (_GAP if took_over else 1)
        for number in shards - {*self._manifest.shards}:
            with reaching(self.path), contextlib.suppress(FileNotFoundError):
                (self.path / shard_name(number)).unlink()
        left = self._spool.logs()
        torn = [remove_torn_line(log) for log in left]
        self.removed = next((line for line in reversed(torn) if line is not None), None)
        self._spool.begin()
        if left:
            stored = finished_keys(self.path)
            self._upload(keep=lambda t: (t.group_id, t.member) not in stored)

    def _run(self) -> None:
        """Upload from time to time until the writer is closed."""
        has_warned = False
        while not self._closed and self._error is None:
            self._wake.wait(self.upload_every_s)
            self._wake.clear()
            if self._closed:
                break
            try:
                self._upload_all()
            except _LostLockError as error:
                self._error = error  # `write` raises it
            except Exception as error:
                if not has_warned:
                    warnings.warn(f"an upload failed and is tried again; nothing is lost: {error}", stacklevel=1)
                has_warned = True
        if self._is_left:
            self._spool.close()

    def _upload_all(self) -> None:
        with self._uploading:
            self._upload()

    def _upload(self, keep: Callable[[Trajectory], bool] = lambda t: True) -> None:
        """Turn each log of the spool into a shard on the storage. The steps follow the order of the invariants."""
        self._lock.refresh()
        with self._mutex:
            self._spool.rotate()
        for log in [log for log in self._spool.logs() if log != self._spool.log.path]:
            temporary = log.with_suffix(".parquet")
            counts = write_shard(filter(keep, read_log(log)), temporary)
            if counts[0]:
                number, self._next = self._next, self._next + 1
                put(self.path / shard_name(number), temporary)
                self._lock.check()
                self._put_manifest(self._manifest.with_shard(number, counts))
            temporary.unlink()
            log.unlink()

    def _put_manifest(self, manifest: Manifest) -> None:
        put(self.path / MANIFEST_NAME, manifest_text(manifest).encode())
        self._manifest = manifest


class _Spool:
    """The logs of one remote run on this machine, and the name of their owner.

    The folder is in `LLM_ENVS_SPOOL`, or else in the user's cache. Its name is made of the run's address and settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        root = os.environ.get("LLM_ENVS_SPOOL") or f"{cache}/llm-envs/spool"
        key = json.dumps([str(path), settings], sort_keys=True)
        name = f"{socket.gethostname()}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        self.folder = Path(root).expanduser() / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be created ({error.strerror}): set LLM_ENVS_SPOOL to a folder for episodes that "
                "are not uploaded yet."
            ) from error
        self._lock = FolderLock(self.folder)
        owner = self.folder / "owner"
        if not owner.exists():
            owner.write_text(f"{socket.gethostname()} {secrets.token_hex(8)}", encoding="utf-8")
        self.owner = owner.read_text(encoding="utf-8")
        if not resume and (left := self.logs()):
            self._lock.release()
            raise StoreError(
                f"{left[0].parent} has episodes of an earlier run at {path} that were never uploaded: resume that run "
                "(resume=True, --resume), or move the folder elsewhere."
            )

    def begin(self) -> None:
        """Open a new log, numbered after an earlier process's logs."""
        self._number = max((int(log.stem[4:]) for log in self.logs()), default=-1) + 1
        self.log = AppendLog(self.folder / log_name(self._number))

    def rotate(self) -> None:
        """Close the log if it has anything, and open the next one."""
        if self.log.size:
            self.log.close()
            self.begin()

    def logs(self) -> list[Path]:
        return [log for log in sorted(self.folder.glob("log-*.jsonl")) if log.stat().st_size]

    def close(self) -> None:
        """Let another process have the spool."""
        if hasattr(self, "log"):
            self.log.close()
        self._lock.release()

    def remove(self) -> None:
        """Remove the folder, whose episodes are all uploaded."""
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _LostLockError(StoreError):
    """Another writer has the run."""


class _RemoteLock:
    """An object with the name of the writer. It is rewritten at each upload; see invariants 5 and 6.

    Args:
        path: The object.
        owner: The name of this machine's writer, which a process that resumes on this machine has too.
        lease_s: Seconds without a change after which another writer may take it over.
    """

    def __init__(self, path: Path, owner: str, lease_s: float) -> None:
        self._path, self._owner, self._lease_s = path, owner, lease_s
        self._beat, self._is_held = secrets.token_hex(4), False

    def acquire(self) -> bool:
        """Take the lock; return whether it was another writer's, which has expired.

        Raises:
            StoreError: If the other writer is alive.
        """
        first = self._read()
        took_over = first is not None and first.get("owner") != self._owner
        if first is not None and took_over and not self._has_expired(first):
            return self.acquire()
        if first is None:
            try:
                put(self._path, self._content(), only_new=True)
            except FileExistsError:
                return self.acquire()
        self._is_held = True
        self.refresh(check=first is None)
        return took_over

    def refresh(self, check: bool = True) -> None:
        """Show that this writer is alive."""
        if check:
            self.check()
        self._beat = secrets.token_hex(4)
        put(self._path, self._content())

    def check(self) -> None:
        """Raise if the lock is another writer's."""
        found = self._read()
        if found is None or found.get("owner") != self._owner:
            by = "removed" if found is None else f"taken over by {found.get('owner')}"
            raise _LostLockError(
                f"{self._path} was {by}: this writer stops. Its other episodes are still on this machine; resume "
                "the run when the other writer has ended."
            )

    def release(self) -> None:
        """Remove the lock if it is this writer's."""
        with contextlib.suppress(StoreError, FileNotFoundError), reaching(self._path):
            found = self._read() if self._is_held else None
            self._is_held = False
            if found is not None and found.get("owner") == self._owner:
                self._path.unlink()

    def _has_expired(self, first: Mapping[str, Any]) -> bool:
        """Watch another writer's lock until it has not changed for its lease; return False if it goes away."""
        lease_s, owner = float(first.get("lease_s", self._lease_s)), str(first.get("owner"))
        warnings.warn(
            f"{self._path}: {owner} wrote this run and did not end in order. Waiting {lease_s:.0f} s to see whether it "
            "still writes.",
            stacklevel=5,
        )
        until = time.monotonic() + lease_s
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, max(0.05, lease_s / 20)))
            found = self._read()
            if found is None:
                return False
            if found != first:
                raise StoreError(
                    f"{self._path.parent} is being written by {found.get('owner')}: choose another folder, or wait "
                    "until that writer has ended."
                )
        return True

    def _content(self) -> bytes:
        data = {"owner": self._owner, "process": os.getpid(), "lease_s": self._lease_s, "beat": self._beat}
        return json.dumps(data).encode()

    def _read(self) -> dict[str, Any] | None:
        try:
            with reaching(self._path):
                remote: Any = self._path
                remote.fs.invalidate_cache()  # S3 refuses to read the version of an earlier listing
                data: Any = json.loads(remote.read_bytes())
        except FileNotFoundError:
            return None
        return data if isinstance(data, dict) else {}
