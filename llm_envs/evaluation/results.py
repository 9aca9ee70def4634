"""The results of an evaluation, and their file: `results.json`, with versions, seeds and settings."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llm_envs.data.files import read_text, replacing
from llm_envs.data.json_files import NO_JSON, problem_of
from llm_envs.data.storage import as_path
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.statistics import Interval

__all__ = ["RESULTS_NAME", "RESULTS_VERSION", "Measure", "Problem", "Results", "TaskResult", "installed_versions"]

RESULTS_NAME = "results.json"
RESULTS_VERSION = 1
"""Version of the file's format; other versions are refused."""

_FORMAT = "llm-envs results"
_PACKAGES = ("llm-envs", "gymnasium", "numpy", "torch", "transformers", "vllm")


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over scored episodes, with its intervals by problem."""

    value: float
    """NaN if nothing was scored."""
    error: float
    """Cluster-robust standard error; inf with fewer than two problems."""
    interval: Interval
    """Analytic."""
    bootstrap: Interval
    """By resampling problems, percentiles."""
    n_problems: int
    """Number of problems with a value."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The scored samples of one problem, in member order; empty if all of them failed."""

    seed: int
    successes: tuple[bool, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The measurements of one task: an environment with its arguments. Means are over the scored episodes."""

    name: str
    env_id: str
    env_kwargs: Mapping[str, Any]
    n_problems: int
    n_episodes: int
    n_scored: int
    n_errored: int
    n_unscored: int
    success: Measure
    reward: Measure
    pass_at: Mapping[int, Measure]
    """k -> unbiased estimate that at least one of k samples succeeds; over the problems with k scored samples."""
    pass_hat: Mapping[int, Measure]
    """k -> unbiased estimate that all of k samples succeed."""
    components: Mapping[str, Measure]
    """Components of the reward before weights, each summed over an episode."""
    stop_reasons: Mapping[str, int]
    """Counts over all episodes."""
    errors: Mapping[str, int]
    """Why episodes have no score -> their number (`tracking.reasons`)."""
    malformed_turns: float
    """Share of malformed turns; NaN if the task does not report them."""
    malformed_episodes: float
    """Share of episodes with such a turn."""
    truncated: float
    """Share of episodes cut by a limit of the task or the collector."""
    turns: float
    tokens: float
    """Mean tokens of all rows; 0 without token rows."""
    sampled_tokens: float
    """Mean tokens that the policy wrote."""
    seconds: float
    """Mean wall time of an episode while the other episodes were running."""
    problems: tuple[Problem, ...] = field(repr=False)

    @property
    def difficulty(self) -> str | None:
        """The level in the arguments; None means the task's default."""
        level = self.env_kwargs.get("difficulty")
        return None if level is None else str(level)

    @property
    def k(self) -> int:
        """The largest k of pass@k."""
        return max(self.pass_at)

    @property
    def error_rate(self) -> float:
        """Share of all episodes that errored."""
        return self.n_errored / self.n_episodes if self.n_episodes else math.nan

    @property
    def unscored_rate(self) -> float:
        """Share of all episodes that were unscored for a reason other than an error."""
        return self.n_unscored / self.n_episodes if self.n_episodes else math.nan


@dataclass(frozen=True, slots=True)
class Results:
    """An evaluation: each task's result, the mean over tasks, and the data for repeating it."""

    tasks: tuple[TaskResult, ...]
    success: Measure
    """Mean of the tasks' success rates."""
    by_difficulty: Mapping[str, Measure]
    """Level -> mean success of the tasks at this level; tasks without a level count as "default"."""
    settings: Mapping[str, Any]
    """Everything that decides which episodes are played and how: tasks, seed, samples, sampling, limits, policy."""
    versions: Mapping[str, str]
    """Versions of this package and its dependencies when the scores were computed."""
    played_with: Mapping[str, str] = field(default_factory=dict)
    """The versions when the episodes were played; empty if unknown."""
    confidence: float = 0.95
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """A task's name -> its thresholds, by the names of `suite.Thresholds`; empty without thresholds."""

    def __iter__(self) -> Iterator[TaskResult]:
        return iter(self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; non-finite numbers become None."""
        return {"format": _FORMAT, "version": RESULTS_VERSION} | {
            item.name: plain(getattr(self, item.name)) for item in fields(self)
        }

    def to_json(self) -> str:
        """Return `to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)

    def save(self, folder: str | Path) -> Path:
        """Write `results.json` into a folder atomically, and return its path.

        Raises:
            InvalidConfigError: If the folder cannot be written to.
        """
        target = Path(folder) / RESULTS_NAME
        temporary = target.with_name(target.name + ".tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "w", encoding="utf-8", errors="backslashreplace", opener=replacing) as file:
                file.write(self.to_json() + "\n")
            temporary.replace(target)
        except OSError as error:
            raise InvalidConfigError(
                f"{target} cannot be written ({error.strerror}): choose another folder."
            ) from error
        return target

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read the results from a file, or from the folder that has it.

        Raises:
            InvalidConfigError: If the file is missing, damaged, or of another version.
        """
        file = as_path(path)
        file = file / RESULTS_NAME if file.is_dir() else file
        try:
            data: Any = json.loads(read_text(file))
        except OSError as error:
            raise InvalidConfigError(f"{file} cannot be read ({error.strerror}).") from error
        except NO_JSON as error:
            raise InvalidConfigError(f"{file} is damaged: it is not JSON ({problem_of(error)}).") from error
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InvalidConfigError(f"{file} holds no results: it was not written by `llm-envs eval --out`.")
        if (found := data.get("version")) != RESULTS_VERSION:
            is_newer = isinstance(found, int | float) and found > RESULTS_VERSION
            versions = data.get("versions")
            writer = versions.get("llm-envs", "unknown") if isinstance(versions, dict) else "unknown"
            again = "its episodes again: llm-envs eval --replay DIR --out DIR"
            raise InvalidConfigError(
                f"{file} is of version {found}, which is newer: this llm-envs reads {RESULTS_VERSION}. Use the version "
                f"that wrote it ({writer}), or score {again}."
                if is_newer
                else f"{file} is of version {found!r}; this llm-envs reads {RESULTS_VERSION}. Score {again}."
            )
        try:
            return cls(
                tasks=tuple(_task(task) for task in data["tasks"]),
                success=_measure(data["success"]),
                by_difficulty={level: _measure(found) for level, found in data["by_difficulty"].items()},
                settings=data["settings"],
                versions=data["versions"],
                played_with=data["played_with"],
                confidence=float(data["confidence"]),
                thresholds=data.get("thresholds", {}),
            )
        except (KeyError, OverflowError, TypeError, ValueError, AttributeError) as error:
            raise InvalidConfigError(f"{file} is damaged ({type(error).__name__}: {error}).") from error


def installed_versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed ones among these packages, without importing any.

    If a package is installed under another name (vLLM's CPU builds), that name's version is used.
    """
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if find_spec(package.replace("-", "_")) is not None:
                for other in packages_distributions().get(package.replace("-", "_"), [])[:1]:
                    found[package] = version(other)
    return found


def plain(value: Any) -> Any:
    """Return JSON types; dataclasses become mappings, and non-finite numbers None."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _task(data: Mapping[str, Any]) -> TaskResult:
    values = {item.name: data[item.name] for item in fields(TaskResult)}
    for name in ("success", "reward"):
        values[name] = _measure(data[name])
    for name in ("pass_at", "pass_hat"):
        values[name] = {int(k): _measure(found) for k, found in data[name].items()}
    values["components"] = {name: _measure(found) for name, found in data["components"].items()}
    values["problems"] = tuple(
        Problem(int(found["seed"]), tuple(found["successes"]), tuple(found["rewards"])) for found in data["problems"]
    )
    numbers = ("malformed_turns", "malformed_episodes", "truncated", "turns", "tokens", "sampled_tokens", "seconds")
    for name in numbers:
        values[name] = math.nan if data[name] is None else float(data[name])
    return TaskResult(**values)


def _measure(data: Mapping[str, Any]) -> Measure:
    def number(value: float | None, missing: float) -> float:
        return missing if value is None else float(value)

    ends = [
        Interval(number(data[name][0], -math.inf), number(data[name][1], math.inf))
        for name in ("interval", "bootstrap")
    ]
    value, error = number(data["value"], math.nan), number(data["error"], math.inf)
    return Measure(value, error, ends[0], ends[1], int(data["n_problems"]))
