"""Rewards on a common scale, and between the members of a group. Arrays in, arrays out.

Rewards are float arrays, one entry a trajectory; `_B` is the row and `_K` the part. NaN stands for a trajectory without
a score: it stays NaN and counts nowhere. `groups` names the group of each row (any hashable); None makes the whole
batch one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError

__all__ = [
    "Normalizer",
    "RunningMoments",
    "centered",
    "min_max",
    "multi_objective_advantages",
    "pareto_fronts",
    "pareto_rewards",
    "ranks",
    "relative_rewards",
    "z_score",
]

FloatArray = npt.NDArray[np.float64]
Groups = Sequence[Hashable] | None
Normalizer = Callable[[npt.ArrayLike, Groups], FloatArray]
"""(rewards (B,), groups) -> rewards (B,). `functools.partial` sets what a normaliser has besides."""

TRL_EPSILON = 1e-4
"""What TRL adds to a standard deviation."""


def _members(rewards_B: FloatArray, groups: Groups) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the places of each group's scored members."""
    if groups is None:
        groups = [None] * len(rewards_B)
    if len(groups) != len(rewards_B):
        raise InvalidConfigError(f"{len(rewards_B)} rewards but {len(groups)} groups; give the group of each.")
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
    """Return (r − mean) / (std + ε), the standard deviation with n − 1; 0 for a group of one."""

    def normalize(rewards: FloatArray) -> FloatArray:
        if len(rewards) < 2:
            return np.zeros(len(rewards))
        return (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)

    return _by_group(normalize, rewards_B, groups)


def min_max(rewards_B: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return (r − min) / (max − min), in [0, 1]; 0.5 where all are equal."""

    def normalize(rewards: FloatArray) -> FloatArray:
        low, high = rewards.min(), rewards.max()
        return (rewards - low) / (high - low) if high > low else np.full(len(rewards), 0.5)

    return _by_group(normalize, rewards_B, groups)


def ranks(rewards_B: npt.ArrayLike, groups: Groups = None) -> FloatArray:
    """Return the rank as the share of the others that are worse, in [0, 1]; equal ones share theirs.

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
    """Mean and spread of all rewards so far, to normalise by. Immutable: `updated` returns the next."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of the squared distances from the mean."""

    @property
    def std(self) -> float:
        """Standard deviation with n − 1; 1 before there are two rewards."""
        return math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 1.0

    def updated(self, rewards_B: npt.ArrayLike) -> RunningMoments:
        """Return the moments with these rewards added (Chan et al.'s merge of two samples); NaN is left out."""
        rewards = np.asarray(rewards_B, dtype=np.float64).ravel()
        rewards = rewards[~np.isnan(rewards)]
        if not len(rewards):
            return self
        mean, n = float(rewards.mean()), len(rewards)
        count, delta = self.count + n, mean - self.mean
        m2 = self.m2 + float(((rewards - mean) ** 2).sum()) + delta * delta * self.count * n / count
        return RunningMoments(count, self.mean + delta * n / count, m2)

    def normalize(self, rewards_B: npt.ArrayLike, *, center: bool = True, epsilon: float = 1e-8) -> FloatArray:
        """Return (r − mean) / (std + ε), or r / (std + ε) without centring, by the moments so far."""
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
    """Return each objective's rank in the group (`ranks`), so that objectives of any scales compare.

    A row that lacks an objective (NaN) is left out of that objective's ranks alone.

    Args:
        values_BK: Shape (B, K), higher is better.
        groups: The group of each row.

    Returns:
        Shape (B, K), in [0, 1].
    """
    values = _objectives(values_BK)
    return np.stack([ranks(column, groups) for column in values.T], axis=1) if values.shape[1] else values


def pareto_fronts(values_BK: npt.ArrayLike, groups: Groups = None) -> npt.NDArray[np.int64]:
    """Return the number of each row's Pareto front in its group: 0 for those that no other dominates.

    One dominates another if it is as good in all objectives and better in one. Front f + 1 is what is left undominated
    when the fronts up to f are taken away (non-dominated sorting: Deb et al., "A fast and elitist multiobjective
    genetic algorithm: NSGA-II", 2002).

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
    """Return 1 − front / (n − 1), n the members of the group: 1 on the first front, and 0 on the last of n.

    With one objective and no ties these are the ranks. NaN for a row without a front; 1 for a group of one.
    """
    fronts = pareto_fronts(values_BK, groups).astype(np.float64)
    fronts[fronts < 0] = np.nan
    return _by_group(lambda numbers: 1.0 - numbers / max(len(numbers) - 1, 1), fronts, groups)


def multi_objective_advantages(
    values_BK: npt.ArrayLike,
    weights_K: npt.ArrayLike,
    groups: Sequence[Hashable],
    *,
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = "sum_then_normalize",
    scale_rewards: Literal["group", "batch", "none"] = "group",
    epsilon: float = TRL_EPSILON,
) -> FloatArray:
    """Return the advantages of TRL's two ways to make one number of several parts.

    "sum_then_normalize": R = Σ w_k r_k, A = (R − mean_group R) / (std R + ε), the deviation of the group, of the batch,
    or none. "normalize_then_sum" (GDPO, arXiv 2601.05242): Σ w_k (r_k − mean_group r_k) / (std_group r_k + ε), which is
    then normalised over the batch; so a part of small range is not drowned by another.

    Args:
        values_BK: Shape (B, K). NaN: this part does not apply to the row; a row of nothing but NaN is unscored.
        weights_K: Shape (K,).
        groups: The group of each row.
        aggregation: Which way.
        scale_rewards: For the first way alone.
        epsilon: Added to deviations.

    Returns:
        Shape (B,); 0 for an unscored row.
    """
    values, weights = _objectives(values_BK), np.asarray(weights_K, dtype=np.float64)
    if weights.shape != (values.shape[1],):
        raise InvalidConfigError(f"{values.shape[1]} parts but weights of shape {weights.shape}.")
    unscored = np.isnan(values).all(axis=1)

    def weigh(parts_BK: FloatArray) -> FloatArray:
        rewards = np.nansum(parts_BK * weights, axis=1)
        rewards[unscored] = np.nan
        return rewards

    if aggregation == "normalize_then_sum":
        normal = [z_score(column, groups, epsilon=epsilon) for column in values.T]
        return np.nan_to_num(z_score(weigh(np.stack(normal, axis=1)), epsilon=epsilon))
    if aggregation != "sum_then_normalize" or scale_rewards not in ("group", "batch", "none"):
        raise InvalidConfigError(f"{aggregation=}, {scale_rewards=}: known are sum_then_normalize, normalize_then_sum; "
                                 "group, batch, none.")  # fmt: skip
    rewards = weigh(values)
    if scale_rewards == "group":
        return np.nan_to_num(z_score(rewards, groups, epsilon=epsilon))
    advantages = centered(rewards, groups)
    if scale_rewards == "batch":
        scored = rewards[~np.isnan(rewards)]
        advantages = advantages / ((scored.std(ddof=1) if len(scored) > 1 else 0.0) + epsilon)
    return np.nan_to_num(advantages)
