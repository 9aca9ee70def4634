"""Which groups are open, finished and wanted: the collector's decisions, without a task or a client in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llm_envs.errors import InvalidConfigError
from llm_envs.rollout.group import assemble_group
from llm_envs.rollout.source import EpisodeSpec
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["GroupBook", "Ticket", "groups_to_admit"]


def groups_to_admit(n_wanted: int, n_accepted: int, n_open: int, over_sampling: float = 1.0) -> int:
    """Return how many groups to begin now.

    Without over-sampling as many are under way as are still wanted, so that each one that is dropped is replaced and
    none is played in vain. With it, more are: `over_sampling` times as many.

    Args:
        n_wanted: Groups that the call shall return.
        n_accepted: Groups that it has.
        n_open: Groups under way.
        over_sampling: At least 1.
    """
    missing = n_wanted - n_accepted
    return max(0, math.ceil(missing * over_sampling) - n_open) if missing > 0 else 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """One episode to play, of group number `index`."""

    index: int
    spec: EpisodeSpec


@dataclass(slots=True)
class _Open:
    n_members: int
    version: int | None = None
    done: list[Trajectory] = field(default_factory=list)


class GroupBook:
    """Hands out episodes in the order of submission, and puts what comes back together to groups.

    Args:
        supply: The groups to play, each the specs of its members, worked out when they are asked for.
    """

    def __init__(self, supply: Iterator[Sequence[EpisodeSpec]]) -> None:
        self._supply = supply
        self._admitted = 0
        self._next_index = 0
        self._waiting: list[Ticket] = []  # members of the group that is being handed out, the next one last
        self._open: dict[int, _Open] = {}

    @property
    def n_open(self) -> int:
        """Groups admitted and not finished."""
        return self._admitted + len(self._open)

    def admit(self, n_groups: int) -> None:
        """Let so many groups more begin."""
        if n_groups < 0:
            raise InvalidConfigError(f"n_groups is {n_groups!r}; it must be at least 0.")
        self._admitted += n_groups

    def next_episode(self, version: int | None = None) -> Ticket | None:
        """Hand out the next episode, or None.

        Args:
            version: Version of the weights; a group is pinned to the one under which its first member is handed out.
        """
        while not self._waiting:
            if self._admitted < 1:
                return None
            self._admitted -= 1
            specs = next(self._supply, None)
            if specs is None:  # nothing more to play
                self._admitted = 0
                return None
            index, self._next_index = self._next_index, self._next_index + 1
            self._waiting = [Ticket(index, spec) for spec in reversed(specs)]
            self._open[index] = _Open(len(specs), version)
        return self._waiting.pop()

    def version_of(self, ticket: Ticket) -> int | None:
        """Return the version to which an episode's group is pinned."""
        return self._open[ticket.index].version

    def finish(self, ticket: Ticket, trajectory: Trajectory) -> TrajectoryGroup | None:
        """Take an episode back; return its group if that was the last one."""
        state = self._open[ticket.index]
        state.done.append(trajectory)
        if len(state.done) < state.n_members:
            return None
        del self._open[ticket.index]
        return assemble_group(state.done)

    def abandon(self, ticket: Ticket) -> None:
        """Begin no further member of a group: it is finished with those that have begun."""
        state = self._open.get(ticket.index)
        if state is not None and self._waiting and self._waiting[-1].index == ticket.index:
            state.n_members -= len(self._waiting)
            self._waiting = []
