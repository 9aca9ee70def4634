"""Tasks over published data that the user names: where the data are, their fields, and the base class of such tasks."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from llm_envs.env import Difficulty, SingleTurnEnv
from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.sources.prompts import read_rows
from llm_envs.tasks.benchmarks.generous import GenerousForm
from llm_envs.tasks.data.loading import FILES, load_data_set
from llm_envs.tasks.draws import Random, between

__all__ = ["Layout", "PublishedData", "PublishedEnv", "require_texts"]

SAMPLE = "sample"
_SAMPLES = Path(__file__).with_name("samples")
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a benchmark's data are published, and what their rows look like."""

    hub: str
    """Name of the data set."""
    subset: str | None
    """Its configuration, by default."""
    splits: Mapping[str, str]
    """Our split -> the name of the split in the data set."""
    fields: Mapping[str, tuple[str, ...]]
    """Our field -> its name in the data; or several, if published versions differ: the first that a row has is read."""
    sample: str
    """Beginning of the names of our sample's files."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Our field -> its value in rows that have none."""


class PublishedData:
    """Draws problems from published data. A mixin for `SingleTurnEnv` and `ToolEnv`; a task writes `to_problem`."""

    layout: ClassVar[Layout]
    divides_by_hash: ClassVar[bool] = False
    example_kwargs: ClassVar[Mapping[str, Any]] = {"data": SAMPLE}
    needs: ClassVar[Mapping[str, str]] = {}
    """Modules that the verdict needs, and the extra that has each."""
    split: str
    n_problems: int | None
    rows: Rows
    """The published rows of the split."""
    np_random: Any

    @abstractmethod
    def to_problem(self, fields: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Return the problem of a row.

        Args:
            fields: The row's values under our names.
            random: For what a problem leaves to chance.

        Raises:
            InvalidConfigError: If a value is wrong.
        """

    def use_data(self, data: str | Iterable[Mapping[str, Any]] | None, subset: str | None) -> None:
        """Find the rows of the split, and check the first.

        Raises:
            InvalidConfigError: If data are missing, or have other fields. The message describes the expected ones.
            MissingExtraError: If `datasets`, or a module of `needs`, is missing.
        """
        for module, extra in self.needs.items():
            if importlib.util.find_spec(module) is None:
                raise MissingExtraError(f"{type(self).__name__} needs {module}: pip install 'llm-envs[{extra}]'.")
        if data is None:
            raise InvalidConfigError(f"{type(self).__name__} needs data. {_expected(self.layout)}")
        if isinstance(data, str | Path):
            published = self.layout.splits[self.split]
            name = str(_SAMPLES / f"{self.layout.sample}-{{split}}.jsonl") if data == SAMPLE else str(data)
            path = Path(name := name.replace("{split}", self.split))
            changed = path.stat().st_mtime_ns if path.is_file() else 0
            try:
                self.rows = _rows_named(name, subset or self.layout.subset, published, changed)
            except InvalidConfigError as error:
                raise InvalidConfigError(f"{type(self).__name__}: {error} {_expected(self.layout)}") from error
        else:
            if isinstance(data, Mapping) or not isinstance(data, Iterable):
                raise InvalidConfigError(f"{type(self).__name__}: data is {data!r:.80}. {_expected(self.layout)}")
            # A `datasets.Dataset` stays on disk.
            self.rows = cast(Rows, data) if hasattr(data, "__getitem__") else list(data)
        if len(self.rows) == 0:
            raise InvalidConfigError(f"{type(self).__name__}: the data are empty. {_expected(self.layout)}")
        self.n_problems = len(self.rows)
        self.problem_at(0)

    def problem_at(self, index: int, random: Random = lambda: 0.0) -> dict[str, Any]:
        """Return the problem of a row of the split, from 0: for `EnvChoice(..., problems=...)`, which plays each once.

        Raises:
            InvalidConfigError: If the row has other fields.
        """
        row, fields = self.rows[index], dict(self.layout.defaults)
        if not isinstance(row, Mapping):
            raise InvalidConfigError(f"{type(self).__name__}: row {index} is {row!r:.80}. {_expected(self.layout)}")
        for name, published in self.layout.fields.items():
            found = [key for key in published if row.get(key) is not None]
            if not found and name in fields:
                continue
            if not found:
                raise InvalidConfigError(
                    f"{type(self).__name__}: row {index} lacks the field {' or '.join(map(repr, published))}; it has "
                    f"{list(row)}. {_expected(self.layout)}"
                )
            fields[name] = row[found[0]]
        try:
            return self.to_problem(fields, random)
        except InvalidConfigError as error:
            raise InvalidConfigError(
                f"{type(self).__name__}: in row {index} {error} {_expected(self.layout)}"
            ) from error

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the problem of each row of the split, in order. The seed decides what a row leaves to chance.

        Raises:
            InvalidConfigError: If a row has other fields.
        """
        for index in range(len(self.rows)):
            yield self.problem_at(index, np.random.default_rng([abs(seed), index]).random)

    def generate(self) -> dict[str, Any]:
        """Draw a row of the split."""
        return self.problem_at(between(self.np_random.random, 0, len(self.rows) - 1), self.np_random.random)


class PublishedEnv(PublishedData, GenerousForm, SingleTurnEnv):
    """Base of the benchmarks with one question and one reply."""

    difficulties = {"published": Difficulty("the rows as published", chance_rate=0.05)}
    default_difficulty = "published"
    has_natural_form = False

    def __init__(
        self,
        split: str | None = None,
        difficulty: str | None = None,
        render_mode: str | None = None,
        data: str | Iterable[Mapping[str, Any]] | None = None,
        subset: str | None = None,
        form: str = "official",
    ) -> None:
        super().__init__(self.splits[0] if split is None else split, difficulty, render_mode)
        self.use_form(form)
        self.use_data(data, subset)


def require_texts(fields: Mapping[str, Any], *names: str) -> None:
    """Refuse a row in which one of these is not a text, or is blank.

    Raises:
        InvalidConfigError: The message has the name.
    """
    for name in names:
        if not isinstance(fields[name], str) or not fields[name].strip():
            raise InvalidConfigError(f"{name} is {fields[name]!r:.80}; it must be a text.")


@lru_cache(maxsize=8)
def _rows_named(name: str, subset: str | None, split: str, changed: int) -> Rows:
    """Return the rows of a file or a data set. They are kept for the next instance, until the file changes."""
    if name.endswith(FILES):
        return read_rows(Path(name))[0]
    rows: Rows = load_data_set(name, subset, split)
    return rows


def _expected(layout: Layout) -> str:
    fields = ", ".join(" or ".join(map(repr, published)) for published in layout.fields.values())
    return (
        f"Pass data={layout.hub!r} (that data set of the hub, with `datasets`: pip install 'llm-envs[train]'), or a "
        f".jsonl, .csv or .parquet file of its layout ({{split}} in its path stands for {' or '.join(layout.splits)}), "
        f"or rows. The fields are {fields}. data='sample' is a few rows that we wrote in that layout."
    )
