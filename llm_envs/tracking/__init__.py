"""Metrics of trajectories, loggers for them, and progress lines."""

from __future__ import annotations

from llm_envs.tracking.loggers import (
    Logger,
    console_logger,
    csv_logger,
    jsonl_logger,
    multi_logger,
    read_metrics,
    trajectory_table,
    visible_text,
)
from llm_envs.tracking.metrics import average_metrics, metric_totals, metrics_by, trajectory_metrics
from llm_envs.tracking.run_logger import tracker_logger
from llm_envs.tracking.spans import tracing

__all__ = [
    "Logger",
    "average_metrics",
    "console_logger",
    "csv_logger",
    "jsonl_logger",
    "metric_totals",
    "metrics_by",
    "multi_logger",
    "read_metrics",
    "tracing",
    "tracker_logger",
    "trajectory_metrics",
    "trajectory_table",
    "visible_text",
]
