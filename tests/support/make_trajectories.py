"""Trajectories and groups made by hand, for tests of what only looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_envs.types import Message, RolloutError, StopReason, Trajectory, TrajectoryGroup, Turn, VersionSpan

__all__ = ["make_group", "make_trajectory"]


def make_trajectory(
    reward: float | None, words: str = "a", *, member: int = 0, truncated: bool = False, versions: Sequence[int] = (),
    metadata: dict[str, Any] | None = None,
) -> Trajectory:  # fmt: skip
    """Return a trajectory of one turn (or one a version, of 10 tokens each) with this reward; None is an error."""
    spans = [VersionSpan(0, 10, version) for version in versions]
    turns = tuple(
        Turn((reward or 0.0) / max(len(spans), 1), {"r": reward or 0.0}, weight_versions=(span,)) for span in spans
    ) or (Turn(reward or 0.0, {"r": reward or 0.0}),)
    return Trajectory(
        env_id="x/Y-v0", env_kwargs={}, seed=1, group_id="g", member=member,
        messages=(Message("user", "ask"), Message("assistant", words)), tools=(), rows=(), turns=turns,
        terminated=not truncated, truncated=truncated,
        stop_reason=StopReason.TERMINATED if reward is not None else StopReason.ERROR,
        status="ok" if reward is not None else "errored", is_success=None if reward is None else reward > 0,
        error=None if reward is not None else RolloutError("E", "m", "env.step"), metadata=metadata or {},
    )  # fmt: skip


def make_group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup("g", "x/Y-v0", 1, tuple(trajectories))
