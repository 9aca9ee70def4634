"""Intervals, worked by hand and by simulation: 95% intervals hold the truth in 93 to 97% of the runs."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import (
    Interval,
    clustered_rate_interval,
    mean_interval,
    paired_interval,
    pass_at_k,
    pass_hat_k,
    sign_test,
)
from llm_envs.evaluation.statistics import (
    bootstrap_interval,
    bootstrap_means,
    clustered_error,
    clustered_interval,
    percentile_interval,
    rate_interval,
    student_quantile,
    wilson_interval,
)


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


# --- samples of problems ----------------------------------------------------------------------------------------------


def test_pass_at_k_by_hand() -> None:
    # 3 of 10 succeed, 2 are drawn: none of them does in C(7,2)/C(10,2) = 21/45 of the draws, both in C(3,2)/45 = 3/45.
    assert pass_at_k(10, 3, 2) == pytest.approx(24 / 45)
    assert pass_hat_k(10, 3, 2) == pytest.approx(3 / 45)
    assert pass_at_k(4, 1, 1) == pass_hat_k(4, 1, 1) == 0.25
    assert (pass_at_k(4, 0, 4), pass_hat_k(4, 0, 4)) == (0.0, 0.0)
    assert (pass_at_k(4, 4, 4), pass_hat_k(4, 4, 4)) == (1.0, 1.0)
    assert (pass_at_k(5, 4, 2), pass_hat_k(5, 1, 2)) == (1.0, 0.0)  # one failure cannot fill two draws


@pytest.mark.parametrize("k", [1, 2, 3])
def test_pass_estimates_are_unbiased(k: int) -> None:
    # Over the binomial of 4 samples with p = 0.3, exactly: E = 1 - 0.7^k, and 0.3^k.
    chances = [math.comb(4, c) * 0.3**c * 0.7 ** (4 - c) for c in range(5)]
    at = sum(chance * pass_at_k(4, c, k) for c, chance in enumerate(chances))
    hat = sum(chance * pass_hat_k(4, c, k) for c, chance in enumerate(chances))
    assert (at, hat) == pytest.approx((1 - 0.7**k, 0.3**k))


@pytest.mark.parametrize("estimate", [pass_at_k, pass_hat_k])
def test_more_than_there_are_samples_is_refused(estimate: Callable[[int, int, int], float]) -> None:
    with pytest.raises(InvalidConfigError, match="k is 5 but a problem has 4 samples"):
        estimate(4, 2, 5)
    with pytest.raises(InvalidConfigError, match="5 successes of 4"):
        estimate(4, 5, 1)


def test_student_quantiles_of_the_tables() -> None:
    tabled = {1: 12.7062047, 2: 4.3026527, 5: 2.5705818, 10: 2.2281389, 30: 2.0422725, 120: 1.9799304}
    assert {degrees: student_quantile(0.95, degrees) for degrees in tabled} == pytest.approx(tabled, abs=1e-7)
    assert student_quantile(0.5, 1) == pytest.approx(1.0)  # Cauchy: quartiles at -1 and 1
    assert student_quantile(0.95, 200) == pytest.approx(1.9718962, abs=1e-7)
    assert student_quantile(0.95, 201) == pytest.approx(1.9718365, abs=1e-7)  # the expansion goes on where it ends
    assert student_quantile(0.95, 10**7) == pytest.approx(1.959964, abs=1e-6)
    with pytest.raises(InvalidConfigError, match="0 degrees"):
        student_quantile(0.95, 0)


def test_the_clustered_error_by_hand() -> None:
    # Sums 2, 1, 0 of two samples each, mean 1/2: deviations 1, 0, -1; error² = 3/2 · 2 / 36 = 1/12.
    mean, error, n = clustered_error([[1, 1], [1, 0], [0, 0]])
    assert (mean, error, n) == pytest.approx((0.5, math.sqrt(1 / 12), 3))
    # Unequal: sums 3, 0, counts 3, 1, mean 3/4: deviations 3/4, -3/4; error² = 2 · 2 · (9/16) / 16 = 9/64.
    assert clustered_error([[1, 1, 1], [], [0]]) == pytest.approx((0.75, 3 / 8, 2))
    # One sample a problem: s/√n of 1, 2, 3, 4.
    assert clustered_error([[1], [2], [3], [4]])[:2] == pytest.approx((2.5, math.sqrt(5 / 12)))


def test_copies_of_a_sample_teach_nothing() -> None:
    once, copied = [[1.0], [0.0], [1.0], [1.0]], [[1.0] * 8, [0.0] * 8, [1.0] * 8, [1.0] * 8]
    assert clustered_interval(once) == pytest.approx(clustered_interval(copied))
    # ... while Wilson's for 24 of 32, as if they were independent, is less than half as wide.
    low, high = clustered_rate_interval(copied)
    assert high - low > 2 * (wilson_interval(24, 32).high - wilson_interval(24, 32).low)


def test_the_clustered_rate_by_hand() -> None:
    assert clustered_rate_interval([[1.0]] * 8 + [[0.0]] * 2) == pytest.approx(wilson_interval(8, 10))
    # All of 20 problems, 5 samples each: as 20 trials, with Student's quantile for 19 degrees, 2.0930241.
    square = 2.0930241**2
    assert clustered_rate_interval([[1.0] * 5] * 20) == pytest.approx((20 / (20 + square), 1.0), abs=1e-7)
    # Sums 2, 1, 0 (above): error² = 1/12, independent (1/4)/5 = 1/20: 6 · (1/20)/(1/12) = 3.6 trials.
    assert clustered_rate_interval([[1, 1], [1, 0], [0, 0]]) == rate_interval(0.5, 3.6, student_quantile(0.95, 2))
    # Problems that are all alike cannot be worth more than independent trials.
    assert clustered_rate_interval([[1, 0]] * 10) == rate_interval(0.5, 20, student_quantile(0.95, 9))
    assert clustered_rate_interval([]) == (0.0, 1.0)


def test_what_too_little_data_says() -> None:
    assert clustered_interval([[1.0, 0.0]]) == bootstrap_interval([[1.0, 0.0]]) == (-math.inf, math.inf)
    assert math.isnan(clustered_error([])[0]) and clustered_error([[1.0]])[1] == math.inf
    assert len(bootstrap_means([[], []])) == 0
    assert percentile_interval(np.empty(0)) == (-math.inf, math.inf)


def test_the_bootstrap_by_hand() -> None:
    # Two problems, of means 0 and 1: the draws are 0, 1/2, 1/2, 1, each with a chance of 1/4.
    draws = bootstrap_means([[0.0], [1.0]], 4000, seed=1)
    shares = [float((draws == value).mean()) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
    assert percentile_interval(np.arange(101.0), 0.9) == pytest.approx((5, 95))
    assert np.array_equal(bootstrap_means([[0.0], [1.0, 1.0]], 50), bootstrap_means([[0.0], [1.0, 1.0]], 50))
    assert set(bootstrap_means([[0.0], [1.0, 1.0]], 50).tolist()) == {0.0, 2 / 3, 1.0}  # by sample, whole problems


def _draw(generator: np.random.Generator, n: int, k: int) -> list[list[float]]:
    """Samples of problems whose success rates spread as Beta(0.6, 0.4): mean 0.6, correlation 1/2 within a problem."""
    rates = generator.beta(0.6, 0.4, size=n)
    drawn: list[list[float]] = (generator.random((n, k)) < rates[:, None]).astype(float).tolist()
    return drawn


@pytest.mark.parametrize(("name", "n_runs"), [("rate", 1000), ("mean", 1000), ("bootstrap", 400)])
def test_95_percent_intervals_cover_95_percent(name: str, n_runs: int) -> None:
    intervals: dict[str, Callable[[list[list[float]], int], Interval]] = {
        "rate": lambda problems, _: clustered_rate_interval(problems),
        "mean": lambda problems, _: clustered_interval(problems),
        "bootstrap": lambda problems, run: bootstrap_interval(problems, n_resamples=250, seed=run),
    }
    generator = np.random.default_rng(11)
    found = [intervals[name](_draw(generator, 100, 4), run) for run in range(n_runs)]
    assert 0.93 <= sum(low <= 0.6 <= high for low, high in found) / n_runs <= 0.97


@pytest.mark.parametrize(("estimate", "truth"), [(pass_at_k, 0.72), (pass_hat_k, 0.48)])
def test_intervals_of_pass_estimates_cover(estimate: Callable[[int, int, int], float], truth: float) -> None:
    # Rates as Beta(0.6, 0.4): 1 - E(1-p)² = 1 - 0.4 · 1.4 / 2, and E p² = 0.6 · 1.6 / 2.
    generator, covered = np.random.default_rng(12), 0
    for _ in range(1000):
        won = generator.binomial(4, generator.beta(0.6, 0.4, size=100))
        low, high = clustered_rate_interval([[estimate(4, int(c), 2)] for c in won], n_trials=400)
        covered += low <= truth <= high
    assert 0.93 <= covered / 1000 <= 0.97


def test_taking_samples_for_independent_would_not_cover() -> None:
    generator = np.random.default_rng(11)
    drawn = [_draw(generator, 100, 4) for _ in range(400)]
    found = [wilson_interval(int(sum(map(sum, problems))), 400) for problems in drawn]
    assert sum(low <= 0.6 <= high for low, high in found) / 400 < 0.85


# --- two policies -----------------------------------------------------------------------------------------------------


def test_paired_differences_by_hand() -> None:
    # Differences 1, 0, 0, -1, 1: mean 1/5, s² = (3 - 5/25) / 4 = 0.7, error √(0.7/5), t of 4 degrees 2.7764451.
    mean, error, (low, high) = paired_interval([1, 0, 0, -1, 1])
    assert (mean, error) == pytest.approx((0.2, math.sqrt(0.14)))
    assert (low, high) == pytest.approx((0.2 - 2.7764451 * error, 0.2 + 2.7764451 * error))
    assert paired_interval([1.0])[2] == (-math.inf, math.inf)


def test_bonett_and_price() -> None:
    # n = 40, 9 wins and 3 losses: p12 = 10/42, p21 = 4/42, difference 6/42, variance (14/42 - (6/42)²) / 42.
    mean, _, (low, high) = paired_interval([1] * 9 + [-1] * 3 + [0] * 28, smallest=1.0)
    half = student_quantile(0.95, 41) * math.sqrt((14 / 42 - (6 / 42) ** 2) / 42)
    assert mean == pytest.approx(6 / 40)
    assert (low, high) == pytest.approx((6 / 42 - half, 6 / 42 + half))
    assert (
        paired_interval([1.0] * 3, smallest=1.0)[2].high == 1.0
        and paired_interval([-1.0] * 3, smallest=1.0)[2].low == -1.0
    )
    _, _, (low, high) = paired_interval([0] * 40, smallest=1.0)  # no difference seen is not none at all
    half = student_quantile(0.95, 41) * math.sqrt(2) / 42  # variance (2/42 - 0) / 42
    assert (low, high) == pytest.approx((-half, half))


def test_paired_intervals_cover() -> None:
    generator, covered = np.random.default_rng(5), {1: 0, 4: 0}
    for k in covered:
        for _ in range(500):
            rates = generator.beta(0.6, 0.4, size=80)
            better = 0.1 + 0.9 * rates  # on average 0.1 · (1 - 0.6) = 0.04 above
            one, other = (generator.binomial(k, p) / k for p in (better, rates))
            _, _, (low, high) = paired_interval((one - other).tolist(), smallest=1 / k)
            covered[k] += low <= 0.04 <= high
    assert all(0.93 <= n / 500 <= 0.97 for n in covered.values()), covered


def test_the_sign_test_by_hand() -> None:
    assert sign_test(9, 3) == pytest.approx(2 * (1 + 12 + 66 + 220) / 4096)
    assert sign_test(3, 9) == sign_test(9, 3)
    assert (sign_test(0, 0), sign_test(4, 4), sign_test(5, 0)) == (1.0, 1.0, 2 / 32)
    assert 0 < sign_test(2500, 2300) < 0.01  # 2 · P(X <= 2300), X of 4800 and 1/2: 2.9 standard deviations
    with pytest.raises(InvalidConfigError, match="-1 wins"):
        sign_test(-1, 2)


def test_the_bootstrap_of_many_equal_problems_has_the_error_of_their_mean() -> None:
    """Of 20,000 problems, 5,000 with one success and 15,000 without: √(p(1 − p) / n), as if each had been drawn."""
    draws = bootstrap_means([[float(number % 4 == 0)] for number in range(20_000)], 2000)
    assert draws.shape == (2000,) and abs(draws.mean() - 0.25) < 3e-4
    assert draws.std() == pytest.approx((0.25 * 0.75 / 20_000) ** 0.5, rel=0.08)
    mixed = bootstrap_means([[1.0, 1.0] if number % 2 else [0.0] for number in range(20_000)], 2000)
    assert mixed.mean() == pytest.approx(2 / 3, abs=1e-3)  # by sample, whole problems
