"""How a trainer's time was used from one generation to the next: sampling, environment, waiting, training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

from accelerate.utils import gather_object

from llm_envs.tracking.stats import CollectorStats

__all__ = ["TimeShares"]


class TimeShares:
    """Shares of the wall time between the ends of two generations.

    - *sampling* and *environment*: at least one episode waits for the policy, or for its environment.
    - *waiting*: the trainer waits for episodes.
    - *training*: all the rest of the trainer's time.

    The first two overlap, and with generations that are played early they overlap the last too.

    Args:
        stats: The counts of the trainer's collector.
    """

    def __init__(self, stats: CollectorStats) -> None:
        self._stats, self.waited_s = stats, 0.0
        self._last = self._seconds()
        self._shares: dict[str, float] = {}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - started

    def end_generation(self) -> None:
        """Compute the shares since the generation before."""
        now, earlier = self._seconds(), self._last
        shares = {name: (now[name] - earlier[name]) / (now["wall"] - earlier["wall"]) for name in now if name != "wall"}
        self._shares, self._last = shares | {"training": 1 - shares["waiting"]}, now

    def gather(self) -> dict[str, float]:
        """Return the latest shares, as means over all processes. Every process must call this."""
        parts = gather_object([self._shares])
        return {name: fmean(part[name] for part in parts) for name in self._shares}

    def _seconds(self) -> dict[str, float]:
        stats = self._stats
        busy = {"sampling": stats.policy_time.seconds, "environment": stats.env_time.seconds}
        return {"wall": time.perf_counter(), "waiting": self.waited_s} | busy
