"""The collector: plays groups of episodes continuously, with no barrier between them.

Invariants, tested under random latency, failure and cancellation:

1. Every admitted episode is either emitted exactly once (as a trajectory, to `on_trajectory` and into its group) or
   dropped by a cancellation.
2. `running + partials + accepted + dropped == submitted`, always; after a call, `running == 0`.
3. When a call ends, even with an error, nothing is still running. With over-sampling, unfinished episodes wait at a
   closed gate, with their environments and tokens, until the next call or `close`.
4. Episodes are admitted in the order of submission, at most `max_concurrency` concurrently. Groups are returned in that
   order, members in member order. A group that the filter drops frees its slot immediately.
5. No two groups of a call share an id; a source never repeats a group id across calls.
6. With a deterministic policy, the same specs give the same trajectories at any concurrency, and the same groups pass
   the filter. Over-sampling is the exception: it takes the groups that finish first.
7. The source's curriculum learns from every finished group of the source, dropped ones included, in the order of
   submission: at the end of a call of `collect`, or when a stream reaches the group. So the episodes that a call of
   `collect` plays do not depend on its own results, and a stream's episodes depend only on how many groups may be open.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from llm_envs.chat.context import Codec, ContextFn
from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.processes.garbage import rare_collections
from llm_envs.registration import task_spec
from llm_envs.rollout.concurrency import AUTO, AutoConcurrency, Concurrency, EpisodeSlots, most_of
from llm_envs.rollout.episode import play_episode, policy_kind
from llm_envs.rollout.episode_player import EpisodePlayer, own_player
from llm_envs.rollout.episode_pool import CarryOver, EpisodePool
from llm_envs.rollout.filters import GroupFilter, SelectFn, select
from llm_envs.rollout.group import check_group, play_member
from llm_envs.rollout.group_tracker import GroupTracker, Ticket, groups_to_admit
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.rollout.staleness import DISPATCH_VERSION, weight_version_of
from llm_envs.rollout.sync import SyncRunner
from llm_envs.rollout.token_transcript import History, TokenTranscript
from llm_envs.rollout.workers.pool import WorkerPool
from llm_envs.rollout.workers.remote import EnvServers
from llm_envs.rollout.workers.runner import EnvMaker, check_made
from llm_envs.sources.source import Envs, EpisodeSpec, SeedSource, as_source, group_specs
from llm_envs.tracking.progress import Progress, show_progress
from llm_envs.tracking.spans import episode_span
from llm_envs.tracking.stats import CollectorStats, nothing_passes
from llm_envs.types import SamplingParams, Trajectory, TrajectoryGroup

__all__ = ["Collector"]


class Collector(AbstractContextManager["Collector"]):
    """Plays environments with a policy and returns trajectories in groups of one seed.

    Args:
        envs: An environment id, `{id: weight}`, a sequence of ids, a function that makes an environment (or an
            `EpisodePlayer`), or a source (`SeedSource`, `PromptSource`), which brings its own `seed` and `env_kwargs`.
        policy: A token, chat or env policy.
        codec: Messages to token ids; a token policy needs one.
        env_kwargs: Keyword arguments of every environment (`split`, `difficulty`, ...).
        sampling: How the policy samples.
        limits: Budgets of an episode.
        history: "append": the model sees its earlier replies exactly as it wrote them, in one row. "template": it sees
            them as the chat template renders them, in a new row where that differs.
        context_fn: Chooses which messages the model sees. A new row begins where the model sees a changed history.
        seed: Run seed: decides environments, their seeds and the seeds of sampling.
        max_concurrency: Concurrent episodes, over all calls that run in one event loop; "auto": see `concurrency`.
        workers: Number of worker processes for environments, each with one episode at a time. A worker that hangs
            longer than `limits.max_step_s` is killed and replaced; a crash fails only its episode. 0: no processes.
        env_servers: Addresses ("host:port") of `llm-envs serve-envs`, which have the workers; `workers=0`: all.
        max_retries: How often an errored episode is replayed. After a judge's failure (`JudgeError`) an episode is
            unscored and not replayed; its group counts as one with an errored member.
        fail_fast: Drop and replace a group as soon as one of its members cannot be scored. Otherwise the group is
            returned with that member errored. (`create_min_scored_filter` is a middle way.)
        group_filter: Which groups are returned (see `rollout.filters`, or your own). Dropped groups are replaced.
        max_refills: How many groups may be played for each wanted one before the call fails.
        over_sampling: At 1.5, the call starts 50% more groups than it needs and ends when enough are finished. The
            rest waits for the next call; unfinished episodes keep their tokens.
        select_fn: Which of the groups that passed the filter `collect` returns (`filters.create_selection`, or yours).
            Keeping the best of more biases the data, and every figure measured on it; see `rollout.filters`.
        select_from: With `select_fn`, candidate groups per wanted group. All are played and go to `on_trajectory`.
        progress: True shows a bar on a terminal (nothing elsewhere), False nothing; or a function (see `Progress`).
        on_trajectory: Called with each finished trajectory (`TrajectoryWriter.write`). Its exceptions end the call.

    Raises:
        InvalidConfigError: If a setting is wrong, or the policy needs a codec.
        UnknownTaskError: If no environment has the id. The message suggests similar ids.
    """

    def __init__(
        self,
        envs: Envs | SeedSource,
        policy: Policy,
        *,
        codec: Codec | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        sampling: SamplingParams | None = None,
        limits: RolloutLimits | None = None,
        history: History = "append",
        context_fn: ContextFn | None = None,
        seed: int = 0,
        max_concurrency: Concurrency = 64,
        workers: int = 0,
        env_servers: Sequence[str] = (),
        max_retries: int = 2,
        fail_fast: bool = False,
        group_filter: GroupFilter | None = None,
        max_refills: int = 10,
        over_sampling: float = 1.0,
        select_fn: SelectFn | None = None,
        select_from: float = 2.0,
        progress: bool | Progress = True,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> None:
        if min(workers, max_retries) < 0:
            raise InvalidConfigError(f"{workers=}, {max_retries=}: they must be at least 0.")
        if not (1 <= over_sampling < math.inf and max_refills >= 1 and 1 <= select_from < math.inf):
            raise InvalidConfigError(f"{over_sampling=}, {max_refills=}, {select_from=}: finite, and at least 1.")
        policy_kind(policy, codec, context_fn)
        TokenTranscript(codec, history)
        self.source = as_source(envs, seed=seed, env_kwargs=env_kwargs)
        for choice in self.source.choices:  # report a wrong id, split or difficulty once, not in every episode
            if choice.factory is None:
                task_spec(choice.env_id)
        servers = EnvServers(env_servers) if env_servers else None
        self._pool = WorkerPool(workers, servers) if workers or servers else None
        self.workers = 0 if self._pool is None else self._pool.n_workers
        for factory in self.source.factories.values():
            if isinstance(factory, EpisodePlayer):
                factory.check_play(policy, codec, context_fn, self._pool)
        self._check_envs()
        self.policy, self.codec, self.seed = policy, codec, seed
        self.policy_name = type(policy).__name__
        self.sampling, self.limits = sampling or SamplingParams(), limits or RolloutLimits()
        self.history, self.context_fn = history, context_fn
        self.group_filter, self.fail_fast, self.max_refills = group_filter, fail_fast, max_refills
        self.select_fn, self.select_from = select_fn, select_from
        self.max_retries, self.over_sampling = max_retries, over_sampling
        self.progress, self.on_trajectory = progress, on_trajectory
        self.stats = CollectorStats()
        self.stats.open_tokens = lambda: getattr(policy, "n_open_tokens", 0)
        # Each episode occupies a worker, so episodes beyond `workers` would only wait for one.
        self._most = min(most_of(max_concurrency), self.workers or sys.maxsize)
        self._auto = AutoConcurrency(self.stats, policy, self._most) if max_concurrency == AUTO else None
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, EpisodeSlots] = weakref.WeakKeyDictionary()
        self._sync: SyncRunner | None = None
        self._carry_over: CarryOver | None = None
        self._show_now: Callable[[], None] = lambda: None

    @property
    def max_concurrency(self) -> int:
        """Concurrent episodes; with "auto", the current number."""
        return self._most if self._auto is None else self._auto.state.limit

    def collect(self, n_groups: int, group_size: int = 1) -> list[TrajectoryGroup]:
        """Play the next `n_groups` groups of the source; waits until all are done. Works in a notebook too."""
        return self._runner().run(partial(self.acollect, n_groups, group_size))

    async def acollect(self, n_groups: int, group_size: int = 1) -> list[TrajectoryGroup]:
        """Play the next `n_groups` groups of the source."""
        if n_groups < 0 or group_size < 1:
            raise InvalidConfigError(f"{n_groups=}, {group_size=}: they must be at least 0 and 1.")
        n_candidates = n_groups if self.select_fn is None else math.ceil(n_groups * self.select_from)
        if self.over_sampling > 1:
            groups = await self._over_sample(n_candidates, group_size)
        else:
            groups = await self._gather(self._supply(group_size), n_candidates, group_size, self.group_filter)
        if self.select_fn is None:
            return groups
        self.stats.rejected_groups += n_candidates - n_groups
        return select(self.select_fn, groups, n_groups)

    def stream(self, group_size: int = 1, **settings: Any) -> Iterator[TrajectoryGroup]:
        """Yield groups as they are finished, in the order of submission: `astream` for synchronous code.

        Episodes make progress only while you wait for the next group.
        """
        yield from self._runner().each(self.astream(group_size, **settings))

    async def astream(
        self,
        group_size: int = 1,
        *,
        n_groups: int | None = None,
        max_open: int | None = None,
        capacity_fn: Callable[[int, int, int], int] | None = None,
    ) -> AsyncGenerator[TrajectoryGroup, None]:
        """Yield groups as they are finished, in the order of submission, while others are still running.

        Raises `RolloutFailedError` after `max_refills` × (number of open groups) dropped groups in a row.

        Args:
            group_size: Members per group.
            n_groups: How many groups; None is endless. Leaving the loop cancels the running episodes.
            max_open: Groups that are running or waiting to be taken; None is twice what fills `max_concurrency`. With
                "auto" and a curriculum, give it: the number of open groups decides what the curriculum has learned.
            capacity_fn: (groups taken, groups waiting, groups running) -> how many may begin now. Replaces `max_open`,
                for example with `staleness.admission_capacity` bound to the current version of the weights.
        """
        if group_size < 1 or (n_groups is not None and n_groups < 0) or (max_open is not None and max_open < 1):
            raise InvalidConfigError(f"{group_size=}, {n_groups=}, {max_open=}: at least 1, 0 and 1.")
        if self.select_fn is not None:
            raise InvalidConfigError("select_fn needs all groups of a call; it does not work with a stream.")

        def most_open() -> int:
            return max_open or 2 * -(-self.max_concurrency // group_size)

        capacity = capacity_fn or (lambda taken, waiting, under_way: most_open() - waiting - under_way)
        # Specs are drawn only when they are admitted: a curriculum chooses with what it has learned until then.
        drawn: deque[EpisodeSpec] = deque()
        supply = iter(lambda: group_specs(drawn.popleft(), group_size), ())
        pool = self._episode_pool(GroupTracker(supply), lambda: None)
        waiting: dict[int, tuple[TrajectoryGroup, bool]] = {}  # index -> (group, whether it passed the filter)
        n_taken, n_dropped, index = 0, 0, 0
        with self.stats.clock, rare_collections():
            try:
                while n_groups is None or n_taken < n_groups:
                    n_waiting = sum(stays for _, stays in waiting.values()) + pool.n_waiting
                    n_open = pool.tracker.n_open
                    room = capacity(n_taken, n_waiting, n_open)
                    still = room if n_groups is None else n_groups - n_taken - n_waiting - n_open
                    drawn.extend(self.source.take(max(min(room, still), 0)))
                    pool.admit(min(room, still), group_size)
                    if index not in waiting:
                        finished = await pool.next_group()
                        if finished is None:
                            raise InvalidConfigError(
                                f"the stream cannot start a group: capacity_fn returned {room}, with {n_taken} taken "
                                "and 0 running. Let it allow more, or update the version of the weights that it uses."
                            )
                        waiting[finished[0]] = finished[1], self._keeps(finished[1], self.group_filter)
                        # `next_group` gives groups in the order of finishing. Loop until number `index` is there, so
                        # that the caller gets them in the order of submission.
                        continue
                    (group, stays), index = waiting.pop(index), index + 1
                    # Before the yield, and also for a dropped group: the curriculum must see every group, in order.
                    self.source.update(group)
                    n_dropped = 0 if stays else n_dropped + 1
                    if n_dropped >= self.max_refills * (most := most_open()):
                        few = f"{n_dropped} groups in a row were played and none"
                        raise nothing_passes(few, f"max_refills={self.max_refills}, {most} open", group, self.stats)
                    if stays:
                        n_taken += 1
                        yield group
            finally:
                await pool.stop()

    def play(
        self,
        groups: Sequence[Sequence[EpisodeSpec]],
        *,
        group_filter: GroupFilter | None = None,
        refills: Iterable[Sequence[EpisodeSpec]] = (),
    ) -> list[TrajectoryGroup]:
        """Play these groups, each given as the specs of its members; wait for all and return them in order.

        Args:
            groups: The groups to play.
            group_filter: Which of them to keep. Each dropped group is replaced by the next one from `refills`.
            refills: Replacement groups, used in order. If they run out, fewer groups are returned.
        """
        return self._runner().run(partial(self.aplay, groups, group_filter=group_filter, refills=refills))

    async def aplay(
        self,
        groups: Sequence[Sequence[EpisodeSpec]],
        *,
        group_filter: GroupFilter | None = None,
        refills: Iterable[Sequence[EpisodeSpec]] = (),
    ) -> list[TrajectoryGroup]:
        """Play these groups: `play` for asynchronous code."""
        for specs in groups:
            check_group(specs)
        ids = [specs[0].group_id for specs in groups]
        if len(set(ids)) < len(ids):
            raise InvalidConfigError(f"groups share an id: {sorted({i for i in ids if ids.count(i) > 1})[:5]}.")
        largest, n_episodes = max(map(len, groups), default=1), sum(map(len, groups))
        supply = chain(groups, refills)
        return await self._gather(supply, len(groups), largest, group_filter, n_episodes, is_own=False)

    def play_each(self, groups: Iterable[Sequence[EpisodeSpec]], *, n_episodes: int = 0) -> None:
        """Play these groups without keeping them: each finished trajectory goes to `on_trajectory` and is released.

        Args:
            groups: Each as the specs of its members, with a unique id. The next is taken when there is room for it.
            n_episodes: Total number of episodes, for the progress display.
        """
        self._runner().run(partial(self._play_each, groups, n_episodes))

    async def _play_each(self, groups: Iterable[Sequence[EpisodeSpec]], n_episodes: int) -> None:
        def supply() -> Iterator[Sequence[EpisodeSpec]]:
            for specs in groups:
                check_group(specs)
                yield specs

        with self.stats.clock, rare_collections(), show_progress(self.progress, self.stats, n_episodes) as show:
            pool = self._episode_pool(GroupTracker(supply()), show)
            try:
                pool.admit(sys.maxsize, 1)  # all of them: the tracker draws a group only when it can begin
                while await pool.next_group() is not None:
                    pass
            finally:
                await pool.stop()

    def close(self) -> None:
        """Drop what over-sampling left, and close the event loop of the synchronous calls. The policy stays open."""
        if self._carry_over is not None and self._sync is not None:
            self._sync.run(self.aclose)
        if self._sync is not None:
            self._sync.close()
            self._sync = None
        if self._pool is not None:
            self._pool.close()
            self._pool = self._pool.fresh()  # the collector stays usable; processes start when first needed

    async def aclose(self) -> None:
        """Drop what over-sampling left; `close` does it for synchronous calls."""
        carry_over, self._carry_over = self._carry_over, None
        if carry_over is not None:
            await carry_over.pool.stop()
            self.stats.is_paused = False

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_envs(self) -> None:
        for spec in self.source.variants():
            is_player = isinstance(self.source.factories.get(spec.env_id), EpisodePlayer)
            (check_made if self._pool is None or is_player else self._pool.check)(self._maker(spec))

    def _runner(self) -> SyncRunner:
        self._sync = self._sync or SyncRunner()
        return self._sync

    def _supply(self, group_size: int) -> Iterator[Sequence[EpisodeSpec]]:
        while True:
            yield from (group_specs(spec, group_size) for spec in self.source.take(1))

    def _episode_pool(
        self, tracker: GroupTracker, show: Callable[[], None], gate: PauseGate | None = None
    ) -> EpisodePool:
        async def play(ticket: Ticket) -> Trajectory:
            trajectory = await self._episode(ticket.spec, tracker.version_of(ticket), gate)
            show()
            if self._auto is not None:
                await self._auto.episode_ended(is_full=slots.locked())
                slots.resize(self._auto.state.limit)
            return trajectory

        # Shared, first come first served, by all calls that run in this event loop.
        slots = self._slots.setdefault(asyncio.get_running_loop(), EpisodeSlots(self.max_concurrency))
        version = partial(weight_version_of, self.policy)
        return EpisodePool(tracker, play, slots, width=self._most, version=version, fail_fast=self.fail_fast)

    async def _gather(
        self,
        supply: Iterator[Sequence[EpisodeSpec]],
        n_groups: int,
        group_size: int,
        group_filter: GroupFilter | None,
        n_episodes: int | None = None,
        *,
        is_own: bool = True,
    ) -> list[TrajectoryGroup]:
        """Play until `n_groups` have passed the filter or the supply ends; return them in the order of submission."""
        total = n_groups * group_size if n_episodes is None else n_episodes
        with self.stats.clock, rare_collections(), show_progress(self.progress, self.stats, total) as show:
            pool = self._episode_pool(GroupTracker(supply), show)
            try:
                return await self._take(pool, n_groups, group_size, group_filter, is_own=is_own)
            finally:
                await pool.stop()

    async def _take(
        self,
        pool: EpisodePool,
        n_groups: int,
        group_size: int,
        group_filter: GroupFilter | None,
        over_sampling: float = 1.0,
        *,
        is_own: bool = True,
    ) -> list[TrajectoryGroup]:
        """Take groups until enough have passed the filter. If they are the source's (`is_own`), it learns from them."""
        accepted: dict[int, TrajectoryGroup] = {}
        played: dict[int, Sequence[Trajectory]] = {}
        # The filter can drop any group, so admission is repeated after each finished group: `groups_to_admit` counts
        # the dropped one as missing and begins its replacement.
        while len(accepted) < n_groups:
            n_open = pool.tracker.n_open + pool.n_waiting
            pool.admit(groups_to_admit(n_groups, len(accepted), n_open, over_sampling), group_size)
            finished = await pool.next_group()
            if finished is None:
                break
            index, group = finished
            played[index] = group.trajectories if self.source.curricula else ()  # dropped ones too
            if self._keeps(group, group_filter):
                accepted[index] = group
            elif is_own and len(played) >= self.max_refills * n_groups:
                few = f"{len(played)} groups were played and {len(accepted)} of the {n_groups} wanted"
                raise nothing_passes(few, f"max_refills={self.max_refills}", group, self.stats)
        # Only after the last group, in the order of submission: a curriculum that learned in between would make the
        # episodes of a call depend on which of them finished first.
        if is_own:
            self.source.update(trajectory for index in sorted(played) for trajectory in played[index])
        return [accepted[index] for index in sorted(accepted)]

    def _keeps(self, group: TrajectoryGroup, group_filter: GroupFilter | None) -> bool:
        is_whole = not self.fail_fast or all(trajectory.status == "ok" for trajectory in group.trajectories)
        keeps = is_whole and (group_filter is None or bool(group_filter(group)))
        self.stats.rejected_groups += not keeps
        return keeps

    async def _over_sample(self, n_groups: int, group_size: int) -> list[TrajectoryGroup]:
        """Return the first finished groups; keep the others for the next call."""
        carry_over = self._carry_over
        # A call ends by closing the gate: this waits until no policy call is running, then the episodes stay parked in
        # their tasks. The next call opens the gate, and they continue with their tokens under the new weights.
        if carry_over is None:
            gate = PauseGate()
            pool = self._episode_pool(GroupTracker(self._supply(group_size)), lambda: self._show_now(), gate)
            carry_over = CarryOver(pool, gate, group_size)
            self._carry_over = carry_over
        carry_over.check(group_size)
        self.stats.pause(False)
        carry_over.gate.open()
        progress = show_progress(self.progress, self.stats, n_groups * group_size)
        with self.stats.clock, rare_collections(), progress as self._show_now:
            try:
                taken = await self._take(carry_over.pool, n_groups, group_size, self.group_filter, self.over_sampling)
                await carry_over.gate.close()
            except BaseException:
                await self.aclose()
                raise
            finally:
                self._show_now = lambda: None
        self.stats.pause(True)
        return taken

    async def _episode(self, spec: EpisodeSpec, version: int | None, gate: PauseGate | None) -> Trajectory:
        """Admit one episode, play it and emit it."""
        self.stats.submitted += 1
        self.stats.count(1)
        key, is_emitted = (spec.group_id, spec.member), False
        began = time.monotonic()
        self.stats.open_episodes[key] = spec.env_id, spec.seed, began
        try:
            with episode_span(spec.env_id, spec.seed, *key) as span:
                trajectory = await play_member(spec, partial(self._play, gate=gate), max_retries=self.max_retries)
                if span is not None:
                    span.note_episode(trajectory)
            if version is not None:
                trajectory = replace(trajectory, metadata={**trajectory.metadata, DISPATCH_VERSION: version})
            # No `await` from here to `stats.add`: a cancellation in between would leave an emitted episode uncounted.
            if self.on_trajectory is not None:
                self.on_trajectory(trajectory)
            is_emitted = True
        finally:
            self.stats.count(-1)
            self.stats.open_episodes.pop(key, None)
            if not is_emitted:
                self.stats.dropped += 1
        self.stats.add(trajectory)
        self.stats.durations_s.append(time.monotonic() - began)
        self.stats.neutralised = getattr(self.codec, "n_neutralised", 0)
        return trajectory

    async def _play(self, spec: EpisodeSpec, gate: PauseGate | None = None) -> Trajectory:
        play = own_player(self.source.factories.get(spec.env_id), spec) or partial(play_episode, self._maker(spec))
        if self.context_fn is not None:
            play = partial(play, context_fn=self.context_fn)
        return await play(
            spec,
            self.policy,
            codec=self.codec,
            sampling=self.sampling,
            limits=self.limits,
            history=self.history,
            run_seed=self.seed,
            gate=gate,
            workers=self._pool,
            stats=self.stats,
        )

    def _maker(self, spec: EpisodeSpec) -> EnvMaker:
        return EnvMaker(spec.env_id, spec.env_kwargs, self.source.factories.get(spec.env_id))
