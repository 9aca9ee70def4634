"""Measure a policy, compare two policies, and compute the statistics."""

from __future__ import annotations

from llm_envs.evaluation.comparison import Comparison, Difference, TaskComparison, compare
from llm_envs.evaluation.exploitability import expected_returns, nash_conv
from llm_envs.evaluation.results import Results, TaskResult
from llm_envs.evaluation.run import (
    Evaluation,
    evaluate,
    evaluate_suite,
    replay,
    summarize,
)
from llm_envs.evaluation.statistics import (
    Interval,
    clustered_rate_interval,
    mean_interval,
    paired_interval,
    pass_at_k,
    pass_hat_k,
    sign_test,
)
from llm_envs.evaluation.suite import Suite, SuiteEntry, load_suite
from llm_envs.evaluation.table import show_comparison, show_results
from llm_envs.evaluation.turn_values import TurnValue, turn_values

__all__ = [
    "Comparison",
    "Difference",
    "Evaluation",
    "Interval",
    "Results",
    "Suite",
    "SuiteEntry",
    "TaskComparison",
    "TaskResult",
    "TurnValue",
    "clustered_rate_interval",
    "compare",
    "evaluate",
    "evaluate_suite",
    "expected_returns",
    "load_suite",
    "mean_interval",
    "nash_conv",
    "paired_interval",
    "pass_at_k",
    "pass_hat_k",
    "replay",
    "show_comparison",
    "show_results",
    "sign_test",
    "summarize",
    "turn_values",
]
