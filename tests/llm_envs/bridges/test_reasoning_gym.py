"""reasoning-gym's data sets: problems, seeds, scores in the child process, and what is off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from llm_envs import evaluate
from llm_envs.bridges.ids import FLAWED, REASONING_GYM, suite_ids
from llm_envs.bridges.reasoning_gym import ReasoningGymEnv
from llm_envs.bridges.reasoning_gym_scorer import is_allowed
from llm_envs.errors import BridgeError, InvalidConfigError
from llm_envs.policies import OraclePolicy

pytestmark = pytest.mark.suites
RECORD = json.loads((Path(__file__).parents[3] / "proof/results/bridges/reasoning-gym.json").read_text())["measured"]


def test_every_data_set_of_the_package_has_an_id() -> None:
    from reasoning_gym.factory import DATASETS

    assert set(REASONING_GYM) == set(DATASETS) - {"composite"}
    assert all(id in gym.registry for id in suite_ids()["reasoning_gym"])


@pytest.mark.parametrize("name", REASONING_GYM)
def test_a_stored_answer_is_right_and_empty_ones_are_not(name: str) -> None:
    env = ReasoningGymEnv(dataset=name, allow_flawed=True)
    for seed in range(2):
        env.reset(seed=seed)
        problem = env.problem
        assert env.reset(seed=seed)[0] == problem["question"], "the same seed must give the same question"
        if problem["answer"] and "Integral" not in problem["answer"]:
            env.reset(options={"problem": problem})
            assert env.step(env.oracle())[1] == 1.0
        for reply in ("", "<answer></answer>", "<answer>?</answer>"):
            env.reset(options={"problem": problem})
            if name not in FLAWED:
                assert env.step(reply)[1] <= 0.0


def test_adjacent_seeds_share_nothing() -> None:
    env = gym.make("reasoning_gym/chain_sum-v0", config={"min_digits": 4, "max_digits": 6})
    questions = [env.reset(seed=seed)[0] for seed in range(50)]
    assert len(set(questions)) == 50
    train = {gym.make("reasoning_gym/gcd-v0", split="train").reset(seed=seed)[0] for seed in range(40)}
    test = {gym.make("reasoning_gym/gcd-v0", split="test").reset(seed=seed)[0] for seed in range(40)}
    assert not train & test


def test_partial_credit_is_not_paid() -> None:
    env = ReasoningGymEnv(dataset="chain_sum")
    env.reset(seed=1)
    _, reward, _, _, info = env.step(f"<answer>{env.problem['answer']} or 7</answer>")
    assert reward == 0.0
    assert 0 < info["reward_components"]["score"] < 1
    assert info["is_success"] is False


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("countdown", "__import__('os').system('touch /tmp/llm_envs_was_here')"),
        ("puzzle24", "(lambda: 24)()"),
        ("simple_integration", "Integral(9*x**2, x)"),
        ("polynomial_multiplication", "expand((x+1)*(x+2))"),
        ("string_insertion", "open('/tmp/llm_envs_was_here', 'w').write('x')"),
        ("spiral_matrix", "[print(1) for _ in range(10**12)]"),
        ("countdown", "9**9**9**9**9"),
        ("intermediate_integration", "x" + "**9" * 300),
        ("n_queens", "[" * 5000),
    ],
)
def test_hostile_answers_earn_nothing_and_the_next_one_is_judged(name: str, answer: str) -> None:
    env = ReasoningGymEnv(dataset=name, allow_flawed=True)
    env.reset(seed=3)
    problem = env.problem
    assert env.step(f"<answer>{answer}</answer>")[1] <= 0.0
    env.reset(options={"problem": problem})
    assert env.step(env.oracle())[1] == 1.0
    assert not Path("/tmp/llm_envs_was_here").exists()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("(8 - 2)*4", True),
        ("3*x**2/2 + sin(x)", True),
        ("x.real", False),
        ("f''", False),
        ("ab", False),
        ("1_0", False),
    ],
)
def test_expressions_have_numbers_operators_and_known_names(text: str, allowed: bool) -> None:
    assert is_allowed("intermediate_integration", text) is allowed
    assert is_allowed("chain_sum", text) is True


def test_what_pays_for_garbage_is_off() -> None:
    assert sorted(FLAWED) == sorted(name for name, result in RECORD.items() if result["garbage_paid"] >= 0.1)
    assert set(RECORD) == set(REASONING_GYM)
    for name in FLAWED:
        with pytest.raises(InvalidConfigError, match=f"reasoning_gym/{name}-v0 is off, because"):
            gym.make(f"reasoning_gym/{name}-v0")


@pytest.mark.parametrize("name", ["coin_flip", "gcd"])
def test_the_record_is_what_the_command_finds(name: str) -> None:
    from proof.bridges import measure_data_set

    measured: dict[str, Any] = measure_data_set(name)
    assert measured["garbage_paid"] == RECORD[name]["garbage_paid"]


@pytest.mark.smoke
def test_what_is_wrong_is_said() -> None:
    with pytest.raises(InvalidConfigError, match="reasoning_gym has no data set 'chain'; known are 'ab'"):
        ReasoningGymEnv(dataset="chain")
    env = ReasoningGymEnv(dataset="chain_sum", config={"max_trems": 3})
    with pytest.raises(BridgeError, match="unexpected keyword argument 'max_trems'"):
        env.reset(seed=1)
    env = ReasoningGymEnv(dataset="chain_sum")
    with pytest.raises(InvalidConfigError, match="makes another item from this seed"):
        env.reset(options={"problem": {"item_seed": 5, "question": "What is 1 + 1?", "answer": "2"}})


@pytest.mark.smoke
def test_they_are_collected_as_any_task() -> None:
    result = evaluate("reasoning_gym/leg_counting-v0", OraclePolicy(), n=4, progress=False)
    assert result.success_rate == 1.0
