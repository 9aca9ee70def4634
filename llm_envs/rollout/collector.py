"""The collector: plays groups of episodes continuously, with no barrier between them.

Invariants, tested under random latency, failure and cancellation:

1. Every admitted episode is emitted exactly once (as a trajectory, to `on_trajectory` and into its group) or dropped by
   a cancellation.
2. `running + partials + accepted + dropped == submitted`, always; after a call, `running == 0`.
3. Nothing is left running when a call ends, however it ends. With over-sampling, episodes that were not finished wait
   at a closed gate with their environments and tokens, until the next call or `close`.
4. Episodes are admitted in the order of submission, at most `max_concurrency` at once; groups are returned in that
   order, members in member order. A group that the filter drops gives its place back at once.
5. No two groups of a call share an id; a source's groups have ids of their own across calls.
6. With a deterministic policy the same specs give the same trajectories at any concurrency, and the same groups pass
   the filter; only over-sampling, which takes whatever is finished first, gives this up.
7. The source learns (a curriculum) from every finished group of its own, also from those that were dropped, in the
   order of submission: at the end of a call of `collect`, and in a stream when a group's turn comes. So what a call of
   `collect` plays does not depend on what it finds, and what a stream plays only on how many groups it may hold.
"""

from __future__ import annotations

import asyncio
import math
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.base import Policy
from llm_envs.registration import task_spec
from llm_envs.rollout.book import GroupBook, Ticket, groups_to_admit
from llm_envs.rollout.context import Codec, ContextFn
from llm_envs.rollout.crew import Crew, Surplus
from llm_envs.rollout.episode import play_episode, policy_kind
from llm_envs.rollout.filters import GroupFilter, SelectFn, select
from llm_envs.rollout.gate import Gate
from llm_envs.rollout.group import check_group, play_member
from llm_envs.rollout.limits import RolloutLimits
from llm_envs.rollout.progress import Progress, show_progress
from llm_envs.rollout.runner import EnvMaker
from llm_envs.rollout.source import Envs, EpisodeSpec, SeedSource, as_source, group_specs
from llm_envs.rollout.staleness import DISPATCH_VERSION
from llm_envs.rollout.stats import CollectorStats, nothing_passes
from llm_envs.rollout.sync import SyncRunner
from llm_envs.rollout.tape import History, Tape
from llm_envs.rollout.workers import WorkerPool
from llm_envs.types import SamplingParams, Trajectory, TrajectoryGroup

__all__ = ["Collector"]

T = TypeVar("T")


class Collector:
    """Plays environments with a policy and returns trajectories in groups of one seed.

    Args:
        envs: An environment id, `{id: weight}`, a sequence of ids, a function that makes an environment, or a source
            (`SeedSource`, `PromptSource`) that says itself what is played; `seed` and `env_kwargs` are then its own.
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
        workers: Run environments in so many processes, one episode each at a time: one that hangs longer than
            `limits.max_step_s` is killed and replaced, one that crashes costs its own episode. 0 runs them here.
        max_retries: How often an errored episode is played anew. One whose judge failed (`JudgeError`) is not: it is
            unscored, and its group is treated as with an errored member.
        fail_fast: Whether a group is dropped and replaced as soon as one of its members could not be scored; else it
            is returned with that member errored. (`create_min_scored_filter` is the way between.)
        group_filter: Which groups are returned (`rollout.filters`, or yours); those that it drops are replaced.
        max_refills: How many groups may be played for each one that is wanted, before the call stops and says so.
        over_sampling: At 1.5, half as many groups again are begun as are wanted, and the call ends with the first that
            are finished; what is left waits for the next call, unfinished episodes with the tokens that they have.
        select_fn: Which of the groups that passed the filter `collect` returns (`filters.create_selection`, or yours).
            Keeping the best of more biases the data, and every figure measured on it; see `rollout.filters`.
        select_from: With `select_fn`, how many groups it is given for each that is wanted. All of them are played to
            their end and go to `on_trajectory`.
        progress: True shows a bar on a terminal (nothing elsewhere), False nothing; or a function (see `Progress`).
        on_trajectory: Called with each finished trajectory at once, in the order of finishing:
            `TrajectoryWriter.write`. What it raises ends the call.

    Raises:
        InvalidConfigError: If a setting is wrong, or the policy needs a codec.
        UnknownTaskError: If no environment has the id; names close ones.
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
        max_concurrency: int = 64,
        workers: int = 0,
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
        if max_concurrency < 1:
            raise InvalidConfigError(f"max_concurrency is {max_concurrency!r}; it must be at least 1.")
        if workers < 0:
            raise InvalidConfigError(f"workers is {workers!r}; it must be at least 0.")
        if max_retries < 0:
            raise InvalidConfigError(f"max_retries is {max_retries!r}; it must be at least 0.")
        if not (1 <= over_sampling < math.inf and max_refills >= 1 and 1 <= select_from < math.inf):
            raise InvalidConfigError(f"{over_sampling=}, {max_refills=}, {select_from=}: finite, and at least 1.")
        policy_kind(policy, codec)
        Tape(codec, history)
        self.source = as_source(envs, seed=seed, env_kwargs=env_kwargs)
        for choice in self.source.choices:  # a wrong id, split or difficulty is said here, not in every episode
            if choice.factory is None:
                task_spec(choice.env_id)
        self.workers = workers
        self._pool = WorkerPool(workers) if workers else None
        for spec in self.source.variants():
            self._check_made(self._maker(spec))
        self.policy, self.codec, self.seed = policy, codec, seed
        self.sampling, self.limits = sampling or SamplingParams(), limits or RolloutLimits()
        self.history, self.context_fn = history, context_fn
        self.group_filter, self.fail_fast = group_filter, fail_fast
        self.max_refills, self.over_sampling = max_refills, over_sampling
        self.select_fn, self.select_from = select_fn, select_from
        # An episode holds its worker: more of them would only wait.
        self.max_concurrency = min(max_concurrency, workers) if workers else max_concurrency
        self.max_retries = max_retries
        self.progress, self.on_trajectory = progress, on_trajectory
        self.stats = CollectorStats()
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._sync: SyncRunner | None = None
        self._surplus: Surplus | None = None
        self._show_now: Callable[[], None] = lambda: None

    def collect(self, n_groups: int, group_size: int = 1) -> list[TrajectoryGroup]:
        """Play the next `n_groups` groups of the source; waits until all are done. Works in a notebook too."""
        return self._run(partial(self.acollect, n_groups, group_size))

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

    def stream(
        self,
        group_size: int = 1,
        *,
        n_groups: int | None = None,
        max_open: int | None = None,
        capacity_fn: Callable[[int, int, int], int] | None = None,
    ) -> Iterator[TrajectoryGroup]:
        """Yield groups as they are finished, in the order of submission; see `astream`.

        Episodes go on only while the next group is waited for.
        """
        groups = self.astream(group_size, n_groups=n_groups, max_open=max_open, capacity_fn=capacity_fn)

        async def next_group() -> TrajectoryGroup | None:
            return await anext(groups, None)

        async def end() -> None:
            await groups.aclose()

        try:
            while (group := self._run(next_group)) is not None:
                yield group
        finally:
            self._run(end)

    async def astream(
        self,
        group_size: int = 1,
        *,
        n_groups: int | None = None,
        max_open: int | None = None,
        capacity_fn: Callable[[int, int, int], int] | None = None,
    ) -> AsyncGenerator[TrajectoryGroup, None]:
        """Yield groups as they are finished, in the order of submission, while others go on.

        Raises `RolloutFailedError` once `max_refills` times as many groups in a row as are open at once were dropped.

        Args:
            group_size: Members a group.
            n_groups: How many groups; None goes on for ever. Leaving the loop cancels what is under way.
            max_open: Groups under way or waiting to be taken; None fills `max_concurrency` twice.
            capacity_fn: (groups taken, groups waiting, groups under way) -> how many may begin now, in place of
                `max_open`: `staleness.admission_capacity` bound to the present version of the weights.
        """
        if group_size < 1 or (n_groups is not None and n_groups < 0) or (max_open is not None and max_open < 1):
            raise InvalidConfigError(f"{group_size=}, {n_groups=}, {max_open=}: at least 1, 0 and 1.")
        if self.select_fn is not None:
            raise InvalidConfigError("select_fn chooses among the groups of a call; a stream has no last one.")
        most = max_open or 2 * -(-self.max_concurrency // group_size)
        capacity = capacity_fn or (lambda taken, waiting, under_way: most - waiting - under_way)
        drawn: deque[EpisodeSpec] = deque()  # when they are admitted: a curriculum chooses then
        supply = iter(lambda: group_specs(drawn.popleft(), group_size), ())
        crew = self._crew(GroupBook(supply), lambda: None)
        waiting: dict[int, tuple[TrajectoryGroup, bool]] = {}  # group and whether it stays
        n_taken, n_dropped, index = 0, 0, 0
        with self.stats.clock():
            try:
                while n_groups is None or n_taken < n_groups:
                    n_waiting = sum(stays for _, stays in waiting.values()) + crew.n_waiting
                    n_open = crew.book.n_open
                    room = capacity(n_taken, n_waiting, n_open)
                    still = room if n_groups is None else n_groups - n_taken - n_waiting - n_open
                    drawn.extend(self.source.take(max(min(room, still), 0)))
                    crew.admit(min(room, still), group_size)
                    if index not in waiting:
                        found = await crew.next_group()
                        if found is None:
                            raise InvalidConfigError(
                                f"the stream may begin no group: capacity_fn says {room} with {n_taken} taken and none "
                                "under way. Let it allow more, or update the version of the weights that it knows."
                            )
                        waiting[found[0]] = found[1], self._keeps(found[1], self.group_filter)
                        continue
                    (group, stays), index = waiting.pop(index), index + 1
                    self.source.update(group)
                    n_dropped = 0 if stays else n_dropped + 1
                    if n_dropped >= self.max_refills * most:
                        few = f"{n_dropped} groups in a row were played and none"
                        raise nothing_passes(few, f"max_refills={self.max_refills}, {most} open", group, self.stats)
                    if stays:
                        n_taken += 1
                        yield group
            finally:
                await crew.stop()

    def play(
        self,
        groups: Sequence[Sequence[EpisodeSpec]],
        *,
        group_filter: GroupFilter | None = None,
        refills: Iterable[Sequence[EpisodeSpec]] = (),
    ) -> list[TrajectoryGroup]:
        """Play these groups, each given as the specs of its members; waits for all, returns them in order.

        Args:
            groups: What is played.
            group_filter: Which of them stay; each that does not is replaced by the next of the refills.
            refills: In place of those, in their order. Where they end before enough groups stayed, fewer are returned.
        """
        return self._run(partial(self.aplay, groups, group_filter=group_filter, refills=refills))

    async def aplay(
        self,
        groups: Sequence[Sequence[EpisodeSpec]],
        *,
        group_filter: GroupFilter | None = None,
        refills: Iterable[Sequence[EpisodeSpec]] = (),
    ) -> list[TrajectoryGroup]:
        """Do what `play` does, from asynchronous code."""
        for specs in groups:
            check_group(specs)
        ids = [specs[0].group_id for specs in groups]
        if len(set(ids)) < len(ids):
            raise InvalidConfigError(f"groups share an id: {sorted({i for i in ids if ids.count(i) > 1})[:5]}.")
        largest, n_episodes = max(map(len, groups), default=1), sum(map(len, groups))
        supply = chain(groups, refills)
        return await self._gather(supply, len(groups), largest, group_filter, n_episodes, is_own=False)

    def play_each(self, groups: Iterable[Sequence[EpisodeSpec]], *, n_episodes: int = 0) -> None:
        """Play these groups and keep none: each trajectory goes to `on_trajectory` when it is finished, and is let go.

        Args:
            groups: Each as the specs of its members, with an id of its own; taken one by one, when there is room.
            n_episodes: How many there are in all, for the progress display.
        """
        self._run(partial(self.aplay_each, groups, n_episodes=n_episodes))

    async def aplay_each(self, groups: Iterable[Sequence[EpisodeSpec]], *, n_episodes: int = 0) -> None:
        """Do what `play_each` does, from asynchronous code."""

        def supply() -> Iterator[Sequence[EpisodeSpec]]:
            for specs in groups:
                check_group(specs)
                yield specs

        with self.stats.clock(), show_progress(self.progress, self.stats, n_episodes) as show:
            crew = self._crew(GroupBook(supply()), show)
            try:
                crew.admit(sys.maxsize, 1)  # as many as there are: nothing is worked out before it begins
                while await crew.next_group() is not None:
                    pass
            finally:
                await crew.stop()

    def close(self) -> None:
        """Drop what over-sampling left, and close the event loop of the synchronous calls. The policy is yours."""
        if self._surplus is not None and self._sync is not None:
            self._sync.run(self.aclose)
        if self._sync is not None:
            self._sync.close()
            self._sync = None
        if self._pool is not None:
            self._pool.close()
            self._pool = WorkerPool(self.workers)  # a collector may go on; no process begins before it is needed

    async def aclose(self) -> None:
        """Drop what over-sampling left; `close` does it too, for synchronous calls."""
        surplus, self._surplus = self._surplus, None
        if surplus is not None:
            await surplus.crew.stop()
            self.stats.is_paused = False

    def __enter__(self) -> Collector:
        """Return the collector; leaving the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the collector."""
        self.close()

    def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._sync is None:
            self._sync = SyncRunner()
        return self._sync.run(function)

    def _supply(self, group_size: int) -> Iterator[Sequence[EpisodeSpec]]:
        while True:
            yield from (group_specs(spec, group_size) for spec in self.source.take(1))

    def _crew(self, book: GroupBook, show: Callable[[], None], gate: Gate | None = None) -> Crew:
        async def play(ticket: Ticket) -> Trajectory:
            slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.max_concurrency))
            async with slots:  # first come, first served, among the calls that run side by side
                trajectory = await self._episode(ticket.spec, book.version_of(ticket), gate)
                show()
                return trajectory

        return Crew(book, play, width=self.max_concurrency, version=self._version, fail_fast=self.fail_fast)

    def _version(self) -> int | None:
        version = getattr(self.policy, "weight_version", None)
        return version if isinstance(version, int) else None

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
        """Play until `n_groups` have passed the filter, or the supply ends; return them in the order of submission."""
        total = n_groups * group_size if n_episodes is None else n_episodes
        with self.stats.clock(), show_progress(self.progress, self.stats, total) as show:
            crew = self._crew(GroupBook(supply), show)
            try:
                return await self._take(crew, n_groups, group_size, group_filter, is_own=is_own)
            finally:
                await crew.stop()

    async def _take(
        self,
        crew: Crew,
        n_groups: int,
        group_size: int,
        group_filter: GroupFilter | None,
        over_sampling: float = 1.0,
        *,
        is_own: bool = True,
    ) -> list[TrajectoryGroup]:
        """Take groups until enough have passed the filter. The source learns from its own; given ones may run out."""
        accepted: dict[int, TrajectoryGroup] = {}
        played: dict[int, Sequence[Trajectory]] = {}
        while len(accepted) < n_groups:
            n_open = crew.book.n_open + crew.n_waiting
            crew.admit(groups_to_admit(n_groups, len(accepted), n_open, over_sampling), group_size)
            found = await crew.next_group()
            if found is None:
                break
            index, group = found
            played[index] = group.trajectories if self.source.curricula else ()  # nobody else needs what was dropped
            if self._keeps(group, group_filter):
                accepted[index] = group
            elif is_own and len(played) >= self.max_refills * n_groups:
                few = f"{len(played)} groups were played and {len(accepted)} of the {n_groups} wanted"
                raise nothing_passes(few, f"max_refills={self.max_refills}", group, self.stats)
        if is_own:
            self.source.update(trajectory for index in sorted(played) for trajectory in played[index])
        return [accepted[index] for index in sorted(accepted)]

    def _keeps(self, group: TrajectoryGroup, group_filter: GroupFilter | None) -> bool:
        is_whole = not self.fail_fast or all(trajectory.status == "ok" for trajectory in group.trajectories)
        keeps = is_whole and (group_filter is None or bool(group_filter(group)))
        self.stats.rejected_groups += not keeps
        return keeps

    async def _over_sample(self, n_groups: int, group_size: int) -> list[TrajectoryGroup]:
        """Return the first groups that are finished; keep the others for the next call."""
        surplus = self._surplus
        if surplus is None:
            gate = Gate()
            surplus = Surplus(self._crew(GroupBook(self._supply(group_size)), self._show, gate), gate, group_size)
            self._surplus = surplus
        surplus.check(group_size)
        self.stats.pause(False)
        surplus.gate.open()
        with self.stats.clock(), show_progress(self.progress, self.stats, n_groups * group_size) as self._show_now:
            try:
                taken = await self._take(surplus.crew, n_groups, group_size, self.group_filter, self.over_sampling)
                await surplus.gate.close()
            except BaseException:
                await self.aclose()
                raise
            finally:
                self._show_now = lambda: None
        self.stats.pause(True)
        return taken

    def _show(self) -> None:
        self._show_now()

    async def _episode(self, spec: EpisodeSpec, version: int | None, gate: Gate | None) -> Trajectory:
        """Admit one episode, play and emit it; nothing is awaited between emission and account."""
        self.stats.submitted += 1
        self.stats.count(1)
        is_emitted = False
        try:
            trajectory = await play_member(spec, partial(self._play, gate=gate), max_retries=self.max_retries)
            if version is not None:
                trajectory = replace(trajectory, metadata={**trajectory.metadata, DISPATCH_VERSION: version})
            if self.on_trajectory is not None:
                self.on_trajectory(trajectory)
            is_emitted = True
        finally:
            self.stats.count(-1)
            if not is_emitted:
                self.stats.dropped += 1
        self.stats.add(trajectory)
        return trajectory

    async def _play(self, spec: EpisodeSpec, gate: Gate | None = None) -> Trajectory:
        return await play_episode(
            self._maker(spec),
            spec,
            self.policy,
            codec=self.codec,
            sampling=self.sampling,
            limits=self.limits,
            history=self.history,
            context_fn=self.context_fn,
            run_seed=self.seed,
            gate=gate,
            workers=self._pool,
        )

    def _maker(self, spec: EpisodeSpec) -> EnvMaker:
        return EnvMaker(spec.env_id, spec.env_kwargs, self.source.factories.get(spec.env_id))

    def _check_made(self, make: EnvMaker) -> None:
        if self._pool is None:
            env = make()
            with suppress(Exception):  # closing is no part of what is checked; in an episode it costs nothing either
                env.close()
        else:
            self._pool.check(make)
