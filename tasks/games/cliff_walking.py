"""`llm/CliffWalking-v0`: Gymnasium's CliffWalking as text, from any place of its grid."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gymnasium.envs.toy_text.cliffwalking import CliffWalkingEnv as GymnasiumCliffWalking

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import DIRECTIONS, cell_name, draw_board
from llm_envs.tasks.games.toy_text import Plan, ToyTextEnv, made, plan
from llm_envs.tasks.wording import in_words

__all__ = ["CliffWalkingEnv"]

_N_ROWS, _N_COLUMNS = 4, 12
_START = (_N_ROWS - 1) * _N_COLUMNS
_GOAL = _N_ROWS * _N_COLUMNS - 1
_STARTS = tuple(
    state
    for state in range(_N_ROWS * _N_COLUMNS)
    if (state < 3 * _N_COLUMNS or state == 3 * _N_COLUMNS)
    and abs(state // _N_COLUMNS - 3) + abs(state % _N_COLUMNS - 11) >= 6
)
"""The cells outside the cliff that are at least 6 moves from the goal."""
_FALL = -0.1
_VIEWS: dict[str, tuple[bool, bool, bool]] = {
    "plain": (False, False, False),
    "mirrored": (False, True, False),
    "upturned": (True, False, False),
    "turned": (True, True, False),
    "upright": (False, False, True),
    "upright mirrored": (False, True, True),
    "upright upturned": (True, False, True),
    "upright turned": (True, True, True),
}
"""Name: whether rows and whether columns are shown in the opposite order, and whether rows then become columns."""


class CliffWalkingEnv(ToyTextEnv):
    """Walk along a cliff to the goal; a step over the edge costs and leads back to the start.

    ## Description
    Teaches to weigh a short way against a safe one: on firm ground the way along the edge is right, on slippery ground
    it pays to keep away from it, as far as the replies allow. The dynamics are those of Gymnasium's CliffWalking, on
    its one map, which is shown from any of its four sides and mirrored or not. Problems differ in that, in where they
    begin and, where it is slippery, in the slips.

    ## Observation
    First the rules and the map. After each move the map, where the agent is, and the replies that are left.

    ## Action
    `<answer>up</answer>`: one of up, right, down, left. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for reaching the goal. `fell` (weight -0.1): 1 for each step over the edge. `malformed`
    (weight -0.1): 1 for a reply without a readable move; it counts as a reply. Each of the two adds up to 5 at most:
    from the fifth in an episode on, each counts half of what is left.

    ## Episode End
    Terminates at the goal. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test". There are 25 places to begin from in 8 views of one map: too few to be divided, so
      that both splits draw from all of them.
    - `difficulty`: "easy" (default): firm ground, 16 replies; "medium": one of three moves goes where it should, 80
      replies; "hard": likewise, 50 replies. The oracle plays as well as can be: it earns 1, 0.89 and 0.61 on average.
      An expert level is missing: the world has one map, on which a simple rule, to keep away from the edge as long as
      the replies allow, is nearly as good as the oracle.
    - `max_turns`: the number of replies, if it is to be another than the level's.
    - `reset(options={"problem": {"start": 36, "view": "mirrored", "seed": 1}})` begins at a given cell, row * 12 +
      column of Gymnasium's map, counted from 0; `view` is "plain", "mirrored" (left to right), "upturned", "turned"
      (both), or one of "upright", "upright mirrored", "upright upturned" and "upright turned" (rows become columns);
      `seed` decides the slips.

    ## Version History
    - v0: first version.
    """

    # The best sequence of moves that was found without looking, improved move by move on exact probabilities, wins
    # 0.20, 0.121 and 0.074: on slippery ground against one edge almost all the time. Moves at random win 0.03 or less.
    difficulties = {
        "easy": Difficulty(
            "firm ground, 16 replies",
            chance_rate=0.22,
            n_problems=len(_VIEWS) * len(_STARTS),
            disjoint_splits=False,
            settings={"is_slippery": False, "turns": 16},
        ),
        "medium": Difficulty(
            "slippery ground, 80 replies",
            chance_rate=0.14,
            n_problems=len(_VIEWS) * len(_STARTS),
            disjoint_splits=False,
            settings={"is_slippery": True, "turns": 80},
        ),
        "hard": Difficulty(
            "slippery ground, 50 replies",
            chance_rate=0.09,
            n_problems=len(_VIEWS) * len(_STARTS),
            disjoint_splits=False,
            settings={"is_slippery": True, "turns": 50},
        ),
    }
    default_difficulty = "easy"
    reward_weights = {"correct": 1.0, "fell": _FALL, "malformed": -0.1}
    component_limits = {"malformed": 5.0, "fell": 5.0}
    problem_fields = {"start": int, "view": str, "seed": int}
    luck_fields = ("seed",)
    action_names = ("up", "right", "down", "left")
    instructions = "Walk to the goal G. In each reply, answer with one move: up, right, down or left."
    answer_example = "up"

    def generate(self) -> dict[str, Any]:
        """Draw where to begin."""
        start = _STARTS[int(self.np_random.random() * len(_STARTS))]
        view = list(_VIEWS)[int(self.np_random.random() * len(_VIEWS))]
        return {"start": start, "view": view, "seed": self.draw_seed() if self.settings["is_slippery"] else 0}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse to begin on the cliff, at the goal or outside."""
        if not 0 <= problem["start"] <= 3 * _N_COLUMNS:
            raise InvalidActionError(f"its start must be from 0 to {3 * _N_COLUMNS}")
        if problem["view"] not in _VIEWS:
            raise InvalidActionError(f"its view must be one of {', '.join(_VIEWS)}")
        self.check_seed(problem)

    def make_toy(self) -> Any:
        """Return Gymnasium's cliff, one for all episodes."""
        return self._toy or _cliff(self.settings["is_slippery"])

    def start_state(self) -> int:
        """Return where to begin."""
        return int(self.problem["start"])

    def prompt(self) -> str:
        """Return the rules and the map."""
        slips = (
            "The ground is slippery: one of three moves goes where it should, one to each side, at a right angle."
            if self.settings["is_slippery"]
            else "Every move goes where it should."
        )
        return (
            "Walk to G. @ is you, . is ground, C is the cliff: a step onto it costs 0.1 and puts you at "
            f"{self._name(_START)}. Moves are up, "
            "right, down and left, by one cell, one move a reply; up is towards row 1, left towards column A. "
            f"{slips} A move that would leave the map changes nothing. You have {in_words(self.max_turns, 'reply')}.\n"
            f"{self.show(self._state)}"
        )

    def show(self, state: int) -> str:
        """Return the map with the agent on it."""
        cells = [["."] * _N_COLUMNS for _ in range(_N_ROWS - 1)] + [[".", *"C" * (_N_COLUMNS - 2), "G"]]
        cells[state // _N_COLUMNS][state % _N_COLUMNS] = "@"
        rows_turned, columns_turned, is_upright = _VIEWS[self.problem["view"]]
        shown = [row[::-1] if columns_turned else row for row in cells]
        shown = shown[::-1] if rows_turned else shown
        if is_upright:
            shown = [list(column) for column in zip(*shown, strict=True)]
        return f"{draw_board(shown)}\nYou are at {self._name(state)}."

    def _name(self, state: int) -> str:
        """Return the name of a cell as it is shown."""
        row, column = divmod(state, _N_COLUMNS)
        rows_turned, columns_turned, is_upright = _VIEWS[self.problem["view"]]
        row = _N_ROWS - 1 - row if rows_turned else row
        column = _N_COLUMNS - 1 - column if columns_turned else column
        return cell_name(column, row) if is_upright else cell_name(row, column)

    def turned(self, name: str) -> str:
        """Return the move on Gymnasium's map for one on the map as it is shown."""
        return _MOVES[self.problem["view"]][name]

    def shown_name(self, name: str) -> str:
        """Return the move on the map as it is shown for one on Gymnasium's map."""
        moves = _MOVES[self.problem["view"]]
        return next(shown for shown in moves if moves[shown] == name)

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        outcome = super().refuse(problem)
        return outcome._replace(components=outcome.components | {"fell": 0.0})

    def settle(self, reward: float, terminated: bool) -> Outcome:
        """Say where the move led."""
        fell = reward == -100
        if terminated:
            outcome = self.win(f"You have reached the goal, {self._name(_GOAL)}.")
        else:
            outcome = self.go_on(("You fell from the cliff.\n" if fell else "") + self.show(self._state))
        return outcome._replace(components=outcome.components | {"fell": float(fell)})

    def make_plan(self) -> Plan:
        """Return the moves that earn the most on average."""
        return _plan(self.settings["is_slippery"], self.max_turns)


def _moves_of(rows_turned: bool, columns_turned: bool, is_upright: bool) -> dict[str, str]:
    """Return for each move on the map as it is shown the one on Gymnasium's map."""
    names = {change: name for name, change in DIRECTIONS.items()}
    moves = {}
    for name, (down, right) in DIRECTIONS.items():
        if is_upright:
            down, right = right, down
        moves[name] = names[-down if rows_turned else down, -right if columns_turned else right]
    return moves


_MOVES = {view: _moves_of(*turns) for view, turns in _VIEWS.items()}


def _cliff(is_slippery: bool) -> Any:
    return made(GymnasiumCliffWalking, is_slippery=True) if is_slippery else made(GymnasiumCliffWalking)


@lru_cache(maxsize=16)
def _plan(is_slippery: bool, turns: int) -> Plan:
    return plan(_cliff(is_slippery).P, turns, _pay)


def _pay(reward: float, terminated: bool) -> float:
    return 1.0 if terminated else _FALL if reward == -100 else 0.0
