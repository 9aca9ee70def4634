"""The findings of a clause: a text about what holds, the reason why it does not apply, or an exception with a fault."""

from __future__ import annotations

import math

__all__ = ["EXCUSABLE", "FALSE_ALARM", "BrokenClause", "Inapplicable", "NotATask", "binomial_tail", "require"]

FALSE_ALARM = 1e-6
"""Probability, for each policy, that an environment fails although its chance rate is exactly as declared."""

EXCUSABLE = (
    "is_not_won_by_meaningless_text",
    "is_not_won_at_a_glance",
    "refuses_neighbouring_numbers",
    "needs_every_round",
    "understands_other_wordings",
)
"""Names of the clauses that a task may leave out with a reason in `clause_reasons`."""


class BrokenClause(Exception):
    """A clause does not hold."""


class NotATask(Exception):
    """A clause is only for environments that subclass `TextEnv`."""


class Inapplicable(str):
    """The finding of a clause that has nothing to examine in this environment: why."""

    __slots__ = ()


def require(condition: object, message: str) -> None:
    """Raise `BrokenClause` with the message unless the condition is true."""
    if not condition:
        raise BrokenClause(message)


def binomial_tail(successes: int, n: int, p: float) -> float:
    """Return the probability of at least `successes` in `n` trials, each with probability `p`."""
    if successes <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0
    log_p, log_q = math.log(p), math.log1p(-p)
    ways = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(successes, n + 1))
    return math.fsum(math.exp(w + k * log_p + (n - k) * log_q) for k, w in enumerate(ways, successes))
