"""Intervals around what was measured. Closed forms, no sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from llm_envs.errors import InvalidConfigError

__all__ = ["Interval", "mean_interval", "wilson_interval"]


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the Wilson score interval of a rate p = successes/n.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), where z is the normal quantile of the confidence.

    Unlike the textbook interval it stays inside [0, 1] and is honest at 0 and n. For n = 0 it is (0, 1). The trials are
    taken as independent. E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if not 0 <= successes <= n:
        raise InvalidConfigError(f"{successes} successes of {n}: expected 0 <= successes <= n.")
    if n == 0:
        return Interval(0.0, 1.0)
    z, rate = _quantile(confidence), successes / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == n else (centre + half) / scale
    return Interval(low, high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the normal interval of a mean: m ± z s/√n, where s is the sample's standard deviation (n − 1).

    Fewer than two values say nothing about their spread: the interval is then (−inf, inf). Assumes independent values,
    and enough of them (some 30) for the mean to be near normal.
    """
    if len(values) < 2:
        return Interval(-math.inf, math.inf)
    mean, half = fmean(values), _quantile(confidence) * stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half)


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InvalidConfigError(f"confidence is {confidence!r}; it must be in (0, 1).")
    return NormalDist().inv_cdf((1 + confidence) / 2)
