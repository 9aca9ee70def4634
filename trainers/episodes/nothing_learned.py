"""Whether a generation has anything to learn from, and why not: equal rewards, dropped groups, failed episodes.

If all episodes of several generations in a row fail, `FailureCount` ends the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from llm_envs.errors import RolloutFailedError, counted
from llm_envs.tracking.reasons import count_reasons, describe_reasons
from llm_envs.trainers.episodes.rewards import EpisodeRewards
from llm_envs.trainers.functional.batch import Batch
from llm_envs.types import Trajectory

__all__ = [
    "DROPPED",
    "FailureCount",
    "LearningCount",
    "Yield",
    "describe_failures",
    "generation_yield",
    "has_signal",
    "is_dropped",
    "why_nothing",
]

DROPPED = "group_filter"
"""Where the error of an episode lies that stands in a place without a group: the filter dropped them all."""
MAX_FAILED_GENERATIONS = 3
"""Tolerate a failed generation; stop after three in a row."""
_LEAST = 1e-6
"""An advantage below is the rounding of equal rewards' mean."""
_PAGE = "docs/guides/debug.md has what to do"


@dataclass(frozen=True)
class Yield:
    """How much one process can learn from a generation."""

    has_signal: bool
    """Whether any token that is trained has an advantage, or any pair was found."""
    n_groups: int
    n_equal: int
    """Groups with at least two scored episodes, whose rewards are all equal."""
    n_dropped: int
    """Places without a group, because the filter dropped all that were played."""
    failures: Counter[str]
    """Why episodes have no score -> their number."""


def has_signal(batch: Batch, n_pairs: int | None, *, learns_without: bool) -> bool:
    """Return whether the loss of a batch can depend on rewards.

    Args:
        batch: With its advantages, (B,) or (B, T); None: a critic's come later.
        n_pairs: Pairs of all processes; None: the algorithm has no pairs.
        learns_without: Whether the loss teaches without rewards, by a teacher.
    """
    if not bool(batch.mask_BT.any()):
        return False
    if n_pairs is not None:
        return n_pairs > 0
    if batch.advantages is None or learns_without:
        return True
    advantages = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
    return bool(torch.where(batch.mask_BT.bool(), advantages.abs(), 0.0).gt(_LEAST).any())


def generation_yield(episodes: EpisodeRewards, signal: bool) -> Yield:
    """Return what this process's episodes of a generation have to learn from."""
    groups: dict[str, list[float]] = {}
    dropped: set[str] = set()
    failed: list[Trajectory] = []
    for trajectory, reward in zip(episodes.trajectories, episodes.rewards, strict=True):
        scored = groups.setdefault(trajectory.group_id, [])
        if trajectory.status == "ok":
            scored.append(float(reward))
        elif is_dropped(trajectory):
            dropped.add(trajectory.group_id)
        else:
            failed.append(trajectory)
    n_equal = sum(len(rewards) > 1 and np.allclose(rewards, rewards[0], rtol=0) for rewards in groups.values())
    return Yield(signal, len(groups), n_equal, len(dropped), count_reasons(failed))


def why_nothing(yields: Sequence[Yield]) -> str | None:
    """Return why a generation teaches nothing, from what each process has; None: there is something to learn."""
    if any(part.has_signal for part in yields):
        return None
    n_groups, n_equal, n_dropped = (
        sum(getattr(part, name) for part in yields) for name in ("n_groups", "n_equal", "n_dropped")
    )
    failures = sum((part.failures for part in yields), Counter[str]())
    reasons = []
    if n_equal:
        reasons.append(f"in {n_equal} of {n_groups} groups all rewards were equal")
    if n_dropped:
        reasons.append(f"the group_filter dropped all groups played for {n_dropped} of {n_groups} places")
    if failures:
        reasons.append(f"{counted(failures.total(), 'episode')} without a score ({describe_reasons(failures)})")
    return "; ".join(reasons or ["no token of a scored episode is trained"])


def is_dropped(trajectory: Trajectory) -> bool:
    """Return whether an episode only stands in a place whose groups the filter dropped."""
    return trajectory.error is not None and trajectory.error.where == DROPPED


def describe_failures(failures: Mapping[str, int], n_episodes: int) -> str:
    """Return how many of the episodes have no score, and why."""
    n = sum(failures.values())
    return f"{n} of {n_episodes} episodes failed and are not trained on: {describe_reasons(failures)}"


@dataclass
class FailureCount:
    """Ends a training whose episodes all fail: it counts the generations in a row without a score."""

    n_in_a_row: int = 0

    def add(self, failures: Mapping[str, int], n_episodes: int) -> None:
        """Count a generation.

        Args:
            failures: Why episodes have no score -> their number, of all processes.
            n_episodes: Number of all episodes, of all processes.

        Raises:
            RolloutFailedError: If no episode of `MAX_FAILED_GENERATIONS` generations in a row has a score.
        """
        self.n_in_a_row = self.n_in_a_row + 1 if 0 < n_episodes == sum(failures.values()) else 0
        if self.n_in_a_row >= MAX_FAILED_GENERATIONS:
            raise RolloutFailedError(
                f"{describe_failures(failures, n_episodes)}. That is all of them, {MAX_FAILED_GENERATIONS} generations "
                "in a row: training stops."
            )


@dataclass
class LearningCount:
    """Counts the generations of a training that taught something, and those that did not."""

    n_generations: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    n_in_a_row: int = 0

    def add(self, why: str | None) -> str | None:
        """Count a generation; return a warning for the first, second, fourth, ... in a row that taught nothing."""
        self.n_generations += 1
        self.n_in_a_row = 0 if why is None else self.n_in_a_row + 1
        if why is None:
            return None
        self.reasons[why] += 1
        is_told = self.n_in_a_row & (self.n_in_a_row - 1) == 0
        return f"{why}: nothing was learned ({self.n_in_a_row} in a row; {_PAGE})" if is_told else None

    @property
    def learned_nothing(self) -> bool:
        """Whether there were generations, and none taught anything."""
        return 0 < self.n_generations == self.reasons.total()

    def summary(self) -> str | None:
        """Return what to say at the end of a training; None: every generation taught something."""
        if not self.reasons:
            return None
        n = self.reasons.total()
        return (
            f"{n} of {self.n_generations} generations taught nothing; most often, "
            f"{self.reasons.most_common(1)[0][0]} ({_PAGE})"
        )
