"""Runs that several machines play without talking to each other: each plays a shard, and `merge_runs` joins them.

Which episodes a run has depends only on its settings. So shard 2 of 4 plays groups 2, 6, 10, ... wherever it runs, and
the merged run has the same trajectories as one that a single machine plays.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llm_envs.data.files import open_bytes
from llm_envs.data.folder import (
    MANIFEST_NAME,
    Manifest,
    find_parts,
    log_name,
    manifest_text,
    read_manifest,
    shard_name,
    write_manifest,
)
from llm_envs.data.lock import LOCK_NAME, FolderLock
from llm_envs.data.log import read_log, remove_torn_line
from llm_envs.data.parquet import write_shard
from llm_envs.data.storage import as_path, exists, is_remote, names_in, put, reaching
from llm_envs.data.writer import check_folder, finished
from llm_envs.errors import InvalidConfigError, StoreError

__all__ = ["Shard", "find_shards", "merge_runs"]

_FOLDER = re.compile(r"shard-\d+-of-\d+")


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `of`-th group of a run, from group `index` on.

    Raises:
        InvalidConfigError: If the index is not from 0 to `of` - 1.
    """

    index: int
    of: int

    def __post_init__(self) -> None:
        if self.of < 1:
            raise InvalidConfigError(f"shard {self.index}/{self.of}: give the number of shards, such as 0/4.")
        if not 0 <= self.index < self.of:
            raise InvalidConfigError(
                f"shard {self.index}/{self.of}: the shards of {self.of} are 0/{self.of} to {self.of - 1}/{self.of}."
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "2/4".

        Raises:
            InvalidConfigError: If it is anything else.
        """
        index, _, of = text.partition("/")
        if not (index.isdecimal() and of.isdecimal()):
            raise InvalidConfigError(f"shard {text!r}: give its index and the number of shards, such as 0/4.")
        return cls(int(index), int(of))

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"

    def folder(self, out: str | Path) -> Path:
        """Return the shard's folder in the run's folder."""
        return as_path(out) / f"shard-{self.index}-of-{self.of}"

    def groups(self, n_groups: int) -> range:
        """Return the indices of the shard's groups, of a run with so many."""
        return range(self.index, n_groups, self.of)

    def settings(self, n_groups: int) -> dict[str, str | int]:
        """Return the settings of the shard for its manifest. The number of groups is one of them."""
        return {"shard": str(self), "shard_groups": n_groups}


def find_shards(paths: Iterable[str | Path]) -> list[Path]:
    """Return the folders of shards: those given, and those in given folders that hold no run themselves.

    Raises:
        StoreError: If a folder has neither.
    """
    found: list[Path] = []
    for path in map(as_path, paths):
        names = [name for name in names_in(path) if _FOLDER.fullmatch(name)]
        for name in names:
            if names_in(path / name) and not exists(path / name / MANIFEST_NAME):
                raise StoreError(
                    f"{path / name} has no {MANIFEST_NAME}: put it back, or move the folder elsewhere and play its "
                    "shard again."
                )
        inside = [path / name for name in sorted(names, key=lambda name: (len(name), name))]
        if not inside and not exists(path / MANIFEST_NAME):
            raise StoreError(f"{path} has no shard: give the --out of a command with --shard, or the shards' folders.")
        found += inside or [path]
    return found


def merge_runs(paths: Sequence[str | Path], out: str | Path) -> int:
    """Join all shards of a run in a new folder, which then is a run like any other; return its number of episodes.

    The shards stay. A merge that was killed leaves no run, and can be repeated; on object storage, in another folder.

    Args:
        paths: Folders of shards, or folders that hold them, here or on object storage.
        out: A new folder, here or on object storage.

    Raises:
        StoreError: If a shard is missing, given twice, not finished, being written, or one of another run; or if `out`
            holds something.
    """
    runs = [(folder, read_manifest(folder)) for folder in find_shards(paths)]
    settings, n_groups = _common(runs)
    target = as_path(out)
    if exists(target / MANIFEST_NAME):
        raise StoreError(f"{target} holds a run already: choose another --out.")
    check_folder(target, settings)
    n_episodes, merged = 0, Manifest(settings)
    try:
        beside = None if is_remote(target) else target.parent
        if beside is not None:
            beside.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=beside, prefix=target.name + ".tmp-") as temporary:
            whole = Path(temporary) / "run"
            whole.mkdir()
            for folder, manifest in runs:
                with _held(folder):
                    n_episodes += _check_whole(folder, manifest, n_groups)
                    merged = _copy(folder, read_manifest(folder), whole, merged)
            if beside is None:
                _put_run(whole, merged, target)
            else:
                write_manifest(whole, merged)
                whole.rename(target)  # an empty folder is replaced; anything else has been refused
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{target} cannot be written ({error.strerror or error}).") from error
    return n_episodes


def _common(runs: Sequence[tuple[Path, Manifest]]) -> tuple[dict[str, object], int]:
    """Check that the folders are all shards of one run; return its settings and its number of groups."""
    first: dict[str, object] | None = None
    places: dict[int, Path] = {}
    for folder, manifest in runs:
        if "shard" not in manifest.settings:
            raise StoreError(f"{folder} is a complete run: only shards, played with --shard, can be merged.")
        shard = Shard.parse(manifest.settings["shard"])
        given = {key: value for key, value in manifest.settings.items() if key != "shard"} | {"shard": shard.of}
        if first is None:
            first = given
        if differing := sorted(key for key in {*first, *given} if first.get(key) != given.get(key)):
            differences = ", ".join(f"{key}: {first.get(key)!r} there, {given.get(key)!r} here" for key in differing)
            mend = f"play it again with that one's command, --shard {shard} and a new --out, and merge the new folder"
            raise StoreError(
                f"{folder} is a shard of another run than {runs[0][0]} ({differences}): "
                + ("leave it out." if "shard" in differing else f"{mend} in its place.")
            )
        if shard.index in places:
            raise StoreError(f"shard {shard} is there twice, {places[shard.index]} and {folder}: leave one out.")
        places[shard.index] = folder
    if first is None:
        raise StoreError("there is nothing to merge: give the folders of shards.")
    of, n_groups = first.pop("shard"), first.pop("shard_groups")
    assert isinstance(of, int) and isinstance(n_groups, int)
    if missing := [f"{index}/{of}" for index in range(of) if index not in places]:
        raise StoreError(
            f"{len(missing)} of {of} shards are missing ({', '.join(missing[:5])}): play each with the command of the "
            f"others and --shard {missing[0]}."
        )
    return first, n_groups


def _check_whole(folder: Path, manifest: Manifest, n_groups: int) -> int:
    """Return a shard's number of episodes, all of them finished."""
    shard = Shard.parse(manifest.settings["shard"])
    wanted = len(shard.groups(n_groups)) * int(manifest.settings.get("group_size", 1))
    if (n_there := len(finished(folder))) != wanted:
        raise StoreError(
            f"{folder} has {n_there} of {wanted} episodes: finish it with its command, --shard {shard} and --resume."
        )
    return wanted


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keep writers out of a shard; on object storage, refuse a shard that has a writer."""
    if not is_remote(folder):
        lock = FolderLock(folder)
        try:
            yield
        finally:
            lock.release()
        return
    if exists(folder / LOCK_NAME):
        raise StoreError(
            f"{folder} is being written, or its writer was killed: wait, or resume it with its command, --shard and "
            "--resume."
        )
    yield


def _copy(folder: Path, manifest: Manifest, target: Path, merged: Manifest) -> Manifest:
    """Append a run's parts to another run in a local folder; return the manifest of both."""
    number = len(list(target.iterdir()))
    for part in find_parts(folder, manifest):
        copy = target / (log_name(number) if part.counts is None else shard_name(number))
        with reaching(part.path), open_bytes(part.path) as source, open(copy, "wb") as file:
            shutil.copyfileobj(source, file, 2**20)
        if part.counts is None:
            remove_torn_line(copy)
        else:
            merged = merged.with_shard(number, part.counts)
        number += 1
    return merged


def _put_run(whole: Path, merged: Manifest, target: Path) -> None:
    """Put a local folder's run on object storage, which has no logs. The manifest, which makes it a run, comes last."""
    for log in whole.glob("log-*.jsonl"):
        number = int(log.stem.removeprefix("log-"))
        if log.stat().st_size:
            merged = merged.with_shard(number, write_shard(read_log(log), whole / shard_name(number)))
    for shard in sorted(whole.glob("shard-*.parquet")):
        put(target / shard.name, shard)
    put(target / MANIFEST_NAME, manifest_text(merged).encode(), only_new=True)
