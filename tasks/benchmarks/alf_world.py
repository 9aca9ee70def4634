"""`llm/ALFWorld-v0`: household tasks in text, from the games in `$ALFWORLD_DATA`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import BridgeError, InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.sandbox.scorer import BoundedScorer
from llm_envs.tasks.draws import pick
from llm_envs.tasks.games.game import GameEnv, in_words

__all__ = ["ALFWorldEnv", "games_of"]

FOLDERS = {"train": "train", "validation": "valid_seen", "test": "valid_unseen"}
"""Split -> its folder in `json_2.1.1`."""
KINDS = {
    "put": "pick_and_place_simple",
    "examine": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "put-two": "pick_two_obj_and_place",
}
"""Level -> the package's type of task."""
_PACKAGES: tuple[str, ...] = ("alfworld", "textworld", "fast_downward", "tatsu", "mementos", "hashids", "networkx")
_PACKAGES += ("prompt_toolkit", "more_itertools", "termcolor", "tqdm")
_TURNS = 50
"""Limit of the package's configuration."""
_TIMEOUT_S = 120.0
"""Seconds for one answer. A start takes about 2 s, a command 0.1 s."""
_MOST_CHARACTERS = 200
"""Of a command."""
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')
_MOST_IDLE = 4
"""Processes that wait for the next episode."""
_idle: list[BoundedScorer] = []


def _level(description: str) -> Difficulty:
    return Difficulty(description, chance_rate=0.05, settings={"turns": _TURNS})


class ALFWorldEnv(GameEnv):
    """Find things in a house, and clean, heat, cool, move or examine them: ALFWorld.

    ## Description
    The household tasks of ALFRED as text games (Shridhar et al. 2021, arXiv:2010.03768), played by the package
    `alfworld`, with the engine of TextWorld and the planner Fast Downward. The games are those of the folder
    `$ALFWORLD_DATA`, which `alfworld-download` fills. They teach to explore, to remember, and to act by common sense.

    ## Observation
    First the forms of commands, the room and the task. After each command the game's answer, the admissible commands,
    and the replies that are left.

    ## Action
    `<answer>go to desk 1</answer>`: one command. Thinking in `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 when the game is won. `malformed` (weight -0.1): 1 for a reply without a command, which is
    not played.

    ## Episode End
    Terminates when the game is won. Truncated after `max_turns` replies.

    ## Arguments
    - `split`: "train", "validation" (the benchmark's valid_seen) or "test" (valid_unseen): 3,553, 140 and 134 games.
    - `difficulty`: the type of task: "all" (default), "put", "examine", "clean", "heat", "cool" or "put-two". An expert
      level is missing: the levels are the benchmark's.
    - `max_turns`: the number of replies, 50 by default as in the package.
    - `data`: the folder with the games, `$ALFWORLD_DATA` by default.
    - `admissible_commands`: False not to list the commands that apply.
    - `reset(options={"problem": {"game": "pick_and_place_simple-Mug-None-Desk-301/trial_T2019"}})` plays a game of any
      split, by its folder's name.

    The oracle plays the walkthrough of the game's file. After other commands, or where the file has none, it plays a
    plan of Fast Downward. Both know the whole house.

    ## Version History
    - v0: first version.
    """

    difficulties = {
        "all": _level("all six types of task"),
        "put": _level("put a thing in a place"),
        "examine": _level("look at a thing in the light of a lamp"),
        "clean": _level("clean a thing, and put it in a place"),
        "heat": _level("heat a thing, and put it in a place"),
        "cool": _level("cool a thing, and put it in a place"),
        "put-two": _level("put two things of a kind in a place"),
    }
    default_difficulty = "all"
    splits = tuple(FOLDERS)
    divides_by_hash = False
    problem_fields = {"game": str}
    reward_weights = {"correct": 1.0, "malformed": -0.1}
    instructions = "Do a household task in a text game. In each reply, answer with one command."
    answer_example = "go to desk 1"
    blocking = True  # the game is in another process
    slow_reset_reason = "the planner reads the whole house, in another process"
    plain_answer = staticmethod(str.strip)
    has_natural_form = False

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        data: str | None = None,
        admissible_commands: bool = True,
    ) -> None:
        missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"llm/ALFWorld-v0 needs {', '.join(missing)}: pip install 'llm-envs[alfworld]' (it compiles Fast "
                "Downward, with cmake and a C++ compiler), then pip install --no-deps alfworld textworld (their other "
                "requirements are not needed)."
            )
        super().__init__(split, difficulty, max_turns, render_mode)
        self.admissible_commands = admissible_commands
        self._folder = str(_data_folder(data))
        self._games = games_of(self._folder, split, KINDS.get(self.difficulty))
        if not self._games:
            raise InvalidConfigError(
                f"ALFWorldEnv: {self._folder} has no game of level {self.difficulty!r} in json_2.1.1/{FOLDERS[split]}; "
                "alfworld-download fills this folder."
            )
        self.n_problems = len(self._games)
        self._process: BoundedScorer | None = None

    def generate(self) -> dict[str, Any]:
        """Draw a game of the split."""
        return {"game": pick(self.np_random.random, self._games)}

    def problems(self, seed: int = 0) -> Iterator[dict[str, Any]]:
        """Yield each game of the split, in order of their names."""
        return ({"game": game} for game in self._games)

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a game that the folder does not have."""
        if not any(problem["game"] in games_of(self._folder, split, None) for split in self.splits):
            raise InvalidActionError(f"{self._folder} has no solvable game {problem['game']!r}")

    def begin(self) -> None:
        """Start the game."""
        name = self.problem["game"]
        split = next(split for split in self.splits if name in games_of(self._folder, split, None))
        self._file = str(_games_folder(self._folder, split) / name / "game.tw-pddl")
        self._taken: list[str] = []
        self._now = self._ask()

    def _ask(self, plan: bool = False) -> dict[str, Any]:
        """Return the game's state after the commands so far.

        Raises:
            BridgeError: If the game does not answer.
        """
        if self._process is None:
            self._process = _idle.pop() if _idle else BoundedScorer(Path(__file__).with_name("alf_world_game.py"))
        found = self._process.ask({"game": self._file, "commands": self._taken, "plan": plan}, _TIMEOUT_S)
        if found is None:
            raise BridgeError(f"ALFWorldEnv: {self._file} cannot be played, or took over {_TIMEOUT_S:g} s.")
        return found

    def prompt(self) -> str:
        """Return the forms of commands, the room and the task."""
        return (
            f"{self._now['forms']}\n\nYou have {in_words(self.max_turns, 'reply')}, with one command each."
            f"\n\n{self._now['text']}{self._admissible()}"
        )

    def _admissible(self) -> str:
        return f"\nAdmissible commands: {', '.join(self._now['admissible'])}." if self.admissible_commands else ""

    def move(self, answer: str) -> Outcome:
        """Execute the command."""
        command = " ".join(answer.split())
        if not command or len(command) > _MOST_CHARACTERS or not command.isprintable():
            raise InvalidActionError(f"a command has 1 to {_MOST_CHARACTERS} characters, in one line")
        self._taken.append(command)
        self._now = self._ask()
        if self._now["is_won"]:
            self.close()
            return self.win(self._now["text"])
        return self.go_on(f"{self._now['text']}{self._admissible()}")

    def next_action(self) -> str:
        """Return the next step of the walkthrough, or of a plan from here."""
        plan = self._ask(plan=True)["plan"]
        return self.write_answer(plan[0] if plan else "look")

    def state(self) -> Any:
        """Return the commands so far: the house follows from them."""
        return list(self._taken)

    def close(self) -> None:
        """Give the process to the next episode, or end it if enough are waiting."""
        process, self._process = getattr(self, "_process", None), None
        if process is not None:
            if len(_idle) < _MOST_IDLE:
                _idle.append(process)
            else:
                process.close()
        super().close()

    def __del__(self) -> None:
        """End the process of an environment that was forgotten: its pipes may be closed by now."""
        process, self._process = getattr(self, "_process", None), None
        if process is not None and not sys.is_finalizing():
            process.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the process: another one plays the commands again."""
        return vars(self) | {"_process": None}


def _data_folder(data: str | None) -> Path:
    """Return the folder with the games.

    Raises:
        InvalidConfigError: If it is not given or has no games.
    """
    named = data or os.environ.get("ALFWORLD_DATA")
    if not named:
        raise InvalidConfigError(
            "ALFWorldEnv: the games are not part of the package. Download them with `alfworld-download`, and set "
            "ALFWORLD_DATA to the folder that has json_2.1.1, or give the folder as data."
        )
    folder = Path(named).expanduser()
    if not (folder / "json_2.1.1").is_dir():
        raise InvalidConfigError(
            f"ALFWorldEnv: {folder} has no folder json_2.1.1. Download the games with `alfworld-download --data-dir "
            f"{folder}`, or give another folder as data or in ALFWORLD_DATA."
        )
    return folder


def _games_folder(folder: str, split: str) -> Path:
    return Path(folder) / "json_2.1.1" / FOLDERS[split]


@lru_cache(maxsize=len(FOLDERS) * (len(KINDS) + 1))
def games_of(folder: str, split: str, kind: str | None) -> tuple[str, ...]:
    """Return the games of a split that the package plays, by the names of their folders, in order.

    Args:
        folder: The data's folder.
        split: A key of `FOLDERS`.
        kind: The package's type of task; None for all types.
    """
    root, found = _games_folder(folder, split), []
    for file in root.glob("*/*/game.tw-pddl"):
        name = str(file.parent.relative_to(root))
        described = file.with_name("traj_data.json")
        # As in the package: games with a movable receptacle, slices or without a known solution are left out.
        if "movable" in name or "Sliced" in name or not described.exists():
            continue
        task_type = json.loads(described.read_text(encoding="utf-8"))["task_type"]
        if task_type not in KINDS.values() or (kind is not None and task_type != kind):
            continue
        if _SOLVABLE.search(file.read_bytes()):
            found.append(name)
    return tuple(sorted(found))
