"""Collect data into a folder: play what is not there yet, keep each finished episode at once, go on after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.source import Envs, SeedSource, group_specs
from llm_envs.rollout.stats import CollectorStats
from llm_envs.rollout.store import MAX_LOG_BYTES, TrajectoryWriter, finished, remaining
from llm_envs.types import RolloutError, SamplingParams, Trajectory

__all__ = ["CollectedRun", "collect_run", "run_settings"]

Show = Callable[[CollectorStats, int, int], AbstractContextManager[None]]
"""(statistics, episodes in all, episodes that were there before) -> shows progress while the block lasts."""


@dataclass(frozen=True, slots=True)
class CollectedRun:
    """What is in the folder now, and what this call did."""

    path: Path
    n_episodes: int
    """How many were asked for."""
    n_before: int
    """How many of them were there already."""
    stats: CollectorStats
    """Of what this call played."""
    removed: str | None
    """A torn last line that a kill had left and this call removed."""
    first_error: RolloutError | None
    """Of the first episode that errored in this call."""

    @property
    def n_finished(self) -> int:
        """How many of those asked for are there now; the others errored, and are played anew when resumed."""
        return self.n_before + self.stats.accepted - self.stats.errored


def collect_run(
    envs: Envs,
    policy: Policy,
    *,
    out: str | Path,
    n_groups: int,
    group_size: int = 1,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    show: Show | None = None,
    max_log_bytes: int = MAX_LOG_BYTES,
    **collector: Any,
) -> CollectedRun:
    """Play groups of a mixture and keep every finished episode in a folder.

    Whatever ends this (a kill, Ctrl-C, an error), what was finished is in the folder, and the same call with
    `resume=True` plays exactly what is missing: episodes that errored are played anew, with a larger `n_groups` further
    groups are played.

    Args:
        envs: An environment id, or a mixture; see `Collector`.
        policy: Any policy.
        out: The folder of the run; made if missing.
        n_groups: Groups in all.
        group_size: Episodes of each group's seed.
        resume: Go on with the run in the folder, if there is one. Everything that decides what is played must be the
            same as when it was begun.
        settings: What else decides it, such as a model's name, as JSON types: kept in the manifest and compared.
        show: Shows progress, for example `reporting.live_progress`.
        max_log_bytes: See `TrajectoryWriter`.
        **collector: Everything else that `Collector` takes.

    Raises:
        StoreError: If the folder holds another run, or cannot be written to.
        InvalidConfigError: If a setting is wrong.
    """
    if n_groups < 0:
        raise InvalidConfigError(f"n_groups is {n_groups!r}; it must be at least 0.")
    collector = {"progress": False} | collector
    with Collector(envs, policy, **collector) as player:
        own = run_settings(envs, group_size=group_size, **collector)
        own |= {"policy": type(policy).__name__} | dict(settings or {})
        groups = [group_specs(spec, group_size) for spec in player.source.take(n_groups)]
        with TrajectoryWriter(out, settings=own, resume=resume, max_log_bytes=max_log_bytes) as writer:
            left = remaining(groups, finished(writer.path))
            n_episodes, n_left = n_groups * group_size, sum(map(len, left))
            errors: list[RolloutError] = []

            def keep(trajectory: Trajectory) -> None:
                writer.write(trajectory)
                if trajectory.error is not None and not errors:
                    errors.append(trajectory.error)

            player.on_trajectory = keep
            display = nullcontext() if show is None else show(player.stats, n_episodes, n_episodes - n_left)
            with display:
                player.play(left)
    first_error = errors[0] if errors else None
    return CollectedRun(writer.path, n_episodes, n_episodes - n_left, player.stats, writer.removed, first_error)


def run_settings(
    envs: Envs,
    *,
    group_size: int = 1,
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    sampling: SamplingParams | None = None,
    limits: RolloutLimits | None = None,
    history: str = "append",
    **others: Any,
) -> dict[str, Any]:
    """Return what decides which episodes are played and how, as a flat record of JSON types for the manifest.

    What has its default value is left out, so that a setting that a later version brings does not make a run another
    one. What changes only the speed (`max_concurrency`, ...) is not in it, nor is a context function, which has no
    name: say it in `settings`.
    """
    mixture = [[choice.env_id, choice.weight, dict(choice.kwargs)] for choice in _choices(envs, env_kwargs)]
    record: dict[str, Any] = {"envs": mixture, "seed": seed, "group_size": group_size}
    if history != "append":
        record["history"] = history
    for name, given in (("sampling", sampling or SamplingParams()), ("limits", limits or RolloutLimits())):
        plain = type(given)()
        for item in dataclasses.fields(given):
            value = getattr(given, item.name)
            if value != getattr(plain, item.name):
                record[f"{name}.{item.name}"] = value
    return record


def _choices(envs: Envs, env_kwargs: Mapping[str, Any] | None) -> Any:
    return SeedSource(envs, env_kwargs=env_kwargs).choices
