"""The players of a book's episodes: tasks that take the next one the moment their last one ends.

1. At most `width` episodes are played at once; each is handed out, played and put back by one player.
2. What a player raises ends the crew: `next_group` raises it, and nothing further begins.
3. After `stop` no task of the crew is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.book import GroupBook, Ticket
from llm_envs.rollout.gate import Gate
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["Crew", "Surplus"]


class Crew:
    """Plays what a book hands out.

    Args:
        book: What to play.
        play: Plays one episode.
        width: Episodes at once.
        version: The present version of the weights, if the policy has one.
        fail_fast: Whether no further member of a group begins once one could not be scored.
    """

    def __init__(
        self,
        book: GroupBook,
        play: Callable[[Ticket], Awaitable[Trajectory]],
        *,
        width: int,
        version: Callable[[], int | None] = lambda: None,
        fail_fast: bool = False,
    ) -> None:
        self.book = book
        self._play, self._width, self._version, self._fail_fast = play, width, version, fail_fast
        self._finished: deque[tuple[int, TrajectoryGroup]] = deque()
        self._players: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._news = asyncio.Event()  # a group is finished, or a player ended
        self._work = asyncio.Event()

    @property
    def n_waiting(self) -> int:
        """Finished groups that nobody has taken."""
        return len(self._finished)

    def admit(self, n_groups: int, group_size: int) -> None:
        """Let so many groups more begin, each of about `group_size` members."""
        if n_groups < 1:
            return
        self.book.admit(n_groups)
        for _ in range(min(self._width - len(self._players), n_groups * group_size)):
            player = asyncio.create_task(self._go_on())
            self._players.add(player)
            player.add_done_callback(self._ended)
        self._work.set()

    async def next_group(self) -> tuple[int, TrajectoryGroup] | None:
        """Return the next finished group with its number, in the order of finishing; None if nothing is under way.

        Raises:
            BaseException: What a player raised.
        """
        while not self._finished:
            if self._failure is not None:
                raise self._failure
            if self.book.n_open == 0:
                return None
            self._news.clear()
            await self._news.wait()
        return self._finished.popleft()

    async def stop(self) -> None:
        """Cancel what is under way, and wait until it has ended."""
        players = list(self._players)
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)

    async def _go_on(self) -> None:
        while self._failure is None:
            ticket = self.book.next_episode(self._version())
            if ticket is None:
                self._work.clear()
                self._news.set()
                await self._work.wait()
                continue
            trajectory = await self._play(ticket)
            if self._fail_fast and trajectory.status != "ok":
                self.book.abandon(ticket)
            group = self.book.finish(ticket, trajectory)
            if group is not None:
                self._finished.append((ticket.index, group))
                self._news.set()

    def _ended(self, player: asyncio.Task[None]) -> None:
        self._players.discard(player)
        if not player.cancelled() and (error := player.exception()) is not None and self._failure is None:
            self._failure = error
        self._news.set()


@dataclass(slots=True)
class Surplus:
    """What a call with over-sampling leaves for the next one: a crew whose episodes are held up at a gate."""

    crew: Crew
    gate: Gate
    group_size: int
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def check(self, group_size: int) -> None:
        """Check that a call can go on with it.

        Raises:
            InvalidConfigError: If the call wants groups of another size, or runs in another event loop.
        """
        if group_size != self.group_size or asyncio.get_running_loop() is not self.loop:
            raise InvalidConfigError(
                f"over-sampling left groups of {self.group_size} in the event loop of the last call; this one wants "
                f"groups of {group_size}{'' if asyncio.get_running_loop() is self.loop else ' in another loop'}. Call "
                "close() (or await aclose()) between them, which drops what was left."
            )
