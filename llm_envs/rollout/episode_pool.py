"""A pool of asyncio tasks that play the tracker's episodes: each takes the next episode when its last one ends.

1. At most `width` episodes run concurrently. One runner takes an episode, plays it and returns it.
2. If a runner raises, `next_group` raises the same error and no further episode begins.
3. After `stop`, no task of the pool is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.group_tracker import GroupTracker, Ticket
from llm_envs.rollout.pause_gate import PauseGate
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["CarryOver", "EpisodePool"]


class EpisodePool:
    """Plays the episodes of a tracker.

    Args:
        tracker: Hands out the episodes.
        play: Plays one episode.
        slots: Each running episode holds one.
        width: The highest number of concurrent episodes.
        version: The present version of the weights, if the policy has one.
        fail_fast: Whether no further member of a group begins once one could not be scored.
    """

    def __init__(
        self,
        tracker: GroupTracker,
        play: Callable[[Ticket], Awaitable[Trajectory]],
        slots: AbstractAsyncContextManager[Any],
        *,
        width: int,
        version: Callable[[], int | None] = lambda: None,
        fail_fast: bool = False,
    ) -> None:
        self.tracker = tracker
        self._play, self._slots, self._width = play, slots, width
        self._version, self._fail_fast = version, fail_fast
        self._finished: deque[tuple[int, TrajectoryGroup]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._news = asyncio.Event()  # set when a group finishes or a runner ends or runs out of work
        self._work = asyncio.Event()

    @property
    def n_waiting(self) -> int:
        """Number of finished groups that have not been taken."""
        return len(self._finished)

    def admit(self, n_groups: int, group_size: int) -> None:
        """Allow `n_groups` more groups, each of about `group_size` members."""
        # `GroupTracker.n_open` counts admitted groups immediately, so the caller can admit before any task has run. The
        # group size only estimates the number of tasks: a runner plays one episode after the other.
        if n_groups < 1:
            return
        self.tracker.admit(n_groups)
        for _ in range(min(self._width - len(self._runners), n_groups * group_size)):
            runner = asyncio.create_task(self._run_episodes())
            self._runners.add(runner)
            runner.add_done_callback(self._ended)
        self._work.set()

    async def next_group(self) -> tuple[int, TrajectoryGroup] | None:
        """Return the next finished group and its number, in the order of finishing; None if no episode is running.

        Raises:
            BaseException: Any error of a runner.
        """
        while not self._finished:
            if self._failure is not None:
                raise self._failure
            if self.tracker.n_open == 0:
                return None
            self._news.clear()
            await self._news.wait()
        return self._finished.popleft()

    async def stop(self) -> None:
        """Cancel the running episodes, and wait until they have ended."""
        runners = list(self._runners)
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)

    async def _run_episodes(self) -> None:
        # Each runner pulls its next episode itself, so that no slot idles until a batch is finished. A runner
        # without work waits here: groups that are admitted later, such as replacements, wake it. It takes an episode
        # only when it has a slot, so that the episode begins immediately, under the weights' version that it notes.
        while self._failure is None:
            async with self._slots:
                ticket = self.tracker.next_episode(self._version())
                trajectory = None if ticket is None else await self._play(ticket)
            if ticket is None or trajectory is None:
                self._work.clear()
                self._news.set()
                await self._work.wait()
                continue
            # Abandon before finish: that lowers the number of members that the group waits for.
            if self._fail_fast and trajectory.status != "ok":
                self.tracker.abandon(ticket)
            group = self.tracker.finish(ticket, trajectory)
            if group is not None:
                self._finished.append((ticket.index, group))
                self._news.set()

    def _ended(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        if not runner.cancelled() and (error := runner.exception()) is not None and self._failure is None:
            self._failure = error
        self._news.set()


@dataclass(slots=True)
class CarryOver:
    """The unfinished episodes of an over-sampling call: a pool that waits at a closed gate for the next call."""

    pool: EpisodePool
    gate: PauseGate
    group_size: int
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def check(self, group_size: int) -> None:
        """Check that a call can continue with these episodes.

        Raises:
            InvalidConfigError: If the call wants groups of another size, or runs in another event loop.
        """
        if group_size != self.group_size or asyncio.get_running_loop() is not self.loop:
            raise InvalidConfigError(
                f"over-sampling left groups of {self.group_size} in the event loop of the last call; this one wants "
                f"groups of {group_size}{'' if asyncio.get_running_loop() is self.loop else ' in another loop'}. Call "
                "close() (or await aclose()) between them, which drops what was left."
            )
