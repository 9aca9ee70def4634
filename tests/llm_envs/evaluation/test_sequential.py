"""Bets against a bounded mean, in numbers worked out by hand, and how often they win against a true claim."""

import math

import numpy as np
import pytest

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.sequential import STAKES, Bet, place_bet, reference_bound, wealth


def bets(steps, *, bound=0.5, low=0.0):
    bet = Bet()
    for step, values in enumerate(steps, 1):
        bet = place_bet(bet, values, bound=bound, low=low, high=1.0, step=step)
    return bet


def test_wealth_by_hand():
    assert STAKES == (0.05, 0.2, 0.5, 0.9)
    assert wealth(Bet()) == 1.0
    # Half of the wealth is bet at step 1. A 1 against a bound of 1/2 pays 1 + f: (1.05 + 1.2 + 1.5 + 1.9) / 4 = 1.4125.
    first = bets([[1.0]])
    assert first.wealth_of_stakes == pytest.approx((0.525, 0.6, 0.75, 0.95))
    assert wealth(first) == pytest.approx(0.5 * 1.4125 + 0.5)
    # A sixth more is bet at step 2, where a 0 leaves 1 - f of all that is bet.
    second = bets([[1.0], [0.0]])
    expected = tuple((part + 1 / 6) * (1 - stake) for part, stake in zip((0.525, 0.6, 0.75, 0.95), STAKES, strict=True))
    assert second.wealth_of_stakes == pytest.approx(expected)
    assert wealth(second) == pytest.approx(sum(expected) / 4 + 1 / 3)
    # With values down to -1 and a bound of 0, a value x pays 1 + f x.
    assert bets([[-1.0, 0.5]], bound=0.0, low=-1.0).wealth_of_stakes[3] == pytest.approx(0.5 * 0.1 * 1.45)


def test_the_beginning_of_a_change():
    bet = bets([[0.0], [0.0], [1.0], [1.0], [0.0], [1.0]])
    assert bet.since == 3  # at stake 1/2: 1.5, 2.25, 1.125, 1.6875, since the loss of step 2 was forgotten
    assert bet.recent == pytest.approx(1.6875)


def test_steps_without_a_value_cost_nothing():
    assert wealth(bets([[], [], []])) == pytest.approx(1.0)


def test_wealth_stays_finite():
    assert math.isfinite(wealth(bets([[1.0] * 4000])))


@pytest.mark.parametrize(
    ("values", "bound", "message"),
    [([1.5], 0.5, "value is 1.5"), ([math.nan], 0.5, "value is nan"), ([], 1.0, "bound is 1.0"), ([], 0.0, "bound")],
)
def test_bad_values_are_refused(values, bound, message):
    with pytest.raises(InvalidConfigError, match=message):
        place_bet(Bet(), values, bound=bound, low=0.0, high=1.0, step=1)


def test_a_true_claim_is_refuted_no_more_often_than_the_level_and_a_false_one_soon():
    """1,000 runs of 60 steps at the bound itself: at a level of 0.1, at most 100 false alarms and three deviations."""
    random = np.random.default_rng(0)
    alarms, delays = 0, []
    for run in range(1000):
        bet, rate = Bet(), 0.2
        for step in range(1, 61):
            if run < 50 and step > 30:
                rate = 0.5
            bet = place_bet(bet, (random.random(16) < rate).astype(float), bound=0.2, low=0, high=1, step=step)
            if wealth(bet) >= 10:
                alarms += step <= 30 or run >= 50
                delays += [step - 30] * (run < 50 and step > 30)
                break
    assert 0 < alarms <= 100 + 3 * math.sqrt(1000 * 0.1 * 0.9)
    assert len(delays) >= 45 and max(delays) <= 8


def test_the_bound_of_a_reference():
    # 1/4 + sqrt(ln(20) / 8) = 0.25 + 0.611937
    assert reference_bound([0.0, 0.0, 0.0, 1.0], 0.05) == pytest.approx(0.861937, abs=1e-6)
    assert reference_bound([1.0], 0.05) == 1.0 and reference_bound([], 0.05) == 1.0
    with pytest.raises(InvalidConfigError, match="level is 0"):
        reference_bound([0.0], 0.0)
