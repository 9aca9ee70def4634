from __future__ import annotations

import numpy as np

from llm_envs.metrics import trajectory_metrics
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
