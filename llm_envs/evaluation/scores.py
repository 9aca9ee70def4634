"""The numbers that an evaluation keeps of each trajectory, and the statistics over them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.results import Measure, Problem, TaskResult
from llm_envs.evaluation.statistics import (
    NOTHING_KNOWN,
    Interval,
    bootstrap_interval,
    bootstrap_means,
    clustered_error,
    clustered_interval,
    clustered_rate_interval,
    normal_quantile,
    pass_at_k,
    pass_hat_k,
    percentile_interval,
    rate_interval,
)
from llm_envs.tracking.reasons import add_reason
from llm_envs.types import Trajectory

__all__ = ["EpisodeScore", "Scoreboard", "average_rate", "measure", "score_episode", "summarize_task"]

TaskKey = tuple[str, str]
"""(environment id, its arguments as JSON): the key of a task."""


@dataclass(frozen=True, slots=True)
class EpisodeScore:
    """The numbers that are kept of an episode."""

    seed: int
    member: int
    status: str
    success: float
    reward: float
    components: Mapping[str, float]
    stop_reason: str
    turns: int
    malformed: int | None
    """Number of malformed turns; None if the task does not report them."""
    is_truncated: bool
    tokens: int
    """Of all rows; 0 without token rows."""
    sampled_tokens: int
    seconds: float
    why_unscored: str | None


def score_episode(trajectory: Trajectory) -> EpisodeScore:
    """Return the score of a trajectory. A turn is malformed if its component `malformed` is not 0."""
    marks = [turn.components["malformed"] for turn in trajectory.turns if "malformed" in turn.components]
    return EpisodeScore(
        seed=trajectory.seed,
        member=trajectory.member,
        status=trajectory.status,
        success=float(trajectory.is_success is True),
        reward=trajectory.reward,
        components=trajectory.components,
        stop_reason=trajectory.stop_reason.value,
        turns=trajectory.n_steps,
        malformed=sum(mark != 0 for mark in marks) if marks else None,
        is_truncated=trajectory.truncated,
        tokens=trajectory.n_tokens,
        sampled_tokens=trajectory.n_sampled_tokens,
        seconds=float(trajectory.timings.get("total", math.nan)),
        why_unscored=trajectory.why_unscored,
    )


class Scoreboard:
    """Collects the scores of episodes; pass `add` to a collector as `on_trajectory`.

    Args:
        names: (environment id, arguments) -> the task's name. Other tasks are named by their id, and by the arguments
            that distinguish them from others with that id.
    """

    def __init__(self, names: Mapping[TaskKey, str] | None = None) -> None:
        self.n_episodes = 0
        self._names = dict(names or {})
        self._scores: dict[TaskKey, list[EpisodeScore]] = {key: [] for key in self._names}

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        self.n_episodes += 1
        self._scores.setdefault(key_of(trajectory.env_id, trajectory.env_kwargs), []).append(score_episode(trajectory))

    def results(self, *, k: Mapping[str, int] | int | None = None, confidence: float = 0.95) -> tuple[TaskResult, ...]:
        """Return each task's result.

        Args:
            k: The largest k of pass@k and pass^k, for all tasks or by a task's name; None: the number of samples.
            confidence: Of all intervals.

        Raises:
            InvalidConfigError: If k is above the samples of every problem of a task.
        """
        names = _names_of(list(self._scores), self._names)
        return tuple(
            summarize_task(
                names[key],
                key[0],
                json.loads(key[1]),
                scores,
                k=k.get(names[key]) if isinstance(k, Mapping) else k,
                confidence=confidence,
            )
            for key, scores in self._scores.items()
            if scores
        )


def key_of(env_id: str, env_kwargs: Mapping[str, Any]) -> TaskKey:
    """Return the key that identifies a task."""
    return env_id, json.dumps(dict(env_kwargs), sort_keys=True)


def summarize_task(
    name: str,
    env_id: str,
    env_kwargs: Mapping[str, Any],
    scores: Sequence[EpisodeScore],
    *,
    k: int | None = None,
    confidence: float = 0.95,
) -> TaskResult:
    """Return the result of the episodes of one task. Means are over the scored episodes, by problem (a seed).

    A problem counts for pass@k and pass^k if k of its samples were scored.
    """
    problems: dict[int, list[EpisodeScore]] = {}
    scores = sorted(scores, key=lambda score: (score.seed, score.member))
    for score in scores:
        problems.setdefault(score.seed, []).append(score)
    scored = [[score for score in samples if score.status == "ok"] for samples in problems.values()]
    flat = [score for samples in scored for score in samples]
    successes = [[score.success for score in samples] for samples in scored]
    rewards = [[score.reward for score in samples] for samples in scored]

    def passes(estimate: Any, k: int) -> Measure:
        known = [s for s in successes if len(s) >= k]
        estimates = [[estimate(len(s), round(sum(s)), k)] for s in known]
        return measure(estimates, is_rate=True, n_trials=sum(map(len, known)), confidence=confidence)

    ks = _ks(k, max(map(len, problems.values()), default=1), name)
    malformed = [score for score in flat if score.malformed is not None]
    reasons: Counter[str] = Counter()
    for score in scores:
        if score.why_unscored is not None:
            add_reason(reasons, score.why_unscored)
    return TaskResult(
        name=name,
        env_id=env_id,
        env_kwargs=dict(env_kwargs),
        n_problems=len(problems),
        n_episodes=len(scores),
        n_scored=len(flat),
        n_errored=sum(score.status == "errored" for score in scores),
        n_unscored=sum(score.status == "unscored" for score in scores),
        success=measure(successes, is_rate=True, confidence=confidence),
        reward=measure(rewards, confidence=confidence),
        pass_at={k: passes(pass_at_k, k) for k in ks},
        pass_hat={k: passes(pass_hat_k, k) for k in ks},
        components={name: measure(values, confidence=confidence) for name, values in _components(scored).items()},
        stop_reasons=dict(Counter(score.stop_reason for score in scores).most_common()),
        errors=dict(reasons.most_common()),
        malformed_turns=_mean(
            [sum(score.malformed or 0 for score in malformed)], sum(score.turns for score in malformed)
        ),
        malformed_episodes=_mean([score.malformed != 0 for score in malformed]),
        truncated=_mean([score.is_truncated for score in flat]),
        turns=_mean([score.turns for score in flat]),
        tokens=_mean([score.tokens for score in flat]),
        sampled_tokens=_mean([score.sampled_tokens for score in flat]),
        seconds=_mean([score.seconds for score in flat]),
        problems=tuple(
            Problem(seed, tuple(bool(value) for value in won), tuple(earned))
            for seed, won, earned in zip(problems, successes, rewards, strict=True)
        ),
    )


def _components(scored: Sequence[Sequence[EpisodeScore]]) -> dict[str, list[list[float]]]:
    """Return the values of each reward component by problem, from the samples that have it."""
    names = sorted({name for samples in scored for score in samples for name in score.components})
    return {
        name: [[s.components[name] for s in samples if name in s.components] for samples in scored] for name in names
    }


def measure(
    problems: Sequence[Sequence[float]],
    *,
    is_rate: bool = False,
    n_trials: int | None = None,
    confidence: float = 0.95,
) -> Measure:
    """Return a mean with its intervals by problem: analytic (Wilson's of a rate, else Student's) and bootstrap."""
    mean, error, n = clustered_error(problems)
    if is_rate:
        analytic = clustered_rate_interval(problems, confidence, n_trials=n_trials)
    else:
        analytic = clustered_interval(problems, confidence)
    return Measure(mean, error, analytic, bootstrap_interval(problems, confidence), n)


def average_rate(tasks: Iterable[TaskResult], *, confidence: float = 0.95) -> Measure:
    """Return the mean success of several tasks, with equal weights regardless of their numbers of problems.

    The tasks are not a random sample, so the intervals account only for the problems. error = √(Σ error²) / tasks; the
    analytic interval is Wilson's with the number of trials that gives this error, and the bootstrap resamples the
    problems of each task separately. A single task keeps its own intervals.
    """
    known = [[[float(won) for won in p.successes] for p in task.problems] for task in tasks if task.n_scored]
    if len(known) == 1:
        return measure(known[0], is_rate=True, confidence=confidence)
    parts = [clustered_error(problems) for problems in known]
    if not parts:
        return Measure(math.nan, math.inf, Interval(0.0, 1.0), NOTHING_KNOWN, 0)
    mean = sum(part[0] for part in parts) / len(parts)
    error = math.sqrt(sum(part[1] ** 2 for part in parts)) / len(parts)
    n_problems, n = sum(part[2] for part in parts), sum(len(values) for problems in known for values in problems)
    independent = mean * (1 - mean)
    trials = float(n_problems) if independent <= 1e-12 else min(n, independent / error**2 if error else float(n))
    draws = [bootstrap_means(problems, seed=seed) for seed, problems in enumerate(known)]
    bootstrap = percentile_interval(np.mean(draws, axis=0), confidence) if n_problems > len(parts) else NOTHING_KNOWN
    return Measure(mean, error, rate_interval(mean, trials, normal_quantile(confidence)), bootstrap, n_problems)


def _ks(k: int | None, n_samples: int, name: str) -> list[int]:
    """Return 1, 2, 4, ... and k."""
    largest = n_samples if k is None else k
    if largest > n_samples:
        raise InvalidConfigError(
            f"k is {k}, but no problem of {name} has more than {n_samples} samples: k is at most that."
        )
    return sorted({2**power for power in range(largest.bit_length()) if 2**power < largest} | {largest})


def _mean(values: Sequence[float], n: int | None = None) -> float:
    count = len(values) if n is None else n
    return sum(values) / count if count else math.nan


def _names_of(keys: Sequence[TaskKey], given: Mapping[TaskKey, str]) -> dict[TaskKey, str]:
    """Name tasks by their ids and difficulties, adding other arguments only if these are not unique."""
    names: dict[TaskKey, str] = {}
    for key in keys:
        kwargs: dict[str, Any] = json.loads(key[1])
        level = kwargs.get("difficulty")
        names[key] = given.get(key) or (key[0] if level is None else f"{key[0]} {level}")
    counts = Counter(names.values())
    for key, name in names.items():
        if counts[name] > 1 and key not in given:
            rest = {other: value for other, value in json.loads(key[1]).items() if other != "difficulty"}
            names[key] = f"{name} {json.dumps(rest)}" if rest else name
    return names
