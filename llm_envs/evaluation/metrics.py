"""The results of an evaluation as one flat dict of numbers, for trackers."""

from __future__ import annotations

import math
import re

from llm_envs.evaluation.results import Measure, Results, TaskResult

__all__ = ["evaluation_metrics"]


def evaluation_metrics(results: Results) -> dict[str, float]:
    """Return an evaluation as numbers, `eval/...` and `eval/TASK/...`; docs/reference/metrics.md explains each.

    In a task's name, every character except letters, digits and `-_./` becomes `_`, for all trackers. Unknown values
    (NaN, an interval without an end) are left out.
    """
    metrics = _measured("eval/success", results.success)
    if len(results.by_difficulty) > 1:
        for level, found in results.by_difficulty.items():
            metrics |= _measured(f"eval/difficulty/{_name(level)}/success", found)
    for task in results:
        metrics |= {f"eval/{_name(task.name)}/{name}": value for name, value in _of_task(task).items()}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}


def _of_task(task: TaskResult) -> dict[str, float]:
    metrics = _measured("success", task.success) | _measured("reward", task.reward)
    for name, found in (("pass_at", task.pass_at), ("pass_hat", task.pass_hat)):
        for k, estimate in found.items():
            metrics |= _measured(f"{name}_{k}", estimate, with_bootstrap=False)
    metrics |= {f"reward/{_name(name)}": found.value for name, found in task.components.items()}
    metrics |= {"episodes": task.n_episodes, "scored": task.n_scored}
    metrics |= {"errored_rate": task.error_rate, "unscored_rate": task.unscored_rate, "truncated_rate": task.truncated}
    metrics |= {"malformed_turns_rate": task.malformed_turns, "turns": task.turns, "tokens": task.tokens}
    metrics |= {"sampled_tokens": task.sampled_tokens, "seconds": task.seconds}
    return metrics | {f"stop/{name}": n / task.n_episodes for name, n in task.stop_reasons.items()}


def _measured(name: str, found: Measure, *, with_bootstrap: bool = True) -> dict[str, float]:
    """Return a mean and the ends of its intervals."""
    ends = {"low": found.interval.low, "high": found.interval.high}
    if with_bootstrap:
        ends |= {"bootstrap_low": found.bootstrap.low, "bootstrap_high": found.bootstrap.high}
    return {name: found.value} | {f"{name}_{end}": value for end, value in ends.items()}


def _name(text: str) -> str:
    return re.sub(r"[^\w./-]", "_", text, flags=re.ASCII)
