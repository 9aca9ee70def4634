"""Rewards on a common scale, and relative to the members of a group. Arrays in, arrays out.

Rewards are float arrays with one entry per trajectory; `_B` is the row and `_K` the part. NaN means that a trajectory
has no score: it stays NaN and is ignored elsewhere. `groups` has the group of each row (any hashable); None makes the
batch one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError

__all__ = [
    "Normalizer",
    "RunningMoments",
    "centered",
    "min_max",
    "pareto_fronts",
    "pareto_rewards",
    "ranks",
    "relative_rewards",
    "z_score",
]

FloatArray = npt.NDArray[np.float64]
Groups = Sequence[Hashable] | None
Normalizer = Callable[[npt.ArrayLike, Groups], FloatArray]
"""(rewards (B,), groups) -> rewards (B,). Use `functools.partial` to set further arguments."""

TRL_EPSILON = 1e-4
"""The epsilon that TRL adds to a standard deviation."""


def _members(rewards_B: FloatArray, groups: Groups) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the indices of each group's scored members."""
    if groups is None:
        groups = [None] * len(rewards_B)
    if len(groups) != len(rewards_B):
        raise InvalidConfigError(f"{len(rewards_B)} rewards but {len(groups)} groups; pass the group of each reward.")
    places: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        if not math.isnan(rewards_B[place]):
            places.setdefault(group, []).append(place)
    for listed in places.values():
        yield np.array(listed, dtype=np.intp)


def _by_group(function: Callable[[FloatArray], FloatArray], rewards_B: npt.ArrayLike, groups: Groups) -> FloatArray:
    rewards = np.asarray(rewards_B, dtype=np.float64)
    if rewards.ndim != 1:
        raise InvalidConfigError(f"rewards have shape {rewards.shape}; expected (B,).")
    out = np.full(len(rewards), np.nan)
    for places in _members(rewards, groups):
        out[places] = function(rewards[places])
    return out


def centered(rewards_B: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return r − mean(group)."""
    return _by_group(lambda rewards: rewards - rewards.mean(), rewards_B, groups)


def z_score(rewards_B: npt.ArrayLike, groups: Groups = None, *, epsilon: float = TRL_EPSILON) -> FloatArray:
    """Return (r − mean) / (std + ε), with the standard deviation of a sample (n − 1); 0 for a group of one."""

    def normalize(rewards: FloatArray) -> FloatArray:
        if len(rewards) < 2:
            return np.zeros(len(rewards))
        return (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)

    return _by_group(normalize, rewards_B, groups)


def min_max(rewards_B: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return (r − min) / (max − min), in [0, 1]; 0.5 if all are equal."""

    def normalize(rewards: FloatArray) -> FloatArray:
        low, high = rewards.min(), rewards.max()
        return (rewards - low) / (high - low) if high > low else np.full(len(rewards), 0.5)

    return _by_group(normalize, rewards_B, groups)


def ranks(rewards_B: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return the rank as the share of the other members that are worse, in [0, 1]; equal rewards share a rank.

    (number below + ½ number equal, without itself) / (n − 1); 0.5 for a group of one.
    """

    def normalize(rewards: FloatArray) -> FloatArray:
        if len(rewards) < 2:
            return np.full(len(rewards), 0.5)
        below = (rewards[None, :] < rewards[:, None]).sum(axis=1)
        equal = (rewards[None, :] == rewards[:, None]).sum(axis=1) - 1
        result: FloatArray = (below + 0.5 * equal) / (len(rewards) - 1)
        return result

    return _by_group(normalize, rewards_B, groups)


@dataclass(frozen=True, slots=True)
class RunningMoments:
    """Running mean and spread of all rewards, for normalisation. Immutable: `updated` returns a new object."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of the squared distances from the mean."""

    @property
    def std(self) -> float:
        """Standard deviation with n − 1; 1 with fewer than two rewards."""
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 1.0

    def updated(self, rewards_B: npt.ArrayLike) -> RunningMoments:
        """Return the moments with these rewards added (Chan et al.'s merge of two samples), ignoring NaN."""
        rewards = np.asarray(rewards_B, dtype=np.float64).ravel()
        rewards = rewards[~np.isnan(rewards)]
        if not len(rewards):
            return self
        mean, n = float(rewards.mean()), len(rewards)
        count, delta = self.count + n, mean - self.mean
        m2 = self.m2 + float(((rewards - mean) ** 2).sum()) + delta * delta * self.count * n / count
        return RunningMoments(count, self.mean + delta * n / count, m2)

    def normalize(self, rewards_B: npt.ArrayLike, *, center: bool = True, epsilon: float = 1e-8) -> FloatArray:
        """Return (r − mean) / (std + ε) by the current moments, or r / (std + ε) without centring."""
        rewards = np.asarray(rewards_B, dtype=np.float64)
        result: FloatArray = (rewards - self.mean * center) / (self.std + epsilon)
        return result


# ----------------------------------------------------------------------------------------------------------------------
# Several objectives
# ----------------------------------------------------------------------------------------------------------------------


def _objectives(values_BK: npt.ArrayLike) -> FloatArray:
    values = np.asarray(values_BK, dtype=np.float64)
    if values.ndim != 2:
        raise InvalidConfigError(f"objectives have shape {values.shape}; expected (B, K).")
    return values


def relative_rewards(values_BK: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return each objective's rank in the group (`ranks`), so that objectives of different scales compare.

    A row without an objective (NaN) is left out only of that objective's ranks.

    Args:
        values_BK: Shape (B, K), higher is better.
        groups: The group of each row.

    Returns:
        Shape (B, K), in [0, 1].
    """
    values = _objectives(values_BK)
    return np.stack([ranks(column, groups) for column in values.T], axis=1) if values.shape[1] else values


def pareto_fronts(values_BK: npt.ArrayLike, groups: Groups = None) -> npt.NDArray[np.int64]:
    """Return the index of each row's Pareto front in its group: 0 if no other row dominates it.

    A row dominates another if it is at least as good in all objectives and better in one. Front f + 1 contains the rows
    that are not dominated after the fronts up to f are removed (non-dominated sorting: Deb et al., "A fast and elitist
    multiobjective genetic algorithm: NSGA-II", 2002).

    Args:
        values_BK: Shape (B, K), higher is better.
        groups: The group of each row.

    Returns:
        Shape (B,); −1 for a row with a NaN.
    """
    values = _objectives(values_BK)
    fronts = np.full(len(values), -1, dtype=np.int64)
    for places in _members(values.sum(axis=1), groups):
        members = values[places]
        one, other = members[:, None, :], members[None, :, :]
        dominates = np.all(one >= other, axis=2) & np.any(one > other, axis=2)
        left, front = np.ones(len(places), dtype=bool), 0
        while left.any():
            best = left & ~np.any(dominates[left], axis=0)
            fronts[places[best]] = front
            left, front = left & ~best, front + 1
    return fronts


def pareto_rewards(values_BK: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return 1 − front / (n − 1) for a group of n members: 1 on the first front, 0 on the last of n fronts.

    With one objective and no ties these are the ranks. NaN for a row without a front; 1 for a group of one.
    """
    fronts = pareto_fronts(values_BK, groups).astype(np.float64)
    fronts[fronts < 0] = np.nan
    return _by_group(lambda numbers: 1.0 - numbers / max(len(numbers) - 1, 1), fronts, groups)
