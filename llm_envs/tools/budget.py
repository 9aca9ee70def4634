"""Budgets: each tool call has a cost, until a total is spent.

For tasks of self-verification, which weigh the quality of an answer against the cost of its checks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError

__all__ = ["Budget"]


@dataclass
class Budget:
    """The total that the calls of one episode may cost.

    Each call of a tool under the budget (`budgeted`) costs the tool's `cost`, even if it fails; a call with wrong
    arguments does not run and costs nothing. A call that the budget does not cover does not run either: its result is
    an error with the cost and the remainder. Calls are charged in the order in which they were written, even if they
    run in parallel.

    `ToolEnv` resets the budgets of its tools in each episode.
    """

    total: float
    """At least 0; `math.inf` only counts."""
    spent: float = field(default=0.0, init=False)
    """The amount spent so far in this episode."""
    _collected: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.total, int | float) and self.total >= 0):
            raise InvalidConfigError(f"Budget.total is {self.total!r}; it must be a number of at least 0.")

    @property
    def remaining(self) -> float:
        """The amount that is left."""
        return max(0.0, self.total - self.spent)

    def charge(self, cost: float) -> bool:
        """Spend `cost` if enough is left; return whether it was."""
        after = self.spent + cost
        # Ten times 0.1 is not exactly 1, but a budget of 1 must cover it.
        if after > self.total and not math.isclose(after, self.total, rel_tol=1e-9, abs_tol=1e-12):
            return False
        self.spent = after
        return True

    def collect(self) -> float:
        """Return the amount spent since the last call of this method: in `ToolEnv.score`, the cost of the turn."""
        newly, self._collected = self.spent - self._collected, self.spent
        return newly

    def reset(self) -> None:
        """Start an episode with the full amount."""
        self.spent = self._collected = 0.0
