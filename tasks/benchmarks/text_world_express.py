"""`llm/TextWorldExpress-v0`: the text games of the package `textworld-express`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import Difficulty
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.benchmarks.java_worlds import JavaWorld, JavaWorldEnv, Simulator, Step, pool_of
from llm_envs.tasks.draws import between
from llm_envs.tasks.wording import in_words

__all__ = ["TextWorldExpressEnv"]

_FIRST_SEEDS = {"train": 0, "dev": 10_000, "test": 20_000}
_N_SEEDS = 1_000
_TURNS = 100
"""The package's default limit."""


def _level(description: str, chance_rate: float = 0.0) -> Difficulty:
    return Difficulty(description, chance_rate=chance_rate, n_problems=_N_SEEDS, settings={"turns": _TURNS})


class TextWorldExpressEnv(JavaWorldEnv):
    """Cook a meal, tidy a house, find a coin or follow instructions in a text game: TextWorldExpress.

    ## Description
    The eight games of TextWorldExpress (Jansen and Côté 2022, arXiv:2208.01174), played by the package's simulator in
    Java: rooms, containers and things in words. They teach to explore, to remember, and to act by common sense.

    ## Observation
    First the rules, the task and the room. After each command the simulator's answer, the valid commands as the package
    lists them, and the replies that are left.

    ## Action
    `<answer>take coin</answer>`: one command. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `score` (weight 1): the package's reward, the change of its score; a solved game adds up to 1. `correct` (weight 0):
    1 when the task is solved. `malformed` (weight -0.1): 1 for a reply without a command, which is not played.

    ## Episode End
    Terminates where the package does: when the task is solved or can no longer be. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train", "dev" or "test": the package's folds, of 1,000 seeds each.
    - `difficulty`: the game: "cookingworld" (default), "twc" (put things in their usual places), "coin", "mapreader",
      "arithmetic", "sorting", "simonsays", "peckingorder". An expert level is missing: the levels are the benchmark's.
    - `max_turns`: the number of replies, 100 by default as in the package.
    - `params`: the package's parameters of a game, such as "numLocations=3,includeDoors=0"; "" for its defaults.
    - `valid_actions`: False not to list the valid commands.
    - `reset(options={"problem": {"seed": 3, "fold": "train"}})` plays the package's game of this seed.

    The oracle plays the package's gold path, which knows the whole world.

    ## Version History
    - v0: first version.
    """

    simulator = Simulator(
        "textworld_express",
        "textworld-express.jar",
        "textworldexpress.runtime.PythonInterface",
        "llm/TextWorldExpress-v0",
    )
    difficulties = {
        "cookingworld": _level("find, cook and eat a meal by a recipe in a house of 11 rooms"),
        "twc": _level("put things in their usual places in 3 rooms"),
        "coin": _level("find and take a coin in 11 rooms", 0.25),
        "mapreader": _level("fetch a coin with the help of a map of 15 rooms"),
        "arithmetic": _level("solve a sum, and put as many things into a box", 0.05),
        "sorting": _level("put things into a box by their quantity"),
        "simonsays": _level("do exactly what Simon demands", 0.01),
        "peckingorder": _level("follow a book of instructions that changes", 0.01),
    }
    default_difficulty = "cookingworld"
    problem_fields = {"seed": int, "fold": str}
    instructions = "Solve the task of a text game. In each reply, answer with one command."
    answer_example = "look around"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        params: str = "",
        valid_actions: bool = True,
    ) -> None:
        pool_of(self.simulator)
        super().__init__(split, difficulty, max_turns, render_mode)
        self.params, self.valid_actions = params, valid_actions
        if params:
            self._check_params()

    def _check_params(self) -> None:
        """Refuse parameters that the package does not know: it ignores them."""
        world = pool_of(self.simulator).take()
        try:
            message = world.call("load", self.difficulty, self.params)
            _generated(world, {"seed": 0, "fold": "train"}, False)
            known = json.loads(world.call("getGenerationPropertiesJSON"))
        except InvalidActionError:
            message, known = "the package cannot read them.", {}
        finally:
            world.close()
        if message or not {part.partition("=")[0] for part in self.params.split(",")} <= known.keys():
            raise InvalidConfigError(
                f"TextWorldExpressEnv: params is {self.params!r}; it must be as in numLocations=3,includeDoors=0, with "
                f"some of {', '.join(sorted(known))}. {message or ''}"
            )

    def generate(self) -> dict[str, Any]:
        """Draw a seed of the fold."""
        seed = _FIRST_SEEDS[self.split] + between(self.np_random.random, 0, _N_SEEDS - 1)
        return {"seed": seed, "fold": self.split}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seed that is not in the fold."""
        first = _FIRST_SEEDS.get(problem["fold"])
        if first is None or not first <= problem["seed"] < first + _N_SEEDS:
            raise InvalidActionError(
                f"seeds are from {first} on, {_N_SEEDS} a fold; folds are {', '.join(self.splits)}"
            )

    def start(self, world: JavaWorld) -> Step:
        """Generate the game."""
        world.call("load", self.difficulty, self.params)
        first = _generated(world, self.problem, False)
        self._task = str(world.call("getTaskDescription"))
        return Step(self._text(first), float(first["score"]), False, False)

    def _text(self, answer: Mapping[str, Any]) -> str:
        observation = str(answer["observation"]).strip()
        if not self.valid_actions:
            return observation
        return f"{observation}\nValid commands: {', '.join(sorted(answer['validActions']))}."

    def prompt(self) -> str:
        """Return the task and the room."""
        return f"{self._task} You have {in_words(self.max_turns, 'reply')}, with one command each.\n\n{self._shown}"

    def act(self, world: JavaWorld, command: str) -> Step:
        """Execute a command; "help" shows the task, as in the package."""
        if command == "help":
            return Step(self._task, self._score, False, False)
        answer = json.loads(world.call("stepJSON", command))
        is_success = bool(answer["tasksuccess"])
        score = float(answer["score"])
        is_over = is_success or bool(answer["taskfailure"]) or score >= 1
        return Step(self._text(answer) if not is_over else str(answer["observation"]), score, is_success, is_over)

    def solution(self) -> Sequence[str]:
        """Return the package's gold path."""
        return _gold_path(self.difficulty, self.params, self.problem["seed"], self.problem["fold"])


def _generated(world: JavaWorld, problem: Mapping[str, Any], with_gold_path: bool) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        world.call("generateNewGameJSON", problem["seed"], problem["fold"], with_gold_path)
    )
    return answer


@lru_cache(maxsize=1_000)
def _gold_path(game: str, params: str, seed: int, fold: str) -> tuple[str, ...]:
    world = pool_of(TextWorldExpressEnv.simulator).take()
    try:
        world.call("load", game, params)
        _generated(world, {"seed": seed, "fold": fold}, True)
        return tuple(map(str, world.call("getGoldActionSequence")))
    finally:
        world.close()
