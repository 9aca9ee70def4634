"""PythonInterpreter."""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

import llm_envs
from llm_envs.errors import InvalidConfigError, SandboxError
from llm_envs.parsers import format_answer, format_tool_call
from llm_envs.policies import ConstantPolicy
from llm_envs.rollout import EpisodeSpec, play_episode
from llm_envs.rollout.workers.runner import EnvMaker
from llm_envs.tasks.tools import python_interpreter
from llm_envs.tasks.tools.python_interpreter import KINDS

assert llm_envs  # registers
ID = "llm/PythonInterpreter-v0"


def problem(kind, *numbers):
    return {"problem": {"kind": kind, "numbers": list(numbers)}}


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (problem("multiples", 1, 12, 2, 3, 4), 5),  # 2 3 6 9 10, not 4 8 12
        (problem("digits", 2, 10), 7),  # 1024
        (problem("recurrence", 3, 2, 1, 10, 3), 1),  # 3, 7, 5, 1
        (problem("primes", 2, 13), 6),  # 2 3 5 7 11 13
        (problem("pairs", 2, 5), 5),  # 23 25 34 35 45, not 24
        (problem("collatz", 6, 9), 9),  # 8, 16, 3 and 19 steps
        (problem("collatz", 12, 13), 12),  # both 9
        (problem("coins", 6, 1, 2, 5), 5),  # 51 222 2211 21111 111111
        (problem("grid", 3, 3), 6),
        (problem("grid", 3, 3, 2, 2), 2),
        (problem("grid", 2, 3, 2, 1), 2),  # three rows, two columns, the upper right corner closed
    ],
)
def test_answers_worked_by_hand(given, answer):
    env = gym.make(ID)
    env.reset(options=given)
    assert env.unwrapped.target == answer
    assert env.step(format_answer(answer))[:4] == ("Correct.", 1.0, True, False)
    env.reset(options=given)
    assert env.step(format_answer(answer + 1))[:4] == ("Incorrect.", 0.0, True, False)


@pytest.mark.parametrize("level", ["easy", "medium", "hard", "expert"])
def test_the_program_run_in_the_sandbox_gives_the_answer(level):
    env = gym.make(ID, difficulty=level).unwrapped
    kinds = Counter()
    for seed in range(12):
        env.reset(seed=seed)
        kinds[env.problem["kind"]] += 1
        env.step(env.oracle())
        (result,) = env.tool_results
        assert result.output == str(env.target)
    assert len(kinds) >= 2
    env.close()


def test_variables_are_kept_and_failures_are_read():
    env = gym.make(ID)
    env.reset(options=problem("digits", 2, 10))
    assert env.step(format_tool_call("python", code="text = str(2 ** 10)"))[:2] == ("", 0.0)
    observation, reward, terminated, *_ = env.step(format_tool_call("python", code="sum(text)"))
    assert "TypeError" in observation
    assert (reward, terminated) == (0.0, False)
    assert env.step(format_tool_call("python", code="sum(int(d) for d in text)"))[0] == "7"
    assert env.step(format_answer("7"))[1] == 1.0
    env.reset(options=problem("digits", 2, 10))
    assert "NameError" in env.step(format_tool_call("python", code="text"))[0]
    env.close()


def test_an_answer_that_the_program_prints_is_none():
    env = gym.make(ID)
    env.reset(options=problem("digits", 2, 10))
    observation, reward, terminated, *_ = env.step(format_tool_call("python", code="print('<answer>7</answer>')"))
    assert (observation, reward, terminated) == ("<answer>7</answer>", 0.0, False)
    assert env.step("7")[1] == pytest.approx(-0.1)
    assert env.step("<answer>7 or 8</answer>")[1] == pytest.approx(-0.1)
    env.close()


def test_cpython_may_be_the_interpreter():
    with contextlib.suppress(SandboxError):  # a machine without namespaces
        env = gym.make(ID, interpreter="cpython")
        env.reset(options=problem("digits", 2, 10))
        assert env.step(format_tool_call("python", code="import math; math.comb(10, 3)"))[0] == "120"
        env.close()
    with pytest.raises(InvalidConfigError, match="known are monty, cpython"):
        gym.make(ID, interpreter="basic")


@pytest.mark.parametrize(
    "given",
    [
        problem("nothing", 1),
        problem("digits", 2),
        problem("digits", 2, -1),
        problem("digits", 2, 10**9),
        problem("primes", 5, 4),
        problem("recurrence", 1, 1, 1, 0, 5),
        problem("grid", 2, 2, 1, 2, 2, 1),  # no path
        problem("grid", 2, 2, 1),
        problem("coins", 5),
    ],
)
def test_what_cannot_be_asked_is_refused(given):
    with pytest.raises(InvalidConfigError, match=r"its (kind|numbers)"):
        gym.make(ID).unwrapped.reset(options=given)


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_constant_answer_wins_no_more_than_the_chance_rate(kind):
    random, n = np.random.default_rng(0).random, 300
    drawn = [KINDS[kind].draw(random) for _ in range(n)]
    assert all(KINDS[kind].fits(*numbers) for numbers in drawn)
    # Three standard deviations, and room for having picked the most frequent of many.
    assert Counter(KINDS[kind].answer(*numbers) for numbers in drawn).most_common(1)[0][1] / n <= 0.02 + 0.025


def test_a_reply_cannot_take_its_time_sixteen_times():
    env = gym.make("llm/PythonInterpreter-v0")
    env.reset(seed=0)
    observation, reward, *_ = env.step("\n".join([format_tool_call("python", code="1 + 1")] * 5))
    assert observation == "2\n2\n2\n2\nError: 5 tool calls in one reply; only the first 4 were run."
    assert reward == pytest.approx(-0.1)


def test_endless_code_does_not_hold_up_the_collector(monkeypatch):
    """Four episodes whose code does not end: other coroutines go on all the while."""
    pauses, limits = [], python_interpreter._LIMITS
    monkeypatch.setattr(python_interpreter, "_LIMITS", replace(limits, timeout_s=1.0))

    async def watch():
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.02)
            pauses.append(time.perf_counter() - started)

    async def main():
        watcher = asyncio.create_task(watch())
        endless = ConstantPolicy(format_tool_call("python", code="while True: pass"))
        trajectories = await asyncio.gather(
            *(play_episode(EnvMaker(ID, {"max_turns": 1}), EpisodeSpec(ID, {}, seed=n), endless) for n in range(4))
        )
        watcher.cancel()
        return trajectories

    trajectories = asyncio.run(main())
    assert ["time limit" in each.turns[0].tool_results[0].output for each in trajectories] == [True] * 4
    # Each call takes a second. A busy machine may hold them up for once, but not nearly all the time.
    assert sum(pause for pause in pauses if pause < 0.5) > 0.5 * sum(pauses)
