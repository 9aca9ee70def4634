"""Intervals, worked by hand."""

import math

import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.statistics import mean_interval, wilson_interval


def test_wilson_8_of_10() -> None:
    # z = 1.959964, z² = 3.841459: centre 0.8 + 0.192073 = 0.992073, half 1.959964·√(0.016 + 0.0096036) = 0.313614,
    # scale 1.3841459: (0.678459, 1.305687) / 1.3841459.
    low, high = wilson_interval(8, 10)
    assert low == pytest.approx(0.490162, abs=1e-6)
    assert high == pytest.approx(0.943318, abs=1e-6)


def test_wilson_at_the_ends() -> None:
    z2 = 3.841458820694124
    assert wilson_interval(0, 20) == pytest.approx((0.0, z2 / (20 + z2)))
    assert wilson_interval(20, 20) == pytest.approx((20 / (20 + z2), 1.0))
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_half_at_68_percent_is_one_standard_error() -> None:
    # confidence 0.6826895 is z = 1: p = 1/2, n = 100: centre 1/2, half √(1/400 + 1/40000)/(1.01) = 0.0497519.
    low, high = wilson_interval(50, 100, confidence=0.6826894921370859)
    assert (low, high) == pytest.approx((0.5 - 0.0497519, 0.5 + 0.0497519), abs=1e-6)


def test_mean_interval_by_hand() -> None:
    # values 1, 2, 3, 4: mean 2.5, s² = 5/3, s/√n = 0.6454972, times 1.959964 = 1.2651513.
    assert mean_interval([1, 2, 3, 4]) == pytest.approx((2.5 - 1.2651513, 2.5 + 1.2651513), abs=1e-6)
    assert mean_interval([1.0]) == (-math.inf, math.inf)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2)])
def test_impossible_counts_are_refused(successes: int, n: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"{successes} successes of {n}"):
        wilson_interval(successes, n)


def test_impossible_confidence_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"1\.0"):
        wilson_interval(1, 2, confidence=1.0)
