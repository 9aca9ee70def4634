"""Tracks which groups are open and finished: the collector's decisions as plain state, without tasks or clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from llm_envs.sources.source import EpisodeSpec
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["GroupTracker", "Ticket", "groups_to_admit"]


def groups_to_admit(n_wanted: int, n_accepted: int, n_open: int, over_sampling: float = 1.0) -> int:
    """Return how many groups to begin now.

    Without over-sampling, exactly as many groups run as are still missing: each dropped one is replaced, and no surplus
    is played. With over-sampling, `over_sampling` times as many run.

    Args:
        n_wanted: Groups that the call returns.
        n_accepted: Groups that it has so far.
        n_open: Groups that are running.
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


class GroupTracker:
    """Hands out episodes in the order of submission, and collects them into groups.

    Args:
        supply: The groups to play, each as the specs of its members; a group is drawn only when it begins.
    """

    def __init__(self, supply: Iterator[Sequence[EpisodeSpec]]) -> None:
        self._supply = supply
        self._admitted = 0
        self._next_index = 0
        self._waiting: list[Ticket] = []  # remaining members of the current group, the next one last
        self._open: dict[int, _Open] = {}

    @property
    def n_open(self) -> int:
        """Number of groups that were admitted and have not finished."""
        return self._admitted + len(self._open)

    def admit(self, n_groups: int) -> None:
        """Allow `n_groups` more groups."""
        self._admitted += n_groups

    def next_episode(self, version: int | None = None) -> Ticket | None:
        """Hand out the next episode, or None.

        Args:
            version: Version of the weights. A group keeps the version at which its first member was handed out.
        """
        while not self._waiting:
            if self._admitted < 1:
                return None
            self._admitted -= 1
            specs = next(self._supply, None)
            if specs is None:  # the supply is empty: without this reset, `n_open` would count groups that never begin
                self._admitted = 0
                return None
            index, self._next_index = self._next_index, self._next_index + 1
            self._waiting = [Ticket(index, spec) for spec in reversed(specs)]
            self._open[index] = _Open(len(specs), version)
        return self._waiting.pop()

    def version_of(self, ticket: Ticket) -> int | None:
        """Return the weight version of an episode's group."""
        return self._open[ticket.index].version

    def finish(self, ticket: Ticket, trajectory: Trajectory) -> TrajectoryGroup | None:
        """Record a finished episode; return its group if it was the last member."""
        state = self._open[ticket.index]
        state.done.append(trajectory)
        if len(state.done) < state.n_members:
            return None
        del self._open[ticket.index]
        return TrajectoryGroup.of(state.done)

    def abandon(self, ticket: Ticket) -> None:
        """Start no further member of a group: it finishes with the members that have begun."""
        state = self._open.get(ticket.index)
        if state is not None and self._waiting and self._waiting[-1].index == ticket.index:
            # Only the group that is being handed out has members that have not begun.
            state.n_members -= len(self._waiting)
            self._waiting = []
