"""The numbers of a report: of each run and environment, success with its interval and rewards; of two runs, the paired.

The intervals are those of `statistics`, by problem, as in an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from llm_envs.statistics import Interval, clustered_rate_interval, paired_interval, sign_test
from llm_envs.types import Trajectory

__all__ = ["EnvSummary", "compare_runs"]

Problem = int
"""A number that episodes of one environment, seed and settings share, in all runs."""


@dataclass(slots=True)
class EnvSummary:
    """Counts of one run's episodes of one environment."""

    episodes: int = 0
    won: dict[Problem, list[float]] = field(default_factory=dict)
    """Problem -> 1 for each success, 0 for each other scored episode."""
    rewards: dict[Problem, list[float]] = field(default_factory=dict)
    """Problem -> rewards of its scored episodes."""
    components: dict[str, list[float]] = field(default_factory=dict)
    """Component -> sums over the turns of the scored episodes that have it."""

    def add(self, trajectory: Trajectory, problem: Problem) -> None:
        """Count an episode; one without a score counts as an episode and as nothing else."""
        self.episodes += 1
        if trajectory.status != "ok":
            return
        self.won.setdefault(problem, []).append(float(trajectory.is_success is True))
        self.rewards.setdefault(problem, []).append(trajectory.reward)
        for name, value in trajectory.components.items():
            self.components.setdefault(name, []).append(value)

    def numbers(self) -> dict[str, Any]:
        """Return what the page shows, as JSON types; without a scored episode there is no rate and no mean."""
        won, rewards = list(chain(*self.won.values())), list(chain(*self.rewards.values()))
        out: dict[str, Any] = {"episodes": self.episodes, "scored": len(won), "problems": len(self.won)}
        if won:
            low, high = clustered_rate_interval(list(self.won.values()))
            out |= {"success": fmean(won), "low": low, "high": high, "reward": fmean(rewards)}
            out["components"] = {name: fmean(values) for name, values in sorted(self.components.items())}
        return out


def compare_runs(parts: Mapping[tuple[int, int], EnvSummary]) -> list[dict[str, Any]]:
    """Return, for each two runs with problems in common, what the second has more than the first.

    Args:
        parts: (run, environment) -> its counts.

    Returns:
        For each pair `runs`, `problems` in common, `success` (cut to [-1, 1]) and `reward` as [mean difference, low,
        high] (two nulls with fewer than two problems), and the sign test's `p` for success.
    """
    out = []
    for one, other in combinations(sorted({run for run, _ in parts}), 2):
        success, reward, samples = [], [], 1
        for (run, env), there in parts.items():
            here = parts.get((other, env))
            if run != one or here is None:
                continue
            for problem in there.won.keys() & here.won.keys():
                success.append(fmean(here.won[problem]) - fmean(there.won[problem]))
                reward.append(fmean(here.rewards[problem]) - fmean(there.rewards[problem]))
                samples = max(samples, min(len(here.won[problem]), len(there.won[problem])))
        if success:
            changed = sum(value > 0 for value in success), sum(value < 0 for value in success)
            # Where nothing differs, the data do not tell what the least difference is.
            by_success = paired_interval(success, smallest=1 / samples if any(changed) else 1.0)
            out.append(
                {
                    "runs": [one, other],
                    "problems": len(success),
                    "success": [None if v is None else max(-1.0, min(1.0, v)) for v in _difference(by_success)],
                    "reward": _difference(paired_interval(reward)),
                    "p": sign_test(*changed),
                }
            )
    return out


def _difference(paired: tuple[float, float, Interval]) -> list[float | None]:
    mean, error, interval = paired
    return [mean, *(interval if error < float("inf") else (None, None))]
