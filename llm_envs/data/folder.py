"""The contents of a run's folder: the manifest, and the parts with the trajectories.

A run is written in parts, numbered from 0 in the order of finishing. Part 3 is the log `log-00003.jsonl` until the
manifest lists `shard-00003.parquet`; from then on it is the shard, and a log with that number is a leftover.

Invariants:
1. Only the manifest decides which shards count. It is replaced atomically, after the shard is complete and on disk.
2. A log is removed only after the manifest lists its shard. So each trajectory counts exactly once at every moment. A
   kill in between leaves a temporary file, a shard that does not count yet, or a log that no longer counts; `clean`
   removes each of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_envs.data.files import atomic
from llm_envs.data.json_files import read_json
from llm_envs.data.storage import exists, is_remote, names_in, reaching
from llm_envs.errors import StoreError

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "OLD_LOG_NAME",
    "Manifest",
    "Part",
    "clean",
    "find_parts",
    "log_name",
    "manifest_text",
    "parts_in",
    "read_manifest",
    "shard_name",
    "sync_folder",
    "write_manifest",
]

FORMAT_VERSION = 2
"""Version of the folder's layout and of the format of a line. Version 1 (one log and no shards) can be read and
continued; other versions are refused."""

MANIFEST_NAME = "manifest.json"
OLD_LOG_NAME = "trajectories.jsonl"
"""The only log of a folder of version 1: part 0."""

_PART = re.compile(r"(?:log-(\d{5,})\.jsonl|shard-(\d{5,})\.parquet)")
_SALVAGE = "The trajectories may be intact: read_trajectories reads a single .jsonl or .parquet file of the folder."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of `manifest.json`."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Part -> how many trajectories its shard has, and how many of them errored."""
    version: int = FORMAT_VERSION

    def with_shard(self, number: int, counts: tuple[int, int]) -> Manifest:
        """Return a manifest with one more shard."""
        return Manifest(self.settings, {**self.shards, number: counts})


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the trajectories, and where it is."""

    number: int
    path: Path
    counts: tuple[int, int] | None = None
    """For a shard: the numbers of trajectories and of errored ones. None for a log."""


def log_name(number: int) -> str:
    """Return the name of a part's log."""
    return f"log-{number:05d}.jsonl"


def shard_name(number: int) -> str:
    """Return the name of a part's shard."""
    return f"shard-{number:05d}.parquet"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest.

    Raises:
        StoreError: If it is missing, damaged, or of another version.
    """
    path = folder / MANIFEST_NAME
    if not exists(path):
        raise StoreError(f"{folder} holds no run: it has no {MANIFEST_NAME}.{_runs_below(folder)}")
    try:
        with reaching(path):
            data: Any = read_json(path)
    except StoreError:
        raise
    except ValueError as error:
        raise StoreError(f"{path} is damaged: {error}. {_SALVAGE}") from error
    if not isinstance(data, dict):
        raise StoreError(f"{path} is damaged: it does not hold a JSON object. {_SALVAGE}")
    if data.get("format") not in (1, FORMAT_VERSION):
        raise StoreError(f"{folder} has format {data.get('format')!r}; this version reads 1 and {FORMAT_VERSION}.")
    if not isinstance(data.get("settings"), dict):
        raise StoreError(f"{path} is damaged: it has no settings. {_SALVAGE}")
    try:
        shards = {
            _shard_number(name): (int(value["trajectories"]), int(value["errored"]))
            for name, value in data.get("shards", {}).items()
        }
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: its list of shards cannot be read ({error!r}). {_SALVAGE}") from error
    return Manifest(data["settings"], shards, data["format"])


def manifest_text(manifest: Manifest) -> str:
    """Return the content of `manifest.json`."""
    shards = {
        shard_name(number): {"trajectories": count, "errored": errored}
        for number, (count, errored) in sorted(manifest.shards.items())
    }
    data = {"format": FORMAT_VERSION, "settings": dict(manifest.settings), "shards": shards}
    return json.dumps(data, indent=2) + "\n"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a local folder atomically."""
    with atomic(folder / MANIFEST_NAME) as file:
        file.write(manifest_text(manifest).encode())
    sync_folder(folder)


def find_parts(folder: Path, manifest: Manifest) -> list[Part]:
    """Return the parts of a run in the order of finishing, even while the folder is being written.

    Raises:
        StoreError: If the folder has a shard that does not belong to the run.
    """
    logs, shards = parts_in(folder)
    stray = {n for n in shards if n not in manifest.shards and n not in logs}
    if is_remote(folder):  # a writer that was killed left these, or one is about to list them: they do not count
        stray = set()
    if stray and not stray <= {*read_manifest(folder).shards}:  # else compacted since the manifest was read
        names = ", ".join(str(folder / shard_name(n)) for n in sorted(stray))
        raise StoreError(f"{names}: not listed in the run's manifest. Move it elsewhere; it can be read by itself.")
    counted = {n: path for n, path in logs.items() if n not in manifest.shards}
    parts = [Part(n, folder / shard_name(n), counts) for n, counts in manifest.shards.items()]
    parts += [Part(n, path) for n, path in counted.items()] + [Part(n, folder / log_name(n)) for n in stray]
    return sorted(parts, key=lambda part: part.number)


def clean(folder: Path, manifest: Manifest) -> None:
    """Remove leftovers of a kill that do not count. Only the folder's writer may do this."""
    logs, shards = parts_in(folder)
    leftover = [path for n, path in logs.items() if n in manifest.shards]
    leftover += [folder / shard_name(n) for n in shards if n in logs and n not in manifest.shards]
    leftover += [folder / (shard_name(n) + ".tmp") for n in logs]
    for path in leftover:
        path.unlink(missing_ok=True)
    if (old := folder / OLD_LOG_NAME).exists():
        old.replace(folder / log_name(0))


def sync_folder(folder: Path) -> None:
    """Write the folder's own entries to disk, if the system supports that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def parts_in(folder: Path) -> tuple[dict[int, Path], set[int]]:
    """Return the logs and the shards in the folder by their numbers."""
    logs: dict[int, Path] = {}
    shards: set[int] = set()
    for name in names_in(folder):
        if name == OLD_LOG_NAME:
            logs[0] = folder / name
        elif (match := _PART.fullmatch(name)) is not None and match[1] is not None:
            logs[int(match[1])] = folder / name
        elif match is not None:
            shards.add(int(match[2]))
    return logs, shards


def _shard_number(name: str) -> int:
    match = _PART.fullmatch(name)
    if match is None or match[2] is None:
        raise ValueError(f"{name!r} is not the name of a shard")
    return int(match[2])


def _runs_below(folder: Path) -> str:
    """Return a hint that lists the runs in subfolders, for a caller who gave their parent folder."""
    if is_remote(folder):
        return ""  # a bucket may hold millions of objects
    manifests = [path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(f"{depth}/{MANIFEST_NAME}")]
    names = sorted(str(path.parent) for path in manifests)
    if not names:
        return ""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f" Its subfolders hold runs, give one of these: {', '.join(names[:8])}{more}."
