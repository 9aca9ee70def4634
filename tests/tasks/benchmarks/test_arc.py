"""`llm/ARC-v0`: attempts, several test inputs, forms of grids, the package's tasks, and hostile answers."""

import gymnasium as gym
import pytest

from llm_envs.errors import InvalidActionError, InvalidConfigError, MissingExtraError
from llm_envs.tasks.benchmarks import arc
from llm_envs.tasks.benchmarks.arc import read_grids, tasks_of


def start(task_id="0d3d703e", **kwargs):
    env = gym.make("llm/ARC-v0", **kwargs)
    observation, _ = env.reset(seed=0, options={"problem": {"id": task_id}})
    return env, observation


def test_the_prompt_has_the_examples_and_the_test_input():
    _, prompt = start()
    assert prompt.startswith(
        "Each attempt is one reply. You have 2.\n\nInput 1:\n3 1 2\n3 1 2\n3 1 2\n\nOutput 1:\n4 5 6\n"
    )
    assert prompt.endswith("Test input:\n8 1 3\n8 1 3\n8 1 3")


RIGHT = "<answer>9 5 4\n9 5 4\n9 5 4</answer>"
WRONG = "<answer>9 5 4\n9 5 4\n9 5 5</answer>"


@pytest.mark.parametrize(
    ("attempts", "rewards"),
    [
        ([RIGHT], [1]),
        ([WRONG, RIGHT], [0, 1]),
        ([WRONG, WRONG], [0, 0]),
        (["", RIGHT], [-0.1, 1]),
        ([WRONG, "<answer>954\n954</answer>"], [0, 0]),
        ([RIGHT + WRONG, WRONG], [-0.1, 0]),
        ([f"<think>{RIGHT}</think>", "<answer>9 5 4 x</answer>"], [-0.1, -0.1]),
    ],
)
def test_two_attempts(attempts, rewards):
    env, _ = start()
    results = [env.step(attempt) for attempt in attempts]
    assert [result[1] for result in results] == rewards
    _, _, terminated, truncated, info = results[-1]
    assert (terminated, truncated, info["is_success"]) == (rewards[-1] == 1, rewards[-1] != 1, rewards[-1] == 1)


def test_each_test_output_needs_one_of_the_attempts():
    tasks = tasks_of("arc-agi-1", "train")
    outputs = {key: [pair["output"] for pair in task["test"]] for key, task in tasks.items()}
    task_id, grids = next((key, grids) for key, grids in outputs.items() if len(grids) == 2 and grids[0] != grids[1])
    first, second = ("\n".join(" ".join(map(str, row)) for row in grid) for grid in grids)
    for attempts, solved in (
        ([f"{first}\n\n{second}"], True),
        ([f"{first}\n\n1 2 1", f"1 2 1\n\n{second}"], True),
        ([f"{first}\n\n1 2 1", f"{second}\n\n1 2 1"], False),
        ([first, second], False),
    ):
        env, prompt = start(task_id)
        assert "Test input 2:" in prompt
        assert any(env.step(f"<answer>{attempt}</answer>")[1] == 1 for attempt in attempts) is solved


@pytest.mark.parametrize(
    ("answer", "n", "grids"),
    [
        ("0 3\n3 3", 1, [[[0, 3], [3, 3]]]),
        ("03\n33\n", 1, [[[0, 3], [3, 3]]]),
        ("[[0, 3], [3, 3]]", 1, [[[0, 3], [3, 3]]]),
        ("```\n0,3\n\n3,3\n```", 1, [[[0, 3], [3, 3]]]),
        ("[[[0, 3], [3, 3]], [[1]]]", 2, [[[0, 3], [3, 3]], [[1]]]),
        ("Output 1:\n0 3\n3 3\n\nOutput 2:\n1", 2, [[[0, 3], [3, 3]], [[1]]]),
        ("0 3\n3 3\n1 1", 2, [[[0, 3], [3, 3], [1, 1]]]),
    ],
)
def test_forms_of_grids(answer, n, grids):
    assert read_grids(answer, n) == grids


@pytest.mark.parametrize(
    "answer", ["0 3\n3", "0 x", "-1 2", "10 3", "\uff10 \uff13", "0;1", "0 " * 20_000, "[" * 19_000 + "x"]
)
def test_what_is_no_grid(answer):
    with pytest.raises(InvalidActionError):
        read_grids(answer, 1)


@pytest.mark.parametrize(
    ("level", "split", "n"),
    [("arc-agi-1", "train", 400), ("arc-agi-1", "test", 400), ("arc-agi-2", "train", 1000), ("arc-agi-2", "test", 120)],
)
def test_every_oracle_succeeds(level, split, n):
    env = gym.make("llm/ARC-v0", difficulty=level, split=split)
    problems = list(env.unwrapped.problems())
    assert env.unwrapped.n_problems == len(problems) == n
    for problem in problems:
        env.reset(options={"problem": problem})
        assert env.step(env.unwrapped.oracle())[1] == 1, problem


def test_wrong_arguments_are_refused(monkeypatch):
    with pytest.raises(InvalidConfigError, match="no task 'no'"):
        start("no")
    arc.tasks_of.cache_clear()
    monkeypatch.setattr(arc.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"llm-envs\[benchmarks\]"):
        gym.make("llm/ARC-v0")
