"""Numbers from trajectories: one flat dict of floats, which any logger takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from llm_envs.types import StopReason, Trajectory

__all__ = ["trajectory_metrics"]


def trajectory_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Summarise episodes.

    Means are over the scored episodes (status `ok`): one that errored is counted, and is not one that scored 0.
    Without a scored episode the means are left out.

    Args:
        trajectories: Episodes of any tasks and groups.

    Returns:
        `episodes` and `errored` (counts, unscored ones among the latter), then the means `success`, `reward`,
        `reward/<component>`, `turns`, `sampled_tokens`, `forks` (rows beyond the first; only if there was one),
        `tool_calls`, `tool_success` (share of the calls; only if there was one), and `stop/<reason>` (share of the
        episodes).
    """
    everything = list(trajectories)
    scored = [trajectory for trajectory in everything if trajectory.status == "ok"]
    metrics = {"episodes": float(len(everything)), "errored": float(len(everything) - len(scored))}
    if not scored:
        return metrics
    metrics["success"] = _mean([bool(trajectory.is_success) for trajectory in scored])
    metrics["reward"] = _mean([trajectory.reward for trajectory in scored])
    metrics |= _component_means(scored)
    metrics["turns"] = _mean([len(trajectory.turns) for trajectory in scored])
    metrics["sampled_tokens"] = _mean([trajectory.n_sampled_tokens for trajectory in scored])
    if any(trajectory.n_forks for trajectory in scored):
        metrics["forks"] = _mean([trajectory.n_forks for trajectory in scored])
    calls = [result.success for trajectory in scored for result in trajectory.tool_results]
    metrics["tool_calls"] = len(calls) / len(scored)
    if calls:
        metrics["tool_success"] = _mean(calls)
    stops = Counter(trajectory.stop_reason for trajectory in scored)
    metrics |= {f"stop/{reason.value}": stops[reason] / len(scored) for reason in StopReason if stops[reason]}
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _component_means(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Average each component over the episodes that have it: tasks declare different ones."""
    values: dict[str, list[float]] = {}
    for trajectory in scored:
        for name, value in trajectory.components.items():
            values.setdefault(f"reward/{name}", []).append(value)
    return {name: _mean(values[name]) for name in sorted(values)}
