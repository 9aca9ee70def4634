"""Budgets: tools that cost, until a sum is spent.

For tasks of self-verification, which weigh the quality of an answer against what its checks cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llm_envs.errors import InvalidConfigError
from llm_envs.tools import Tool
from llm_envs.toolset import Toolset, as_tools

if TYPE_CHECKING:
    from llm_envs.sandbox import PythonTool

__all__ = ["Budget", "budgeted"]


@dataclass
class Budget:
    """What the calls of one episode may cost together.

    Each call of a tool under the budget (`budgeted`) costs the tool's `cost`, whatever comes of it; one whose arguments
    do not fit is not run and costs nothing. A call that the budget does not cover is not run either: its result is an
    error that names the cost and what is left. Calls are charged in the order in which they were written, also where
    they run side by side.

    `ToolEnv` resets the budgets of its tools with each episode.
    """

    total: float
    """At least 0; `math.inf` only counts."""
    spent: float = field(default=0.0, init=False)
    """So far in this episode."""
    _collected: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the total."""
        if not (isinstance(self.total, int | float) and self.total >= 0):
            raise InvalidConfigError(f"Budget.total is {self.total!r}; it must be a number of at least 0.")

    @property
    def remaining(self) -> float:
        """What is left of it."""
        return max(0.0, self.total - self.spent)

    def charge(self, cost: float) -> bool:
        """Spend `cost` if that much is left; return whether it was."""
        after = self.spent + cost
        # Ten times 0.1 is not 1 to the last digit, and a budget of 1 covers it.
        if after > self.total and not math.isclose(after, self.total, rel_tol=1e-9, abs_tol=1e-12):
            return False
        self.spent = after
        return True

    def collect(self) -> float:
        """Return what was spent since this was last asked: in `ToolEnv.score`, what the turn cost."""
        newly, self._collected = self.spent - self._collected, self.spent
        return newly

    def reset(self) -> None:
        """Start an episode with the whole sum."""
        self.spent = self._collected = 0.0


def budgeted(tools: Toolset | Iterable[Tool | Toolset | PythonTool | Callable[..., Any]], budget: Budget) -> list[Tool]:
    """Return the same tools, each of whose calls is charged to the budget.

    Args:
        tools: `Tool`s with a `cost`; `Toolset`s, whose tools cost what `tool(cost=...)` says, by default nothing. A
            plain function or a `PythonTool` costs 1.
        budget: One sum for all of them.

    Raises:
        InvalidConfigError: If something is no tool.
    """
    return [tool.under(budget) for tool in as_tools(tools, "budgeted", default_cost=1.0)]
