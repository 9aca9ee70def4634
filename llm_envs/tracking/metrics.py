"""Numbers from trajectories: one flat dict of floats, which any logger takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from llm_envs.types import StopReason, Trajectory

__all__ = ["average_metrics", "metrics_by", "trajectory_metrics"]


def trajectory_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Summarise episodes.

    Means are over the scored episodes (status `ok`): an errored episode is counted, but not as reward 0.
    Without a scored episode the means are left out.

    Args:
        trajectories: Episodes of any tasks and groups.

    Returns:
        `episodes` and `errored` (counts, unscored ones among the latter), then the means `success`, `reward`,
        `reward/<component>`, `turns` (without summaries), `sampled_tokens`, `forks` (rows beyond the first; only if
        there was one), `tool_calls`, `tool_success` (share of the calls; only if there was one), and `stop/<reason>`
        (share of the episodes).
    """
    everything = list(trajectories)
    scored = [trajectory for trajectory in everything if trajectory.status == "ok"]
    metrics = {"episodes": float(len(everything)), "errored": float(len(everything) - len(scored))}
    if not scored:
        return metrics
    metrics["success"] = _mean([bool(trajectory.is_success) for trajectory in scored])
    metrics["reward"] = _mean([trajectory.reward for trajectory in scored])
    metrics |= _component_means(scored)
    metrics["turns"] = _mean([trajectory.n_steps for trajectory in scored])
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


def metrics_by(
    trajectories: Iterable[Trajectory], labels_of: Callable[[Trajectory], Iterable[str]]
) -> dict[str, dict[str, float]]:
    """Summarise episodes by label: label -> the `trajectory_metrics` of its episodes.

    Args:
        trajectories: Episodes.
        labels_of: An episode -> its labels.
    """
    parts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        for label in labels_of(trajectory):
            parts.setdefault(label, []).append(trajectory)
    return {label: trajectory_metrics(part) for label, part in parts.items()}


def average_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Merge the `trajectory_metrics` of several processes: counts add up, means are weighted by scored episodes.

    Args:
        parts: One mapping per process. A stop reason missing from one counts as 0 there; other missing metrics are
            averaged over the processes that have them.
    """
    out = {name: sum(part[name] for part in parts) for name in ("episodes", "errored")}
    every_stop = {f"stop/{reason.value}" for reason in StopReason}  # a reason that is left out cannot be averaged
    weights = [part["episodes"] - part["errored"] for part in parts]
    names = {name for part in parts for name in part} | (every_stop if any(weights) else set())
    for name in sorted(names - out.keys()):
        pairs = [
            (part.get(name, 0.0), weight)
            for part, weight in zip(parts, weights, strict=True)
            if weight and (name in part or name.startswith("stop/"))
        ]
        out[name] = sum(value * weight for value, weight in pairs) / sum(weight for _, weight in pairs)
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _component_means(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Average each component over the episodes that have it, because tasks declare different ones."""
    values: dict[str, list[float]] = {}
    for trajectory in scored:
        for name, value in trajectory.components.items():
            values.setdefault(f"reward/{name}", []).append(value)
    return {name: _mean(values[name]) for name in sorted(values)}
