"""`llm/Taxi-v0`: Gymnasium's Taxi as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from gymnasium.envs.toy_text.taxi import MAP
from gymnasium.envs.toy_text.taxi import TaxiEnv as GymnasiumTaxi

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.games.toy_text import Plan, ToyTextEnv, made, plan
from llm_envs.tasks.wording import in_words

__all__ = ["TaxiEnv"]

_STANDS = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}
_LETTERS = "RGYB"


class TaxiEnv(ToyTextEnv):
    """Drive a taxi around walls to a passenger, take the passenger in, and let them out where they want to go.

    ## Description
    Teaches to do the parts of a task in their order, on a map with walls; in the rain the taxi drifts, and a fickle
    passenger may change the destination under way. The dynamics are those of Gymnasium's Taxi, on its one map.

    ## Observation
    First the rules and the map. After each action the map, where the taxi and the passenger are, the destination, and
    the replies that are left.

    ## Action
    `<answer>north</answer>`: one of south, north, east, west, pickup, dropoff. Thinking in `<think>...</think>` is
    allowed before it.

    ## Reward
    `correct` (weight 1): 1 for letting the passenger out at the destination. `malformed` (weight -0.1): 1 for a reply
    without a readable action, and for a pickup or dropoff that is not possible there. Driving and taking the passenger
    in earn nothing.

    ## Episode End
    Terminates when the passenger is out at the destination. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test". There are 300 ways to begin on one map: too few to be divided, so that both splits
      draw from all of them.
    - `difficulty`: "easy" (default): dry, 20 replies; "medium": rain, 2 of 10 moves drift sideways, 35 replies; "hard":
      rain, and 3 of 10 passengers change the destination once, 40 replies. The oracle arrives in all of the problems;
      where it rains, in over 99%. An expert level is missing: the world has one map of 25 cells, and neither rain nor
      whims make its ways hard to find.
    - `max_turns`: the number of replies, if it is to be another than the level's.
    - `reset(options={"problem": {"row": 2, "column": 2, "passenger": "R", "destination": "B", "seed": 1}})` begins with
      the taxi in a given cell, counted from 0; `seed` decides the drifts and the passenger's mind.

    ## Version History
    - v0: first version.
    """

    # The best sequence of actions that was found without looking, improved action by action on exact probabilities,
    # arrives in 0.137, 0.116 and, where no passenger changes the destination, 0.172 of the problems; actions at random
    # in about 0.001.
    difficulties = {
        "easy": Difficulty(
            "dry, 20 replies",
            chance_rate=0.16,
            n_problems=300,
            disjoint_splits=False,
            settings={"is_rainy": False, "is_fickle": False, "turns": 20},
        ),
        "medium": Difficulty(
            "rain, 35 replies",
            chance_rate=0.16,
            n_problems=300,
            disjoint_splits=False,
            settings={"is_rainy": True, "is_fickle": False, "turns": 35},
        ),
        "hard": Difficulty(
            "rain, fickle passengers, 40 replies",
            chance_rate=0.2,
            n_problems=300,
            disjoint_splits=False,
            settings={"is_rainy": True, "is_fickle": True, "turns": 40},
        ),
    }
    default_difficulty = "easy"
    problem_fields = {"row": int, "column": int, "passenger": str, "destination": str, "seed": int}
    luck_fields = ("seed",)
    action_names = ("south", "north", "east", "west", "pickup", "dropoff")
    instructions = "Drive the taxi. In each reply, answer with one action: south, north, east, west, pickup or dropoff."
    answer_example = "south"

    def generate(self) -> dict[str, Any]:
        """Draw where the taxi and the passenger are, and another destination."""
        row, column, passenger, other = (
            int(draw * n) for draw, n in zip(self.np_random.random(4).tolist(), (5, 5, 4, 3), strict=True)
        )
        return {
            "row": row,
            "column": column,
            "passenger": _LETTERS[passenger],
            "destination": (_LETTERS[:passenger] + _LETTERS[passenger + 1 :])[other],
            "seed": self.draw_seed() if self.settings["is_rainy"] else 0,
        }

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse places that do not exist, and a passenger who is there already."""
        if not (0 <= problem["row"] < 5 and 0 <= problem["column"] < 5):
            raise InvalidActionError("its row and column must be from 0 to 4")
        places = [problem["passenger"], problem["destination"]]
        if any(place not in _STANDS for place in places) or places[0] == places[1]:
            raise InvalidActionError("its passenger and destination must be two of R, G, Y, B")
        self.check_seed(problem)

    def make_toy(self) -> Any:
        """Return Gymnasium's taxi, one for all episodes."""
        return self._toy or _taxi(self.settings["is_rainy"], self.settings["is_fickle"])

    def start_state(self) -> int:
        """Return the number of the state."""
        problem = self.problem
        passenger, destination = _LETTERS.index(problem["passenger"]), _LETTERS.index(problem["destination"])
        return int(((problem["row"] * 5 + problem["column"]) * 5 + passenger) * 4 + destination)

    def prompt(self) -> str:
        """Return the rules and the map."""
        rules = ""
        if self.settings["is_rainy"]:
            rules = (
                " It rains: 8 of 10 moves go where they should, 1 of 10 to each side, at a right angle (where that is "
                "blocked, the taxi stays; where the way it should go is blocked, it stays for sure)."
            )
        if self.settings["is_fickle"]:
            rules += " 3 of 10 passengers change the destination, once, when the taxi first moves with them."
        return (
            "Drive the taxi to the passenger, pick the passenger up, and drop them off at the destination. In the "
            "map @ is the taxi; R, G, Y and B are the taxi stands; between two cells, | is a wall and : is an open "
            "way. "
            "Walls never stand between north and south. Actions are south, north, east, west (by one cell), pickup "
            "and dropoff, one a reply; north is up, towards row 1, and east is right, towards column 5. pickup is "
            "only possible where the passenger waits, dropoff only at a stand with the passenger in the taxi; at a "
            f"stand that is not the destination the passenger gets out and waits there.{rules} You have "
            f"{in_words(self.max_turns, 'reply')}.\n{self.show(self._state)}"
        )

    def show(self, state: int) -> str:
        """Return the map with the taxi, and the state in words."""
        rest, destination = divmod(state, 4)
        rest, passenger = divmod(rest, 5)
        row, column = divmod(rest, 5)
        rows = [list(line) for line in MAP]
        rows[1 + row][1 + 2 * column] = "@"
        where = "is in the taxi" if passenger == 4 else f"waits at {_place(_LETTERS[passenger])}"
        return (
            "\n".join(["".join(line) for line in rows])
            + f"\nThe taxi is in row {row + 1}, column {column + 1}. The passenger {where}. The destination is "
            f"{_place(_LETTERS[destination])}."
        )

    def settle(self, reward: float, terminated: bool) -> Outcome:
        """Say what the action came to."""
        if terminated:
            return self.win("The passenger is at the destination.")
        is_illegal = reward == -10
        note = "Error: that is not possible here.\n" if is_illegal else ""
        return self.go_on(note + self.show(self._state), is_illegal=is_illegal)

    def legal_answers(self) -> Sequence[str]:
        """Return the actions that are possible here."""
        outcomes = self._made().P[self._state]
        return [name for number, name in enumerate(self.action_names) if outcomes[number][0][2] != -10]

    def make_plan(self) -> Plan:
        """Return the quickest way, were the passenger of one mind; after a change it is planned anew."""
        return _plan(self.settings["is_rainy"], self.max_turns)


def _place(letter: str) -> str:
    row, column = _STANDS[letter]
    return f"{letter} (row {row + 1}, column {column + 1})"


def _taxi(is_rainy: bool, is_fickle: bool) -> Any:
    arguments = {"is_rainy": is_rainy, "fickle_passenger": is_fickle}
    return made(GymnasiumTaxi, **{name: True for name, is_on in arguments.items() if is_on})


@lru_cache(maxsize=16)
def _plan(is_rainy: bool, turns: int) -> Plan:
    return plan(_taxi(is_rainy, False).P, turns, _pay)


def _pay(reward: float, terminated: bool) -> float:
    return 1.0 if terminated else -0.1 if reward == -10 else 0.0
