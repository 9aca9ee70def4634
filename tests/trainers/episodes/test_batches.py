"""What TRL gets of a trajectory: token ids, masks and rewards as they were."""

import dataclasses

import numpy as np

from llm_envs.trainers.episodes.batches import rollout_output
from llm_envs.types import FinishReason, RolloutError, Row, StopReason, Trajectory, Turn

ROW = Row(
    ids=np.array([1, 2, 3, 10, 11, 4, 5, 12], dtype=np.int32),
    mask=np.array([0, 0, 0, 1, 1, 0, 0, 1], dtype=np.bool_),
    logps=np.array([0, 0, 0, -0.5, -1.0, 0, 0, -2.0], dtype=np.float32),
    spans=((3, 5), (7, 8)),
)
SECOND = Row(
    ids=np.array([8, 9, 13], dtype=np.int32),
    mask=np.array([0, 0, 1], dtype=np.bool_),
    logps=np.array([0, 0, -0.25], dtype=np.float32),
    spans=((2, 3),),
)
GOOD = Trajectory(
    env_id="x/Y-v0",
    env_kwargs={},
    seed=1,
    group_id="g",
    member=0,
    messages=(),
    tools=(),
    rows=(ROW,),
    turns=(Turn(0.25, {"a": 0.25}, 0, 0), Turn(0.5, {"a": 0.5}, 0, 1)),
    terminated=True,
    truncated=False,
    stop_reason=StopReason.TERMINATED,
    status="ok",
    is_success=True,
)
ERRORED = dataclasses.replace(
    GOOD, status="errored", error=RolloutError("E", "m", "env.step"), stop_reason=StopReason.ERROR, is_success=None
)
CUT = dataclasses.replace(GOOD, terminated=False, truncated=True, stop_reason=StopReason.MAX_TURNS)
EMPTY = dataclasses.replace(ERRORED, rows=(), turns=())


def test_a_row_is_split_where_the_policy_first_wrote():
    output = rollout_output([GOOD], pad_id=0)
    assert output == {
        "prompt_ids": [[1, 2, 3]],
        "completion_ids": [[10, 11, 4, 5, 12]],
        "logprobs": [[-0.5, -1.0, 0.0, 0.0, -2.0]],
        "env_mask": [[1, 1, 0, 0, 1]],
        "trajectory_reward": [0.75],
    }


def test_a_failure_is_masked_whole_and_has_no_reward():
    output = rollout_output([GOOD, ERRORED, EMPTY], pad_id=7)
    assert output["trajectory_reward"] == [0.75, None, None]
    assert output["env_mask"][1:] == [[0, 0, 0, 0, 0], [0]]
    assert (output["prompt_ids"][2], output["completion_ids"][2]) == ([7], [7])


def test_what_a_token_limit_cut_is_masked_only_when_asked():
    by_tokens = [dataclasses.replace(CUT, stop_reason=StopReason(reason)) for reason in ("max_tokens", "context_full")]
    last_turn = dataclasses.replace(GOOD.turns[1], finish_reason=FinishReason.LENGTH)
    by_tokens.append(dataclasses.replace(GOOD, turns=(GOOD.turns[0], last_turn)))
    assert rollout_output(by_tokens, pad_id=0)["env_mask"] == [[1, 1, 0, 0, 1]] * 3
    masked = rollout_output([*by_tokens, GOOD], pad_id=0, mask_truncated=True)
    assert masked["env_mask"] == [[0, 0, 0, 0, 0]] * 3 + [[1, 1, 0, 0, 1]]
    assert masked["trajectory_reward"] == [0.75] * 4


def test_what_a_filter_drops_is_masked_and_keeps_its_reward():
    output = rollout_output([GOOD, CUT], pad_id=0, trajectory_filter=lambda trajectory: trajectory.terminated)
    assert output["env_mask"] == [[1, 1, 0, 0, 1], [0, 0, 0, 0, 0]] and output["trajectory_reward"] == [0.75, 0.75]


def test_limits_of_turns_and_time_mask_nothing():
    first_turn = dataclasses.replace(GOOD.turns[0], finish_reason=FinishReason.LENGTH)
    others = [dataclasses.replace(CUT, stop_reason=StopReason(r)) for r in ("max_turns", "env_truncated", "timeout")]
    others.append(dataclasses.replace(GOOD, turns=(first_turn, GOOD.turns[1])))  # the agent went on
    assert rollout_output(others, pad_id=0, mask_truncated=True)["env_mask"] == [[1, 1, 0, 0, 1]] * 4


def test_a_forks_rows_come_behind_all_first_ones_without_a_reward_of_their_own():
    forked = dataclasses.replace(GOOD, rows=(ROW, SECOND))
    output = rollout_output([GOOD, forked, EMPTY, forked], pad_id=7, n_rows=8)
    assert output["trajectory_reward"] == [0.75, 0.75, None, 0.75, None, None, None, None]
    assert output["completion_ids"] == [
        *([[10, 11, 4, 5, 12]] * 2), [7], [10, 11, 4, 5, 12], [13], [13], [7], [7],
    ]  # fmt: skip
    assert output["prompt_ids"][4:] == [[8, 9], [8, 9], [7], [7]]
    assert output["env_mask"][4:] == [[1], [1], [0], [0]]
    assert output["logprobs"][4] == [-0.25]


def test_a_failed_forks_rows_are_masked():
    failed = dataclasses.replace(ERRORED, rows=(ROW, SECOND))
    assert rollout_output([failed], pad_id=7)["env_mask"] == [[0, 0, 0, 0, 0], [0]]
