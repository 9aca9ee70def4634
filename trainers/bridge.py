"""Collected trajectories to what TRL's trainers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_envs.errors import EnvContractError
from llm_envs.types import Row, Trajectory

__all__ = ["REWARD_FIELD", "reward_from_field", "rollout_output"]

REWARD_FIELD = "trajectory_reward"
"""Extra column that carries each row's reward from the rollout to the reward function."""


def rollout_output(
    trajectories: Sequence[Trajectory], *, pad_id: int, mask_truncated: bool = False
) -> dict[str, list[Any]]:
    """Return what TRL expects of a `rollout_func`: one row a trajectory, in their order.

    The tokens are the sampled ones, split where the policy first wrote; `env_mask` is 1 exactly on the policy's own
    tokens. A trajectory that was not scored (`status` other than `ok`) is masked whole and its reward is None, which
    TRL leaves out of the group's baseline: a failure is not a zero.

    Args:
        trajectories: B trajectories of one row each; an errored one may have none.
        pad_id: Id that fills a row without any tokens, since TRL cannot take an empty one.
        mask_truncated: Whether the tokens of truncated trajectories are masked too (their rewards count all the same).

    Returns:
        Lists of length B: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask` and `trajectory_reward`.

    Raises:
        EnvContractError: If a trajectory has several rows.
    """
    rows = [_trl_row(trajectory, pad_id, mask_truncated) for trajectory in trajectories]
    out: dict[str, list[Any]] = {key: [row[key] for row in rows] for key in rows[0]} if rows else {}
    out[REWARD_FIELD] = [t.reward if t.status == "ok" else None for t in trajectories]
    return out


def reward_from_field(
    prompts: Sequence[Any], completions: Sequence[Any], trajectory_reward: Sequence[float | None], **columns: Any
) -> list[float | None]:
    """Give TRL the rewards that the environment paid: a reward function that reads the rollout's own column."""
    return list(trajectory_reward)


def _trl_row(trajectory: Trajectory, pad_id: int, mask_truncated: bool) -> Mapping[str, list[Any]]:
    if len(trajectory.rows) > 1:
        raise EnvContractError(
            f"trajectory {trajectory.group_id}/{trajectory.member} has {len(trajectory.rows)} rows: training takes "
            "one row a trajectory. Use a chat template that keeps earlier turns as they were (history='append')."
        )
    row = trajectory.rows[0] if trajectory.rows else None
    if row is None or len(row) <= row.prompt_length:
        ids = [pad_id] if row is None or not len(row) else row.ids.tolist()
        return {"prompt_ids": ids, "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    return _split(row, trained=trajectory.status == "ok" and not (mask_truncated and trajectory.truncated))


def _split(row: Row, *, trained: bool) -> Mapping[str, list[Any]]:
    start = row.prompt_length
    mask = row.mask[start:].astype(np.int64) if trained else np.zeros(len(row) - start, dtype=np.int64)
    return {
        "prompt_ids": row.ids[:start].tolist(),
        "completion_ids": row.ids[start:].tolist(),
        "logprobs": row.logps[start:].tolist(),
        "env_mask": mask.tolist(),
    }
