"""Prompts: loaded from files and data sets, checked once, and drawn in epochs.

A prompt is a row, a dict of JSON types with the key `prompt`: a text, or messages as chat templates take them. Its
other keys are data for the reward (`answer`, tests, ...).
"""

from __future__ import annotations

import csv
import errno
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from llm_envs.errors import InvalidConfigError, extra_needed
from llm_envs.problems import part_not_json
from llm_envs.sources.mixture import Schedule

__all__ = ["PromptBuffer", "Prompts", "PromptsLike", "load_prompts", "read_jsonl", "read_rows"]

PROMPT = "prompt"
_MAX_CSV_FIELD = 2**31 - 1  # characters; the standard library's own limit, 131,072, is less than a long prompt
_ROLES = ("system", "user", "assistant", "tool")
_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode

PromptsLike = str | Path | Iterable[Mapping[str, Any] | str]
"""A path; rows; texts; a `datasets.Dataset`."""


class Prompts(Sequence[dict[str, Any]]):
    """Checked rows: each has a prompt, and only JSON types.

    Args:
        rows: The rows, each a mapping; a `datasets.Dataset` stays on disk.
        prompt_field: Key of the prompt, which becomes `prompt` in the returned rows.
        fields: Further keys to keep; None keeps all.
        name: Name in error messages.
        places: Position of each row for error messages; None counts from 0.

    Raises:
        InvalidConfigError: If no row is given, or one is wrong. The message names it.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        prompt_field: str = PROMPT,
        fields: Sequence[str] | None = None,
        name: str = "prompts",
        places: Sequence[str] | None = None,
    ) -> None:
        self.name, self._rows, self._prompt_field, self._fields = name, rows, prompt_field, fields
        digest = hashlib.blake2b(digest_size=16)
        for index, row in enumerate(rows):  # iterating reads a data set on disk in batches
            place = f"{name}, {f'row {index}' if places is None else places[index]}"
            digest.update(self._check(row, place).encode() + b"\n")
        if len(rows) == 0:
            raise InvalidConfigError(f"{name} has no prompts.")
        self.fingerprint = digest.hexdigest()
        """A hash of all rows in their order."""

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Prompts: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | Prompts:
        """Return a row as a new dict, or some rows as `Prompts`."""
        if isinstance(index, slice):
            return Prompts([self[i] for i in range(*index.indices(len(self)))], name=self.name)
        return self._take(self._rows[index])

    def filter(self, keep: Callable[[Mapping[str, Any]], bool]) -> Prompts:
        """Return the prompts for which `keep(row)` is true, in their order."""
        return Prompts([row for row in self if keep(row)], name=self.name)

    def __repr__(self) -> str:
        return f"Prompts({self.name!r}, {len(self)} rows, {self.fingerprint[:8]})"

    def _take(self, row: Mapping[str, Any]) -> dict[str, Any]:
        taken = dict(row) if self._fields is None else {key: row[key] for key in self._fields}
        taken[PROMPT] = row[self._prompt_field]
        if self._prompt_field != PROMPT:
            taken.pop(self._prompt_field, None)
        return taken

    def _check(self, row: Any, place: str) -> str:
        """Return a row as canonical JSON; raise if it has no prompt, or values that JSON does not know."""
        if not isinstance(row, Mapping):
            raise InvalidConfigError(f"{place} is {row!r:.80}; it must be an object with a prompt.")
        if self._prompt_field != PROMPT and PROMPT in (row if self._fields is None else self._fields):
            raise InvalidConfigError(f"{place} has a field 'prompt' besides {self._prompt_field!r}: see fields=... .")
        try:
            taken = self._take(row)
        except KeyError as error:
            raise InvalidConfigError(
                f"{place} has no field {error}; it has {list(row)}. Pass prompt_field=... or fields=... ."
            ) from error
        complaint = _complaint(taken[PROMPT])
        if complaint is not None:
            raise InvalidConfigError(f"{place}: the prompt {complaint}.")
        try:
            return _dump(taken)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidConfigError(
                f"{place}: {part_not_json(taken)}; a row has JSON types ({error}): convert it, or leave it out with "
                "fields=... ."
            ) from error


def load_prompts(source: PromptsLike, *, prompt_field: str = PROMPT, fields: Sequence[str] | None = None) -> Prompts:
    """Load prompts.

    Args:
        source: Path of a file: JSONL (one object per line), CSV (with a header; all values are strings) or Parquet. Or
            a `datasets.Dataset`, dicts, or strings that are prompts themselves.
        prompt_field: Key or column of the prompt, a text or messages; it becomes `prompt` in the rows.
        fields: Further keys to keep; None keeps all.

    Raises:
        InvalidConfigError: If the file does not exist, has another type, or a row is wrong. The message has its line.
        MissingExtraError: If pyarrow is needed for Parquet and not installed.
    """
    if isinstance(source, Prompts) and prompt_field == PROMPT and fields is None:
        return source
    if isinstance(source, (str, Path)):
        rows, places = read_rows(Path(source))
        return Prompts(rows, prompt_field=prompt_field, fields=fields, name=str(source), places=places)
    if isinstance(source, Mapping):
        raise InvalidConfigError(
            f"a mapping with the keys {list(source)!r:.200} is not a list of prompts: choose one part."
        )
    name = type(source).__name__
    if not isinstance(source, Iterable):
        raise InvalidConfigError(f"prompts are {source!r:.80}; they must be a path, a data set, or rows.")
    if hasattr(source, "__len__") and hasattr(source, "__getitem__") and hasattr(source, "column_names"):
        return Prompts(source, prompt_field=prompt_field, fields=fields, name=name)  # type: ignore[arg-type]
    listed = [{prompt_field: item} if isinstance(item, str) else item for item in source]
    return Prompts(listed, prompt_field=prompt_field, fields=fields, name=f"{name} of prompts")


def read_jsonl(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the number, from 1, and the value of each line that is not blank.

    Raises:
        InvalidConfigError: If the file does not exist, or a line is not JSON.
    """
    with _opened(Path(path), "rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if not text.strip():
                continue
            try:
                yield number, json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InvalidConfigError(f"{path}, line {number} is not JSON ({error}): {text[:80]!r}") from error


class PromptBuffer:
    """Draws prompts in epochs: each prompt once per epoch, in a new order.

    Args:
        prompts: Any form that `load_prompts` takes; or, to mix, several by name.
        weights: Shares of several; None: their numbers of prompts.
        seed: Decides the orders and the mixture.
        shuffle: Whether each epoch has its own order; otherwise all have the order of the rows.

    Raises:
        InvalidConfigError: If the weights do not match the prompts, or prompts are wrong.
    """

    def __init__(
        self,
        prompts: PromptsLike | Mapping[str, PromptsLike],
        *,
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        given = prompts if isinstance(prompts, Mapping) else {"": prompts}
        self.parts = {name: load_prompts(part) for name, part in given.items()}
        self.weights = {name: float(len(part)) for name, part in self.parts.items()}
        if weights is not None:
            if weights.keys() != self.parts.keys():
                raise InvalidConfigError(f"weights are for {list(weights)}, prompts for {list(self.parts)}.")
            self.weights = {name: weights[name] for name in self.parts}
        self.seed, self.shuffle = seed, shuffle
        self.position = 0
        """Number of prompts drawn so far."""
        self._listed = list(self.parts.values())
        lengths = [len(part) for part in self._listed]
        self._schedule = Schedule(seed, list(self.weights.values()), lengths, shuffle=shuffle)

    @property
    def epoch(self) -> int:
        """Number of completed epochs over all prompts."""
        return min(self._schedule.epochs(self.position))

    def row(self, index: int) -> dict[str, Any]:
        """Return the prompt of draw `index`, from 0."""
        part, item, _ = self._schedule.at(index)
        return self._listed[part][item]

    def get_prompts(self, n: int) -> list[dict[str, Any]]:
        """Draw the next `n` prompts; after the end of an epoch the next one begins."""
        if n < 0:
            raise InvalidConfigError(f"get_prompts: n is {n!r}; it must be at least 0.")
        start, self.position = self.position, self.position + n
        return [self.row(index) for index in range(start, start + n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer's position, as JSON types."""
        parts = [[name, weight, self.parts[name].fingerprint] for name, weight in self.weights.items()]
        return {"position": self.position, "seed": self.seed, "shuffle": self.shuffle, "prompts": parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; other prompts, weights or another seed are refused."""
        own = self.state_dict()
        for name in ("seed", "shuffle", "prompts"):
            if state[name] != own[name]:
                raise InvalidConfigError(f"the saved buffer has {name} {state[name]!r}, this one has {own[name]!r}.")
        self.position = state["position"]


def _complaint(prompt: Any) -> str | None:
    if isinstance(prompt, str):
        return None if prompt.strip() else "is empty"
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return f"is {prompt!r:.80}; it must be a text or a list of messages"
    for index, message in enumerate(prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            return f"has as message {index} {message!r:.80}; it must have a role and a text as content"
        if message.get("role") not in _ROLES:
            return f"has a message {index} of the role {message.get('role')!r}; known are {', '.join(_ROLES)}"
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            parts = (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else (None, None)
            if not isinstance(parts[0], str) or not isinstance(parts[1], Mapping):
                return (
                    f"has in message {index} the call {call!r:.80}; its function needs a name, its arguments an object"
                )
    if prompt[-1]["role"] == "assistant":
        return "ends with an assistant's message, so the policy has nothing to reply to"
    return None


def read_rows(path: Path) -> tuple[Sequence[Mapping[str, Any]], list[str] | None]:
    """Return the rows of a JSONL, CSV or Parquet file, and the position of each; see `load_prompts`."""
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        numbered = list(read_jsonl(path))
        return [value for _, value in numbered], [f"line {number}" for number, _ in numbered]
    if suffix == ".csv":
        return _read_csv(path)
    if suffix == ".parquet":
        return _read_parquet(path), None
    raise InvalidConfigError(
        f"{str(path)!r} is not a .jsonl, .csv or .parquet file. To load a data set from a hub: "
        "load_prompts(datasets.load_dataset(...)['train'])."
    )


def _opened(path: Path, mode: str, **kwargs: Any) -> Any:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is a pipe, a socket or a device", str(path))
        return path.open(mode, **kwargs)
    except OSError as error:
        raise InvalidConfigError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _read_csv(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    rows, places = [], []
    before = csv.field_size_limit(_MAX_CSV_FIELD)  # a global setting of the csv module
    try:
        with _opened(path, "r", encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, [])
            if len(set(header)) < len(header):
                twice = sorted({name for name in header if header.count(name) > 1})
                raise InvalidConfigError(f"{path}: the header has columns with the same name: {twice}.")
            for values in filter(None, lines):  # a blank line has no values
                if len(values) != len(header):
                    compared = "more" if len(values) > len(header) else "fewer"
                    raise InvalidConfigError(
                        f"{path}, line {lines.line_num}: the header has {len(header)} columns, the row {compared}."
                    )
                rows.append(dict(zip(header, values, strict=True)))
                places.append(f"line {lines.line_num}")
    except csv.Error as error:
        raise InvalidConfigError(f"{path}, line {lines.line_num} is not CSV: {error}.") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{path} is not UTF-8: {error}.") from error
    finally:
        csv.field_size_limit(before)
    return rows, places


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    with extra_needed("Parquet needs `pyarrow`: pip install 'llm-envs[train]'."):
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with _opened(path, "rb") as file:
            rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidConfigError(f"{str(path)!r} cannot be read as Parquet: {error}") from error
    return rows
