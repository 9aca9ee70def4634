"""The collector: plays groups of episodes continuously, with no barrier between them.

Invariants, tested under random latency, failure and cancellation:

1. Every admitted episode is emitted exactly once (as a trajectory, to `on_trajectory` and into its group) or dropped by
   a cancellation.
2. `running + accepted + dropped == submitted`, always; after a call, `running == 0`.
3. Nothing is left running when a call ends, however it ends.
4. Episodes are admitted in the order of submission, at most `max_concurrency` at once; groups are returned in that
   order, members in member order.
5. No two groups of a call share an id; a source's groups have ids of their own across calls.
6. With a deterministic policy the same specs give the same trajectories at any concurrency.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.registration import task_spec
from llm_envs.rollout.context import Codec, ContextFn
from llm_envs.rollout.episode import play_episode, policy_kind
from llm_envs.rollout.group import assemble_group, check_group, play_member
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.progress import Progress, show_progress
from llm_envs.rollout.source import Envs, EpisodeSpec, SeedSource, group_specs
from llm_envs.rollout.stats import CollectorStats
from llm_envs.rollout.sync import SyncRunner
from llm_envs.rollout.tape import History, Tape
from llm_envs.types import SamplingParams, Trajectory, TrajectoryGroup

__all__ = ["Collector"]


class Collector:
    """Plays environments with a policy and returns trajectories in groups of one seed.

    Args:
        envs: An environment id, `{id: weight}`, a sequence of ids, or a function that makes an environment.
        policy: A token, chat or env policy.
        codec: Messages to token ids; a token policy needs one.
        env_kwargs: Keyword arguments of every environment (`split`, `difficulty`, ...).
        sampling: How the policy samples.
        limits: Budgets of an episode.
        history: "append", the model sees its own earlier words exactly as it wrote them, in one row; "template", it
            sees what the chat template makes of them, in further rows where that differs.
        context_fn: Chooses which messages the model sees; what differs from what it saw begins a new row.
        seed: Run seed: decides environments, their seeds and the seeds of sampling.
        max_concurrency: Episodes at once, over all calls that run in one event loop.
        max_retries: How often an errored episode is played anew.
        progress: True shows a bar on a terminal (nothing elsewhere), False nothing; or a function (see `Progress`).
        on_trajectory: Called with each finished trajectory at once, in the order of finishing:
            `TrajectoryWriter.write`. What it raises ends the call.

    Raises:
        InvalidConfigError: If a setting is wrong, or the policy needs a codec.
        UnknownTaskError: If no environment has the id; names close ones.
    """

    def __init__(
        self,
        envs: Envs,
        policy: Policy,
        *,
        codec: Codec | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling: SamplingParams | None = None,
        limits: RolloutLimits | None = None,
        history: History = "append",
        context_fn: ContextFn | None = None,
        seed: int = 0,
        max_concurrency: int = 64,
        max_retries: int = 2,
        progress: bool | Progress = True,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> None:
        if max_concurrency < 1:
            raise InvalidConfigError(f"max_concurrency is {max_concurrency!r}; it must be at least 1.")
        if max_retries < 0:
            raise InvalidConfigError(f"max_retries is {max_retries!r}; it must be at least 0.")
        policy_kind(policy, codec)
        Tape(codec, history)
        self.source = SeedSource(envs, seed=seed, env_kwargs=env_kwargs)
        for choice in self.source.choices:  # a wrong id, split or difficulty is said here, not in every episode
            if choice.factory is None:
                task_spec(choice.env_id)
            self._make(EpisodeSpec(choice.env_id, choice.kwargs)).close()
        self.policy, self.codec, self.seed = policy, codec, seed
        self.sampling, self.limits = sampling or SamplingParams(), limits or RolloutLimits()
        self.history, self.context_fn = history, context_fn
        self.max_concurrency, self.max_retries = max_concurrency, max_retries
        self.progress, self.on_trajectory = progress, on_trajectory
        self.stats = CollectorStats()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._sync: SyncRunner | None = None

    def collect(self, n_groups: int, group_size: int = 1) -> list[TrajectoryGroup]:
        """Play the next `n_groups` groups of the source; waits until all are done. Works in a notebook too."""
        return self._run(partial(self.acollect, n_groups, group_size))

    async def acollect(self, n_groups: int, group_size: int = 1) -> list[TrajectoryGroup]:
        """Play the next `n_groups` groups of the source."""
        if n_groups < 0 or group_size < 1:
            raise InvalidConfigError(f"{n_groups=}, {group_size=}: they must be at least 0 and 1.")
        groups = (group_specs(spec, group_size) for spec in self.source.take(n_groups))
        return await self._play_all(groups, n_groups, n_groups * group_size)

    def play(self, groups: Sequence[Sequence[EpisodeSpec]]) -> list[TrajectoryGroup]:
        """Play these groups, each given as the specs of its members; waits for all, returns them in order."""
        return self._run(partial(self.aplay, groups))

    async def aplay(self, groups: Sequence[Sequence[EpisodeSpec]]) -> list[TrajectoryGroup]:
        """Do what `play` does, from asynchronous code."""
        for specs in groups:
            check_group(specs)
        ids = [specs[0].group_id for specs in groups]
        if len(set(ids)) < len(ids):
            raise InvalidConfigError(f"groups share an id: {sorted({i for i in ids if ids.count(i) > 1})[:5]}.")
        return await self._play_all(groups, len(groups), sum(map(len, groups)))

    def close(self) -> None:
        """Close the event loop of the synchronous calls. The policy is yours to close."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    def __enter__(self) -> Collector:
        """Return the collector; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the collector."""
        self.close()

    def _run(self, function: Callable[[], Coroutine[Any, Any, list[TrajectoryGroup]]]) -> list[TrajectoryGroup]:
        if self._sync is None:
            self._sync = SyncRunner()
        return self._sync.run(function)

    async def _play_all(
        self, groups: Iterable[Sequence[EpisodeSpec]], n_groups: int, n_episodes: int
    ) -> list[TrajectoryGroup]:
        """Play all groups; return them in the given order.

        A player takes the next episode the moment its last one ends. With a turn of the event loop between the two,
        episodes that end together would begin together again, and so stay bunched for ever.
        """
        queue = ((index, spec) for index, specs in enumerate(groups) for spec in specs)
        done: list[list[Trajectory]] = [[] for _ in range(n_groups)]
        with self._clock(), show_progress(self.progress, self.stats, n_episodes) as show:
            try:
                async with asyncio.TaskGroup() as players:
                    for _ in range(min(self.max_concurrency, n_episodes)):
                        players.create_task(self._play_next(queue, done, show))
            except BaseExceptionGroup as group:  # the first is what went wrong; the others fell with it
                raise group.exceptions[0] from None
            return [assemble_group(trajectories) for trajectories in done]

    async def _play_next(
        self, queue: Iterator[tuple[int, EpisodeSpec]], done: list[list[Trajectory]], show: Callable[[], None]
    ) -> None:
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_concurrency))
        for index, spec in queue:
            async with slots:  # first come, first served, among the calls that run side by side
                done[index].append(await self._episode(spec))
                show()

    async def _episode(self, spec: EpisodeSpec) -> Trajectory:
        """Admit one episode, play and emit it; nothing is awaited between emission and account."""
        self.stats.submitted += 1
        self.stats.running += 1
        is_emitted = False
        try:
            trajectory = await play_member(spec, self._play, max_retries=self.max_retries)
            if self.on_trajectory is not None:
                self.on_trajectory(trajectory)
            is_emitted = True
        finally:
            self.stats.running -= 1
            if not is_emitted:
                self.stats.dropped += 1
        self.stats.add(trajectory)
        return trajectory

    @contextmanager
    def _clock(self) -> Iterator[None]:
        if self.stats.started is not None:  # a call beside another one: that one's clock runs
            yield
            return
        self.stats.started = time.perf_counter()
        try:
            yield
        finally:
            self.stats.seconds, self.stats.started = self.stats.elapsed_s, None

    async def _play(self, spec: EpisodeSpec) -> Trajectory:
        return await play_episode(
            partial(self._make, spec),
            spec,
            self.policy,
            codec=self.codec,
            sampling=self.sampling,
            limits=self.limits,
            history=self.history,
            context_fn=self.context_fn,
            run_seed=self.seed,
        )

    def _make(self, spec: EpisodeSpec) -> gym.Env[str, str]:
        factory = self.source.factories.get(spec.env_id)
        if factory is not None:
            return factory(**spec.env_kwargs)
        # Neither by name nor with the passive checker: both take as long as all the rest. The episode checks what it
        # relies on itself, and `llm-envs check` the whole contract.
        known = gym.registry.get(spec.env_id, spec.env_id)
        return gym.make(known, disable_env_checker=True, **spec.env_kwargs)
