"""Batches from episodes, and their advantages: the same two functions for TRL's trainers and the functional loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from llm_envs.errors import InvalidConfigError
from llm_envs.policies.inference.sampling import has_filters
from llm_envs.rollout.filters import TrajectoryFilter
from llm_envs.trainers.bridge.credit import EpisodeRewards, group_numbers, token_advantages, turn_matrix, turn_penalties
from llm_envs.trainers.bridge.kept import check_kept
from llm_envs.trainers.bridge.trl_rows import fork_owners, rollout_output
from llm_envs.trainers.functional.algorithm import Algorithm
from llm_envs.trainers.functional.batch import Batch
from llm_envs.trainers.functional.masking import group_token_counts
from llm_envs.types import KeptTokens, SamplingParams

__all__ = ["Scored", "make_batch", "with_advantages"]


def make_batch(
    credit: EpisodeRewards,
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    sampling: SamplingParams | None = None,
    mask_truncated: bool = False,
    trajectory_filter: TrajectoryFilter | None = None,
) -> Batch:
    """Return the rows of a generation as tensors, without advantages.

    Args:
        credit: The episodes and their rewards (`credit.score_episodes`), with all members of each group.
        pad_id: Fills masked places; any id of the vocabulary will do.
        device: Device of the tensors.
        sampling: How the episodes were sampled; None: `SamplingParams()`.
        mask_truncated: Whether to mask episodes that a token limit cut. Their rewards still count in baselines.
        trajectory_filter: Keeps the episodes to train on (`rollout.filters`). Rewards of the others still count.

    Raises:
        InvalidConfigError: If `credit` has no episode.
    """
    trajectories = credit.trajectories
    if not trajectories:
        raise InvalidConfigError("a batch needs episodes: give at least one group.")
    lists = rollout_output(
        trajectories, pad_id=pad_id, mask_truncated=mask_truncated, trajectory_filter=trajectory_filter
    )
    prompt_ids, prompt_mask = _padded(lists["prompt_ids"], pad_id, left=True)
    completion_ids, completion_mask = _padded(lists["completion_ids"], pad_id)
    owners = [*range(len(trajectories)), *fork_owners(trajectories)]
    numbers = group_numbers(trajectories)
    n_forks = len(owners) - len(trajectories)
    sampling = sampling or SamplingParams()
    kept: tuple[KeptTokens | None, ...] | None = None
    if sampling.keep_mask and has_filters(sampling):
        check_kept(trajectories)
        firsts = [t.rows[0].kept if t.rows else None for t in trajectories]
        kept = (*firsts, *(row.kept for t in trajectories for row in t.rows[1:]))
        sampling = SamplingParams(temperature=sampling.temperature)  # the mask replaces the filters
    batch = Batch(
        _padded(lists["env_mask"], 0)[0].bool(),
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=completion_mask,
        sampled_logps_BT=_padded(lists["logprobs"], 0.0, dtype=torch.float32)[0],
        owners_B=torch.tensor(owners),
        group_ids_B=torch.tensor([numbers[owner] for owner in owners]),
        # The further row of a fork has no reward, so that its episode counts once.
        rewards_B=torch.tensor([*credit.rewards.tolist(), *[torch.nan] * n_forks], dtype=torch.float32),
        sampling=sampling,
        kept=kept,
    )
    moved: dict[str, Any] = {name: value.to(device) for name, value in batch.tensors().items()}
    return replace(batch, **moved)


@dataclass(frozen=True, eq=False)
class Scored:
    """The inputs of a generation's advantages: its E episodes, those of all processes."""

    rewards_E: torch.Tensor
    """Their rewards, float32; NaN for an episode without a score."""
    group_ids_E: torch.Tensor
    is_mine_E: torch.Tensor
    """Whether this process played the episode."""
    learns_E: torch.Tensor
    """Whether the episode's first row has a trained token."""
    kl_BT: torch.Tensor | None
    """The KL estimates of this process's tokens, if the KL counts in the reward."""


def with_advantages(
    batch: Batch,
    algorithm: Algorithm,
    credit: EpisodeRewards,
    *,
    kl_coef: float | None = None,
    gather: Callable[[list[Any]], list[Any]] | None = None,
    process_index: int = 0,
) -> tuple[Batch, Scored]:
    """Return a whole generation with advantages. With `kl_in="reward"`, first subtract the KL from each turn's reward.

    Args:
        batch: The rows of the episodes of `credit`; with `policy_logps_BT` and `ref_logps_BT` if the KL counts in the
            reward.
        algorithm: Its `advantage_fn` gets one row per episode. Without one (PPO) the batch gets no advantages.
        credit: The episodes and rewards of this process.
        kl_coef: The present coefficient of the KL; None: the algorithm's.
        gather: Joins a list of objects over all processes; None: there is one process.
        process_index: Index of this process.

    Raises:
        InvalidConfigError: If an episode has several rows and the algorithm weighs each row alike, or the batch lacks
            the log-probabilities of a KL in the reward.
    """
    has_forks = any(len(trajectory.rows) > 1 for trajectory in credit.trajectories)
    if has_forks and (algorithm.normalisation == "sequence" or algorithm.pair_loss_fn is not None):
        raise InvalidConfigError(
            f"an episode has several rows, and {algorithm.name!r} weighs each row alike: take one that is normalised "
            "by tokens or a constant, without pairs, or history='append' and no context function."
        )
    rewards, turns = credit.rewards.tolist(), [part.tolist() for part in credit.turn_rewards]
    kl_BT = _reward_kl(batch, algorithm)
    if kl_BT is not None:
        coefficient = algorithm.kl_coef if kl_coef is None else kl_coef
        assert not callable(coefficient)
        penalties = turn_penalties(coefficient * kl_BT, batch.mask_BT, credit.trajectories)
        rewards = [reward - sum(penalty) for reward, penalty in zip(rewards, penalties, strict=True)]
        # strict=False: an episode without a score has no turn rewards, while every turn has a penalty.
        turns = [[r - p for r, p in zip(*pair, strict=False)] for pair in zip(turns, penalties, strict=True)]
    if algorithm.normalisation == "prompt":
        group_ids_B = _group_ids(batch, credit)
        batch = replace(batch, group_tokens_B=group_token_counts(batch.mask_BT, group_ids_B))
    # The process is part of the key: after the gather it tells which episodes are our own.
    mine = [(process_index, trajectory.group_id) for trajectory in credit.trajectories]
    learns = batch.mask_BT[: len(mine)].bool().any(1).tolist()
    # Groups stay on one process, but an advantage_fn may whiten over the whole batch: call it on all episodes at once.
    everything = list(zip(mine, rewards, turns, learns, strict=True))
    if gather is not None:
        everything = gather(everything)
    numbers: dict[tuple[int, str], int] = {}
    scored = Scored(
        rewards_E=torch.tensor([reward for _, reward, *_ in everything], dtype=torch.float32),
        group_ids_E=torch.tensor([numbers.setdefault(group, len(numbers)) for group, *_ in everything]),
        is_mine_E=torch.tensor([group[0] == process_index for group, *_ in everything]),
        learns_E=torch.tensor([learns for *_, learns in everything]),
        kl_BT=kl_BT,
    )
    if algorithm.advantage_fn is None:
        return batch, scored
    turn_rewards_EK = turn_matrix([turn for _, _, turn, _ in everything])
    advantages = algorithm.advantage_fn(scored.rewards_E, scored.group_ids_E, turn_rewards_EK)
    own = advantages[scored.is_mine_E].to(device=batch.mask_BT.device, dtype=torch.float32)
    n_rows, n_tokens = batch.mask_BT.shape
    spread = token_advantages(own, credit.trajectories, n_rows=n_rows, n_tokens=n_tokens)
    return replace(batch, advantages=spread), scored


def _reward_kl(batch: Batch, algorithm: Algorithm) -> torch.Tensor | None:
    """Return the KL at each token, shape (B, T); None if no KL counts in the reward.

    The policy is scored the same way as the reference. The log-probabilities from sampling cannot be used: with top_p,
    top_k, min_p or a repetition penalty they belong to another distribution.
    """
    if algorithm.kl_in != "reward" or not algorithm.kl_coef:
        return None
    if batch.policy_logps_BT is None or batch.ref_logps_BT is None:
        raise InvalidConfigError(
            f"{algorithm.name!r} takes a KL from the reward: the batch needs policy_logps_BT and ref_logps_BT, both "
            "from score_batch."
        )
    return algorithm.kl_estimator(batch.policy_logps_BT, batch.ref_logps_BT, batch.mask_BT)


def _group_ids(batch: Batch, credit: EpisodeRewards) -> torch.Tensor:
    """Return each row's group; rows that only fill up the batch are in group -1."""
    numbers = group_numbers(credit.trajectories)
    ids = [*numbers, *(numbers[owner] for owner in fork_owners(credit.trajectories))]
    return torch.tensor([*ids, *[-1] * (len(batch) - len(ids))], device=batch.mask_BT.device)


def _padded(
    lists: Sequence[Sequence[float]], fill: float, *, left: bool = False, dtype: torch.dtype = torch.long
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lists as one padded tensor with at least one column, and the mask of their items."""
    width = max(1, *map(len, lists))
    values = torch.full((len(lists), width), fill, dtype=dtype)
    mask = torch.zeros((len(lists), width), dtype=torch.long)
    for row, items in enumerate(lists):
        place = slice(width - len(items), None) if left else slice(len(items))
        values[row, place] = torch.tensor(items, dtype=dtype)
        mask[row, place] = 1
    return values, mask
