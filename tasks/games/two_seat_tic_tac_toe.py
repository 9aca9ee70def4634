"""Tic-tac-toe for two seats, from the empty board."""

from __future__ import annotations

from collections.abc import Sequence

from llm_envs.env import SeatedEnv
from llm_envs.tasks.games.game import cell_name, draw_board, read_cell

__all__ = ["TwoSeatTicTacToe"]

_LINES = ("012", "345", "678", "036", "147", "258", "048", "246")


class TwoSeatTicTacToe(SeatedEnv[str]):
    """Play tic-tac-toe, X from seat 0 and O from seat 1.

    ## Description
    `llm/TicTacToe-v0` has one seat and a scripted opponent. Here both seats are played, from the empty board.

    ## Observation
    The own mark and the board.

    ## Action
    `<answer>B2</answer>`: a free cell, column and row.

    ## Reward
    At the end 1 for a win, -1 for a loss, 0 for a draw. A reply without a free cell loses.
    """

    instructions = (
        "Play tic-tac-toe: mark free cells in turn; three of a mark in a row, column or diagonal win. Reply with a "
        "free cell, its column and row, such as <answer>B3</answer>."
    )

    def initial_states(self) -> Sequence[tuple[float, str]]:
        """Return the empty board."""
        return [(1.0, "." * 9)]

    def current_seat(self, state: str) -> int:
        """Return 0 if it is the turn of X."""
        return (9 - state.count(".")) % 2

    def legal_actions(self, state: str) -> Sequence[str]:
        """Return the free cells."""
        return [cell_name(*divmod(cell, 3)) for cell, mark in enumerate(state) if mark == "."]

    def apply_action(self, state: str, action: str) -> str:
        """Mark the cell."""
        row, column = read_cell(action, 3, 3)
        cell = 3 * row + column
        return state[:cell] + "XO"[self.current_seat(state)] + state[cell + 1 :]

    def returns(self, state: str) -> Sequence[float] | None:
        """Return 1 and -1 if a mark has won, zeros if the board is full."""
        for line in _LINES:
            marks = {state[int(cell)] for cell in line}
            if marks in ({"X"}, {"O"}):
                return (1.0, -1.0) if marks == {"X"} else (-1.0, 1.0)
        return None if "." in state else (0.0, 0.0)

    def information_state(self, state: str, seat: int) -> str:
        """Return the seat's mark and the board."""
        return f"You are {'XO'[seat]}.\n{draw_board([state[start : start + 3] for start in (0, 3, 6)])}"
