"""`llm/MiniGrid-v0` and `llm/BabyAI-v0`: words and pictures, equal seeds, limits, all levels, and the oracle."""

import os
import pickle
import subprocess
import sys

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidConfigError, MissingExtraError
from llm_envs.tasks.benchmarks import grid_worlds
from llm_envs.tasks.benchmarks.grid_guide import Guide
from llm_envs.tasks.benchmarks.grid_words import ACTIONS, describe, name_of

pytest.importorskip("minigrid", reason="minigrid is not installed here: pip install 'llm-envs[benchmarks]'")
BABY, MINI = "llm/BabyAI-v0", "llm/MiniGrid-v0"
WITHOUT_ORACLE = ("Memory", "Playground")


def start(env_id, level, seed=0, **kwargs):
    env = gym.make(env_id, difficulty=level, **kwargs)
    return env, env.reset(seed=0, options={"problem": {"seed": seed}})[0]


def finish(env):
    """Play as the oracle to the end; return (n steps, info)."""
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(env.unwrapped.oracle())
    return env.unwrapped.n_turns, info


def test_a_view_is_worked_out_by_hand():
    numpy = pytest.importorskip("numpy")
    image = numpy.zeros((3, 3, 3), numpy.uint8)
    image[:, :, 0] = [[2, 2, 1], [0, 4, 5], [2, 6, 1]]  # columns from the left, each from the far end to the agent
    image[:, :, 1] = [[5, 5, 0], [0, 2, 4], [5, 0, 0]]
    image[1, 1, 2] = 2
    assert describe(image, 3).split("\n") == [
        "You face north and carry yellow key. In front of you: blue door (locked).",
        "blue door (locked): row 1, middle",
        "red ball: row 1, 1 right",
        "unseen: row 2, middle",
        "wall: row 1, 1 left; row 2, 1 left and 1 right",
    ]


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        ((1, 0, 0), ""),
        ((0, 0, 0), "unseen"),
        ((2, 5, 0), "wall"),
        ((8, 1, 0), "goal"),
        ((9, 0, 0), "lava"),
        ((4, 3, 0), "purple door (open)"),
        ((7, 4, 0), "yellow box"),
        ((3, 2, 0), "blue floor"),
        ((2, 0, 0), "red wall"),
    ],
)
def test_names_of_cells(cell, name):
    assert name_of(cell) == name


def test_numbers_are_those_of_the_package():
    from minigrid.core.actions import Actions
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    names = ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    assert [Actions[name].value for name in names] == list(range(len(ACTIONS)))
    for kind, colour in [(kind, colour) for kind in IDX_TO_OBJECT for colour in IDX_TO_COLOR if kind > 1]:
        assert IDX_TO_OBJECT[kind] in name_of((kind, colour, 0))
        plain = IDX_TO_OBJECT[kind] in ("wall", "goal", "lava")
        assert plain or name_of((kind, colour, 0)).startswith(IDX_TO_COLOR[colour])
    for state, number in STATE_TO_IDX.items():
        assert name_of((4, 0, number)) == f"red door ({state})"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("turn left", 0),
        ("Right", 1),
        ("move forward.", 2),
        ("Pick up the red ball", 3),
        ("drop it", 4),
        ("open the door", 5),
        ("**done**", 6),
        ("jump", None),
        ("go forward, turn left", None),
        ("2", None),
    ],
)
def test_actions_are_read_by_name(reply, action):
    env, _ = start(BABY, "GoToLocal")
    observation, _, _, _, info = env.step(f"<answer>{reply}</answer>")
    assert env.unwrapped._taken == ([] if action is None else [action])
    assert info["reward_components"]["malformed"] == (action is None)
    assert observation.startswith("Error: " if action is None else "You face ")


def test_a_seed_shows_the_same_in_every_process():
    program = (
        "import gymnasium as gym, llm_envs, hashlib\n"
        "shown = []\n"
        "for level in ('GoToSeqS5R2', 'PutNextLocal', 'BossLevel'):\n"
        "    env = gym.make('llm/BabyAI-v0', difficulty=level)\n"
        "    for seed in range(5):\n"
        "        shown.append(env.reset(seed=seed)[0])\n"
        "        while env.unwrapped.n_turns < 10:\n"
        "            shown.append((step := env.step(env.unwrapped.oracle()))[0])\n"
        "            if step[2] or step[3]:\n"
        "                break\n"
        "print(hashlib.sha256('|'.join(shown).encode()).hexdigest())"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert found[0] == found[1]  # one line: the package's own messages are not printed
    assert len(found[0].split()) == 1


def test_what_was_played_before_does_not_matter():
    env, first = start(BABY, "BossLevel", 3)
    for seed in (1, 2, 4):
        env.reset(seed=0, options={"problem": {"seed": seed}})
        env.step("<answer>go forward</answer>")
    assert env.reset(seed=5, options={"problem": {"seed": 3}})[0] == first


@pytest.mark.parametrize(
    ("level", "turns"), [("GoToLocal", {64}), ("PutNextLocal", {128}), ("MiniBossLevel", {100, 200, 300, 500})]
)
def test_the_limit_is_the_packages(level, turns):
    env = gym.make(BABY, difficulty=level)
    found = set()
    for seed in range(12):
        shown, _ = env.reset(seed=seed)
        assert f"You have {env.unwrapped.max_turns} replies." in shown
        found.add(env.unwrapped.max_turns)
    assert found <= turns | {600, 700, 400} and (len(turns) == 1) == (len(found) == 1)


def test_another_limit_is_the_packages_too():
    env, _ = start(BABY, "GoToLocal", max_turns=20)
    n, info = finish(env)
    assert info["is_success"] and info["reward_components"]["official"] == pytest.approx(1 - 0.9 * n / 20)


def test_lava_ends_an_episode():
    env, _ = start(MINI, "LavaGapS5", 0)
    for _ in range(50):
        observation, _, terminated, _, info = env.step("<answer>go forward</answer>")
        if not terminated and "In front of you: lava" not in observation:
            env.step(env.unwrapped.oracle())
        if terminated:
            break
    assert terminated and not info["is_success"] and "The mission has failed." in observation


@pytest.mark.parametrize(("env_id", "n"), [(BABY, 90), pytest.param(MINI, 60, marks=pytest.mark.slow)])
def test_every_level_of_the_package_is_played(env_id, n):
    names = grid_worlds._levels(env_id[4:-3])
    assert len(names) >= n
    won = 0
    for name in names:
        env, shown = start(env_id, name, 1)
        assert "Your mission: " in shown
        if name.startswith(WITHOUT_ORACLE):
            with pytest.raises(InvalidConfigError, match="has no oracle"):
                env.unwrapped.oracle()
            continue
        for _ in range(5):
            _, _, terminated, truncated, info = env.step(env.unwrapped.oracle())
            if terminated or truncated:
                won += info["is_success"]
                break
    assert won >= 5


@pytest.mark.parametrize("level", ["GoToSeqS5R2", "SynthS5R2", "MiniBossLevel", "BossLevel"])
def test_the_bot_fulfils_missions_of_several_parts(level):
    for seed in range(4):
        env, _ = start(BABY, level, seed)
        assert finish(env)[1]["is_success"]


@pytest.mark.parametrize(("env_id", "level"), [(BABY, "UnblockPickup"), (MINI, "KeyCorridorS3R3"), (MINI, "FourRooms")])
def test_the_bot_finds_its_way_again(env_id, level):
    env, _ = start(env_id, level, 2)
    for action in (0, 2, 2, 5, 3, 1, 2, 4, 1, 2) * 2:
        env.step(f"<answer>{ACTIONS[action]}</answer>")
    assert finish(env)[1]["is_success"]


def test_the_bot_repeats_what_the_agent_did():
    env, _ = start(BABY, "Pickup", 5)
    task = env.unwrapped
    for _ in range(8):
        env.step(task.oracle())
    copy = pickle.loads(pickle.dumps(env))
    guide = Guide(task._world_of(5))
    for action in task._taken:
        guide.follow(action)
    assert task.oracle() == copy.unwrapped.oracle() == f"<answer>{ACTIONS[guide.action]}</answer>"
    assert copy.step(task.oracle())[0] == env.step(task.oracle())[0]


def test_errors_say_what_to_do(monkeypatch):
    with pytest.raises(InvalidConfigError, match=r"known are GoToRedBall, GoToLocal.* and the other levels"):
        gym.make(BABY, difficulty="easy")
    with pytest.raises(InvalidConfigError, match="its seed must be at least 0"):
        start(MINI, "FourRooms", -1)
    grid_worlds._levels.cache_clear()
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(
        MissingExtraError, match=r"llm/BabyAI-v0 needs `minigrid`: pip install 'llm-envs\[benchmarks\]'"
    ):
        gym.make(BABY)
    monkeypatch.undo()
    grid_worlds._levels.cache_clear()
