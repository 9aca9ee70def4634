"""The members of one seed: played side by side, failures retried, reported in member order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.episode import errored_trajectory
from llm_envs.sources.source import EpisodeSpec
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["check_group", "play_group", "play_member"]

Play = Callable[[EpisodeSpec], Awaitable[Trajectory]]
"""Plays one episode; raises only `CancelledError`, and an error that ends the run."""


def check_group(specs: Sequence[EpisodeSpec]) -> None:
    """Check that the specs are the members of one group.

    Raises:
        InvalidConfigError: If there are none, they differ in seed, environment or id, or a member appears twice.
    """
    if not specs:
        raise InvalidConfigError("a group without members: group_size must be at least 1.")
    for name in ("group_id", "env_id", "seed"):
        values = {getattr(spec, name) for spec in specs}
        if len(values) > 1:
            raise InvalidConfigError(f"group {specs[0].group_id!r}: its members differ in {name}: {sorted(values)}.")
    if len({spec.member for spec in specs}) < len(specs):
        raise InvalidConfigError(f"group {specs[0].group_id!r} has a member twice: {[s.member for s in specs]}.")


async def play_member(spec: EpisodeSpec, play: Play, *, max_retries: int = 2) -> Trajectory:
    """Play one episode; if it errors, replay it at most `max_retries` times.

    An episode whose judge failed (`JudgeError`) is unscored and is not replayed: the episode went well, and the judge
    has had its own retries. A retry has the same seeds, so after a transient failure it gives the same episode as
    without the failure. The number of retries, if any, is in `metadata["retries"]`.
    """
    trajectory = await _played(spec, play)
    for attempt in range(1, max_retries + 1):
        if trajectory.status != "errored":
            break
        trajectory = await _played(spec, play)
        trajectory = replace(trajectory, metadata={**trajectory.metadata, "retries": attempt})
    return trajectory


async def play_group(specs: Sequence[EpisodeSpec], play: Play, *, max_retries: int = 2) -> TrajectoryGroup:
    """Play the members of one group side by side and return them in member order."""
    check_group(specs)
    trajectories = await asyncio.gather(*(play_member(spec, play, max_retries=max_retries) for spec in specs))
    return TrajectoryGroup.of(trajectories)


async def _played(spec: EpisodeSpec, play: Play) -> Trajectory:
    try:
        return await play(spec)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # This task was not cancelled: a request inside the policy was cancelled and the exception leaked out. Treat it
        # as a failure.
        return errored_trajectory(spec, error, "policy")
