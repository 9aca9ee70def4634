"""Our episodes of `llm/ALFWorld-v0` against those of the package `alfworld`, on games that its own logic makes.

    python -m proof.fidelity.alf_world

An output is a command in the middle of an episode: those of a plan ("right"), admissible ones at random ("wrong"),
texts without a command, which are not played ("malformed"), and commands with characters and words that do harm
elsewhere ("hostile"). A verdict is equal if the game's answer, the admissible commands and whether it is won are those
of the package's `AlfredTWEnv`. The benchmark's own games are not compared: they are a download.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym

from llm_envs.tasks.benchmarks.alf_world import KINDS
from proof.fidelity.compare import Case, compare, write
from tests.support.alfworld_games import write_games

__all__ = ["DIFFERENT", "cases", "result"]

DIFFERENT = "an answer, the admissible commands or the end differs"
_EVALUATED = {"task_types": [*range(1, 7)], "goal_desc_human_anns_prob": 0, "domain_randomization": False}
_BROKEN = (
    "",
    "Hm.",
    "<answer>look",
    "<answer></answer>",
    "<think>look",
    "<answer>" + "x" * 201 + "</answer>",
)
_HOSTILE = (
    "; exit",
    "'\"\\n$(ls)",
    "take %s %n",
    "0",
    "look; reset",
    "é ü ß",
    "{}[]()",
    "a" * 200,
    "__import__('os')",
    "(define (problem x))",
    "go to",
    "take mug 1 from nowhere",
)


class Official:
    """The package's own class, with one game at a time."""

    def __init__(self, folder: Path) -> None:
        # TextWorld imports the player of another kind of game, which must be compiled and is not used here.
        importlib.import_module("llm_envs.tasks.benchmarks.alf_world_game").load()
        module: Any = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
        config = {
            "env": {**_EVALUATED, "expert_type": "handcoded"},
            "dataset": {"eval_ood_data_path": str(folder / "json_2.1.1" / "valid_unseen"), "num_eval_games": 0},
            "general": {"training_method": "dqn"},
            "rl": {"training": {"max_nb_steps_per_episode": 10_000}},
        }
        self._games = module.AlfredTWEnv(config, train_eval="eval_out_of_distribution")
        self._files = {str(Path(file).parent): file for file in self._games.game_files}
        self.env: Any = None

    def start(self, game: str) -> tuple[str, list[str]]:
        """Return the first text and the commands that apply."""
        self.close()
        self._games.game_files = [next(file for folder, file in self._files.items() if folder.endswith(game))]
        self.env = self._games.init_env(batch_size=1)
        texts, infos = self.env.reset()
        return texts[0], infos["admissible_commands"][0]

    def step(self, command: str) -> tuple[str, list[str], bool]:
        """Return the game's answer, the commands that apply, and whether it is won."""
        texts, _, _, infos = self.env.step([command])
        return texts[0], infos["admissible_commands"][0], bool(infos["won"][0])

    def close(self) -> None:
        """End the game."""
        if self.env is not None:
            self.env.close()


def cases(env: Any, n_episodes: int) -> Iterator[Case]:
    """Yield this many episodes of each kind, as replies: the text, and the command in it.

    A command is None where the text has none, and "" where it is drawn from those that apply.
    """
    rng = random.Random(0)
    problems = list(env.unwrapped.problems())
    for problem in problems:
        env.reset(seed=0, options={"problem": problem})
        plan, is_over = [], False
        while not is_over:
            plan.append(env.unwrapped.oracle().removeprefix("<answer>").removesuffix("</answer>"))
            is_over = env.step(f"<answer>{plan[-1]}</answer>")[2]
        for _ in range(n_episodes):
            for kind, commands in (
                ("right", plan),
                ("wrong", [""] * 15),
                ("hostile", rng.choices(_HOSTILE, k=15)),
                ("malformed", [None] * 10 + plan[: len(plan) // 2]),
            ):
                replies = [(rng.choice(_BROKEN) if c is None else f"<answer>{c}</answer>", c) for c in commands]
                yield Case(kind, problem, replies)


def result(folder: Path, n_episodes: int = 8, kinds: Sequence[str] = tuple(KINDS.values())) -> dict[str, Any]:
    """Compare this many episodes of each kind of output in a game of each type of task; an output is a reply.

    Args:
        folder: Where the games are written; empty.
        n_episodes: Of each kind of output and game.
        kinds: The package's types of task.
    """
    data = write_games(folder, list(kinds))
    official = Official(data)
    env: Any = gym.make("llm/ALFWorld-v0", data=str(data), split="test", max_turns=300)
    drawn = gym.make("llm/ALFWorld-v0", data=str(data), split="test", max_turns=300)
    rng = random.Random(1)
    mine: list[tuple[str, list[str], bool, bool]] = []
    last: tuple[str, list[str], bool] = ("", [], False)

    def replies() -> Iterator[Case]:
        for case in cases(drawn, n_episodes):
            env.reset(seed=0, options={"problem": case.problem})
            game = env.unwrapped
            text, admissible = official.start(case.problem["game"])
            assert (game._now["text"], game._now["admissible"]) == _spaced(text, admissible), DIFFERENT
            is_over = False
            for reply, drawn_command in case.output:
                if is_over:
                    break
                command = rng.choice(admissible) if drawn_command == "" else drawn_command
                _, _, is_over, _, info = env.step(reply if drawn_command != "" else f"<answer>{command}</answer>")
                is_played = info["reward_components"]["malformed"] == 0
                mine.append((game._now["text"], game._now["admissible"], info.get("is_success", False), is_played))
                yield Case(case.kind, case.problem, (reply, command))
                if command is not None:
                    admissible = last[1]

    def ours(case: Case) -> bool:
        return mine[-1][2]

    def theirs(case: Case) -> bool:
        nonlocal last
        text, admissible, _, is_played = mine.pop()
        command = case.output[1]
        assert is_played == (command is not None), DIFFERENT
        if command is None:
            return False
        last = official.step(command)
        assert (text, admissible) == _spaced(*last[:2]), DIFFERENT
        return last[2]

    compared = compare(replies(), ours, theirs, lambda case, mine, their: DIFFERENT)
    official.close()
    for each in (env, drawn):
        each.close()
    return compared


def _spaced(text: str, admissible: list[str]) -> tuple[str, list[str]]:
    """Return a state as ours shows it: some names end with a space."""
    return text.strip(), [" ".join(command.split()) for command in admissible]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        write("alfworld", "alfworld", result(Path(folder)))
