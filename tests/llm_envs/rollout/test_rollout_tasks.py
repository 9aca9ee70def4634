"""The registered tasks, played through the collector with a real tokenizer, and with a real (tiny) model."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from llm_envs.chat import ChatCodec
from llm_envs.checker.catalogue import suite_ids
from llm_envs.data import from_dataset, sft_rows, to_dataset
from llm_envs.policies import OraclePolicy
from llm_envs.rollout import Collector
from llm_envs.tiny_model import tiny_tokenizer
from llm_envs.types import StopReason, Trajectory, validate_batch

TASKS = suite_ids()


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


def test_a_tool_call_is_recorded(codec: ChatCodec) -> None:
    (trajectory, *_) = collect("llm/Calculator-v0", OraclePolicy(), codec)
    (result, *_) = trajectory.tool_results
    assert result.name == "calculator" and result.success
    assert [m.role for m in trajectory.messages[:4]] == ["system", "user", "assistant", "tool"]
    assert trajectory.messages[3].content == result.output
    assert trajectory.tools[0]["function"]["name"] == "calculator"
