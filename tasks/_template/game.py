"""`my/Template-v0`: reach a number by doubling and adding one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llm_envs.env import Difficulty, Outcome, TextEnv
from llm_envs.errors import InvalidActionError
from llm_envs.tasks.wording import in_words

__all__ = ["TemplateEnv"]

_MOVES = ("double", "add one")


class TemplateEnv(TextEnv):
    """Reach a number by doubling and adding one.

    ## Description
    The agent brings a counter from one number to another, with two moves. Going past the goal loses, because no move
    goes back. Teaches to plan backwards.

    ## Observation
    First the counter, the goal and the number of moves. After each move the counter and the moves left. After a
    malformed reply a readable error; it costs a move.

    ## Action
    `<answer>double</answer>` or `<answer>add one</answer>`. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for reaching the goal. `malformed` (weight -0.1): 1 for each reply that is not a move.

    ## Episode End
    Terminates at the goal and beyond it. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test".
    - `difficulty`: "easy" (default): goals up to 200; "hard": goals up to 20,000.
    - `max_turns`: 30 by default; the shortest way has at most 26 moves.
    - `reset(options={"problem": {"start": 3, "goal": 13}})` gives start and goal.

    ## Version History
    - v0: first version.
    """

    # Measured: who draws moves from the two wins 1.9% of the easy episodes and 0.02% of the hard ones (of 20,000); who
    # doubles a few times and then adds ones, whatever the numbers are, passes through the goal in 18% of the easy ones.
    difficulties = {
        "easy": Difficulty("goals from 100 to 200", chance_rate=0.25, n_problems=909, settings={"highest": 200}),
        "hard": Difficulty(
            "goals from 10,000 to 20,000", chance_rate=0.001, n_problems=90_009, settings={"highest": 20_000}
        ),
    }
    default_difficulty = "easy"
    default_max_turns = 30
    problem_fields = {"start": int, "goal": int}
    instructions = "Make one move in each reply: double, or add one. For add one, write <answer>add one</answer>."
    answer_example = "double"

    def generate(self) -> dict[str, Any]:
        """Draw start and goal; only `self.np_random` is random here."""
        random, highest = self.np_random.random, self.settings["highest"]
        return {"start": 1 + int(random() * 9), "goal": highest // 2 + int(random() * (highest // 2 + 1))}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a problem that somebody gives to `reset` and that cannot be played."""
        if not 1 <= problem["start"] < problem["goal"]:
            raise InvalidActionError("it must have 1 <= start < goal")

    def begin(self) -> None:
        """Set up the episode's state."""
        self._counter: int = self.problem["start"]

    def prompt(self) -> str:
        """Return the rules and the first position. Everything that is needed to win must be in it."""
        return (
            f"The counter stands at {self._counter}. Bring it to {self.problem['goal']} by the moves 'double' and "
            f"'add one', in at most {in_words(self.max_turns, 'move')}. Going past it loses."
        )

    def play(self, action: str) -> Outcome:
        """Make one move. This does not raise, whatever the agent wrote."""
        left = in_words(self.max_turns - self.n_turns, "move")
        try:
            move = self.judge(self.read(action), _read_move)
        except InvalidActionError as refusal:
            return Outcome(f"Error: {refusal}. {left} left.", {"correct": 0.0, "malformed": 1.0})
        self._counter = 2 * self._counter if move == "double" else self._counter + 1
        if self._counter >= self.problem["goal"]:
            won = self._counter == self.problem["goal"]
            text = f"The counter stands at {self._counter}. You {'win' if won else 'have gone past the goal'}."
            return Outcome(text, {"correct": float(won), "malformed": 0.0}, terminated=True, is_success=won)
        return Outcome(f"The counter stands at {self._counter}. {left} left.", {"correct": 0.0, "malformed": 0.0})

    def next_action(self) -> str:
        """Return the oracle's next move: go back from the goal, by halves where that is possible."""
        number, move = self.problem["goal"], "add one"
        while number > self._counter:
            halves = number % 2 == 0 and number // 2 >= self._counter
            number, move = (number // 2, "double") if halves else (number - 1, "add one")
        return self.write_answer(move)


def _read_move(answer: str) -> str:
    """Read a move, or refuse an answer that is not one, with an error that the model can learn from."""
    move = " ".join(answer.lower().replace("+1", "add one").split())
    if move not in _MOVES:
        raise InvalidActionError(f"{move[:20]!r} is not a move; moves are {' and '.join(_MOVES)}")
    return move
