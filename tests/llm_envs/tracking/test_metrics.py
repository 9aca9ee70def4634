from __future__ import annotations

import numpy as np
import pytest

from llm_envs.tracking import average_metrics, metrics_by, trajectory_metrics
from llm_envs.types import RolloutError, Row, StopReason, ToolResult, Trajectory, Turn


def trajectory(rewards: list[float], *, success: bool, stop: StopReason, calls: tuple[bool, ...] = ()) -> Trajectory:
    row = Row(np.arange(3, dtype=np.int32), np.array([False, True, True]), np.zeros(3, np.float32), ((1, 3),))
    results = tuple(ToolResult("calculator", {}, "1", success=ok) for ok in calls)
    turns = tuple(Turn(reward, {"answer": reward}, tool_results=results) for reward in rewards)
    values = ("llm/X-v0", {}, 0, "g", 0, (), (), (row,), turns, True, False, stop, "ok", success)
    return Trajectory(*values)


def test_means_are_over_the_scored_episodes_only() -> None:
    error = RolloutError("ValueError", "", "env.step")
    failed = Trajectory(
        "llm/X-v0", {}, 0, "g", 2, (), (), (), (), False, False, StopReason.ERROR, "errored", None, error
    )
    episodes = [
        trajectory([0.5, 0.5], success=True, stop=StopReason.TERMINATED, calls=(True, False)),
        trajectory([0.0], success=False, stop=StopReason.MAX_TURNS),
        failed,
    ]
    assert trajectory_metrics(episodes) == {
        "episodes": 3,
        "errored": 1,
        "success": 0.5,
        "reward": 0.5,
        "reward/answer": 0.5,
        "turns": 1.5,
        "sampled_tokens": 2,
        "tool_calls": 2,  # two calls in each of two turns of the first, none in the second
        "tool_success": 0.5,
        "stop/terminated": 0.5,
        "stop/max_turns": 0.5,
    }
    assert trajectory_metrics([failed]) == {"episodes": 1, "errored": 1}
    assert trajectory_metrics([]) == {"episodes": 0, "errored": 0}


def test_metrics_of_several_processes_are_merged() -> None:
    one = {"episodes": 4.0, "errored": 0.0, "success": 0.5, "stop/terminated": 1.0}
    two = {"episodes": 4.0, "errored": 2.0, "success": 1.0, "stop/max_turns": 1.0, "tool_success": 0.25}
    three = {"episodes": 4.0, "errored": 4.0}
    merged = average_metrics([one, two, three])
    absent = {f"stop/{reason.value}" for reason in StopReason} - {"stop/terminated", "stop/max_turns"}
    assert {merged.pop(name) for name in absent} == {0.0}
    assert merged == {
        "episodes": 12.0,
        "errored": 6.0,
        "success": pytest.approx((4 * 0.5 + 2 * 1.0) / 6),
        "stop/terminated": pytest.approx(4 / 6),
        "stop/max_turns": pytest.approx(2 / 6),
        "tool_success": 0.25,
    }


def test_episodes_are_summed_up_apart_by_label() -> None:
    won = trajectory([1.0], success=True, stop=StopReason.TERMINATED)
    lost = trajectory([0.0], success=False, stop=StopReason.TERMINATED)
    parts = metrics_by([won, lost, won], lambda t: ["all", "won" if t.is_success else "lost"])
    assert {label: (part["episodes"], part["success"]) for label, part in parts.items()} == {
        "all": (3.0, pytest.approx(2 / 3)),
        "won": (2.0, 1.0),
        "lost": (1.0, 0.0),
    }
