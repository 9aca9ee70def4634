"""The registered tasks, played through the collector with a real tokenizer, and with a real (tiny) model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import llm_envs.errors
from llm_envs import evaluate
from llm_envs.chat import ChatCodec
from llm_envs.checker.catalogue import suite_ids
from llm_envs.data import from_dataset, sft_rows, to_dataset
from llm_envs.policies import OraclePolicy, RandomPolicy
from llm_envs.rollout import Collector, RolloutLimits
from llm_envs.testing import HashingTokenPolicy
from llm_envs.tiny_model import tiny_model, tiny_tokenizer
from llm_envs.types import SamplingParams, StopReason, Trajectory, validate_batch

TASKS = suite_ids()
REPLIES = [
    "<answer>5</answer>",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>',
    "a long reply that no task asked for",
    "",
]


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec(tiny_tokenizer())


def collect(env: str, policy: Any, codec: Any, n: int = 5, group_size: int = 2, **settings: Any) -> list[Trajectory]:
    with Collector(env, policy, codec=codec, progress=False, **settings) as collector:
        return [t for group in collector.collect(n, group_size) for t in group]


def check_text(trajectory: Trajectory, codec: ChatCodec) -> None:
    """The row is a beginning of what the template makes of the whole conversation."""
    messages = [message.to_dict() for message in trajectory.messages]
    tools = [dict(tool) for tool in trajectory.tools] or None
    whole = codec.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert whole.startswith(codec.tokenizer.decode(trajectory.rows[0].ids))


@pytest.mark.parametrize("env_id", TASKS)
def test_an_oracle_wins_and_leaves_rows_to_train_on(env_id: str, codec: ChatCodec) -> None:
    trajectories = collect(env_id, OraclePolicy(), codec)
    assert validate_batch(trajectories) == []
    assert {t.status for t in trajectories} == {"ok"}
    if gym.make(env_id).unwrapped.oracle_is_exact:
        assert all(t.is_success and t.stop_reason is StopReason.TERMINATED for t in trajectories)
    assert len(sft_rows(trajectories)) == 10
    assert from_dataset(to_dataset(trajectories)) == trajectories
    for trajectory in trajectories:
        check_text(trajectory, codec)
        said = [codec.decode_reply(trajectory.rows[0].ids[start:stop]) for start, stop in trajectory.rows[0].spans]
        assert said == [m.content for m in trajectory.messages if m.role == "assistant"]


@pytest.mark.levels
@pytest.mark.parametrize("env_id", TASKS)
def test_sampled_turns_of_any_kind_make_valid_rows_at_any_concurrency(env_id: str, codec: ChatCodec) -> None:
    def played(concurrency: int) -> list[str]:
        policy = HashingTokenPolicy(codec, REPLIES)
        limits = RolloutLimits(max_turn_tokens=12, max_episode_tokens=40_000, max_turns=3)
        trajectories = collect(env_id, policy, codec, limits=limits, max_concurrency=concurrency)
        assert validate_batch(trajectories) == []
        assert {t.status for t in trajectories} == {"ok"}
        for trajectory in trajectories:
            check_text(trajectory, codec)
        return [t.to_json(timings=False) for t in trajectories]

    assert played(1) == played(7)


@pytest.mark.levels
@pytest.mark.parametrize("env_id", TASKS)
def test_noise_never_breaks_a_task(env_id: str) -> None:
    result = evaluate(env_id, RandomPolicy(), n=50, progress=False)
    assert result.errors == {} and result.n == 50


def test_a_tool_call_is_recorded(codec: ChatCodec) -> None:
    (trajectory, *_) = collect("llm/Calculator-v0", OraclePolicy(), codec)
    (result, *_) = trajectory.tool_results
    assert result.name == "calculator" and result.success
    assert [m.role for m in trajectory.messages[:4]] == ["system", "user", "assistant", "tool"]
    assert trajectory.messages[3].content == result.output
    assert trajectory.tools[0]["function"]["name"] == "calculator"


def test_wrong_settings_name_the_right_ones() -> None:
    with pytest.raises(llm_envs.errors.UnknownTaskError, match="llm/Calculator-v0"):
        Collector("llm/Calculater-v0", OraclePolicy())
    with pytest.raises(llm_envs.errors.InvalidConfigError, match="'train', 'test'"):
        Collector("llm/Calculator-v0", OraclePolicy(), env_kwargs={"split": "val"})


def test_a_real_model_plays() -> None:
    from llm_envs.policies import TransformersPolicy

    tokenizer = tiny_tokenizer()
    policy = TransformersPolicy(tiny_model(tokenizer), tokenizer)
    limits = RolloutLimits(max_turn_tokens=8, max_turns=2)
    sampling = SamplingParams(temperature=0.7)
    trajectories = collect("llm/Calculator-v0", policy, ChatCodec(tokenizer), 3, 4, limits=limits, sampling=sampling)
    assert validate_batch(trajectories) == []
    assert {t.status for t in trajectories} == {"ok"}
    for trajectory in trajectories:
        (row,) = trajectory.rows
        assert np.isfinite(row.logps).all() and (row.logps[row.mask] <= 0).all()
        assert trajectory.n_sampled_tokens <= 16
    assert len({t.rows[0].ids.tobytes() for t in trajectories}) == 12
