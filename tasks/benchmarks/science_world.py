"""`llm/ScienceWorld-v0`: experiments of elementary school in a house, from the package `scienceworld`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llm_envs.env import Difficulty
from llm_envs.errors import InvalidActionError, InvalidConfigError
from llm_envs.tasks.benchmarks.java_worlds import JavaWorld, JavaWorldEnv, Simulator, Step, pool_of
from llm_envs.tasks.draws import pick
from llm_envs.tasks.wording import in_words

__all__ = ["ScienceWorldEnv"]

_TURNS = 100
"""The package's default limit."""
_SIMULATOR = Simulator(
    "scienceworld",
    "scienceworld.jar",
    "scienceworld.runtime.pythonapi.PythonInterface",
    "llm/ScienceWorld-v0",
)


def _level(description: str, chance_rate: float = 0.0) -> Difficulty:
    return Difficulty(description, chance_rate=chance_rate, settings={"turns": _TURNS})


class ScienceWorldEnv(JavaWorldEnv):
    """Do an experiment of elementary school, such as boiling water, in a house full of things: ScienceWorld.

    ## Description
    The thirty tasks of ScienceWorld (Wang et al. 2022, arXiv:2203.07540), played by the package's simulator in Java:
    ten rooms with substances, devices, animals and plants. They teach to explore, to plan, and to use knowledge. The
    package's texts list things in an order that differs from run to run; here one problem always shows the same.

    ## Observation
    First the rules, the task and the room. After each command the simulator's answer, and the replies that are left.

    ## Action
    `<answer>open door to kitchen</answer>`: one command. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `score` (weight 1): the package's reward, the change of its score in hundredths: a solved task adds up to 1 less the
    score of its start, which depends on the room; a wrong final answer makes the score -1. `correct` (weight 0): 1 when
    the task is solved. `malformed` (weight -0.1): 1 for a reply without a command, which is not played.

    ## Episode End
    Terminates where the package does: when the task is solved or has failed. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train", "dev" or "test": the package's variations of a task.
    - `difficulty`: the task: "find-living-thing" (default), "find-plant", "boil", "melt", "chemistry-mix",
      "use-thermometer", "power-component", "lifespan-longest-lived", "identify-life-stages-1", "grow-plant", or another
      of the package. An expert level is missing: the levels are the benchmark's.
    - `max_turns`: the number of replies, 100 by default as in the package.
    - `simplifications`: the package's, such as "teleportAction,openDoors"; "easy" (default) is all, "" none.
    - `reset(options={"problem": {"variation": 3}})` plays a variation of the task, of any split.

    The oracle plays the package's gold path, which knows the whole world.

    ## Version History
    - v0: first version.
    """

    simulator = _SIMULATOR
    difficulties = {
        "find-living-thing": _level("find a living thing, and bring it to a box in another room"),
        "find-plant": _level("find a plant, and bring it to a box in another room"),
        "boil": _level("boil a substance"),
        "melt": _level("melt a substance"),
        "chemistry-mix": _level("mix substances by a recipe"),
        "use-thermometer": _level("measure a temperature, and choose a box by it"),
        "power-component": _level("build a circuit that powers a device"),
        "lifespan-longest-lived": _level("find the animal that lives longest", 0.3),
        "identify-life-stages-1": _level("show the stages of an animal's life in their order"),
        "grow-plant": _level("grow a plant from a seed"),
    }
    default_difficulty = "find-living-thing"
    oracle_is_exact = False  # it solves the task, but what that earns depends on the start
    problem_fields = {"variation": int}
    instructions = "Do an experiment in a simulated house. In each reply, answer with one command."
    answer_example = "look around"

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        simplifications: str = "easy",
    ) -> None:
        pool_of(self.simulator)
        name = self.default_difficulty if difficulty is None else difficulty
        if name not in self.difficulties:
            if name not in _names():
                raise InvalidConfigError(
                    f"ScienceWorldEnv: difficulty is {name!r}; it must be a task of the package: {', '.join(_names())}."
                )
            self.difficulties = {**self.difficulties, name: _level("a task of the package", 0.1)}  # type: ignore[misc]
        super().__init__(split, difficulty, max_turns, render_mode)
        unknown = set(simplifications.split(",")) - {"", "easy", *_possible_simplifications(name)}
        if unknown:
            raise InvalidConfigError(
                f"ScienceWorldEnv: simplifications has {', '.join(sorted(unknown))}; known are easy and "
                f"{', '.join(_possible_simplifications(name))}, with commas between."
            )
        self.simplifications = simplifications
        self._variations = _variations(name)
        self.n_problems = len(self._variations[split])

    def generate(self) -> dict[str, Any]:
        """Draw a variation of the split."""
        return {"variation": pick(self.np_random.random, self._variations[self.split])}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a variation that the task does not have."""
        if not any(problem["variation"] in found for found in self._variations.values()):
            raise InvalidActionError(f"the task has {sum(map(len, self._variations.values()))} variations, from 0")

    def start(self, world: JavaWorld) -> Step:
        """Load the variation, and look around as the package does."""
        world.call("load", self.difficulty, self.problem["variation"], self.simplifications, False)
        world.call("reset")
        first = self.act(world, "look around")
        self._task = str(world.call("freeActionTaskDesc")).removeprefix("Task Description:").strip()
        self._forms = ", ".join(sorted(world.call("getPossibleActions")))
        return first

    def prompt(self) -> str:
        """Return the task, the forms of commands and the room."""
        return (
            f"{self._task}\nCommands, where OBJ and LOC stand for things and places: {self._forms}. You have "
            f"{in_words(self.max_turns, 'reply')}, with one command each.\n\n{self._shown}"
        )

    def act(self, world: JavaWorld, command: str) -> Step:
        """Execute a command."""
        observation = str(world.call("step", command)).strip()
        score = round(100 * float(world.call("getScore"))) / 100
        is_over = bool(world.call("getCompleted")) or score < 0
        return Step(observation, score, score >= 1, is_over)

    def solution(self) -> Sequence[str]:
        """Return the package's gold path."""
        return _gold_path(self.difficulty, self.problem["variation"], self.simplifications)


@lru_cache(maxsize=64)
def _asked(task: str | None, *methods: str) -> tuple[Any, ...]:
    """Return what a world answers to methods without arguments, after it has loaded a task."""
    world = pool_of(_SIMULATOR).take()
    try:
        if task is not None:
            world.call("load", task, 0, "", False)
        return tuple(_plain(world.call(method)) for method in methods)
    finally:
        world.close()


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else tuple(value)


def _names() -> tuple[str, ...]:
    return tuple(_asked(None, "getTaskNames")[0])


def _possible_simplifications(task: str) -> tuple[str, ...]:
    return tuple(_asked(task, "getPossibleSimplifications")[0].split(", "))


def _variations(task: str) -> dict[str, tuple[int, ...]]:
    found = _asked(task, "getVariationsTrain", "getVariationsDev", "getVariationsTest")
    return dict(zip(("train", "dev", "test"), found, strict=True))


@lru_cache(maxsize=1_000)
def _gold_path(task: str, variation: int, simplifications: str) -> tuple[str, ...]:
    world = pool_of(_SIMULATOR).take()
    try:
        world.call("load", task, variation, simplifications, True)
        return tuple(map(str, world.call("getGoldActionSequence")))
    finally:
        world.close()
