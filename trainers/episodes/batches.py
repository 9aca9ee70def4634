"""From episodes to the batch of a loss: rows of tokens, and shares of an optimizer step.

The plain loop makes its `Batch` directly (`make_batch`). TRL's trainers take rows (`rollout_output`), which TRL pads,
scores, shuffles and splits, and `batch_from_trl` reads them back. `advantages.with_advantages` serves both.

Invariants:
1. The first rows are the episodes in order; the further rows of forked episodes follow; then rows that only fill up.
2. The mask is 1 exactly on the policy's tokens of scored episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.trainers.episodes.rewards import EpisodeRewards, group_numbers
from llm_envs.trainers.forward.kept import check_kept
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.masking import Normalisation
from llm_envs.types import KeptTokens, Row, SamplingParams, Trajectory

__all__ = [
    "REWARD_FIELD",
    "StepShares",
    "batch_from_trl",
    "make_batch",
    "pad_rows",
    "rollout_output",
    "slice_rows",
    "take_rows",
]

REWARD_FIELD = "trajectory_reward"
"""Extra column that carries each row's reward from the rollout to the reward function."""


def row_places(trajectories: Sequence[Trajectory]) -> list[tuple[int, int]]:
    """Return (trajectory's index, which of its rows) for each row of a batch: first rows, then the forks' rows."""
    # First rows come first, one per episode: TRL groups rows by position, and must not see forks between them.
    forks = [(index, row) for index, trajectory in enumerate(trajectories) for row in range(1, len(trajectory.rows))]
    return [(index, 0) for index in range(len(trajectories))] + forks


def rollout_output(
    trajectories: Sequence[Trajectory],
    *,
    pad_id: int,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
    n_rows: int | None = None,
) -> dict[str, list[Any]]:
    """Return the rows of a `rollout_func` for TRL: first rows in the order of the trajectories, then the forks' rows.

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

    Returns:
        Lists of one length: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask` and `trajectory_reward`.
    """

    def trained(trajectory: Trajectory) -> bool:
        if trajectory.status != "ok" or (mask_truncated and trajectory.is_cut):
            return False
        return trajectory_filter is None or trajectory_filter(trajectory)

    places = [(trajectories[index], row) for index, row in row_places(trajectories)]
    rows: list[tuple[Row | None, bool]] = [(t.rows[row] if t.rows else None, trained(t)) for t, row in places]
    rows += [(None, False)] * (0 if n_rows is None else n_rows - len(rows))
    parts = [_trl_row(row, pad_id, trained=is_trained) for row, is_trained in rows]
    out: dict[str, list[Any]] = {key: [part[key] for part in parts] for key in parts[0]} if parts else {}
    rewards = [t.reward if t.status == "ok" else None for t in trajectories]
    # Rows of forks and filling rows have no reward, so an episode counts once in its baseline.
    return out | {REWARD_FIELD: rewards + [None] * (len(rows) - len(rewards))}


def _trl_row(row: Row | None, pad_id: int, *, trained: bool) -> Mapping[str, list[Any]]:
    # An episode may fail before its first token, and TRL does not accept an empty completion: give it a masked one.
    if row is None or len(row) <= row.prompt_length:
        ids = [pad_id] if row is None or not len(row) else row.ids.tolist()
        return {"prompt_ids": ids, "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}
    start = row.prompt_length
    mask = row.mask[start:].astype(np.int64) if trained else np.zeros(len(row) - start, dtype=np.int64)
    return {
        "prompt_ids": row.ids[:start].tolist(),
        "completion_ids": row.ids[start:].tolist(),
        "logprobs": row.logps[start:].tolist(),
        "env_mask": mask.tolist(),
    }


def pad_rows(rows: Mapping[str, Sequence[Any]], *, pad_id: int, multiple: int = 1) -> dict[str, torch.Tensor]:
    """Return rows of `rollout_output` as TRL pads them: prompts on the left, the rest on the right, on the CPU.

    The number of columns is a multiple of `multiple`.
    """
    prompt_ids, prompt_mask = _padded(rows["prompt_ids"], pad_id, multiple, left=True)
    completion_ids, completion_mask = _padded(rows["completion_ids"], pad_id, multiple)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": _padded(rows["env_mask"], 0, multiple)[0],
        "sampling_per_token_logps": _padded(rows["logprobs"], 0.0, multiple, dtype=np.float32)[0],
    }


def batch_from_trl(inputs: Mapping[str, Any]) -> Batch:
    """Return the batch of TRL's GRPO inputs: a generation, or a micro-batch of it.

    `completion_mask` is 0 on padding and `tool_mask` on the environment's tokens, so the product has the sampled
    tokens.
    """
    return Batch(
        (inputs["completion_mask"] * inputs["tool_mask"]).bool(),
        advantages=inputs.get("advantages"),
        old_logps_BT=inputs.get("old_per_token_logps"),
        ref_logps_BT=inputs.get("ref_per_token_logps"),
        sampled_logps_BT=inputs.get("sampling_per_token_logps"),
        weights=inputs.get("importance_sampling_ratio"),
        prompt_ids=inputs.get("prompt_ids"),
        prompt_mask=inputs.get("prompt_mask"),
        completion_ids=inputs.get("completion_ids"),
        completion_mask=inputs.get("completion_mask"),
        group_tokens_B=inputs.get("group_tokens"),
    )


def make_batch(
    episodes: EpisodeRewards,
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    sampling: SamplingParams | None = None,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
) -> Batch:
    """Return the rows of a generation as tensors, without advantages.

    Args:
        episodes: The episodes and their rewards (`rewards.score_episodes`), with all members of each group.
        pad_id: Fills masked places; any id of the vocabulary will do.
        device: Device of the tensors.
        sampling: How the episodes were sampled; None: `SamplingParams()`.
        mask_truncated: Whether to mask episodes that a token limit cut. Their rewards still count in baselines.
        trajectory_filter: Keeps the episodes to train on (`rollout.filters`). Rewards of the others still count.

    Raises:
        InvalidConfigError: If `episodes` has no episode.
    """
    trajectories = episodes.trajectories
    if not trajectories:
        raise InvalidConfigError("a batch needs episodes: give at least one group.")
    lists = rollout_output(
        trajectories, pad_id=pad_id, mask_truncated=mask_truncated, trajectory_filter=trajectory_filter
    )
    places, numbers = row_places(trajectories), group_numbers(trajectories)
    sampling = sampling or SamplingParams()
    kept: tuple[KeptTokens | None, ...] | None = None
    if sampling.keep_mask and has_filters(sampling):
        check_kept(trajectories)
        kept = tuple(trajectories[i].rows[row].kept if trajectories[i].rows else None for i, row in places)
        sampling = SamplingParams(temperature=sampling.temperature)  # the mask replaces the filters
    batch = replace(
        batch_from_trl(pad_rows(lists, pad_id=pad_id)),
        owners_B=torch.tensor([index for index, _ in places]),
        group_ids_B=torch.tensor([numbers[index] for index, _ in places]),
        # The further row of a fork has no reward, so that its episode counts once.
        rewards_B=torch.tensor(
            [*episodes.rewards.tolist(), *[torch.nan] * (len(places) - len(trajectories))], dtype=torch.float32
        ),
        sampling=sampling,
        kept=kept,
    )
    moved: dict[str, Any] = {name: value.to(device) for name, value in batch.tensors().items()}
    return replace(batch, **moved)


def _padded(
    lists: Sequence[Sequence[float]],
    fill: float,
    multiple: int,
    *,
    left: bool = False,
    dtype: type[np.generic] = np.int64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lists as one padded tensor with at least one column, and the mask of their items."""
    width = -(-max(1, *map(len, lists)) // multiple) * multiple
    values = np.full((len(lists), width), fill, dtype=dtype)
    mask = np.zeros((len(lists), width), dtype=np.int64)
    for row, items in enumerate(lists):
        place = slice(width - len(items), None) if left else slice(len(items))
        values[row, place] = items
        mask[row, place] = 1
    return torch.from_numpy(values), torch.from_numpy(mask)


@dataclass(frozen=True)
class StepShares:
    """How the micro-batches of all processes share the loss of an optimizer step. In an evaluation all counts are 1."""

    n_processes: int
    n_micro_batches: int
    """Micro-batches of a generation, on each process."""
    n_accumulated: int
    """Micro-batches of an optimizer step, on each process."""
    micro_batch_size: int | None
    """Rows of a micro-batch without forks; None: its actual number of rows (evaluation)."""
    group_size: int

    def denominator(
        self, normalisation: Normalisation, mask_BT: torch.Tensor, n_tokens: torch.Tensor, *, constant: float
    ) -> float | torch.Tensor:
        """Return the divisor that turns a micro-batch's sum into its share of the step's loss.

        Gradients are averaged over processes and summed over micro-batches.

        Args:
            normalisation: "token" divides by the tokens of the generation, on all processes.
            mask_BT: The micro-batch's.
            n_tokens: TRL's `num_items_in_batch`: trained tokens of the generation, on all processes.
            constant: The constant of "constant".
        """
        if normalisation == "token":
            return n_tokens.clamp(min=1.0) / self.n_processes * self.n_accumulated / self.n_micro_batches
        if normalisation == "prompt":  # a micro-batch may split a group, and forks add rows but no prompts
            n_rows = len(mask_BT) if self.micro_batch_size is None else self.micro_batch_size
            return n_rows * self.n_accumulated / self.group_size
        return len(mask_BT) * self.n_accumulated * (constant if normalisation == "constant" else 1.0)

    def pair_weight(self, n_pairs: int) -> float:
        """Return the weight of a micro-batch's pair sum in the generation's mean pair loss."""
        # The number of processes undoes DDP's average. A step has the share n_accumulated / n_micro_batches of a
        # generation, so the mean over the generation is scaled up to keep a step's size.
        return self.n_processes * self.n_micro_batches / self.n_accumulated / max(n_pairs, 1)


def slice_rows(value: Any, start: int, stop: int) -> Any:
    """Return some rows of a tensor or list; a value of the batch (a scalar) is returned unchanged."""
    if value is None or (isinstance(value, torch.Tensor) and value.ndim == 0):
        return value
    return value[start:stop] if isinstance(value, torch.Tensor | list) else value


def take_rows(batch: Mapping[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    """Return a batch with some of its rows, in a given order.

    Args:
        batch: Tensors and lists of B rows; None and scalars are kept.
        rows: Int64: their numbers.
    """

    def take(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim:
            return value[rows.to(value.device)]
        return [value[row] for row in rows.tolist()] if isinstance(value, list) else value

    return {name: take(value) for name, value in batch.items()}
