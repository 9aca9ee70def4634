"""Our episodes of `llm/TextWorldExpress-v0` and `llm/ScienceWorld-v0` against those of their packages.

    python -m proof.fidelity.java_worlds

An output is a command in the middle of an episode: those of the gold path ("right"), valid ones at random ("wrong"),
texts without a command, which are not played ("malformed"), and commands with characters and words that do harm
elsewhere ("hostile"). A verdict is equal if the reward, the end and the observation are those of the package's own
class in another machine, and so is success. In ScienceWorld the order of things depends on identity hashes, so the
package's machine gets constant ones too.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from typing import Any

import gymnasium as gym

from llm_envs.tasks.benchmarks.java_worlds import _OPTIONS
from proof.fidelity.compare import Case, compare, write

__all__ = ["DIFFERENT", "cases", "result"]

DIFFERENT = "a reward, an end or an observation differs"
GAMES = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "sorting", "simonsays", "peckingorder")
EXPERIMENTS = ("find-living-thing", "chemistry-mix", "lifespan-longest-lived", "use-thermometer", "boil", "grow-plant")
_BROKEN = (
    "",
    "Hm.",
    "<answer>look around",
    "<answer></answer>",
    "<think>take coin",
    "<answer>" + "x" * 201 + "</answer>",
)
_HOSTILE = (
    "; exit",
    "'\"\\n$(ls)",
    "take %s %n",
    "0",
    "look around; reset",
    "é ü ß",
    "task",
    "{}[]()",
    "a" * 200,
    "help",
)
_GENERAL = ("look around", "inventory", "open door to kitchen", "go to kitchen", "take coin", "move north", "wait1")

Played = tuple[str, float, bool, bool]
"""Observation, reward, whether the episode is over, whether it is solved."""


class TextWorldExpress:
    """The package's own class."""

    def __init__(self) -> None:
        self.env = importlib.import_module("textworld_express").TextWorldExpressEnv(envStepLimit=10_000)

    def start(self, level: str, problem: dict[str, Any]) -> str:
        return str(self.env.reset(problem["seed"], problem["fold"], level, "", False)[0])

    def step(self, command: str) -> Played:
        observation, reward, is_over, info = self.env.step(command)
        return str(observation), float(reward), bool(is_over), bool(info["tasksuccess"])


class ScienceWorld:
    """The package's own class, in a machine with constant identity hashes."""

    def __init__(self) -> None:
        module: Any = importlib.import_module("scienceworld.scienceworld")
        launch = module.launch_gateway
        module.launch_gateway = lambda **given: launch(javaopts=list(_OPTIONS), **given)
        self.env = module.ScienceWorldEnv("", envStepLimit=10_000)
        self.env.get_valid_action_object_combinations = list  # a long list, that is not compared

    def start(self, level: str, problem: dict[str, Any]) -> str:
        self.env.load(level, problem["variation"], "easy")
        return str(self.env.reset()[0])

    def step(self, command: str) -> Played:
        observation, reward, is_over, info = self.env.step(command)
        return str(observation), reward / 100, bool(is_over), info["score"] >= 100


def cases(env_id: str, levels: tuple[str, ...], n_episodes: int) -> Iterator[Case]:
    """Yield the episodes of each level, as replies: the text, and the command in it; None if there is none."""
    rng = random.Random(0)
    for level in levels:
        env: Any = gym.make(env_id, difficulty=level, split="test")
        for seed in range(n_episodes):
            env.reset(seed=seed)
            task = env.unwrapped
            gold, problem = list(task.solution())[:90], dict(task.problem)
            others = [*gold, *_GENERAL]
            for kind, commands in (
                ("right", gold),
                ("wrong", rng.choices(others, k=12)),
                ("hostile", [rng.choice(_HOSTILE) for _ in range(12)]),
                ("malformed", [None] * 12 + gold[: len(gold) // 2]),
            ):
                replies = [(rng.choice(_BROKEN) if c is None else f"<answer>{c}</answer>", c) for c in commands]
                yield Case(kind, (level, problem), replies)
        env.close()


def result(env_id: str, levels: tuple[str, ...], n_episodes: int) -> dict[str, Any]:
    """Compare this many problems of each level, four episodes for each; an output is a reply."""
    official = TextWorldExpress() if "Express" in env_id else ScienceWorld()
    kwargs = {"valid_actions": False} if "Express" in env_id else {}
    envs = {level: gym.make(env_id, difficulty=level, max_turns=300, **kwargs) for level in levels}
    mine: list[Played] = []

    def replies() -> Iterator[Case]:
        for case in cases(env_id, levels, n_episodes):
            level, problem = case.problem
            env = envs[level]
            shown, _ = env.reset(seed=0, options={"problem": problem})
            assert shown.endswith(official.start(level, problem).strip()), DIFFERENT
            is_over = False
            for text, command in case.output:
                if is_over:
                    break
                observation, _, is_over, _, info = env.step(text)
                gained = info["reward_components"]
                if not is_over:
                    observation = observation.rpartition("\n")[0]
                mine.append((observation, gained["score"], is_over, gained["correct"] == 1))
                yield Case(case.kind, (level, problem), (text, command))
        for env in envs.values():
            env.close()

    def ours(case: Case) -> bool:
        return mine[-1][3]

    def theirs(case: Case) -> bool:
        observation, gained, is_over, _ = mine.pop()
        command = case.output[1]
        if command is None:
            assert (gained, is_over) == (0, False), DIFFERENT
            return False
        shown, reward, is_end, is_success = official.step(" ".join(command.split()))
        assert abs(gained - reward) < 1e-9 and is_over == is_end, DIFFERENT
        assert observation.strip() == shown.strip() or command == "help", DIFFERENT
        return is_success

    compared = compare(replies(), ours, theirs, lambda case, mine, their: DIFFERENT)
    official.env.close()
    return compared


if __name__ == "__main__":
    write("scienceworld", "scienceworld", result("llm/ScienceWorld-v0", EXPERIMENTS, 6))
    write("textworld-express", "textworld-express", result("llm/TextWorldExpress-v0", GAMES, 7))
