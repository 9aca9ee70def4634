"""The numbers of a report: of each run and task, success with its interval and rewards; of two runs, the paired.

A task is an environment; where it was played with a few settings, such as levels of difficulty, each is a task.

The intervals are from `statistics`, by problem, as in an evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from llm_envs.evaluation.statistics import Interval, clustered_rate_interval, paired_interval, sign_test
from llm_envs.types import Trajectory

__all__ = ["TaskSummary", "by_task", "compare_runs", "settings_text"]

MAX_SETTINGS = 8
"""With more settings than this an environment is one task: its seeds or texts are among them."""

Problem = int
"""A number that episodes of one environment, seed and settings share, in all runs."""


@dataclass(slots=True)
class TaskSummary:
    """Counts of one run's episodes of one task."""

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

    def merge(self, other: TaskSummary) -> None:
        """Count another's episodes too."""
        self.episodes += other.episodes
        for mine, theirs in ((self.won, other.won), (self.rewards, other.rewards)):
            for problem, values in theirs.items():
                mine.setdefault(problem, []).extend(values)
        for name, values in other.components.items():
            self.components.setdefault(name, []).extend(values)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of the page, as JSON types; without a scored episode, rates and means are missing."""
        won, rewards = list(chain(*self.won.values())), list(chain(*self.rewards.values()))
        out: dict[str, Any] = {"episodes": self.episodes, "scored": len(won), "problems": len(self.won)}
        if won:
            low, high = clustered_rate_interval(list(self.won.values()))
            out |= {"success": fmean(won), "low": low, "high": high, "reward": fmean(rewards)}
            out["components"] = {name: fmean(values) for name, values in sorted(self.components.items())}
        return out


def by_task(
    parts: Mapping[tuple[int, int, int], TaskSummary], envs: Sequence[str], settings: Sequence[str]
) -> tuple[dict[tuple[int, int], TaskSummary], list[str]]:
    """Return the counts of each run and task, and the tasks' names.

    Args:
        parts: (run, environment, settings) -> its counts.
        envs: The environments' ids.
        settings: As JSON objects.

    Returns:
        (run, task) -> counts, and the names of the tasks: by environment, then by settings, as they first came.
    """
    kinds: dict[int, dict[int, None]] = {}
    for _, env, setting in parts:
        kinds.setdefault(env, {})[setting] = None
    names: list[str] = []
    tasks: dict[tuple[int, int], int] = {}
    for env in sorted(kinds):
        told = _told_apart([json.loads(settings[setting]) for setting in kinds[env]])
        for place, setting in enumerate(kinds[env]):
            if place == 0 or told is not None:
                names.append(f"{envs[env]} {told[place]}".rstrip() if told else envs[env])
            tasks[env, setting] = len(names) - 1
    out: dict[tuple[int, int], TaskSummary] = {}
    for (run, env, setting), part in parts.items():
        out.setdefault((run, tasks[env, setting]), TaskSummary()).merge(part)
    return out, names


def _told_apart(settings: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """Return the settings of each in which they differ; None for a single one, and for too many."""
    if not 1 < len(settings) <= MAX_SETTINGS:
        return None
    names = dict.fromkeys(chain(*settings))
    differing = [name for name in names if any(one.get(name) != settings[0].get(name) for one in settings)]
    return [settings_text({name: one[name] for name in differing if name in one}) for one in settings]


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings in a line."""
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in settings.items()
    )


def compare_runs(parts: Mapping[tuple[int, int], TaskSummary]) -> list[dict[str, Any]]:
    """Return, for each two runs with common problems, the second's advantage over the first.

    Args:
        parts: (run, task) -> its counts.

    Returns:
        For each pair `runs`, `problems` in common, `success` (cut to [-1, 1]) and `reward` as [mean difference, low,
        high] (two nulls with fewer than two problems), and the sign test's `p` for success.
    """
    out = []
    for one, other in combinations(sorted({run for run, _ in parts}), 2):
        success, reward, samples = [], [], 1
        for (run, task), there in parts.items():
            here = parts.get((other, task))
            if run != one or here is None:
                continue
            for problem in there.won.keys() & here.won.keys():
                success.append(fmean(here.won[problem]) - fmean(there.won[problem]))
                reward.append(fmean(here.rewards[problem]) - fmean(there.rewards[problem]))
                samples = max(samples, min(len(here.won[problem]), len(there.won[problem])))
        if success:
            changed = sum(value > 0 for value in success), sum(value < 0 for value in success)
            # Without any difference, the data do not show the smallest possible one.
            by_success = paired_interval(success, smallest=1 / samples if any(changed) else 1.0)
            out.append(
                {
                    "runs": [one, other],
                    "problems": len(success),
                    "success": _difference(by_success),
                    "reward": _difference(paired_interval(reward)),
                    "p": sign_test(*changed),
                }
            )
    return out


def _difference(paired: tuple[float, float, Interval]) -> list[float | None]:
    mean, error, interval = paired
    return [mean, *(interval if error < float("inf") else (None, None))]
