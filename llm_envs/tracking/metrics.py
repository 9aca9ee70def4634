"""Numbers from trajectories: one flat dict of floats, which any logger takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from llm_envs.parsers import QUIRKS
from llm_envs.types import StopReason, Trajectory

__all__ = ["add_totals", "average_metrics", "metric_totals", "metrics_by", "trajectory_metrics"]

T = TypeVar("T", bound=Mapping[str, object])

_COUNTS = ("episodes", "errored")


def trajectory_metrics(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Summarise episodes.

    Means are over the scored episodes (status `ok`): an errored episode is counted, but not as reward 0.
    Without a scored episode the means are left out.

    Args:
        trajectories: Episodes of any tasks and groups.

    Returns:
        `episodes` and `errored` (counts, unscored ones among the latter), then the means `success`, `reward`,
        `reward/<component>`, `turns` (without summaries), `sampled_tokens`, `forks` (rows beyond the first; only if
        there was one), `tool_calls`, `tool_success` (share of the calls; only if there was one), `quirks/<kind>` (what
        the parser tolerated, an episode; only if there was one), and `stop/<reason>` (share of the episodes).
    """
    return _means(metric_totals(trajectories))


def metric_totals(trajectories: Iterable[Trajectory]) -> dict[str, tuple[float, float]]:
    """Return the metrics of episodes as sums that can be added: `name -> (sum, number of episodes or calls)`.

    `average_metrics` makes metrics of the totals of several processes. Counts are sums with the number 1.
    """
    everything = list(trajectories)
    scored = [trajectory for trajectory in everything if trajectory.status == "ok"]
    totals = {"episodes": (float(len(everything)), 1.0), "errored": (float(len(everything) - len(scored)), 1.0)}
    if not scored:
        return totals
    calls = [result.success for trajectory in scored for result in trajectory.tool_results]
    values: dict[str, Sequence[float]] = {
        "success": [bool(trajectory.is_success) for trajectory in scored],
        "reward": [trajectory.reward for trajectory in scored],
        **_components(scored),
        "turns": [trajectory.n_steps for trajectory in scored],
        "sampled_tokens": [trajectory.n_sampled_tokens for trajectory in scored],
        "forks": [trajectory.n_forks for trajectory in scored],
        "tool_calls": [len(trajectory.tool_results) for trajectory in scored],
        "tool_success": calls,
        **{f"quirks/{kind}": [t.metadata.get("quirks", {}).get(kind, 0) for t in scored] for kind in QUIRKS},
    }
    totals |= {name: (float(sum(numbers)), float(len(numbers))) for name, numbers in values.items()}
    stops = Counter(trajectory.stop_reason for trajectory in scored)
    return totals | {f"stop/{reason.value}": (float(n), float(len(scored))) for reason, n in sorted(stops.items())}


def metrics_by(
    trajectories: Iterable[Trajectory],
    labels_of: Callable[[Trajectory], Iterable[str]],
    metrics_of: Callable[[Sequence[Trajectory]], T] = trajectory_metrics,  # type: ignore[assignment]
) -> dict[str, T]:
    """Summarise episodes by label: label -> the `trajectory_metrics` of its episodes.

    Args:
        trajectories: Episodes.
        labels_of: An episode -> its labels.
        metrics_of: Summarises the episodes of a label, such as `metric_totals`.
    """
    parts: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        for label in labels_of(trajectory):
            parts.setdefault(label, []).append(trajectory)
    return {label: metrics_of(part) for label, part in parts.items()}


def average_metrics(parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, float]:
    """Return the metrics of the episodes of several processes together: the same as of one process with all of them.

    Args:
        parts: The `metric_totals` of each process.

    Returns:
        As `trajectory_metrics`; a stop reason that no episode had is 0.
    """
    return _means(add_totals(parts))


def add_totals(parts: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return the `metric_totals` of all parts together; those of a stop reason that no episode had are 0."""
    merged: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (total, n) in part.items():
            before, n_before = merged.get(name, (0.0, 0.0))
            merged[name] = before + total, 1.0 if name in _COUNTS else n_before + n
    n_scored = merged.get("reward", (0.0, 0.0))[1]
    if n_scored:  # every part counts all of its scored episodes, also without this reason
        stops = sorted(f"stop/{reason.value}" for reason in StopReason)
        merged |= {name: (merged.get(name, (0.0, 0.0))[0], n_scored) for name in stops}
    return merged


def _means(totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Return the means; of `forks` and quirks only those that there were."""
    rare = ("forks", "quirks/")
    shown = {name: pair for name, pair in totals.items() if pair[1] and (pair[0] or not name.startswith(rare))}
    return {name: total / n for name, (total, n) in shown.items()}


def _components(scored: Sequence[Trajectory]) -> dict[str, list[float]]:
    """Return each component of the episodes that have it, because tasks declare different ones."""
    values: dict[str, list[float]] = {}
    for trajectory in scored:
        for name, value in trajectory.components.items():
            values.setdefault(f"reward/{name}", []).append(value)
    return {name: values[name] for name in sorted(values)}
