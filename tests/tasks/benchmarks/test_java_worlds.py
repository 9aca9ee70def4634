"""`llm/TextWorldExpress-v0` and `llm/ScienceWorld-v0`: equal problems, machines, hostile commands, and errors."""

import gc
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import threading

import gymnasium as gym
import pytest

from llm_envs.errors import BridgeError, InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.tasks.benchmarks.java_worlds import JavaPool, pool_of
from llm_envs.tasks.benchmarks.science_world import ScienceWorldEnv
from llm_envs.tasks.benchmarks.text_world_express import TextWorldExpressEnv

pytestmark = pytest.mark.suites
TWX, SCIENCE = "llm/TextWorldExpress-v0", "llm/ScienceWorld-v0"


@pytest.fixture(autouse=True)
def java():
    if shutil.which("java") is None:
        if os.environ.get("LLM_ENVS_REQUIRE_JAVA"):
            pytest.fail("LLM_ENVS_REQUIRE_JAVA is set, but Java is not installed here")
        pytest.skip("Java is not installed here")


def played(env_id, seed=0, most=200, **kwargs):
    """Play the oracle's episode; return all observations, the rewards and the last info."""
    env = gym.make(env_id, **kwargs)
    shown, rewards = [env.reset(seed=seed)[0]], []
    terminated = truncated = False
    while not (terminated or truncated) and len(rewards) < most:
        observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle())
        shown.append(observation)
        rewards.append(reward)
    env.close()
    return shown, rewards, info


@pytest.mark.smoke
@pytest.mark.parametrize("game", list(TextWorldExpressEnv.difficulties))
def test_gold_paths_solve_the_games(game):
    for split in ("train", "dev", "test"):
        shown, rewards, info = played(TWX, 1, difficulty=game, split=split)
        assert info["is_success"] and sum(rewards) == pytest.approx(1)
        assert played(TWX, 1, difficulty=game, split=split)[:2] == (shown, rewards)


@pytest.mark.parametrize("task", ["find-living-thing", "chemistry-mix", "lifespan-longest-lived", "grow-plant"])
def test_gold_paths_solve_the_experiments(task):
    shown, rewards, info = played(SCIENCE, 1, difficulty=task, split="dev")
    assert info["is_success"] and 0.8 <= sum(rewards) <= 1 + 1e-9
    assert played(SCIENCE, 1, difficulty=task, split="dev")[:2] == (shown, rewards)


def test_a_problem_shows_the_same_in_every_process_and_beside_others():
    program = (
        "import gymnasium as gym, llm_envs\n"
        "env = gym.make('llm/ScienceWorld-v0', difficulty='use-thermometer')\n"
        "print(env.reset(seed=0, options={'problem': {'variation': 7}})[0])\n"
        "for command in ('look around', 'open door to kitchen', 'inventory'):\n"
        "    print(env.step(f'<answer>{command}</answer>')[0])"
    )
    run = [sys.executable, "-c", program]
    wanted = [subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert wanted[0] == wanted[1]
    found = {}

    def play(number):
        env = gym.make(SCIENCE, difficulty="use-thermometer")
        lines = [env.reset(seed=0, options={"problem": {"variation": 7 if number % 2 == 0 else number}})[0]]
        for command in ("look around", "open door to kitchen", "inventory"):
            lines.append(env.step(f"<answer>{command}</answer>")[0])
        found[number] = "\n".join(lines) + "\n"
        env.close()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[2] == wanted[0] != found[1]


def test_folds_are_those_of_the_packages():
    world = pool_of(TextWorldExpressEnv.simulator).take()
    world.call("load", "coin", "")
    for fold, method in (("train", "getSeedsTrain"), ("dev", "getSeedsDev"), ("test", "getSeedsTest")):
        env = gym.make(TWX, split=fold).unwrapped
        seeds = list(world.call(method))
        drawn = {env.reset(seed=seed)[0] and env.problem["seed"] for seed in range(20)}
        assert drawn <= set(seeds) and env.n_problems == len(seeds) == 1_000
        env.check_problem({"seed": seeds[0], "fold": fold})
        env.check_problem({"seed": seeds[-1], "fold": fold})
    world.close()
    sizes = [
        gym.make(SCIENCE, difficulty="boil", split=split).unwrapped.n_problems for split in ("train", "dev", "test")
    ]
    assert sizes == [14, 7, 9]


def test_arguments_of_the_packages():
    env = gym.make(
        TWX, difficulty="coin", params="numLocations=3,includeDoors=0,numDistractorItems=0", valid_actions=False
    )
    shown, _ = env.reset(seed=0)
    assert "Valid commands" not in shown and "door" not in shown
    assert "Valid commands: " in gym.make(TWX).reset(seed=0)[0]
    with pytest.raises(InvalidConfigError, match="params is 'no'"):
        gym.make(TWX, params="no")
    with pytest.raises(InvalidConfigError, match="simplifications has magic; known are easy and"):
        gym.make(SCIENCE, simplifications="magic")
    with pytest.raises(InvalidConfigError, match="it must be a task of the package: boil"):
        gym.make(SCIENCE, difficulty="easy")
    env = gym.make(SCIENCE, difficulty="freeze", simplifications="")
    assert "teleport" not in env.reset(seed=0)[0] and "teleport" in gym.make(SCIENCE).reset(seed=0)[0]
    for env_id, problem in ((TWX, {"seed": 5, "fold": "test"}), (SCIENCE, {"variation": 10_000})):
        with pytest.raises(InvalidConfigError, match="cannot be played"):
            gym.make(env_id).reset(options={"problem": problem})


HOSTILE = [
    "",
    " ",
    "x" * 201,
    "\ud800",
    "take\x00coin",
    "0",
    "help",
    "é" * 200,
    "reset task",
    "; exit",
    "'\"\\n$(ls)",
    "s",
]


@pytest.mark.parametrize("env_id", [TWX, SCIENCE])
@pytest.mark.parametrize("command", HOSTILE)
def test_hostile_commands_earn_nothing_and_raise_nothing(env_id, command):
    env = gym.make(env_id)
    env.reset(seed=0)
    for _ in range(2):
        _, reward, terminated, _, info = env.step(f"<answer>{command}</answer>")
        assert reward <= 0 and info["reward_components"]["correct"] == 0 and not terminated
    env.close()


def test_an_episode_continues_after_a_copy():
    for env_id in (TWX, SCIENCE):
        env = gym.make(env_id)
        env.reset(seed=2)
        for _ in range(3):
            env.step(env.unwrapped.oracle())
        copy = pickle.loads(pickle.dumps(env))
        action = env.unwrapped.oracle()
        assert copy.unwrapped.oracle() == action and copy.step(action)[:4] == env.step(action)[:4]


def test_the_turn_limit_truncates():
    env = gym.make(TWX, max_turns=2)
    env.reset(seed=0)
    assert env.step("<answer>look around</answer>")[2:4] == (False, False)
    assert env.step("<answer>inventory</answer>")[2:4] == (False, True)


def test_machines_are_used_again_and_end():
    pool = JavaPool(TextWorldExpressEnv.simulator)
    first = pool.take()
    machine = first._machine
    first.close()
    second = pool.take()
    assert second._machine is machine and machine.process.poll() is None
    with pytest.raises(BridgeError, match="closed"):
        first.call("getTaskDescription")
    second.close()
    assert pool._idle == [machine]
    pool.close()
    assert machine.process.poll() is not None


def test_the_machine_of_a_forgotten_world_is_not_used_again():
    """In a cycle of references its pipe is closed before the world's own end is reached, and then Java ends."""
    pool = JavaPool(TextWorldExpressEnv.simulator)
    world = pool.take()
    machine = world._machine
    world.itself = world
    del world
    gc.collect()
    assert pool._idle == [] and machine.process.poll() is not None


@pytest.mark.smoke
def test_a_machine_that_ends_is_reported_and_replaced():
    pool = JavaPool(TextWorldExpressEnv.simulator)
    world = pool.take()
    world._machine.process.kill()
    world._machine.process.wait()
    with pytest.raises(BridgeError, match="did not answer"):
        world.call("getTaskDescription")
    other = pool.take()
    with pytest.raises(InvalidActionError):
        other.call("load", None, None)
    other.close()
    pool.close()


def test_machines_end_with_their_process():
    program = (
        "import gymnasium as gym, llm_envs, os\n"
        "env = gym.make('llm/TextWorldExpress-v0')\n"
        "env.reset(seed=0)\n"
        "print(env.unwrapped._world._machine.process.pid, flush=True)\n"
        "os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    waiting = threading.Event()
    for _ in range(600):
        if not os.path.exists(f"/proc/{pid}"):
            break
        waiting.wait(0.1)
    assert not os.path.exists(f"/proc/{pid}")


def test_python_ends_although_worlds_are_still_open():
    """Worlds that are collected while Python ends must not wait for their machines, nor speak to ended ones."""
    program = (
        "import builtins, gymnasium as gym, llm_envs\n"
        "builtins.kept = [gym.make('llm/TextWorldExpress-v0') for _ in range(4)]\n"
        "for env in builtins.kept:\n"
        "    env.reset(seed=0)\n"
        "    env.step('<answer>inventory</answer>')\n"
        "kept[0].close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "py4j" not in done.stderr


def test_a_forked_child_has_machines_of_its_own():
    env = gym.make(TWX)
    env.reset(seed=0)
    parent = env.unwrapped._world._machine.process.pid
    vector = gym.make_vec(TWX, 2, vectorization_mode="async")
    try:
        first, _ = vector.reset(seed=[0, 1])
        second, *_ = vector.step(("<answer>inventory</answer>",) * 2)
    finally:
        vector.close()
    assert len(set(first)) == 2 and all("inventory" in text.lower() for text in second)
    assert env.step("<answer>inventory</answer>")[2] is False
    assert env.unwrapped._world._machine.process.pid == parent


@pytest.mark.parametrize("env_class", [TextWorldExpressEnv, ScienceWorldEnv])
def test_errors_name_what_is_missing(env_class, monkeypatch):
    simulator = env_class.simulator
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs Java, and `java` is not found: install it"):
        JavaPool(simulator)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'llm-envs\[suites\]'"):
        JavaPool(simulator)
