"""The tasks of an evaluation, with their arguments and thresholds, from the command line or a YAML file.

n: 200
k: 4
min_success: 0.5
environments:
  - llm/Calculator-v0
  - env: llm/GuessNumber-v0
    difficulty: [easy, hard]
    kwargs: {max_turns: 12}
    n: 100
    min_success: 0.9
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from llm_envs.data.files import read_text
from llm_envs.data.yaml_files import read_yaml_text
from llm_envs.errors import InvalidConfigError, did_you_mean
from llm_envs.evaluation.results import Results
from llm_envs.evaluation.scores import TaskKey, key_of
from llm_envs.parsers.json_calls import strict_json
from llm_envs.sources.source import EnvChoice, EnvFactory, EpisodeSpec, SeedSource
from llm_envs.tracking.reasons import describe_reasons

__all__ = [
    "Suite",
    "SuiteEntry",
    "SuiteSource",
    "Thresholds",
    "asked_thresholds",
    "failed_thresholds",
    "load_suite",
    "unweighted",
]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Requirements of a task; None requires nothing. They apply to the measured value, not to an interval's end."""

    min_success: float | None = None
    min_mean_reward: float | None = None
    min_pass_at_k: float | None = None
    min_pass_hat_k: float | None = None
    max_errors: float | None = None
    """Largest share of episodes that may error; None allows no error."""


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """One task of a suite."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """Name in the results; if empty, the id, and the difficulty if given."""
    n: int = 200
    """Number of problems."""
    k: int = 1
    """Largest k of pass@k and pass^k."""
    thresholds: Thresholds = Thresholds()
    factory: EnvFactory | None = None
    """Makes the environment instead of `gymnasium.make` (an `AgentEnv`, ...); the id is then only its name."""
    problems: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    """The problems to play, in order, at least `n`; None: the seed decides."""

    @property
    def key(self) -> TaskKey:
        """The key that identifies the task."""
        return key_of(self.env_id, self.kwargs)

    @property
    def label(self) -> str:
        """The task's name, or the default name."""
        level = self.kwargs.get("difficulty")
        return self.name or (self.env_id if level is None else f"{self.env_id} {level}")


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks to play, and how often.

    Raises:
        InvalidConfigError: If the suite is empty, two entries are equal or have the same name, or k is above the
            samples.
    """

    entries: tuple[SuiteEntry, ...]
    samples: int
    """Episodes of each problem."""
    seed: int = 0
    """Decides the problems."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidConfigError("the suite has nothing to evaluate: give at least one environment.")
        for count, what in ((lambda e: e.key, "with the same arguments"), (lambda e: e.label, "under one name")):
            seen: set[Any] = set()
            for entry in self.entries:
                if count(entry) in seen:
                    raise InvalidConfigError(
                        f"{entry.label} occurs twice {what}: leave one out, or give them names (name: in a suite)."
                    )
                seen.add(count(entry))
        for entry in self.entries:
            if entry.k > self.samples:
                raise InvalidConfigError(
                    f"{entry.label}: k is {entry.k} but each problem has {self.samples} samples: k must be at most "
                    "that, or --group-size at least k."
                )

    @property
    def names(self) -> dict[TaskKey, str]:
        """The names of the tasks for a `Scoreboard`."""
        return {entry.key: entry.label for entry in self.entries}

    @property
    def n_episodes(self) -> int:
        """Total number of episodes."""
        return self.samples * sum(entry.n for entry in self.entries)


class SuiteSource(SeedSource):
    """The groups of a suite, task after task: the first `n` problems of each under the seed.

    Problem `i` of a task depends only on the seed and `i`, so two suites with a common task play equal problems.
    """

    def __init__(self, suite: Suite) -> None:
        choices = [EnvChoice(entry.env_id, 1.0, entry.kwargs, entry.factory, entry.problems) for entry in suite.entries]
        super().__init__(choices, seed=suite.seed)
        self._entries = suite.entries
        self._sources = [SeedSource(choice, seed=suite.seed, shuffle=False) for choice in choices]
        self._n = [entry.n for entry in suite.entries]

    def __len__(self) -> int:
        return sum(self._n)

    def spec(self, index: int) -> EpisodeSpec:
        """Return group `index`, whose id names the task and the problem."""
        place = index
        for entry, source, n in zip(self._entries, self._sources, self._n, strict=True):
            if place < n:
                return replace(source.spec(place), group_id=f"{entry.label}-{place:06d}")
            place -= n
        raise InvalidConfigError(f"group {index}: the suite has {len(self)} groups.")


def load_suite(path: str | Path, **given: Any) -> Suite:
    """Read a suite.

    Args:
        path: A YAML file, or one in JSON with a name that ends with .json.
        **given: Values that override the file's: `n`, `k`, `group_size`, `seed`, `split`, thresholds; None does not.

    Raises:
        InvalidConfigError: If the file cannot be read, or has an unknown or inconsistent setting.
    """
    data = _read(Path(path))
    top = {name: value for name, value in given.items() if value is not None}
    defaults = _take(data, f"{path}", {"environments", "group_size", "seed", "split", "difficulty", *_SHARED}) | top
    rows = defaults.get("environments")
    if not isinstance(rows, list) or not rows:
        raise InvalidConfigError(f"{path}: `environments` must be a list of ids, or of mappings with `env`.")
    entries = [entry for row in rows for entry in _entries(row, defaults, top, str(path))]
    samples = defaults.get("group_size")
    samples = max((entry.k for entry in entries), default=1) if samples is None else samples
    seed = defaults.get("seed", 0)
    _check_whole(f"{path}: group_size", samples, 1)
    _check_whole(f"{path}: seed", seed, None)
    return Suite(tuple(entries), samples, seed)


def unweighted(choices: Sequence[EnvChoice]) -> list[str]:
    """Return the ids of tasks that are each played on `n` problems.

    Raises:
        InvalidConfigError: If one has a weight, which would have no effect.
    """
    for choice in choices:
        if choice.weight != 1:
            raise InvalidConfigError(
                f"{choice.env_id}:{choice.weight:g}: an evaluation plays n problems of each task; leave the weight out."
            )
    return [choice.env_id for choice in choices]


def asked_thresholds(suite: Suite) -> dict[str, dict[str, float]]:
    """Return the thresholds of each task as results store them: a task's name -> threshold -> number."""
    asked = {
        entry.label: {name: value for name in _THRESHOLDS if (value := getattr(entry.thresholds, name)) is not None}
        for entry in suite.entries
    }
    return {label: found for label, found in asked.items() if found}


def failed_thresholds(results: Results, suite: Suite) -> list[str]:
    """Return a line for each threshold that a task fails, and for each task without a scored episode.

    A suite's task without a result fails too (`--replay` may score a run of other tasks).
    """
    entries, there = {entry.key: entry for entry in suite.entries}, {key_of(t.env_id, t.env_kwargs) for t in results}
    lines = [
        f"{entry.label}: it is in the suite but not in the results" for entry in suite.entries if entry.key not in there
    ]
    for task in results:
        entry = entries.get(key_of(task.env_id, task.env_kwargs))
        asked = Thresholds() if entry is None else entry.thresholds
        if task.n_scored == 0:
            lines.append(
                f"{task.name}: none of {task.n_episodes} episodes was scored ({describe_reasons(task.errors)})"
            )
        found = {
            "min_success": ("success", task.success.value),
            "min_mean_reward": ("reward", task.reward.value),
            "min_pass_at_k": (f"pass@{task.k}", task.pass_at[task.k].value),
            "min_pass_hat_k": (f"pass^{task.k}", task.pass_hat[task.k].value),
        }
        for name, (what, value) in found.items():
            least = getattr(asked, name)
            if least is not None and task.n_scored and not value >= least:  # NaN fails every threshold
                lines.append(f"{task.name}: {what} is {value:.4g}, below {least:g}")
        if task.error_rate > (asked.max_errors or 0.0):
            share = f"{task.n_errored} of {task.n_episodes} episodes errored ({describe_reasons(task.errors)})"
            lines.append(f"{task.name}: {share}, more than {asked.max_errors or 0:.3g} of them (--max-errors)")
    return lines


_THRESHOLDS = tuple(f.name for f in fields(Thresholds))
_SHARED = ("n", "k", *_THRESHOLDS)


def _entries(row: Any, defaults: Mapping[str, Any], top: Mapping[str, Any], path: str) -> list[SuiteEntry]:
    from llm_envs.sources.mixture_text import parse_mixture

    row = {"env": row} if isinstance(row, str) else row
    if not isinstance(row, Mapping) or not isinstance(row.get("env"), str):
        raise InvalidConfigError(f"{path}: {row!r} is not an environment: give an id, or a mapping with `env`.")
    where = f"{path}, {row['env']}"
    own = _take(row, where, {"env", "name", "kwargs", "split", "difficulty", *_SHARED})
    merged = {**defaults, **own, **{name: value for name, value in top.items() if name not in ("group_size", "seed")}}
    kwargs = own.get("kwargs") or {}
    if not isinstance(kwargs, Mapping) or not _is_json(kwargs):
        raise InvalidConfigError(
            f"{where}: kwargs is {kwargs!r}; it must be a mapping of JSON types: put dates, and names that are "
            "numbers, in quotes."
        )
    split = merged.get("split", "test")
    kwargs = ({} if split in (None, "none") else {"split": split}) | dict(kwargs)
    n, k = merged.get("n", 200), merged.get("k", 1)
    for name, value in (("n", n), ("k", k)):
        _check_whole(f"{where}: {name}", value, 1)
    thresholds = Thresholds(**{name: _number(f"{where}: {name}", merged.get(name)) for name in _THRESHOLDS})
    levels = merged.get("difficulty")
    env_ids = unweighted(parse_mixture([row["env"]]))
    several = len(env_ids) > 1 or isinstance(levels, list)
    if own.get("name") and several:
        raise InvalidConfigError(f"{where}: one name for several tasks; leave it out.")
    return [
        SuiteEntry(
            env_id,
            kwargs if level is None else {**kwargs, "difficulty": level},
            str(own.get("name") or ""),
            n,
            k,
            thresholds,
        )
        for env_id in env_ids
        for level in (levels if isinstance(levels, list) else [levels])
    ]


def _take(data: Mapping[str, Any], where: str, known: set[str]) -> dict[str, Any]:
    for name in data:
        if name not in known:
            hint = did_you_mean(str(name), sorted(known)) or f" Known are {', '.join(sorted(known))}."
            raise InvalidConfigError(f"{where}: unknown setting {name!r}.{hint}")
    return dict(data)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"--suite {path}: it cannot be read ({error}).") from error
    try:
        data = strict_json(text) if path.suffix == ".json" else read_yaml_text(text)  # YAML refuses JSON with tabs
    except ValueError as error:
        form = "JSON" if path.suffix == ".json" else "YAML"
        raise InvalidConfigError(f"--suite {path}: it is not {form} ({' '.join(str(error).split())}).") from error
    if not isinstance(data, dict):
        raise InvalidConfigError(f"--suite {path}: it must be a mapping with `environments`.")
    return data


def _check_whole(what: str, value: Any, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise InvalidConfigError(
            f"{what} is {value!r}; it must be an integer{'' if least is None else f' from {least}'}."
        )


def _is_json(value: Any) -> bool:
    """Return whether JSON can have a value: YAML also has dates, and names that are numbers."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _number(what: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise InvalidConfigError(f"{what} is {value!r}; it must be a number.")
    return float(value)
