"""Combine named parts into one number: `(components) -> float`, plain functions and factories."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

from llm_envs.errors import InvalidConfigError

__all__ = [
    "Aggregator",
    "create_gated",
    "create_lexicographic",
    "create_weighted_sum",
    "maximum",
    "mean",
    "minimum",
    "product",
    "total",
    "weighted_sum",
]

Aggregator = Callable[[Mapping[str, float]], float]
"""The parts of a reward -> the reward."""


def weighted_sum(components: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the sum of `weights[name] * components[name]` over the names in `weights`.

    Args:
        components: A value for each name in `weights`.
        weights: The declared weights.
    """
    total = 0.0
    for name, weight in weights.items():
        total += weight * components[name]
    return total


def create_weighted_sum(weights: Mapping[str, float]) -> Aggregator:
    """Return Σ w_k r_k. The parts and the weights must have the same names."""
    return functools.partial(_weighted_sum, dict(weights))


def _weighted_sum(weights: Mapping[str, float], components: Mapping[str, float]) -> float:
    if components.keys() != weights.keys():
        raise InvalidConfigError(f"the parts are {sorted(components)}, the weights {sorted(weights)}.")
    return weighted_sum(components, weights)


def total(components: Mapping[str, float]) -> float:
    """Return Σ r_k."""
    return math.fsum(components.values())


def minimum(components: Mapping[str, float]) -> float:
    """Return min r_k: the weakest part counts."""
    return min(_values(components))


def maximum(components: Mapping[str, float]) -> float:
    """Return max r_k: the strongest part counts."""
    return max(_values(components))


def mean(components: Mapping[str, float]) -> float:
    """Return the mean of the parts."""
    return math.fsum(_values(components)) / len(components)


def product(components: Mapping[str, float]) -> float:
    """Return Π r_k: one part of 0 makes the product 0.

    Raises:
        InvalidConfigError: If a part is negative, because two negative parts would make a reward.
    """
    for name, value in components.items():
        if value < 0:
            raise InvalidConfigError(f"product: the part {name!r} is {value:g}; every part must be at least 0.")
    return math.prod(_values(components))


def _values(components: Mapping[str, float]) -> list[float]:
    if not components:
        raise InvalidConfigError("the reward has no parts to aggregate.")
    return list(components.values())


def create_lexicographic(order: Sequence[str], *, levels: int = 10, low: float = 0.0, high: float = 1.0) -> Aggregator:
    """Compare by the first part, and use each further part only to break ties.

    Each part is divided into `levels` equal steps of [low, high], q_k ∈ {0, …, L−1} (values outside take the nearest).
    The reward is the number with the digits q_1 q_2 … q_K in base L, scaled to [0, 1]. Parts on the same step tie.

    Args:
        order: Names of the parts, the most important first; other parts are ignored.
        levels: Steps, at least 2.
        low: Worst value of a part.
        high: Best value of a part.

    Raises:
        InvalidConfigError: If a setting is wrong, or a float cannot represent so many digits.
    """
    if levels < 2 or not low < high or not order or len(set(order)) < len(order):
        raise InvalidConfigError(f"create_lexicographic: {order=}, {levels=}, {low=}, {high=}.")
    if levels ** len(order) > 2**52:
        raise InvalidConfigError(f"{len(order)} parts of {levels} levels do not fit into a float: use fewer levels.")
    return functools.partial(_lexicographic, tuple(order), levels, low, high)


def _lexicographic(
    order: Sequence[str], levels: int, low: float, high: float, components: Mapping[str, float]
) -> float:  # fmt: skip
    number = 0
    for name in order:
        if name not in components:
            raise InvalidConfigError(f"the part {name!r} does not exist; the parts are {', '.join(components)}.")
        # The bounds of the steps are not always exact floats: 0.3 is the third of ten steps, but 0.3 * 10 can be < 3.
        share = (components[name] - low) / (high - low) * levels
        number = number * levels + min(max(math.floor(share + 1e-9), 0), levels - 1)
    return number / (levels ** len(order) - 1)


def create_gated(gate: str, threshold: float, then: Aggregator = total) -> Aggregator:
    """Make one part a condition for the others: below the threshold they count as 0.

    r = then(r_1, …, r_K) if r_gate ≥ threshold, else then(0, …, r_gate, …, 0).

    Args:
        gate: Name of the part.
        threshold: Lowest value at which the other parts count.
        then: Combines the parts.
    """
    return functools.partial(_gated, gate, threshold, then)


def _gated(gate: str, threshold: float, then: Aggregator, components: Mapping[str, float]) -> float:
    if gate not in components:
        raise InvalidConfigError(f"the part {gate!r} does not exist; the parts are {', '.join(components)}.")
    if components[gate] >= threshold:
        return then(components)
    return then({name: value if name == gate else 0.0 for name, value in components.items()})
