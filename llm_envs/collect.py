"""Collect data into a folder: play what is not there yet, keep each finished episode at once, go on after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llm_envs.errors import InvalidConfigError, RolloutFailedError
from llm_envs.policies.base import Policy
from llm_envs.reporting import Logger
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.source import Envs, EpisodeSpec, SeedSource, as_source, group_specs
from llm_envs.rollout.stats import CollectorStats
from llm_envs.rollout.store import MAX_LOG_BYTES, Key, TrajectoryWriter, finished, remaining
from llm_envs.tracking import EpisodeSample, log_collection
from llm_envs.types import RolloutError, SamplingParams, Trajectory

__all__ = ["CollectedRun", "collect_run", "run_settings", "watched"]

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
    n_failed: int = 0
    """How many of those this call played ended with an error, their own or their judge's: they are played anew when
    the run is resumed."""
    first_error: RolloutError | None = None
    """Of the first of those."""

    @property
    def n_finished(self) -> int:
        """How many of those asked for are there now; the others failed, and are played anew when resumed."""
        return self.n_before + self.stats.accepted - self.n_failed


def collect_run(
    envs: Envs | SeedSource,
    policy: Policy,
    *,
    out: str | Path,
    n_groups: int,
    group_size: int = 1,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    show: Show | None = None,
    logger: Logger | None = None,
    log_every_s: float = 10.0,
    max_log_bytes: int = MAX_LOG_BYTES,
    max_errors_in_a_row: int = 100,
    **collector: Any,
) -> CollectedRun:
    """Play groups of a mixture and keep every finished episode in a folder, and none of them in memory.

    Whatever ends this (a kill, Ctrl-C, an error), what was finished is in the folder, and the same call with
    `resume=True` plays exactly what is missing: episodes that failed are played anew, with a larger `n_groups` further
    groups are played.

    Args:
        envs: An environment id, a mixture, or a source; see `Collector`. A curriculum chooses by what it has learned
            before and learns nothing here: a resumed run is to play the same.
        policy: Any policy.
        out: The folder of the run; made if missing.
        n_groups: Groups in all.
        group_size: Episodes of each group's seed.
        resume: Go on with the run in the folder, if there is one. Everything that decides what is played must be the
            same as when it was begun.
        settings: What else decides it, such as a model's name, as JSON types: kept in the manifest and compared.
        show: Shows progress, for example `progress.live_progress`.
        logger: Gets `tracking.collection_metrics` while it goes on and at the end, with the number of finished
            episodes as the step; one of `tracking.tracker_logger`'s gets a sample of the episodes as a table, too.
        log_every_s: Seconds between two of its steps.
        max_log_bytes: See `TrajectoryWriter`.
        max_errors_in_a_row: After so many failed episodes with none between them that did not fail, the run stops.
        **collector: Everything else that `Collector` takes, but what chooses among finished groups: all are kept.

    Raises:
        StoreError: If the folder holds another run, or cannot be written to.
        RolloutFailedError: If nothing but errors came for too long; with the last one.
        InvalidConfigError: If a setting is wrong.
    """
    if n_groups < 0 or group_size < 1 or max_errors_in_a_row < 1:
        raise InvalidConfigError(
            f"{n_groups=}, {group_size=}, {max_errors_in_a_row=}: they must be at least 0, 1 and 1."
        )
    if unused := sorted({"group_filter", "over_sampling", "select_fn"} & collector.keys()):
        raise InvalidConfigError(f"{', '.join(unused)}: a collected run keeps every episode; choose when it is read.")
    collector = {"progress": False} | collector
    with Collector(envs, policy, **collector) as player:
        own = run_settings(envs, group_size=group_size, **collector)
        own |= {"policy": type(policy).__name__} | dict(settings or {})
        with TrajectoryWriter(out, settings=own, resume=resume, max_log_bytes=max_log_bytes) as writer:
            done = finished(writer.path)
            left = partial(_left, player.source, n_groups, group_size, done)
            n_episodes = n_groups * group_size
            n_left = sum(map(len, left())) if done else n_episodes
            keeper = _Keeper(writer, max_errors_in_a_row, player.on_trajectory)
            player.on_trajectory = keeper.keep
            with watched(player, n_episodes, n_episodes - n_left, show, logger, log_every_s):
                player.play_each(left(), n_episodes=n_left)
    n_before = n_episodes - n_left
    errors = keeper.n_failed, keeper.first_error
    return CollectedRun(writer.path, n_episodes, n_before, player.stats, writer.removed, *errors)


@contextmanager
def watched(
    player: Collector, total: int, done: int, show: Show | None, logger: Logger | None, log_every_s: float
) -> Iterator[None]:
    """Show and log how a collector goes on while the block lasts.

    Args:
        player: The collector; with a logger its `on_trajectory` keeps a sample of the episodes, too.
        total: Episodes in all.
        done: Episodes that were there before.
        show: Shows progress; None does not.
        logger: Gets the numbers; None is none.
        log_every_s: Seconds between two of its steps.
    """
    with ExitStack() as stack:
        if show is not None:
            stack.enter_context(show(player.stats, total, done))
        if logger is not None:
            sample, also = EpisodeSample(), player.on_trajectory

            def see(trajectory: Trajectory) -> None:
                if also is not None:
                    also(trajectory)
                sample.add(trajectory)

            player.on_trajectory = see
            stack.enter_context(log_collection(logger, player.stats, done, every_s=log_every_s, sample=sample))
        yield


def run_settings(
    envs: Envs | SeedSource,
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
    source = as_source(envs, seed=seed, env_kwargs=env_kwargs)
    state = source.state_dict()
    record: dict[str, Any] = {"envs": state["mixture"], "seed": seed, "group_size": group_size}
    plain: dict[str, Any] = {"seed": seed, "position": 0, "n_seeds": None, "shuffle": True, "curricula": {}}
    record |= {f"source.{name}": state[name] for name, value in plain.items() if state[name] != value}
    if any(fingerprint is not None for fingerprint in state["problems"]):
        record["source.problems"] = state["problems"]
    if history != "append":
        record["history"] = history
    for name, given in (("sampling", sampling or SamplingParams()), ("limits", limits or RolloutLimits())):
        plain_one = type(given)()
        for item in dataclasses.fields(given):
            value = getattr(given, item.name)
            if value != getattr(plain_one, item.name):
                record[f"{name}.{item.name}"] = value
    return record


def _left(source: SeedSource, n_groups: int, group_size: int, done: Collection[Key]) -> Iterator[Sequence[EpisodeSpec]]:
    """Yield what is left to play of a source's next groups, each worked out when it is asked for."""
    for index in range(source.position, source.position + n_groups):
        yield from remaining([group_specs(source.spec(index), group_size)], done)


class _Keeper:
    """Writes what is finished, and stops the run when nothing but errors comes."""

    def __init__(
        self, writer: TrajectoryWriter, max_errors_in_a_row: int, also: Callable[[Trajectory], None] | None
    ) -> None:
        self.n_failed = 0
        self.first_error: RolloutError | None = None
        self._writer, self._most, self._also, self._in_a_row = writer, max_errors_in_a_row, also, 0

    def keep(self, trajectory: Trajectory) -> None:
        self._writer.write(trajectory)
        if self._also is not None:
            self._also(trajectory)
        error = trajectory.error
        if error is None:
            self._in_a_row = 0
            return
        self.n_failed, self._in_a_row = self.n_failed + 1, self._in_a_row + 1
        self.first_error = self.first_error or error
        if self._in_a_row >= self._most:
            raise RolloutFailedError(
                f"{self._in_a_row} episodes in a row failed, the last in {error.where} with {error.kind}: "
                f"{error.message:.300}. The run was stopped; once that is mended, resume it: failed episodes are "
                "played anew."
            )
