"""New weights for servers: full checkpoints in files, what has changed since, or copies in memory.

Files appear under their names only when they are complete. A checkpoint stays until all servers have had the chance to
load the next one, because a server that comes back still has to load it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_envs.policies.vllm.adapters import Adapter, write_adapter
from llm_envs.policies.vllm.checkpoints import Shapes, dtype_of, tensor_dtypes, tensor_shapes, write_checkpoint
from llm_envs.policies.vllm.deltas import Delta, encode_delta, write_delta

__all__ = ["GROUP_TRANSPORTS", "TRANSPORTS", "ServedCheckpoint", "WeightStore", "is_ours", "new_tag", "version_of"]

_PREFIX = "llm-envs-weights-"
_MAX_IN_DELTAS = 0.5
"""All deltas may have this share of a checkpoint's bytes; a restarted server loads the checkpoint and all of them."""

GROUP_TRANSPORTS = ("nccl", "gloo")
TRANSPORTS = ("checkpoint", "delta", *GROUP_TRANSPORTS)
"""How new weights reach servers."""

CheckFn = Callable[[Shapes], None]


@dataclass(frozen=True)
class ServedCheckpoint:
    """Weights that servers have: a full checkpoint, and the changes since."""

    path: Path | None
    """None: in no file, but in the memory of the process that sends them."""
    version: int
    whole_tag: str
    """The servers' name for the full checkpoint."""
    deltas: tuple[Delta, ...] = ()

    @property
    def tag(self) -> str:
        """By which the servers know these weights."""
        return self.deltas[-1].tag if self.deltas else self.whole_tag

    @property
    def is_whole(self) -> bool:
        """Whether a file has all of these weights."""
        return self.path is not None and not self.deltas


def new_tag(version: int) -> str:
    """Return a name for weights that no other client gives."""
    return f"llm-envs {version} {uuid.uuid4().hex}"


def is_ours(tag: str | None) -> bool:
    """Return whether a name is from `new_tag`: a client has changed these weights."""
    return tag is not None and tag.startswith("llm-envs ")


def version_of(tag: str) -> int:
    """Return the version in a name from `new_tag`."""
    return int(tag.split()[1])


class WeightStore:
    """Writes weights.

    Args:
        folder: Which we can write and all servers can read under the same path. None: a temporary one, in shared memory
            if the system has it.
        transport: One of `TRANSPORTS`. With all but "checkpoint", copies of the last weights are kept in memory. With
            "delta" only what has changed is written, where that is little; otherwise weights are written only for
            `write_checkpoint`.
    """

    def __init__(self, folder: str | Path | None, transport: str = "checkpoint") -> None:
        self._given = None if folder is None else Path(folder)
        self._is_memory, self._is_sparse = transport in GROUP_TRANSPORTS, transport == "delta"
        self._temporary: Path | None = None
        self._lock: int | None = None
        self._sent: tuple[str, dict[str, Any]] | None = None  # with deltas: the tag of the last weights, and copies
        self._like: Path | None = None
        self._written: list[Path] = []
        self._adapters: list[Path] = []

    def write(
        self,
        named_parameters: Iterable[tuple[str, Any]],
        version: int,
        now: ServedCheckpoint | None,
        *,
        like: Path | None,
        computed: str | None,
        sparse_allowed: bool,
        check_fn: CheckFn,
    ) -> ServedCheckpoint:
        """Write weights: a delta to the present ones if that is possible and small, else a full checkpoint.

        Args:
            named_parameters: Pairs of name and tensor.
            version: Their version.
            now: The weights that servers have.
            like: The served checkpoint, for its configuration and dtypes.
            computed: The servers' dtype ("torch.bfloat16"); None if unknown.
            sparse_allowed: Whether all servers take deltas.
            check_fn: Raises if the servers cannot have weights of these shapes. Nothing is left then.
        """
        self._like = like
        if not (self._is_sparse or self._is_memory):
            return self._write_whole(named_parameters, version, new_tag(version), check_fn)
        kinds = tensor_dtypes(like) if like is not None else {}
        tensors = {
            name: value.detach().to("cpu", dtype_of(kinds.get(name), computed, value), copy=True).contiguous()
            for name, value in named_parameters
        }
        checkpoint: ServedCheckpoint | None = None
        if self._is_memory:
            check_fn({name: tuple(value.shape) for name, value in tensors.items()})
            checkpoint = ServedCheckpoint(None, version, new_tag(version))
        elif sparse_allowed and now is not None:
            checkpoint = self._write_delta(tensors, version, now)
        checkpoint = checkpoint or self._write_whole(tensors.items(), version, new_tag(version), check_fn)
        self._sent = checkpoint.tag, tensors
        return checkpoint

    def tensors(self, checkpoint: ServedCheckpoint) -> dict[str, Any] | None:
        """Return copies of these weights, on the CPU; None if this process does not have them."""
        return self._sent[1] if self._sent is not None and self._sent[0] == checkpoint.tag else None

    def write_checkpoint(self, checkpoint: ServedCheckpoint) -> ServedCheckpoint | None:
        """Write the same weights as a full checkpoint; None if this process does not have them."""
        if (tensors := self.tensors(checkpoint)) is None:
            return None
        return self._write_whole(tensors.items(), checkpoint.version, checkpoint.tag)

    def forget(self) -> None:
        """Forget the last weights, because servers get others."""
        self._sent = None

    def write_adapter(self, tensors: Mapping[str, Any], version: int) -> Adapter:
        """Write an adapter; see `adapters.write_adapter`."""
        path = (self._folder / f"adapter-{version}-{uuid.uuid4().hex[:8]}").resolve()
        self._adapters.append(path)
        write_adapter(tensors, path)
        return Adapter(path, version, new_tag(version))

    def delete_adapter(self, adapter: Adapter) -> None:
        """Delete an adapter if it was written here."""
        if adapter.path in self._adapters:
            self._adapters.remove(adapter.path)
            shutil.rmtree(adapter.path, ignore_errors=True)

    def keep_only(self, checkpoint: ServedCheckpoint | None) -> None:
        """Delete what was written, except this checkpoint."""
        kept = [] if checkpoint is None else [path for path in self._written if path == checkpoint.path]
        for path in self._written:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
        self._written = kept

    def close(self) -> None:
        """Delete everything that was written."""
        self.keep_only(None)
        for path in self._adapters:
            shutil.rmtree(path, ignore_errors=True)
        self._adapters = []
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_whole(
        self,
        named_parameters: Iterable[tuple[str, Any]],
        version: int,
        tag: str,
        check_fn: CheckFn | None = None,
    ) -> ServedCheckpoint:
        path = (self._folder / f"version-{version}-{uuid.uuid4().hex[:8]}").resolve()
        self._written.append(path)
        try:
            write_checkpoint(named_parameters, path, self._like)
            if check_fn is not None:
                check_fn(tensor_shapes(path))
        except BaseException:
            for left in (path.with_name(path.name + ".partial"), path):
                shutil.rmtree(left, ignore_errors=True)
            raise
        return ServedCheckpoint(path, version, tag)

    def _write_delta(self, tensors: Mapping[str, Any], version: int, now: ServedCheckpoint) -> ServedCheckpoint | None:
        if now.path is None or self._sent is None or self._sent[0] != now.tag:
            return None
        n_whole = sum(value.numel() * value.element_size() for value in tensors.values())
        room = int(_MAX_IN_DELTAS * n_whole) - sum(delta.n_bytes for delta in now.deltas)
        data = encode_delta(self._sent[1], tensors, max_bytes=room)
        if data is None:
            return None
        delta = write_delta(data, now.path / f"delta-{len(now.deltas) + 1}", new_tag(version))
        return replace(now, version=version, deltas=(*now.deltas, delta))

    @property
    def _folder(self) -> Path:
        if self._given is not None:
            return self._given
        if self._temporary is None:
            shared_memory = Path("/dev/shm")  # avoids the disk, if the system has it
            base = shared_memory if shared_memory.is_dir() else None
            self._temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            self._lock = _locked(self._temporary)
            self._temporary.mkdir(exist_ok=True)  # another process may have taken it for one that was left
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
            for left in self._temporary.parent.glob(f"{_PREFIX}*"):  # by a process that was killed
                with suppress(OSError):
                    if left.stat().st_uid == os.getuid() and (lock := _locked(left)) is not None:
                        shutil.rmtree(left, ignore_errors=True)
                        os.close(lock)
        return self._temporary


def _locked(folder: Path) -> int | None:
    """Lock a folder for as long as this process lives; None if another process has locked it."""
    import fcntl  # Windows has neither this module nor servers

    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
