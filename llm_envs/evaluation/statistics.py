"""Confidence intervals, and estimates from several samples of one problem.

Samples of one problem are not independent observations. Functions "by problem" assume independent problems, and nothing
about the samples within one. Their values are given as `problems`: for each problem, the values of its samples.
Problems without a value are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from llm_envs.errors import InvalidConfigError

__all__ = [
    "NOTHING_KNOWN",
    "Interval",
    "bootstrap_interval",
    "bootstrap_means",
    "clustered_error",
    "clustered_interval",
    "clustered_rate_interval",
    "mean_interval",
    "normal_quantile",
    "paired_interval",
    "pass_at_k",
    "pass_hat_k",
    "percentile_interval",
    "rate_interval",
    "sign_test",
    "student_quantile",
    "wilson_interval",
]

Problems = Sequence[Sequence[float]]


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


NOTHING_KNOWN = Interval(-math.inf, math.inf)
"""The interval for too few values."""


# --- independent values -----------------------------------------------------------------------------------------------


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the Wilson score interval of a rate p = successes/n.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), where z is the normal quantile of the confidence.

    Unlike the textbook interval it stays inside [0, 1] and remains valid at 0 and n. For n = 0 it is (0, 1). Assumes
    independent trials. E. B. Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    if not 0 <= successes <= n:
        raise InvalidConfigError(f"{successes} successes of {n}: expected 0 <= successes <= n.")
    return rate_interval(successes / n if n else 0.5, n, normal_quantile(confidence))


def rate_interval(rate: float, n: float, quantile: float) -> Interval:
    """Return Wilson's interval of a rate with the precision of `n` independent trials; (0, 1) for n = 0.

    Args:
        rate: In [0, 1].
        n: The effective number of trials; it may be fractional.
        quantile: How many standard errors the interval extends to either side.
    """
    if n <= 0:
        return Interval(0.0, 1.0)
    centre = rate + quantile**2 / (2 * n)
    half = quantile * math.sqrt(rate * (1 - rate) / n + quantile**2 / (4 * n * n))
    scale = 1 + quantile**2 / n
    return Interval(0.0 if rate == 0 else (centre - half) / scale, 1.0 if rate == 1 else (centre + half) / scale)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the normal interval of a mean: m ± z s/√n, where s is the sample's standard deviation (n − 1).

    With fewer than two values the interval is (−inf, inf). Assumes independent values, and enough of them (about 30)
    for the mean to be nearly normal.
    """
    if len(values) < 2:
        return NOTHING_KNOWN
    mean, half = fmean(values), normal_quantile(confidence) * stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half)


def student_quantile(confidence: float, degrees: int) -> float:
    """Return t with P(|T| <= t) = confidence, for Student's t with `degrees` degrees of freedom.

    By bisection on the finite series of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4; above 200 degrees by the
    expansion 26.7.5 around the normal quantile, whose error is then below 1e-9.
    """
    if degrees < 1:
        raise InvalidConfigError(f"{degrees} degrees of freedom: expected at least 1.")
    z = normal_quantile(confidence)
    return _student(confidence, degrees) if degrees <= 200 else _expanded(z, degrees)


@lru_cache(maxsize=256)
def _student(confidence: float, degrees: int) -> float:
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < confidence else (low, angle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| <= √degrees · tan(angle))."""
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = degrees % 2
    term, series = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, degrees - 1, 2):  # the power of the cosine in this term
        series += term
        term *= square * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * series) if odd else sine * series


def _expanded(z: float, degrees: int) -> float:
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


# --- samples of problems ----------------------------------------------------------------------------------------------


def pass_at_k(n: int, successes: int, k: int) -> float:
    """Return the unbiased estimate that at least one of k samples of a problem succeeds: 1 − C(n−c, k) / C(n, k).

    Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374).

    Args:
        n: Samples of the problem.
        successes: c, how many of them succeeded.
        k: At most n.
    """
    _check_samples(n, successes, k)
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """Return the unbiased estimate that all of k samples of a problem succeed, pass^k: C(c, k) / C(n, k).

    Yao et al., "τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains" (arXiv 2406.12045). The
    arguments are the same as for `pass_at_k`.
    """
    _check_samples(n, successes, k)
    return math.comb(successes, k) / math.comb(n, k)


def _check_samples(n: int, successes: int, k: int) -> None:
    if not 0 <= successes <= n:
        raise InvalidConfigError(f"{successes} successes of {n}: expected 0 <= successes <= n.")
    if not 1 <= k <= n:
        raise InvalidConfigError(f"k is {k} but a problem has {n} samples: k must be from 1 to {n}.")


def clustered_error(problems: Problems) -> tuple[float, float, int]:
    """Return the mean of all values, its cluster-robust standard error, and the number of problems.

    With S_g the sum of problem g's values, N_g their number, N = Σ N_g and m = Σ S_g / N:
    error² = G/(G−1) Σ_g (S_g − m N_g)² / N².

    Liang and Zeger, "Longitudinal data analysis using generalized linear models" (1986); Miller, "Adding Error Bars to
    Evals" (arXiv 2411.00640). With one sample per problem it is s/√n. The mean is NaN without a value; the error is inf
    with fewer than two problems.
    """
    sums, counts = _sums(problems)
    n = len(sums)
    if n == 0:
        return math.nan, math.inf, 0
    mean = float(sums.sum() / counts.sum())
    if n == 1:
        return mean, math.inf, 1
    variance = n / (n - 1) * float(((sums - mean * counts) ** 2).sum()) / float(counts.sum()) ** 2
    return mean, math.sqrt(variance), n


def clustered_interval(problems: Problems, confidence: float = 0.95) -> Interval:
    """Return the interval m ± t error of `clustered_error`, t of Student's distribution with G − 1 degrees.

    (−inf, inf) with fewer than two problems.
    """
    mean, error, n = clustered_error(problems)
    if n < 2:
        return NOTHING_KNOWN
    half = student_quantile(confidence, n - 1) * error
    return Interval(mean - half, mean + half)


def clustered_rate_interval(problems: Problems, confidence: float = 0.95, *, n_trials: int | None = None) -> Interval:
    """Return Wilson's interval of a mean of values in [0, 1], by problem.

    It uses the effective number of trials: N divided by the design effect, the clustered variance over that of
    independent trials, m(1−m)/(N−1); at most `n_trials`. At a mean of 0 or 1 the design effect is unknown, so the
    number of problems is used: samples of one problem then count once. With one trial per problem this is
    `wilson_interval`; with more, the quantile is Student's with G − 1 degrees, since the variance is estimated from G
    problems. Korn and Graubard, "Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data" (1998).

    Args:
        problems: The values of each problem.
        confidence: Of the interval.
        n_trials: Number of trials behind the values, if they are estimates from several (`pass_at_k`); None: the number
            of values.
    """
    mean, error, n_problems = clustered_error(problems)
    if n_problems == 0:
        return Interval(0.0, 1.0)
    n = sum(map(len, problems))
    most = float(n if n_trials is None else max(n, n_trials))
    independent = mean * (1 - mean)
    if n_problems == 1 or independent <= 1e-12:
        effective = float(n_problems)
    else:
        effective = min(most, n * independent / (n - 1) / error**2 if error else most)
    if most == n_problems or n_problems == 1:
        return rate_interval(mean, effective, normal_quantile(confidence))
    return rate_interval(mean, effective, student_quantile(confidence, n_problems - 1))


_MANY = 10_000
"""Problems from which on the bootstrap looks for equal ones; below, a draw for each is quick."""


def bootstrap_means(problems: Problems, n_resamples: int = 2000, seed: int = 0) -> npt.NDArray[np.float64]:
    """Return the means of resampled data: as many problems, each with all its samples, drawn with replacement.

    Shape (n_resamples,); empty without a value. Efron and Tibshirani, "An Introduction to the Bootstrap" (1993).
    """
    sums, counts = _sums(problems)
    n = len(sums)
    if n == 0:
        return np.empty(0)
    if n > _MANY:
        kinds, numbers = np.unique(np.stack([sums, counts]), axis=1, return_counts=True)
        if len(numbers) * 10 < n:  # equal problems are drawn together: the same distribution, with fewer draws
            drawn = np.random.default_rng([seed, n]).multinomial(n, numbers / n, n_resamples)
            return np.asarray((drawn @ kinds[0]) / (drawn @ kinds[1]), np.float64)
    step = max(1, 4_000_000 // n)  # pieces of 32 MB for any number of problems
    parts = []
    for piece, start in enumerate(range(0, n_resamples, step)):
        times = _times_drawn(n, min(step, n_resamples - start), seed, piece)
        parts.append((times @ sums) / (times @ counts))
    return np.concatenate(parts)


@lru_cache(maxsize=2)  # successive measures of one task resample the same problems
def _times_drawn(n: int, n_resamples: int, seed: int, piece: int) -> npt.NDArray[np.float64]:
    """Return how often each of n problems is in each resample: shape (n_resamples, n)."""
    generator = np.random.default_rng((seed, piece))
    return generator.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(np.float64)


def bootstrap_interval(
    problems: Problems, confidence: float = 0.95, *, n_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Return the percentile interval of `bootstrap_means`; (−inf, inf) with fewer than two problems."""
    if sum(1 for values in problems if len(values)) < 2:
        return NOTHING_KNOWN
    return percentile_interval(bootstrap_means(problems, n_resamples, seed), confidence)


def percentile_interval(draws: npt.NDArray[np.float64], confidence: float = 0.95) -> Interval:
    """Return the middle part of some draws; (−inf, inf) without any."""
    normal_quantile(confidence)
    if len(draws) == 0:
        return NOTHING_KNOWN
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


# --- two policies on the same problems --------------------------------------------------------------------------------


def paired_interval(
    differences: Sequence[float], confidence: float = 0.95, *, smallest: float = 0.0
) -> tuple[float, float, Interval]:
    """Return the mean of the differences by problem, its standard error, and m' ± t error.

    Args:
        differences: One per problem: the mean of one policy's samples minus the other policy's mean.
        confidence: Of the interval.
        smallest: For rates, the smallest difference that a problem can show: 1 with one sample per problem, 1/k with k.
            The interval is then computed with two more problems, one that differs by this and one by its opposite,
            which keeps it valid if few problems differ: with one sample, Bonett and Price, "Adjusted Wald confidence
            interval for a difference of binomial proportions based on paired data" (2012). It lies within [-1, 1].
            0 adds nothing.

    Returns:
        Mean and error of the unadjusted data (inf with fewer than two problems), and the interval.
    """
    mean, error, n = clustered_error([[value] for value in differences])
    if n < 2:
        return mean, error, NOTHING_KNOWN
    shown, wide, degrees = mean, error, n - 1
    if smallest:
        # Bonett and Price divide the variance by n + 2, not n + 1.
        shown, wide, m = clustered_error([[value] for value in (*differences, smallest, -smallest)])
        wide, degrees = wide * math.sqrt((m - 1) / m), m - 1
    half = student_quantile(confidence, degrees) * wide
    low, high = shown - half, shown + half
    if smallest:  # a difference of rates is at least -1 and at most 1
        low, high = max(low, -1.0), min(high, 1.0)
    return mean, error, Interval(low, high)


def sign_test(wins: int, losses: int) -> float:
    """Return the exact two-sided p-value of these wins and losses if both were equally likely, ignoring ties.

    With one sample per problem this is McNemar's exact test. 1 without wins and losses.
    """
    if wins < 0 or losses < 0:
        raise InvalidConfigError(f"{wins} wins, {losses} losses: they must be at least 0.")
    n = wins + losses
    ways, tail = 1, 1  # C(n, i) and their sum: integers, exact for any n
    for i in range(min(wins, losses)):
        ways = ways * (n - i) // (i + 1)
        tail += ways
    return min(1.0, tail / 2 ** (n - 1)) if n else 1.0


def _sums(problems: Problems) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    there = [values for values in problems if len(values)]
    return np.array([float(sum(v)) for v in there]), np.array([float(len(v)) for v in there])


def normal_quantile(confidence: float) -> float:
    """Return z with P(|Z| <= z) = confidence, for a standard normal Z."""
    if not 0 < confidence < 1:
        raise InvalidConfigError(f"confidence is {confidence!r}; it must be in (0, 1).")
    return NormalDist().inv_cdf((1 + confidence) / 2)
