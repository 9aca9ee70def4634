"""Compare two policies on the same problems: the difference with an interval, and wins and losses by problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.results import Problem, Results, TaskResult, plain
from llm_envs.evaluation.scores import TaskKey, key_of
from llm_envs.evaluation.statistics import (
    NOTHING_KNOWN,
    Interval,
    bootstrap_interval,
    bootstrap_means,
    paired_interval,
    percentile_interval,
    sign_test,
)
from llm_envs.evaluation.suite import Suite, SuiteSource

__all__ = ["Comparison", "Difference", "TaskComparison", "check_comparable", "compare"]


_REWARDS = ("rescored", "agent_reward")
"""Settings that tell the rewards of a run: by `llm-envs rescore`, and an agent's reward function."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The means of two policies over the same problems, and the difference."""

    this: float
    that: float
    value: float
    """this - that; above 0 this policy is better. The mean of the differences of the problems."""
    error: float
    """Standard error of the paired difference."""
    interval: Interval
    """The analytic interval. For success it has Bonett and Price's adjustment (`statistics.paired_interval`), which
    adds two problems: one with the smallest difference that the samples can show, and one with its opposite. If no
    problem differs, that difference is 1."""
    bootstrap: Interval
    """By resampling problems."""


@dataclass(frozen=True, slots=True)
class TaskComparison:
    """Two policies on one task."""

    name: str
    n_problems: int
    """Problems for which both have scored samples."""
    left_out: int
    """Problems for which one of them has no scored sample."""
    success: Difference
    reward: Difference
    wins: int
    """Problems that this policy solves in a larger share of its samples."""
    losses: int
    ties: int
    both: int
    """Problems that both solve in at least one sample."""
    only_this: int
    only_that: int
    neither: int
    p_value: float
    """p-value of the sign test on wins and losses; with one sample per problem this is McNemar's exact test."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations, task by task."""

    this: str
    that: str
    tasks: tuple[TaskComparison, ...]
    success: Difference
    """Mean over the tasks with equal weights; its intervals account for the problems."""
    settings: Mapping[str, tuple[Any, Any]]
    """Settings that differ: name -> (this, that); None if one does not have the setting."""
    confidence: float

    @property
    def has_other_rewards(self) -> bool:
        """Whether the two runs record different rewards; then rewards, and perhaps successes, do not compare."""
        return not self.settings.keys().isdisjoint(_REWARDS)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types; non-finite numbers become None."""
        taken: dict[str, Any] = plain(self)
        return taken


def compare(
    this: Results, that: Results, *, names: tuple[str, str] = ("this", "that"), confidence: float = 0.95
) -> Comparison:
    """Compare two evaluations of the same tasks on the same problems.

    Args:
        this: The evaluation of interest.
        that: The evaluation to compare it with.
        names: Their names.
        confidence: Confidence of the intervals.

    Raises:
        InvalidConfigError: If their tasks, a task's arguments, or the problems differ.
    """
    _check_same(_seeds(this), _seeds(that), names)
    ours, theirs = ({key_of(task.env_id, task.env_kwargs): task for task in results} for results in (this, that))
    tasks, differences = [], []
    for key, task in ours.items():
        found, by_problem = _compare_task(task, theirs[key], confidence)
        tasks.append(found)
        differences.append(by_problem)
    average = _average(tasks, differences, confidence)
    return Comparison(*names, tuple(tasks), average, _differing(this.settings, that.settings), confidence)


def check_comparable(suite: Suite, that: Results, *, names: tuple[str, str] = ("this", "that")) -> None:
    """Check, before a suite is played, that its results can be compared with the given ones.

    Raises:
        InvalidConfigError: In the same cases as `compare` after the evaluation.
    """
    source, seeds, place = SuiteSource(suite), {}, 0
    for entry in suite.entries:
        seeds[entry.key] = entry.label, frozenset(source.spec(place + index).seed for index in range(entry.n))
        place += entry.n
    _check_same(seeds, _seeds(that), names)


def _compare_task(this: TaskResult, that: TaskResult, confidence: float) -> tuple[TaskComparison, list[float]]:
    ours, theirs = ({problem.seed: problem for problem in task.problems} for task in (this, that))
    pairs = [(ours[s], theirs[s]) for s in ours if ours[s].successes and theirs[s].successes]
    by_problem = [_share(a) - _share(b) for a, b in pairs]
    # Without any difference, the data do not show the smallest possible one.
    least = 1 / max((min(len(a.successes), len(b.successes)) for a, b in pairs), default=1) if any(by_problem) else 1.0
    success = _difference([(_share(a), _share(b)) for a, b in pairs], confidence, least)
    reward = _difference([(fmean(a.rewards), fmean(b.rewards)) for a, b in pairs], confidence)
    wins, losses = sum(d > 1e-12 for d in by_problem), sum(d < -1e-12 for d in by_problem)
    solved = [(any(a.successes), any(b.successes)) for a, b in pairs]
    found = TaskComparison(
        name=this.name,
        n_problems=len(pairs),
        left_out=len(ours) - len(pairs),
        success=success,
        reward=reward,
        wins=wins,
        losses=losses,
        ties=len(pairs) - wins - losses,
        both=solved.count((True, True)),
        only_this=solved.count((True, False)),
        only_that=solved.count((False, True)),
        neither=solved.count((False, False)),
        p_value=sign_test(wins, losses),
    )
    return found, by_problem


def _difference(pairs: Sequence[tuple[float, float]], confidence: float, smallest: float = 0.0) -> Difference:
    differences = [one - other for one, other in pairs]
    mean, error, interval = paired_interval(differences, confidence, smallest=smallest)
    if abs(mean) <= 1e-12 * max(map(abs, differences), default=0.0):
        mean = 0.0  # the differences cancel; ignore the rounding error
    this, that = (fmean(column) if column else math.nan for column in ([p[i] for p in pairs] for i in (0, 1)))
    return Difference(this, that, mean, error, interval, bootstrap_interval([[d] for d in differences], confidence))


def _average(tasks: Sequence[TaskComparison], differences: Sequence[Sequence[float]], confidence: float) -> Difference:
    """Average over the tasks; a single task keeps its own intervals."""
    known = [(task.success, by_problem) for task, by_problem in zip(tasks, differences, strict=True) if by_problem]
    if len(known) == 1:
        return known[0][0]
    if not known:
        return Difference(math.nan, math.nan, math.nan, math.inf, NOTHING_KNOWN, NOTHING_KNOWN)
    parts = [part for part, _ in known]
    this, that, value = (fmean(getattr(part, name) for part in parts) for name in ("this", "that", "value"))
    error = math.sqrt(sum(part.error**2 for part in parts)) / len(parts)
    if not math.isfinite(error):
        return Difference(this, that, value, error, NOTHING_KNOWN, NOTHING_KNOWN)
    # The tasks are independent, so the half-widths of their intervals add up like errors.
    centre = fmean((part.interval.low + part.interval.high) / 2 for part in parts)
    half = math.sqrt(sum(((part.interval.high - part.interval.low) / 2) ** 2 for part in parts)) / len(parts)
    draws = [bootstrap_means([[d] for d in by_problem], seed=seed) for seed, (_, by_problem) in enumerate(known)]
    bootstrap = percentile_interval(np.mean(draws, axis=0), confidence)
    return Difference(this, that, value, error, Interval(centre - half, centre + half), bootstrap)


def _share(problem: Problem) -> float:
    return sum(problem.successes) / len(problem.successes)


Seeds = Mapping[TaskKey, tuple[str, frozenset[int]]]
"""The key of a task -> its name, and the seeds of its problems."""


def _seeds(results: Results) -> Seeds:
    return {
        key_of(task.env_id, task.env_kwargs): (task.name, frozenset(problem.seed for problem in task.problems))
        for task in results
    }


def _check_same(ours: Seeds, theirs: Seeds, names: tuple[str, str]) -> None:
    only = [[key for key in one if key not in other] for one, other in ((ours, theirs), (theirs, ours))]
    if any(only):
        differences = [
            f"only {name} has {', '.join(f'{key[0]} {key[1]}' for key in keys[:3])}{', ...' if keys[3:] else ''}"
            for name, keys in zip(names, only, strict=True)
            if keys
        ]
        raise InvalidConfigError(
            f"the evaluations have different tasks or arguments: {'; '.join(differences)}. Evaluate both on the same."
        )
    for key, (label, seeds) in ours.items():
        others = theirs[key][1]
        if seeds != others:
            raise InvalidConfigError(
                f"{label}: the seeds do not match: {names[0]} has {len(seeds)} problems, {names[1]} {len(others)}, and "
                f"{len(seeds & others)} are the same. A paired comparison needs the same problems: the same --seed "
                "and -n."
            )


def _differing(this: Mapping[str, Any], that: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, except those that name the suite's tasks. None means not set."""
    names = [name for name in {**this, **that} if name not in ("eval", "envs") and this.get(name) != that.get(name)]
    return {name: (this.get(name), that.get(name)) for name in names}
