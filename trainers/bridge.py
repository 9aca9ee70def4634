"""Collected trajectories to what TRL's trainers take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.types import Row, Trajectory

__all__ = ["REWARD_FIELD", "create_column_reader", "fork_owners", "reward_from_field", "rollout_output"]

REWARD_FIELD = "trajectory_reward"
"""Extra column that carries each row's reward from the rollout to the reward function."""


def fork_owners(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return the index of its trajectory for each row beyond the first of one, in order."""
    return [index for index, trajectory in enumerate(trajectories) for _ in trajectory.rows[1:]]


def rollout_output(
    trajectories: Sequence[Trajectory],
    *,
    pad_id: int,
    mask_truncated: bool = False,
    n_rows: int | None = None,
    columns: Mapping[str, Sequence[float | None]] | None = None,
) -> dict[str, list[Any]]:
    """Return what TRL expects of a `rollout_func`: first rows in the order of the trajectories, then those of forks.

    The tokens are the sampled ones, split where the policy first wrote; `env_mask` is 1 exactly on the policy's own
    tokens. A trajectory that was not scored (`status` other than `ok`) is masked whole and its reward is None, which
    TRL leaves out of the group's baseline: a failure is not a zero. A trajectory has its reward in its first row
    alone, else it would count twice.

    Args:
        trajectories: B trajectories; an errored one may have no rows.
        pad_id: Id that fills a row without any tokens, since TRL cannot take an empty one.
        mask_truncated: Whether the tokens of truncated trajectories are masked too (their rewards count all the same).
        n_rows: Rows to return, at least as many as there are; masked ones without reward fill up. None adds none.
        columns: Further columns of rewards by name, one number a trajectory, for `create_column_reader`.

    Returns:
        Lists of one length: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, `trajectory_reward`, and
        `trajectory_reward/<name>` of each column.
    """

    def trained(trajectory: Trajectory) -> bool:
        return trajectory.status == "ok" and not (mask_truncated and trajectory.truncated)

    firsts = [(t.rows[0] if t.rows else None, trained(t)) for t in trajectories]
    forks = [(row, trained(t)) for t in trajectories for row in t.rows[1:]]
    rows: list[tuple[Row | None, bool]] = [*firsts, *forks]
    rows += [(None, False)] * (0 if n_rows is None else n_rows - len(rows))
    parts = [_trl_row(row, pad_id, trained=is_trained) for row, is_trained in rows]
    out: dict[str, list[Any]] = {key: [part[key] for part in parts] for key in parts[0]} if parts else {}
    rewards = [t.reward if t.status == "ok" else None for t in trajectories]
    fill = [None] * (len(rows) - len(rewards))
    out[REWARD_FIELD] = rewards + fill
    return out | {f"{REWARD_FIELD}/{name}": [*values, *fill] for name, values in (columns or {}).items()}


def reward_from_field(
    prompts: Sequence[Any], completions: Sequence[Any], trajectory_reward: Sequence[float | None], **columns: Any
) -> list[float | None]:
    """Give TRL the rewards that the environment paid: a reward function that reads the rollout's own column."""
    return list(trajectory_reward)


def create_column_reader(name: str) -> Callable[..., list[float | None]]:
    """Return a reward function of TRL's that reads one column of `rollout_output`; None where it is not there."""
    key = f"{REWARD_FIELD}/{name}"

    def read(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return list(columns.get(key, [None] * len(prompts)))

    return read


def _trl_row(row: Row | None, pad_id: int, *, trained: bool) -> Mapping[str, list[Any]]:
    if row is None or len(row) <= row.prompt_length:
        ids = [pad_id] if row is None or not len(row) else row.ids.tolist()
        return {"prompt_ids": ids, "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    return _split(row, trained=trained)


def _split(row: Row, *, trained: bool) -> Mapping[str, list[Any]]:
    start = row.prompt_length
    mask = row.mask[start:].astype(np.int64) if trained else np.zeros(len(row) - start, dtype=np.int64)
    return {
        "prompt_ids": row.ids[:start].tolist(),
        "completion_ids": row.ids[start:].tolist(),
        "logprobs": row.logps[start:].tolist(),
        "env_mask": mask.tolist(),
    }
