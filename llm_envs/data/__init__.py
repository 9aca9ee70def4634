"""Trajectories on disk (`writer`) and as data sets (`datasets`)."""

from __future__ import annotations

from llm_envs.data.datasets import (
    Selector,
    all_pairs,
    best_of,
    best_worst,
    fit_rows,
    from_dataset,
    is_scored,
    preference_pairs,
    sft_rows,
    to_dataset,
    to_groups,
    to_messages,
    to_messages_jsonl,
    write_jsonl,
)

__all__ = [
    "Selector",
    "all_pairs",
    "best_of",
    "best_worst",
    "fit_rows",
    "from_dataset",
    "is_scored",
    "preference_pairs",
    "sft_rows",
    "to_dataset",
    "to_groups",
    "to_messages",
    "to_messages_jsonl",
    "write_jsonl",
]
