"""The engines of several processes that share one model, in step with each other (tensor parallelism).

Each process has an engine with its shard of every layer, and a step is a collective of all. So all engines must get the
same requests in the same order. Each process asks for its turns; before a step the processes exchange what they ask
for, and every engine gets all of it. `VLLMEnginePolicy` uses this in place of its engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

import torch.distributed as dist

__all__ = ["Agreed", "Lockstep", "PeerFailedError"]

_LONGEST_IDLE_S = 0.02
"""Seconds between two exchanges while no process has anything to do."""


class PeerFailedError(RuntimeError):
    """Another process of the group has failed."""


class Agreed(IntEnum):
    """The next thing that all processes of a group do."""

    WAIT = 0
    STEP = 1
    UPDATE = 2
    CLOSE = 3


class Lockstep:
    """A vLLM engine that steps together with its group.

    `agree` and `step` are collectives: all processes of the group call them, in the same order.

    Args:
        engine: The `LLMEngine` of this process.
        group: A process group of `torch.distributed` for objects of Python (backend gloo), used only here.
    """

    def __init__(self, engine: Any, group: Any) -> None:
        self._engine, self._group = engine, group
        self._added: list[tuple[str, Any, Any]] = []
        self._aborted: list[str] = []
        self._n_idle = 0
        self.refused: dict[str, Exception] = {}
        """Requests of this process that the engine refused at the last step."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        """Ask for a request at the next step; the id must be unique in the group."""
        self._added.append((request_id, prompt, params))

    def abort_request(self, request_ids: Sequence[str]) -> None:
        """Ask for the end of requests at the next step."""
        self._aborted += request_ids

    def has_unfinished_requests(self) -> bool:
        """Return True: what the others ask for is known only in a step."""
        return True

    def agree(self, *, is_busy: bool, has_update: bool, is_closed: bool) -> Agreed:
        """Decide together what to do next; a collective.

        Args:
            is_busy: Whether this process has turns. One is enough for a step.
            has_update: Whether its weights are to be changed. All engines change theirs together.
            is_closed: Whether it asks for nothing more. The engines end when all are closed.
        """
        states = self._exchange((is_busy, has_update, is_closed))
        busy, updates, closed = ([state[place] for state in states] for place in range(3))
        if all(closed):
            return Agreed.CLOSE
        if all(update or end for update, end in zip(updates, closed, strict=True)):
            return Agreed.UPDATE
        if any(busy):
            self._n_idle = 0
            return Agreed.STEP
        self._n_idle += 1
        time.sleep(min(0.0005 * self._n_idle, _LONGEST_IDLE_S))
        return Agreed.WAIT

    def step(self) -> list[Any]:
        """Give the engine what all processes ask for, and step; return its outputs. A collective."""
        mine = self._added, self._aborted
        self._added, self._aborted, self.refused = [], [], {}
        names = {name for name, _, _ in mine[0]}
        for added, aborted in self._exchange(mine):
            for name, prompt, params in added:
                try:
                    self._engine.add_request(name, prompt, params)
                except Exception as error:  # each engine refuses it for the same reason
                    if name in names:
                        self.refused[name] = error
            if aborted:
                self._engine.abort_request(aborted)
        return self._engine.step() if self._engine.has_unfinished_requests() else []

    def fail(self, error: Exception) -> None:
        """Tell the others, instead of the next collective, that this engine has failed; unless one of them told us."""
        if not isinstance(error, PeerFailedError):
            with suppress(RuntimeError):  # they may be gone
                self._exchange(f"{type(error).__name__}: {error}")

    def _exchange(self, mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        for rank, one in enumerate(everyone):
            if isinstance(one, str) and rank != dist.get_rank(self._group):
                raise PeerFailedError(f"the engine of process {rank} of its group failed: {one}")
        return everyone
