"""Follow the files of a run while they are written: episodes by their place in a part, metrics by their offset.

1. Every stored episode is read once, in the order of finishing, through compacting and a resumed run.
2. A torn last line is left until it is complete.
3. A folder that was made again raises `Restarted`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from llm_envs.data.files import open_bytes
from llm_envs.data.folder import Part, find_parts, parts_in, read_manifest, shard_name
from llm_envs.data.json_files import NO_JSON
from llm_envs.data.log import parse_line
from llm_envs.data.parquet import read_shard
from llm_envs.errors import StoreError
from llm_envs.problems import is_number
from llm_envs.report.curves import METRICS_NAME, curve_files, read_curve_file
from llm_envs.types import Trajectory

__all__ = ["EpisodeTail", "MetricsTail", "Place", "Restarted"]

Point = tuple[str, float, float]
"""(metric, step, value)."""


class Restarted(Exception):
    """The files have been replaced: the run was begun again in this folder."""


class Place(NamedTuple):
    """Where an episode is stored."""

    part: int
    row: int
    """Of the part's shard."""
    offset: int
    """Bytes, in the part's log; -1 if the episode was read from a shard."""


class EpisodeTail:
    """The episodes of one folder of a `TrajectoryWriter`, or of one file, as they are written.

    Args:
        path: The folder or the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self._number, self._row, self._offset, self._inode = 0, 0, 0, -1
        self._shard: Iterator[Trajectory] | None = None

    def read(self, limit: int) -> list[tuple[Place, Trajectory]]:
        """Return up to `limit` episodes that have not been returned before.

        Raises:
            StoreError: If a file is damaged.
            Restarted: If this is another run than before.
        """
        out: list[tuple[Place, Trajectory]] = []
        while len(out) < limit:
            later = [part for part in self._parts() if part.number >= self._number]
            if self._row and (not later or later[0].number > self._number):
                raise Restarted(f"{self.path} no longer has part {self._number}")
            if not later:
                break
            if later[0].number > self._number:
                self._begin(later[0].number)
            # A log is complete once the next part exists, so this is looked up before it is read.
            is_complete, found = len(later) > 1, self._take(later[0], limit - len(out))
            if found is None:
                break
            out += found
            if found:
                continue
            if not is_complete:
                break
            self._begin(later[1].number)
        return out

    def at(self, place: Place) -> Trajectory:
        """Return an episode again.

        Raises:
            StoreError: If it is no longer there.
        """
        log = self.path if self.path.is_file() else parts_in(self.path)[0].get(place.part)
        if log is not None and place.offset >= 0:
            try:
                with open_bytes(log) as file:
                    file.seek(place.offset)
                    return parse_line(file.readline(), log, place.row + 1)
            except FileNotFoundError:  # compacted since
                pass
        shard = self.path if self.path.is_file() else self.path / shard_name(place.part)
        if (found := next(read_shard(shard, start=place.row), None)) is None:
            raise StoreError(f"{shard} has no row {place.row}: it is not the shard of before.")
        return found

    def _parts(self) -> list[Part]:
        return [Part(0, self.path)] if self.path.is_file() else find_parts(self.path, read_manifest(self.path))

    def _begin(self, number: int) -> None:
        self._number, self._row, self._offset, self._inode, self._shard = number, 0, 0, -1, None

    def _take(self, part: Part, limit: int) -> list[tuple[Place, Trajectory]] | None:
        """Return the next episodes of a part; None if it has just been compacted."""
        if part.path.suffix == ".parquet":
            if part.counts is not None and self._row >= part.counts[0]:
                return []
            if self._shard is None:
                expected = None if part.counts is None else part.counts[0]
                self._shard = read_shard(part.path, expected, start=self._row)
            found = [(Place(part.number, self._row + n, -1), t) for n, t in enumerate(islice(self._shard, limit))]
            self._row += len(found)
            return found
        if self._row and self._inode == -1:
            raise Restarted(f"{part.path} was a shard")
        try:
            file = open_bytes(part.path)
        except FileNotFoundError:
            return None
        with file:
            status = os.fstat(file.fileno())
            is_same = self._inode in (-1, status.st_ino) or self._offset == 0  # an empty log goes when its writer ends
            if status.st_size < self._offset or not is_same:
                raise Restarted(str(part.path))
            self._inode = status.st_ino
            file.seek(self._offset)
            found = []
            while len(found) < limit and (line := file.readline()).endswith(b"\n"):
                try:
                    trajectory = parse_line(line, part.path, self._row + 1)
                    found.append((Place(part.number, self._row, self._offset), trajectory))
                except StoreError as error:
                    self.notes.append(str(error))
                self._row, self._offset = self._row + 1, self._offset + len(line)
            return found


class MetricsTail:
    """The metrics of a run's folder as they are logged.

    Args:
        run: A trainer's `output_dir`, or a folder with `metrics.jsonl`.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.notes: list[str] = []
        self._seen: dict[Path, tuple[int, int, int]] = {}
        """File -> inode, size, time of change."""

    def read(self) -> list[Point]:
        """Return the points that are new or changed since the last call; a value that was not finite is NaN."""
        out: list[Point] = []
        # A trainer's state has the same numbers, later, and all of them again.
        for path, stage in curve_files(self.run, has_state=not (self.run / METRICS_NAME).is_file()):
            try:
                status = path.stat()
                now = status.st_ino, status.st_size, status.st_mtime_ns
                before = self._seen.get(path)
                if now == before:
                    continue
                if path.suffix == ".jsonl":
                    is_same = before is not None and before[0] == now[0] and before[1] <= now[1]
                    start = before[1] if before is not None and is_same else 0
                    found, size = _new_points(path, stage, start)
                    now = now[0], size, now[2]
                else:
                    found = read_curve_file(path, stage)
                self._seen[path] = now
                out += found
            except (StoreError, OSError, ValueError, AttributeError) as error:
                self.notes.append(f"{path} cannot be read: {error}")
        return out


def _new_points(path: Path, stage: str, start: int) -> tuple[list[Point], int]:
    """Return the points of a JSONL file from an offset on, and the offset behind the last complete line."""
    points: list[Point] = []
    with open_bytes(path) as file:
        file.seek(start)
        while (line := file.readline()).endswith(b"\n"):
            start += len(line)
            try:
                record: Any = json.loads(line)
            except NO_JSON:
                continue
            step: Any = record.get("step") if isinstance(record, dict) else None
            if is_number(step):
                points += [
                    (f"{stage}{key}", step, math.nan if value is None else value)
                    for key, value in record.items()
                    if key not in ("step", "epoch") and (value is None or is_number(value))
                ]
    return points, start
