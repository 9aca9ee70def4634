"""Paths of runs, here and on object storage: `s3://`, `gs://`, `hf://` and whatever else fsspec has a driver for.

A path with a protocol becomes a `UPath` (universal_pathlib), which has pathlib's interface; any other is a `Path`.
Reading is the same for both. This module has the differences: errors of drivers, and writing an object atomically.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from llm_envs.errors import LLMEnvsError, MissingExtraError, StoreError, extra_needed, public_address

__all__ = ["as_path", "exists", "is_remote", "local_path", "names_in", "put", "reaching"]

_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PUT_WHOLE = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "memory"}
"""Protocols whose objects appear atomically. On others, a file is written under another name and then moved."""
_REFUSES = {"s3", "s3a", "gs", "gcs", "memory", "file", "local"}
"""Protocols whose storage can refuse to replace an object, and whose drivers ask it to."""


def as_path(where: str | Path) -> Path:
    """Return where a run is: a `Path`, or for text with a protocol a `UPath`, which has the same interface.

    Raises:
        MissingExtraError: If universal_pathlib or the driver of the protocol is not installed; names what to install.
        StoreError: If no driver has this protocol, or it cannot be set up.
    """
    if not isinstance(where, str) or not _PROTOCOL.match(where):
        return Path(where) if isinstance(where, str) else where
    with extra_needed(f"{where}: object storage needs universal_pathlib: pip install 'llm-envs[cluster]'."):
        from upath import UPath
    if re.match(r"[^/]+://[^/@]*:[^/]*@", where):
        raise StoreError(
            f"{public_address(where)}: its address has a password, which errors and stored settings would repeat. "
            "Give it to the storage's driver (its environment variables, or fsspec's configuration)."
        )
    with reaching(where):
        path = UPath(where)
        path.fs.invalidate_cache()  # what other processes have written since must be seen
    return cast(Path, path)


def local_path(where: str | Path, what: str) -> Path:
    """Return a local path.

    Args:
        where: The path.
        what: The thing to write there, for the error.

    Raises:
        StoreError: If the path has a protocol.
    """
    if is_remote(where):
        raise StoreError(f"{where} is on object storage, and {what} can only be written to a local folder: give one.")
    return Path(where)


def is_remote(path: str | Path) -> bool:
    """Return whether a path is on object storage: a `UPath`, or text with a protocol."""
    return bool(_PROTOCOL.match(path)) if isinstance(path, str) else not isinstance(path, Path)


def exists(path: Path) -> bool:
    """Return whether something is there. Unlike `Path.exists` of a driver, an error of the storage is not a "no".

    Raises:
        StoreError: If the storage cannot be reached.
    """
    if not is_remote(path):
        return path.exists()
    remote: Any = path
    try:
        with reaching(path):
            remote.fs.info(remote.path)
    except FileNotFoundError:
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if it does not exist.

    Raises:
        StoreError: If the storage cannot be reached.
    """
    if not is_remote(folder):
        return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    remote: Any = folder
    try:
        with reaching(folder):
            found = remote.fs.ls(remote.path, detail=False, refresh=True)
    except FileNotFoundError:
        return []
    return [name.rstrip("/").rpartition("/")[2] for name in found]


def put(path: Path, content: bytes | Path, *, only_new: bool = False) -> None:
    """Write an object atomically.

    Args:
        path: Where, on object storage.
        content: The bytes, or a local file.
        only_new: Whether to refuse if it is there already. S3, Google Cloud Storage, the local and the in-memory file
            system decide this themselves, so that only one of several processes succeeds; others are asked before.

    Raises:
        FileExistsError: If it is there already.
        StoreError: If the storage cannot be reached.
    """
    remote: Any = path
    data = content if isinstance(content, bytes) else content.read_bytes()
    with reaching(path):
        if remote.protocol not in _PUT_WHOLE:
            remote.fs.makedirs(remote.fs._parent(remote.path), exist_ok=True)
        if only_new and remote.protocol in _REFUSES:
            with remote.open("xb") as file:
                file.write(data)
            return
        if only_new and exists(path):
            raise FileExistsError(str(path))
        if remote.protocol in _PUT_WHOLE:
            remote.fs.pipe_file(remote.path, data)
        else:
            remote.fs.pipe_file(remote.path + ".tmp", data)
            remote.fs.mv(remote.path + ".tmp", remote.path)


@contextmanager
def reaching(path: str | Path) -> Iterator[None]:
    """Turn errors of a storage's driver into ours. A missing or existing object keeps its own error.

    Raises:
        MissingExtraError: If the driver is not installed.
        StoreError: For any other error of the driver.
    """
    try:
        yield
    except (LLMEnvsError, FileNotFoundError, FileExistsError):
        raise
    except ImportError as error:
        raise MissingExtraError(f"{path}: the driver of this storage is not installed ({error}).") from error
    except Exception as error:
        if not is_remote(path):
            raise
        if isinstance(error, ValueError) and "Unsupported filesystem" in str(error):
            raise StoreError(
                f"{path}: this kind of storage is unknown ({error}). Examples are s3://, gs:// and hf://."
            ) from error
        reason = " ".join(str(error).split())[:300]
        raise StoreError(
            f"{path} cannot be reached ({type(error).__name__}: {reason}). Check the address, the network and the "
            "credentials of the driver."
        ) from error
