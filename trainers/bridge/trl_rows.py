"""Converts collected trajectories to rows for TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.types import Row, Trajectory

__all__ = ["REWARD_FIELD", "create_column_reader", "fork_owners", "reward_from_field", "rollout_output"]

REWARD_FIELD = "trajectory_reward"
"""Extra column that carries each row's reward from the rollout to the reward function."""


def fork_owners(trajectories: Sequence[Trajectory]) -> list[int]:
    """Return the trajectory's index for each row beyond a trajectory's first, in order."""
    return [index for index, trajectory in enumerate(trajectories) for _ in trajectory.rows[1:]]


def rollout_output(
    trajectories: Sequence[Trajectory],
    *,
    pad_id: int,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
    n_rows: int | None = None,
    columns: Mapping[str, Sequence[float | None]] | None = None,
) -> dict[str, list[Any]]:
    """Return the rows of a `rollout_func` for TRL: first rows in the order of the trajectories, then those of forks.

    The tokens are the sampled ones, split where the policy first wrote; `env_mask` is 1 exactly on the policy's tokens.
    A trajectory that was not scored (`status` other than `ok`) is fully masked. Its reward is None, which TRL leaves
    out of the group's baseline: a failure is not a zero. Only the first row of a trajectory has its reward, so that it
    does not count twice.

    Args:
        trajectories: B trajectories; an errored one may have no rows.
        pad_id: Id that fills a row without tokens, since TRL does not accept an empty row.
        mask_truncated: Whether to mask trajectories that a token limit cut (`Trajectory.is_cut`) too. Their rewards
            still count.
        trajectory_filter: Keeps the trajectories to train on (`rollout.filters`); the tokens of the others are masked.
            None: all.
        n_rows: Total rows to return; masked rows without a reward are added to reach it. None: add no rows.
        columns: Further reward columns by name, one number per trajectory, for `create_column_reader`.

    Returns:
        Lists of one length: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, `trajectory_reward`, and
        `trajectory_reward/<name>` of each column.
    """

    def trained(trajectory: Trajectory) -> bool:
        if trajectory.status != "ok" or (mask_truncated and trajectory.is_cut):
            return False
        return trajectory_filter is None or trajectory_filter(trajectory)

    # First rows come first, one per episode: TRL groups rows by position, and must not see forks between them.
    firsts = [(t.rows[0] if t.rows else None, trained(t)) for t in trajectories]
    forks = [(row, trained(t)) for t in trajectories for row in t.rows[1:]]
    rows: list[tuple[Row | None, bool]] = [*firsts, *forks]
    rows += [(None, False)] * (0 if n_rows is None else n_rows - len(rows))
    parts = [_trl_row(row, pad_id, trained=is_trained) for row, is_trained in rows]
    out: dict[str, list[Any]] = {key: [part[key] for part in parts] for key in parts[0]} if parts else {}
    rewards = [t.reward if t.status == "ok" else None for t in trajectories]
    # Rows of forks and filling rows have no reward, so an episode counts once in its baseline.
    fill = [None] * (len(rows) - len(rewards))
    out[REWARD_FIELD] = rewards + fill
    return out | {f"{REWARD_FIELD}/{name}": [*values, *fill] for name, values in (columns or {}).items()}


def reward_from_field(
    prompts: Sequence[Any], completions: Sequence[Any], trajectory_reward: Sequence[float | None], **columns: Any
) -> list[float | None]:
    """Return the environment's rewards: a reward function for TRL that reads the rollout's column."""
    return list(trajectory_reward)


def create_column_reader(name: str) -> Callable[..., list[float | None]]:
    """Return a reward function for TRL that reads one column of `rollout_output`; all None if it is missing."""
    key = f"{REWARD_FIELD}/{name}"

    def read(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return list(columns.get(key, [None] * len(prompts)))

    return read


def _trl_row(row: Row | None, pad_id: int, *, trained: bool) -> Mapping[str, list[Any]]:
    # An episode may fail before its first token, and TRL does not accept an empty completion: give it a masked one.
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
