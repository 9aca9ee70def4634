"""Evaluation results in the form of a report's page, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from llm_envs.errors import InvalidConfigError
from llm_envs.evaluation.comparison import compare
from llm_envs.evaluation.results import Results
from llm_envs.report.runs import ReportRun
from llm_envs.tracking.loggers import visible_text

__all__ = ["compare_results", "results_block", "visible"]


def results_block(results: Results) -> dict[str, Any]:
    """Return the results as JSON types that are safe to show, without the scores of each problem."""
    data = results.to_dict()
    tasks = [{name: value for name, value in task.items() if name != "problems"} for task in data["tasks"]]
    shown: dict[str, Any] = visible({**data, "tasks": tasks})
    return shown


def compare_results(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Return, for each two runs with results, the later one compared with the earlier by `comparison.compare`.

    Returns:
        For each pair `runs`, and `found` as `Comparison.to_dict` has it, or `refused`: why they cannot be compared.
    """
    out: list[dict[str, Any]] = []
    evaluated = [(number, run, run.results) for number, run in enumerate(runs) if run.results is not None]
    for (one, before, that), (other, after, this) in combinations(evaluated, 2):
        pair: dict[str, Any] = {"runs": [one, other]}
        try:
            confidence = this.confidence
            found = compare(this, that, names=(after.name, before.name), confidence=confidence)
            out.append(pair | {"found": visible(found.to_dict())})
        except InvalidConfigError as error:
            out.append(pair | {"refused": visible_text(str(error))})
    return out


def visible(value: Any) -> Any:
    """Return JSON types with every text in them, keys too, made visible."""
    if isinstance(value, str):
        return visible_text(value)
    if isinstance(value, dict):
        return {visible_text(str(name)): visible(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [visible(item) for item in value]
    return value
