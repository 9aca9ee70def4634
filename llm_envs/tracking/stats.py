"""The counts of a running collector, and their summary line."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_envs.errors import RolloutFailedError, counted
from llm_envs.tracking.reasons import add_reason, describe_unscored
from llm_envs.types import Trajectory, TrajectoryGroup

__all__ = ["BusyTime", "CollectorStats", "nothing_passes"]


MAX_DURATIONS = 256
"""Finished episodes whose duration is known: enough to know how slow the slow ones are."""


class BusyTime:
    """The seconds during which at least one of several overlapping activities is under way.

    Each activity is a `with` block; all of them are in one thread. Other threads may read `seconds`.
    """

    def __init__(self) -> None:
        self._n, self._since, self.earlier_s = 0, 0.0, 0.0
        """Seconds of the times that are over."""

    def __enter__(self) -> None:
        if not self._n:
            self._since = time.perf_counter()
        self._n += 1

    def __exit__(self, *exception: object) -> None:
        self._n -= 1
        if not self._n:
            self.earlier_s += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """The seconds until now."""
        return self.earlier_s + (time.perf_counter() - self._since if self._n else 0.0)


@dataclass(slots=True)
class CollectorStats:
    """Counts of a collector's episodes so far. Only the collector updates them.

    `running + partials + accepted + dropped == submitted` holds whenever none of the collector's code is running.
    """

    submitted: int = 0
    """Episodes admitted."""
    running: int = 0
    partials: int = 0
    """Unfinished episodes that over-sampling left for the next call."""
    rejected_groups: int = 0
    """Groups that the filter, fail-fast or the selection dropped."""
    accepted: int = 0
    """Episodes that became a trajectory, with any status."""
    dropped: int = 0
    """Episodes that were cancelled: by an interrupt, or by a failure of the collecting code."""
    errored: int = 0
    unscored: int = 0
    """Episodes without a turn, or without a judgement."""
    retries: int = 0
    successes: int = 0
    reward: float = 0.0
    """Sum over the scored episodes."""
    turns: int = 0
    sampled_tokens: int = 0
    """Tokens that the policy wrote in finished episodes."""
    written_tokens: int = 0
    """Tokens that a token policy has written so far, turn by turn, including unfinished and failed episodes."""
    open_tokens: Callable[[], int] | None = field(default=None, compare=False)
    """Returns the tokens so far of turns that are being sampled, if the policy knows (`n_open_tokens`)."""
    tokens: int = 0
    """Tokens of all rows."""
    forks: int = 0
    """Rows beyond the first of each episode: how often a model had to see a changed history."""
    neutralised: int = 0
    """Environment texts that contained the model's special tokens and were encoded as plain text."""
    stop_reasons: Counter[str] = field(default_factory=Counter)
    why_unscored: Counter[str] = field(default_factory=Counter)
    """Why episodes have no score -> their number (`tracking.reasons`)."""
    clock: BusyTime = field(default_factory=BusyTime, compare=False)
    """When at least one call of the collector is under way."""
    policy_time: BusyTime = field(default_factory=BusyTime, compare=False)
    """When at least one episode waits for the policy."""
    env_time: BusyTime = field(default_factory=BusyTime, compare=False)
    """When at least one environment is being made, reset or stepped."""
    open_episodes: dict[tuple[str, int], tuple[str, int, float]] = field(default_factory=dict, compare=False)
    """(group_id, member) of each episode under way -> environment, seed, and when it began (`time.monotonic`)."""
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS), compare=False)
    """Seconds that the latest finished episodes took, retries included."""
    is_paused: bool = False
    """Whether the unfinished episodes wait for the next call."""

    @property
    def scored(self) -> int:
        """Episodes with a reward."""
        return self.accepted - self.errored - self.unscored

    @property
    def elapsed_s(self) -> float:
        """Wall time spent collecting, including the running call."""
        return self.clock.seconds

    @property
    def live_tokens(self) -> int:
        """Tokens that the policy has written until now, as far as known."""
        written = self.written_tokens + (self.open_tokens() if self.open_tokens is not None else 0)
        return max(written, self.sampled_tokens)  # tokens of a text policy are known only after the episode

    def pause(self, is_paused: bool) -> None:
        """Turn running episodes into partials, or back."""
        under_way, self.is_paused = self.running + self.partials, is_paused
        self.running, self.partials = (0, under_way) if is_paused else (under_way, 0)

    def count(self, change: int) -> None:
        """Count an episode that begins (1) or ends (-1)."""
        if self.is_paused:
            self.partials += change
        else:
            self.running += change

    def add_tokens(self, n_tokens: int) -> None:
        """Count tokens of a turn."""
        self.written_tokens += n_tokens

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        self.accepted += 1
        self.errored += trajectory.status == "errored"
        self.unscored += trajectory.status == "unscored"
        self.retries += trajectory.metadata.get("retries", 0)
        self.stop_reasons[trajectory.stop_reason.value] += 1
        if (reason := trajectory.why_unscored) is not None:
            add_reason(self.why_unscored, reason)
        if trajectory.status == "ok":
            self.successes += trajectory.is_success is True
            self.reward += trajectory.reward
        self.turns += trajectory.n_steps
        self.sampled_tokens += trajectory.n_sampled_tokens
        self.tokens += trajectory.n_tokens
        self.forks += trajectory.n_forks

    def summary(self) -> str:
        """Return a readable line."""
        seconds, scored = max(self.elapsed_s, 1e-9), max(self.scored, 1)
        parts = [
            f"{counted(self.accepted, 'episode')} in {seconds:.1f} s ({self.accepted / seconds:.1f}/s)",
            f"success {self.successes / scored:.1%}" if self.scored else "",
            f"reward {self.reward / scored:.3g}" if self.scored else "",
            f"{self.turns / max(self.accepted, 1):.1f} turns",
        ]
        if self.sampled_tokens:
            parts.append(f"{self.sampled_tokens / seconds:.0f} tokens/s")
        if self.forks:
            parts.append(f"{self.forks} forks")
        if self.neutralised:
            parts.append(f"{self.neutralised} texts with the model's own markers, kept as text")
        parts.append(" ".join(f"{reason}={count}" for reason, count in self.stop_reasons.most_common()))
        parts.append(describe_unscored(self.errored, self.unscored, self.why_unscored))
        if self.rejected_groups:
            parts.append(f"{counted(self.rejected_groups, 'group')} filtered out")
        if self.dropped:
            parts.append(f"{self.dropped} dropped")
        return ", ".join(part for part in parts if part)


def nothing_passes(few: str, setting: str, group: TrajectoryGroup, stats: CollectorStats) -> RolloutFailedError:
    """Return the error for a filter that almost no group passes.

    Args:
        few: How many groups were played, and how many passed.
        setting: The setting that is the limit.
        group: The last group that did not pass.
        stats: All statistics.
    """
    rewards = ", ".join(f"{t.reward:g}" if t.status == "ok" else t.status for t in group.trajectories[:8])
    return RolloutFailedError(
        f"{few} passed the filter ({setting}). The rewards of the last one: {rewards}. Check whether the difficulty "
        f"fits the model, or change the filter. In total: {stats.summary()}"
    )
