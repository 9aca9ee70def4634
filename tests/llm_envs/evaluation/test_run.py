"""Evaluation: what is counted, and over what."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from llm_envs import evaluate
from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation import summarize
from llm_envs.evaluation.statistics import wilson_interval
from llm_envs.policies import ConstantPolicy, OraclePolicy, with_latency
from llm_envs.rollout import EnvChoice, RolloutLimits
from llm_envs.testing import ByteCodec, HashingTokenPolicy, NumbersEnv, with_failures
from llm_envs.types import Trajectory


def test_an_oracle_succeeds_always() -> None:
    result = evaluate(NumbersEnv, OraclePolicy(), n=50, env_kwargs={"n_turns": 3})
    assert (result.n, result.successes, result.success_rate, result.mean_reward) == (50, 50, 1.0, 1.0)
    assert result.interval == wilson_interval(50, 50)
    assert result.stop_reasons == {"terminated": 50} and result.errors == {} and result.unscored == 0
    assert result.mean_turns == 3.0
    assert str(result) == (
        "NumbersEnv [test]: success 100.0% (92.9% to 100.0%, n=50), reward 1, 3.0 turns, terminated=50"
    )
    assert {t.env_kwargs["split"] for t in result.trajectories} == {"test"}
    assert len({t.seed for t in result.trajectories}) == 50


def test_a_guess_wins_as_often_as_chance() -> None:
    result = evaluate(NumbersEnv, ConstantPolicy("7"), n=400, confidence=0.999)
    low, high = result.interval
    assert low < 0.1 < high
    assert result.successes == sum("Say 7" in t.messages[1].content for t in result.trajectories)
    assert result.mean_reward == pytest.approx(result.success_rate)
    assert result.reward_interval.low < result.mean_reward < result.reward_interval.high


def test_errors_are_counted_apart_and_are_not_zeros() -> None:
    policy = with_failures(OraclePolicy(), 0.3)
    result = evaluate(NumbersEnv, policy, n=100, max_retries=0)
    failed = sum(result.errors.values())
    assert result.errors == {"policy: RuntimeError: injected failure": failed} and 10 < failed < 50
    assert result.n == 100 - failed and result.success_rate == 1.0 and result.mean_reward == 1.0
    assert f"{failed} errored ({failed} x policy: RuntimeError: injected failure)" in str(result)
    assert result.stop_reasons["error"] == failed
    assert len(result.trajectories) == 100


def test_nothing_scored_is_nan_not_zero() -> None:
    codec = ByteCodec()
    result = evaluate(NumbersEnv, HashingTokenPolicy(codec, ["1"], context_length=3), n=4, codec=codec)
    assert result.n == 0 and result.unscored == 4
    assert math.isnan(result.success_rate) and math.isnan(result.mean_reward)
    assert result.interval == (0.0, 1.0)
    assert f"4 unscored (4 x {next(iter(result.errors))})" in str(result)


def test_limits_and_callbacks_pass_through() -> None:
    seen: list[Trajectory] = []
    limits = RolloutLimits(max_turns=1)
    result = evaluate(
        NumbersEnv, OraclePolicy(), n=5, env_kwargs={"n_turns": 2}, limits=limits, on_trajectory=seen.append
    )
    assert result.stop_reasons == {"max_turns": 5} and result.successes == 0 and result.mean_reward == 0.5
    assert len(seen) == 5


def test_equal_seeds_are_equal_problems() -> None:
    def problems(policy: Any, seed: int) -> list[str]:
        return [t.messages[1].content for t in evaluate(NumbersEnv, policy, n=20, seed=seed).trajectories]

    assert problems(OraclePolicy(), 1) == problems(ConstantPolicy("0"), 1) != problems(OraclePolicy(), 2)


def test_a_foreign_environment_has_no_split() -> None:
    class Foreign(NumbersEnv):
        def __init__(self) -> None:
            super().__init__()

    assert evaluate(Foreign, OraclePolicy(), n=2, split=None).success_rate == 1.0
    with pytest.raises(InvalidConfigError, match=r"split='test'"):
        evaluate(Foreign, OraclePolicy(), n=2)


def test_from_asynchronous_code_and_from_a_notebook() -> None:
    policy = with_latency(OraclePolicy(), 0.001)

    async def main() -> tuple[str, str]:
        return str(await asyncio.to_thread(evaluate, NumbersEnv, policy, n=3)), str(evaluate(NumbersEnv, policy, n=3))

    first, second = asyncio.run(main())
    assert first == second


def test_summarize_names_what_it_was_given() -> None:
    trajectories = evaluate(NumbersEnv, OraclePolicy(), n=3).trajectories
    assert summarize(trajectories, name="before").name == "before"
    assert summarize(trajectories).name == "NumbersEnv"
    assert summarize([]).n == 0


def test_another_split_in_the_arguments_is_refused() -> None:
    for envs, kwargs in ((NumbersEnv, {"split": "train"}), (EnvChoice("N", 1.0, {"split": "train"}, NumbersEnv), {})):
        with pytest.raises(InvalidConfigError, match="split 'train'"):
            evaluate(envs, OraclePolicy(), n=1, env_kwargs=kwargs)
        result = evaluate(envs, OraclePolicy(), n=1, split=None, env_kwargs=kwargs)
        assert result.trajectories[0].env_kwargs["split"] == "train"
    assert evaluate(NumbersEnv, OraclePolicy(), n=1, split="train", env_kwargs={"split": "train"}).n == 1


def test_an_environment_argument_in_the_wrong_place() -> None:
    known = r"env_kwargs=\{'difficulty': 'hard'\}; .* n, k, codec, split, .* confidence, .* limits"
    with pytest.raises(InvalidConfigError, match=known):
        evaluate(NumbersEnv, OraclePolicy(), n=1, difficulty="hard")


@pytest.mark.parametrize("n", [0, -1])
def test_no_problems_are_refused(n: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"n={n}: an evaluation needs at least 1 problem"):
        evaluate(NumbersEnv, OraclePolicy(), n=n)


def test_samples_of_a_problem_count_once() -> None:
    result = evaluate(NumbersEnv, ConstantPolicy("7"), n=50, k=4)
    solved = sum("Say 7" in t.messages[1].content for t in result.trajectories) // 4
    assert (result.n, result.successes, len({t.seed for t in result.trajectories})) == (200, 4 * solved, 50)
    rate = solved / 50
    assert result.pass_at == result.pass_hat == pytest.approx({1: rate, 2: rate, 4: rate})  # a constant has no luck
    assert f"pass@4 {rate:.1%}, pass^4 {rate:.1%}" in str(result)
    low, high = wilson_interval(solved, 50)
    assert result.interval.low < low < high < result.interval.high  # Student's quantile in place of the normal one
    assert result.interval == pytest.approx((low, high), abs=0.01)
    again = summarize(result.trajectories[::4])  # one sample of each
    assert again.interval == (low, high)
    assert again.reward_interval == pytest.approx(result.reward_interval)


def test_a_policy_brings_its_codec():
    codec = ByteCodec()
    policy = HashingTokenPolicy(codec, ["1"], context_length=4_000)
    scores = [evaluate(NumbersEnv, policy, n=4, **given).mean_reward for given in ({}, {"codec": codec})]
    assert scores[0] == scores[1]  # a score: without a codec no episode could be played
