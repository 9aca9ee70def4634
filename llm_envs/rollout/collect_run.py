"""Collect data into a folder: play the missing episodes, write each one when it is finished, resume after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llm_envs.data.shards import Shard
from llm_envs.data.writer import MAX_LOG_BYTES, UPLOAD_EVERY_S, EpisodeKey, finished_keys, open_writer, remaining
from llm_envs.errors import InvalidConfigError, RolloutFailedError
from llm_envs.policies.base import Policy
from llm_envs.rollout.collector import Collector
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.sources.source import Envs, EpisodeSpec, SeedSource, as_source, group_specs
from llm_envs.tracking.live import collector_facts, live_file
from llm_envs.tracking.loggers import Logger
from llm_envs.tracking.run_logger import EpisodeSample, log_collection
from llm_envs.tracking.stats import CollectorStats
from llm_envs.types import RolloutError, SamplingParams, Trajectory

__all__ = ["CollectedRun", "collect_run", "run_settings", "watched"]

Show = Callable[[CollectorStats, int, int], AbstractContextManager[None]]
"""(statistics, total episodes, episodes already in the folder) -> shows progress while the block lasts."""


@dataclass(frozen=True, slots=True)
class CollectedRun:
    """The contents of the folder after a call, and the result of the call."""

    path: Path
    n_episodes: int
    """How many episodes were asked for."""
    n_before: int
    """How many of them were already in the folder."""
    stats: CollectorStats
    """Statistics of the episodes that this call played."""
    removed: str | None
    """A torn last line, left by a kill, that this call removed."""
    n_failed: int = 0
    """How many of this call's episodes ended with their own error or their judge's. Resuming replays them."""
    first_error: RolloutError | None = None
    """The first of those errors."""

    @property
    def n_finished(self) -> int:
        """How many of the episodes asked for are finished; the failed ones are replayed when the run is resumed."""
        return self.n_before + self.stats.accepted - self.n_failed


def collect_run(
    envs: Envs | SeedSource,
    policy: Policy,
    *,
    out: str | Path,
    n_groups: int,
    group_size: int = 1,
    resume: bool = False,
    shard: Shard | None = None,
    settings: Mapping[str, Any] | None = None,
    show: Show | None = None,
    logger: Logger | None = None,
    log_every_s: float = 10.0,
    max_log_bytes: int = MAX_LOG_BYTES,
    upload_every_s: float = UPLOAD_EVERY_S,
    max_errors_in_a_row: int = 100,
    make_collector: Callable[..., Collector] = Collector,
    **collector: Any,
) -> CollectedRun:
    """Play groups of a mixture and write every finished episode to a folder, without keeping any in memory.

    However this ends (a kill, Ctrl-C, an error), finished episodes are in the folder. The same call with `resume=True`
    plays exactly the missing ones: failed episodes are replayed, and a larger `n_groups` adds groups.

    Args:
        envs: An environment id, a mixture, or a source; see `Collector`. A curriculum uses its earlier state and does
            not learn here, so that a resumed run plays the same episodes.
        policy: Any policy.
        out: The folder of the run; created if missing. It may be on object storage, such as "s3://bucket/runs/a".
        n_groups: Total number of groups.
        group_size: Episodes of each group's seed.
        resume: Continue the run in the folder, if there is one. All settings that decide which episodes are played must
            be the same as at its start.
        shard: Play only the groups of this shard; the others are other calls', perhaps on other machines, with other
            folders. `merge_runs` joins them. The number of groups then cannot grow on resume.
        settings: Further settings that decide it, such as a model's name, as JSON types. They are stored in the
            manifest and compared on resume.
        show: Shows progress, for example `progress.live_progress`.
        logger: Gets `tracking.collection_metrics` during the run and at its end, with the number of finished episodes
            as the step. A logger from `tracking.tracker_logger` also gets a sample of the episodes as a table.
        log_every_s: Seconds between two of its steps.
        max_log_bytes: See `TrajectoryWriter`.
        upload_every_s: For a folder on object storage: seconds between two uploads.
        max_errors_in_a_row: The run stops after this many failed episodes in a row.
        make_collector: Makes the collector; `RayCollector`, perhaps with some of its arguments, takes as `policy` the
            function that makes an actor's.
        **collector: All other arguments of `Collector`, except those that choose among finished groups: all are kept.

    Raises:
        StoreError: If the folder holds another run, or cannot be written to.
        RolloutFailedError: If too many episodes in a row failed. The message has the last error.
        InvalidConfigError: If a setting is wrong.
    """
    if n_groups < 0 or group_size < 1 or max_errors_in_a_row < 1:
        raise InvalidConfigError(
            f"{n_groups=}, {group_size=}, {max_errors_in_a_row=}: they must be at least 0, 1 and 1."
        )
    if unused := sorted({"group_filter", "over_sampling", "select_fn"} & collector.keys()):
        raise InvalidConfigError(f"{', '.join(unused)}: a collected run keeps every episode; filter when reading it.")
    collector = {"progress": False} | collector
    # The collector comes first: it refuses wrong settings before the writer creates the folder.
    with make_collector(envs, policy, **collector) as active:
        own = run_settings(envs, group_size=group_size, **collector)
        own |= {"policy": active.policy_name} | dict(settings or {})
        own |= {} if shard is None else shard.settings(n_groups)
        indices = range(n_groups) if shard is None else shard.groups(n_groups)
        sizes: dict[str, Any] = {"max_log_bytes": max_log_bytes, "upload_every_s": upload_every_s}
        with open_writer(out, settings=own, resume=resume, **sizes) as writer:
            # After the writer has opened the folder: it locks it and removes a torn last line.
            done = finished_keys(writer.path)
            # A function, because the specs are generated twice (counted, then played) and never held in memory.
            left = partial(_left, active.source, indices, group_size, done)
            n_episodes = len(indices) * group_size
            n_left = sum(map(len, left())) if len(done) else n_episodes
            saver = _EpisodeSaver(writer.write, max_errors_in_a_row, active.on_trajectory)
            active.on_trajectory = saver.save
            # After `save` is set, because `watched` may wrap `on_trajectory` once more.
            before = n_episodes - n_left

            def facts() -> dict[str, Any]:
                return {"kind": "episodes", "before": before, "total": n_episodes} | collector_facts(active.stats)

            with live_file(writer.path, facts), watched(active, n_episodes, before, show, logger, log_every_s):
                active.play_each(left(), n_episodes=n_left)
    errors = saver.n_failed, saver.first_error
    return CollectedRun(writer.path, n_episodes, before, active.stats, writer.removed, *errors)


@contextmanager
def watched(
    collector: Collector, total: int, done: int, show: Show | None, logger: Logger | None, log_every_s: float
) -> Iterator[None]:
    """Show and log a collector's progress while the block lasts.

    Args:
        collector: The collector; with a logger, its `on_trajectory` also keeps a sample of the episodes.
        total: Total number of episodes.
        done: Episodes that were already in the folder.
        show: Shows progress, if given.
        logger: Gets the numbers, if given.
        log_every_s: Seconds between two of its steps.
    """
    with ExitStack() as stack:
        if show is not None:
            stack.enter_context(show(collector.stats, total, done))
        if logger is not None:
            sample, also = EpisodeSample(), collector.on_trajectory

            def see(trajectory: Trajectory) -> None:
                if also is not None:
                    also(trajectory)
                sample.add(trajectory)

            collector.on_trajectory = see
            stack.enter_context(log_collection(logger, collector.stats, done, every_s=log_every_s, sample=sample))
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
    """Return the settings that decide which episodes are played and how, as a flat JSON record for the manifest.

    Settings with their default value are left out, so a setting that a later version adds does not change an old run.
    Settings that affect only the speed (`max_concurrency`, ...) are left out too. A context function has no name to
    record: add one to `settings`.
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
    for name, part in (("sampling", sampling or SamplingParams()), ("limits", limits or RolloutLimits())):
        plain_one = type(part)()
        for item in dataclasses.fields(part):
            value = getattr(part, item.name)
            if value != getattr(plain_one, item.name):
                record[f"{name}.{item.name}"] = value
    return record


def _left(
    source: SeedSource, indices: Iterable[int], group_size: int, done: Container[EpisodeKey]
) -> Iterator[Sequence[EpisodeSpec]]:
    """Yield the missing specs of a source's groups, counted from its position, when they are asked for."""
    # `spec` and not `take`, which would advance the source: counting and playing must see the same groups.
    for index in indices:
        yield from remaining([group_specs(source.spec(source.position + index), group_size)], done)


class _EpisodeSaver:
    """Writes finished episodes, and stops the run after too many errors in a row."""

    def __init__(
        self,
        write: Callable[[Trajectory], None],
        max_errors_in_a_row: int,
        also: Callable[[Trajectory], None] | None,
    ) -> None:
        self.n_failed = 0
        self.first_error: RolloutError | None = None
        self._write, self._most, self._also, self._in_a_row = write, max_errors_in_a_row, also, 0

    def save(self, trajectory: Trajectory) -> None:
        # Write first: if the caller's own function raises, the episode is not lost.
        self._write(trajectory)
        if self._also is not None:
            self._also(trajectory)
        error = trajectory.error
        if error is None:
            self._in_a_row = 0
            return
        self.n_failed, self._in_a_row = self.n_failed + 1, self._in_a_row + 1
        self.first_error = self.first_error or error
        # The collector calls this as `on_trajectory`, where an exception ends the call.
        if self._in_a_row >= self._most:
            raise RolloutFailedError(
                f"{self._in_a_row} episodes in a row failed, the last in {error.where} with {error.kind}: "
                f"{error.message:.300}. The run was stopped. Fix the cause and resume the run: it replays failed "
                "episodes."
            )
