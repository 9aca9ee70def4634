from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llm_envs.tracking import average_metrics, metric_totals, metrics_by, trajectory_metrics
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
    """As if one process had played them all: calls count as calls, and components where an episode has them."""
    calls = trajectory([1.0, 1.0], success=True, stop=StopReason.TERMINATED, calls=(True, False, False))
    one_call = trajectory([0.0], success=False, stop=StopReason.MAX_TURNS, calls=(True,))
    bare = replace(one_call, turns=(Turn(0.0, {}),))
    forked = replace(bare, rows=bare.rows * 3, metadata={"quirks": {"trailing_comma": 3}})
    failed = replace(bare, status="errored")
    parts = [[calls, one_call], [bare, bare, bare, failed], [forked], [failed]]
    merged = average_metrics([metric_totals(part) for part in parts])
    absent = {f"stop/{reason.value}" for reason in StopReason} - {"stop/terminated", "stop/max_turns"}
    assert {merged.pop(name) for name in absent} == {0.0}
    assert merged == trajectory_metrics([t for part in parts for t in part])
    assert merged["tool_success"] == 3 / 7 and merged["reward/answer"] == 1.0 and merged["forks"] == 2 / 6
    assert merged["quirks/trailing_comma"] == 3 / 6 and "quirks/dropped_call" not in merged


def test_episodes_are_summed_up_apart_by_label() -> None:
    won = trajectory([1.0], success=True, stop=StopReason.TERMINATED)
    lost = trajectory([0.0], success=False, stop=StopReason.TERMINATED)
    parts = metrics_by([won, lost, won], lambda t: ["all", "won" if t.is_success else "lost"])
    assert {label: (part["episodes"], part["success"]) for label, part in parts.items()} == {
        "all": (3.0, pytest.approx(2 / 3)),
        "won": (2.0, 1.0),
        "lost": (1.0, 0.0),
    }
    assert metrics_by([won, lost], lambda t: ["all"], metric_totals)["all"] == metric_totals([won, lost])
