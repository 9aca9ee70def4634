"""A test of means that may be looked at after every step: bets against a claim, whose wealth a true claim keeps small.

The claim is that each value has a mean of at most `bound`, given all earlier steps. The values of one step must be
independent of one another, given the earlier steps. Nothing else is assumed: means may change from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llm_envs.errors import InvalidConfigError

__all__ = ["STAKES", "Bet", "place_bet", "reference_bound", "wealth"]

STAKES = (0.05, 0.2, 0.5, 0.9)
"""Shares of the wealth that are bet, in equal parts: small ones find small excesses, great ones are quick."""
_MOST = 1e100
"""Wealth is cut here, so that it stays finite. That cannot raise the probability of a false alarm."""


@dataclass(frozen=True, slots=True)
class Bet:
    """The bets against one claim so far."""

    n_steps: int = 0
    wealth_of_stakes: tuple[float, ...] = (0.0,) * len(STAKES)
    """The present worth of the bets that have begun, by stake."""
    recent: float = 1.0
    """The wealth of one further bet, which begins again with 1 whenever it falls below 1 (Page's CUSUM)."""
    since: int = 0
    """The step at which `recent` last began."""


def place_bet(bet: Bet, values: Sequence[float], *, bound: float, low: float, high: float, step: int) -> Bet:
    """Return the bets after the values of one more step.

    S_t(f) = (S_{t-1}(f) + 1 / (t (t + 1))) · Π_i (1 + f (x_i − bound) / (bound − low)), for each stake f in `STAKES`.

    A part 1/(t(t+1)) of the first wealth, 1, is kept for the bet that begins at step t, so that a change is found
    whenever it comes. Bets on a bounded mean: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
    betting" (arXiv 2010.09686), section 4. Bets that begin at every step: Shin, Ramdas and Rinaldo, "E-detectors"
    (arXiv 2203.03532), here with weights that sum to 1, which bounds false alarms over the run.

    Args:
        bet: The bets before the step.
        values: x_i: the values of this step, in [low, high]; it may be empty.
        bound: The claimed greatest mean.
        low: Least possible value.
        high: Greatest possible value.
        step: Number of the step, for `Bet.since`.

    Raises:
        InvalidConfigError: If not low < bound < high, or a value is outside [low, high].
    """
    if not low < bound < high:
        raise InvalidConfigError(f"place_bet: bound is {bound}; it must lie between low, {low}, and high, {high}.")
    if wrong := [value for value in values if not low <= value <= high]:
        raise InvalidConfigError(f"place_bet: a value is {wrong[0]}; values must lie from {low} to {high}.")
    t = bet.n_steps + 1
    begun = 1 / (t * (t + 1))
    excesses = [(value - bound) / (bound - low) for value in values]
    grown = [
        min((part + begun) * _growth(stake, excesses), _MOST)
        for part, stake in zip(bet.wealth_of_stakes, STAKES, strict=True)
    ]
    begins = bet.recent <= 1.0
    recent = min(max(bet.recent, 1.0) * _growth(0.5, excesses), _MOST)
    return Bet(t, tuple(grown), recent, step if begins else bet.since)


def wealth(bet: Bet) -> float:
    """Return the wealth of all bets, W_t = mean over f of S_t(f) + 1/(t + 1), where the last part is not bet yet.

    If the claim is true, W is a nonnegative supermartingale that begins at 1. So the probability that it ever reaches
    1/α is at most α, at whatever step one stops. Ville, "Étude critique de la notion de collectif" (1939).
    """
    return sum(bet.wealth_of_stakes) / len(STAKES) + 1 / (bet.n_steps + 1)


def reference_bound(values: Sequence[float], level: float) -> float:
    """Return an upper bound of the mean of values in [0, 1]: m + √(ln(1/δ) / (2n)), at most 1.

    It is below the mean with a probability of at most δ: Hoeffding, "Probability inequalities for sums of bounded
    random variables" (1963). It also holds for the share of values beyond a limit that was chosen by the same values:
    Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality" (1990).

    Args:
        values: The n values. Without one, the bound is 1.
        level: δ, at most 0.5.
    """
    if not 0 < level <= 0.5:
        raise InvalidConfigError(f"reference_bound: level is {level}; it must be above 0 and at most 0.5.")
    if not values:
        return 1.0
    return min(1.0, sum(values) / len(values) + math.sqrt(math.log(1 / level) / (2 * len(values))))


def _growth(stake: float, excesses: Sequence[float]) -> float:
    """Return the product of 1 + stake · excess; each factor is at least 1 − stake, as no excess is below −1."""
    return math.prod(1 + stake * excess for excess in excesses)
