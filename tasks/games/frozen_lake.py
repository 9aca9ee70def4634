"""`llm/FrozenLake-v0`: Gymnasium's FrozenLake as text, on a new map in every problem."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv as GymnasiumFrozenLake
from gymnasium.envs.toy_text.frozen_lake import generate_random_map, is_valid

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.game import cell_name, draw_board
from llm_envs.tasks.games.symmetry import canonical_board
from llm_envs.tasks.games.toy_text import Plan, ToyTextEnv, made, plan
from llm_envs.tasks.wording import in_words

__all__ = ["FrozenLakeEnv"]

_ENDS_SWAPPED = str.maketrans("SG", "GS")


class FrozenLakeEnv(ToyTextEnv):
    """Cross a frozen lake with holes to the goal; on slippery ice a move may go sideways.

    ## Description
    Teaches to act where moves do not always do what they should: on slippery ice the safe way is one where also the
    sideways slips end well. The dynamics are those of Gymnasium's FrozenLake; the maps are its random ones.

    ## Observation
    First the rules and the map. After each move the map, where the agent is, and the replies that are left.

    ## Action
    `<answer>down</answer>`: one of left, down, right, up. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for reaching the goal. `malformed` (weight -0.1): 1 for a reply without a readable move; it
    counts as a reply. Being nearer to the goal earns nothing.

    ## Episode End
    Terminates at the goal, and, lost, in a hole. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no map is in both, be it mirrored or walked from the goal to the start.
    - `difficulty`: "easy" (default): 6 by 6 cells, every move goes where it should, 24 replies; "medium": 6 by 6, 8 of
      10 moves do, 40 replies; "hard": 8 by 8, one of three moves does, 120 replies; "expert": 12 by 12, 8 of 10
      moves do, 80 replies. The oracle plays as well as can be: it reaches the goal on all, 74%, 71% and 85% of the
      maps.
    - `max_turns`: the number of replies, if it is to be another than the level's.
    - `reset(options={"problem": {"map": ["SF", "FG"], "seed": 1}})` plays a given map; `seed` decides the slips.

    ## Version History
    - v0: first version.
    """

    # The best sequence of moves that was found without looking, improved move by move on the exact probabilities of 150
    # maps, wins 0.14, 0.09 and 0.063 of these, and 0.12 of 60 others at the medium level.
    difficulties = {
        "easy": Difficulty(
            "6 by 6 cells, not slippery",
            chance_rate=0.18,
            settings={"size": 6, "ice": 0.75, "sure": 1.0, "turns": 24},
        ),
        "medium": Difficulty(
            "6 by 6 cells, 8 of 10 moves go where they should",
            chance_rate=0.15,
            settings={"size": 6, "ice": 0.75, "sure": 0.8, "turns": 40},
        ),
        "hard": Difficulty(
            "8 by 8 cells, one of three moves goes where it should",
            chance_rate=0.1,
            settings={"size": 8, "ice": 0.85, "sure": 1 / 3, "turns": 120},
        ),
        "expert": Difficulty(
            "12 by 12 cells, 8 of 10 moves go where they should",
            chance_rate=0.1,
            settings={"size": 12, "ice": 0.85, "sure": 0.8, "turns": 80},
            expected_hard="The oracle crosses 85% of the lakes; who takes the shortest way between the holes crosses "
            "40%, who makes the least dangerous move at each step 32%, on exact probabilities. A model that sees the "
            "way, but weighs the slips along it by feeling, is between them.",
        ),
    }
    default_difficulty = "easy"
    slow_reset_reason = "Gymnasium works out the transitions of each map, at the expert level of 144 cells"
    problem_fields = {"map": list, "seed": int}
    luck_fields = ("seed",)
    action_names = ("left", "down", "right", "up")
    instructions = "Cross the frozen lake. In each reply, answer with one move: left, down, right or up."
    answer_example = "left"

    def generate(self) -> dict[str, Any]:
        """Draw a map that has a way to the goal."""
        rows = generate_random_map(self.settings["size"], self.settings["ice"], seed=self.draw_seed())
        return {"map": [str(row) for row in rows], "seed": 0 if self.settings["sure"] == 1 else self.draw_seed()}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse anything but a map with a start, a goal and a way."""
        rows = problem["map"]
        size = len(rows)
        if not (2 <= size <= 12 and all(isinstance(row, str) and len(row) == size for row in rows)):
            raise InvalidActionError("its map must be a square of 2 to 12 rows")
        text = "".join(rows)
        if set(text) - set("SFHG") or text[0] != "S" or text[-1] != "G" or text.count("S") + text.count("G") != 2:
            raise InvalidActionError("its map must be of S, F, H, G, with S first, G last, and neither again")
        if not is_valid([list(row) for row in rows], size):
            raise InvalidActionError("its map must have a way to the goal")
        self.check_seed(problem)

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the map, the same for its mirror image and either end as the start."""
        swapped = [row.translate(_ENDS_SWAPPED) for row in problem["map"]]
        return min(canonical_board(problem["map"]), canonical_board(swapped))

    def make_toy(self) -> Any:
        """Return Gymnasium's lake."""
        return _lake(tuple(self.problem["map"]), self.settings["sure"])

    def start_state(self) -> int:
        """Return the state of the upper left cell."""
        return 0

    def prompt(self) -> str:
        """Return the rules and the map."""
        sure = self.settings["sure"]
        slips = {
            1.0: "Every move goes where it should.",
            0.8: "The ice is slippery: 8 of 10 moves go where they should, 1 of 10 to each side, at a right angle.",
        }.get(
            sure,
            "The ice is slippery: one of three moves goes where it should, one to each side, at a right angle.",
        )
        return (
            "Cross the frozen lake from S to G. F is ice that holds, H is a hole: who is in a hole has lost. @ is you. "
            "Moves are left, down, right and up, by one cell, one move a reply; up is towards row 1, left towards "
            f"column A. {slips} A move that would leave the map changes nothing. "
            f"You have {in_words(self.max_turns, 'reply')}.\n"
            f"{self.show(self._state)}"
        )

    def show(self, state: int) -> str:
        """Return the map with the agent on it."""
        row, column = divmod(state, len(self.problem["map"]))
        shown = [list(cells) for cells in self.problem["map"]]
        shown[row][column] = "@"
        return f"{draw_board(shown)}\nYou are at {cell_name(row, column)}."

    def settle(self, reward: float, terminated: bool) -> Outcome:
        """Say where the move led."""
        if terminated:
            at = cell_name(*divmod(self._state, len(self.problem["map"])))
            return (
                self.win(f"You have reached the goal, {at}.")
                if reward > 0
                else self.lose(f"You are in a hole, {at}. You lose.")
            )
        return self.go_on(self.show(self._state))

    def make_plan(self) -> Plan:
        """Return the moves that reach the goal most surely."""
        return _plan(tuple(self.problem["map"]), self.settings["sure"], self.max_turns)


def _lake(rows: tuple[str, ...], sure: float) -> Any:
    if sure == 1.0:
        return made(GymnasiumFrozenLake, desc=list(rows), is_slippery=False)
    if sure == 1 / 3:
        return made(GymnasiumFrozenLake, desc=list(rows), is_slippery=True)
    return made(GymnasiumFrozenLake, desc=list(rows), is_slippery=True, success_rate=sure)


@lru_cache(maxsize=64)
def _plan(rows: tuple[str, ...], sure: float, turns: int) -> Plan:
    return plan(_lake(rows, sure).P, turns, lambda reward, terminated: reward)
