"""Our episodes of `llm/MiniGrid-v0` and `llm/BabyAI-v0` against those of the package `minigrid`.

    python -m proof.fidelity.grid_worlds

An output is an episode's replies: the oracle's ("right"), actions at random ("wrong"), the oracle's with broken replies
between them ("malformed"), and texts that name an action but are not one ("hostile"). The package plays the actions
that were written, by their numbers. A verdict is equal if every reward, end and view of the episode is, and so is
success. The view is drawn again from our words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from llm_envs.tasks.benchmarks.grid_words import ACTIONS, DIRECTIONS
from proof.fidelity.compare import Case, compare, write

__all__ = ["LEVELS", "cases", "drawn", "result"]

LEVELS = {
    "BabyAI": (
        *("GoToRedBall", "GoToLocal", "PickupLoc", "PutNextLocal", "OpenDoor", "GoToObjMaze", "Pickup"),
        *("UnlockPickup", "UnblockPickup", "GoToSeqS5R2", "SynthS5R2", "MiniBossLevel", "BossLevel"),
    ),
    "MiniGrid": (
        *("FourRooms", "DoorKey-8x8", "MultiRoom-N4-S5-v1", "LavaCrossingS11N5", "GoToDoor-8x8", "Fetch-8x8-N3"),
        *("PutNear-8x8-N3", "UnlockPickup", "KeyCorridorS3R3", "LockedRoom", "BlockedUnlockPickup", "Empty-5x5"),
        *("Dynamic-Obstacles-8x8", "RedBlueDoors-8x8", "Unlock", "GoToObject-8x8-N2"),
    ),
}
DIFFERENT = "the words, the reward or the end of a step differ"
_MOST_STEPS = 150
_BROKEN = ("", "Hm.", "<answer>go forward", "<answer></answer>", "<think>left", "<answer>fly</answer>", "\ud800" * 3)
_HOSTILE = (
    *("<answer>go forward; pick up</answer>", "<answer>2</answer>", "<think><answer>go forward</answer></think>"),
    *(
        "<answer>done done</answer>",
        "<answer>__import__('os')</answer>",
        "<answer>toggle" + " it" * 9_000 + "</answer>",
    ),
    *("<answer>turn</answer>", "<answer>go</answer>", "<answer>-1</answer>", "<answer>reset</answer>", "go forward"),
)

Replies = list[tuple[str, int | None]]
"""The text of a reply, and the number of the action in it; None if there is none."""


def cases(family: str, n_of_each: int) -> Iterator[Case]:
    """Yield this many episodes of each kind for each level."""
    rng = random.Random(0)
    for level in LEVELS[family]:
        env: Any = gym.make(f"llm/{family}-v0", difficulty=level)
        for seed in range(n_of_each):
            right = _right(env, seed)
            problem = (level, seed)
            yield Case("right", problem, right)
            yield Case("wrong", problem, [_reply(rng.randrange(len(ACTIONS))) for _ in range(rng.randint(1, 60))])
            broken: Replies = [(text, None) for text in rng.choices(_BROKEN, k=3)]
            yield Case("malformed", problem, [*broken, *right[: len(right) // 2], *broken, *right[len(right) // 2 :]])
            yield Case("hostile", problem, [(text, None) for text in rng.choices(_HOSTILE, k=rng.randint(1, 12))])


def _right(env: Any, seed: int) -> Replies:
    """Return the oracle's replies."""
    env.reset(seed=0, options={"problem": {"seed": seed}})
    replies: Replies = []
    while len(replies) < _MOST_STEPS:
        text = env.unwrapped.oracle()
        replies.append((text, ACTIONS.index(text.removeprefix("<answer>").removesuffix("</answer>"))))
        _, _, terminated, truncated, _ = env.step(text)
        if terminated or truncated:
            break
    return replies


def _reply(action: int) -> tuple[str, int]:
    return f"<answer>{ACTIONS[action]}</answer>", action


def drawn(words: str) -> tuple[dict[tuple[int, int], str], str, str]:
    """Draw a view again from our words.

    Returns:
        (row, column) -> name of the cell, for all cells that are not free; what is carried; and the direction.
    """
    first = re.search(r"You face (\w+) and carry (.*)\. In front of you: .*", words)
    assert first is not None
    cells: dict[tuple[int, int], str] = {}
    for line in words[first.end() :].split("\n"):
        name, colon, places = line.partition(": ")
        if not colon:
            continue
        for place in places.split("; "):
            rows, columns = re.fullmatch(r"rows? (.*?), (.*)", place).groups()  # type: ignore[union-attr]
            bounds = [int(row) for row in rows.split(" to ")]
            for run in columns.split(" and "):
                ends = [_column(end) for end in run.split(" to ")]
                for row in range(bounds[0], bounds[-1] + 1):
                    for column in range(ends[0], ends[-1] + 1):
                        cells[row, column] = name
    return cells, first[2], first[1]


def _column(words: str) -> int:
    number, _, side = words.partition(" ")
    return 0 if number == "middle" else int(number) * (-1 if side == "left" else 1)


def is_same_view(words: str, view: dict[str, Any]) -> bool:
    """Return whether the package's own view is the one that our words draw. It is read with the package's tables."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    states = {number: state for state, number in STATE_TO_IDX.items()}
    cells, carried, direction = drawn(words)
    image = view["image"]
    n_columns, n_rows, _ = image.shape
    there = {}
    for column, row in np.ndindex(n_columns, n_rows):
        kind, colour, state = (int(number) for number in image[column, row])
        name = IDX_TO_OBJECT[kind]
        if name not in ("empty", "unseen"):
            plain = (name, IDX_TO_COLOR[colour]) in (("wall", "grey"), ("goal", "green"), ("lava", "red"))
            name = name if plain else f"{IDX_TO_COLOR[colour]} {name}"
        name += f" ({states[state]})" if name.endswith("door") else ""
        there[n_rows - 1 - row, column - n_columns // 2] = name
    held = there.pop((0, 0))
    here = {place: name for place, name in there.items() if name != "empty"}
    return (here, "nothing" if held == "empty" else held, DIRECTIONS[view["direction"]]) == (cells, carried, direction)


def result(family: str, n_of_each: int) -> dict[str, Any]:
    """Compare this many episodes of each kind and level."""
    envs = {level: gym.make(f"llm/{family}-v0", difficulty=level) for level in LEVELS[family]}
    official = {level: gym.make(id_of(family, level), disable_env_checker=True).unwrapped for level in LEVELS[family]}
    traces: dict[int, list[tuple[str, float, bool, bool]]] = {}
    n_steps = 0

    def ours(case: Case) -> bool:
        (level, seed) = case.problem
        env = envs[level]
        shown, _ = env.reset(seed=0, options={"problem": {"seed": seed}})
        traces[id(case)] = trace = [(shown, 0.0, False, False)]
        for text, _ in case.output:
            shown, _, terminated, truncated, info = env.step(text)
            components = info["reward_components"]
            trace.append((shown, components["official"], terminated, truncated))
            if terminated or truncated:
                return bool(info["is_success"])
        return False

    def theirs(case: Case) -> bool:
        nonlocal n_steps
        (level, seed), trace = case.problem, traces.pop(id(case))
        world: Any = official[level]
        view, _ = world.reset(seed=seed)
        assert is_same_view(trace[0][0], view) and f"Your mission: {view['mission']}." in trace[0][0]
        has_broken = any(action is None for _, action in case.output)
        for (_, action), (shown, paid, terminated, truncated) in zip(case.output, trace[1:], strict=False):
            if action is None:
                assert (paid, terminated) == (0, False) and shown.startswith("Error: ")
                continue
            n_steps += 1
            view, reward, is_over, is_late, _ = world.step(action)
            assert (paid, terminated) == (reward, is_over), DIFFERENT
            # A broken reply counts as a reply here and is no step there, so our limit may come first.
            assert truncated == (is_late and not is_over) or (truncated and has_broken), DIFFERENT
            assert is_same_view(shown, view), DIFFERENT
            if is_over:
                return bool(reward > 0)
        return False

    compared = compare(cases(family, n_of_each), ours, theirs, lambda case, mine, their: DIFFERENT)
    return {**compared, "steps": n_steps}


def id_of(family: str, level: str) -> str:
    """Return the package's id of a level."""
    return f"{family}-{level}" if re.search(r"-v\d$", level) else f"{family}-{level}-v0"


if __name__ == "__main__":
    write("babyai", "minigrid", result("BabyAI", 40))
    write("minigrid", "minigrid", result("MiniGrid", 35))
