"""`llm/MiniGrid-v0` and `llm/BabyAI-v0`: the grid worlds of the package `minigrid` in words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import gymnasium as gym

from llm_envs.env import Difficulty, Outcome
from llm_envs.errors import InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.tasks.benchmarks.grid_guide import Guide
from llm_envs.tasks.benchmarks.grid_words import ACTIONS, describe
from llm_envs.tasks.games.game import GameEnv, in_words

__all__ = ["BabyAIEnv", "MiniGridEnv"]

_MAX_SEED = 2**31
_FEW_WORLDS = frozenset(
    f"{family}-{name}-v0"
    for family, names in {
        "BabyAI": "GoToObjS4 KeyCorridorS3R1 OpenRedBlueDoors OpenRedBlueDoorsDebug OpenRedDoor",
        "MiniGrid": """
            DistShift1 DistShift2 DoorKey-5x5 DoorKey-6x6 Dynamic-Obstacles-5x5 Dynamic-Obstacles-6x6
            Dynamic-Obstacles-Random-5x5 Empty-16x16 Empty-5x5 Empty-6x6 Empty-8x8 Empty-Random-5x5 Empty-Random-6x6
            KeyCorridorS3R1 LavaCrossingS9N1 LavaCrossingS9N2 LavaCrossingS9N3 LavaGapS5 LavaGapS6 LavaGapS7 MemoryS11
            MemoryS13 MemoryS13Random MemoryS17Random MemoryS7 MemoryS9 RedBlueDoors-6x6 SimpleCrossingS9N1
            SimpleCrossingS9N2 SimpleCrossingS9N3
        """,
    }.items()
    for name in names.split()
)
"""Levels with too few worlds to divide them: 150 seeds repeat several."""
_WRITTEN = {
    "turn left": re.compile(r"(?:turn )?left"),
    "turn right": re.compile(r"(?:turn )?right"),
    "go forward": re.compile(r"(?:go |move |step )?forwards?"),
    "pick up": re.compile(r"pick ?up(?: (?:it|the [a-z ]+))?"),
    "drop": re.compile(r"drop(?: (?:it|the [a-z ]+))?"),
    "toggle": re.compile(r"(?:toggle|open|close)(?: (?:it|the [a-z ]+))?"),
    "done": re.compile(r"done"),
}
_HOW = """\
You are in a world of square cells and see a part of it. Row 0 is where you stand, row 1 is ahead of you, and so on; \
columns are counted to the left and right of you. All cells of rows 0 to {last}, {side} left to {side} right, that are \
not listed are free floor; "unseen" ones are hidden. You cannot walk through walls, things and closed doors. Lava kills.
Actions, one a reply: turn left, turn right, go forward, pick up (what is in front of you; you carry one thing at \
most), drop (in front of you, on free floor), toggle (open or close the door, or open the box, in front of you; a \
locked door needs that you carry the key of its colour), done (which some missions need at their end).
Your mission: {mission}. You have {turns}.
"""


class _GridWorldEnv(GameEnv):
    """One of the package's families of levels."""

    family: ClassVar[str] = ""
    """The start of the package's ids."""
    problem_fields = {"seed": int}
    reward_weights = {"correct": 1.0, "malformed": -0.1, "official": 0.0}
    slow_reset_reason = "the package places things at random until they fit, and draws the view cell by cell"
    answer_example = "turn left"
    instructions = "Fulfil the mission. In each reply, answer with one action."

    def __init__(
        self,
        split: str = "train",
        difficulty: str | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        answer_form: str | None = None,
    ) -> None:
        name = self.default_difficulty if difficulty is None else difficulty
        known = _levels(self.family)
        if name not in known:
            raise InvalidConfigError(
                f"{type(self).__name__}: difficulty is {name!r}; known are {', '.join(self.difficulties)}, and the "
                f"other levels of minigrid's {self.family}, {len(known)} in all."
            )
        if name not in self.difficulties:
            self.difficulties = {**self.difficulties, name: _other_level(known[name])}  # type: ignore[misc]
        self._level, self._given_turns = known[name], max_turns
        super().__init__(split, difficulty, max_turns, render_mode, answer_form)

    def generate(self) -> dict[str, Any]:
        """Draw a seed."""
        return {"seed": int(self.np_random.random() * _MAX_SEED)}

    def check_problem(self, problem: Mapping[str, Any]) -> None:
        """Refuse a seed that the package does not take."""
        if not 0 <= problem["seed"] < _MAX_SEED:
            raise InvalidActionError(f"its seed must be at least 0 and below {_MAX_SEED}")

    def split_key(self, problem: Mapping[str, Any]) -> Any:
        """Return the world in its first state: two seeds may give one."""
        world = self._world_of(problem["seed"])
        place = [int(number) for number in (*world.agent_pos, world.agent_dir)]
        return [world.grid.encode().tobytes().hex(), place, world.mission]

    def begin(self) -> None:
        """Make the package's environment."""
        self._world, self._view = self._world_of(self.problem["seed"]), None
        self._taken: list[int] = []
        self._guide: Guide | None = None
        self._n_followed = 0
        if self._given_turns is None:
            self.max_turns = self._world.max_steps

    def state(self) -> Any:
        """Return the actions so far: the world follows from them."""
        return list(self._taken)

    def _world_of(self, seed: int) -> Any:
        """Return a new world: one that has been played keeps some state."""
        more = {} if self._given_turns is None else {"max_steps": self._given_turns}
        world = gym.make(self._level, disable_env_checker=True, **more).unwrapped
        world.reset(seed=seed)
        return world

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the worlds, which are made again from the seed and the actions."""
        return {name: value for name, value in vars(self).items() if name not in ("_world", "_guide")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Repeat the actions in a new world."""
        vars(self).update(state)
        self._guide, self._n_followed = None, 0
        if self._is_playing:
            self._world = self._world_of(self.problem["seed"])
            for action in self._taken:
                self._world.step(action)

    def prompt(self) -> str:
        """Return the rules, the mission and the first view."""
        view = self._world.gen_obs()["image"]
        rules = _HOW.format(
            last=view.shape[1] - 1,
            side=view.shape[0] // 2,
            mission=self._world.mission,
            turns=in_words(self.max_turns, "reply"),
        )
        return rules + describe(view, self._world.agent_dir)

    def move(self, answer: str) -> Outcome:
        """Do the action named."""
        words = " ".join(answer.lower().split())
        named = next((name for name, written in _WRITTEN.items() if written.fullmatch(words)), None)
        if named is None:
            raise InvalidActionError(f"{words[:20]!r} is not an action; actions are {', '.join(ACTIONS)}")
        action = ACTIONS.index(named)
        self._taken.append(action)
        view, reward, terminated, _, _ = self._world.step(action)
        is_success = bool(reward > 0)
        components = {"correct": float(is_success), "malformed": 0.0, "official": float(reward)}
        shown = describe(view["image"], view["direction"])
        if terminated:
            end = "The mission is fulfilled." if is_success else "The mission has failed."
            return Outcome(f"{shown}\n{end}", components, True, is_success)
        return Outcome(f"{shown}\n{self.turns_left()}", components)

    def refuse(self, problem: str) -> Outcome:
        """Return the answer to a reply that could not be played."""
        return Outcome(f"Error: {problem}. {self.turns_left()}", {"correct": 0.0, "malformed": 1.0, "official": 0.0})

    def next_action(self) -> str:
        """Do what the package's bot suggests, which has followed all actions."""
        if self._guide is None:
            self._guide, self._n_followed = Guide(self._world_of(self.problem["seed"])), 0
        for action in self._taken[self._n_followed :]:
            self._guide.follow(action)
        self._n_followed = len(self._taken)
        return self.write_answer(ACTIONS[self._guide.action])


@lru_cache(maxsize=2)
def _levels(family: str) -> dict[str, str]:
    """Return the package's levels of a family: name -> id.

    Raises:
        MissingExtraError: If `minigrid` is not installed.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import minigrid  # noqa: F401  # registers its levels
        from minigrid.envs.babyai.core import roomgrid_level
    except ImportError as error:
        raise MissingExtraError(f"llm/{family}-v0 needs `minigrid`: pip install 'llm-envs[benchmarks]'.") from error
    roomgrid_level.print = _print_nothing  # type: ignore[attr-defined]  # it prints each draw that it rejects
    start = f"{family}-"
    ids = [env_id for env_id in gym.registry if env_id.startswith(start) and not env_id.startswith("MiniGrid-WFC-")]
    return {env_id.removeprefix(start).removesuffix("-v0"): env_id for env_id in ids}


def _print_nothing(*words: object) -> None:
    pass


@lru_cache(maxsize=256)
def _other_level(env_id: str) -> Difficulty:
    """Return the declaration of a level that is not one of ours."""
    world: Any = gym.make(env_id, disable_env_checker=True).unwrapped
    world.reset(seed=0)
    return Difficulty(
        f"the package's {env_id}, whose chance is not measured",
        chance_rate=0.1,
        disjoint_splits=env_id not in _FEW_WORLDS,
        settings={"turns": world.max_steps},
    )


def _level(description: str, turns: int, chance_rate: float = 0.0) -> Difficulty:
    return Difficulty(description, chance_rate=chance_rate, settings={"turns": turns})


class BabyAIEnv(_GridWorldEnv):
    """Fulfil a mission in rooms of a grid world, such as "put the red box next to the blue ball": BabyAI in words.

    ## Description
    BabyAI (Chevalier-Boisvert et al. 2019, arXiv:1810.08272) from the package `minigrid`: go to, pick up, put down and
    open things, while only those in view are known. The words are ours, and exact: the package's view of 7 by 7 cells
    can be drawn again from them. An episode depends only on its seed. BALROG (arXiv:2411.13543) plays such levels too,
    with other words.

    ## Observation
    First the rules, the mission and the view. After each action the view, and the replies that are left.

    ## Action
    `<answer>go forward</answer>`: one of turn left, turn right, go forward, pick up, drop, toggle, done. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the mission, by the package. `malformed` (weight -0.1): 1 for a reply without a readable
    action; it counts as a reply. `official` (weight 0): the package's reward, 1 - 0.9 × steps / limit.

    ## Episode End
    Terminates where the package does. Truncated after the package's limit of steps, or after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no world is in both. The package has no splits, so these are ours.
    - `difficulty`: a level of the package, without "BabyAI-" and "-v0": "GoToRedBall", "GoToLocal" (default),
      "PickupLoc", "PutNextLocal", "GoToObjMazeS4", "UnlockPickup", or any other, such as "BossLevel". An expert level
      is missing: the levels are the benchmark's.
    - `max_turns`: the number of replies, if it is to be another than the package's; the package then uses it too.
    - `reset(options={"problem": {"seed": 1}})` plays the package's world of this seed.

    The oracle is the package's bot, which plans by what it has seen.

    ## Version History
    - v0: first version.
    """

    family = "BabyAI"
    difficulties = {
        "GoToRedBall": _level("go to the red ball in one room", 64, 0.4),
        "GoToLocal": _level("go to a thing in one room", 64, 0.4),
        "PickupLoc": _level("pick up a thing in one room, which its place may describe", 64, 0.12),
        "PutNextLocal": _level("put a thing next to another one in one room", 128),
        "GoToObjMazeS4": _level("go to the only thing in nine small rooms", 144, 0.2),
        "UnlockPickup": _level("unlock a door to pick up a box behind it", 72),
    }
    default_difficulty = "GoToLocal"


class MiniGridEnv(_GridWorldEnv):
    """Reach a goal, fetch, unlock or move things in a grid world, seen in parts: MiniGrid in words.

    ## Description
    MiniGrid (Chevalier-Boisvert et al. 2023, arXiv:2306.13831) from the package `minigrid`. The words are ours, and
    exact: the package's view of 7 by 7 cells can be drawn again from them. An episode depends only on its seed.

    ## Observation
    First the rules, the mission and the view. After each action the view, and the replies that are left.

    ## Action
    `<answer>go forward</answer>`: one of turn left, turn right, go forward, pick up, drop, toggle, done. Thinking in
    `<think>...</think>` is allowed before it.

    ## Reward
    `correct` (weight 1): 1 for the mission, by the package. `malformed` (weight -0.1): 1 for a reply without a readable
    action; it counts as a reply. `official` (weight 0): the package's reward, 1 - 0.9 × steps / limit.

    ## Episode End
    Terminates where the package does. Truncated after the package's limit of steps, or after `max_turns` replies.

    ## Arguments
    - `split`: "train" or "test": no world is in both, in levels with enough of them. The package has no splits, so
      these are ours.
    - `difficulty`: a level of the package, without "MiniGrid-" and "-v0": "FourRooms" (default), "GoToDoor-6x6",
      "Fetch-6x6-N2", "PutNear-8x8-N3", "MultiRoom-N4-S5-v1", "LockedRoom", or any other, such as "DoorKey-8x8". Levels
      "WFC" are left out. An expert level is missing: the levels are the benchmark's.
    - `max_turns`: the number of replies, if it is to be another than the package's; the package then uses it too.
    - `reset(options={"problem": {"seed": 1}})` plays the package's world of this seed.

    The oracle is BabyAI's bot, which plans by what it has seen. It has none for "Memory", and not for all worlds
    with things in boxes or moving balls.

    ## Version History
    - v0: first version.
    """

    family = "MiniGrid"
    difficulties = {
        "FourRooms": _level("reach the goal in four rooms", 100, 0.1),
        "GoToDoor-6x6": _level("stand next to a door, and tell that you are done", 144, 0.2),
        "Fetch-6x6-N2": _level("pick up the right one of two things", 180, 0.5),
        "PutNear-8x8-N3": _level("put a thing near another one, the right one at once", 40, 0.12),
        "MultiRoom-N4-S5-v1": _level("reach the goal through four small rooms", 80, 0.05),
        "LockedRoom": _level("find a key in one of six rooms, for the room with the goal", 190),
    }
    default_difficulty = "FourRooms"
