"""The data: construction checks, equality, and lossless JSON."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from llm_envs.types import (
    FinishReason,
    Message,
    RolloutError,
    Row,
    Sampled,
    SamplingParams,
    StopReason,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
    VersionSpan,
    inspect_trajectory,
    validate_batch,
)


def make_row() -> Row:
    return Row(
        ids=np.array([1, 2, 3, 4, 5], dtype=np.int32),
        mask=np.array([False, True, True, False, True]),
        logps=np.array([0, -0.1, -2.5, 0, np.nan], dtype=np.float32),
        spans=((1, 3), (4, 5)),
    )


def make_trajectory() -> Trajectory:
    result = ToolResult("calculator", {"expression": "2*3"}, "6", True, seconds=0.5)
    return Trajectory(
        env_id="llm/Calculator-v0",
        env_kwargs={"split": "test"},
        seed=2**52 + 1,
        group_id="0-000007",
        member=3,
        messages=(
            Message("system", "Be exact."),
            Message("user", 'What is 2*3? \u2028 "ü"\n'),
            Message("assistant", "", (ToolCall("calculator", {"expression": "2*3"}, "call-1"),)),
            Message("tool", "6", tool_call_id="call-1", metadata={"name": "calculator"}),
            Message("assistant", "<answer>6</answer>"),
        ),
        tools=({"type": "function", "function": {"name": "calculator", "parameters": {}}},),
        rows=(make_row(),),
        turns=(
            Turn(0.25, {"tool": 0.25}, 0, 0, FinishReason.LENGTH, (VersionSpan(0, 2, 4),), (result,), {"env": 0.1}),
            Turn(1.0, {"tool": 0.0, "right": 1.0}, 0, 1),
        ),
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        status="ok",
        is_success=True,
        timings={"total": 1.5},
        metadata={"retries": 1},
    )


def test_sums_over_turns() -> None:
    trajectory = make_trajectory()
    assert trajectory.reward == 1.25
    assert trajectory.components == {"tool": 0.25, "right": 1.0}
    assert trajectory.n_tokens == 5
    assert trajectory.n_sampled_tokens == 3
    assert [result.output for result in trajectory.tool_results] == ["6"]


def test_json_round_trip_is_lossless_and_strict() -> None:
    trajectory = make_trajectory()
    line = trajectory.to_json()
    assert "\n" not in line
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    back = Trajectory.from_json(line)
    assert back == trajectory
    assert back.to_json() == line
    row = back.rows[0]
    assert row.ids.dtype == np.int32 and row.mask.dtype == np.bool_ and row.logps.dtype == np.float32
    np.testing.assert_array_equal(row.logps, trajectory.rows[0].logps)
    assert back.turns[0] == trajectory.turns[0]
    assert back.messages == trajectory.messages


def test_a_failure_survives_json() -> None:
    error = RolloutError("ZeroDivisionError", "division by zero", "env.step")
    errored = replace(
        make_trajectory(),
        status="errored",
        error=error,
        stop_reason=StopReason.ERROR,
        is_success=None,
        turns=(),
        rows=(),
    )
    back = Trajectory.from_json(errored.to_json())
    assert back.error == error
    assert back.status == "errored"
    assert back.is_success is None


def test_equality_leaves_out_wall_times_and_nothing_else() -> None:
    trajectory = make_trajectory()
    turns = (replace(trajectory.turns[0], seconds={"env": 9.0}), trajectory.turns[1])
    assert replace(trajectory, timings={"total": 99.0}, turns=turns) == trajectory
    slower = replace(trajectory.turns[0].tool_results[0], seconds=7.0)
    assert replace(trajectory, turns=(replace(turns[0], tool_results=(slower,)), turns[1])) == trajectory
    assert replace(trajectory, member=4) != trajectory
    assert replace(trajectory, turns=(replace(turns[0], reward=0.5), turns[1])) != trajectory


def test_no_wall_time_is_in_the_compared_record() -> None:
    text = make_trajectory().to_json(timings=False)
    assert "seconds" not in text and "timings" not in text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mask": np.array([False, True, True, True, True])}, "mask is not True exactly inside"),
        ({"spans": ((1, 3), (2, 5))}, "overlaps"),
        ({"spans": ((1, 3), (4, 6))}, "leaves the row"),
        ({"ids": np.array([1, 2, 3, 4], dtype=np.int32)}, "shapes differ"),
        ({"ids": np.array([1, 2, 3, 4, 5], dtype=np.int64)}, "dtype int64"),
    ],
)
def test_a_row_that_disagrees_with_itself_is_refused(change: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(make_row(), **change)


def test_sampled_checks_lengths() -> None:
    with pytest.raises(ValueError, match="log-probabilities"):
        Sampled(np.zeros(2, dtype=np.int32), np.zeros(3, dtype=np.float32), FinishReason.STOP)
    with pytest.raises(ValueError, match="token_ids has the dtype float64"):
        Sampled(np.array([5.5]), np.zeros(1, dtype=np.float32), FinishReason.STOP)


@pytest.mark.parametrize(
    "setting",
    [{"temperature": -1}, {"top_p": 0}, {"max_new_tokens": 0}, {"min_p": 2}, {"top_k": -1}, {"stop_strings": "ab"}],
)
def test_bad_sampling_parameters_are_named(setting: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        SamplingParams(**setting)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; it must be an integer"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"max_new_tokens": "9"}, "max_new_tokens is '9'"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"stop_strings": ("",)}, "stop_strings has ''; each must be a text that is not empty"),
        ({"stop_strings": ("a", 3)}, "stop_strings has 3"),
    ],
)
def test_what_would_be_misread_later_is_refused_with_its_value(setting: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        SamplingParams(**setting)
    assert SamplingParams(max_new_tokens=np.int64(9), stop_strings=("a",)).max_new_tokens == 9


def test_group_keeps_the_scored_apart() -> None:
    good = make_trajectory()
    failed = replace(good, member=4, status="errored", error=RolloutError("E", "e", "policy"))
    group = TrajectoryGroup("0-000007", "llm/Calculator-v0", good.seed, (good, failed))
    assert group.scored == (good,)
    assert len(group) == 2 and list(group) == [good, failed]
    assert group.filter(lambda t: t.member == 4).trajectories == (failed,)


def test_inspect_shows_words_rewards_and_the_end() -> None:
    text = inspect_trajectory(make_trajectory())
    assert "<answer>6</answer>" in text
    assert "[summary, length]" in text and "[reward 1, stop]" in text
    assert "terminated, status=ok, success=True, reward=1.25" in text


def test_validate_batch_finds_each_fault() -> None:
    good = make_trajectory()
    assert validate_batch([good]) == []
    broken = [
        replace(good, turns=good.turns[:1]),
        replace(good, status="errored"),
        replace(good, turns=(replace(good.turns[0], reward=math.inf), good.turns[1])),
        replace(good, turns=(replace(good.turns[0], span=1), good.turns[1])),
    ]
    problems = validate_batch(broken)
    assert {index for index, _ in problems} == {0, 1, 2, 3}
    text = " ".join(complaint for _, complaint in problems)
    assert "rows have [(0, 0), (0, 1)]" in text and "not finite" in text and "error is None" in text
    silent = replace(good, messages=tuple(m for m in good.messages if m.role != "assistant"))
    ((_, complaint),) = validate_batch([silent])
    assert complaint == "2 turns but 0 assistant messages"
    # An environment may speak as an assistant too.
    assert validate_batch([replace(good, messages=(*good.messages, Message("assistant", "x")))]) == []
