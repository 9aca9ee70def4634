"""`llm/ALFWorld-v0` on small games in the benchmark's layout: solutions, splits, the package's texts, and errors."""

import gc
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import pytest

from llm_envs.checker import check_task
from llm_envs.checker.subject import Effort
from llm_envs.errors import BridgeError, InvalidConfigError, MissingExtraError
from llm_envs.tasks.benchmarks import alf_world
from llm_envs.tasks.benchmarks.alf_world import FOLDERS, KINDS, ALFWorldEnv
from tests.support.alfworld_games import write_game, write_games

pytestmark = pytest.mark.suites
ALFWORLD = "llm/ALFWorld-v0"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_games(tmp_path_factory.mktemp("alfworld"), walkthroughs=True))


def played(env, seed=0, **options):
    """Play the oracle's episode; return all observations, the actions and the last info."""
    shown, actions = [env.reset(seed=seed, **options)[0]], []
    terminated = truncated = False
    while not (terminated or truncated):
        actions.append(env.unwrapped.oracle())
        observation, reward, terminated, truncated, info = env.step(actions[-1])
        shown.append(observation)
    assert reward == float(info["is_success"])
    return shown, actions, info


@pytest.mark.parametrize("level", KINDS)
def test_the_oracle_solves_every_type_of_task_in_every_split(data, level):
    for split in FOLDERS:
        env = gym.make(ALFWORLD, split=split, difficulty=level, data=data)
        assert env.unwrapped.n_problems == 1
        for problem in env.unwrapped.problems():
            shown, actions, info = played(env, options={"problem": problem})
            assert problem["game"].startswith(KINDS[level]) and info["is_success"] and len(actions) < 20
            assert "Your task is to: " in shown[0] and "Admissible commands: " in shown[0]
        env.close()


def test_walkthroughs_are_played_where_a_game_has_one_and_plans_elsewhere(data, tmp_path):
    env = gym.make(ALFWORLD, difficulty="put", data=data)
    _, actions, _ = played(env, seed=1)
    file = env.unwrapped._file
    with open(file) as game:
        assert actions == [f"<answer>{command}</answer>" for command in json.load(game)["walkthrough"]]
    env.reset(seed=1)
    env.step("<answer>go to fridge 1</answer>")  # leaves the walkthrough
    steps = 0
    while not env.step(env.unwrapped.oracle())[2]:
        steps += 1
    assert steps < 10
    without = gym.make(ALFWORLD, difficulty="put", data=str(write_games(tmp_path, ["pick_and_place_simple"], 1)))
    assert played(without)[2]["is_success"]


PROGRAM = """
import json, sys
import textworld
from textworld.envs import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
game = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))
file, commands = sys.argv[1], json.loads(sys.argv[2])  # the planner changes them
game.load(file)
state = game.reset()
found = [[state.feedback.strip(), state["admissible_commands"], False]]
for command in commands:
    state, _, _ = game.step(command)
    found.append([state.feedback.strip(), state["admissible_commands"], state["won"]])
print(json.dumps(found))
"""


@pytest.mark.parametrize("level", ["put", "examine", "heat"])
def test_texts_and_ends_are_those_of_the_package(data, level, tmp_path):
    env = gym.make(ALFWORLD, difficulty=level, data=data, split="test")
    env.reset(seed=3)
    wrong = ["look", "inventory", "go to moon 1", "open fridge 1", "go to fridge 1", "open fridge 1", "help"]
    shown = [env.unwrapped._now["text"]]
    commands = []
    for command in wrong:
        commands.append(command)
        shown.append(env.step(f"<answer>{command}</answer>")[0])
    is_over = False
    while not is_over:
        action = env.unwrapped.oracle()
        commands.append(action.removeprefix("<answer>").removesuffix("</answer>"))
        observation, _, is_over, _, info = env.step(action)
        shown.append(observation)
    (tmp_path / "jericho.py").write_text(
        "class UnsupportedGameWarning(UserWarning): pass\nclass TruncatedInputActionWarning(UserWarning): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, env.unwrapped._file, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    for (text, admissible, won), observation in zip(json.loads(done.stdout), shown, strict=True):
        assert observation.startswith(text)
        if not won and observation is not shown[0]:
            listed = observation.split("Admissible commands: ")[1].split(".\n")[0]
            assert listed.split(", ") == [" ".join(command.split()) for command in admissible]
    assert won and info["is_success"]


@pytest.mark.smoke
def test_games_are_chosen_by_the_seed(data):
    env = gym.make(ALFWORLD, data=data)
    games = []
    for seed in (*range(8), *range(8)):
        env.reset(seed=seed)
        games.append(env.unwrapped.problem["game"])
    assert games[:8] == games[8:] and len(set(games)) > 3
    assert env.unwrapped.n_problems == 6 and len(list(env.unwrapped.problems())) == 6


def test_admissible_commands_are_optional(data):
    env = gym.make(ALFWORLD, data=data, admissible_commands=False)
    shown, _ = env.reset(seed=0)
    assert "Admissible" not in shown and "move (object) to (receptacle)" in shown
    assert env.step("<answer>look</answer>")[0].endswith("49 replies left.")


HOSTILE = ["", " ", "x" * 201, "\ud800", "go\x00to desk 1", "0", "help", "é" * 200, "{o.name}", "#intro#", "; exit"]


@pytest.mark.smoke
def test_hostile_commands_earn_nothing_and_raise_nothing(data):
    env = gym.make(ALFWORLD, data=data)
    env.reset(seed=0)
    for command in HOSTILE:
        _, reward, terminated, _, info = env.step(f"<answer>{command}</answer>")
        assert reward <= 0 and info["reward_components"]["correct"] == 0 and not terminated


def test_an_episode_continues_after_a_copy(data):
    env = gym.make(ALFWORLD, data=data, difficulty="clean")
    env.reset(seed=2)
    for _ in range(3):
        env.step(env.unwrapped.oracle())
    copy = pickle.loads(pickle.dumps(env))
    action = env.unwrapped.oracle()
    assert copy.unwrapped.oracle() == action and copy.step(action)[:4] == env.step(action)[:4]


def test_episodes_side_by_side_do_not_disturb_each_other(data):
    def play(seed):
        env = gym.make(ALFWORLD, data=data)
        result = played(env, seed)
        env.close()
        return result

    with ThreadPoolExecutor(3) as threads:
        together = list(threads.map(play, range(4)))
    assert together == [play(seed) for seed in range(4)]
    vector = gym.make_vec(ALFWORLD, 2, vectorization_mode="async", data=data)
    try:
        first, _ = vector.reset(seed=[0, 1])
    finally:
        vector.close()
    assert list(first) == [together[0][0][0], together[1][0][0]]


def test_an_ended_game_process_is_replaced_and_the_game_continues(data):
    env, other = (gym.make(ALFWORLD, data=data) for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=0)
    (child,) = env.unwrapped._process._idle
    os.kill(child.pid, signal.SIGKILL)
    while child.is_silent():
        time.sleep(0.01)
    assert env.step("<answer>look</answer>")[:4] == other.step("<answer>look</answer>")[:4]


def test_a_game_that_cannot_be_played_is_reported(tmp_path):
    file = write_game(tmp_path / "json_2.1.1" / "train", "pick_and_place_simple", 1)
    env = gym.make(ALFWORLD, data=str(tmp_path))
    file.write_text("{}")
    with pytest.raises(BridgeError, match=r"game\.tw-pddl cannot be played"):
        env.reset(seed=0)


def test_what_the_package_leaves_out_is_left_out(tmp_path):
    folder = tmp_path / "json_2.1.1" / "train"
    write_game(folder, "pick_and_place_simple", 1)
    write_game(folder, "pick_and_place_simple", 2, solvable=False)
    other = write_game(folder, "pick_and_place_simple", 3).parent / "traj_data.json"
    other.write_text(json.dumps({**json.loads(other.read_text()), "task_type": "pick_and_place_with_movable_recep"}))
    write_game(folder, "pick_and_place_simple", 4).parent.parent.rename(folder / "pick_and_place_simple-MugSliced-4")
    env = gym.make(ALFWORLD, data=str(tmp_path)).unwrapped
    assert [problem["game"].rsplit("_", 1)[1] for problem in env.problems()] == ["1"]


def test_errors_say_what_to_do(data, tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(InvalidConfigError, match="`alfworld-download`, and set ALFWORLD_DATA"):
        gym.make(ALFWORLD)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(InvalidConfigError, match=r"has no folder json_2\.1\.1"):
        gym.make(ALFWORLD)
    write_game(tmp_path / "json_2.1.1" / "train", "pick_and_place_simple", 1)
    assert gym.make(ALFWORLD).unwrapped.n_problems == 1
    with pytest.raises(InvalidConfigError, match=r"no game of level 'all' in json_2\.1\.1/valid_unseen"):
        gym.make(ALFWORLD, split="test")
    with pytest.raises(InvalidConfigError, match="cannot be played"):
        gym.make(ALFWORLD, data=data).reset(options={"problem": {"game": "../../etc"}})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llm-envs\[alfworld\]'"):
        ALFWorldEnv()


@pytest.mark.skipif(not os.environ.get("LLM_ENVS_CHECK_ALL"), reason="half an hour: make check-tasks-thorough")
def test_the_checker_finds_no_fault(tmp_path):
    few = Effort(n_seeds=3, n_draws=12, n_hostile_episodes=1, n_fuzzed=4, n_pairs=4)
    data = write_games(tmp_path, per_kind=3)
    report = check_task(ALFWORLD, effort=few, raise_on_failure=False, data=str(data), max_turns=12)
    assert report.passed, str(report)
    assert len(alf_world._idle) <= 4


def test_the_process_of_a_forgotten_environment_is_not_used_again(data):
    """In a cycle of references the pipes are closed before the environment's own end is reached."""
    forgotten = gym.make(ALFWORLD, data=data).unwrapped
    forgotten.reset(seed=0)
    forgotten.itself = forgotten
    del forgotten
    gc.collect()
    env = gym.make(ALFWORLD, data=data)
    assert "task" in env.reset(seed=0)[0]
    env.close()
