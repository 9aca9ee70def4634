"""Shards: the compacted form of a finished log, a Parquet file of trajectories (see `llm_envs.data.records`).

The file is a plain table: any Parquet reader opens it, and `datasets.load_dataset("parquet", data_files=...)` gives the
same as `llm_envs.data.to_dataset`. pyarrow, which comes with `datasets` (`pip install 'llm-envs[train]'`), is imported
on demand.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from llm_envs.data.files import atomic, regular
from llm_envs.data.records import SCHEMA, from_record, is_same_record, to_record
from llm_envs.data.storage import is_remote, reaching
from llm_envs.errors import StoreError, extra_needed
from llm_envs.types import Trajectory

__all__ = ["can_compact", "read_shard", "read_shard_keys", "to_table", "write_shard"]

SHARD_VERSION = b"2"
"""Version of the columns and their meaning, stored in the file's metadata under `_VERSION_KEY`."""
_TURNS_BEFORE_SUMMARIES = [{name: kind for name, kind in SCHEMA["turns"][0].items() if name != "is_summary"}]
"""The column `turns` of older runs, which are read too."""
_VERSION_KEY = b"llm_envs_format"

# A reader holds one row group in memory at a time.
_GROUP_TRAJECTORIES = 256
_GROUP_TOKENS = 1_000_000

_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)
"""Errors of reading a file whose description of itself is damaged; its pages have checksums."""


def can_compact() -> bool:
    """Return whether pyarrow is installed, without importing it."""
    return importlib.util.find_spec("pyarrow") is not None


def write_shard(trajectories: Iterable[Trajectory], path: Path) -> tuple[int, int]:
    """Write trajectories to a Parquet file, atomically (`files.atomic`).

    Before anything is written, each trajectory is rebuilt from the table and compared with the original.

    Returns:
        The number of trajectories, and how many of them have an error.

    Raises:
        StoreError: If a trajectory changes by the conversion.
    """
    arrow = _arrow()
    schema = _schema(arrow).with_metadata({_VERSION_KEY: SHARD_VERSION})
    compression = "zstd" if arrow.Codec.is_available("zstd") else "snappy"
    count = errored = 0
    with (
        atomic(path) as file,
        arrow.parquet.ParquetWriter(file, schema, compression=compression, write_page_checksum=True) as writer,
    ):
        for some in _batches(trajectories):
            table = to_table(some)
            for one, other in zip(some, _from_table(table), strict=True):
                if not is_same_record(one, other):
                    raise StoreError(
                        f"trajectory {one.group_id}/{one.member} has a value that the table's columns change."
                    )
            writer.write_table(table)
            count += len(some)
            errored += sum(t.error is not None for t in some)
    return count, errored


def read_shard(path: Path, expected: int | None = None, *, start: int = 0) -> Iterator[Trajectory]:
    """Read the trajectories of a shard, one row group at a time.

    Args:
        path: The file.
        expected: How many there should be; None accepts any number.
        start: The row to begin with.

    Raises:
        StoreError: If it is damaged, of another version, or has the wrong number of trajectories; names the file.
        MissingExtraError: If pyarrow is not installed.
    """
    for table in _read_tables(path, None, expected, start):
        try:
            yield from _from_table(table)
        except _DAMAGE as error:
            raise _damaged(path, error) from error


def read_shard_keys(path: Path, expected: int | None = None) -> Iterator[tuple[str, int, bool]]:
    """Read (group_id, member, whether it has an error) of each trajectory, and nothing else."""
    for table in _read_tables(path, ["group_id", "member", "error"], expected):
        try:
            keys = [(r["group_id"], r["member"], json.loads(r["error"]) is not None) for r in table.to_pylist()]
        except _DAMAGE as error:
            raise _damaged(path, error) from error
        yield from keys


def _read_tables(path: Path, columns: list[str] | None, expected: int | None, start: int = 0) -> Iterator[Any]:
    arrow = _arrow()
    try:
        # Python's file object, read by this thread: if one of Arrow's threads releases a Python object while the
        # interpreter ends, the process crashes (SIGABRT; apache/arrow issues 34314 and 50482).
        with (
            _opened(arrow, path) as opened,
            arrow.parquet.ParquetFile(opened, pre_buffer=False, page_checksum_verification=True) as file,
        ):
            _check(path, file, expected)
            for index in range(file.num_row_groups):
                n_rows = file.metadata.row_group(index).num_rows
                if start < n_rows:
                    yield file.read_row_group(index, columns=columns, use_threads=False).slice(start)
                start = max(start - n_rows, 0)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing: the run's manifest lists it. {_way_out(path)}") from error
    except StoreError:
        raise
    except (arrow.ArrowException, OSError, *_DAMAGE) as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's own errors of damage have no number
            raise StoreError(f"{path} cannot be read ({os.strerror(error.errno)}): its data may be intact.") from error
        raise _damaged(path, error) from error


def _opened(arrow: Any, path: Path) -> Any:
    if not is_remote(path):
        os.close(regular(path, os.O_RDONLY))  # Arrow would wait for a pipe
        if (name := os.fspath(path)).isprintable():
            return arrow.OSFile(name, "rb")
    with reaching(path):  # one request, of the size of a shard; Arrow cannot open a name that is not UTF-8
        return arrow.BufferReader(path.read_bytes())


def _damaged(path: Path, error: Exception) -> StoreError:
    reason = " ".join(str(error).split())
    return StoreError(
        f"{path} is damaged ({type(error).__name__}: {reason}). The run's other files can be read one by one with "
        f"read_trajectories(FILE). {_way_out(path)}"
    )


def _way_out(path: Path) -> str:
    """Return what to do about a shard that is lost."""
    return (
        f'To resume the run without it, remove "{path.name}" from "shards" in the run\'s manifest.json, and move the '
        "file elsewhere: its episodes are played again."
    )


def _check(path: Path, file: Any, expected: int | None) -> None:
    version = (file.schema_arrow.metadata or {}).get(_VERSION_KEY)
    if version != SHARD_VERSION:
        found = "none" if version is None else repr(version.decode(errors="replace"))
        raise StoreError(
            f"{path} has shard format {found}; this version reads {SHARD_VERSION.decode()!r}. (A table that "
            "`to_dataset` made is read by `from_dataset`.)"
        )
    arrow, found = _arrow(), file.schema_arrow
    differing = [field.name for field in _schema(arrow) if field not in found]
    if differing == ["turns"] and arrow.field("turns", _type(arrow, _TURNS_BEFORE_SUMMARIES)) in found:
        differing = []
    if differing:
        names = ", ".join(differing)
        raise StoreError(f"{path} is damaged: columns are missing or of another type: {names}. {_way_out(path)}")
    if expected is not None and file.metadata.num_rows != expected:
        raise StoreError(
            f"{path} has {file.metadata.num_rows} trajectories, but the run's manifest has {expected}. {_way_out(path)}"
        )


def _batches(trajectories: Iterable[Trajectory]) -> Iterator[list[Trajectory]]:
    some: list[Trajectory] = []
    tokens = 0
    for trajectory in trajectories:
        some.append(trajectory)
        tokens += trajectory.n_tokens
        if len(some) >= _GROUP_TRAJECTORIES or tokens >= _GROUP_TOKENS:
            yield some
            some, tokens = [], 0
    if some:
        yield some


def to_table(trajectories: Sequence[Trajectory]) -> Any:
    """Return trajectories as an Arrow table with the columns of `records.SCHEMA`.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    arrow = _arrow()
    return arrow.Table.from_pylist([to_record(trajectory) for trajectory in trajectories], schema=_schema(arrow))


def _from_table(table: Any) -> Iterator[Trajectory]:
    table = table.combine_chunks()
    records = table.drop_columns(["rows"]).to_pylist()
    for record, rows in zip(records, _rows_of(table.column("rows")), strict=True):
        yield from_record(record | {"rows": rows})


def _rows_of(column: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each trajectory as records whose token data are slices of the column's memory."""
    for chunk in column.chunks:  # one, or none if the table is empty
        struct = chunk.values
        lists = {name: struct.field(name) for name in ("ids", "mask", "logps")}
        values = {name: array.values.to_numpy(zero_copy_only=False) for name, array in lists.items()}
        bounds = {name: array.offsets.to_pylist() for name, array in lists.items()}
        spans = struct.field("spans").to_pylist()
        for start, stop in pairwise(chunk.offsets.to_pylist()):
            yield [
                {name: values[name][bounds[name][row] : bounds[name][row + 1]] for name in lists}
                | {"spans": spans[row]}
                for row in range(start, stop)
            ]


def _schema(arrow: Any) -> Any:
    return arrow.schema([arrow.field(name, _type(arrow, kind)) for name, kind in SCHEMA.items()])


def _type(arrow: Any, kind: Any) -> Any:
    if isinstance(kind, str):
        return arrow.type_for_alias(kind)
    if isinstance(kind, list):
        return arrow.list_(_type(arrow, kind[0]))
    return arrow.struct([arrow.field(name, _type(arrow, inner)) for name, inner in kind.items()])


def _arrow() -> Any:
    with extra_needed("Parquet shards need pyarrow: pip install 'llm-envs[train]'."):
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
