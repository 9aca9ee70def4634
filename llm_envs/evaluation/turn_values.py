"""Monte Carlo values of the turns of an episode: the mean return of continuations, with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from llm_envs.evaluation.statistics import NOTHING_KNOWN, Interval, student_quantile, wilson_interval
from llm_envs.policies.base import Policy
from llm_envs.rollout.fork import branch_each
from llm_envs.sources.source import EnvFactory
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["TurnValue", "turn_values", "values_of"]


class TurnValue(NamedTuple):
    """The value of the state before a turn, under the policy that played on from there."""

    turn: int
    n: int
    """Continuations that were scored."""
    mean: float
    """Their mean return from this turn on; NaN without any."""
    interval: Interval


def turn_values(
    trajectory: Trajectory,
    n: int,
    policy: Policy,
    *,
    turns: Sequence[int] | None = None,
    gamma: float = 1.0,
    confidence: float = 0.95,
    env: EnvFactory | None = None,
    **collector: Any,
) -> list[TurnValue]:
    """Return the values of an episode's turns, each from `n` continuations, all played concurrently.

    Args:
        trajectory: The episode.
        n: Continuations of each turn.
        policy: A policy of the kind that played the episode.
        turns: Their indices; None: all.
        gamma: Discount of one turn.
        confidence: Of each interval, for itself.
        env: Makes the environment; None: `gymnasium.make`.
        collector: Further arguments of `Collector`; see `rollout.branch`.

    Raises:
        InvalidConfigError: See `rollout.branch`.
        ReplayError: See `rollout.branch`.
    """
    chosen = range(len(trajectory.turns)) if turns is None else turns
    groups = branch_each(trajectory, chosen, n, policy, env=env, **collector)
    return values_of(groups, chosen, gamma=gamma, confidence=confidence)


def values_of(
    groups: Iterable[TrajectoryGroup], turns: Iterable[int], *, gamma: float = 1.0, confidence: float = 0.95
) -> list[TurnValue]:
    """Return the value of each turn from the group that was branched at it.

    The interval is Student's. If all returns at a turn are equal, another return may still have a share of at most u,
    the upper bound of Wilson's interval for 0 of n: the interval then reaches the share u of the way to the least and
    the greatest return of all turns. If all turns have one return, nothing is known of others.

    Args:
        groups: The continuations of each turn.
        turns: The turns.
        gamma: Discount of one turn.
        confidence: Of each interval.
    """
    returns = [
        (turn, [sum(gamma**k * t.reward for k, t in enumerate(member.turns[turn:])) for member in group.scored])
        for turn, group in zip(turns, groups, strict=True)
    ]
    everything = [value for _, values in returns for value in values]
    low, high = min(everything, default=0.0), max(everything, default=0.0)
    return [
        TurnValue(turn, len(values), fmean(values) if values else math.nan, _interval(values, low, high, confidence))
        for turn, values in returns
    ]


def _interval(values: Sequence[float], low: float, high: float, confidence: float) -> Interval:
    n = len(values)
    if n == 0 or low == high:
        return NOTHING_KNOWN
    if len(set(values)) == 1:
        (value,), unseen = set(values), wilson_interval(0, n, confidence).high
        return Interval(value - unseen * (value - low), value + unseen * (high - value))
    half = student_quantile(confidence, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(fmean(values) - half, fmean(values) + half)
