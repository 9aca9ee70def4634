"""Tasks that run code, formulas or queries: in threads, and in processes forked after this one has used them."""

import multiprocessing

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv

import llm_envs
from llm_envs.parsers import format_tool_call
from llm_envs.rollout.workers.runner import EnvMaker

pytest.importorskip("pydantic_monty")
pytest.importorskip("math_verify")
assert llm_envs  # registers

pytestmark = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="nothing forks here")


BLOCKING = [
    "DatasetMath",
    "FixRepository",
    "PythonInterpreter",
    "RepairFunction",
    "SQLExplorer",
    "SQLQuery",
    "WriteFunction",
]


@pytest.mark.parametrize("name", BLOCKING)
def test_a_task_whose_step_may_take_long_keeps_the_collector_free(name):
    """Before one has been made, too, since the first of them is made and stepped in a thread then."""
    gym.make(f"llm/{name}-v0").close()
    assert EnvMaker(f"llm/{name}-v0").blocking


def rewards_of_oracles(envs, env_id):
    """Return the rewards of the right answers to the first problems of two environments that run in forks."""
    envs.reset(seed=[1, 2])
    actions = []
    for seed in (1, 2):
        env = gym.make(env_id)
        env.reset(seed=seed)
        actions.append(env.unwrapped.oracle())
    envs.step_async(actions)
    _, rewards, terminated, _, _ = envs.step_wait(timeout=120)
    return rewards.tolist(), terminated.tolist()


@pytest.mark.parametrize("env_id", ["llm/WriteFunction-v0", "llm/RepairFunction-v0", "llm/DatasetMath-v0"])
def test_an_answer_is_judged_in_a_fork_as_it_is_here(env_id):
    env = gym.make(env_id)
    env.reset(seed=1)
    assert env.step(env.unwrapped.oracle())[1] == 1.0, "and now the parent has used it"
    envs = AsyncVectorEnv([lambda: gym.make(env_id)] * 2, context="fork")
    try:
        assert rewards_of_oracles(envs, env_id) == ([1.0, 1.0], [True, True])
    finally:
        envs.close(timeout=60)


def test_the_python_tool_works_in_a_fork():
    env = gym.make("llm/PythonInterpreter-v0")
    env.reset(seed=1)
    call = format_tool_call("python", code="6 * 7")
    assert env.step(call)[0] == "42"
    envs = AsyncVectorEnv([lambda: gym.make("llm/PythonInterpreter-v0")] * 2, context="fork")
    try:
        envs.reset(seed=1)
        envs.step_async([call, format_tool_call("python", code="1 / 0")])
        observations, *_ = envs.step_wait(timeout=120)
        assert observations[0] == "42"
        assert "ZeroDivisionError" in observations[1]
    finally:
        envs.close(timeout=60)
    assert env.step(call)[0] == "42"
