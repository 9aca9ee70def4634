"""Filters on groups made by hand, and the versions of weights that a group may have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from make_trajectories import make_group, make_trajectory

from llm_envs.errors import InvalidConfigError
from llm_envs.parsers import parse_boxed
from llm_envs.rollout.filters import (
    all_of,
    create_diversity_filter,
    create_length_filter,
    create_min_reward_filter,
    create_min_scored_filter,
    create_spread_filter,
    create_void_turn_filter,
    diversity,
)
from llm_envs.rollout.staleness import admission_capacity, dispatch_version, off_policy_statistics, sweep
from llm_envs.types import Message, ToolCall, ToolResult, Turn


def rewards(*values):
    return make_group(*[make_trajectory(value, member=i) for i, value in enumerate(values)])


def test_spread_looks_at_scored_members_alone():
    keeps = create_spread_filter()
    assert keeps(rewards(0.0, 1.0))
    assert not keeps(rewards(1.0, 1.0, 1.0))
    assert not keeps(rewards(1.0, None))  # a failure is no zero, so there is no spread
    assert not keeps(rewards(None, None)) and not keeps(rewards(0.5))
    assert not create_spread_filter(0.5)(rewards(0.0, 0.4)) and create_spread_filter(0.5)(rewards(0.0, 0.5))
    with pytest.raises(InvalidConfigError, match="min_spread is 0"):
        create_spread_filter(0)


def test_reward_and_scored_members():
    assert create_min_reward_filter(0.5)(rewards(0.0, 0.5)) and not create_min_reward_filter(0.6)(rewards(0.0, 0.5))
    assert not create_min_reward_filter(0.5, n_members=2)(rewards(0.5, None, 0.4))
    assert create_min_scored_filter(2)(rewards(0.0, None, 0.0)) and not create_min_scored_filter(3)(
        rewards(0.0, None, 0.0)
    )
    with pytest.raises(InvalidConfigError, match="n_members is 0"):
        create_min_scored_filter(0)


def test_diversity_is_jaccards_distance():
    same, other, half = make_trajectory(1.0, "a b"), make_trajectory(1.0, "c d"), make_trajectory(1.0, "a c")
    assert diversity([same, same]) == 0 and diversity([same, other]) == 1 and diversity([same]) == 0
    assert diversity([same, half]) == pytest.approx(1 - 1 / 3)
    assert diversity([same, other, half]) == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert create_diversity_filter(0.5)(make_group(same, half)) and not create_diversity_filter(0.7)(
        make_group(same, half)
    )


def test_length_and_truncation():
    cut, whole = make_trajectory(0.0, truncated=True), make_trajectory(1.0, member=1)
    assert create_length_filter(max_truncated=0.5)(make_group(cut, whole))
    assert not create_length_filter(max_truncated=0.4)(make_group(cut, whole))
    assert not create_length_filter(min_tokens=1)(make_group(whole))  # it has no tokens at all
    assert not create_length_filter()(make_group(make_trajectory(None)))


def test_conjunction():
    keeps = all_of(create_spread_filter(), create_min_reward_filter(1.0))
    assert keeps(rewards(0.0, 1.0)) and not keeps(rewards(0.0, 0.5)) and not keeps(rewards(1.0, 1.0))
    assert all_of()(rewards())


def test_capacity_by_hand():
    """Batches of 4; one version behind is allowed: at version 0 there may be 8 groups, at version 2 there may be 16."""
    at_start = {"max_staleness": 1, "batch_size": 4}
    assert admission_capacity(version=0, n_trained=0, n_accepted=0, n_running=0, **at_start) == 8
    assert admission_capacity(version=0, n_trained=0, n_accepted=3, n_running=5, **at_start) == 0
    assert admission_capacity(version=2, n_trained=8, n_accepted=2, n_running=1, **at_start) == 5
    assert admission_capacity(version=0, n_trained=0, n_accepted=0, n_running=9, **at_start) == 0
    on_policy = {"max_staleness": 0, "batch_size": 4}
    assert admission_capacity(version=3, n_trained=12, n_accepted=0, n_running=0, **on_policy) == 4
    with pytest.raises(InvalidConfigError, match="batch_size is 0"):
        admission_capacity(version=0, max_staleness=0, batch_size=0, n_trained=0, n_accepted=0, n_running=0)


def test_a_group_is_as_old_as_its_oldest_member():
    old = make_group(make_trajectory(1.0, versions=[5]), make_trajectory(1.0, member=1, versions=[3, 5]))
    new, text_only = make_group(make_trajectory(1.0, versions=[5])), make_group(make_trajectory(1.0))
    assert sweep([old, new, text_only], 5, 1) == ([new, text_only], [old])
    assert sweep([old, new], 5, 2) == ([old, new], [])
    pinned = make_trajectory(1.0, versions=[5], metadata={"dispatch_version": 2})
    assert dispatch_version(pinned) == 2 and dispatch_version(make_trajectory(1.0)) is None


def test_statistics_weigh_tokens():
    mixed = make_trajectory(1.0, versions=[3, 5])  # 10 tokens each
    found = off_policy_statistics([mixed, make_trajectory(1.0, versions=[5]), make_trajectory(1.0)], 5)
    assert found == {
        "staleness_mean": pytest.approx(20 / 30), "staleness_max": 2.0,
        "off_policy_share": pytest.approx(1 / 3), "mixed_share": 0.5,
    }  # fmt: skip
    assert off_policy_statistics([make_trajectory(1.0)], 5) == {}


CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def played(*replies):
    """Return an episode of these replies, a tool's result after each."""
    messages = [Message("system", "s"), Message("assistant", "an example in the prompt"), Message("user", "ask")]
    for reply in replies:
        message = reply if isinstance(reply, Message) else Message("assistant", reply)
        messages += [message, Message("tool", "result")]
    turns = tuple(Turn(0.0, {}) for _ in replies)
    return replace(make_trajectory(1.0), messages=tuple(messages), turns=turns)


@pytest.mark.parametrize(
    ("replies", "expected"),
    [
        ([CALL, "So: <answer>4</answer>"], False),
        ([CALL, "I wonder.", "<answer>4</answer>"], True),
        ([CALL, "The answer is 4."], True),
        ([CALL[:-15], "<answer>4</answer>"], True),  # the first call was cut
        (["<answer>4"], True),
        ([Message("assistant", "", (ToolCall("f", {}),)), "<answer>4</answer>"], False),  # as a chat API writes calls
    ],
)
def test_a_void_turn_has_neither_a_call_nor_an_answer(replies, expected):
    assert create_void_turn_filter()(played(*replies)) is not expected


def test_the_environment_and_the_parser_have_their_say():
    episode = played(r"It is \boxed{4}.")
    keeps = create_void_turn_filter()
    assert not keeps(episode) and create_void_turn_filter(parse_boxed)(episode)
    called = replace(episode, turns=(Turn(0.0, {}, tool_results=(ToolResult("f", {}, "4", True),)),))
    assert keeps(called)  # the environment read a call in a form of its own
    assert keeps(played())
