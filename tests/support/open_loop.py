"""Fixed play in small worlds: sequences of actions that look at nothing, and how often they win, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class FixedPlay:
    """Several worlds of one size, one of them chosen at random; the policy does not see which.

    Args:
        worlds: Of each world Gymnasium's table `P`, and for each action the world's own number of it.
        starts: The states to begin from, in each world, equally likely.
        is_won: What a step wins, of Gymnasium's reward and whether it terminated.
    """

    def __init__(
        self,
        worlds: Sequence[tuple[Mapping[int, Any], Sequence[int]]],
        starts: Sequence[int],
        is_won: Callable[[float, bool], bool],
    ) -> None:
        n_actions, n_states = len(worlds[0][1]), len(worlds[0][0])
        self.moves = np.zeros((n_actions, len(worlds), n_states, n_states))
        self.wins = np.zeros((n_actions, len(worlds), n_states))
        self.start = np.zeros((len(worlds), n_states))
        self.start[:, starts] = 1 / (len(worlds) * len(starts))
        for world, (table, order) in enumerate(worlds):
            for state, row in table.items():
                for action, own in enumerate(order):
                    for share, following, reward, terminated in row[own]:
                        if not terminated:
                            self.moves[action, world, state, following] += share
                        elif is_won(reward, terminated):
                            self.wins[action, world, state] += share

    def rate(self, plan: Sequence[int]) -> float:
        """Return how often a plan wins."""
        belief, won = self.start, 0.0
        for action in plan:
            won += (belief * self.wins[action]).sum()
            belief = self._after(belief, action)
        return float(won)

    def improve(self, plan: Sequence[int]) -> list[int]:
        """Return the plan with each action replaced by the best one, the others as they are, until none is better."""
        plan, before = list(plan), -1.0
        while (now := self.rate(plan)) > before + 1e-9:
            before = now
            beliefs = [self.start]
            for action in plan[:-1]:
                beliefs.append(self._after(beliefs[-1], action))
            later = np.zeros_like(self.start)
            for turn in reversed(range(len(plan))):
                worth = self.wins + (self.moves @ later[None, :, :, None])[..., 0]
                plan[turn] = int((worth * beliefs[turn]).sum((1, 2)).argmax())
                later = worth[plan[turn]]
        return plan

    def _after(self, belief: Array, action: int) -> Array:
        return (belief[:, None, :] @ self.moves[action])[:, 0]


def best_plan(play: FixedPlay, n_turns: int, n_tries: int) -> tuple[float, list[int]]:
    """Return the best of some random plans, each improved, and how often it wins."""
    rng, plans = np.random.default_rng(0), []
    n_actions = len(play.moves)
    for _ in range(n_tries):
        first, then = rng.dirichlet(np.full(n_actions, 0.4), 2)
        turn = rng.integers(n_turns)
        plan = [int(rng.choice(n_actions, p=first if t < turn else then)) for t in range(n_turns)]
        plans.append(play.improve(plan))
    return max((play.rate(plan), plan) for plan in plans)
