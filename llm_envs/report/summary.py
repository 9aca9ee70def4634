"""The numbers at the head of a report: of each run and environment, success with its interval, rewards, components."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from llm_envs.statistics import Interval, wilson_interval
from llm_envs.types import Trajectory

__all__ = ["EnvSummary", "success_interval"]


@dataclass(slots=True)
class EnvSummary:
    """Counts of one run's episodes of one environment."""

    episodes: int = 0
    rewards: list[float] = field(default_factory=list)
    """Of the scored episodes."""
    problems: dict[Hashable, list[int]] = field(default_factory=dict)
    """Problem -> [successes, scored episodes]."""
    components: dict[str, list[float]] = field(default_factory=dict)
    """Component -> sums over the turns of the scored episodes that have it."""

    def add(self, trajectory: Trajectory, problem: Hashable) -> None:
        """Count an episode; one without a score counts as an episode and as nothing else."""
        self.episodes += 1
        if trajectory.status != "ok":
            return
        self.rewards.append(trajectory.reward)
        count = self.problems.setdefault(problem, [0, 0])
        count[0] += trajectory.is_success is True
        count[1] += 1
        for name, value in trajectory.components.items():
            self.components.setdefault(name, []).append(value)

    def numbers(self) -> dict[str, Any]:
        """Return what the page shows, as JSON types; without a scored episode there is no rate and no mean."""
        n = len(self.rewards)
        out: dict[str, Any] = {"episodes": self.episodes, "scored": n, "problems": len(self.problems)}
        if n:
            low, high = success_interval(self.problems)
            successes = sum(count[0] for count in self.problems.values())
            out |= {"success": successes / n, "low": low, "high": high, "reward": fmean(self.rewards)}
            out["components"] = {name: fmean(values) for name, values in sorted(self.components.items())}
        return out


def success_interval(problems: Mapping[Hashable, list[int]], confidence: float = 0.95) -> Interval:
    """Return an interval of the success rate that knows that episodes of one problem resemble each other.

    Wilson's interval, with the number of episodes that independent ones would be: m = p(1-p) / v, where
    v = G/(G-1) Σ_g (s_g - p n_g)² / n² is the variance of the rate over the G problems, of which each has s_g successes
    in n_g episodes. m is kept between G and n. With one episode a problem it is Wilson's interval itself. L. Kish,
    "Survey Sampling" (1965), on the effective sample size.

    Args:
        problems: Problem -> [successes, episodes].
        confidence: In (0, 1).
    """
    n, groups = sum(count[1] for count in problems.values()), len(problems)
    successes = sum(count[0] for count in problems.values())
    if n == groups or not n:
        return wilson_interval(successes, n, confidence)
    rate = successes / n
    spread = sum((s - rate * m) ** 2 for s, m in problems.values())
    variance = math.inf if groups < 2 else groups / (groups - 1) * spread / n**2
    independent = n if variance == 0 else rate * (1 - rate) / variance
    if rate in (0, 1):
        independent = groups
    effective = max(groups, min(n, round(independent)))
    low, _ = wilson_interval(math.floor(rate * effective + 1e-9), effective, confidence)
    _, high = wilson_interval(math.ceil(rate * effective - 1e-9), effective, confidence)
    return Interval(low, high)
