"""Trajectories on disk (`writer`) and as data sets (`datasets`)."""

from __future__ import annotations

from llm_envs.data.datasets import (
    best_of,
    fit_rows,
    from_dataset,
    is_scored,
    preference_pairs,
    preference_rows,
    sft_rows,
    to_dataset,
    to_groups,
    to_messages,
    to_messages_jsonl,
    write_jsonl,
)

__all__ = [
    "best_of",
    "fit_rows",
    "from_dataset",
    "is_scored",
    "preference_pairs",
    "preference_rows",
    "sft_rows",
    "to_dataset",
    "to_groups",
    "to_messages",
    "to_messages_jsonl",
    "write_jsonl",
]
