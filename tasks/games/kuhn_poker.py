"""Kuhn poker for two seats: three cards, one bet; its equilibria are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from llm_envs.env import SeatedEnv

__all__ = ["KuhnPoker"]


class Deal(NamedTuple):
    """A state: the cards of both seats, and the actions so far ("p" and "b")."""

    cards: tuple[str, str]
    actions: str = ""


class KuhnPoker(SeatedEnv[Deal]):
    """Play poker with three cards and one bet (H. W. Kuhn, "A simplified two-person poker", 1950).

    ## Description
    Two seats pay 1 each and get one of J, Q, K. A seat passes or bets 1. To pass after a bet is to fold. Seat 0 acts
    first. It loses 1/18 of a chip a game if both play an equilibrium.

    ## Observation
    The own card, and all actions so far.

    ## Action
    `<answer>pass</answer>` or `<answer>bet</answer>`.

    ## Reward
    At the end, the chips that the seat won (1 or 2) or lost (-1 or -2). A reply without a legal action loses 2.
    """

    instructions = (
        "Play Kuhn poker: the cards are J, Q and K. Both players pay 1 chip and get a card. In turn, pass or bet 1. "
        "To pass after a bet is to fold; to bet after a bet is to call. The higher card wins. Reply with "
        "<answer>pass</answer> or <answer>bet</answer>."
    )
    forfeit = 2.0

    def initial_states(self) -> Sequence[tuple[float, Deal]]:
        """Return the six deals."""
        return [(1 / 6, Deal((first, second))) for first, second in permutations("JQK", 2)]

    def current_seat(self, state: Deal) -> int:
        """Return 0 first, then 1, then 0."""
        return len(state.actions) % 2

    def legal_actions(self, state: Deal) -> Sequence[str]:
        """Return both actions."""
        return ("pass", "bet")

    def apply_action(self, state: Deal, action: str) -> Deal:
        """Add the action."""
        return state._replace(actions=state.actions + action[0])

    def returns(self, state: Deal) -> Sequence[float] | None:
        """Return the chips won."""
        cards, actions = state
        if actions in ("bp", "pbp"):  # the last seat folded
            gain = 1.0 if actions == "bp" else -1.0
        elif actions in ("pp", "bb", "pbb"):
            gain = (1.0 if actions == "pp" else 2.0) * (1 if "JQK".index(cards[0]) > "JQK".index(cards[1]) else -1)
        else:
            return None
        return (gain, -gain)

    def information_state(self, state: Deal, seat: int) -> str:
        """Return the seat's card and all actions; the other card too when the cards are shown."""
        words = {"p": "pass", "b": "bet"}
        said = ", ".join(words[action] for action in state.actions) or "none"
        shown = f" The other card: {state.cards[1 - seat]}." if state.actions in ("pp", "bb", "pbb") else ""
        return f"Your card: {state.cards[seat]}. Actions so far: {said}.{shown}"
